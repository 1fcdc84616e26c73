//! The control messages of sendmsg(2) and recvmmsg(2), as bytes.
#![deny(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use super::{Message, Send};
use strait_packet::path::Local;

/// Space for the control messages of one message, aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 144;

pub(super) const EMPTY_CONTROL: Control = Control([0; CONTROL_BYTES]);

/// Writes the control messages that `send` needs and returns their length.
pub(super) fn encode_control(control: &mut Control, send: Send<'_>) -> usize {
    let mut len = 0;
    if let Some(segment_bytes) = send.segment_bytes {
        len += put(
            &mut control.0,
            len,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &segment_bytes.to_ne_bytes(),
        );
    }
    if send.traffic_class != 0 {
        let (level, name) = if send.is_ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        } else {
            (libc::IPPROTO_IP, libc::IP_TOS)
        };
        let value = libc::c_int::from(send.traffic_class).to_ne_bytes();
        len += put(&mut control.0, len, level, name, &value);
    }
    if let Some(hop_limit) = send.hop_limit {
        let (level, name) = if send.is_ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        } else {
            (libc::IPPROTO_IP, libc::IP_TTL)
        };
        let value = libc::c_int::from(hop_limit).to_ne_bytes();
        len += put(&mut control.0, len, level, name, &value);
    }
    len += match send.source.map(|source| (source.address(), source.interface())) {
        // For a dual-stack socket too: the kernel accepts this message for a mapped destination.
        Some((IpAddr::V4(address), _)) => {
            let mut info = [0; size_of::<libc::in_pktinfo>()];
            // Interface, the source address, and an address that is used only when receiving.
            if let Some(field) = info.get_mut(4..).and_then(|rest| rest.first_chunk_mut()) {
                *field = address.octets();
            }
            put(&mut control.0, len, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
        }
        Some((IpAddr::V6(address), interface)) => {
            let mut info = [0; size_of::<libc::in6_pktinfo>()];
            let fields = address.octets().into_iter().chain(interface.to_ne_bytes());
            for (to, from) in info.iter_mut().zip(fields) {
                *to = from;
            }
            put(&mut control.0, len, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
        }
        None => 0,
    };

    len
}

/// Appends one control message at `offset` and returns the space it takes.
///
/// The layout is that of `struct cmsghdr` on Linux: length as a word, level, type, then the data,
/// padded to a word.
fn put(
    control: &mut [u8],
    offset: usize,
    level: libc::c_int,
    name: libc::c_int,
    data: &[u8],
) -> usize {
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    let word = size_of::<usize>();
    let len = HEADER_BYTES + data.len();
    let space = len.next_multiple_of(word);

    let fields = (len.to_ne_bytes(), level.to_ne_bytes(), name.to_ne_bytes());
    let bytes = fields.0.iter().chain(&fields.1).chain(&fields.2).chain(data);
    let room = control.get_mut(offset..offset + space).unwrap_or_default();
    for (to, from) in room.iter_mut().zip(bytes) {
        *to = *from;
    }

    space
}

/// Reads the control messages that the kernel wrote: segment size, traffic class, destination and time of arrival.
///
/// A truncated or contradictory message ends the walk: a wrong length must not loop.
pub(super) fn decode_control(mut control: &[u8], message: &mut Message) {
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    const WORD: usize = size_of::<usize>();

    while let Some((header, _)) = control.split_first_chunk::<HEADER_BYTES>() {
        let Some((len, rest)) = header.split_first_chunk::<WORD>() else { return };
        let Some((level, rest)) = rest.split_first_chunk::<4>() else { return };
        let Some((name, _)) = rest.split_first_chunk::<4>() else { return };
        let len = usize::from_ne_bytes(*len);
        let Some(data) = control.get(HEADER_BYTES..len) else { return };

        match (i32::from_ne_bytes(*level), i32::from_ne_bytes(*name)) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Some(size) = data.first_chunk::<4>() {
                    let size = i32::from_ne_bytes(*size);
                    message.stride =
                        usize::try_from(size).unwrap_or(0).clamp(1, message.len.max(1));
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                message.traffic_class = data.first().copied().unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                if let Some(class) = data.first_chunk::<4>() {
                    message.traffic_class = u8::try_from(i32::from_ne_bytes(*class)).unwrap_or(0);
                }
            }
            // A `timespec` of two words, on platforms with 64 bits.
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                if let Some((seconds, rest)) = data.split_first_chunk::<8>()
                    && let Some(nanoseconds) = rest.first_chunk::<8>()
                {
                    let seconds = Duration::from_secs(u64::from_ne_bytes(*seconds));
                    let nanoseconds = Duration::from_nanos(u64::from_ne_bytes(*nanoseconds));
                    let arrival = SystemTime::UNIX_EPOCH.checked_add(seconds);
                    message.arrival = arrival.and_then(|at| at.checked_add(nanoseconds));
                }
            }
            // A dual-stack socket reports an IPv4 address in this form too, mapped into IPv6.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some((address, rest)) = data.split_first_chunk::<16>()
                    && let Some(interface) = rest.first_chunk::<4>()
                {
                    let address = Ipv6Addr::from(*address).into();
                    message.local = Local::new(address, u32::from_ne_bytes(*interface));
                }
            }
            // Interface, the local address of the datagram, and the destination in its header.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(address) = data.get(4..).and_then(|rest| rest.first_chunk::<4>()) {
                    message.local = Local::new(Ipv4Addr::from(*address).into(), 0);
                }
            }
            _ => {}
        }
        control = control.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use socket2::SockAddr;

    use super::*;

    proptest! {
        /// The kernel uses the same messages in both directions.
        #[test]
        fn encoded_control_messages_decode(
            segment_bytes in prop::option::of(1..u16::MAX),
            traffic_class: u8,
            hop_limit: Option<u8>,
            source in prop::option::of((any::<IpAddr>(), 1..u32::MAX)),
            is_ipv6: bool,
        ) {
            let destination = SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 1)));
            let mut control = EMPTY_CONTROL;
            let source = source.and_then(|(address, interface)| Local::new(address, interface));
            let send =
                Send { bytes: &[], destination: &destination, source, segment_bytes, traffic_class, hop_limit, is_ipv6 };

            let len = encode_control(&mut control, send);

            let messages = usize::from(segment_bytes.is_some()) + usize::from(traffic_class != 0)
                + usize::from(hop_limit.is_some());
            let address_bytes = source.map_or(0, |source| if source.address().is_ipv6() { 40 } else { 32 });
            prop_assert_eq!(len, 24 * messages + address_bytes);
            prop_assert!(len <= CONTROL_BYTES);
            // The kernel reads the segment size under another name than it writes it.
            let at = if segment_bytes.is_some() { 24 } else { 0 };
            let mut message = Message { len: 60_000, ..Message::EMPTY };
            decode_control(&control.0[at..len], &mut message);
            prop_assert_eq!((message.traffic_class, message.local), (traffic_class, source));
        }

        #[test]
        fn a_mapped_destination_decodes_as_ipv4(address: [u8; 4], interface: u32) {
            let mut control = EMPTY_CONTROL;
            let mapped = Ipv4Addr::from(address).to_ipv6_mapped().octets();
            let info = [&mapped[..], &interface.to_ne_bytes()].concat();
            let len = put(&mut control.0, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            let mut message = Message::EMPTY;

            decode_control(&control.0[..len], &mut message);

            prop_assert_eq!(message.local, Local::new(address.into(), 0));
        }

        #[test]
        fn an_arrival_is_read_if_possible(seconds: i64, nanoseconds: i64) {
            let mut control = [0; 32];
            let timespec = [seconds.to_ne_bytes(), nanoseconds.to_ne_bytes()].concat();
            put(&mut control, 0, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &timespec);
            let mut message = Message::EMPTY;

            decode_control(&control, &mut message);

            let since_1970 = message.arrival.map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
            let is_date = (0..1 << 40).contains(&seconds) && (0..1_000_000_000).contains(&nanoseconds);
            let expected = Duration::from_secs(seconds.unsigned_abs())
                .saturating_add(Duration::from_nanos(nanoseconds.unsigned_abs()));
            prop_assert!(!is_date || since_1970 == Some(expected), "{since_1970:?}, {expected:?}");
        }

        /// wireguard-go once looped without end on a control message of length zero.
        #[test]
        fn any_control_bytes_are_decoded_safely(
            control in prop::collection::vec(any::<u8>(), 0..96),
            len in 0usize..65_536,
        ) {
            let mut message = Message { len, ..Message::EMPTY };

            decode_control(&control, &mut message);

            prop_assert!(message.stride <= len.max(1));
        }

        #[test]
        fn a_stride_never_exceeds_the_message(len in 1usize..65_536, size: i32) {
            let mut control = [0; 24];
            put(&mut control, 0, libc::SOL_UDP, libc::UDP_GRO, &size.to_ne_bytes());
            let mut message = Message { len, stride: len, ..Message::EMPTY };

            decode_control(&control, &mut message);

            prop_assert!((1..=len).contains(&message.stride));
        }
    }
}
