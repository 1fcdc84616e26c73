//! The flags of a gateway in a cluster: those of Liqo's gateways of any release, so that its templates work
//! unchanged.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use strait_api::identity::Mode;
use strait_api::vxlan;
use strait_host::flags::{Bind, bind_address, duration};
use strait_host::interface::interface_flag;
use strait_io::Offload;
use strait_plan::conncheck::PORT;

use crate::config::{Engine, MTU_MIN};
use crate::election::ElectionFlags;

/// Liqo's default, in bytes.
pub(super) const DEFAULT_MTU: u16 = 1340;

/// The port of Liqo's nodes.
const GENEVE_PORT: u16 = 6091;

/// The port to which they send PINGs (`networking.fabric.config.ping.port` of Liqo's chart).
const GENEVE_PING_PORT: u16 = 54_321;

/// Selects and configures a gateway in a cluster, without a configuration file.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "In a cluster")]
pub struct ClusterFlags {
    /// Use the API server for configuration, also outside a pod
    #[arg(long, env = "STRAIT_KUBE")]
    pub kube: bool,
    /// Name of the GatewayServer or GatewayClient
    #[arg(long, env = "STRAIT_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of that object, of the peers' objects and of the pod
    #[arg(long, env = "STRAIT_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Id of the remote cluster
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: Option<String>,
    /// UID of the GatewayServer or GatewayClient
    #[arg(long, env = "STRAIT_GATEWAY_UID", value_name = "UID")]
    pub(crate) gateway_uid: Option<String>,
    /// Role of this gateway in the connection
    #[arg(long, env = "STRAIT_MODE", value_enum)]
    pub(crate) mode: Option<ModeFlag>,
    /// The TUN device to create
    #[arg(
        long,
        env = "STRAIT_INTERFACE",
        value_name = "NAME",
        default_value = "liqo-tunnel",
        value_parser = interface_flag
    )]
    pub(crate) interface: String,
    /// Where packets of pods arrive: on a TUN device, which needs NET_ADMIN, from node agents in VXLAN, or from Liqo's
    /// nodes in Geneve
    #[arg(long, env = "STRAIT_EDGE", value_enum, default_value_t)]
    pub(crate) edge: EdgeFlag,
    /// Address of the node that runs this gateway, for `--edge=overlay`
    #[arg(long, env = "STRAIT_NODE_ADDRESS", value_name = "ADDRESS")]
    pub(crate) node_address: Option<IpAddr>,
    /// UDP port of VXLAN, the same on all nodes
    #[arg(
        long,
        env = "STRAIT_VXLAN_PORT",
        value_name = "PORT",
        default_value_t = vxlan::PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) vxlan_port: u16,
    /// Network identifier of VXLAN, the same on all nodes
    #[arg(
        long,
        env = "STRAIT_VXLAN_VNI",
        value_name = "NUMBER",
        default_value_t = vxlan::VNI,
        value_parser = clap::value_parser!(u32).range(1..1 << 24)
    )]
    pub(crate) vxlan_vni: u32,
    /// Name of the node that runs this gateway, for `--edge=geneve`
    #[arg(long, env = "STRAIT_NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// UDP port of Geneve, the same on all nodes
    #[arg(
        long,
        env = "STRAIT_GENEVE_PORT",
        value_name = "PORT",
        default_value_t = GENEVE_PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) geneve_port: u16,
    /// UDP port inside Geneve on which PINGs of Liqo's nodes are answered
    #[arg(
        long,
        env = "STRAIT_GENEVE_PING_PORT",
        value_name = "PORT",
        default_value_t = GENEVE_PING_PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) geneve_ping_port: u16,
    /// MTU of the device, in bytes. The default grows to what the path to another gateway of Strait carries
    #[arg(
        long,
        env = "STRAIT_MTU",
        value_name = "BYTES",
        default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..)
    )]
    pub(crate) mtu: u16,
    /// UDP ports to listen on, as server; only the first one is used
    #[arg(
        long,
        alias = "listen-port",
        env = "STRAIT_LISTEN_PORTS",
        value_name = "PORT",
        value_delimiter = ',',
        default_value = "51840"
    )]
    pub(crate) listen_ports: Vec<u16>,
    /// Addresses or DNS names of the server, as client; all are tried in parallel
    #[arg(long, env = "STRAIT_ENDPOINT_ADDRESS", value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) endpoint_address: Vec<String>,
    /// UDP ports of the server, as client; only the first one is used
    #[arg(
        long,
        alias = "endpoint-port",
        env = "STRAIT_ENDPOINT_PORTS",
        value_name = "PORT",
        value_delimiter = ',',
        default_value = "51840"
    )]
    pub endpoint_ports: Vec<u16>,
    /// Longest interval between lookups of a DNS name; shorter if its TTL is shorter or the server does not answer
    #[arg(
        long,
        env = "STRAIT_DNS_CHECK_INTERVAL",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = duration
    )]
    pub dns_check_interval: Duration,
    /// Folder with the file `privateKey`: 32 raw bytes, or base64
    #[arg(
        long,
        env = "STRAIT_KEYS_DIR",
        value_name = "DIRECTORY",
        default_value = "/etc/wireguard/keys"
    )]
    pub(crate) keys_dir: PathBuf,
    /// Where to serve /metrics; 0 is off
    #[arg(
        long,
        env = "STRAIT_METRICS_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    pub metrics_address: Bind,
    /// Where to serve /healthz and /readyz; 0 is off
    #[arg(
        long,
        env = "STRAIT_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    pub health_probe_bind_address: Bind,
    /// Unix socket that answers `strait explain`; empty is off [default: /run/strait/INTERFACE.sock]
    #[arg(long, env = "STRAIT_ADMIN_SOCKET", value_name = "PATH")]
    pub(crate) admin_socket: Option<OsString>,
    /// Whether to probe the remote gateway
    #[arg(
        long,
        env = "STRAIT_PING_ENABLED",
        value_name = "BOOL",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub ping_enabled: bool,
    /// UDP port for probes inside the tunnel, the same on both gateways
    #[arg(
        long,
        env = "STRAIT_PING_PORT",
        value_name = "PORT",
        default_value_t = PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) ping_port: u16,
    /// Interval between probes
    #[arg(
        long,
        env = "STRAIT_PING_INTERVAL",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = duration
    )]
    pub(crate) ping_interval: Duration,
    /// Number of intervals without an answer after which the connection is lost
    #[arg(
        long,
        env = "STRAIT_PING_LOSS_THRESHOLD",
        value_name = "NUMBER",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    pub(crate) ping_loss_threshold: u32,
    /// Interval at which a changed latency is written to the status of the Connection
    #[arg(
        long,
        env = "STRAIT_PING_UPDATE_STATUS_INTERVAL",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration
    )]
    pub(crate) ping_update_status_interval: Duration,
    /// Leader election.
    #[command(flatten)]
    pub election: ElectionFlags,
    /// Name of the container of Liqo's gateway pod that this one replaces; without this flag it replaces all of them
    #[arg(long, env = "STRAIT_CONTAINER_NAME", value_name = "NAME")]
    pub(crate) container_name: Option<String>,
    /// File that keeps the peers, so that a restarted gateway forwards before the API server answers
    #[arg(long, env = "STRAIT_STATE_FILE", value_name = "PATH")]
    pub(crate) state_file: Option<PathBuf>,
    /// File that the gateway locks while it runs; of several processes with the same file, the others are on standby until
    /// it ends
    #[arg(long, env = "STRAIT_LOCK_FILE", value_name = "PATH")]
    pub(crate) lock_file: Option<PathBuf>,
    /// Implementation of the WireGuard protocol: native (Strait's own) or boringtun
    #[arg(long, env = "STRAIT_ENGINE", value_name = "NAME", default_value_t)]
    pub(crate) engine: Engine,
    /// Offloads to switch off, or on: udp_gso=false,tun_uso=false
    #[arg(
        long,
        env = "STRAIT_OFFLOAD",
        value_name = "NAME=BOOL",
        value_delimiter = ',',
        value_parser = offload_switch
    )]
    pub(crate) offload: Vec<OffloadSwitch>,
    /// Unix socket on which Liqo's gateway container tells this one to start
    #[arg(
        long,
        env = "STRAIT_IPC_SOCKET",
        value_name = "PATH",
        default_value = "/ipc/leader.sock"
    )]
    pub(crate) ipc_socket: PathBuf,
}

impl ClusterFlags {
    /// The file that a running gateway locks.
    #[must_use]
    pub fn lock_file(&self) -> Option<&Path> {
        self.lock_file.as_deref().filter(|path| !path.as_os_str().is_empty())
    }
}

/// The state of one offload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffloadSwitch {
    /// Its name, as in the configuration file.
    pub(crate) name: &'static str,
    pub(crate) is_on: bool,
}

/// One value of `--offload`.
fn offload_switch(text: &str) -> Result<OffloadSwitch, String> {
    let known = Offload::ON.named().map(|(name, _)| name);
    let (name, state) = text.split_once('=').ok_or("write NAME=true or NAME=false")?;
    let is_on = state.parse().map_err(|_| format!("{state:?} is neither true nor false"))?;
    match known.into_iter().find(|known| *known == name) {
        Some(name) => Ok(OffloadSwitch { name, is_on }),
        None => Err(format!("there is no offload {name:?}: choose from {}", known.join(", "))),
    }
}

/// Flags of Liqo's gateways that have no effect on this one.
const UNUSED_LIQO_FLAGS: [&str; 20] = [
    "--client-max-burst",
    "--client-qps",
    "--client-timeout",
    "--concurrent-containers-names",
    "--disable-arp",
    "--disable-kernel-version-check",
    "--enable-connection-controller",
    "--enable-multipath-hash-policy",
    "--enable-nft-monitor",
    "--enable-route-monitor",
    "--geneve-cleanup-interval",
    "--global-annotations",
    "--global-labels",
    "--implementation",
    "--interface-ip",
    "--minimum-kernel-version",
    "--ping-buffer-size",
    "--preserve-client-endpoint",
    "--reconcile-timeout",
    "--v",
];

/// Whether an ignored flag belongs to Liqo's gateways, and so is not a typing error.
pub fn is_unused_liqo_flag(flag: &str) -> bool {
    UNUSED_LIQO_FLAGS.contains(&flag)
}

/// `--edge`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EdgeFlag {
    /// A TUN device
    #[default]
    Device,
    /// VXLAN, ended in this process: no capability
    Overlay,
    /// Geneve of Liqo's nodes, ended in this process, with Liqo's rules and routes: no capability
    Geneve,
}

/// `--mode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeFlag {
    /// Listens for the client
    Server,
    /// Connects to the server
    Client,
}

impl From<ModeFlag> for Mode {
    fn from(flag: ModeFlag) -> Self {
        match flag {
            ModeFlag::Server => Self::Server,
            ModeFlag::Client => Self::Client,
        }
    }
}

/// Removes the unknown flag from `words`, with a value in the next word, and returns whether it was there.
///
/// Releases of Liqo differ in their flags, and copies of its templates stay in use: a gateway should not fail for a
/// flag that it does not need.
pub fn remove(words: &mut Vec<OsString>, unknown: &str) -> bool {
    let is_flag = |word: &OsString| word.to_string_lossy().starts_with('-');
    let matches_unknown = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(unknown).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let place = words.iter().position(|word| is_flag(word) && matches_unknown(word));
    if let Some(place) = place {
        let word = words.remove(place);
        let has_value = word.to_string_lossy().contains('=');
        if !has_value && words.get(place).is_some_and(|next| !is_flag(next)) {
            words.remove(place);
        }
    }

    place.is_some()
}
