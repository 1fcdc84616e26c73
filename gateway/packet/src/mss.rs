//! The largest segment that TCP may send: lowering what both ends tell each other when they meet.
//!
//! Where ICMP is filtered, nobody learns that packets are too large for the tunnel. The maximum
//! segment size option of a SYN tells the other end before it matters (RFC 9293 section 3.7.1).

use remap::checksum::{Delta, adjust};

use super::Header;
use super::Transport;
use super::field;
use super::rewrite::{Checksum, Mismatch};

/// Bytes of the fixed headers that a segment travels behind: IP (RFC 6691 section 2: options do not
/// count) and TCP.
const FIXED_V4: u16 = 20 + 20;
const FIXED_V6: u16 = 40 + 20;

/// Length of a TCP header without options, in bytes.
const TCP_LEN: usize = 20;

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

/// Whether `packet` opens a TCP connection, or answers one that does.
#[must_use]
#[inline]
pub fn opens_connection(packet: &[u8], header: &Header) -> bool {
    flags(packet, header).is_some_and(|flags| flags & SYN != 0)
}

/// If `packet` opens a TCP connection, lowers its maximum segment size to what fits into packets of
/// `mtu` bytes. Says whether it did.
///
/// Never raises it. A SYN without the option stays without: its sender expects no more than 536
/// bytes (1,220 for IPv6) in return, which fits every link.
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

/// `tcp` is the TCP header and what follows.
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

    // The sum of an offload frame does not cover the header yet.
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

/// Where the value of the option stands.
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
                // Shorter than itself: there is no telling where the next one begins.
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
    fn only_what_opens_a_connection_is_touched() {
        for flags in [0x10, 0x18, 0x11, 0x04] {
            let mut bytes = packet(false, flags, &[2, 4, 0x05, 0xb4]).build();
            let before = bytes.clone();
            let header = Header::parse(&bytes).unwrap();

            assert_eq!(clamp(&mut bytes, &header, 1340, Checksum::Complete), Ok(false));
            assert_eq!(bytes, before);
        }
    }

    #[test]
    fn a_smaller_value_is_never_raised() {
        let mut bytes = packet(false, SYN, &[2, 4, 0x02, 0x18]).build();
        let header = Header::parse(&bytes).unwrap();

        assert_eq!(clamp(&mut bytes, &header, 1340, Checksum::Complete), Ok(false));
    }

    #[test]
    fn options_that_end_too_early_are_left_alone() {
        let broken: [&[u8]; 5] =
            [&[2, 4, 5], &[2], &[3, 0, 2, 4, 5, 180], &[2, 3, 5, 180], &[9, 200, 2, 4, 5, 180]];

        for options in broken {
            let mut options = options.to_vec();
            options.resize(options.len().next_multiple_of(4), END);
            // The header ends where the options do, so what is cut is cut.
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

        /// Whatever stands before the option, at even and odd places.
        #[test]
        fn clamping_equals_building_with_the_smaller_value(
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
        fn any_options_are_survived(options in prop::collection::vec(any::<u8>(), 0..40)) {
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
