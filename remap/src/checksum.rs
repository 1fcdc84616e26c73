//! One's complement arithmetic, in this module only.
//!
//! All values are 16-bit words as read big-endian from the wire. A *sum* is not complemented, a
//! *checksum* is the complement of a sum: [`complete`] turns one into the other.
//!
//! Zero has two forms, `0x0000` and `0xffff`, equal as sums. Where a protocol distinguishes them (UDP:
//! 0 means "none", RFC 768), the caller has to.
//!
//! Sources: RFC 1071 for the sum, RFC 1624 for changing it, RFC 8200 section 8.1 for the
//! pseudo-header.

use std::net::IpAddr;

/// The one's complement sum of `bytes` as big-endian words; an odd last byte counts as the high byte
/// of a word.
///
/// Runs over every payload byte of an offload frame, so it adds 32 bits at a time into independent
/// 64-bit lanes, which the compiler turns into vector additions. The byte order of the machine does
/// not matter until the end (RFC 1071 section 2 (B)); the lanes cannot overflow below 16 GiB.
#[must_use]
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    const LANES: usize = 8;

    let mut lanes = [0u64; LANES];
    let (blocks, rest) = bytes.as_chunks::<{ LANES * 4 }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }

    let mut total: u64 = lanes.iter().sum();
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        total += u64::from(u16::from_ne_bytes(*word));
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }

    u16::from_be_bytes(fold(total).to_ne_bytes())
}

/// Adds two sums, with end-around carry.
#[must_use]
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);

    if carry { sum + 1 } else { sum }
}

/// The checksum of a sum, or the sum of a checksum.
#[must_use]
#[inline]
pub const fn complete(sum: u16) -> u16 {
    !sum
}

/// The sum of the pseudo-header in front of a transport header of `len` bytes, payload included.
///
/// Both addresses must be of the same IP version. The form is that of IPv6 (RFC 8200 section 8.1);
/// the one of IPv4 (RFC 9293 section 3.1) has the same sum, because zeroes add nothing.
#[must_use]
#[inline]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: u32) -> u16 {
    let total = address_total(source)
        + address_total(destination)
        + u64::from(protocol)
        + u64::from(len >> 16)
        + u64::from(len & 0xffff);

    fold(total)
}

/// The change of a sum when words that it covers change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta(u16);

impl Delta {
    /// The change from one address to another of the same IP version.
    #[must_use]
    #[inline]
    pub fn between(old: IpAddr, new: IpAddr) -> Self {
        Self::between_words(fold(address_total(old)), fold(address_total(new)))
    }

    /// The change from one word, or sum of words, to another: `~m + m'`.
    #[must_use]
    #[inline]
    pub const fn between_words(old: u16, new: u16) -> Self {
        Self(add(!old, new))
    }

    /// Both changes.
    #[must_use]
    #[inline]
    pub const fn and(self, other: Self) -> Self {
        Self(add(self.0, other.0))
    }
}

/// Updates a checksum after words that it covers changed.
///
/// The cost does not depend on what the checksum covers. A wrong checksum stays wrong by the same
/// difference.
///
/// # Source
///
/// RFC 1624 section 3, equation 3: `HC' = ~(~HC + ~m + m')`. Not RFC 1141's form, which can yield
/// `0xffff` where a full computation yields `0x0000`.
#[must_use]
#[inline]
pub const fn adjust(checksum: u16, delta: Delta) -> u16 {
    !add(!checksum, delta.0)
}

/// Updates a sum after words that it covers changed: for the partial checksum of an offload frame, which
/// is the sum of its pseudo-header, not complemented.
#[must_use]
#[inline]
pub const fn adjust_partial(sum: u16, delta: Delta) -> u16 {
    add(sum, delta.0)
}

/// The words of an address, added up without folding.
#[inline]
fn address_total(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            u64::from(bits >> 16) + u64::from(bits & 0xffff)
        }
        IpAddr::V6(address) => address.segments().into_iter().map(u64::from).sum(),
    }
}

#[inline]
fn fold(total: u64) -> u16 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    let total = (total & 0xffff) + (total >> 16);
    let [_, _, _, _, _, _, high, low] = ((total & 0xffff) + (total >> 16)).to_be_bytes();

    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 3.
    #[test]
    fn sum_matches_rfc_1071_example() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    /// RFC 1624 section 4: the case that RFC 1141 gets wrong.
    #[test]
    fn update_matches_rfc_1624_example() {
        let delta = Delta::between_words(0x5555, 0x3285);

        assert_eq!(adjust(0xdd2f, delta), 0x0000);
    }

    #[test]
    fn largest_packet_of_ones_does_not_overflow() {
        assert_eq!(sum(&[0xff; 65_535]), slow_sum(&[0xff; 65_535]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn vectorised_sum_equals_the_definition(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            skip in 0usize..8,
        ) {
            let bytes = bytes.get(skip..).unwrap_or_default();

            prop_assert_eq!(sum(bytes), slow_sum(bytes));
        }

        /// The oracle is the slow definition, so a shared mistake in `add` cannot hide.
        #[test]
        fn adjusting_equals_recomputing(rest: [u16; 4], old: u32, new: u32) {
            prop_assume!(rest.iter().any(|word| *word != 0)); // All-zero data has two valid sums.
            let [old, new] = [old, new].map(Ipv4Addr::from_bits);

            let delta = Delta::between(old.into(), new.into());

            let expected = !slow_sum(&data(rest, &new.octets()));
            prop_assert_eq!(adjust(!slow_sum(&data(rest, &old.octets())), delta), expected);
        }

        #[test]
        fn adjusting_ipv6_equals_recomputing(rest: [u16; 4], old: u128, new: u128) {
            prop_assume!(rest.iter().any(|word| *word != 0));
            let [old, new] = [old, new].map(Ipv6Addr::from_bits);

            let delta = Delta::between(old.into(), new.into());

            let expected = slow_sum(&data(rest, &new.octets()));
            let partial = adjust_partial(slow_sum(&data(rest, &old.octets())), delta);
            prop_assert_eq!(partial, expected);
        }

        #[test]
        fn order_of_changes_does_not_matter(checksum: u16, words: [u16; 4]) {
            let [a, b, c, d] = words;
            let (first, second) = (Delta::between_words(a, b), Delta::between_words(c, d));

            let in_turn = adjust(adjust(checksum, first), second);

            prop_assert_eq!(in_turn, adjust(adjust(checksum, second), first));
            prop_assert_eq!(in_turn, adjust(checksum, first.and(second)));
        }

        #[test]
        fn pseudo_header_sum_equals_byte_sum(
            source: u128,
            destination: u128,
            protocol: u8,
            len: u32,
        ) {
            let [source, destination] = [source, destination].map(Ipv6Addr::from_bits);
            let mut bytes = [source.octets(), destination.octets()].concat();
            bytes.extend(len.to_be_bytes());
            bytes.extend([0, 0, 0, protocol]);

            let pseudo = pseudo_header(source.into(), destination.into(), protocol, len);

            prop_assert_eq!(pseudo, slow_sum(&bytes));
        }
    }

    fn data(rest: [u16; 4], address: &[u8]) -> Vec<u8> {
        rest.iter().flat_map(|word| word.to_be_bytes()).chain(address.iter().copied()).collect()
    }

    fn slow_sum(bytes: &[u8]) -> u16 {
        let mut sum: u64 = bytes
            .chunks(2)
            .map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }

        u16::try_from(sum).unwrap()
    }
}
