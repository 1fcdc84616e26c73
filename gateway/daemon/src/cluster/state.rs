//! The state file, which lets a restarted gateway forward before the API server answers.
//!
//! It holds the last desired peers, their last endpoints, the prefixes of this cluster, and those that only this gateway may
//! carry packets to. It contains no secret: only public keys of peers. It is replaced atomically; a file that cannot be read
//! or belongs to another gateway is ignored.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use remap::{Cluster, Prefix, Rule};
use serde::{Deserialize, Serialize};
use strait_api::identity::Identity;
use strait_io::PeerStatus;
use strait_plan::objects::Requested;
use strait_plan::{Desired, Peer};
use strait_wg::{PathMtuSource, PublicKey};
use tracing::{info, warn};

use crate::config::{Endpoint, Origins};

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
    /// The destinations that only this gateway may carry packets to.
    #[serde(default)]
    own_destinations: Vec<String>,
    /// The path MTU to the peer in bytes, if probes found it. Not in files: the Lease records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_mtu: Option<u16>,
}

/// What a successor of this process needs to know.
#[derive(Debug, PartialEq)]
pub(super) struct SourceState {
    /// What the objects requested.
    pub(super) requested: Requested,
    /// The path MTU to the peer in bytes, if probes found it.
    pub(super) path_mtu: Option<u16>,
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
        Self { path, gateway: gateway_of(identity), written: None, is_failing: false }
    }

    /// Reads the last desired peers; `None` without a usable file.
    pub(super) fn load(&self) -> Option<Requested> {
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

        let saved = state.to_requested();
        match &saved {
            Some(saved) => {
                info!(%path, peers = saved.peers.len(), "using the saved peers until the API server answers")
            }
            None => warn!(%path, "the state file is invalid; waiting for the API server"),
        }

        saved
    }

    /// Saves the desired peers and their current endpoints if they have changed.
    pub(super) fn save(&mut self, desired: &Desired, status: &[PeerStatus]) {
        let state = State::new(self.gateway.clone(), desired, status);
        let Some(text) = text(&state) else { return };
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

/// The desired peers of the gateway `identity` and their current endpoints, for a successor of this process.
pub(super) fn to_text(
    identity: &Identity,
    desired: &Desired,
    status: &[PeerStatus],
) -> Option<String> {
    let probed = status.iter().filter_map(|peer| peer.path_mtu);
    let probed = probed.filter(|path_mtu| path_mtu.source == PathMtuSource::Probe);
    let path_mtu = probed.map(|path_mtu| path_mtu.bytes).next();

    text(&State { path_mtu, ..State::new(gateway_of(identity), desired, status) })
}

/// Reads what [`to_text`] made for the same gateway.
pub(super) fn from_text(identity: &Identity, text: &str) -> Option<SourceState> {
    let state: State = serde_json::from_str(text).ok()?;
    let is_ours = (state.version, &state.gateway) == (VERSION, &gateway_of(identity));
    let requested = is_ours.then(|| state.to_requested()).flatten()?;

    Some(SourceState { requested, path_mtu: state.path_mtu })
}

/// What identifies a gateway in its state.
fn gateway_of(identity: &Identity) -> String {
    let Identity { name, namespace, remote_cluster_id, mode, .. } = identity;

    format!("{namespace}/{name} {mode} {remote_cluster_id}")
}

/// Serialization cannot fail for this type.
fn text(state: &State) -> Option<String> {
    serde_json::to_string_pretty(state).ok()
}

impl State {
    fn new(gateway: String, desired: &Desired, status: &[PeerStatus]) -> Self {
        let endpoint = |key: PublicKey| {
            status.iter().find(|peer| peer.public_key == key).and_then(|peer| peer.endpoint)
        };
        let Desired { peers, cluster, own_destinations, .. } = desired;
        let peers = peers.iter().map(|peer| {
            let public_key = PublicKey::from_bytes(peer.keys);
            Remembered::new(peer, public_key, endpoint(public_key))
        });

        Self {
            version: VERSION,
            gateway,
            peers: peers.collect(),
            prefixes: texts(&cluster.prefixes),
            masquerade: cluster.masquerade.clone(),
            own_destinations: texts(own_destinations),
            path_mtu: None,
        }
    }

    fn to_requested(&self) -> Option<Requested> {
        let peers = self.peers.iter().map(Remembered::to_peer);
        let cluster = Cluster {
            prefixes: prefixes(&self.prefixes)?,
            masquerade: self.masquerade.clone(),
            ..Cluster::default()
        };

        Some(Requested {
            peers: peers.collect::<Option<_>>()?,
            cluster,
            own_destinations: prefixes(&self.own_destinations)?,
            refused: Vec::new(),
        })
    }
}

impl Remembered {
    fn new(peer: &Peer, public_key: PublicKey, endpoint: Option<SocketAddr>) -> Self {
        let rule = |rule: &Rule| RememberedRule {
            remote: rule.remote().to_string(),
            local: rule.local().to_string(),
        };

        Self {
            name: peer.name.clone(),
            public_key: public_key.to_string(),
            endpoint,
            allowed_ips: texts(&peer.allowed_ips),
            remaps: peer.remaps.iter().map(rule).collect(),
        }
    }

    fn to_peer(&self) -> Option<Peer> {
        let rule = |rule: &RememberedRule| {
            Rule::new(rule.remote.parse().ok()?, rule.local.parse().ok()?).ok()
        };

        Some(Peer {
            name: self.name.clone(),
            keys: *self.public_key.parse::<PublicKey>().ok()?.as_bytes(),
            endpoints: self.endpoint.map(Endpoint::Learned).into_iter().collect(),
            persistent_keepalive: None,
            allowed_ips: prefixes(&self.allowed_ips)?.into(),
            remaps: self.remaps.iter().map(rule).collect::<Option<_>>()?,
            origins: Origins::default(),
        })
    }
}

fn texts(prefixes: &[Prefix]) -> Vec<String> {
    prefixes.iter().map(ToString::to_string).collect()
}

fn prefixes(texts: &[String]) -> Option<Vec<Prefix>> {
    texts.iter().map(|prefix| prefix.parse().ok()).collect()
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

    fn desired() -> Desired {
        let cluster = Cluster {
            prefixes: vec!["10.244.0.0/16".parse().unwrap(), "10.70.0.0/16".parse().unwrap()],
            masquerade: vec!["10.70.0.0".parse().unwrap()],
            ..Cluster::default()
        };

        let own_destinations = vec!["10.81.0.3/32".parse().unwrap()];

        Desired { peers: peers(), cluster, own_destinations, ..Desired::default() }
    }

    /// As objects make them.
    fn peers() -> Vec<Peer> {
        let peers = example::config().peers.into_iter().map(|peer| Peer {
            persistent_keepalive: None,
            endpoints: Vec::new(),
            ..peer.map_keys(|keys| *keys.public_key.as_bytes())
        });

        peers.collect()
    }

    fn requested(desired: &Desired) -> Requested {
        let Desired { peers, cluster, own_destinations, .. } = desired.clone();

        Requested { peers, cluster, own_destinations, refused: Vec::new() }
    }

    #[test]
    fn only_changed_state_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut state = StateFile::new(path.clone(), &identity("rome"));
        assert_eq!(state.load(), None);

        state.save(&desired(), &[]);
        assert_eq!(state.load(), Some(requested(&desired())));

        fs::remove_file(&path).unwrap();
        state.save(&desired(), &[]);
        assert!(!path.exists());
        state.save(&Desired::default(), &[]);
        assert_eq!(state.load(), Some(Requested::default()));
    }

    #[test]
    fn only_the_same_gateway_reads_the_text() {
        let text = to_text(&identity("rome"), &desired(), &[]).unwrap();

        let source_state = SourceState { requested: requested(&desired()), path_mtu: None };
        assert_eq!(from_text(&identity("rome"), &text), Some(source_state));
        assert_eq!(from_text(&identity("oslo"), &text), None);
        assert_eq!(from_text(&identity("rome"), &text[1..]), None);
    }

    #[test]
    fn the_last_endpoint_is_restored() {
        let was = "192.0.2.7:7".parse().unwrap();
        let peer = peers().remove(0);

        let remembered = Remembered::new(&peer, PublicKey::from_bytes(peer.keys), Some(was));

        let endpoints = vec![Endpoint::Learned(was)];
        assert_eq!(remembered.to_peer(), Some(Peer { endpoints, ..peer }));
    }

    #[test]
    fn an_invalid_state_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut state = StateFile::new(path.clone(), &identity("rome"));
        state.save(&desired(), &[]);
        let good = fs::read_to_string(&path).unwrap();

        assert_eq!(StateFile::new(path.clone(), &identity("oslo")).load(), None);
        for bad in [
            String::new(),
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace("10.244.0.0/16", "10.244.0.0/99"),
            good[..good.len() / 2].to_owned(),
        ] {
            assert_ne!(bad, good);
            fs::write(&path, &bad).unwrap();
            assert_eq!(state.load(), None, "{bad}");
        }
    }

    #[test]
    fn a_fifo_is_no_state_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();

        assert_eq!(StateFile::new(path, &identity("rome")).load(), None);
    }

    #[test]
    fn a_missing_state_folder_is_no_error() {
        let mut state = StateFile::new("/nowhere/state.json".into(), &identity("rome"));

        state.save(&desired(), &[]);

        assert!(state.is_failing);
        assert_eq!(state.load(), None);
    }
}
