//! Checksum-neutral translation of IPv6 prefixes (RFC 6296).
//!
//! Replacing a prefix changes the sum of the address; one word outside the prefix compensates the
//! difference, so that no checksum over the address has to change. In return
//! host bits are not kept, and a few addresses have no counterpart.
//!
//! Sources: RFC 6296 section 3.1 for the adjustment, section 3.4 for prefixes of up to 48 bits,
//! section 3.5 for longer ones.

use crate::checksum::{add, complete, sum};
use crate::prefix::host_mask_v6;

/// A word that translation never produces: as a sum it equals zero, and zero is written instead.
const ALL_ONES: u16 = 0xffff;

/// The longest prefix that leaves a whole word to adjust.
pub(crate) const MAX_LEN: u8 = 112;

/// The difference between two prefixes, which is added to a word outside the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Adjustment(u16);

impl Adjustment {
    /// From prefix `from` to prefix `to`, both without host bits.
    pub(crate) fn between(from: u128, to: u128) -> Self {
        Self(add(sum(&from.to_be_bytes()), complete(sum(&to.to_be_bytes()))))
    }

    /// The adjustment of the other direction.
    pub(crate) const fn inverse(self) -> Self {
        Self(complete(self.0))
    }

    /// `address` with its first `len` bits replaced by those of `to`, and the difference compensated.
    ///
    /// `None` if every word that could be adjusted is `0xffff`: such an address has no counterpart.
    #[inline]
    pub(crate) fn apply(self, address: u128, to: u128, len: u8) -> Option<u128> {
        let replaced = to | (address & host_mask_v6(len));
        let shift = adjustable(len).find(|shift| word(address, *shift) != ALL_ONES)?;
        let adjusted = match add(word(address, shift), self.0) {
            ALL_ONES => 0,
            adjusted => adjusted,
        };

        Some((replaced & !(u128::from(ALL_ONES) << shift)) | (u128::from(adjusted) << shift))
    }
}

/// The shifts of the words that may be adjusted, in the order in which they are tried.
///
/// Up to 48 bits that is the subnet alone. Longer prefixes use the first usable word of the
/// interface identifier; beyond 64 bits the words that belong to the prefix are excluded.
fn adjustable(len: u8) -> impl Iterator<Item = u32> {
    let (first, last) = match len {
        0..=48 => (48, 48),
        49..=64 => (64, 112),
        _ => (u32::from(len).next_multiple_of(16), 112),
    };

    (first..=last).step_by(16).map(|bit| 112 - bit)
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "the low 16 bits")]
const fn word(address: u128, shift: u32) -> u16 {
    (address >> shift) as u16
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    /// The example of RFC 6296 section 3.4, both ways.
    #[test]
    fn translation_matches_rfc_6296_example() {
        let (internal, external) = (bits("fd01:203:405::"), bits("2001:db8:1::"));
        let out = Adjustment::between(internal, external);

        let there = out.apply(bits("fd01:203:405:1::1234"), external, 48).unwrap();
        let back = out.inverse().apply(there, internal, 48).unwrap();

        assert_eq!(Ipv6Addr::from_bits(there).to_string(), "2001:db8:1:d550::1234");
        assert_eq!(Ipv6Addr::from_bits(back).to_string(), "fd01:203:405:1::1234");
    }

    #[test]
    fn all_ones_subnet_has_no_counterpart() {
        let (internal, external) = (bits("fd01:203:405::"), bits("2001:db8:1::"));
        let out = Adjustment::between(internal, external);

        assert_eq!(out.apply(bits("fd01:203:405:ffff::1"), external, 48), None);
    }

    #[test]
    fn longer_prefix_adjusts_first_usable_word() {
        let (internal, external) = (bits("fd01:203:405:1::"), bits("2001:db8:1:2::"));
        let out = Adjustment::between(internal, external);

        let there = out.apply(bits("fd01:203:405:1:ffff:7::1"), external, 64).unwrap();

        let segments = Ipv6Addr::from_bits(there).segments();
        assert_eq!(segments[..5], [0x2001, 0xdb8, 1, 2, 0xffff]);
        assert_ne!(segments[5], 7);
        assert_eq!(segments[6..], [0, 1]);
    }

    #[test]
    fn subnets_map_one_to_one() {
        let (internal, external) = (bits("fd01:203:405::"), bits("2001:db8:1::"));
        let out = Adjustment::between(internal, external);

        let mut seen = vec![false; 1 << 16];
        for subnet in 0..0xffff_u128 {
            let there = out.apply(internal | (subnet << 64), external, 48).unwrap();
            let slot = &mut seen[usize::from(word(there, 64))];
            assert!(!*slot, "subnet {subnet:x}");
            *slot = true;
        }

        assert_eq!(seen.iter().filter(|seen| !**seen).count(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn round_trip_keeps_address_and_sum(
            from: u128,
            to: u128,
            host in host(),
            len in 0..=MAX_LEN,
        ) {
            let mask = host_mask_v6(len);
            let (from, to) = (from & !mask, to & !mask);
            let address = from | (host & mask);
            let out = Adjustment::between(from, to);

            if let Some(there) = out.apply(address, to, len) {
                prop_assert_eq!(there & !mask, to);
                prop_assert_eq!(out.inverse().apply(there, from, len), Some(address));
                let sums = [address, there].map(|bits| sum(&bits.to_be_bytes()) % 0xffff);
                prop_assert_eq!(sums[0], sums[1]);
            }
        }
    }

    /// Words of all ones are the special case, so they are frequent.
    fn host() -> impl Strategy<Value = u128> {
        prop::array::uniform8(prop_oneof![Just(0xffff_u16), Just(0), Just(0xfffe), any::<u16>()])
            .prop_map(|segments| Ipv6Addr::from(segments).to_bits())
    }

    fn bits(text: &str) -> u128 {
        text.parse::<Ipv6Addr>().unwrap().to_bits()
    }
}
