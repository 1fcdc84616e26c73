//! The flags of the verbs, with the names and defaults that Liqo gives them.

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

/// How long a verb may take by default, waiting included.
const TIMEOUT: &str = "120s";

/// The least MTU of a tunnel, in bytes: that of IPv4 (RFC 791).
const MTU_MIN: i64 = 576;

/// How gateway servers are exposed by default: as by Liqo.
const SERVICE_TYPE: Service = Service::LoadBalancer;

/// One variant a verb.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Join two clusters, and take that apart again
    ///
    /// The local cluster (--kubeconfig, --context) gets the client, the remote one (--remote-kubeconfig,
    /// --remote-context) the server. Needs the API servers of both; see `strait generate` and `strait
    /// create` for where nobody has both.
    #[command(subcommand)]
    Network(Box<NetworkCommand>),
    /// Make one object of a peering, in one cluster
    #[command(subcommand)]
    Create(Box<CreateCommand>),
    /// Delete one object of a peering, in one cluster
    #[command(subcommand)]
    Delete(DeleteCommand),
    /// Print what the other cluster has to know of this one
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Show what a change would do, and do nothing
    ///
    /// Needs no more than the right to read. What is shown is the difference to how things are now, one
    /// line each: + is there then, - is gone, ~ is another way, -+ is made anew, ! cannot be had.
    ///
    /// Exit status: 0 nothing would be different, 2 something would, 3 not all of it can be had, 64 wrong
    /// usage, 1 anything else.
    #[command(subcommand)]
    Plan(Box<PlanCommand>),
    /// Show a cluster, or its peerings
    ///
    /// Exit status: 0 shown, 64 there is no such thing, 1 the cluster cannot be asked.
    #[command(args_conflicts_with_subcommands = true)]
    Info(Box<InfoArgs>),
    /// Show whether the peerings of a cluster work, a line each
    ///
    /// Exit status: 0 all that are wanted work, 1 one does not or the cluster cannot be asked.
    Status(StatusArgs),
}

impl UserCommand {
    /// Whether the user has said beforehand that what may be lost may be lost.
    pub(crate) fn is_confirmed(&self) -> bool {
        match self {
            Self::Network(command) => match command.as_ref() {
                NetworkCommand::Connect(args) => args.confirmation.yes,
                // These ask by themselves, or have nothing to ask.
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
    /// Namespace of the objects [default: liqo-tenant-REMOTE_ID, made if it is not there]
    #[arg(short, long, env = "STRAIT_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Where Liqo or Strait is installed: Networks, templates and the id of the cluster are there
    #[arg(long, env = "STRAIT_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) liqo_namespace: String,
    /// Id of this cluster [default: CLUSTER_ID in the ConfigMap liqo-clusterid-configmap of the installation]
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID")]
    pub(crate) cluster_id: Option<String>,
    /// How long it may take, waiting included
    #[arg(
        long,
        env = "STRAIT_TIMEOUT",
        value_name = "DURATION",
        default_value = TIMEOUT,
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
}

/// Which other cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct RemoteArgs {
    /// Kubeconfig file of the remote cluster [default: that of kubectl]
    #[arg(long, env = "STRAIT_REMOTE_KUBECONFIG", value_name = "FILE")]
    pub(crate) remote_kubeconfig: Option<PathBuf>,
    /// Context of the remote cluster [default: the current one]
    #[arg(long, env = "STRAIT_REMOTE_CONTEXT", value_name = "NAME")]
    pub(crate) remote_context: Option<String>,
    /// Namespace in the remote cluster [default: liqo-tenant-LOCAL_ID, made if it is not there]
    #[arg(long, env = "STRAIT_REMOTE_NAMESPACE", value_name = "NAME")]
    pub(crate) remote_namespace: Option<String>,
    /// Where Liqo or Strait is installed in the remote cluster
    #[arg(long, env = "STRAIT_REMOTE_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) remote_liqo_namespace: String,
    /// Id of the remote cluster [default: CLUSTER_ID in its ConfigMap liqo-clusterid-configmap]
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: Option<String>,
}

impl RemoteArgs {
    /// Whether there is to be another cluster.
    pub(crate) const fn is_named(&self) -> bool {
        self.remote_kubeconfig.is_some() || self.remote_context.is_some()
    }
}

/// What both gateways must agree on.
#[derive(Clone, Debug, Args)]
pub(crate) struct TunnelArgs {
    /// MTU of the tunnel in bytes, the same on both sides
    #[arg(
        long,
        env = "STRAIT_TUNNEL_MTU",
        value_name = "BYTES",
        default_value_t = DEFAULT_MTU,
        value_parser = clap::value_parser!(u16).range(MTU_MIN..)
    )]
    pub(crate) mtu: u16,
}

/// What is put on every object that is made.
#[derive(Clone, Debug, Args)]
pub(crate) struct MarksArgs {
    /// Labels for everything that is made, as KEY=VALUE with commas between
    #[arg(
        long,
        env = "STRAIT_GLOBAL_LABELS",
        value_name = "LABELS",
        value_delimiter = ',',
        value_parser = label
    )]
    pub(crate) global_labels: Vec<(String, String)>,
    /// Annotations for everything that is made, as KEY=VALUE with commas between
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
    /// As verbs want them.
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            labels: self.global_labels.iter().cloned().collect(),
            annotations: self.global_annotations.iter().cloned().collect(),
        }
    }
}

/// How an object is written down.
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

/// Whether people or programs read the answer.
#[derive(Clone, Debug, Args)]
pub(crate) struct FormatArgs {
    /// Print yaml or json
    #[arg(short, long, env = "STRAIT_OUTPUT", value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
}

/// What of an answer is shown, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Show only this part, as in network.gateway.address
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
    /// Show all of its prefixes; yaml, json and --get always have them
    #[arg(short, long, env = "STRAIT_VERBOSE")]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What else there is to show.
#[derive(Debug, Subcommand)]
pub(crate) enum InfoCommand {
    /// Show peerings: prefixes, gateways, and what is wrong
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

/// Reads KEY=VALUE, with a value as labels have it.
fn label(text: &str) -> Result<(String, String), String> {
    /// The longest value of a label.
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
            "{value:?} is no value of a label: at most {BYTES_MAX} letters, digits, and between them -, _ and ."
        ))
    }
}

/// Reads KEY=VALUE; the key perhaps with the name of a domain and a slash before it.
fn annotation(text: &str) -> Result<(String, String), String> {
    let wrong = || "write KEY=VALUE, as in team=network or example.com/team=network".to_owned();
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

/// As Go writes one: `90s`, `2m`. Never zero.
fn timeout(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration like 90s, 2m or 1m30s".to_owned();
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;

    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}
