//! The segment sizes that receivers behind the tunnel accept.
//!
//! A pod on the host of the gateway sends TCP as frames of up to 64 KiB, and an overlay does not say into which segments they
//! are to be cut. So the gateway remembers what the sender has been told: the maximum segment size in the receiver's SYN
//! (RFC 9293 section 3.7.1), for each flow, and the MTU in ICMP errors (RFC 1191, RFC 8201), for each destination.
//!
//! Both are in one table of a fixed size, in which a newer entry replaces an older one with the same hash. Without an entry,
//! segments are as long as the tunnel allows, which is what most receivers announce.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use strait_packet::icmp::path_mtu;
use strait_packet::{Header, Transport, mss};

/// Entries. More flows than a node usually has at a time; 64 KiB.
const SLOTS: usize = 8192;

/// The low bits of an entry are the size, the others are those of the hash.
const SIZE_BITS: u64 = 0xffff;

/// The least MTU in bytes that is believed, as in Linux: anyone can send an ICMP error.
const MIN_MTU_V4: u16 = 552;

/// The same for IPv6 (RFC 8200 section 5).
const MIN_MTU_V6: u16 = 1280;

const TCP: u8 = 6;
const SYN: u8 = 2;

/// The table. Readers and writers take no lock.
#[derive(Debug)]
pub(super) struct SegmentSizes {
    slots: Box<[AtomicU64]>,
    /// Unpredictable, so that no sender can choose flows that replace each other.
    hasher: RandomState,
}

/// The packets that a size applies to.
#[derive(Hash)]
enum Key {
    /// A flow, as its receiver behind the tunnel sees it: its address and port, and those of the pod.
    Flow(IpAddr, [u8; 2], IpAddr, [u8; 2]),
    /// All flows to a destination.
    Destination(IpAddr),
}

impl SegmentSizes {
    pub(super) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();

        Self { slots, hasher: RandomState::new() }
    }

    /// Learns from a packet to a pod, if it announces a size.
    #[inline]
    pub(super) fn learn(&self, packet: &[u8]) {
        if may_announce(packet) {
            self.learn_announced(packet);
        }
    }

    #[cold]
    fn learn_announced(&self, packet: &[u8]) {
        let Ok(header) = Header::parse(packet) else { return };
        if let Some(mss) = mss::announced(packet, &header)
            && let Some([source, destination]) = ports(packet, &header)
        {
            let key = Key::Flow(header.source(), source, header.destination(), destination);
            self.set(&key, mss);
        }
        if let Some((receiver, mtu)) = path_mtu(packet, &header) {
            self.set(&Key::Destination(receiver), mtu);
        }
    }

    /// The maximum segment size of the receiver of `packet`, which is from a pod.
    #[inline]
    pub(super) fn mss(&self, packet: &[u8], header: &Header) -> Option<u16> {
        if header.transport() != Transport::Tcp {
            return None;
        }
        let [source, destination] = ports(packet, header)?;

        self.get(&Key::Flow(header.destination(), destination, header.source(), source))
    }

    /// The MTU of the path to `destination`, in bytes.
    #[inline]
    pub(super) fn path_mtu(&self, destination: IpAddr) -> Option<u16> {
        let least = if destination.is_ipv6() { MIN_MTU_V6 } else { MIN_MTU_V4 };

        self.get(&Key::Destination(destination)).map(|mtu| mtu.max(least))
    }

    fn set(&self, key: &Key, size: u16) {
        let (slot, tag) = self.slot(key);
        if let Some(slot) = slot {
            slot.store(tag | u64::from(size), Ordering::Relaxed);
        }
    }

    fn get(&self, key: &Key) -> Option<u16> {
        let (slot, tag) = self.slot(key);
        let entry = slot?.load(Ordering::Relaxed);
        let size = u16::try_from(entry & SIZE_BITS).ok()?;

        (entry & !SIZE_BITS == tag && size > 0).then_some(size)
    }

    fn slot(&self, key: &Key) -> (Option<&AtomicU64>, u64) {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % (1 << 13)).unwrap_or_default();

        (self.slots.get(index), hash & !SIZE_BITS)
    }
}

/// Whether `packet` is a SYN or an ICMP message, as far as a glance shows.
#[inline]
fn may_announce(packet: &[u8]) -> bool {
    let (protocol, transport_at) = match packet.first() {
        Some(first) if first >> 4 == 4 => (packet.get(9), usize::from(first & 0xf) * 4),
        Some(_) => (packet.get(6), 40),
        None => return false,
    };
    match protocol {
        Some(&TCP) => packet.get(transport_at + 13).is_some_and(|flags| flags & SYN != 0),
        Some(&(1 | 58)) => true,
        _ => false,
    }
}

/// Source and destination port.
fn ports(packet: &[u8], header: &Header) -> Option<[[u8; 2]; 2]> {
    let &[a, b, c, d] = packet.get(header.transport_offset()..)?.first_chunk::<4>()?;

    Some([[a, b], [c, d]])
}

#[cfg(test)]
mod tests {
    use strait_packet::fixtures::{Packet, TCP, tcp};
    use strait_packet::icmp_error;

    use super::*;

    const ACK: u8 = 0x10;

    #[test]
    fn a_flow_has_the_mss_of_its_receiver() {
        for [pod, remote] in [["10.244.1.5", "10.71.2.7"], ["fd00::5", "fd00:71::7"]] {
            let sizes = SegmentSizes::new();
            let option = [2, 4, 0x02, 0x18];
            let learned = segment([remote, pod], [80, 40_000], SYN | ACK, &option);
            sizes.learn(&learned);

            let of = |ports| {
                let packet = segment([pod, remote], ports, ACK, &[]);
                sizes.mss(&packet, &Header::parse(&packet).unwrap())
            };

            assert_eq!(of([40_000, 80]), Some(536), "{remote}");
            assert_eq!([of([40_001, 80]), of([80, 40_000])], [None; 2], "{remote}");
        }
    }

    #[test]
    fn segments_without_syn_teach_nothing() {
        let sizes = SegmentSizes::new();
        sizes.learn(&segment(["10.71.2.7", "10.244.1.5"], [80, 40_000], ACK, &[2, 4, 2, 0x18]));

        assert!(sizes.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_destination_has_the_mtu_of_its_path() {
        for (pod, remote, told, believed) in [
            ("10.244.1.5", "10.71.2.7", 1300, 1300),
            ("10.244.1.5", "10.71.2.7", 68, MIN_MTU_V4),
            ("fd00::5", "fd00:71::7", 1300, 1300),
            ("fd00::5", "fd00:71::7", 68, MIN_MTU_V6),
        ] {
            let sizes = SegmentSizes::new();
            let packet = segment([pod, remote], [40_000, 80], ACK, &[]);
            let mut buffer = [0; icmp_error::MAX_ERROR_BYTES];
            let cause = icmp_error::Cause::TooBig(told);
            let error = icmp_error::write(&packet, cause, &mut buffer).unwrap();

            sizes.learn(error);

            assert_eq!(sizes.path_mtu(remote.parse().unwrap()), Some(believed), "{remote}");
            assert_eq!(sizes.path_mtu(pod.parse().unwrap()), None, "{remote}");
        }
    }

    fn segment(addresses: [&str; 2], ports: [u16; 2], flags: u8, options: &[u8]) -> Vec<u8> {
        let [source, destination] = addresses.map(|address| address.parse().unwrap());

        Packet::new(source, destination, TCP, tcp(ports, 7, flags, options, &[])).build()
    }
}
