//! An IPv4 or IPv6 prefix in canonical form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// A set of addresses that share their first bits. No bit below the length is set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    network: IpAddr,
    len: u8,
}

impl Prefix {
    /// Builds a prefix from its network address and its length in bits.
    ///
    /// # Errors
    ///
    /// - [`PrefixError::TooLong`] if `len` exceeds the address.
    /// - [`PrefixError::HostBitsSet`] if `network` has a bit set below `len`.
    /// - [`PrefixError::V4Mapped`] if it is an IPv4-mapped IPv6 prefix.
    pub fn new(network: IpAddr, len: u8) -> Result<Self, PrefixError> {
        if len > width(network) {
            return Err(PrefixError::TooLong { network, len });
        }
        if let IpAddr::V6(v6) = network
            && v6.to_ipv4_mapped().is_some()
        {
            return Err(PrefixError::V4Mapped { network: v6, len });
        }

        let prefix = Self { network: truncate(network, len), len };
        if prefix.network != network {
            return Err(PrefixError::HostBitsSet { network, len, meant: prefix });
        }

        Ok(prefix)
    }

    /// The prefix that holds `address` alone.
    #[must_use]
    pub const fn of_host(address: IpAddr) -> Self {
        Self { network: address, len: width(address) }
    }

    /// The lowest address.
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// Length in bits, 0 to 32 or 0 to 128.
    #[must_use]
    pub const fn len_bits(&self) -> u8 {
        self.len
    }

    /// Whether this is an IPv4 prefix; it is an IPv6 prefix otherwise.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.network.is_ipv4()
    }

    /// Whether `address` lies inside.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.is_ipv4() == address.is_ipv4() && truncate(address, self.len) == self.network
    }

    /// Whether the two share at least one address. Of two prefixes that do, one contains the other.
    #[must_use]
    pub fn overlaps(&self, other: Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// Whether every address of `other` lies inside.
    #[must_use]
    pub fn covers(&self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.network)
    }

    /// The same prefix as a type of the crate `ipnet`.
    #[must_use]
    pub fn to_net(&self) -> IpNet {
        IpNet::new_assert(self.network, self.len)
    }

    /// Whether it holds one address alone.
    #[must_use]
    pub const fn is_host(&self) -> bool {
        self.len == width(self.network)
    }

    /// The address in this prefix with the host bits of `address`; `None` if that is of the other IP
    /// version.
    #[must_use]
    #[inline]
    pub fn with_host_bits_of(&self, address: IpAddr) -> Option<IpAddr> {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let host = address.to_bits() & host_mask_v4(self.len);
                Some(Ipv4Addr::from_bits(network.to_bits() | host).into())
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let host = address.to_bits() & host_mask_v6(self.len);
                Some(Ipv6Addr::from_bits(network.to_bits() | host).into())
            }
            (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
        }
    }

    /// The prefix of `len` bits around this one; `None` if this one is shorter.
    pub(crate) fn shortened(&self, len: u8) -> Option<Self> {
        (len <= self.len).then(|| Self { network: truncate(self.network, len), len })
    }

    /// The address with the same host bits in `to`, a prefix of the same
    /// length and version. `None` if `address` lies outside.
    #[inline]
    pub(crate) fn translate(&self, address: IpAddr, to: Self) -> Option<IpAddr> {
        match (self.network, address, to.network) {
            (IpAddr::V4(from), IpAddr::V4(address), IpAddr::V4(to)) => {
                let host = address.to_bits() ^ from.to_bits();
                let is_inside = host & !host_mask_v4(self.len) == 0;
                is_inside.then(|| IpAddr::V4(Ipv4Addr::from_bits(to.to_bits() | host)))
            }
            (IpAddr::V6(from), IpAddr::V6(address), IpAddr::V6(to)) => {
                let host = address.to_bits() ^ from.to_bits();
                let is_inside = host & !host_mask_v6(self.len) == 0;
                is_inside.then(|| IpAddr::V6(Ipv6Addr::from_bits(to.to_bits() | host)))
            }
            (IpAddr::V4(_) | IpAddr::V6(_), _, _) => None,
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `address/length`; an address alone is a prefix of full length.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let not_a_prefix = || PrefixError::NotAPrefix { text: text.chars().take(64).collect() };
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| not_a_prefix())?;
        let len = match len {
            // `u8::from_str` accepts a sign, but a prefix length has none.
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                len.parse().map_err(|_| not_a_prefix())?
            }
            Some(_) => return Err(not_a_prefix()),
            None => width(address),
        };

        Self::new(address, len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text or a pair of network and length is no [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum PrefixError {
    /// Neither `address/length` nor an address.
    #[error("{text:?} is no prefix: write it like 10.244.0.0/16 or fd00:10:244::/56")]
    NotAPrefix { text: String },
    /// `len` has more bits than the address.
    #[error("{network}/{len} is too long: at most /{}", width(*network))]
    TooLong { network: IpAddr, len: u8 },
    /// `network` has bits set below `len`.
    #[error("{network}/{len} has host bits set: write {meant} or {network}/{}", width(*network))]
    HostBitsSet { network: IpAddr, len: u8, meant: Prefix },
    /// An IPv4-mapped IPv6 address.
    #[error("{network}/{len} is an IPv4-mapped prefix: write it as IPv4")]
    V4Mapped { network: Ipv6Addr, len: u8 },
}

/// Bits of an address of this version.
const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn truncate(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !host_mask_v4(len)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !host_mask_v6(len)).into(),
    }
}

/// The host bits of an IPv4 prefix of `len` bits.
pub(crate) fn host_mask_v4(len: u8) -> u32 {
    u32::MAX.checked_shr(u32::from(len)).unwrap_or(0)
}

/// The host bits of an IPv6 prefix of `len` bits.
pub(crate) fn host_mask_v6(len: u8) -> u128 {
    u128::MAX.checked_shr(u32::from(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_prefixes_are_rejected_with_a_remedy() {
        let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();

        assert_eq!(
            error("10.244.3.0/16"),
            "10.244.3.0/16 has host bits set: write 10.244.0.0/16 or 10.244.3.0/32"
        );
        assert_eq!(error("10.0.0.0/33"), "10.0.0.0/33 is too long: at most /32");
        assert_eq!(error("fd00::/129"), "fd00::/129 is too long: at most /128");
        assert!(error("::ffff:10.0.0.0/104").contains("write it as IPv4"));
        for text in
            ["", "10.0.0.0/", "10.0.0/8", "10.0.0.0/+8", "10.0.0.0/8/8", "a/8", "10.0.0.0/256"]
        {
            assert!(error(text).contains("is no prefix"), "{text}");
        }
    }

    #[test]
    fn bare_address_is_a_host_prefix() {
        let prefix: Prefix = "169.254.18.1".parse().unwrap();

        assert_eq!(prefix.to_string(), "169.254.18.1/32");
    }

    #[test]
    fn length_zero_contains_its_ip_version() {
        let all: Prefix = "0.0.0.0/0".parse().unwrap();

        assert!(all.contains("255.255.255.255".parse().unwrap()));
        assert!(!all.contains("::".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn parsing_restores_the_printed_prefix(prefix in any_prefix()) {
            prop_assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
        }

        #[test]
        fn contains_compares_every_prefix_bit(prefix in any_prefix(), bits: u128) {
            let (address, expected) = match prefix.network() {
                IpAddr::V4(network) => {
                    let address = network.to_bits() ^ (u32::try_from(bits >> 96).unwrap() >> 8);
                    let agree = (address ^ network.to_bits()).leading_zeros();
                    (IpAddr::V4(address.into()), agree >= u32::from(prefix.len_bits()))
                }
                IpAddr::V6(network) => {
                    let address = network.to_bits() ^ (bits >> 32);
                    let agree = (address ^ network.to_bits()).leading_zeros();
                    (IpAddr::V6(address.into()), agree >= u32::from(prefix.len_bits()))
                }
            };

            prop_assert_eq!(prefix.contains(address), expected);
        }

        #[test]
        fn overlap_means_one_covers_the_other(
            a in any_prefix(),
            b in any_prefix(),
        ) {
            prop_assert_eq!(a.overlaps(b), b.overlaps(a));
            prop_assert_eq!(a.overlaps(b), a.covers(b) || b.covers(a));
        }
    }

    fn any_prefix() -> impl Strategy<Value = Prefix> {
        prop_oneof![
            (any::<u32>(), 0u8..=32).prop_map(|(bits, len)| {
                let network = IpAddr::V4(bits.into());
                Prefix::new(truncate(network, len), len).unwrap()
            }),
            (any::<u128>(), 0u8..=128).prop_filter_map("IPv4-mapped", |(bits, len)| {
                let network = IpAddr::V6(bits.into());
                Prefix::new(truncate(network, len), len).ok()
            }),
        ]
    }
}
