//! The flags of `strait plan`.

use std::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use remap::Prefix;

use super::{ConnectArgs, ContextArgs, DisconnectArgs, FormatArgs};

/// `strait plan`
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Show what `strait network connect` would do to both clusters
    ///
    /// Shows how each cluster would remap the prefixes of the other, and which objects would be created. Objects that
    /// operators create for the gateways are not shown.
    Connect(Box<PlanConnectArgs>),
    /// Show what `strait network disconnect` would delete in both clusters
    ///
    /// Both gateways and the objects that operators created for them, as far as they may be listed.
    Disconnect(Box<PlanDisconnectArgs>),
    /// Show what `strait network reset` would delete, and which prefixes IPAM would release
    Reset(Box<PlanResetArgs>),
    /// Show the effect of `kubectl apply -f FILE` for Networks, IPs and Configurations
    ///
    /// For example `strait generate configuration --context milan | strait plan apply -f - --context rome`.
    Apply(PlanApplyArgs),
    /// Show the effect of another prefix for a Network of the installation
    ///
    /// The prefix of a Network is immutable: the Network is deleted and created again.
    Network(PlanNetworkArgs),
}

/// Common flags of `strait plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanOutputArgs {
    /// Prefixes from which the operator allocates [default: those in its Deployment]
    #[arg(long, env = "STRAIT_POOLS", value_name = "PREFIX", value_delimiter = ',')]
    pub(crate) pools: Vec<Prefix>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// `strait plan connect`
#[derive(Debug, Args)]
pub(crate) struct PlanConnectArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    #[command(flatten)]
    pub(crate) output: PlanOutputArgs,
}

/// `strait plan disconnect`
#[derive(Debug, Args)]
pub(crate) struct PlanDisconnectArgs {
    #[command(flatten)]
    pub(crate) disconnect: DisconnectArgs,
    #[command(flatten)]
    pub(crate) output: FormatArgs,
}

/// `strait plan reset`
#[derive(Debug, Args)]
pub(crate) struct PlanResetArgs {
    #[command(flatten)]
    pub(crate) reset: DisconnectArgs,
    #[command(flatten)]
    pub(crate) output: PlanOutputArgs,
}

/// `strait plan apply`
#[derive(Debug, Args)]
pub(crate) struct PlanApplyArgs {
    /// File with the objects, YAML or JSON; - is stdin
    #[arg(short, long, env = "STRAIT_FILE", value_name = "FILE")]
    pub(crate) filename: Input,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) output: PlanOutputArgs,
}

/// `strait plan network`
#[derive(Debug, Args)]
pub(crate) struct PlanNetworkArgs {
    /// Name of the Network
    #[arg(env = "STRAIT_OBJECT_NAME", value_name = "NAME")]
    pub(crate) name: String,
    /// The new prefix
    #[arg(long, env = "STRAIT_CIDR", value_name = "CIDR")]
    pub(crate) cidr: Prefix,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) output: PlanOutputArgs,
}

/// Where objects are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        if text == "-" { Self::Stdin } else { Self::File(text.into()) }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("stdin"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Input {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, with its name.
    pub(crate) fn read(&self) -> Result<String, String> {
        let read = match self {
            Self::Stdin => {
                let mut text = String::new();
                let read = io::stdin().lock().read_to_string(&mut text);
                read.map(|_| text)
            }
            Self::File(path) => fs::read_to_string(path),
        };

        read.map_err(|error| format!("{self} cannot be read: {error}"))
    }
}
