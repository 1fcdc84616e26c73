//! A gateway of ours made of lowered objects alone, with the flows that it needs.

use std::collections::HashMap;
use std::net::IpAddr;

use remap::ruleset::{Clamp, Device, Flow, Hook, Packet, Verdict};
use remap::{Destination, PeerId, Source};
use strait_packet::Header;
use strait_packet::ports::Side;
use strait_packet::{mss, rewrite};
use strait_plan::lowering::Lowered;

use super::kernel::{FABRIC_ADDRESS, MTU, Passed, TUNNEL_ADDRESS};
use super::probe::{ICMP, Probe};
use crate::harness::compare::one_hop_later;

/// The only peer in the table.
const REMOTE: PeerId = PeerId(0);

/// Bytes of the headers of IPv4 and TCP.
const HEADERS: u16 = 40;

/// Source, destination, protocol and ports.
type Key = (IpAddr, IpAddr, u8, [u16; 2]);

pub(crate) struct Gateway<'a> {
    lowered: &'a Lowered,
    /// The mark of each flow, by the packets of both directions.
    marks: HashMap<Key, u32>,
}

impl<'a> Gateway<'a> {
    pub(crate) fn new(lowered: &'a Lowered) -> Self {
        Self { lowered, marks: HashMap::new() }
    }

    /// What becomes of a packet; `None` if there is no route for it, of which a router may tell the source.
    pub(crate) fn pass(&mut self, probe: &Probe) -> Option<Passed> {
        let mut bytes = probe.to_bytes();
        let mut header = Header::parse(&bytes).unwrap();
        let mut packet = facts(probe, &header, &bytes);
        let key = key(probe, &packet);
        let mark = self.marks.get(&key).copied();
        packet.flow = Some(Flow { is_new: mark.is_none(), mark: mark.unwrap_or(0) });

        match self.forward(&mut packet) {
            Verdict::Accept => {}
            Verdict::Drop => return Some(Passed::default()),
            Verdict::Reject => return Some(Passed { sent: None, is_rejected: true }),
        }
        let output = packet.output?;

        if let Some(flow) = packet.flow {
            self.marks.insert(key, flow.mark);
            let (source, destination, protocol, [one, other]) = self::key(probe, &packet);
            let ports = if protocol == ICMP { [one, other] } else { [other, one] };
            self.marks.insert((destination, source, protocol, ports), flow.mark);
        }
        let complete = rewrite::Checksum::Complete;
        for (side, to) in [(Side::Destination, packet.destination), (Side::Source, packet.source)] {
            rewrite::address(&mut bytes, &mut header, side, to, complete).unwrap();
        }
        let route = packet.clamp.to_route.then_some(MTU);
        for mtu in [route, packet.clamp.to.map(|mss| mss + HEADERS)].into_iter().flatten() {
            mss::clamp(&mut bytes, &header, mtu, complete).unwrap();
        }

        Some(Passed { sent: Some((output, one_hop_later(bytes))), is_rejected: false })
    }

    /// All hooks, with the lookups between them. A packet without a route has no output then.
    fn forward(&self, packet: &mut Packet) -> Verdict {
        let Lowered { table, ruleset, .. } = self.lowered;
        let destination = match packet.input {
            Device::Node(_) => table.outbound(packet.destination).map(|found| found.destination),
            Device::Tunnel => match table.destination(packet.destination) {
                Destination::Mapped(to) | Destination::MappedReplies(to) => Some(to),
                Destination::Known | Destination::UnmappedReplies | Destination::Shared => None,
            },
        };
        if let verdict @ (Verdict::Drop | Verdict::Reject) =
            ruleset.pass(Hook::Prerouting, packet, destination)
        {
            return verdict;
        }

        self.route(packet);
        if packet.output.is_none() {
            return Verdict::Accept;
        }
        if let verdict @ (Verdict::Drop | Verdict::Reject) =
            ruleset.pass(Hook::Forward, packet, None)
        {
            return verdict;
        }

        let source = match packet.input {
            Device::Tunnel => table.inbound(REMOTE, packet.source),
            Device::Node(_) => match table.source(packet.source) {
                Source::Mapped(to) => Some(to),
                Source::Known | Source::MappedReplies(_) | Source::Shared => None,
            },
        };
        ruleset.pass(Hook::Postrouting, packet, source)
    }

    fn route(&self, packet: &mut Packet) {
        let Lowered { remotes, node_routes, clamp, .. } = self.lowered;
        match packet.input {
            Device::Tunnel => {
                if let Some(flow) = packet.flow
                    && self.lowered.is_unknown_source(packet.destination)
                {
                    packet.mark = flow.mark;
                }
                let node = node_routes.node(packet.destination, packet.mark);
                packet.output = node.map(Device::Node);
                packet.output_address = Some(FABRIC_ADDRESS.parse().unwrap());
            }
            Device::Node(node) => {
                let is_remote = remotes.iter().any(|remote| remote.contains(packet.destination));
                packet.output = is_remote.then_some(Device::Tunnel);
                packet.output_address = Some(TUNNEL_ADDRESS.parse().unwrap());
                packet.clamp = packet.clamp.and(*clamp);
                if let Some(mark) = self.lowered.mark(packet.source, node)
                    && let Some(flow) = &mut packet.flow
                {
                    flow.mark = mark;
                }
            }
        }
    }
}

fn facts(probe: &Probe, header: &Header, bytes: &[u8]) -> Packet {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let transport = header.transport_offset();

    Packet {
        source: header.source(),
        destination: header.destination(),
        protocol: header.protocol(),
        ports: Some([word(transport), word(transport + 2)]),
        input: probe.input,
        output: None,
        output_address: None,
        mark: 0,
        flow: None,
        is_untracked: false,
        shares_source: false,
        clamp: Clamp::default(),
    }
}

fn key(probe: &Probe, packet: &Packet) -> Key {
    (packet.source, packet.destination, packet.protocol, probe.ports)
}
