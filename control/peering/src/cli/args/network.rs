//! The flags of `strait network`.

use clap::{Args, Subcommand};
use strait_api::labels::GATEWAYS_MAX;

use super::objects::{Service, template_type};
use super::value::{address_or_none, ip_or_none, port_or_none};
use super::{Confirmation, ContextArgs, MTU_MIN, MarksArgs, RemoteArgs};
use crate::TemplateType;

/// `strait network`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Exchange the prefixes of the clusters
    ///
    /// The first step of `connect`: ends when every prefix is remapped on the other side.
    Init(InitArgs),
    /// Connect two clusters
    ///
    /// Can be repeated: correct objects stay as they are, and so do the settings of omitted flags. Asks before it
    /// replaces a gateway that is in use. Wrong flags, contexts, templates and ports are found before anything is
    /// changed.
    ///
    /// Exit status: 0 success, 64 wrong usage (nothing was changed), 1 any other error.
    Connect(Box<ConnectArgs>),
    /// Delete the gateways on both sides
    Disconnect(DisconnectArgs),
    /// Disconnect, and delete the exchanged prefixes on both sides
    Reset(DisconnectArgs),
}

/// The two clusters, and whether to wait. Flags without `remote` are for the local one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClustersArgs {
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Wait until the change has taken effect
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

/// `strait network connect`. An omitted flag keeps the existing value, if there is one.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
    /// Do not check templates and ports first
    #[arg(long, env = "STRAIT_SKIP_VALIDATION")]
    pub(crate) skip_validation: bool,
    /// Type of the server template [default: unchanged, else networking.liqo.io/v1beta1/wggatewayservertemplates]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        value_parser = template_type()
    )]
    pub(crate) gw_server_type: Option<TemplateType>,
    /// Name of the server template [default: unchanged, else wireguard-server]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAME", value_name = "NAME")]
    pub(crate) gw_server_template_name: Option<String>,
    /// Namespace of the server template [default: unchanged, else --remote-liqo-namespace]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_server_template_namespace: Option<String>,
    /// How the server is exposed [default: unchanged, else LoadBalancer]
    #[arg(long, env = "STRAIT_GW_SERVER_SERVICE_TYPE", value_name = "TYPE", value_enum)]
    pub(crate) gw_server_service_type: Option<Service>,
    /// UDP port of the server [default: unchanged, else 51840]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_PORT",
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) gw_server_service_port: Option<u16>,
    /// UDP port of the server on the nodes; 0 lets Kubernetes choose [default: unchanged, else 0]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_NODEPORT",
        value_name = "PORT",
        value_parser = port_or_none
    )]
    pub(crate) gw_server_service_nodeport: Option<u16>,
    /// Address to request from the load balancer [default: unchanged, else any]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_LOADBALANCERIP",
        value_name = "ADDRESS",
        value_parser = ip_or_none
    )]
    pub(crate) gw_server_service_loadbalancerip: Option<String>,
    #[command(flatten)]
    pub(crate) legacy: LegacyArgs,
    /// Type of the client template [default: unchanged, else networking.liqo.io/v1beta1/wggatewayclienttemplates]
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        value_parser = template_type()
    )]
    pub(crate) gw_client_type: Option<TemplateType>,
    /// Name of the client template [default: unchanged, else wireguard-client]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAME", value_name = "NAME")]
    pub(crate) gw_client_template_name: Option<String>,
    /// Namespace of the client template [default: unchanged, else --liqo-namespace]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) gw_client_template_namespace: Option<String>,
    /// Address at which the client reaches the server [default: unchanged while connected, else the address in the
    /// server's status]
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_ADDRESS",
        value_name = "ADDRESS",
        value_parser = address_or_none
    )]
    pub(crate) gw_client_address: Option<String>,
    /// UDP port at which the client reaches the server; 0 is the server's own port
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_PORT",
        value_name = "PORT",
        value_parser = port_or_none
    )]
    pub(crate) gw_client_port: Option<u16>,
    /// MTU of the tunnel in bytes, the same on both sides [default: unchanged, else 1340]
    #[arg(
        long,
        env = "STRAIT_TUNNEL_MTU",
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(MTU_MIN..)
    )]
    pub(crate) mtu: Option<u16>,
    /// Gateways on each side, which share the packets [default: unchanged, else 1]
    ///
    /// Each has keys, a Service and a Deployment of its own; ports on the nodes, and --gw-client-port, count up from that of
    /// the first one. Fewer than before: the last ones are deleted.
    #[arg(
        long,
        env = "STRAIT_GATEWAYS",
        value_name = "COUNT",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(GATEWAYS_MAX))
    )]
    pub(crate) gateways: Option<u8>,
    /// Do not exchange the public keys of the gateways
    #[arg(long, env = "STRAIT_DISABLE_SHARING_KEYS")]
    pub(crate) disable_sharing_keys: bool,
    #[command(flatten)]
    pub(crate) marks: MarksArgs,
}

/// Flags of Liqo before release 1.0, whose documentation also shows other output lines.
#[derive(Clone, Debug, Args)]
pub(crate) struct LegacyArgs {
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

impl LegacyArgs {
    /// Whether any of them is set.
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
