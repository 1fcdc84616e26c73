//! nftables as the oracle for masquerade: the same conversations through the kernel and through us.
//!
//! Each case is a conversation of its own from a node, which the remote cannot know, to a remapped
//! address: the packet that opens it, its answer, and ICMP errors about either, whole and cut short.
//! Both sides keep the source port where it is free, and here it always is, so packets are compared
//! byte by byte. Needs root, `/dev/net/tun`, `nft` and `ip`.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use remap::checksum::{Delta, adjust};
use remap::{Cluster, PeerId, Prefix, Rule, Table};
use strait_engine::flows::FlowAccess;
use strait_engine::translate::{self, Context};
use strait_engine::{Engine, PeerConfig};
use strait_lab::layout::host;
use strait_lab::{Layout, Realm};
use strait_packet::Header;
use strait_packet::rewrite::Checksum;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};

use crate::harness::compare::{one_hop_later, with_one_zero};
use crate::harness::kernel::{Kernel, Side, remaps};
use crate::harness::packets;
use crate::harness::packets::{Content, Packet, Part, any_packet, error_about};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::{Need, require};

const NEEDS: [Need; 4] = [Root, Tun, Tool("nft"), Tool("ip")];

/// Conversations for each layout.
const CASES: u32 = 1500;

/// What the nodes share.
const SHARED: [&str; 2] = ["10.70.0.1", "fd00:10:70::1"];

const REMOTE: PeerId = PeerId(0);

#[test]
fn node_flows_match_the_kernel_with_equal_cidrs() {
    assert_agrees(&Layout::equal());
}

#[test]
fn node_flows_match_the_kernel_with_different_cidrs() {
    assert_agrees(&Layout::different());
}

#[test]
fn node_flows_match_the_kernel_with_overlapping_cidrs() {
    assert_agrees(&Layout::partly_overlapping());
}

/// The kernel puts fragments together and cuts them again; we translate them one by one.
#[test]
fn node_fragments_match_the_kernel_both_ways() {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let layout = Layout::equal().without_ipv6();
    let mut pair = Pair::new(&layout);

    for id in 0..200 {
        let (node, target) = (node(false, 3), host(layout.rome.realms[0].remapped, 0x0207));
        let question = fragments(Side::Cluster, node, target, [40_000 + id, 53], id);
        let there = pair.pass_all(Side::Cluster, &question);
        let answered: IpAddr = SHARED[0].parse().unwrap();
        let real = host(layout.milan.realms[0].pods, 0x0207);
        let answer = fragments(Side::Tunnel, real, answered, [53, 40_000 + id], id);
        let back = pair.pass_all(Side::Tunnel, &answer);

        assert_eq!(there.0, there.1);
        assert_eq!(back.0, back.1);
        assert_eq!((there.0.len(), back.0.len()), (2, 2));
    }
}

fn assert_agrees(layout: &Layout) {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let pair = RefCell::new(Pair::new(layout));
    let mut port = 1023;

    for_all((any_opening(), 8_usize..300), |(mut packet, quoted)| {
        let mut pair = pair.borrow_mut();
        // A port of its own for each conversation, so that it is free.
        port += 1;
        packet.ports[0] = port;
        let of_family = |realms: &[Realm]| {
            *realms.iter().find(|realm| realm.pods.addr().is_ipv6() == packet.is_ipv6).unwrap()
        };
        let node = node(packet.is_ipv6, packet.source_host % 200 + 1);
        let target =
            host(of_family(&layout.rome.realms).remapped, packet.destination_host % 0xffff);

        let opening = pair.pass(Side::Cluster, packet.between(node, target))?;
        let refusal = error(&opening, quoted);
        pair.pass(Side::Tunnel, refusal)?;

        let (real, shared) = addresses(&opening);
        packet.from = Side::Tunnel;
        packet.ports.swap(0, 1);
        if packet.content == Content::Echo {
            packet.ports.swap(0, 1);
        }
        let answer = pair.pass(Side::Tunnel, as_answer(packet.between(shared, real)))?;
        pair.pass(Side::Cluster, error(&answer, quoted))?;

        Ok(())
    });
}

/// The kernel and us, with the same rules.
struct Pair {
    kernel: Kernel,
    engine: Engine,
    start: Instant,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
    fn new(layout: &Layout) -> Self {
        let Layout { rome, milan, .. } = layout;
        let remaps = remaps(&rome.realms, &milan.realms);
        let pods: Vec<_> = rome.realms.iter().map(|realm| realm.pods).collect();
        let kernel = Kernel::masquerading(&remaps, &pods, &SHARED);

        let start = Instant::now();
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings =
            strait_engine::Settings { max_flows: 1 << 16, seed: 7, index_seed: 7, start };
        let mut engine = Engine::new(identity, settings).unwrap();
        let prefix = |net: ipnet::IpNet| Prefix::new(net.network(), net.prefix_len()).unwrap();
        let rules: Vec<_> = remaps
            .iter()
            .map(|(remote, local)| (REMOTE, Rule::new(prefix(*remote), prefix(*local)).unwrap()))
            .collect();
        let cluster = Cluster {
            prefixes: pods.iter().map(|net| prefix(*net)).collect(),
            masquerade: SHARED.map(|address| address.parse().unwrap()).into(),
            ..Cluster::default()
        };
        let (table, conflicts) = Table::build(1, &cluster, rules.iter().copied());
        assert_eq!(conflicts, []);
        let peer = PeerConfig {
            name: "milan".into(),
            keys: PeerKeys { public_key: PublicKey::from_bytes([7; 32]), preshared_key: None },
            endpoints: Vec::new(),
            allowed_ips: rules.iter().map(|(_, rule)| rule.remote()).collect(),
            clamp_mtu: None,
            persistent_keepalive: None,
        };
        engine.control.apply(vec![peer], table);

        Self { kernel, engine, start }
    }

    /// What comes out, which must be the same on both ways.
    fn pass(&mut self, from: Side, packet: Vec<u8>) -> Result<Vec<u8>, TestCaseError> {
        let theirs = self.kernel.pass(from, &packet);
        let ours = self.translate(from, packet);

        prop_assert_eq!(
            theirs.map(with_one_zero),
            Some(with_one_zero(one_hop_later(ours.clone())))
        );
        Ok(ours)
    }

    fn pass_all(&mut self, from: Side, packets: &[Vec<u8>]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let theirs = self.kernel.pass_all(from, packets).into_iter().map(with_one_zero).collect();
        let ours = packets
            .iter()
            .map(|packet| with_one_zero(one_hop_later(self.translate(from, packet.clone()))));

        (theirs, ours.collect())
    }

    fn translate(&self, from: Side, mut packet: Vec<u8>) -> Vec<u8> {
        let Engine { control, flows, .. } = &self.engine;
        let forwarding = control.current();
        let mut header = Header::parse(&packet).unwrap();
        let context = Context {
            forwarding: &forwarding,
            flows,
            flow_access: FlowAccess::Update,
            now: flows.tick(self.start),
        };

        match from {
            Side::Cluster => {
                let outgoing = translate::route(&context, &packet, &header).unwrap();
                let checksum = Checksum::Complete;
                translate::outbound(&context, &outgoing, &mut packet, &mut header, checksum)
                    .unwrap();
            }
            Side::Tunnel => {
                let peer = &forwarding.peers()[0];
                translate::inbound(&context, REMOTE, peer, &mut packet, &mut header).unwrap();
            }
        }

        packet
    }
}

/// The first packet of a conversation that can be masqueraded.
fn any_opening() -> impl Strategy<Value = Packet> {
    let content = prop::sample::select(vec![Content::Tcp, Content::Udp, Content::Echo]);

    (any_packet(), content).prop_map(|(packet, content)| Packet {
        from: Side::Cluster,
        content,
        checksum: packets::Checksum::Right,
        part: Part::Whole,
        has_options: false,
        ..packet
    })
}

/// "Port unreachable", or for an echo "host unreachable", about a packet as it arrived.
fn error(offending: &[u8], quoted: usize) -> Vec<u8> {
    let is_ipv6 = offending[0] >> 4 == 6;
    let (kind, header_len) = if is_ipv6 { (1, 40) } else { (3, 20) };
    // Of a TCP header the kernel translates the checksum only if all 20 bytes are quoted; we do so
    // from the 18th on, where the checksum is complete (RFC 5508 section 4.2: as far as it is there).
    let quoted = if (18..20).contains(&quoted) { 20 } else { quoted };

    error_about(offending, kind, 1, 0, header_len + quoted)
}

/// An echo request becomes a reply; anything else is one already.
fn as_answer(mut packet: Vec<u8>) -> Vec<u8> {
    let (at, protocol) = if packet[0] >> 4 == 6 { (40, packet[6]) } else { (20, packet[9]) };
    let (from, to): (u8, u8) = match protocol {
        1 => (8, 0),
        58 => (128, 129),
        _ => return packet,
    };
    assert_eq!(packet[at], from);
    packet[at] = to;
    let delta = Delta::between_words(u16::from_be_bytes([from, 0]), u16::from_be_bytes([to, 0]));
    let sum = u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
    packet[at + 2..at + 4].copy_from_slice(&adjust(sum, delta).to_be_bytes());

    packet
}

/// Destination and source, for the way back.
fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    let header = Header::parse(packet).unwrap();

    (header.source(), header.destination())
}

/// A UDP datagram in two fragments.
fn fragments(
    from: Side,
    source: IpAddr,
    destination: IpAddr,
    ports: [u16; 2],
    id: u16,
) -> Vec<Vec<u8>> {
    let whole = Packet {
        from,
        is_ipv6: false,
        content: Content::Udp,
        checksum: packets::Checksum::Right,
        part: Part::Whole,
        has_options: false,
        source_host: 0,
        destination_host: 0,
        ports,
        id,
        traffic_class: 0,
        hop_limit: 64,
        payload: (0..112).collect(),
    };
    let bytes = whole.between(source, destination);
    let transport = &bytes[20..];

    [(0, &transport[..64], 0x2000_u16), (64, &transport[64..], 0)]
        .into_iter()
        .map(|(offset, part, more)| {
            let mut fragment = bytes[..20].to_vec();
            let len = u16::try_from(20 + part.len()).unwrap();
            fragment[2..4].copy_from_slice(&len.to_be_bytes());
            fragment[6..8].copy_from_slice(&((offset / 8) | more).to_be_bytes());
            fragment[10..12].fill(0);
            let sum = remap::checksum::complete(remap::checksum::sum(&fragment));
            fragment[10..12].copy_from_slice(&sum.to_be_bytes());
            fragment.extend(part);
            fragment
        })
        .collect()
}

fn node(is_ipv6: bool, number: u32) -> IpAddr {
    let network = if is_ipv6 { "fd00:172:18::/64" } else { "172.18.0.0/16" };

    host(network.parse().unwrap(), number)
}

/// Checks `property` of many random values, and of smaller ones once it fails.
fn for_all<S: Strategy>(values: S, property: impl FnMut(S::Value) -> Result<(), TestCaseError>) {
    let property = RefCell::new(property);
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() };

    TestRunner::new(config).run(&values, |value| (property.borrow_mut())(value)).unwrap();
}
