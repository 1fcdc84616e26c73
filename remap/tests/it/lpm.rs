//! A lookup equals a scan over all prefixes: more than a million lookups in maps of every
//! size and shape, one by one and in batches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use strait_remap::Prefix;
use strait_remap::lpm::Lpm;

/// Addresses on both sides of both edges of a prefix, inside it, and anywhere.
const ADDRESSES_PER_PREFIX: usize = 6;

proptest! {
    #![proptest_config(ProptestConfig { cases: 6_000, ..ProptestConfig::default() })]

    /// About 250,000 lookups in empty maps, maps of one block and the smallest stages.
    #[test]
    fn lookup_in_few_prefixes_equals_scan(
        shape in shape(),
        count in 0usize..16,
        seed: u64,
    ) {
        compare(shape, count, count * ADDRESSES_PER_PREFIX, seed)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// About 350,000 lookups.
    #[test]
    fn lookup_in_hundreds_equals_scan(
        shape in shape(),
        count in 16usize..220,
        seed: u64,
    ) {
        compare(shape, count, count * ADDRESSES_PER_PREFIX, seed)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// 600,000 lookups.
    #[test]
    fn lookup_in_a_thousand_equals_scan(shape in shape(), seed: u64) {
        compare(shape, 1_000, 1_000 * ADDRESSES_PER_PREFIX, seed)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Three levels of stages. Most of the time is the scan's.
    #[test]
    fn lookup_in_tens_of_thousands_equals_scan(shape in shape(), seed: u64) {
        compare(shape, 30_000, 1_000, seed)?;
    }
}

#[test]
fn nested_prefixes_of_all_lengths_are_distinguished() {
    for pattern in [0, u128::MAX, u128::MAX / 3, 1, u128::MAX - 1] {
        let v4 = u32::try_from(pattern & u128::from(u32::MAX)).unwrap();
        let v4 = (0..=32).filter_map(|len| prefix_v4(v4, len));
        let prefixes: Vec<Prefix> =
            v4.chain((0..=128).filter_map(|len| prefix_v6(pattern, len))).collect();
        let addresses: Vec<IpAddr> = prefixes.iter().flat_map(edges).collect();

        assert_scan(prefixes, &addresses).unwrap();
    }
}

/// The arrangement of the prefixes.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Few distinct bits at both ends: all prefixes nest.
    Nested,
    /// Any network, lengths as in a routing table.
    Scattered,
    /// Cluster CIDRs, node CIDRs inside them, and dense blocks of host maps.
    Clusters,
    /// Neighbours of the same length.
    Adjacent,
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Nested),
        Just(Shape::Scattered),
        Just(Shape::Clusters),
        Just(Shape::Adjacent)
    ]
}

fn compare(shape: Shape, count: usize, lookups: usize, seed: u64) -> Result<(), TestCaseError> {
    let mut random = Random(seed);
    let is_ipv4 = random.below(2) == 0;
    let mut prefixes: Vec<Prefix> = (0..count)
        .filter_map(|n| prefix(shape, u64::try_from(n).unwrap(), is_ipv4, &mut random))
        .collect();
    prefixes.sort();
    prefixes.dedup();
    let addresses: Vec<IpAddr> = (0..lookups)
        .map(|_| {
            let near = prefixes
                .get(usize::try_from(random.below(1 << 32)).unwrap() % prefixes.len().max(1));
            match near {
                Some(near) if random.below(4) > 0 => address_near(near, &mut random),
                Some(_) | None => any_address(is_ipv4, &mut random),
            }
        })
        .collect();

    assert_scan(prefixes, &addresses)
}

/// The oracle is the definition: of all prefixes that contain the address, the longest.
fn assert_scan(mut prefixes: Vec<Prefix>, addresses: &[IpAddr]) -> Result<(), TestCaseError> {
    let map = Lpm::new(prefixes.iter().map(|prefix| (*prefix, *prefix))).unwrap();
    prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len_bits()));

    let found: Vec<Option<&Prefix>> = addresses.iter().map(|address| map.get(*address)).collect();

    for (address, found) in addresses.iter().zip(&found) {
        let scan = prefixes.iter().find(|prefix| prefix.contains(*address));
        prop_assert_eq!(*found, scan, "{} among {} prefixes", address, prefixes.len());
    }
    assert_batches(&map, addresses)
}

fn assert_batches(map: &Lpm<Prefix>, addresses: &[IpAddr]) -> Result<(), TestCaseError> {
    let v4: Vec<Ipv4Addr> = addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        })
        .collect();
    let v6: Vec<Ipv6Addr> = addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(*address),
        })
        .collect();

    for batch in v4.as_chunks::<16>().0 {
        prop_assert_eq!(map.get_each_v4(batch), batch.map(|address| map.get(address.into())));
    }
    for batch in v6.as_chunks::<7>().0 {
        prop_assert_eq!(map.get_each_v6(batch), batch.map(|address| map.get(address.into())));
    }
    Ok(())
}

fn prefix(shape: Shape, n: u64, is_ipv4: bool, random: &mut Random) -> Option<Prefix> {
    let width = if is_ipv4 { 32 } else { 128 };
    let network = any_bits(random);
    let (bits, len) = match shape {
        Shape::Nested => {
            let ends = (network & (0xf << 124)) | (0xf << (128 - width) & network);
            (ends, random.below(width + 1))
        }
        Shape::Scattered => (network, width / 4 + random.below(width - width / 4 + 1)),
        Shape::Clusters => {
            let cluster = (10 << 120) | (u128::from(random.below(32)) << (128 - width / 2));
            match random.below(8) {
                0 => (cluster, width / 2),
                1 | 2 => (
                    cluster | u128::from(random.below(256)) << (128 - width * 3 / 4),
                    width * 3 / 4,
                ),
                _ => (cluster | u128::from(random.below(512)) << (128 - width), width),
            }
        }
        Shape::Adjacent => ((172 << 120) | (u128::from(n) << (128 - width + 4)), width - 4),
    };

    let len = u8::try_from(len).unwrap();
    if is_ipv4 { prefix_v4(u32::try_from(bits >> 96).unwrap(), len) } else { prefix_v6(bits, len) }
}

/// At an edge of `prefix`, next to one, or inside.
fn address_near(prefix: &Prefix, random: &mut Random) -> IpAddr {
    let edges = edges(prefix);
    let [network, ..] = edges;
    match (edges.get(usize::try_from(random.below(6)).unwrap()), network) {
        (Some(edge), _) => *edge,
        (None, IpAddr::V4(network)) => {
            let host = u32::MAX.checked_shr(prefix.len_bits().into()).unwrap_or(0);
            let inside = u32::try_from(random.next() >> 32).unwrap() & host;
            Ipv4Addr::from_bits(network.to_bits() | inside).into()
        }
        (None, IpAddr::V6(network)) => {
            let host = u128::MAX.checked_shr(prefix.len_bits().into()).unwrap_or(0);
            Ipv6Addr::from_bits(network.to_bits() | (any_bits(random) & host)).into()
        }
    }
}

/// The first and last address, the one before and the one after.
fn edges(prefix: &Prefix) -> [IpAddr; 4] {
    match prefix.network() {
        IpAddr::V4(network) => {
            let first = network.to_bits();
            let last = first | u32::MAX.checked_shr(prefix.len_bits().into()).unwrap_or(0);
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|bits| Ipv4Addr::from_bits(bits).into())
        }
        IpAddr::V6(network) => {
            let first = network.to_bits();
            let last = first | u128::MAX.checked_shr(prefix.len_bits().into()).unwrap_or(0);
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|bits| Ipv6Addr::from_bits(bits).into())
        }
    }
}

fn prefix_v4(bits: u32, len: u8) -> Option<Prefix> {
    let host = u32::MAX.checked_shr(len.into()).unwrap_or(0);

    Prefix::new(Ipv4Addr::from_bits(bits & !host).into(), len).ok()
}

/// `None` for an IPv4-mapped prefix.
fn prefix_v6(bits: u128, len: u8) -> Option<Prefix> {
    let host = u128::MAX.checked_shr(len.into()).unwrap_or(0);

    Prefix::new(Ipv6Addr::from_bits(bits & !host).into(), len).ok()
}

fn any_address(is_ipv4: bool, random: &mut Random) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::from_bits(u32::try_from(random.next() >> 32).unwrap()).into()
    } else {
        Ipv6Addr::from_bits(any_bits(random)).into()
    }
}

fn any_bits(random: &mut Random) -> u128 {
    u128::from(random.next()) << 64 | u128::from(random.next())
}

/// A generator for test data: a Weyl sequence, mixed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);

        mixed ^ (mixed >> 32)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
