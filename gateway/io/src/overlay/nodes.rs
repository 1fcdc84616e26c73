//! The nodes of an overlay: who may send, and which node leads to an address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remap::Prefix;
use remap::lpm::Lpm;
use socket2::SockAddr;

use super::{Node, NodeTraffic};
use strait_packet::counters::Counter;
use strait_packet::overlay::ethernet::Mac;
use strait_packet::overlay::{SharedSource, Vni};

/// All nodes of one configuration, immutable except for what is learned.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Box<[KnownNode]>,
    by_address: HashMap<IpAddr, usize>,
    by_pod: Option<Lpm<usize>>,
}

/// A node, with what is needed to send to it.
#[derive(Debug)]
pub(super) struct KnownNode {
    remote: SocketAddr,
    destination: SockAddr,
    vni: Vni,
    inner: IpAddr,
    gateway: Option<IpAddr>,
    shared_source: Option<SharedSource>,
    /// The configured station.
    mac: Option<Mac>,
    observed: Arc<Observed>,
}

/// What is known of a node besides its configuration. Different threads write the parts.
#[derive(Debug, Default)]
struct Observed {
    /// The station in the last frame of the node as a number; 0 if there was none.
    mac: AtomicU64,
    received: OwnLine<AtomicU64>,
    sent: OwnLine<Counter>,
}

/// Is alone in its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OwnLine<T>(T);

impl Nodes {
    /// The table of `nodes`, with what was observed of those that are in the `former` one too.
    ///
    /// The first of several nodes with one address or one prefix gets it.
    pub(super) fn new(
        nodes: &[Node],
        port: u16,
        is_dual_stack: bool,
        former: Option<&Self>,
    ) -> Self {
        let mut by_address = HashMap::new();
        let mut prefixes = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            by_address.entry(node.address).or_insert(index);
            for source in &node.sources {
                by_address.entry(*source).or_insert(index);
            }
            for prefix in &node.pods {
                prefixes.entry(*prefix).or_insert(index);
            }
        }
        // After all configured prefixes, which may give the address of a node to another one.
        for (index, node) in nodes.iter().enumerate() {
            for own in [Some(node.address), node.inner].into_iter().flatten() {
                prefixes.entry(Prefix::of_host(own)).or_insert(index);
            }
        }
        let known = nodes.iter().map(|node| {
            let known = former.and_then(|former| former.of_source(node.address));
            let observed = known.map(|known| Arc::clone(&known.observed));
            KnownNode::new(node, port, is_dual_stack, observed.unwrap_or_default())
        });

        // No prefix repeats in a map.
        Self { nodes: known.collect(), by_address, by_pod: Lpm::new(prefixes).ok() }
    }

    /// The node with this outer address.
    #[inline]
    pub(super) fn of_source(&self, address: IpAddr) -> Option<&KnownNode> {
        self.nodes.get(*self.by_address.get(&address)?)
    }

    /// The node that leads to `address`.
    #[inline]
    pub(super) fn of_pod(&self, address: IpAddr) -> Option<&KnownNode> {
        self.nodes.get(*self.by_pod.as_ref()?.get(address)?)
    }

    /// The nodes without a configured station; only those that were not heard yet, unless `heard_too`.
    pub(super) fn without_station(&self, heard_too: bool) -> impl Iterator<Item = &KnownNode> {
        let nodes = self.nodes.iter().filter(|node| node.mac.is_none());

        nodes.filter(move |node| heard_too || node.heard_mac().is_none())
    }

    /// What each node has sent and got.
    pub(super) fn traffic(&self) -> impl Iterator<Item = NodeTraffic> {
        self.nodes.iter().map(KnownNode::traffic)
    }

    /// The node that leads to the destination of `packet`.
    #[inline]
    pub(super) fn of_packet(&self, packet: &[u8]) -> Option<&KnownNode> {
        self.of_pod(destination(packet)?)
    }
}

impl KnownNode {
    fn new(node: &Node, port: u16, is_dual_stack: bool, observed: Arc<Observed>) -> Self {
        let remote = SocketAddr::new(node.address, port);
        let destination = match node.address {
            IpAddr::V4(address) if is_dual_stack => {
                SockAddr::from(SocketAddrV6::new(address.to_ipv6_mapped(), port, 0, 0))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => SockAddr::from(remote),
        };

        Self {
            remote,
            destination,
            vni: node.vni,
            inner: node.inner.unwrap_or(node.address),
            gateway: node.gateway,
            shared_source: node.shared_source,
            mac: node.mac,
            observed,
        }
    }

    /// The outer address and the port of the node.
    pub(super) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// The same for the kernel.
    pub(super) const fn destination(&self) -> &SockAddr {
        &self.destination
    }

    /// The identifier of the virtual network with this node.
    pub(super) const fn vni(&self) -> Vni {
        self.vni
    }

    /// The address by which it is asked for its station.
    pub(super) const fn inner(&self) -> IpAddr {
        self.inner
    }

    /// The address of the gateway inside the overlay.
    #[inline]
    pub(super) const fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// The source that it shares with other nodes.
    #[inline]
    pub(super) const fn shared_source(&self) -> Option<&SharedSource> {
        self.shared_source.as_ref()
    }

    /// The station to send to.
    #[inline]
    pub(super) fn mac(&self) -> Mac {
        self.mac.or_else(|| self.heard_mac()).unwrap_or_else(|| derived_mac(self.remote.ip()))
    }

    /// The station in the last frame of the node, if there was one.
    #[inline]
    pub(super) fn heard_mac(&self) -> Option<Mac> {
        let learned = self.observed.mac.load(Ordering::Relaxed);
        let [_, _, mac @ ..] = learned.to_be_bytes();

        (learned != 0).then_some(Mac(mac))
    }

    /// Learns the station from a frame of the node.
    #[inline]
    pub(super) fn learn_mac(&self, mac: Mac) {
        let Mac([a, b, c, d, e, f]) = mac;
        let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        if mac.is_station() && self.observed.mac.load(Ordering::Relaxed) != number {
            self.observed.mac.store(number, Ordering::Relaxed);
        }
    }

    /// Counts a packet from the node. Only the thread that reads the overlay does, so no locked instruction is needed.
    #[inline]
    pub(super) fn count_received(&self, bytes: u64) {
        let OwnLine(received) = &self.observed.received;
        let sum = received.load(Ordering::Relaxed).wrapping_add(bytes);
        received.store(sum, Ordering::Relaxed);
    }

    /// Counts packets to the node.
    #[inline]
    pub(super) fn count_sent(&self, bytes: u64) {
        self.observed.sent.0.add(bytes);
    }

    /// What was counted.
    pub(super) fn traffic(&self) -> NodeTraffic {
        NodeTraffic {
            address: self.remote.ip(),
            received_bytes: self.observed.received.0.load(Ordering::Relaxed),
            sent_bytes: self.observed.sent.0.get(),
        }
    }
}

/// The station that `strait node` gives the device of the node with this IPv4 address. All stations for an IPv6 node,
/// whose kernel does not forward such frames: it has to be heard first.
pub(super) const fn derived_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            Mac([0x0e, 0x53, a, b, c, d])
        }
        IpAddr::V6(_) => Mac::BROADCAST,
    }
}

/// The destination of `packet`; `None` if it is truncated or not IP.
#[inline]
pub(super) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    #[test]
    fn the_longest_prefix_decides_the_node() {
        let nodes =
            table(&[("172.18.3.1", &["10.244.0.0/16"]), ("172.18.3.2", &["10.244.7.0/24"])]);
        let of = |address: &str| {
            nodes.of_pod(address.parse().unwrap()).map(|node| node.remote().to_string())
        };

        assert_eq!(of("10.244.1.5").as_deref(), Some("172.18.3.1:8483"));
        assert_eq!(of("10.244.7.5").as_deref(), Some("172.18.3.2:8483"));
        assert_eq!(of("172.18.3.2").as_deref(), Some("172.18.3.2:8483"));
        assert_eq!(of("10.245.1.5"), None);
    }

    #[test]
    fn a_learned_station_survives_another_configuration() {
        let before = table(&[("172.18.3.1", &[]), ("172.18.3.2", &[])]);
        let mac = |nodes: &Nodes, address: &str| {
            nodes.of_source(address.parse().unwrap()).map(KnownNode::mac)
        };
        let derived = Mac([0x0e, 0x53, 172, 18, 3, 1]);
        assert_eq!(mac(&before, "172.18.3.1"), Some(derived));
        let known = before.of_source("172.18.3.1".parse().unwrap()).unwrap();
        for mac in [OTHER, Mac([0; 6]), Mac::BROADCAST] {
            known.learn_mac(mac);
        }

        let after = Nodes::new(&[node("172.18.3.1", &["10.1.0.0/16"])], 8483, true, Some(&before));
        let configured = Node { mac: Some(derived), ..node("172.18.3.1", &[]) };
        let fixed = Nodes::new(&[configured], 8483, true, Some(&before));

        assert_eq!(mac(&after, "172.18.3.1"), Some(OTHER));
        assert_eq!(mac(&after, "172.18.3.2"), None);
        assert_eq!(mac(&fixed, "172.18.3.1"), Some(derived));
    }

    #[test]
    fn traffic_is_counted_across_configurations() {
        let before = table(&[("172.18.3.1", &[]), ("172.18.3.2", &[])]);
        let count = |nodes: &Nodes, received, sent| {
            let known = nodes.of_source("172.18.3.1".parse().unwrap()).unwrap();
            known.count_received(received);
            known.count_sent(sent);
        };
        count(&before, 100, 10);

        let after = Nodes::new(&[node("172.18.3.1", &["10.1.0.0/16"])], 8483, true, Some(&before));
        count(&after, 200, 20);

        let traffic = |address: &str, received_bytes, sent_bytes| NodeTraffic {
            address: address.parse().unwrap(),
            received_bytes,
            sent_bytes,
        };
        assert_eq!(after.traffic().collect::<Vec<_>>(), [traffic("172.18.3.1", 300, 30)]);
        let in_both = [traffic("172.18.3.1", 300, 30), traffic("172.18.3.2", 0, 0)];
        assert_eq!(before.traffic().collect::<Vec<_>>(), in_both);
    }

    #[test]
    fn nodes_have_several_sources_and_an_inner_address() {
        let inner = "10.80.0.1".parse().unwrap();
        let sources = vec!["192.0.2.1".parse().unwrap()];
        let of_node = Node { sources, inner: Some(inner), ..node("172.18.3.1", &[]) };

        let nodes = Nodes::new(&[of_node], 6091, true, None);

        for source in ["172.18.3.1", "192.0.2.1"] {
            let known = nodes.of_source(source.parse().unwrap()).unwrap();
            assert_eq!(
                (known.remote().to_string().as_str(), known.inner()),
                ("172.18.3.1:6091", inner)
            );
        }
        assert!(nodes.of_pod(inner).is_some());
        assert_eq!(nodes.without_station(false).count(), 1);
    }

    #[test]
    fn truncated_packets_have_no_destination() {
        let mut packet = [0x60; 40];
        assert!(destination(&packet).is_some());
        packet[0] = 0x45;
        assert!(destination(&packet).is_some());

        for len in 0..20 {
            assert_eq!(destination(&packet[..len]), None);
        }
        packet[0] = 0x55;
        assert_eq!(destination(&packet), None);
    }

    fn table(nodes: &[(&str, &[&str])]) -> Nodes {
        let nodes: Vec<_> = nodes.iter().map(|(address, pods)| node(address, pods)).collect();

        Nodes::new(&nodes, 8483, true, None)
    }

    fn node(address: &str, pods: &[&str]) -> Node {
        Node {
            pods: pods.iter().map(|pods| pods.parse().unwrap()).collect(),
            ..Node::new(address.parse().unwrap(), Vni::new(83).unwrap())
        }
    }
}
