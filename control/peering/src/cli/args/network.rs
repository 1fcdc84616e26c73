//! The flags of `strait network`.

use clap::{Args, Subcommand};

use super::objects::{Service, template_type};
use super::value::{address_or_none, ip_or_none, port_or_none};
use super::{Confirmation, ContextArgs, MTU_MIN, MarksArgs, RemoteArgs};
use crate::TemplateType;

/// `strait network`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Tell each cluster the prefixes of the other one
    ///
    /// The beginning of `connect`: ends when every prefix has its name on the other side.
    Init(InitArgs),
    /// Join two clusters
    ///
    /// May be repeated: what is right already stays as it is, and so does what a flag that is left out is
    /// about. Asks before it replaces a gateway that is in use. Wrong flags, contexts, templates and ports are
    /// found before anything is changed.
    ///
    /// Exit status: 0 done, 64 wrong usage (nothing was changed), 1 anything else.
    Connect(Box<ConnectArgs>),
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

/// `strait network init`
#[derive(Clone, Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    #[command(flatten)]
    pub(crate) marks: MarksArgs,
}

/// `strait network connect`. A flag that is left out is about what is there already, if anything is.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
    /// Do not look at templates and ports first
    #[arg(long, env = "STRAIT_SKIP_VALIDATION")]
    pub(crate) skip_validation: bool,
    /// Type of the template of the server [default: as it is, else
    /// networking.liqo.io/v1beta1/wggatewayservertemplates]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        value_parser = template_type()
    )]
    pub(crate) gw_server_type: Option<TemplateType>,
    /// Name of the template of the server [default: as it is, else wireguard-server]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAME", value_name = "NAME")]
    pub(crate) gw_server_template_name: Option<String>,
    /// Namespace of the template of the server [default: as it is, else --remote-liqo-namespace]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_server_template_namespace: Option<String>,
    /// How the server is exposed [default: as it is, else LoadBalancer]
    #[arg(long, env = "STRAIT_GW_SERVER_SERVICE_TYPE", value_name = "TYPE", value_enum)]
    pub(crate) gw_server_service_type: Option<Service>,
    /// UDP port of the server [default: as it is, else 51840]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_PORT",
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) gw_server_service_port: Option<u16>,
    /// UDP port of the server on the nodes; 0 leaves it to Kubernetes [default: as it is, else 0]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_NODEPORT",
        value_name = "PORT",
        value_parser = port_or_none
    )]
    pub(crate) gw_server_service_nodeport: Option<u16>,
    /// Address to ask the load balancer for [default: as it is, else any]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_LOADBALANCERIP",
        value_name = "ADDRESS",
        value_parser = ip_or_none
    )]
    pub(crate) gw_server_service_loadbalancerip: Option<String>,
    #[command(flatten)]
    pub(crate) former: FormerArgs,
    /// Type of the template of the client [default: as it is, else
    /// networking.liqo.io/v1beta1/wggatewayclienttemplates]
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        value_parser = template_type()
    )]
    pub(crate) gw_client_type: Option<TemplateType>,
    /// Name of the template of the client [default: as it is, else wireguard-client]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAME", value_name = "NAME")]
    pub(crate) gw_client_template_name: Option<String>,
    /// Namespace of the template of the client [default: as it is, else --liqo-namespace]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_client_template_namespace: Option<String>,
    /// Where the client finds the server [default: as it is while it is connected, else where the server says
    /// that it is]
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_ADDRESS",
        value_name = "ADDRESS",
        value_parser = address_or_none
    )]
    pub(crate) gw_client_address: Option<String>,
    /// UDP port for that; 0 is that of the server
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_PORT",
        value_name = "PORT",
        value_parser = port_or_none
    )]
    pub(crate) gw_client_port: Option<u16>,
    /// MTU of the tunnel in bytes, the same on both sides [default: as it is, else 1340]
    #[arg(
        long,
        env = "STRAIT_TUNNEL_MTU",
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(MTU_MIN..)
    )]
    pub(crate) mtu: Option<u16>,
    /// Do not give each gateway the public key of the other one
    #[arg(long, env = "STRAIT_DISABLE_SHARING_KEYS")]
    pub(crate) disable_sharing_keys: bool,
    #[command(flatten)]
    pub(crate) marks: MarksArgs,
}

/// Flags of Liqo before its release 1.0. Its documentation of that time has other lines, too.
#[derive(Clone, Debug, Args)]
pub(crate) struct FormerArgs {
    /// --gw-server-service-type
    #[arg(
        long,
        hide = true,
        value_name = "TYPE",
        value_enum,
        conflicts_with = "gw_server_service_type"
    )]
    pub(crate) server_service_type: Option<Service>,
    /// --gw-server-service-port
    #[arg(
        long,
        hide = true,
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "gw_server_service_port"
    )]
    pub(crate) server_port: Option<u16>,
    /// --gw-server-service-nodeport
    #[arg(
        long,
        hide = true,
        value_name = "PORT",
        value_parser = port_or_none,
        conflicts_with = "gw_server_service_nodeport"
    )]
    pub(crate) node_port: Option<u16>,
    /// --gw-server-service-loadbalancerip
    #[arg(
        long,
        hide = true,
        value_name = "ADDRESS",
        value_parser = ip_or_none,
        conflicts_with = "gw_server_service_loadbalancerip"
    )]
    pub(crate) load_balancer_ip: Option<String>,
}

impl FormerArgs {
    /// Whether any of them was typed.
    pub(crate) const fn are_used(&self) -> bool {
        self.server_service_type.is_some()
            || self.server_port.is_some()
            || self.node_port.is_some()
            || self.load_balancer_ip.is_some()
    }
}

/// `strait network disconnect` and `strait network reset`
#[derive(Clone, Debug, Args)]
pub(crate) struct DisconnectArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
}
