//! The state file, which lets a restarted gateway forward before the API server answers.
//!
//! It holds the last desired peers, their last endpoints, and the prefixes of this cluster. It contains no secret:
//! only public keys of peers. It is replaced atomically; a file that cannot be read or belongs to another gateway is
//! ignored.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use remap::{Cluster, Rule};
use serde::{Deserialize, Serialize};
use strait_api::identity::Identity;
use strait_io::PeerStatus;
use strait_wg::PublicKey;
use tracing::{info, warn};

use super::DesiredPeers;
use crate::config::{Endpoint, Origins, Peer};

/// Version of the format, increased when older files would be misread.
const VERSION: u32 = 1;

/// The state file of one gateway.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    gateway: String,
    written: Option<String>,
    is_failing: bool,
}

#[derive(Debug, Deserialize, Serialize)]
struct State {
    version: u32,
    gateway: String,
    peers: Vec<Remembered>,
    /// The prefixes of this cluster. Older files lack them.
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    masquerade: Vec<IpAddr>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Remembered {
    name: String,
    public_key: String,
    /// The last endpoint.
    #[serde(default)]
    endpoint: Option<SocketAddr>,
    allowed_ips: Vec<String>,
    remaps: Vec<RememberedRule>,
}

#[derive(Debug, Deserialize, Serialize)]
struct RememberedRule {
    remote: String,
    local: String,
}

impl StateFile {
    /// Does not access the file yet.
    pub(super) fn new(path: PathBuf, identity: &Identity) -> Self {
        let Identity { name, namespace, remote_cluster_id, mode, .. } = identity;
        let gateway = format!("{namespace}/{name} {mode} {remote_cluster_id}");

        Self { path, gateway, written: None, is_failing: false }
    }

    /// Reads the last desired peers, which may also be at `endpoints`; `None` without a usable file.
    pub(super) fn load(&self, endpoints: &[Endpoint]) -> Option<DesiredPeers> {
        let path = self.path.display();
        let state = match read(&self.path) {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                warn!(%error, %path, "cannot read the state file; waiting for the API server");
                return None;
            }
        };
        if (state.version, &state.gateway) != (VERSION, &self.gateway) {
            warn!(%path, gateway = state.gateway, "the state file is of another gateway; waiting for the API server");
            return None;
        }

        let wanted = state.to_desired(endpoints);
        match &wanted {
            Some(wanted) => {
                info!(%path, peers = wanted.peers.len(), "using the saved peers until the API server answers")
            }
            None => warn!(%path, "the state file is invalid; waiting for the API server"),
        }

        wanted
    }

    /// Saves the desired peers and their current endpoints if they have changed.
    pub(super) fn save(&mut self, wanted: &DesiredPeers, status: &[PeerStatus]) {
        let endpoint = |key: PublicKey| {
            status.iter().find(|peer| peer.public_key == key).and_then(|peer| peer.endpoint)
        };
        let DesiredPeers { peers, cluster } = wanted;
        let peers = peers.iter().map(|peer| Remembered::new(peer, endpoint(peer.public_key)));
        let state = State {
            version: VERSION,
            gateway: self.gateway.clone(),
            peers: peers.collect(),
            prefixes: cluster.prefixes.iter().map(ToString::to_string).collect(),
            masquerade: cluster.masquerade.clone(),
        };
        // Serialization cannot fail for this type.
        let Ok(text) = serde_json::to_string_pretty(&state) else { return };
        if self.written.as_ref() == Some(&text) {
            return;
        }

        match write(&self.path, &text) {
            Ok(()) => (self.written, self.is_failing) = (Some(text), false),
            Err(error) => {
                if !self.is_failing {
                    let path = self.path.display();
                    warn!(%error, %path, "cannot write the state file: mount a writable folder");
                }
                self.is_failing = true;
            }
        }
    }
}

impl State {
    fn to_desired(&self, endpoints: &[Endpoint]) -> Option<DesiredPeers> {
        let peers = self.peers.iter().map(|remembered| remembered.to_peer(endpoints));
        let prefixes = self.prefixes.iter().map(|prefix| prefix.parse().ok());
        let cluster = Cluster {
            prefixes: prefixes.collect::<Option<_>>()?,
            masquerade: self.masquerade.clone(),
            ..Cluster::default()
        };

        Some(DesiredPeers { peers: peers.collect::<Option<_>>()?, cluster })
    }
}

impl Remembered {
    fn new(peer: &Peer, endpoint: Option<SocketAddr>) -> Self {
        let rule = |rule: &Rule| RememberedRule {
            remote: rule.remote().to_string(),
            local: rule.local().to_string(),
        };

        Self {
            name: peer.name.clone(),
            public_key: peer.public_key.to_string(),
            endpoint,
            allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
            remaps: peer.remaps.iter().map(rule).collect(),
        }
    }

    fn to_peer(&self, endpoints: &[Endpoint]) -> Option<Peer> {
        let rule = |rule: &RememberedRule| {
            Rule::new(rule.remote.parse().ok()?, rule.local.parse().ok()?).ok()
        };
        // The last endpoint comes first; a server knows no other.
        let is_configured = |was: &SocketAddr| endpoints.contains(&Endpoint::Address(*was));
        let was = self.endpoint.filter(|was| !is_configured(was)).map(Endpoint::Learned);

        Some(Peer {
            name: self.name.clone(),
            public_key: self.public_key.parse().ok()?,
            preshared_key: None,
            endpoints: was.into_iter().chain(endpoints.iter().cloned()).collect(),
            persistent_keepalive: None,
            allowed_ips: self
                .allowed_ips
                .iter()
                .map(|prefix| prefix.parse().ok())
                .collect::<Option<_>>()?,
            remaps: self.remaps.iter().map(rule).collect::<Option<_>>()?,
            origins: Origins::default(),
        })
    }
}

fn read(path: &Path) -> io::Result<State> {
    // Opening a FIFO would block until there is a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Writes a new file and renames it, so that an interruption leaves the old state.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = fs::File::create(&next)?;
    file.write_all(text.as_bytes())?;
    drop(file);

    fs::rename(next, path)
}

#[cfg(test)]
mod tests {

    use strait_api::identity::Mode;

    use super::*;
    use crate::config::example;

    fn identity(name: &str) -> Identity {
        Identity {
            name: name.to_owned(),
            namespace: "tenant".to_owned(),
            remote_cluster_id: "rome".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Server,
        }
    }

    fn wanted() -> DesiredPeers {
        let cluster = Cluster {
            prefixes: vec!["10.244.0.0/16".parse().unwrap(), "10.70.0.0/16".parse().unwrap()],
            masquerade: vec!["10.70.0.0".parse().unwrap()],
            ..Cluster::default()
        };

        DesiredPeers { peers: peers(), cluster }
    }

    /// As objects make them.
    fn peers() -> Vec<Peer> {
        let mut peers = example::config().peers;
        for peer in &mut peers {
            peer.preshared_key = None;
            peer.persistent_keepalive = None;
            peer.endpoints = Vec::new();
            peer.origins = Origins::default();
        }

        peers
    }

    #[test]
    fn only_changed_state_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut state = StateFile::new(path.clone(), &identity("rome"));
        assert_eq!(state.load(&[]), None);

        state.save(&wanted(), &[]);
        assert_eq!(state.load(&[]), Some(wanted()));

        fs::remove_file(&path).unwrap();
        state.save(&wanted(), &[]);
        assert!(!path.exists());
        state.save(&DesiredPeers::default(), &[]);
        assert_eq!(state.load(&[]), Some(DesiredPeers::default()));
    }

    #[test]
    fn the_last_endpoint_comes_first() {
        let was = "192.0.2.7:7".parse().unwrap();
        let may_be: Endpoint = "peer.example:51840".parse().unwrap();
        let remembered = Remembered::new(&peers()[0], Some(was));

        let peer = remembered.to_peer(std::slice::from_ref(&may_be)).unwrap();

        assert_eq!(peer.endpoints, [Endpoint::Learned(was), may_be.clone()]);
        let peer = remembered.to_peer(&[Endpoint::Address(was), may_be.clone()]).unwrap();
        assert_eq!(peer.endpoints, [Endpoint::Address(was), may_be]);
    }

    #[test]
    fn an_invalid_state_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut state = StateFile::new(path.clone(), &identity("rome"));
        state.save(&wanted(), &[]);
        let good = fs::read_to_string(&path).unwrap();

        assert_eq!(StateFile::new(path.clone(), &identity("oslo")).load(&[]), None);
        for bad in [
            String::new(),
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace("10.244.0.0/16", "10.244.0.0/99"),
            good[..good.len() / 2].to_owned(),
        ] {
            assert_ne!(bad, good);
            fs::write(&path, &bad).unwrap();
            assert_eq!(state.load(&[]), None, "{bad}");
        }
    }

    #[test]
    fn a_fifo_is_no_state_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();

        assert_eq!(StateFile::new(path, &identity("rome")).load(&[]), None);
    }

    #[test]
    fn a_missing_state_folder_is_no_error() {
        let mut state = StateFile::new("/nowhere/state.json".into(), &identity("rome"));

        state.save(&wanted(), &[]);

        assert!(state.is_failing);
        assert_eq!(state.load(&[]), None);
    }
}
