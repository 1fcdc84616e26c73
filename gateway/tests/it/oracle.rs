//! nftables as the oracle for remapping: the same packets through the kernel and through our code.
//!
//! Packets are compared byte by byte, except that 0x0000 and 0xffff count as one value where they are
//! the same sum: in every checksum but that of UDP. Packet by packet the kernel rewrites without
//! state, so that wrong checksums and fragments take part; ICMP errors it translates only with
//! NETMAP, which tracks flows. Needs root, `/dev/net/tun`, `nft` and `ip`.

use std::cell::RefCell;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use remap::{Cluster, PeerId, Prefix, Rule, Table};
use strait_lab::Layout;
use strait_packet::Header;
use strait_packet::icmp;
use strait_packet::ports;
use strait_packet::rewrite::{self, Checksum};

use crate::harness::compare::{one_hop_later, with_one_zero};
use crate::harness::kernel::{Kernel, Method, Side, remaps};
use crate::harness::packets;
use crate::harness::packets::{Content, Packet, Part, any_packet, error_about};
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::{Need, require};

const NEEDS: [Need; 4] = [Root, Tun, Tool("nft"), Tool("ip")];

/// Random packets for each gateway of each layout.
const CASES: u32 = 3000;

/// The only peer in the table.
const REMOTE: PeerId = PeerId(0);

#[test]
fn packets_match_the_kernel_with_equal_cidrs() {
    assert_agrees_on_packets(&Layout::equal());
}

#[test]
fn packets_match_the_kernel_with_different_cidrs() {
    assert_agrees_on_packets(&Layout::different());
}

#[test]
fn packets_match_the_kernel_with_overlapping_cidrs() {
    assert_agrees_on_packets(&Layout::partly_overlapping());
}

#[test]
fn icmp_errors_match_the_kernel_with_equal_cidrs() {
    assert_agrees_on_errors(&Layout::equal());
}

#[test]
fn icmp_errors_match_the_kernel_with_different_cidrs() {
    assert_agrees_on_errors(&Layout::different());
}

#[test]
fn icmp_errors_match_the_kernel_with_overlapping_cidrs() {
    assert_agrees_on_errors(&Layout::partly_overlapping());
}

/// Random checksums hardly ever become one of the two zeros.
#[test]
fn checksums_match_those_of_the_kernel() {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };
    let Layout { rome, milan, .. } = Layout::equal();
    let remaps = remaps(&rome.realms, &milan.realms);
    let kernel = Kernel::new(Method::Stateless, &remaps);
    let table = table(&remaps);

    for (content, is_ipv6) in [(Content::Udp, false), (Content::Tcp, true)] {
        for checksum in 0..=u16::MAX {
            let checksum = packets::Checksum::Arbitrary(checksum);
            let packet = Packet { content, is_ipv6, checksum, ..plain_packet() };
            let bytes = packet.to_bytes(&rome.realms, &milan.realms);
            let theirs = kernel.pass(packet.from, &bytes);
            let ours = translate(&table, packet.from, bytes);

            assert_same(theirs, ours).unwrap();
        }
    }
}

fn assert_agrees_on_packets(layout: &Layout) {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };

    for (own, remote) in [(&layout.rome, &layout.milan), (&layout.milan, &layout.rome)] {
        let remaps = remaps(&own.realms, &remote.realms);
        let kernel = Kernel::new(Method::Stateless, &remaps);
        let table = table(&remaps);

        for_all(any_packet(), |packet| {
            let bytes = packet.to_bytes(&own.realms, &remote.realms);
            let theirs = kernel.pass(packet.from, &bytes);
            let ours = translate(&table, packet.from, bytes);

            assert_same(theirs, ours)
        });
    }
}

fn assert_agrees_on_errors(layout: &Layout) {
    let Some(_turn) = require(&NEEDS) else {
        return;
    };

    for (own, remote) in [(&layout.rome, &layout.milan), (&layout.milan, &layout.rome)] {
        let remaps = remaps(&own.realms, &remote.realms);
        let kernel = Kernel::new(Method::Netmap, &remaps);
        let table = table(&remaps);
        // Every case is a flow of its own, which connection tracking has not seen before.
        let mut port = 1024;

        for_all((any_flow_start(), any_error()), |(mut packet, error)| {
            port += 1;
            packet.ports[0] = port;
            let bytes = packet.to_bytes(&own.realms, &remote.realms);
            let arrived = kernel.pass(packet.from, &bytes);
            assert_same(arrived.clone(), translate(&table, packet.from, bytes))?;

            let offending = arrived.unwrap();
            let error = error.about(&offending);
            let theirs = kernel.pass(packet.from.other(), &error);
            let ours = translate(&table, packet.from.other(), error);

            assert_same(theirs, ours)
        });
    }
}

/// What a gateway of ours makes of a packet, with the router that the kernel is on top.
fn translate(table: &Table, from: Side, mut packet: Vec<u8>) -> Vec<u8> {
    let mut header = Header::parse(&packet).unwrap();
    let embedded = icmp::embedded(&packet, &header);
    let (side, to, embedded_side, embedded_to) = match from {
        Side::Cluster => (
            ports::Side::Destination,
            table.outbound(header.destination()).map(|route| route.destination),
            ports::Side::Source,
            embedded.and_then(|quoted| table.outbound(quoted.source())).map(|r| r.destination),
        ),
        Side::Tunnel => (
            ports::Side::Source,
            table.inbound(REMOTE, header.source()),
            ports::Side::Destination,
            embedded.and_then(|quoted| table.inbound(REMOTE, quoted.destination())),
        ),
    };

    if let (Some(mut embedded), Some(to)) = (embedded, embedded_to) {
        rewrite::embedded_address(&mut packet, &header, &mut embedded, embedded_side, to).unwrap();
    }
    rewrite::address(&mut packet, &mut header, side, to.unwrap(), Checksum::Complete).unwrap();

    one_hop_later(packet)
}

fn assert_same(theirs: Option<Vec<u8>>, ours: Vec<u8>) -> Result<(), TestCaseError> {
    prop_assert_eq!(theirs.map(with_one_zero), Some(with_one_zero(ours)));

    Ok(())
}

fn plain_packet() -> Packet {
    Packet {
        from: Side::Cluster,
        is_ipv6: false,
        content: Content::Udp,
        checksum: packets::Checksum::Right,
        part: Part::Whole,
        has_options: false,
        source_host: 0x0105,
        destination_host: 0x0207,
        ports: [40_000, 53],
        id: 7,
        traffic_class: 0,
        hop_limit: 64,
        payload: b"Where does the strait end?".to_vec(),
    }
}

/// A packet that connection tracking takes for the first of a flow, and that can cause an error.
fn any_flow_start() -> impl Strategy<Value = Packet> {
    let content = prop::sample::select(vec![Content::Tcp, Content::Udp, Content::Echo]);
    let checksum = prop_oneof![Just(packets::Checksum::Right), Just(packets::Checksum::Zero)];

    (any_packet(), content, checksum).prop_map(|(packet, content, checksum)| Packet {
        content,
        checksum: match (content, packet.is_ipv6) {
            (Content::Udp, false) => checksum,
            _ => packets::Checksum::Right,
        },
        part: Part::Whole,
        has_options: false,
        ..packet
    })
}

/// An ICMP error, described.
#[derive(Clone, Copy, Debug)]
struct Error {
    kind: ErrorKind,
    /// Bytes behind the quoted IP header.
    quoted: usize,
}

#[derive(Clone, Copy, Debug)]
enum ErrorKind {
    PortUnreachable,
    TooBig,
    TimeExceeded,
}

fn any_error() -> impl Strategy<Value = Error> {
    let kind = prop::sample::select(vec![
        ErrorKind::PortUnreachable,
        ErrorKind::TooBig,
        ErrorKind::TimeExceeded,
    ]);

    // Of a TCP header the kernel translates the checksum only if all 20 bytes are quoted; ours does so
    // from the 18th on, where the checksum is complete (RFC 5508 section 4.2: as far as it is there).
    let quoted = prop_oneof![8_usize..18, 20_usize..300];

    (kind, quoted).prop_map(|(kind, quoted)| Error { kind, quoted })
}

impl Error {
    /// From the receiver of `offending`.
    fn about(self, offending: &[u8]) -> Vec<u8> {
        let is_ipv6 = offending[0] >> 4 == 6;
        let (kind, code, rest) = match (self.kind, is_ipv6) {
            (ErrorKind::PortUnreachable, false) => (3, 3, 0),
            (ErrorKind::TooBig, false) => (3, 4, 1300),
            (ErrorKind::TimeExceeded, false) => (11, 0, 0),
            (ErrorKind::PortUnreachable, true) => (1, 4, 0),
            (ErrorKind::TooBig, true) => (2, 0, 1300),
            (ErrorKind::TimeExceeded, true) => (3, 0, 0),
        };
        let header_len = if is_ipv6 { 40 } else { 20 };

        error_about(offending, kind, code, rest, header_len + self.quoted)
    }
}

fn table(remaps: &[(IpNet, IpNet)]) -> Table {
    let prefix = |net: IpNet| Prefix::new(net.network(), net.prefix_len()).unwrap();
    let rules = remaps
        .iter()
        .map(|(remote, local)| (REMOTE, Rule::new(prefix(*remote), prefix(*local)).unwrap()));

    let (table, conflicts) = Table::build(1, &Cluster::default(), rules);
    assert!(conflicts.is_empty());

    table
}

/// Checks `property` of many random values, and of smaller ones once it fails.
fn for_all<S: Strategy>(values: S, property: impl FnMut(S::Value) -> Result<(), TestCaseError>) {
    let property = RefCell::new(property);
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() };

    TestRunner::new(config).run(&values, |value| (property.borrow_mut())(value)).unwrap();
}
