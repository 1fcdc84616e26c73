//! What `--edge` means.

use std::net::{IpAddr, Ipv4Addr};

use strait_api::identity::Identity;
use strait_host::usage::UsageError;
use strait_io::overlay;
use strait_packet::overlay::{Encapsulation, Vni};
use strait_plan::lowering;

use super::replaces_one_container;
use crate::cluster::flags::{ClusterFlags, EdgeFlag};
use crate::cluster::overlay_nodes::own_node;

/// What this gateway executes of Liqo's rules and routes; `None` if others do, or if it reads `Configuration`s.
pub(super) fn rules(
    flags: &ClusterFlags,
    identity: &Identity,
    peer_address: Ipv4Addr,
    has_state_file: bool,
) -> Result<Option<lowering::Scope>, UsageError> {
    if flags.edge != EdgeFlag::Geneve {
        return Ok(None);
    }
    let node_name = flags.node_name.clone().filter(|name| !name.is_empty()).ok_or_else(|| {
        UsageError::Wrong(
            "--edge=geneve needs --node-name, the spec.nodeName of the pod".to_owned(),
        )
    })?;
    // Packets would be forwarded without the rules that drop some of them.
    if has_state_file {
        return Err(UsageError::Wrong(
            "--state-file keeps peers but no rules and nodes: do without it with --edge=geneve"
                .to_owned(),
        ));
    }

    Ok(Some(lowering::Scope {
        remote_cluster_id: identity.remote_cluster_id.clone(),
        node_name: Some(node_name),
        peer_address: IpAddr::V4(peer_address),
        tracks_flows: false,
    }))
}

/// The overlay; with VXLAN it has the node that this gateway runs on, with Geneve no node yet. `None` with a device.
pub(super) fn overlay(
    flags: &ClusterFlags,
    own: Ipv4Addr,
) -> Result<Option<overlay::Settings>, UsageError> {
    let encapsulation = match flags.edge {
        EdgeFlag::Device => return Ok(None),
        EdgeFlag::Overlay => Encapsulation::Vxlan,
        EdgeFlag::Geneve => Encapsulation::Geneve,
    };
    if replaces_one_container(flags)? {
        return Err(UsageError::Wrong(
            "--edge=overlay and --edge=geneve replace all containers of a pod: do without --container-name"
                .to_owned(),
        ));
    }
    let host = Some(IpAddr::V4(own));
    if encapsulation == Encapsulation::Geneve {
        let port = flags.geneve_port;
        return Ok(Some(overlay::Settings {
            encapsulation,
            port,
            mac: None,
            nodes: Vec::new(),
            host,
        }));
    }
    let node = flags.node_address.ok_or_else(|| {
        UsageError::Wrong(
            "--edge=overlay needs --node-address, the status.hostIP of the pod".to_owned(),
        )
    })?;
    // clap has checked the range.
    let vni = Vni::new(flags.vxlan_vni).ok_or_else(|| {
        UsageError::Wrong(format!("--vxlan-vni={} has more than 24 bits", flags.vxlan_vni))
    })?;

    Ok(Some(overlay::Settings {
        encapsulation,
        port: flags.vxlan_port,
        mac: None,
        nodes: vec![own_node(node, vni)],
        host,
    }))
}
