//! The flags of `strait network`.

use std::io::{self, BufRead as _, Write as _};

use clap::{Args, Subcommand};
use control::commands::TemplateType;

use super::objects::{Service, template_type};
use super::{
    CLIENT_TEMPLATE, ContextArgs, MarksArgs, PORT, RemoteArgs, SERVER_TEMPLATE, SERVICE_TYPE,
    TunnelArgs,
};

/// `strait network`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Tell each cluster the prefixes of the other one
    ///
    /// The beginning of `connect`: afterwards every prefix has its name on the other side.
    Init(ConnectArgs),
    /// Join two clusters
    ///
    /// May be repeated: what is right already stays as it is. Wrong flags, contexts, templates and ports
    /// are found before anything is changed.
    ///
    /// Exit status: 0 done, 64 wrong usage (nothing was changed), 1 anything else.
    Connect(ConnectArgs),
    /// Delete the gateways on both sides
    Disconnect(DisconnectArgs),
    /// Disconnect, and forget the prefixes on both sides
    Reset(DisconnectArgs),
}

/// Which clusters, and for how long. What is said of one cluster alone is about the local one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClustersArgs {
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Wait until it has taken effect
    #[arg(long, env = "STRAIT_WAIT")]
    pub(crate) wait: bool,
}

/// `strait network init` and `strait network connect`
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    /// Do not look at templates and ports first
    #[arg(long, env = "STRAIT_SKIP_VALIDATION")]
    pub(crate) skip_validation: bool,
    /// Type of the template of the server
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        default_value = TemplateType::SERVER,
        value_parser = template_type()
    )]
    pub(crate) gw_server_type: TemplateType,
    /// Name of the template of the server
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = SERVER_TEMPLATE
    )]
    pub(crate) gw_server_template_name: String,
    /// Namespace of the template of the server [default: --remote-liqo-namespace]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_server_template_namespace: Option<String>,
    /// How the server is exposed
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_TYPE",
        value_name = "TYPE",
        value_enum,
        default_value_t = SERVICE_TYPE
    )]
    pub(crate) gw_server_service_type: Service,
    /// UDP port of the server
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_PORT",
        value_name = "PORT",
        default_value_t = PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) gw_server_service_port: u16,
    /// UDP port of the server on the nodes; 0 leaves it to Kubernetes
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_NODEPORT",
        value_name = "PORT",
        default_value_t = 0
    )]
    pub(crate) gw_server_service_nodeport: u16,
    /// Address to ask the load balancer for [default: any]
    #[arg(long, env = "STRAIT_GW_SERVER_SERVICE_LOADBALANCERIP", value_name = "ADDRESS")]
    pub(crate) gw_server_service_loadbalancerip: Option<String>,
    /// Type of the template of the client
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        default_value = TemplateType::CLIENT,
        value_parser = template_type()
    )]
    pub(crate) gw_client_type: TemplateType,
    /// Name of the template of the client
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = CLIENT_TEMPLATE
    )]
    pub(crate) gw_client_template_name: String,
    /// Namespace of the template of the client [default: --liqo-namespace]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_client_template_namespace: Option<String>,
    /// Where the client finds the server [default: where the server says that it is]
    #[arg(long, env = "STRAIT_GW_CLIENT_ADDRESS", value_name = "ADDRESS")]
    pub(crate) gw_client_address: Option<String>,
    /// UDP port for that; 0 is that of the server
    #[arg(long, env = "STRAIT_GW_CLIENT_PORT", value_name = "PORT", default_value_t = 0)]
    pub(crate) gw_client_port: u16,
    #[command(flatten)]
    pub(crate) tunnel: TunnelArgs,
    /// Do not give each gateway the public key of the other one
    #[arg(long, env = "STRAIT_DISABLE_SHARING_KEYS")]
    pub(crate) disable_sharing_keys: bool,
    #[command(flatten)]
    pub(crate) marks: MarksArgs,
}

/// `strait network disconnect` and `strait network reset`
#[derive(Clone, Debug, Args)]
pub(crate) struct DisconnectArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}

/// Whether somebody is asked first.
#[derive(Clone, Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask first
    #[arg(short, long, env = "STRAIT_YES", visible_alias = "skip-confirm")]
    pub(crate) yes: bool,
}

/// Somebody was asked, and does not want it.
#[derive(Debug, thiserror::Error)]
#[error("action aborted: nothing was changed; answer y, or pass --yes")]
pub(crate) struct Aborted;

impl Confirmation {
    /// Asks on stderr whether `verb` is meant, unless that was said; the answer is the next line of
    /// stdin.
    pub(crate) fn ask(&self, verb: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let mut stderr = io::stderr().lock();
        let question = format!(
            "{verb} is a potentially destructive command.\nAre you sure you want to continue? [y/N]"
        );
        stderr.write_all(question.as_bytes())?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;

        if is_yes(&answer) { Ok(()) } else { Err(Aborted.into()) }
    }
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}
