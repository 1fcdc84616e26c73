//! Interprets the flags of a gateway in a cluster.

mod edge;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ipnet::{IpNet, Ipv4Net};
use remap::{Cluster, Table};
use strait_api::identity::{Identity, Mode};
use strait_host::usage::UsageError;
use strait_io::{Offload, Workers, overlay};
use strait_packet::overlay::Vni;
use strait_plan::conncheck;
use strait_plan::lowering;
use strait_plan::objects::{ObjectName, Remapping, Scope};
use strait_wg::endpoints::MAX_CANDIDATES;
use tracing::warn;

use super::flags::{ClusterFlags, DEFAULT_MTU, EdgeFlag, OffloadSwitch};
use super::origins;
use crate::config::{AdminSocket, Config, DEFAULT_MAX_FLOWS, Endpoint, keyfile};
use crate::election::{Candidacy, only_line};
use crate::flag_values::FlagValues;

/// The file with the namespace of a pod.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The key file in `--keys-dir`.
const KEY_FILE: &str = "privateKey";

/// The only container of Liqo's gateway pod that a gateway can replace.
const WIREGUARD: &str = "wireguard";

/// The tunnel addresses of the server and the client.
const TUNNEL: [Ipv4Addr; 2] = [Ipv4Addr::new(169, 254, 18, 1), Ipv4Addr::new(169, 254, 18, 2)];
const TUNNEL_PREFIX_BITS: u8 = 30;

/// The settings of a gateway in a cluster.
pub struct Settings {
    pub(crate) identity: Identity,
    pub(crate) scope: Scope,
    pub(crate) check: Check,
    pub(crate) report_interval: Duration,
    /// The configured MTU of the device in bytes, and whether it may grow.
    pub(crate) mtu: u16,
    pub(crate) grows_mtu: bool,
    pub(crate) overlay: Option<OverlayScope>,
    /// What this gateway executes of Liqo's rules and routes, with [`EdgeFlag::Geneve`].
    pub(crate) rules: Option<lowering::Scope>,
    /// The name of the pod, or of the host.
    pub(crate) pod: String,
    /// The file with our private key.
    pub(crate) key_file: PathBuf,
    pub(crate) leadership: Leadership,
    /// The file that keeps the peers across restarts.
    pub(crate) state_file: Option<PathBuf>,
    /// The UDP port on which PINGs of nodes are answered, with [`EdgeFlag::Geneve`].
    pub(crate) node_ping_port: Option<u16>,
}

/// The nodes of an overlay, as far as flags specify them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverlayScope {
    /// The address of the node that this gateway runs on.
    pub(crate) node: IpAddr,
    pub(crate) vni: Vni,
}

/// Which process checks the connection and writes its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// None: the connection counts as established.
    Off,
    /// This process.
    Own(conncheck::Settings),
    /// Another container of the pod.
    OtherContainer,
}

/// When this replica is the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Always: it is the only replica.
    Always,
    /// While it holds the Lease.
    Lease(Candidacy),
    /// From when Liqo's gateway container tells it to start.
    OtherContainer {
        socket: PathBuf,
        /// The name of this container in that protocol.
        guest: String,
    },
}

impl Settings {
    /// Interprets the flags and reads the key file. Also returns the initial configuration, which has no peers.
    ///
    /// # Errors
    ///
    /// [`UsageError`] with the wrong flag, or [`keyfile::KeyFileError`].
    pub fn read(flags: &ClusterFlags, flag_values: &FlagValues) -> anyhow::Result<(Self, Config)> {
        let identity = identity(flags)?;
        let [server, client] = TUNNEL;
        let (own, other) = match identity.mode {
            Mode::Server => (server, client),
            Mode::Client => (client, server),
        };
        let replaces_container = replaces_one_container(flags)?;
        let (flag, ports) = match identity.mode {
            Mode::Server => ("--listen-ports", &flags.listen_ports),
            Mode::Client => ("--endpoint-ports", &flags.endpoint_ports),
        };
        let is_with_liqo = replaces_container || flags.edge == EdgeFlag::Geneve;
        let port = only_port(flag, ports, is_with_liqo)?;
        let endpoints = match identity.mode {
            Mode::Server => Vec::new(),
            Mode::Client => endpoints(flags, port)?,
        };
        let check = if replaces_container {
            Check::OtherContainer
        } else if flags.ping_enabled {
            Check::Own(conncheck::Settings {
                cluster_id: identity.remote_cluster_id.clone(),
                peer: IpAddr::V4(other),
                port: flags.ping_port,
                interval: flags.ping_interval,
                loss_threshold: flags.ping_loss_threshold,
                mtu: flags.mtu,
            })
        } else {
            Check::Off
        };
        let key_file = flags.keys_dir.join(KEY_FILE);
        let config = Config {
            name: identity.name.clone(),
            interface: flags.interface.clone(),
            overlay: edge::overlay(flags, own)?,
            addresses: vec![IpNet::V4(Ipv4Net::new_assert(own, TUNNEL_PREFIX_BITS))],
            listen_port: match identity.mode {
                Mode::Server => port,
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
            engine: flags.engine,
            // The other containers install routes and remap, on both sides of the device.
            routes: !replaces_container,
            mss_clamp: true,
            max_flows: DEFAULT_MAX_FLOWS,
            offload: offload(flags),
            workers: Workers::default(),
            dns_check_interval: flags.dns_check_interval,
            cluster: Cluster::default(),
            peers: Vec::new(),
            table: Table::default(),
            origins: origins::of_flags(flag_values, identity.mode, flags.edge, &flags.offload),
        };
        let scope = Scope {
            remote_cluster_id: Some(identity.remote_cluster_id.clone()),
            gateway: Some(ObjectName {
                kind: identity.mode.kind().to_owned(),
                namespace: identity.namespace.clone(),
                name: identity.name.clone(),
            }),
            peer_address: Some(IpAddr::V4(other)),
            remapping: match (replaces_container, flags.edge) {
                (true, _) => Remapping::External,
                (false, EdgeFlag::Geneve) => Remapping::Rules,
                (false, EdgeFlag::Device | EdgeFlag::Overlay) => Remapping::Configurations,
            },
            own_public_key: Some(*config.private_key.public_key().as_bytes()),
            own_address: Some(IpAddr::V4(own)),
            endpoints,
            endpoint_origin: flag_values.origin("endpoint_address"),
        };
        let of_node = |node: &overlay::Node| OverlayScope { node: node.address, vni: node.vni };
        let overlay = config.overlay.iter().flat_map(|overlay| &overlay.nodes).map(of_node).next();
        let report_interval = flags.ping_update_status_interval;
        let state_file = flags.state_file.clone().filter(|path| !path.as_os_str().is_empty());
        let rules = edge::rules(flags, &identity, other, state_file.is_some())?;
        let leadership = if replaces_container {
            leadership_of_other_container(flags)
        } else {
            leadership(flags)?
        };

        Ok((
            Self {
                identity,
                scope,
                overlay,
                rules,
                pod: flags.election.pod()?,
                key_file,
                check,
                report_interval,
                mtu: flags.mtu,
                grows_mtu: flags.mtu == DEFAULT_MTU && flags.edge == EdgeFlag::Device,
                leadership,
                state_file,
                node_ping_port: (flags.edge == EdgeFlag::Geneve).then_some(flags.geneve_ping_port),
            },
            config,
        ))
    }
}

/// The defaults with what `--offload` changes.
fn offload(flags: &ClusterFlags) -> Offload {
    let mut offload = Offload::default();
    for OffloadSwitch { name, is_on } in &flags.offload {
        offload.set(name, *is_on);
    }

    offload
}

/// Whether this replaces one of Liqo's containers and runs beside the others.
fn replaces_one_container(flags: &ClusterFlags) -> Result<bool, UsageError> {
    match flags.container_name.as_deref().unwrap_or_default() {
        "" => Ok(false),
        WIREGUARD => Ok(true),
        other => Err(UsageError::Wrong(format!(
            "--container-name {other:?}: only Liqo's container {WIREGUARD:?} can be replaced, or all of them without this flag"
        ))),
    }
}

fn leadership_of_other_container(flags: &ClusterFlags) -> Leadership {
    let socket = flags.ipc_socket.clone();
    // Templates of Liqo 1.0 do not set the flag; there the gateway container waits for all others. Without a shared
    // folder there is no socket to wait on.
    let waits_for_start =
        flags.election.leader_election.unwrap_or_else(|| socket.parent().is_some_and(Path::is_dir));

    if waits_for_start {
        Leadership::OtherContainer { socket, guest: WIREGUARD.to_owned() }
    } else {
        Leadership::Always
    }
}

fn leadership(flags: &ClusterFlags) -> Result<Leadership, UsageError> {
    if flags.election.leader_election.unwrap_or_default() {
        Ok(Leadership::Lease(flags.election.candidacy(Some(&flags.interface))?))
    } else {
        Ok(Leadership::Always)
    }
}

fn identity(flags: &ClusterFlags) -> Result<Identity, UsageError> {
    let needed = |flag: &str, value: &Option<String>| {
        value.clone().filter(|value| !value.is_empty()).ok_or_else(|| missing(flag))
    };
    let namespace = match &flags.namespace {
        Some(namespace) => namespace.clone(),
        None => only_line(Path::new(NAMESPACE_FILE)).ok_or_else(|| missing("--namespace"))?,
    };

    let remote_cluster_id = needed("--remote-cluster-id", &flags.remote_cluster_id)?;
    if !is_label_value(&remote_cluster_id) {
        let problem = "is not a cluster id: letters, digits, '-', '_' and '.', at most 63";
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

/// Whether the API accepts `text` as the value of a label.
fn is_label_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().last()];

    text.len() <= 63
        && text.bytes().all(is_inner)
        && ends.iter().flatten().all(u8::is_ascii_alphanumeric)
}

fn endpoints(flags: &ClusterFlags, port: u16) -> Result<Vec<Endpoint>, UsageError> {
    let hosts = flags.endpoint_address.iter().filter(|address| !address.is_empty());
    let endpoints: Vec<_> = hosts.map(|host| endpoint(host, port)).collect::<Result<_, _>>()?;

    match endpoints.len() {
        0 => Err(missing("--endpoint-address")),
        1..=MAX_CANDIDATES => Ok(endpoints),
        count => Err(UsageError::Wrong(format!(
            "--endpoint-address lists {count} addresses: use the best {MAX_CANDIDATES}"
        ))),
    }
}

fn endpoint(host: &str, port: u16) -> Result<Endpoint, UsageError> {
    let text = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    };

    text.parse().map_err(|why| UsageError::Wrong(format!("--endpoint-address {host:?} {why}")))
}

/// The port of the tunnel. Liqo has a tunnel for each port. Here there is one, and its routes would send flows to the
/// others: with Liqo several ports are refused, without it the first one is used.
fn only_port(flag: &str, ports: &[u16], is_with_liqo: bool) -> Result<u16, UsageError> {
    let (port, others) = match ports {
        [port, others @ ..] if *port != 0 => (*port, others),
        _ => return Err(UsageError::Wrong(format!("{flag}: use a port from 1 to 65535"))),
    };
    if !others.is_empty() && is_with_liqo {
        return Err(UsageError::Wrong(format!(
            "{flag}: {ports:?} are {} tunnels, and this container has one: use one port on both sides",
            ports.len()
        )));
    }
    if !others.is_empty() {
        warn!("{flag}: only port {port} is used; {others:?} are ignored");
    }

    Ok(port)
}

fn missing(flag: &str) -> UsageError {
    UsageError::Wrong(format!("{flag} is missing: a gateway in a cluster needs it"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use strait_packet::overlay::Encapsulation;

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

        Settings::read(&Command::parse_from(words).flags, &FlagValues::default())
            .map_err(|error| error.to_string())
    }

    const SERVER: [&str; 5] = [
        "--name=milan",
        "--namespace=tenant",
        "--remote-cluster-id=milan",
        "--gateway-uid=5b8e",
        "--mode=server",
    ];

    #[test]
    fn a_server_has_the_first_tunnel_address() {
        let (settings, config) = read(&[&SERVER[..], &["--listen-ports=5,6"]].concat()).unwrap();

        assert_eq!(config.listen_port, 5);
        assert_eq!(config.addresses, ["169.254.18.1/30".parse().unwrap()]);
        assert_eq!(config.mtu_bytes, Some(1340));
        assert_eq!(settings.scope.endpoints, []);
        assert_eq!(settings.scope.peer_address, Some([169, 254, 18, 2].into()));
        let Check::Own(probe) = settings.check else { panic!("{:?}", settings.check) };
        assert_eq!((probe.interval, probe.loss_threshold), (Duration::from_secs(2), 5));
        assert_eq!((probe.peer, probe.port), ([169, 254, 18, 2].into(), 12345));
        assert_eq!(settings.leadership, Leadership::Always);
        assert_eq!(settings.node_ping_port, None);
    }

    #[test]
    fn the_probe_port_is_configurable() {
        let (settings, _) = read(&[&SERVER[..], &["--ping-port=4711"]].concat()).unwrap();

        let Check::Own(probe) = settings.check else { panic!("{:?}", settings.check) };
        assert_eq!(probe.port, 4711);
        let zero = ["strait", "--ping-port=0"];
        assert!(Command::try_parse_from(zero).err().unwrap().to_string().contains("--ping-port"));
    }

    #[test]
    fn beside_liqo_several_ports_are_refused() {
        let beside = ["--container-name=wireguard", "--listen-ports=5,6"];

        let error = read(&[&SERVER[..], &beside].concat()).err().unwrap();

        assert!(error.contains("--listen-ports: [5, 6] are 2 tunnels"), "{error}");
        assert!(read(&[&SERVER[..], &beside[..1]].concat()).is_ok());
    }

    #[test]
    fn a_client_reads_the_server_addresses() {
        let client = |address: &str| {
            let words = ["--mode=client".to_owned(), format!("--endpoint-address={address}")];
            let words: Vec<_> =
                SERVER[..4].iter().copied().chain(words.iter().map(String::as_str)).collect();
            read(&words)
        };

        let endpoints = |address| {
            let endpoints = client(address).unwrap().0.scope.endpoints;
            endpoints.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(endpoints("198.51.100.2"), ["198.51.100.2:51840"]);
        let all = ["milan.example.org:51840", "[2001:db8::2]:51840", "198.51.100.2:51840"];
        assert_eq!(endpoints("milan.example.org,2001:db8::2,,198.51.100.2"), all);
        let (_, config) = client("198.51.100.2").unwrap();
        assert_eq!(config.listen_port, 0);
        assert_eq!(config.addresses, ["169.254.18.2/30".parse().unwrap()]);
        assert!(client("198.51.100.2,no name").err().unwrap().contains("\"no name\""));
        assert!(client("no name").err().unwrap().contains("--endpoint-address \"no name\""));
        assert!(client("").err().unwrap().contains("--endpoint-address is missing"));
        let nine = (1..=9).map(|host| format!("198.51.100.{host}")).collect::<Vec<_>>().join(",");
        assert!(client(&nine).err().unwrap().contains("lists 9 addresses: use the best 8"));
    }

    #[test]
    fn an_empty_path_switches_the_admin_socket_off() {
        let socket = |words: &[&str]| read(&[&SERVER[..], words].concat()).unwrap().1.admin_socket;

        assert_eq!(socket(&[]), AdminSocket::Default);
        assert_eq!(socket(&["--admin-socket="]), AdminSocket::Off);
        assert_eq!(socket(&["--admin-socket=/run/s"]), AdminSocket::At("/run/s".into()));
    }

    #[test]
    fn only_the_default_mtu_grows() {
        let grows = |words: &[&str]| read(&[&SERVER[..], words].concat()).unwrap().0.grows_mtu;

        assert!(grows(&[]));
        assert!(grows(&["--mtu=1340"]));
        assert!(!grows(&["--mtu=1300"]));
    }

    #[test]
    fn named_offloads_are_switched() {
        let offload = |words: &[&str]| read(&[&SERVER[..], words].concat()).unwrap().1.offload;
        let error = |value: &str| {
            let words = ["strait".to_owned(), format!("--offload={value}")];
            Command::try_parse_from(words).err().unwrap().to_string()
        };
        let without_gso = Offload { udp_gso: false, ..Offload::default() };

        assert_eq!(offload(&[]), Offload::default());
        assert_eq!(offload(&["--offload=udp_gso=false"]), without_gso);
        let both = offload(&["--offload=udp_gso=false,vector_aead=true"]);
        assert_eq!(both, Offload { vector_aead: true, ..without_gso });
        assert!(error("udp_gro=0").contains("\"0\" is neither true nor false"));
        assert!(error("gso=false").contains("there is no offload \"gso\": choose from tun_tso"));
        assert!(error("udp_gso").contains("NAME=true or NAME=false"));
    }

    #[test]
    fn as_one_container_it_only_encrypts() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("leader.sock");
        let ipc = format!("--ipc-socket={}", socket.display());
        let one_container = |more: &[&str]| {
            read(&[&SERVER[..], &["--container-name=wireguard"], more].concat()).unwrap()
        };
        let waiting = Leadership::OtherContainer { socket, guest: "wireguard".to_owned() };

        let (settings, config) = one_container(&["--leader-election=false", &ipc]);
        assert_eq!(
            (settings.check, settings.leadership),
            (Check::OtherContainer, Leadership::Always)
        );
        assert_eq!(settings.scope.remapping, Remapping::External);
        assert!(!config.routes);
        assert_eq!(one_container(&["--leader-election=true", &ipc]).0.leadership, waiting);
        // As in Liqo 1.0.
        assert_eq!(one_container(&[&ipc]).0.leadership, waiting);
        assert_eq!(
            one_container(&["--ipc-socket=/nowhere/leader.sock"]).0.leadership,
            Leadership::Always
        );
    }

    #[test]
    fn each_replica_has_its_own_holder_name() {
        let leadership = |more: &[&str]| {
            read(&[&SERVER[..], &["--leader-election", "--pod-name=gw-1"], more].concat())
                .map(|(settings, _)| settings.leadership)
        };
        let [candidacy, again] = [(); 2].map(|()| match leadership(&[]) {
            Ok(Leadership::Lease(candidacy)) => candidacy,
            _ => panic!("no election"),
        });

        assert_eq!(candidacy.pod, "gw-1");
        assert!(candidacy.settings.holder.starts_with("gw-1_"));
        assert_ne!(candidacy.settings.holder, again.settings.holder);
        assert_eq!(candidacy.settings.lease_duration, Duration::from_secs(15));
        let error = leadership(&["--leader-election-lease-duration=9s"]).unwrap_err();
        assert!(error.contains("9s must be longer than -renew-deadline 10s"), "{error}");
    }

    #[test]
    fn missing_and_wrong_flags_are_named() {
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
                Some(format!("{flag} is missing: a gateway in a cluster needs it"))
            );
        }
        let bad = ["--remote-cluster-id=a,b"];
        let words: Vec<_> =
            SERVER.iter().chain(&bad).copied().filter(|w| *w != SERVER[2]).collect();
        assert!(read(&words).err().unwrap().contains("\"a,b\" is not a cluster id"));
        let container = [&SERVER[..], &["--container-name=geneve"]].concat();
        assert!(read(&container).err().unwrap().contains("--container-name \"geneve\""));
        let ports = [&SERVER[..], &["--listen-ports=0"]].concat();
        assert!(read(&ports).err().unwrap().contains("--listen-ports"));
    }

    #[test]
    fn geneve_executes_liqos_rules_on_its_node() {
        let words = ["--edge=geneve", "--node-name=n1", "--geneve-port=6092"];
        let (settings, config) = read(&[&SERVER[..], &words].concat()).unwrap();

        let overlay = config.overlay.unwrap();
        assert_eq!((overlay.encapsulation, overlay.port), (Encapsulation::Geneve, 6092));
        assert_eq!(overlay.nodes, []);
        assert!(settings.overlay.is_none() && !settings.grows_mtu);
        assert_eq!(settings.scope.remapping, Remapping::Rules);
        let rules = settings.rules.unwrap();
        assert_eq!(rules.node_name.as_deref(), Some("n1"));
        assert_eq!(rules.peer_address, IpAddr::from([169, 254, 18, 2]));
        assert!(!rules.tracks_flows);
        assert_eq!(settings.node_ping_port, Some(54_321));
    }

    #[test]
    fn geneve_refuses_flags_of_other_forms() {
        let error = |words: &[&str]| {
            let words = [&SERVER[..], &["--edge=geneve"], words].concat();
            read(&words).err().unwrap_or_default()
        };

        assert!(error(&[]).contains("needs --node-name"));
        let node = "--node-name=n1";
        assert!(
            error(&[node, "--container-name=wireguard"]).contains("do without --container-name")
        );
        assert!(error(&[node, "--state-file=/run/s"]).contains("do without it"));
        assert!(error(&[node, "--listen-ports=5,6"]).contains("use one port on both sides"));
    }
}
