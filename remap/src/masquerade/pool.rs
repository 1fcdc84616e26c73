//! The external addresses that masqueraded sources share.

use std::net::IpAddr;

use super::hash;

/// External addresses, IPv4 and IPv6.
///
/// Part of the configuration, passed with each packet. A mapping keeps its address as long as the pool has
/// it. After that, the next outbound packet creates another mapping, because replies to an address that is
/// not shared any more are not translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    v4: Box<[IpAddr]>,
    v6: Box<[IpAddr]>,
}

impl Pool {
    /// Collects addresses; duplicates count once.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let (mut v4, mut v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        for addresses in [&mut v4, &mut v6] {
            addresses.sort_unstable();
            addresses.dedup();
        }

        Self { v4: v4.into(), v6: v6.into() }
    }

    /// Whether there is no address at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The addresses of one IP version, in ascending order.
    #[must_use]
    pub const fn addresses(&self, is_ipv4: bool) -> &[IpAddr] {
        if is_ipv4 { &self.v4 } else { &self.v6 }
    }

    /// The addresses of the IP version of `first`, in the order in which a port is searched.
    pub(super) fn addresses_from(&self, first: IpAddr) -> impl Iterator<Item = IpAddr> {
        let addresses = self.addresses(first.is_ipv4());
        let at = addresses.binary_search(&first).unwrap_or_default();
        let (before, from) = addresses.split_at_checked(at).unwrap_or((&[], addresses));

        from.iter().chain(before).copied()
    }

    /// Whether `address` is one of them. Inbound packets to others are not masqueraded.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses(address.is_ipv4()).binary_search(&address).is_ok()
    }

    /// The address of a `source` without mappings.
    ///
    /// The address with the highest weight, where the weight depends on the pair alone (rendezvous
    /// hashing). Two gateways, and two runs of one, choose alike, so with ports preserved most
    /// connections survive a restart. An added or removed address moves only its own sources.
    pub(super) fn preferred(&self, source: IpAddr) -> Option<IpAddr> {
        self.addresses(source.is_ipv4())
            .iter()
            .copied()
            .max_by_key(|address| hash::weight(source, *address))
    }
}

impl FromIterator<IpAddr> for Pool {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        Self::new(addresses)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn new_address_moves_only_its_own_sources() {
        let small: Pool = (0..8).map(external).collect();
        let large: Pool = (0..9).map(external).collect();

        for source in (0..1_000).map(|n| IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 + n))) {
            let (before, after) = (small.preferred(source), large.preferred(source));
            assert!(after == before || after == Some(external(8)));
        }
    }

    #[test]
    fn sources_spread_over_the_pool() {
        let pool: Pool = (0..8).map(external).collect();
        let mut sources = [0u32; 8];

        for n in 0..8_000 {
            let source = IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 + n));
            let address = pool.preferred(source).unwrap();
            sources[pool.addresses(true).binary_search(&address).unwrap()] += 1;
        }

        assert!(sources.iter().all(|count| (800..1_200).contains(count)), "{sources:?}");
    }

    #[test]
    fn duplicate_addresses_count_once() {
        let pool = Pool::new([external(1), external(1), "fd00::1".parse().unwrap()]);

        assert_eq!(pool.addresses(true), [external(1)]);
        assert_eq!(pool.addresses(false).len(), 1);
        assert!(pool.contains(external(1)) && !pool.contains(external(2)));
    }

    fn external(n: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 70, 0, n))
    }
}
