//! The address with which one of several gateways masquerades: it must not be that of an `IP`.
//!
//! IPAM reserves these addresses, but an `IP` that had one before it did so keeps it. Packets to that address can have only one
//! meaning, so the gateway is not made.

use std::net::IpAddr;

use kube::ResourceExt as _;
use kube::core::ApiResource;
use strait_api::identity::Identity;
use strait_api::labels::gateway_index;
use strait_api::{Configuration, IP};
use strait_plan::objects::{masquerade_addresses, of_cluster, parse};

use super::context::Context;
use super::kind::{Gateway, Object as _};
use super::problem::Problem;

/// Checks the address of `gateway`, as far as the prefixes of this cluster are known.
pub(super) async fn check<K: Gateway>(
    gateway: &K,
    identity: &Identity,
    context: &Context,
) -> Result<(), Problem> {
    let wrong = |found: &str| Problem::GatewayIndex { found: found.to_owned() };
    let index = gateway_index(gateway).map_err(wrong)?;
    // The first address was always reserved.
    if index == 0 {
        return Ok(());
    }
    let Identity { namespace, remote_cluster_id, .. } = identity;
    let all = context.cache(&ApiResource::erase::<Configuration>(&()), "");
    let all = all.list(namespace).await.map_err(Problem::failed_to("list Configurations"))?;
    let all: Vec<Configuration> =
        all.into_iter().filter_map(|configuration| configuration.try_parse().ok()).collect();
    let Some(configuration) = of_cluster(&all, remote_cluster_id) else { return Ok(()) };
    let addresses: Vec<_> = masquerade_addresses(&parse(configuration), index).collect();

    let ips = context.cache(&IP::resource(), "").labelled(&[]).await;
    let ips = ips.map_err(Problem::failed_to("list IPs"))?;
    for ip in ips {
        let address = ip.data.pointer("/status/ip").and_then(|address| address.as_str());
        let address = address.and_then(|address| address.parse::<IpAddr>().ok());
        if let Some(address) = address.filter(|address| addresses.contains(address)) {
            let ip = format!("{}/{}", ip.namespace().unwrap_or_default(), ip.name_any());
            return Err(Problem::MasqueradeAddressTaken { index, address, ip });
        }
    }

    Ok(())
}
