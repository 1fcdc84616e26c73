//! The flags of the commands, with Liqo's names and defaults.

mod confirmation;
mod network;
mod objects;
mod plan;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::{DEFAULT_MTU, Marks};

pub(crate) use confirmation::{Confirmation, answer};
pub(crate) use network::{ClustersArgs, ConnectArgs, DisconnectArgs, NetworkCommand};
pub(crate) use objects::{
    CreateCommand, DeleteArgs, DeleteCommand, GatewayType, GenerateCommand, ObjectArgs, Service,
};
pub(crate) use plan::{
    PlanApplyArgs, PlanCommand, PlanConnectArgs, PlanDisconnectArgs, PlanNetworkArgs,
    PlanOutputArgs, PlanResetArgs,
};

/// Default time limit of a command, waiting included.
const TIMEOUT: &str = "120s";

/// The minimum MTU of a tunnel, in bytes: that of IPv4 (RFC 791).
const MTU_MIN: i64 = 576;

/// How gateway servers are exposed by default, as in Liqo.
const SERVICE_TYPE: Service = Service::LoadBalancer;

/// One variant per command.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Connect and disconnect two clusters
    ///
    /// The local cluster (--kubeconfig, --context) gets the client, the remote one (--remote-kubeconfig,
    /// --remote-context) the server. Needs access to both API servers; without it, use `strait generate` and `strait
    /// create`.
    #[command(subcommand)]
    Network(Box<NetworkCommand>),
    /// Create one object of a peering, in one cluster
    #[command(subcommand)]
    Create(Box<CreateCommand>),
    /// Delete one object of a peering, in one cluster
    #[command(subcommand)]
    Delete(DeleteCommand),
    /// Print the objects that the remote cluster needs from this one
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Show what a change would do, without doing it
    ///
    /// Needs only read access. The output is the difference to the current state, one line each: + is created, - is
    /// deleted, ~ is changed, -+ is replaced, ! is not possible.
    ///
    /// Exit status: 0 no changes, 2 changes, 3 a part is not possible, 64 wrong usage, 1 any other error.
    #[command(subcommand)]
    Plan(Box<PlanCommand>),
    /// Show a cluster, or its peerings
    ///
    /// Exit status: 0 shown, 64 not found, 1 the API server cannot be reached.
    #[command(args_conflicts_with_subcommands = true)]
    Info(Box<InfoArgs>),
    /// Show the status of the peerings of a cluster, one line each
    ///
    /// Exit status: 0 all enabled peerings are healthy, 1 one is not, or the API server cannot be reached.
    Status(StatusArgs),
}

impl UserCommand {
    /// Whether a flag has confirmed destructive steps.
    pub(crate) fn is_confirmed(&self) -> bool {
        match self {
            Self::Network(command) => match command.as_ref() {
                NetworkCommand::Connect(args) => args.confirmation.yes,
                // These ask themselves, or have nothing to ask.
                NetworkCommand::Init(_)
                | NetworkCommand::Disconnect(_)
                | NetworkCommand::Reset(_) => false,
            },
            Self::Create(_)
            | Self::Delete(_)
            | Self::Generate(_)
            | Self::Plan(_)
            | Self::Info(_)
            | Self::Status(_) => false,
        }
    }
}

/// `strait check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Configuration file (TOML); no cluster is asked then
    #[arg(long, env = "STRAIT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "STRAIT_JSON")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

impl CheckArgs {
    /// How the answer is written down; `None` if people are to read it.
    pub(crate) fn format(&self) -> Option<Format> {
        self.format.output.or_else(|| self.json.then_some(Format::Json))
    }
}

/// Which cluster; of two the local one, which gets the client.
#[derive(Clone, Debug, Args)]
pub(crate) struct ContextArgs {
    /// Kubeconfig file [default: KUBECONFIG, else ~/.kube/config, else the pod this runs in]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace of the objects [default: liqo-tenant-REMOTE_ID, created if missing]
    #[arg(short, long, env = "STRAIT_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Namespace of the installation of Liqo or Strait, with Networks, templates and the cluster id
    #[arg(long, env = "STRAIT_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) liqo_namespace: String,
    /// Id of this cluster [default: CLUSTER_ID in the ConfigMap liqo-clusterid-configmap of the installation]
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID")]
    pub(crate) cluster_id: Option<String>,
    /// Time limit of the command, waiting included
    #[arg(
        long,
        env = "STRAIT_TIMEOUT",
        value_name = "DURATION",
        default_value = TIMEOUT,
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
}

/// The remote cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct RemoteArgs {
    /// Kubeconfig file of the remote cluster [default: as kubectl]
    #[arg(long, env = "STRAIT_REMOTE_KUBECONFIG", value_name = "FILE")]
    pub(crate) remote_kubeconfig: Option<PathBuf>,
    /// Context of the remote cluster [default: the current one]
    #[arg(long, env = "STRAIT_REMOTE_CONTEXT", value_name = "NAME")]
    pub(crate) remote_context: Option<String>,
    /// Namespace in the remote cluster [default: liqo-tenant-LOCAL_ID, created if missing]
    #[arg(long, env = "STRAIT_REMOTE_NAMESPACE", value_name = "NAME")]
    pub(crate) remote_namespace: Option<String>,
    /// Namespace of the installation of Liqo or Strait in the remote cluster
    #[arg(long, env = "STRAIT_REMOTE_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) remote_liqo_namespace: String,
    /// Id of the remote cluster [default: CLUSTER_ID in its ConfigMap liqo-clusterid-configmap]
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: Option<String>,
}

impl RemoteArgs {
    /// Whether a remote cluster is named.
    pub(crate) const fn is_named(&self) -> bool {
        self.remote_kubeconfig.is_some() || self.remote_context.is_some()
    }
}

/// What both gateways must agree on.
#[derive(Clone, Debug, Args)]
pub(crate) struct TunnelArgs {
    /// MTU of the tunnel in bytes, the same on both sides; the default grows to what the path carries
    #[arg(
        long,
        env = "STRAIT_TUNNEL_MTU",
        value_name = "BYTES",
        default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(MTU_MIN..)
    )]
    pub(crate) mtu: u16,
}

/// Labels and annotations of every created object.
#[derive(Clone, Debug, Args)]
pub(crate) struct MarksArgs {
    /// Labels of every created object: KEY=VALUE, separated by commas
    #[arg(
        long,
        env = "STRAIT_GLOBAL_LABELS",
        value_name = "LABELS",
        value_delimiter = ',',
        value_parser = label
    )]
    pub(crate) global_labels: Vec<(String, String)>,
    /// Annotations of every created object: KEY=VALUE, separated by commas
    #[arg(
        long,
        env = "STRAIT_GLOBAL_ANNOTATIONS",
        value_name = "ANNOTATIONS",
        value_delimiter = ',',
        value_parser = annotation
    )]
    pub(crate) global_annotations: Vec<(String, String)>,
}

impl MarksArgs {
    /// Converts them for a command.
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            labels: self.global_labels.iter().cloned().collect(),
            annotations: self.global_annotations.iter().cloned().collect(),
        }
    }
}

/// The format of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people and `kubectl apply -f -`
    Yaml,
    /// For programs
    Json,
}

impl From<Format> for crate::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Yaml => Self::Yaml,
            Format::Json => Self::Json,
        }
    }
}

/// The format of the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct FormatArgs {
    /// Print yaml or json
    #[arg(short, long, env = "STRAIT_OUTPUT", value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
}

/// The part of the output that is shown, and its format.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Show only this part, for example network.gateway.address
    #[arg(short, long, env = "STRAIT_GET", value_name = "PATH")]
    pub(crate) get: Option<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// `strait info`
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    #[command(subcommand)]
    pub(crate) command: Option<InfoCommand>,
    /// Show all prefixes; yaml, json and --get always include them
    #[arg(short, long, env = "STRAIT_VERBOSE")]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Subcommands of `strait info`.
#[derive(Debug, Subcommand)]
pub(crate) enum InfoCommand {
    /// Show peerings: prefixes, gateways and problems
    Peer(Box<InfoPeerArgs>),
}

/// `strait info peer`
#[derive(Debug, Args)]
pub(crate) struct InfoPeerArgs {
    /// Ids of the remote clusters [default: all]
    #[arg(env = "STRAIT_PEER_IDS", value_name = "IDS", value_delimiter = ',')]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `strait status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Reads KEY=VALUE with a valid value of a label.
fn label(text: &str) -> Result<(String, String), String> {
    /// Maximum length of a label value.
    const BYTES_MAX: usize = 63;
    let (key, value) = annotation(text)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
    let ends = [value.bytes().next(), value.bytes().last()];
    let is_one = value.len() <= BYTES_MAX
        && value.bytes().all(|byte| is_plain(byte) || b"-_.".contains(&byte))
        && ends.into_iter().flatten().all(is_plain);

    if is_one {
        Ok((key, value))
    } else {
        Err(format!(
            "{value:?} is not a valid label value: at most {BYTES_MAX} letters, digits, and between them -, _ and ."
        ))
    }
}

/// Parses KEY=VALUE; the key may have a domain prefix and a slash.
fn annotation(text: &str) -> Result<(String, String), String> {
    let wrong =
        || "write KEY=VALUE, for example team=network or example.com/team=network".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    let is_name = |name: &str| {
        let ends = [name.bytes().next(), name.bytes().last()];
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && ends.iter().all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()))
    };
    let is_key = is_name(name) && key.split('/').all(is_name) && key.matches('/').count() <= 1;

    if is_key { Ok((key.to_owned(), value.to_owned())) } else { Err(wrong()) }
}

/// Parses a duration as Go writes it: `90s`, `2m`. Zero is rejected.
fn timeout(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration like 90s, 2m or 1m30s".to_owned();
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;

    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}
