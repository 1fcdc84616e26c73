//! The flags of `strait create`, `strait delete` and `strait generate`.

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand, ValueEnum};
use remap::Prefix;

use super::value::{address, ip_or_none, port_or_none};
use super::{Confirmation, ContextArgs, Format, MarksArgs, SERVICE_TYPE, TunnelArgs};
use crate::{CLIENT_TEMPLATE, DEFAULT_PORT, SERVER_TEMPLATE, ServiceType, TemplateType};

/// `strait create`
#[derive(Debug, Subcommand)]
pub(crate) enum CreateCommand {
    /// Create the Configuration with the prefixes of a remote cluster
    Configuration(ConfigurationArgs),
    /// Create a gateway that a remote gateway connects to
    Gatewayserver(ServerArgs),
    /// Create a gateway that connects to a remote gateway
    Gatewayclient(ClientArgs),
    /// Create the PublicKey of a remote gateway
    Publickey(PublicKeyArgs),
}

/// Common flags of `strait create`.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// Name of the object
    #[arg(env = "STRAIT_OBJECT_NAME", value_name = "NAME")]
    pub(crate) name: String,
    /// Id of the remote cluster
    #[arg(long, env = "STRAIT_REMOTE_CLUSTER_ID", value_name = "ID")]
    pub(crate) remote_cluster_id: String,
    /// Print the object instead of creating it
    #[arg(short, long, env = "STRAIT_OUTPUT", value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
    /// Overwrite a different object of this name
    #[arg(short, long, env = "STRAIT_YES", visible_alias = "skip-confirm")]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) marks: MarksArgs,
}

/// `strait create configuration`
#[derive(Debug, Args)]
pub(crate) struct ConfigurationArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Pod CIDR of the remote cluster, before remapping; several are separated by commas
    #[arg(
        long,
        env = "STRAIT_POD_CIDR",
        value_name = "CIDR",
        required = true,
        value_delimiter = ','
    )]
    pub(crate) pod_cidr: Vec<Prefix>,
    /// External CIDR of the remote cluster, for addresses other than pods; several are separated by commas
    #[arg(
        long,
        env = "STRAIT_EXTERNAL_CIDR",
        value_name = "CIDR",
        required = true,
        value_delimiter = ','
    )]
    pub(crate) external_cidr: Vec<Prefix>,
    /// Wait until every prefix is remapped
    #[arg(long, env = "STRAIT_WAIT")]
    pub(crate) wait: bool,
}

/// `strait create gatewayserver`
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Type of the template
    #[arg(
        long = "type",
        env = "STRAIT_GW_SERVER_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        default_value = TemplateType::SERVER,
        value_parser = template_type()
    )]
    pub(crate) type_: TemplateType,
    /// Name of the template
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = SERVER_TEMPLATE
    )]
    pub(crate) template_name: String,
    /// Namespace of the template [default: --liqo-namespace]
    #[arg(long, env = "STRAIT_GW_SERVER_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) template_namespace: Option<String>,
    /// How the server is exposed
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_TYPE",
        value_name = "TYPE",
        value_enum,
        default_value_t = SERVICE_TYPE
    )]
    pub(crate) service_type: Service,
    #[command(flatten)]
    pub(crate) tunnel: TunnelArgs,
    /// UDP port
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_PORT",
        value_name = "PORT",
        default_value_t = DEFAULT_PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) port: u16,
    /// UDP port on the nodes; 0 lets Kubernetes choose
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_NODEPORT",
        value_name = "PORT",
        default_value = "0",
        value_parser = port_or_none
    )]
    pub(crate) node_port: u16,
    /// Address to request from the load balancer [default: any]
    #[arg(
        long,
        env = "STRAIT_GW_SERVER_SERVICE_LOADBALANCERIP",
        value_name = "ADDRESS",
        value_parser = ip_or_none
    )]
    pub(crate) load_balancer_ip: Option<String>,
    /// Wait until the status has an endpoint
    #[arg(long, env = "STRAIT_WAIT")]
    pub(crate) wait: bool,
}

/// `strait create gatewayclient`
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Addresses or DNS names of the server, separated by commas
    #[arg(
        long,
        env = "STRAIT_ADDRESSES",
        value_name = "ADDRESSES",
        required = true,
        value_delimiter = ',',
        value_parser = address
    )]
    pub(crate) addresses: Vec<String>,
    /// UDP port of the server
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_PORT",
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) port: u16,
    /// Protocol of the tunnel
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_PROTOCOL",
        value_name = "PROTOCOL",
        value_enum,
        default_value = "UDP"
    )]
    pub(crate) protocol: Protocol,
    #[command(flatten)]
    pub(crate) tunnel: TunnelArgs,
    /// Type of the template
    #[arg(
        long = "type",
        env = "STRAIT_GW_CLIENT_TYPE",
        value_name = "GROUP/VERSION/PLURAL",
        default_value = TemplateType::CLIENT,
        value_parser = template_type()
    )]
    pub(crate) type_: TemplateType,
    /// Name of the template
    #[arg(
        long,
        env = "STRAIT_GW_CLIENT_TEMPLATE_NAME",
        value_name = "NAME",
        default_value = CLIENT_TEMPLATE
    )]
    pub(crate) template_name: String,
    /// Namespace of the template [default: --liqo-namespace]
    #[arg(long, env = "STRAIT_GW_CLIENT_TEMPLATE_NAMESPACE", value_name = "NAME")]
    pub(crate) template_namespace: Option<String>,
    /// Wait until the gateway is created
    #[arg(long, env = "STRAIT_WAIT")]
    pub(crate) wait: bool,
}

/// `strait create publickey`
#[derive(Debug, Args)]
pub(crate) struct PublicKeyArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Public key of the remote gateway, in base64
    #[arg(long, env = "STRAIT_PUBLIC_KEY", value_name = "KEY")]
    pub(crate) public_key: String,
}

/// `strait delete`
#[derive(Debug, Subcommand)]
pub(crate) enum DeleteCommand {
    /// Delete the Configuration of a remote cluster
    Configuration(DeleteArgs),
    /// Delete a gateway that a remote gateway connects to
    Gatewayserver(DeleteArgs),
    /// Delete a gateway that connects to a remote gateway
    Gatewayclient(DeleteArgs),
    /// Delete the PublicKey of a remote gateway
    Publickey(DeleteArgs),
}

/// Common flags of `strait delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Name of the object
    #[arg(env = "STRAIT_OBJECT_NAME", value_name = "NAME")]
    pub(crate) name: String,
    /// Wait until the object is gone
    #[arg(long, env = "STRAIT_WAIT")]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) confirmation: Confirmation,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
}

/// `strait generate`
#[derive(Debug, Subcommand)]
pub(crate) enum GenerateCommand {
    /// Print the Configuration with the prefixes of this cluster, for the remote one
    Configuration(GenerateArgs),
    /// Print the PublicKey of a gateway of this cluster, for the remote one
    Publickey(GeneratePublicKeyArgs),
}

/// Common flags of `strait generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Format of the object
    #[arg(
        short,
        long,
        env = "STRAIT_OUTPUT",
        value_name = "FORMAT",
        value_enum,
        default_value = "yaml"
    )]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
}

/// `strait generate publickey`
#[derive(Debug, Args)]
pub(crate) struct GeneratePublicKeyArgs {
    /// Role of the gateway of this cluster
    #[arg(long, env = "STRAIT_GATEWAY_TYPE", value_name = "TYPE", value_enum)]
    pub(crate) gateway_type: GatewayType,
    /// Name of the gateway of this cluster
    #[arg(long, env = "STRAIT_GATEWAY_NAME", value_name = "NAME")]
    pub(crate) gateway_name: String,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
}

/// The role of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GatewayType {
    /// Listens for the client
    Server,
    /// Connects to the server
    Client,
}

/// How a gateway server is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// By a load balancer
    #[value(name = "LoadBalancer")]
    LoadBalancer,
    /// On a port of every node
    #[value(name = "NodePort")]
    NodePort,
    /// Within the cluster
    #[value(name = "ClusterIP")]
    ClusterIp,
}

impl From<Service> for ServiceType {
    fn from(service: Service) -> Self {
        match service {
            Service::LoadBalancer => Self::LoadBalancer,
            Service::NodePort => Self::NodePort,
            Service::ClusterIp => Self::ClusterIp,
        }
    }
}

/// The transport protocol of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// WireGuard's
    #[value(name = "UDP")]
    Udp,
    /// For templates of other vendors
    #[value(name = "TCP")]
    Tcp,
}

impl Protocol {
    /// The name in the API.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        }
    }
}

/// Parses GROUP/VERSION/PLURAL.
pub(super) fn template_type() -> impl TypedValueParser<Value = TemplateType> {
    clap::builder::NonEmptyStringValueParser::new().try_map(|text| TemplateType::parse(&text))
}
