//! The flags of a gateway in a cluster: those of Liqo's gateways, so that its templates work as they
//! are, of any release.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use control::conncheck::PORT;
use control::identity::Mode;
use strait_host::flags::{Bind, bind_address, duration};
use strait_host::interface::interface_flag;

use crate::config::{Engine, MTU_MIN};
use crate::election::ElectionFlags;

/// Which gateway this is, and how it is to run. Without a configuration file.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "In a cluster")]
pub struct ClusterFlags {
    /// Be fed by the API server, also where no pod environment says that there is one
    #[arg(long, env = "STRAIT_KUBE")]
    pub kube: bool,
    /// Name of the GatewayServer or GatewayClient
    #[arg(long, env = "STRAIT_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of that object, of its peers' objects and of the pod
    #[arg(long, env = "STRAIT_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The cluster at the other end, as this one calls it
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: Option<String>,
    /// UID of the GatewayServer or GatewayClient
    #[arg(long, env = "STRAIT_GATEWAY_UID", value_name = "UID")]
    pub(crate) gateway_uid: Option<String>,
    /// Which end of the connection this is
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
    /// MTU of the device, in bytes
    #[arg(
        long,
        env = "STRAIT_MTU",
        value_name = "BYTES",
        default_value_t = 1340,
        value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..)
    )]
    pub(crate) mtu: u16,
    /// UDP ports to listen on, as server; the first one is used
    #[arg(
        long,
        alias = "listen-port",
        env = "STRAIT_LISTEN_PORTS",
        value_name = "PORT",
        value_delimiter = ',',
        default_value = "51840"
    )]
    pub(crate) listen_ports: Vec<u16>,
    /// Addresses or DNS names of the server, as client; all are tried at once
    #[arg(long, env = "STRAIT_ENDPOINT_ADDRESS", value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) endpoint_address: Vec<String>,
    /// UDP ports of the server, as client; the first one is used
    #[arg(
        long,
        alias = "endpoint-port",
        env = "STRAIT_ENDPOINT_PORTS",
        value_name = "PORT",
        value_delimiter = ',',
        default_value = "51840"
    )]
    pub endpoint_ports: Vec<u16>,
    /// How often a DNS name is looked up at the least, once it is known; sooner if the DNS says so, or the
    /// server does not answer
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
    /// Whether to probe the gateway at the other end
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
    /// UDP port inside the tunnel on which both gateways listen for probes: the same at either end
    #[arg(
        long,
        env = "STRAIT_PING_PORT",
        value_name = "PORT",
        default_value_t = PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) ping_port: u16,
    /// Between two probes
    #[arg(
        long,
        env = "STRAIT_PING_INTERVAL",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = duration
    )]
    pub(crate) ping_interval: Duration,
    /// After how many intervals of silence the connection is lost
    #[arg(
        long,
        env = "STRAIT_PING_LOSS_THRESHOLD",
        value_name = "NUMBER",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    pub(crate) ping_loss_threshold: u32,
    /// How often a measured latency is written to the status of the Connection
    #[arg(
        long,
        env = "STRAIT_PING_UPDATE_STATUS_INTERVAL",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration
    )]
    pub(crate) ping_update_status_interval: Duration,
    /// Which replica is in service.
    #[command(flatten)]
    pub election: ElectionFlags,
    /// Which container of Liqo's gateway pod this one takes the place of; without, of all of them
    #[arg(long, env = "STRAIT_CONTAINER_NAME", value_name = "NAME")]
    pub(crate) container_name: Option<String>,
    /// File that remembers the peers, to forward after a restart before the API server answers
    #[arg(long, env = "STRAIT_STATE_FILE", value_name = "PATH")]
    pub(crate) state_file: Option<PathBuf>,
    /// What encrypts: native, which is Strait's own, or boringtun
    #[arg(long, env = "STRAIT_ENGINE", value_name = "NAME", default_value_t)]
    pub(crate) engine: Engine,
    /// Unix socket on which Liqo's gateway container says when to start
    #[arg(
        long,
        env = "STRAIT_IPC_SOCKET",
        value_name = "PATH",
        default_value = "/ipc/leader.sock"
    )]
    pub(crate) ipc_socket: PathBuf,
}

/// Flags of Liqo's gateways that mean nothing to this one, with or without a reason to look at them.
const UNUSED_LIQO_FLAGS: [&str; 19] = [
    "--client-max-burst",
    "--client-qps",
    "--client-timeout",
    "--concurrent-containers-names",
    "--disable-kernel-version-check",
    "--enable-connection-controller",
    "--enable-multipath-hash-policy",
    "--enable-nft-monitor",
    "--enable-route-monitor",
    "--global-annotations",
    "--global-labels",
    "--implementation",
    "--interface-ip",
    "--minimum-kernel-version",
    "--node-name",
    "--ping-buffer-size",
    "--preserve-client-endpoint",
    "--reconcile-timeout",
    "--v",
];

/// Whether a flag that is ignored belongs to Liqo's gateways, so that nobody has mistyped it.
pub fn is_unused_liqo_flag(flag: &str) -> bool {
    UNUSED_LIQO_FLAGS.contains(&flag)
}

/// `--mode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeFlag {
    /// Waits to be spoken to
    Server,
    /// Knows where the other one is
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

/// Takes the flag that clap does not know out of `words`, and a value that stands by itself after it;
/// true if it was there.
///
/// Releases of Liqo differ in their flags, and copies of its templates live on: a gateway that does
/// not start for a flag it could do without helps nobody.
pub fn remove(words: &mut Vec<OsString>, unknown: &str) -> bool {
    let is_flag = |word: &OsString| word.to_string_lossy().starts_with('-');
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(unknown).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let place = words.iter().position(|word| is_flag(word) && is_it(word));
    if let Some(place) = place {
        let word = words.remove(place);
        let has_value = word.to_string_lossy().contains('=');
        if !has_value && words.get(place).is_some_and(|next| !is_flag(next)) {
            words.remove(place);
        }
    }

    place.is_some()
}
