//! What the flags of a gateway in a cluster mean.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use control::conncheck;
use control::identity::{Identity, Mode};
use control::objects::{Remapping, Scope};
use ipnet::{IpNet, Ipv4Net};
use remap::Cluster;
use strait_gateway::io::Offload;

use super::flags::ClusterFlags;
use crate::daemon::args::UsageError;
use crate::daemon::config::{AdminSocket, Config, DEFAULT_MAX_FLOWS, Endpoint, Engine, keyfile};

/// Where a pod finds the name of its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The key within `--keys-dir`.
const KEY_FILE: &str = "privateKey";

/// The addresses of the tunnel: the server's, then the client's.
const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(169, 254, 18, 1), Ipv4Addr::new(169, 254, 18, 2)];
const TUNNEL_PREFIX_BITS: u8 = 30;

/// Everything about a gateway in a cluster that flags say.
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) scope: Scope,
    /// Of the server, for a client.
    pub(crate) endpoint: Option<Endpoint>,
    /// `None` if nothing is to be checked.
    pub(crate) probe: Option<conncheck::Settings>,
    pub(crate) report_interval: Duration,
    /// Where our own key is.
    pub(crate) key_file: PathBuf,
}

impl Settings {
    /// Reads the flags and the key they lead to; also gives the configuration to start with, which
    /// has no peers.
    ///
    /// # Errors
    ///
    /// [`UsageError`] with the flag to mend, or [`keyfile::KeyFileError`].
    pub(crate) fn read(flags: &ClusterFlags) -> anyhow::Result<(Self, Config)> {
        let identity = identity(flags)?;
        let [server, client] = TUNNEL;
        let (own, other) = match identity.mode {
            Mode::Server => (server, client),
            Mode::Client => (client, server),
        };
        let endpoint = match identity.mode {
            Mode::Server => None,
            Mode::Client => Some(endpoint(flags)?),
        };
        let probe = flags.ping_enabled.then(|| conncheck::Settings {
            cluster_id: identity.remote_cluster_id.clone(),
            peer: IpAddr::V4(other),
            interval: flags.ping_interval,
            loss_threshold: flags.ping_loss_threshold,
        });
        let key_file = flags.keys_dir.join(KEY_FILE);
        let config = Config {
            name: identity.name.clone(),
            interface: flags.interface.clone(),
            addresses: vec![IpNet::V4(Ipv4Net::new_assert(own, TUNNEL_PREFIX_BITS))],
            listen_port: match identity.mode {
                Mode::Server => first("--listen-ports", &flags.listen_ports)?,
                Mode::Client => 0,
            },
            mtu_bytes: Some(flags.mtu),
            private_key: keyfile::mounted_private_key(&key_file)
                .context("--keys-dir has no usable key")?,
            metrics_address: flags.metrics_address.0,
            admin_socket: match &flags.admin_socket {
                None => AdminSocket::Default,
                Some(path) if path.is_empty() => AdminSocket::Off,
                Some(path) => AdminSocket::At(path.into()),
            },
            engine: Engine::default(),
            routes: true,
            mss_clamp: true,
            max_flows: DEFAULT_MAX_FLOWS,
            offload: Offload::default(),
            cluster: Cluster::default(),
            peers: Vec::new(),
        };
        let scope = Scope {
            remote_cluster_id: Some(identity.remote_cluster_id.clone()),
            peer_address: Some(IpAddr::V4(other)),
            remapping: Remapping::Configurations,
        };
        let report_interval = flags.ping_update_status_interval;

        Ok((Self { identity, scope, endpoint, probe, report_interval, key_file }, config))
    }
}

fn identity(flags: &ClusterFlags) -> Result<Identity, UsageError> {
    let needed = |flag: &str, value: &Option<String>| {
        value.clone().filter(|value| !value.is_empty()).ok_or_else(|| missing(flag))
    };
    let namespace = match &flags.namespace {
        Some(namespace) => namespace.clone(),
        None => own_namespace(Path::new(NAMESPACE_FILE)).ok_or_else(|| missing("--namespace"))?,
    };

    let remote_cluster_id = needed("--remote-cluster-id", &flags.remote_cluster_id)?;
    if !is_label_value(&remote_cluster_id) {
        let problem = "is no cluster id: letters, digits, '-', '_' and '.', at most 63";
        return Err(UsageError::Wrong(format!(
            "--remote-cluster-id {remote_cluster_id:?} {problem}"
        )));
    }

    Ok(Identity {
        name: needed("--name", &flags.name)?,
        namespace,
        remote_cluster_id,
        uid: needed("--gateway-uid", &flags.gateway_uid)?,
        mode: flags.mode.ok_or_else(|| missing("--mode"))?.into(),
    })
}

/// Whether the API takes it as the value of a label.
fn is_label_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().last()];

    text.len() <= 63
        && text.bytes().all(is_inner)
        && ends.iter().flatten().all(u8::is_ascii_alphanumeric)
}

fn own_namespace(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;

    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

fn endpoint(flags: &ClusterFlags) -> Result<Endpoint, UsageError> {
    let port = first("--endpoint-ports", &flags.endpoint_ports)?;
    let host = flags
        .endpoint_address
        .iter()
        .find(|address| !address.is_empty())
        .ok_or_else(|| missing("--endpoint-address"))?;
    let text = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    };

    text.parse().map_err(|why| UsageError::Wrong(format!("--endpoint-address {host:?} {why}")))
}

fn first(flag: &str, ports: &[u16]) -> Result<u16, UsageError> {
    let port = ports.first().copied().filter(|port| *port != 0);

    port.ok_or_else(|| UsageError::Wrong(format!("{flag}: a port from 1 to 65535 is needed")))
}

fn missing(flag: &str) -> UsageError {
    UsageError::Wrong(format!("{flag} is missing, which a gateway in a cluster needs"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: ClusterFlags,
    }

    fn read(words: &[&str]) -> Result<(Settings, Config), String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), [7; 32]).unwrap();
        let keys = format!("--keys-dir={}", dir.path().display());
        let words = ["strait", &keys].into_iter().chain(words.iter().copied());

        Settings::read(&Command::parse_from(words).flags).map_err(|error| error.to_string())
    }

    const SERVER: [&str; 5] = [
        "--name=milan",
        "--namespace=tenant",
        "--remote-cluster-id=milan",
        "--gateway-uid=5b8e",
        "--mode=server",
    ];

    #[test]
    fn a_server_waits_at_the_first_address_of_the_tunnel() {
        let (settings, config) = read(&[&SERVER[..], &["--listen-ports=5,6"]].concat()).unwrap();

        assert_eq!(config.listen_port, 5);
        assert_eq!(config.addresses, ["169.254.18.1/30".parse().unwrap()]);
        assert_eq!(config.mtu_bytes, Some(1340));
        assert_eq!(settings.endpoint, None);
        assert_eq!(settings.scope.peer_address, Some([169, 254, 18, 2].into()));
        let probe = settings.probe.unwrap();
        assert_eq!((probe.interval, probe.loss_threshold), (Duration::from_secs(2), 5));
    }

    #[test]
    fn a_client_knows_where_the_server_is() {
        let client = |address: &str| {
            let words = ["--mode=client".to_owned(), format!("--endpoint-address={address}")];
            let words: Vec<_> =
                SERVER[..4].iter().copied().chain(words.iter().map(String::as_str)).collect();
            read(&words)
        };

        let endpoint = |address| client(address).unwrap().0.endpoint.unwrap().to_string();
        assert_eq!(endpoint("198.51.100.2"), "198.51.100.2:51840");
        assert_eq!(endpoint("2001:db8::2"), "[2001:db8::2]:51840");
        assert_eq!(endpoint("milan.example.org"), "milan.example.org:51840");
        let (_, config) = client("198.51.100.2").unwrap();
        assert_eq!(config.listen_port, 0);
        assert_eq!(config.addresses, ["169.254.18.2/30".parse().unwrap()]);
        assert!(client("no name").err().unwrap().contains("--endpoint-address \"no name\""));
        assert!(client("").err().unwrap().contains("--endpoint-address is missing"));
    }

    #[test]
    fn an_empty_path_switches_the_admin_socket_off() {
        let socket = |words: &[&str]| read(&[&SERVER[..], words].concat()).unwrap().1.admin_socket;

        assert_eq!(socket(&[]), AdminSocket::Default);
        assert_eq!(socket(&["--admin-socket="]), AdminSocket::Off);
        assert_eq!(socket(&["--admin-socket=/run/s"]), AdminSocket::At("/run/s".into()));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (flag, words) in [
            ("--name", &SERVER[1..]),
            ("--mode", &SERVER[..4]),
            (
                "--gateway-uid",
                &["--name=a", "--namespace=b", "--remote-cluster-id=c", "--mode=server"],
            ),
            (
                "--remote-cluster-id",
                &["--name=a", "--namespace=b", "--gateway-uid=c", "--mode=server"],
            ),
        ] {
            assert_eq!(
                read(words).err(),
                Some(format!(
                    "{flag} is missing, which a gateway in a cluster needs; see `strait --help`"
                ))
            );
        }
        let bad = ["--remote-cluster-id=a,b"];
        let words: Vec<_> =
            SERVER.iter().chain(&bad).copied().filter(|w| *w != SERVER[2]).collect();
        assert!(read(&words).err().unwrap().contains("\"a,b\" is no cluster id"));
        let ports = [&SERVER[..], &["--listen-ports=0"]].concat();
        assert!(read(&ports).err().unwrap().contains("--listen-ports"));
    }
}
