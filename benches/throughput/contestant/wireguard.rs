//! Configuration of the other contestants: keys, routes, and remapping by nftables.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::Command;

use ipnet::{IpNet, Ipv4Net};
use strait_lab::Namespace;
use strait_lab::PeerSection;
use strait_lab::Scratch;
use strait_lab::topology::{CLUSTER_LINK, Cluster, LISTEN_PORT};
use strait_wg::PrivateKey;

use super::{Variation, run, tool};

/// The prefix under which each side reaches the other's pods.
const REMAPPED: &str = "10.71.0.0/16";

/// The pod CIDR of each side.
const PODS: &str = "10.244.0.0/16";

/// Routing table for packets from the pods to the other cluster.
const TABLE: &str = "77";

/// Creates a device of the kernel's WireGuard; the kernel loads the module if necessary.
pub(super) fn create(gateway: &Namespace, device: &str) -> anyhow::Result<()> {
    let mut ip = Command::new(tool("ip")?);
    ip.args(["link", "add", device, "type", "wireguard"]);

    run(gateway, ip)
}

/// Sets key, peers and MTU of a WireGuard device, and brings it up.
pub(super) fn configure(
    own: &Cluster,
    other: &Cluster,
    device: &str,
    scratch: &Scratch,
    variation: Variation,
) -> anyhow::Result<()> {
    let (private_key, public_key) = (own.private_key.to_base64(), other.private_key.public_key());
    let mut config = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {LISTEN_PORT}\n\
         [Peer]\nPublicKey = {public_key}\nAllowedIPs = 0.0.0.0/0\n\
         Endpoint = {}:{LISTEN_PORT}\n",
        *private_key, other.underlay
    );
    for peer in (0..variation.idle_peers).map(idle_peer) {
        let prefix: Vec<String> = peer.allowed_ips.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            config,
            "[Peer]\nPublicKey = {}\nAllowedIPs = {}",
            peer.public_key,
            prefix.join(", ")
        );
    }
    let file = scratch.write(&format!("{device}.conf"), &config)?;
    let mut wg = Command::new(tool("wg")?);
    wg.args(["setconf", device]).arg(file);
    run(&own.gateway, wg)?;

    let mut ip = Command::new(tool("ip")?);
    ip.args(["link", "set", device, "mtu", &variation.mtu.tunnel.to_string(), "up"]);
    run(&own.gateway, ip)
}

/// A peer without traffic.
pub(super) fn idle_peer(number: u32) -> PeerSection {
    let pods = Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 0).to_bits() + (number << 8));

    let allowed_ips = Ipv4Net::new(pods, 24).map(IpNet::from).into_iter().collect();

    PeerSection::new(&format!("idle-{number}"), PrivateKey::generate().public_key(), allowed_ips)
}

/// Remaps with nftables as Liqo does: destinations of packets from the pods, sources of packets to
/// them. Routes all packets from the pods to `device`.
pub(super) fn remap(own: &Cluster, device: &str, route: &[&str]) -> anyhow::Result<()> {
    let rules = format!(
        "table ip remap {{
            chain outgoing {{
                type nat hook prerouting priority dstnat
                iifname \"{CLUSTER_LINK}\" ip daddr {REMAPPED} dnat ip prefix to ip daddr map {{ {REMAPPED} : {PODS} }}
            }}
            chain incoming {{
                type nat hook postrouting priority srcnat
                iifname \"{device}\" ip saddr {PODS} snat ip prefix to ip saddr map {{ {PODS} : {REMAPPED} }}
            }}
        }}"
    );
    let mut nft = Command::new(tool("nft")?);
    nft.arg(rules);
    run(&own.gateway, nft)?;

    let ip = tool("ip")?;
    let mut rule = Command::new(&ip);
    rule.args(["rule", "add", "iif", CLUSTER_LINK, "lookup", TABLE]);
    run(&own.gateway, rule)?;
    let mut add = Command::new(&ip);
    add.args(["route", "add", PODS]).args(route).args(["table", TABLE]);

    run(&own.gateway, add)
}
