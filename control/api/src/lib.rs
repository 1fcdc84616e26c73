//! The API: every kind that a gateway or its operator reads or writes, one file each.
//!
//! The group, the kinds and their fields are Liqo's, so that its tools and its users' manifests work unchanged. The
//! types here read what any release wrote and write what the schema of the newest one demands.

#![forbid(unsafe_code)]
#![expect(clippy::duplicated_attributes, reason = "two columns of one type are no duplicates")]

pub mod crd;
pub mod embedded;
pub mod endpoint;
pub mod identity;
pub mod labels;
mod lenient;
mod schema;
pub mod vxlan;

pub mod configuration;
pub mod connection;
pub mod firewall_configuration;
pub mod foreign_cluster;
pub mod gateway_client;
pub mod gateway_server;
pub mod geneve_tunnel;
pub mod internal_fabric;
pub mod internal_node;
pub mod ip;
pub mod network;
pub mod public_key;
pub mod route_configuration;
pub mod wg_gateway_client;
pub mod wg_gateway_client_template;
pub mod wg_gateway_server;
pub mod wg_gateway_server_template;

pub use configuration::Configuration;
pub use connection::Connection;
pub use firewall_configuration::FirewallConfiguration;
pub use foreign_cluster::ForeignCluster;
pub use gateway_client::GatewayClient;
pub use gateway_server::GatewayServer;
pub use geneve_tunnel::GeneveTunnel;
pub use internal_fabric::InternalFabric;
pub use internal_node::InternalNode;
pub use ip::IP;
pub use network::Network;
pub use public_key::PublicKey;
pub use route_configuration::RouteConfiguration;
pub use wg_gateway_client::WgGatewayClient;
pub use wg_gateway_client_template::WgGatewayClientTemplate;
pub use wg_gateway_server::WgGatewayServer;
pub use wg_gateway_server_template::WgGatewayServerTemplate;
