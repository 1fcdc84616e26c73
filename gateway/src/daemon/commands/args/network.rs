//! The flags of `strait network`.

use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use control::commands::TemplateType;

use super::objects::{Service, template_type};
use super::{MTU, PORT, TIMEOUT, timeout};

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

/// Which clusters, and for how long.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClustersArgs {
    /// Kubeconfig file of the local cluster [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, env = "STRAIT_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the local cluster [default: the current one]
    #[arg(long, env = "STRAIT_CONTEXT", value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Kubeconfig file of the remote cluster [default: that of kubectl]
    #[arg(long, env = "STRAIT_REMOTE_KUBECONFIG", value_name = "FILE")]
    pub(crate) remote_kubeconfig: Option<PathBuf>,
    /// Context of the remote cluster [default: the current one]
    #[arg(long, env = "STRAIT_REMOTE_CONTEXT", value_name = "NAME")]
    pub(crate) remote_context: Option<String>,
    /// Namespace in the local cluster [default: liqo-tenant-REMOTE_ID, made if it is not there]
    #[arg(short, long, env = "STRAIT_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Namespace in the remote cluster [default: liqo-tenant-LOCAL_ID, made if it is not there]
    #[arg(long, env = "STRAIT_REMOTE_NAMESPACE", value_name = "NAME")]
    pub(crate) remote_namespace: Option<String>,
    /// Where Liqo or Strait is installed in the local cluster
    #[arg(long, env = "STRAIT_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) liqo_namespace: String,
    /// Where Liqo or Strait is installed in the remote cluster
    #[arg(long, env = "STRAIT_REMOTE_LIQO_NAMESPACE", value_name = "NAME", default_value = "liqo")]
    pub(crate) remote_liqo_namespace: String,
    /// Id of the local cluster [default: CLUSTER_ID in its ConfigMap clusterid-configmap]
    #[arg(long, env = "STRAIT_CLUSTER_ID", value_name = "ID")]
    pub(crate) cluster_id: Option<String>,
    /// Id of the remote cluster [default: CLUSTER_ID in its ConfigMap clusterid-configmap]
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: Option<String>,
    /// How long all of it may take, waiting included
    #[arg(
        long,
        env = "STRAIT_TIMEOUT",
        value_name = "DURATION",
        default_value = TIMEOUT,
        value_parser = timeout
    )]
    pub(crate) timeout: Duration,
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
        default_value = "networking.liqo.io/v1beta1/wggatewayservertemplates",
        value_parser = template_type()
    )]
    pub(crate) gw_server_type: TemplateType,
    /// Name of the template of the server
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = "wireguard-server"
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
        default_value = "LoadBalancer"
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
        default_value = "networking.liqo.io/v1beta1/wggatewayclienttemplates",
        value_parser = template_type()
    )]
    pub(crate) gw_client_type: TemplateType,
    /// Name of the template of the client
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = "wireguard-client"
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
    /// MTU of the tunnel in bytes, the same on both sides
    #[arg(
        long,
        env = "STRAIT_TUNNEL_MTU",
        value_name = "BYTES",
        default_value_t = MTU,
        value_parser = clap::value_parser!(u16).range(576..)
    )]
    pub(crate) mtu: u16,
    /// Do not give each gateway the public key of the other one
    #[arg(long, env = "STRAIT_DISABLE_SHARING_KEYS")]
    pub(crate) disable_sharing_keys: bool,
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
