//! The flags of the verbs, with the names and defaults that Liqo gives them.

mod network;
mod objects;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use network::{ClustersArgs, ConnectArgs, NetworkCommand};
pub(crate) use objects::{
    CreateCommand, DeleteArgs, DeleteCommand, GatewayType, GenerateCommand, Service,
};

/// How long a verb may take by default, waiting included.
const TIMEOUT: &str = "120s";

/// The MTU of the tunnel by default, in bytes: that of Liqo.
const MTU: u16 = 1340;

/// The port of gateway servers by default: that of Liqo.
const PORT: u16 = 51840;

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
    /// Show a cluster, or its peerings
    ///
    /// Exit status: 0 shown, 64 there is no such thing, 1 the cluster cannot be asked.
    #[command(args_conflicts_with_subcommands = true)]
    Info(Box<InfoArgs>),
    /// Show whether the peerings of a cluster work, a line each
    ///
    /// Exit status: 0 all that are wanted work, 1 one does not or the cluster cannot be asked.
    Status(StatusArgs),
    /// Print what completes commands in a shell
    ///
    /// As in `source <(strait completion bash)`.
    Completion(CompletionArgs),
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ContextArgs {
    /// Kubeconfig file [default: KUBECONFIG, else ~/.kube/config, else the pod this runs in]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: the current one]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace of the objects [default: that of the context; of info and status: all]
    #[arg(short, long, env = "STRAIT_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Where Liqo or Strait is installed: Networks, templates and the id of the cluster are there
    #[arg(long, env = "STRAIT_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) liqo_namespace: String,
    /// Id of this cluster [default: CLUSTER_ID in the ConfigMap clusterid-configmap of the installation]
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

/// How an object is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people and `kubectl apply -f -`
    Yaml,
    /// For programs
    Json,
}

impl From<Format> for control::commands::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Yaml => Self::Yaml,
            Format::Json => Self::Json,
        }
    }
}

/// What of an answer is shown, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Show only this part, as in network.gateway.address
    #[arg(short, long, env = "STRAIT_GET", value_name = "PATH")]
    pub(crate) get: Option<String>,
    /// Print yaml or json
    #[arg(short, long, env = "STRAIT_OUTPUT", value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
}

/// `strait info`
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    #[command(subcommand)]
    pub(crate) command: Option<InfoCommand>,
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
    /// Print yaml or json
    #[arg(short, long, env = "STRAIT_OUTPUT", value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
}

/// `strait completion`
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Of which shell
    #[arg(env = "STRAIT_SHELL", value_name = "SHELL", value_parser = shell())]
    pub(crate) shell: Shell,
}

/// The shells that the manual speaks of.
fn shell() -> impl clap::builder::TypedValueParser<Value = Shell> {
    use clap::builder::TypedValueParser as _;

    clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"])
        .try_map(|name| Shell::from_str(&name, false))
}

/// As Go writes one: `90s`, `2m`. Never zero.
fn timeout(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration like 90s, 2m or 1m30s".to_owned();
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;

    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}
