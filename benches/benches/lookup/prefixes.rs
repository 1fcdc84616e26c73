//! Sets of prefixes as in a gateway, and addresses to look up in them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ip_network_table_deps_treebitmap::IpLookupTable;
use ip_network_table_deps_treebitmap::address::Address;
use ipnet::{Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use remap::Prefix;
use remap::lpm::Lpm;

/// An address as a number, with the types of each crate that is compared.
pub(crate) trait Bits: Copy + Ord {
    const NAME: &str;
    const WIDTH: u8;
    /// The argument of a lookup: an address, so that each crate pays for its own conversion.
    type Key: Copy + Address;
    type Net: prefix_trie::Prefix;

    fn from_bits(bits: u128) -> Self;
    fn to_bits(self) -> u128;
    fn to_address(self) -> IpAddr;
    fn to_key(self) -> Self::Key;
    fn to_net(self, len: u8) -> Self::Net;
    fn key_to_net(key: Self::Key) -> Self::Net;
    fn key_to_address(key: Self::Key) -> IpAddr;
    fn each<'a>(map: &'a Lpm<u32>, keys: &[Self::Key; 16]) -> [Option<&'a u32>; 16];

    fn tree(prefixes: &[(Self, u8)]) -> IpLookupTable<Self::Key, u32> {
        let mut tree = IpLookupTable::new();
        for (value, (bits, len)) in (0..).zip(prefixes) {
            tree.insert(bits.to_key(), u32::from(*len), value);
        }

        tree
    }

    fn trie(prefixes: &[(Self, u8)]) -> PrefixMap<Self::Net, u32> {
        (0..).zip(prefixes).map(|(value, (bits, len))| (bits.to_net(*len), value)).collect()
    }
}

impl Bits for u32 {
    const NAME: &str = "IPv4";
    const WIDTH: u8 = 32;
    type Key = Ipv4Addr;
    type Net = Ipv4Net;

    fn from_bits(bits: u128) -> Self {
        Self::try_from(bits >> 96).unwrap_or_default()
    }

    fn to_bits(self) -> u128 {
        u128::from(self) << 96
    }

    fn to_address(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }

    fn to_key(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self)
    }

    fn to_net(self, len: u8) -> Ipv4Net {
        Ipv4Net::new_assert(Ipv4Addr::from_bits(self), len)
    }

    fn key_to_net(key: Ipv4Addr) -> Ipv4Net {
        key.into()
    }

    fn key_to_address(key: Ipv4Addr) -> IpAddr {
        key.into()
    }

    fn each<'a>(map: &'a Lpm<u32>, keys: &[Ipv4Addr; 16]) -> [Option<&'a u32>; 16] {
        map.get_each_v4(keys)
    }
}

impl Bits for u128 {
    const NAME: &str = "IPv6";
    const WIDTH: u8 = 128;
    type Key = Ipv6Addr;
    type Net = Ipv6Net;

    fn from_bits(bits: u128) -> Self {
        bits
    }

    fn to_bits(self) -> u128 {
        self
    }

    fn to_address(self) -> IpAddr {
        Ipv6Addr::from_bits(self).into()
    }

    fn to_key(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self)
    }

    fn to_net(self, len: u8) -> Ipv6Net {
        Ipv6Net::new_assert(Ipv6Addr::from_bits(self), len)
    }

    fn key_to_net(key: Ipv6Addr) -> Ipv6Net {
        key.into()
    }

    fn key_to_address(key: Ipv6Addr) -> IpAddr {
        key.into()
    }

    fn each<'a>(map: &'a Lpm<u32>, keys: &[Ipv6Addr; 16]) -> [Option<&'a u32>; 16] {
        map.get_each_v6(keys)
    }
}

/// How the prefixes of a set are distributed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Random networks: half of them hosts, a quarter /24 (IPv6: a third /64), the rest of a random
    /// length of at least /8 (IPv6: /48). IPv6 in fd00::/8.
    Random,
    /// Random clusters, each a pod CIDR with node CIDRs inside, and a dense block of host maps.
    Clusters,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Clusters => "clusters",
        })
    }
}

/// `count` distinct prefixes, in ascending order.
pub(crate) fn prefixes<A: Bits>(layout: Layout, count: usize) -> Vec<(A, u8)> {
    let mut random = Random(42);
    let mut set = BTreeSet::new();
    while set.len() < count {
        match layout {
            Layout::Random => {
                let len = random_len::<A>(&mut random);
                set.insert((A::from_bits(any::<A>(&mut random) & !host_mask(len)), len));
            }
            Layout::Clusters => {
                let missing = count - set.len();
                set.extend(cluster::<A>(&mut random).into_iter().take(missing));
            }
        }
    }

    set.into_iter().collect()
}

pub(crate) fn to_prefix<A: Bits>((bits, len): (A, u8)) -> Option<Prefix> {
    Prefix::new(bits.to_address(), len).ok()
}

/// Random addresses: the same number for every set, more than a cache holds.
pub(crate) fn any_keys<A: Bits>(count: usize) -> Vec<A::Key> {
    let mut random = Random(7);

    (0..count).map(|_| A::from_bits(any::<A>(&mut random)).to_key()).collect()
}

/// Addresses inside the prefixes, evenly distributed over the prefixes.
pub(crate) fn covered_keys<A: Bits>(prefixes: &[(A, u8)], count: usize) -> Vec<A::Key> {
    let mut random = Random(8);
    let random_prefixes =
        std::iter::repeat_with(|| prefixes.get(random.below(prefixes.len()))).flatten();
    let mut hosts = Random(9);

    random_prefixes
        .map(|(bits, len)| A::from_bits(bits.to_bits() | (hosts.bits() & host_mask(*len))).to_key())
        .take(count)
        .collect()
}

fn random_len<A: Bits>(random: &mut Random) -> u8 {
    let draw = random.below(100);
    let (common, shortest) = if A::WIDTH == 32 { (24, 8) } else { (64, 48) };
    let any = u8::try_from(random.below(usize::from(A::WIDTH - shortest) + 1)).unwrap_or_default();
    match draw {
        0..50 => A::WIDTH,
        50..75 => common,
        _ => shortest + any,
    }
}

/// A random address of this IP version, in the highest bits.
fn any<A: Bits>(random: &mut Random) -> u128 {
    if A::WIDTH == 32 { random.bits() } else { (random.bits() >> 8) | (0xfd << 120) }
}

fn cluster<A: Bits>(random: &mut Random) -> Vec<(A, u8)> {
    let n = |value: usize| u128::try_from(value).unwrap_or_default();
    let (pods, pods_len, node_len) = if A::WIDTH == 32 {
        ((10 << 120) | (n(random.below(256)) << 112), 16, 24)
    } else {
        ((0xfd00_0010 << 96) | (n(random.below(1 << 16)) << 80), 48, 64)
    };
    let external = if A::WIDTH == 32 {
        (0x6440 << 112) | (n(random.below(1 << 10)) << 108)
    } else {
        pods | (0xffff << 64)
    };

    let mut cluster = vec![(A::from_bits(pods), pods_len)];
    cluster.extend(
        (0..32)
            .map(|node| (A::from_bits(pods | (node << (128 - node_len))), node_len))
            .map(|(bits, len)| (bits, u8::try_from(len).unwrap_or_default())),
    );
    cluster
        .extend((0..n(random.below(1_000))).map(|host| {
            (A::from_bits(external + (host << (128 - u32::from(A::WIDTH)))), A::WIDTH)
        }));

    cluster
}

/// The bits below a prefix of `len`, with the address in the highest bits.
fn host_mask(len: u8) -> u128 {
    u128::MAX.checked_shr(len.into()).unwrap_or(0)
}

/// A generator that suffices for benchmark data: a mixed Weyl sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);

        mixed ^ (mixed >> 32)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        let draw = u128::from(self.next()) * u128::try_from(end).unwrap_or_default();

        usize::try_from(draw >> 64).unwrap_or_default()
    }

    fn bits(&mut self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }
}
