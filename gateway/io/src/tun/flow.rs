//! The flow of a packet, which decides its queue of the device.
//!
//! A TUN device with several queues puts a packet into the queue by which a packet of the same flow was last written to
//! it; without one, a hash decides (tun.c: `tun_flow_update`, `tun_automq_select_queue`). Its flows are those of the
//! kernel's symmetric hash: addresses, protocol and ports, the same in both directions. A flow that changes its queue may
//! be reordered. So all packets with one hash have one queue here, which depends on a part of what the hash covers.
//!
//! A flow still changes its queue when its first packet from the tunnel is written, and when none was for 3 s, after which
//! the kernel forgets the flow. TCP has nothing in flight then but a SYN, or is idle.

use strait_packet::counters::as_u64;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The offset and the more-fragments bit (RFC 791 section 3.1).
const FRAGMENT_BITS: u16 = 0x3fff;

/// The queue, of `queues`, of the flow of `packet`, which may be cut off after its ports.
#[inline]
pub(super) fn queue_of(packet: &[u8], queues: usize) -> usize {
    let key = match packet.first().map(|first| first >> 4) {
        Some(4) => ipv4(packet),
        Some(6) => ipv6(packet),
        _ => None,
    };
    // Fibonacci hashing: the high bits depend on all bits of the key.
    let hash = key.unwrap_or_default().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;

    usize::try_from(hash.wrapping_mul(as_u64(queues)) >> 32).unwrap_or_default()
}

fn ipv4(packet: &[u8]) -> Option<u64> {
    let header_bytes = usize::from(packet.first()? & 0xf) * 4;
    let is_fragment = word(packet, 6)? & FRAGMENT_BITS != 0;
    let addresses = double_word(packet, 12)? ^ double_word(packet, 16)?;
    let ports = if is_fragment { None } else { Some(header_bytes) };

    Some(key(packet, addresses, *packet.get(9)?, ports))
}

/// Extension headers count as a protocol without ports.
fn ipv6(packet: &[u8]) -> Option<u64> {
    let mut addresses = 0;
    for at in (8..40).step_by(4) {
        addresses ^= double_word(packet, at)?;
    }

    Some(key(packet, addresses, *packet.get(6)?, Some(40)))
}

fn key(packet: &[u8], addresses: u32, protocol: u8, ports_at: Option<usize>) -> u64 {
    let ports = ports_at.filter(|_| matches!(protocol, TCP | UDP)).and_then(|at| {
        let (source, destination) = (word(packet, at)?, word(packet, at + 2)?);

        Some(source ^ destination)
    });

    u64::from(addresses) ^ u64::from(ports.unwrap_or_default()) << 32 ^ u64::from(protocol) << 48
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn double_word(packet: &[u8], at: usize) -> Option<u32> {
    packet.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const QUEUES: usize = 32;

    /// A packet with these last bytes of its addresses, and these ports.
    fn packet(is_ipv6: bool, protocol: u8, from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let mut packet = vec![0; if is_ipv6 { 40 } else { 24 }];
        let [source, destination] = if is_ipv6 { [23, 39] } else { [15, 19] };
        packet[0] = if is_ipv6 { 0x60 } else { 0x46 };
        packet[if is_ipv6 { 6 } else { 9 }] = protocol;
        packet[source] = from.0;
        packet[destination] = to.0;
        packet.extend(from.1.to_be_bytes());
        packet.extend(to.1.to_be_bytes());

        packet
    }

    #[test]
    fn both_directions_have_one_queue() {
        for is_ipv6 in [false, true] {
            for protocol in [1, TCP, UDP, 50, 58, 132] {
                for port in 1..500 {
                    let there = packet(is_ipv6, protocol, (1, port), (2, 443));
                    let back = packet(is_ipv6, protocol, (2, 443), (1, port));
                    assert_eq!(queue_of(&there, QUEUES), queue_of(&back, QUEUES), "{port}");
                    assert_eq!(queue_of(&there, 1), 0);
                }
            }
        }
    }

    #[test]
    fn flows_spread_over_all_queues() {
        for is_ipv6 in [false, true] {
            let by_port = (0..500).map(|port| packet(is_ipv6, TCP, (1, 40_000 + port), (2, 443)));
            let by_address = (0..250).map(|host| packet(is_ipv6, TCP, (host, 40_000), (251, 443)));
            for packets in [by_port.collect::<Vec<_>>(), by_address.collect()] {
                let queues: BTreeSet<_> =
                    packets.iter().map(|packet| queue_of(packet, QUEUES)).collect();
                assert!(queues.len() >= QUEUES - 4, "{queues:?}");
                assert!(queues.iter().all(|queue| *queue < QUEUES));
            }
        }
    }

    #[test]
    fn fragments_have_the_queue_of_their_addresses() {
        let fragments = [(0x2000, 7), (0x00b9, 8), (0x20b9, 9)].map(|(bits, port)| {
            let mut packet = packet(false, UDP, (1, port), (2, port));
            packet[6..8].copy_from_slice(&u16::to_be_bytes(bits));

            queue_of(&packet, QUEUES)
        });

        assert!(fragments.iter().all(|queue| *queue == fragments[0]), "{fragments:?}");
    }

    #[test]
    fn malformed_packets_have_a_queue() {
        let whole = packet(true, TCP, (1, 2), (3, 4));
        for len in 0..whole.len() {
            assert!(queue_of(&whole[..len], QUEUES) < QUEUES);
        }
        assert!(queue_of(&[0; 60], QUEUES) < QUEUES);
    }
}
