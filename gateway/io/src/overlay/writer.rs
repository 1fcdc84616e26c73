//! Sends packets to nodes: consecutive ones to one node as the segments of one send.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use super::nodes::{KnownNode, destination};
use crate::gso_fallback::{GsoRefusals, SendMode};
use crate::sys;
use strait_engine::Accounts;
use strait_packet::Header;
use strait_packet::buffer::{MAX_SEGMENTS, MAX_TRANSMIT_BYTES};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::overlay::ethernet::{Content, Ethernet, Mac};
use strait_packet::overlay::{Encapsulation, PREFIX_LEN, SharedSource};

/// The length of an outer header in bytes, at most: IPv6 and UDP.
const OUTER_LEN: usize = 48;

/// The longest packet that is sent. A datagram holds no more.
const MAX_PACKET_BYTES: usize = MAX_TRANSMIT_BYTES - PREFIX_LEN;

/// What all packets of one send have in common.
#[derive(Clone, Copy)]
struct Flavor<'a> {
    node: &'a KnownNode,
    is_ipv6: bool,
    ecn: Ecn,
}

/// Packets for one send.
pub(super) struct Run<'a> {
    flavor: Option<Flavor<'a>>,
    packets: [&'a [u8]; MAX_SEGMENTS],
    count: usize,
    /// Bytes of the packets.
    packet_bytes: usize,
    is_closed: bool,
}

impl<'a> Run<'a> {
    pub(super) const fn new() -> Self {
        const NONE: &[u8] = &[];

        Self {
            flavor: None,
            packets: [NONE; MAX_SEGMENTS],
            count: 0,
            packet_bytes: 0,
            is_closed: false,
        }
    }

    /// Whether `packet` can be a further segment of the send: the last one may be shorter than the others.
    #[inline]
    fn takes(&self, node: &'a KnownNode, packet: &[u8]) -> bool {
        let Some(flavor) = &self.flavor else { return true };
        let datagrams_len = self.packet_bytes + self.count * PREFIX_LEN;

        std::ptr::eq(flavor.node, node)
            && !self.is_closed
            && self.count < MAX_SEGMENTS
            && packet.len() <= self.segment_len()
            && datagrams_len + PREFIX_LEN + packet.len() <= MAX_TRANSMIT_BYTES - OUTER_LEN
            && flavor.is_ipv6 == is_ipv6(packet)
            && flavor.ecn == ecn(packet)
    }

    /// Appends a packet that it [takes](Self::takes).
    #[inline]
    pub(super) fn push(&mut self, node: &'a KnownNode, packet: &'a [u8]) {
        if self.flavor.is_none() {
            self.flavor = Some(Flavor { node, is_ipv6: is_ipv6(packet), ecn: ecn(packet) });
        }
        self.is_closed = self.count > 0 && packet.len() < self.segment_len();
        if let Some(slot) = self.packets.get_mut(self.count) {
            *slot = packet;
            self.count += 1;
            self.packet_bytes += packet.len();
        }
    }

    /// The length of each packet but the last.
    fn segment_len(&self) -> usize {
        let [first, ..] = &self.packets;

        first.len()
    }

    fn packets(&self) -> &[&'a [u8]] {
        self.packets.get(..self.count).unwrap_or_default()
    }
}

/// Passes `packets`, each with its node, to `send` in as few runs as their order allows.
pub(super) fn for_each_run<'a>(
    packets: impl Iterator<Item = (&'a KnownNode, &'a [u8])>,
    mut send: impl FnMut(&Run<'a>),
) {
    let mut run = Run::new();
    for (node, packet) in packets {
        if !run.takes(node, packet) {
            send(&run);
            run = Run::new();
        }
        run.push(node, packet);
    }
    if run.count > 0 {
        send(&run);
    }
}

/// What became of the packets of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    packets: u64,
    bytes: u64,
    lost_packets: u64,
    lost_bytes: u64,
}

impl Sent {
    /// Whether no packet was lost.
    pub(super) const fn is_complete(self) -> bool {
        self.lost_packets == 0
    }

    /// Counts the packets.
    pub(super) fn count(self, accounts: &Accounts) {
        if self.packets > 0 {
            accounts.handle_frame(self.packets, self.bytes, true);
        }
        if self.lost_packets > 0 {
            accounts.handle_frame(self.lost_packets, self.lost_bytes, false);
        }
    }

    fn add(&mut self, packets: &[&[u8]], is_sent: bool) {
        let bytes = as_u64(packets.iter().map(|packet| packet.len()).sum());
        let (count, total) = if is_sent {
            (&mut self.packets, &mut self.bytes)
        } else {
            (&mut self.lost_packets, &mut self.lost_bytes)
        };
        *count += as_u64(packets.len());
        *total += bytes;
    }
}

/// Sends with the settings of an overlay.
pub(super) struct Writer<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) encapsulation: Encapsulation,
    /// The station of the gateway.
    pub(super) mac: Mac,
    /// The nodes to which the kernel refuses to segment; `None` if it segments for none.
    pub(super) segments: Option<&'a GsoRefusals>,
}

/// Packets up to this length, in bytes, are copied to a small buffer.
const USUAL_PACKET_BYTES: usize = 2048;

impl Writer<'_> {
    /// Sends `packet` alone if it is for the address that `node` has in place of a shared source, and to that one instead;
    /// `None` for any other packet.
    pub(super) fn send_restored(&self, node: &KnownNode, packet: &[u8]) -> Option<Sent> {
        let source = node.shared_source()?;
        if destination(packet) != Some(source.own) {
            return None;
        }
        let is_sent = if packet.len() <= USUAL_PACKET_BYTES {
            self.send_copy::<USUAL_PACKET_BYTES>(node, source, packet)
        } else {
            self.send_copy::<MAX_TRANSMIT_BYTES>(node, source, packet)
        };
        let mut sent = Sent::default();
        sent.add(&[packet], is_sent);

        Some(sent)
    }

    /// Sends a copy of `packet`, of at most `N` bytes, to the shared source.
    fn send_copy<const N: usize>(
        &self,
        node: &KnownNode,
        source: &SharedSource,
        packet: &[u8],
    ) -> bool {
        let mut buffer = [0; N];
        let Some(copy) = buffer.get_mut(..packet.len()) else { return false };
        copy.copy_from_slice(packet);
        let restored = Header::parse(copy).map(|mut header| source.restore(copy, &mut header));
        let mut run = Run::new();
        run.push(node, copy);

        matches!(restored, Ok(Ok(()))) && self.send_run(&run).is_complete()
    }

    /// Sends the packets of `run`, blocking while the send buffer is full.
    pub(super) fn send_run(&self, run: &Run<'_>) -> Sent {
        let mut sent = Sent::default();
        let (Some(flavor), packets) = (run.flavor, run.packets()) else { return sent };
        let Flavor { node, is_ipv6, ecn } = flavor;
        let content = if is_ipv6 { Content::Ipv6 } else { Content::Ipv4 };
        let ethernet = Ethernet { destination: node.mac(), source: self.mac, content };
        let prefix = self.encapsulation.prefix(node.vni(), &ethernet);

        if packets.len() > 1
            && let Some(result) = self.send_segments(node, &prefix, packets, ecn)
        {
            sent.add(packets, result.is_ok());
        } else {
            for packet in packets {
                let is_sent = packet.len() <= MAX_PACKET_BYTES && {
                    let parts = [IoSlice::new(&prefix), IoSlice::new(packet)];
                    self.send(node, &parts, None, ecn.bits()).is_ok()
                };
                sent.add(&[packet], is_sent);
            }
        }
        node.count_sent(sent.bytes);

        sent
    }

    /// Sends `packets` as one send. `None` if the kernel does not segment for this node.
    fn send_segments(
        &self,
        node: &KnownNode,
        prefix: &[u8; PREFIX_LEN],
        packets: &[&[u8]],
        ecn: Ecn,
    ) -> Option<io::Result<()>> {
        let refusals = self.segments?;
        let mode = refusals.mode(node.remote());
        if mode == SendMode::OneByOne {
            return None;
        }
        let segment_bytes = u16::try_from(PREFIX_LEN + packets.first()?.len()).ok()?;
        let mut parts = [IoSlice::new(&[]); 2 * MAX_SEGMENTS];
        for ([front, rest], packet) in parts.as_chunks_mut().0.iter_mut().zip(packets) {
            (*front, *rest) = (IoSlice::new(prefix), IoSlice::new(packet));
        }

        let parts = parts.get(..2 * packets.len())?;
        match self.send(node, parts, Some(segment_bytes), ecn.bits()) {
            Err(error) if refusals.handle_error(&error, node.remote(), mode) => None,
            Err(error) => Some(Err(error)),
            Ok(()) => {
                if mode == SendMode::Trial {
                    refusals.handle_accepted(node.remote());
                }
                Some(Ok(()))
            }
        }
    }

    /// Sends one datagram, or datagrams of `segment_bytes` each.
    pub(super) fn send(
        &self,
        node: &KnownNode,
        parts: &[IoSlice<'_>],
        segment_bytes: Option<u16>,
        traffic_class: u8,
    ) -> io::Result<()> {
        let send = sys::Send {
            bytes: &[],
            destination: node.destination(),
            source: None,
            segment_bytes,
            traffic_class,
            hop_limit: None,
            is_ipv6: node.remote().is_ipv6(),
        };

        sys::send_parts(self.socket, parts, send)
    }
}

fn is_ipv6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
}

/// The outer mark is that of the packet (RFC 6040 section 4.1).
fn ecn(packet: &[u8]) -> Ecn {
    let [first, second] = packet.first_chunk().copied().unwrap_or_default();
    let class = if first >> 4 == 6 { second >> 4 } else { second };

    Ecn::from_traffic_class(class)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use strait_packet::overlay::Vni;

    use super::super::Node;
    use super::super::nodes::Nodes;
    use super::*;

    proptest! {
        #[test]
        fn runs_keep_order_and_the_kernels_limits(
            kinds in vec((0_u8..2, any::<bool>(), prop_oneof![Just(0_u8), 0_u8..4], 0_usize..3), 0..300),
            lengths in [40_usize..100, 1_000..1_400, 20_000..65_000],
        ) {
            let nodes = nodes();
            let known = [1, 2].map(|last| nodes.of_source([172, 18, 3, last].into()).unwrap());
            let packets: Vec<(usize, Vec<u8>)> = kinds
                .iter()
                .map(|(node, is_ipv6, ecn, length)| {
                    let mut packet = vec![0; lengths[*length]];
                    packet[0] = if *is_ipv6 { 0x60 } else { 0x45 };
                    packet[1] = if *is_ipv6 { ecn << 4 } else { *ecn };
                    (usize::from(*node), packet)
                })
                .collect();

            let mut sent = Vec::new();
            let input = packets.iter().map(|(node, packet)| (known[*node], &packet[..]));
            for_each_run(input, |run| {
                let flavor = run.flavor.unwrap();
                let packets = run.packets();
                let (last, others) = packets.split_last().unwrap();
                let datagrams: usize = packets.iter().map(|packet| PREFIX_LEN + packet.len()).sum();

                assert!(packets.len() <= MAX_SEGMENTS);
                assert!(others.iter().all(|packet| packet.len() == packets[0].len()));
                assert!(last.len() <= packets[0].len());
                assert!(packets.len() == 1 || datagrams + OUTER_LEN <= MAX_TRANSMIT_BYTES);
                assert!(packets.iter().all(|packet| is_ipv6(packet) == flavor.is_ipv6));
                assert!(packets.iter().all(|packet| ecn(packet) == flavor.ecn));
                sent.extend(packets.iter().map(|packet| (flavor.node.remote(), packet.to_vec())));
            });

            let expected: Vec<_> =
                packets.into_iter().map(|(node, packet)| (known[node].remote(), packet)).collect();
            prop_assert_eq!(sent, expected);
        }
    }

    #[test]
    fn equal_packets_to_one_node_are_one_send() {
        let nodes = nodes();
        let node = nodes.of_source([172, 18, 3, 1].into()).unwrap();
        let mut packets = vec![[0x45; 1_400].to_vec(); 45];
        packets.push(vec![0x45; 52]);

        let mut runs = 0;
        for_each_run(packets.iter().map(|packet| (node, &packet[..])), |_| runs += 1);

        assert_eq!(runs, 1);
    }

    fn nodes() -> Nodes {
        let node = |last| Node::new([172, 18, 3, last].into(), Vni::new(83).unwrap());

        Nodes::new(&[node(1), node(2)], 8483, true, None)
    }
}
