//! TCP MSS clamping: lowers the maximum segment size option of a SYN (RFC 9293 section 3.7.1).
//!
//! Where ICMP is filtered, path MTU discovery fails, and senders do not learn that packets are too large
//! for the tunnel. The option tells them at the start of the connection.

use remap::checksum::{Delta, adjust};

use super::rewrite::{Checksum, Mismatch};
use super::{Header, Transport, field};

/// Bytes of the fixed IP and TCP headers of a segment, without options (RFC 6691 section 2).
const FIXED_V4: u16 = 20 + 20;
const FIXED_V6: u16 = 40 + 20;

/// Length of a TCP header without options, in bytes.
pub(super) const TCP_LEN: usize = 20;

const FLAGS_AT: usize = 13;
const SYN: u8 = 0x02;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;

/// The flags of a TCP segment, byte 13 of its header (RFC 9293 section 3.1); `None` if `packet` holds
/// no TCP header.
#[must_use]
#[inline]
pub fn flags(packet: &[u8], header: &Header) -> Option<u8> {
    if header.transport() != Transport::Tcp {
        return None;
    }

    packet.get(header.transport_offset() + FLAGS_AT).copied()
}

/// Whether `packet` is a SYN or SYN-ACK.
#[must_use]
#[inline]
pub fn opens_connection(packet: &[u8], header: &Header) -> bool {
    flags(packet, header).is_some_and(|flags| flags & SYN != 0)
}

/// The maximum segment size that a SYN or SYN-ACK announces; `None` if `packet` is neither, or has no such option.
#[must_use]
pub fn announced(packet: &[u8], header: &Header) -> Option<u16> {
    if !opens_connection(packet, header) {
        return None;
    }
    let tcp = packet.get(header.transport_offset()..header.packet_len())?;

    field::word(tcp, find(tcp)?)
}

/// Lowers the maximum segment size of a SYN or SYN-ACK to what fits into packets of
/// `mtu` bytes. Returns whether it did.
///
/// Never raises it, and never adds the option: without it the sender expects segments of at most 536
/// bytes (1,220 for IPv6), which fit every link.
///
/// # Errors
///
/// [`Mismatch`] if `packet` is too short for `header`.
#[inline]
pub fn clamp(
    packet: &mut [u8],
    header: &Header,
    mtu: u16,
    checksum: Checksum,
) -> Result<bool, Mismatch> {
    if !opens_connection(packet, header) {
        return Ok(false);
    }
    let tcp = packet.get_mut(header.transport_offset()..header.packet_len()).ok_or(Mismatch)?;

    let fixed = if header.is_ipv6() { FIXED_V6 } else { FIXED_V4 };
    Ok(lower(tcp, mtu.saturating_sub(fixed), checksum))
}

/// `tcp` is the TCP header and the payload.
fn lower(tcp: &mut [u8], max: u16, checksum: Checksum) -> bool {
    let Some(at) = find(tcp) else {
        return false;
    };
    let Some(value) = field::bytes_mut::<2>(tcp, at) else {
        return false;
    };
    let old = u16::from_be_bytes(*value);
    if old <= max {
        return false;
    }
    *value = max.to_be_bytes();

    // The partial checksum of an offload frame does not cover the header.
    if checksum == Checksum::Complete
        && let Some(sum) = Transport::Tcp.checksum_offset().and_then(|at| field::bytes_mut(tcp, at))
    {
        let delta = if at.is_multiple_of(2) {
            Delta::between_words(old, max)
        } else {
            // The value is one half of each of two words (RFC 1071 section 2 (B)).
            Delta::between_words(old.swap_bytes(), max.swap_bytes())
        };
        *sum = adjust(u16::from_be_bytes(*sum), delta).to_be_bytes();
    }

    true
}

/// The offset of the option's value.
fn find(tcp: &[u8]) -> Option<usize> {
    let header_len = usize::from(*tcp.get(12)? >> 4) * 4;
    let header = tcp.get(..header_len)?;

    let mut at = TCP_LEN;
    loop {
        match *header.get(at)? {
            END => return None,
            NO_OPERATION => at += 1,
            kind => {
                let len = usize::from(*header.get(at + 1)?);
                if kind == MAXIMUM_SEGMENT_SIZE {
                    let is_whole = len == 4 && at + len <= header_len;
                    return is_whole.then_some(at + 2);
                }
                // An invalid length: the start of the next option is unknown.
                at += len.max(if len < 2 { return None } else { 2 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixtures::{Packet, TCP, word};
    use super::*;

    #[test]
    fn segments_without_syn_are_unchanged() {
        for flags in [0x10, 0x18, 0x11, 0x04] {
            let mut bytes = packet(false, flags, &[2, 4, 0x05, 0xb4]).build();
            let before = bytes.clone();
            let header = Header::parse(&bytes).unwrap();

            assert_eq!(clamp(&mut bytes, &header, 1340, Checksum::Complete), Ok(false));
            assert_eq!(bytes, before);
        }
    }

    #[test]
    fn smaller_mss_is_never_raised() {
        let mut bytes = packet(false, SYN, &[2, 4, 0x02, 0x18]).build();
        let header = Header::parse(&bytes).unwrap();

        assert_eq!(clamp(&mut bytes, &header, 1340, Checksum::Complete), Ok(false));
    }

    #[test]
    fn truncated_options_are_left_alone() {
        let broken: [&[u8]; 5] =
            [&[2, 4, 5], &[2], &[3, 0, 2, 4, 5, 180], &[2, 3, 5, 180], &[9, 200, 2, 4, 5, 180]];

        for options in broken {
            let mut options = options.to_vec();
            options.resize(options.len().next_multiple_of(4), END);
            // The header ends with the options, so a truncated option has no value.
            let mut bytes = packet(false, SYN, &options).build();
            let before = bytes.clone();
            let header = Header::parse(&bytes).unwrap();

            let _ = clamp(&mut bytes, &header, 1340, Checksum::Complete);

            assert_eq!(bytes.len(), before.len());
            assert_eq!(bytes[40..], before[40..], "{options:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// With any options before it, at even and odd offsets.
        #[test]
        fn clamping_equals_rebuilding_with_smaller_mss(
            is_ipv6: bool,
            before in prop::collection::vec(any_option(), 0..4),
            old: u16,
            mtu in 576_u16..9000,
            is_answer: bool,
        ) {
            let fixed = if is_ipv6 { 60 } else { 40 };
            let max = mtu - fixed;
            let packet = |mss: u16| {
                let [high, low] = mss.to_be_bytes();
                let mut options = before.concat();
                options.extend([2, 4, high, low]);
                options.resize(options.len().next_multiple_of(4), END);
                packet(is_ipv6, if is_answer { 0x12 } else { SYN }, &options)
            };
            let mut bytes = packet(old).build();
            let header = Header::parse(&bytes).unwrap();

            let is_lowered = clamp(&mut bytes, &header, mtu, Checksum::Complete).unwrap();

            prop_assert_eq!(is_lowered, old > max);
            let expected = packet(old.min(max)).build();
            let sum_at = header.transport_offset() + 16;
            // Both zeros are the same sum.
            let sums = [word(&bytes, sum_at) % 0xffff, word(&expected, sum_at) % 0xffff];
            prop_assert_eq!(sums[0], sums[1]);
            bytes[sum_at..sum_at + 2].copy_from_slice(&expected[sum_at..sum_at + 2]);
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn arbitrary_options_do_not_panic(options in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut options = options;
            options.truncate(options.len() / 4 * 4);
            let mut bytes = packet(false, SYN, &options).build();
            let header = Header::parse(&bytes).unwrap();

            prop_assert!(clamp(&mut bytes, &header, 1340, Checksum::Complete).is_ok());
        }
    }

    fn any_option() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(vec![NO_OPERATION]),
            (any::<u8>(), any::<u8>()).prop_map(|(a, b)| vec![8, 4, a, b]),
            any::<u8>().prop_map(|shift| vec![3, 3, shift]),
            Just(vec![4, 2]),
        ]
    }

    fn packet(is_ipv6: bool, flags: u8, options: &[u8]) -> Packet {
        let words = u8::try_from((TCP_LEN + options.len()) / 4).unwrap();
        let mut transport = vec![0; TCP_LEN];
        transport[12] = words << 4;
        transport[FLAGS_AT] = flags;
        transport.extend(options);
        let [source, destination] = if is_ipv6 {
            ["fd00::1", "fd00::2"].map(|a| a.parse().unwrap())
        } else {
            ["10.244.1.5", "10.71.2.7"].map(|a| a.parse().unwrap())
        };

        Packet::new(source, destination, TCP, transport)
    }
}
