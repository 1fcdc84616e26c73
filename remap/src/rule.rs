//! One remap rule: a one-to-one mapping between two prefixes of equal length.

use std::fmt;
use std::net::IpAddr;

use crate::Prefix;
use crate::nptv6::{self, Adjustment};

/// Translates between a `remote` (real) prefix of a remote cluster and the `local` (remapped) prefix that
/// stands for it in this cluster.
///
/// A `Rule` that exists is valid: both prefixes have the same version and the same length, and they
/// differ. Host bits are kept, unless the rule is [checksum-neutral](Self::checksum_neutral). Two
/// prefixes of equal length are equal or disjoint, so a translated address never lies in
/// the prefix it came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    remote: Prefix,
    local: Prefix,
    /// From `local` to `remote`, for a checksum-neutral rule.
    adjustment: Option<Adjustment>,
}

impl Rule {
    /// Pairs a real prefix of the remote cluster with the prefix that stands for it here.
    ///
    /// # Errors
    ///
    /// - [`RuleError::VersionMismatch`] if one is IPv4 and the other IPv6.
    /// - [`RuleError::LengthMismatch`] if they hold a different number of addresses.
    /// - [`RuleError::Identity`] if they are the same.
    pub fn new(remote: Prefix, local: Prefix) -> Result<Self, RuleError> {
        if remote.is_ipv4() != local.is_ipv4() {
            return Err(RuleError::VersionMismatch { remote, local });
        }
        if remote.len_bits() != local.len_bits() {
            return Err(RuleError::LengthMismatch { remote, local });
        }
        if remote == local {
            return Err(RuleError::Identity { prefix: remote });
        }

        Ok(Self { remote, local, adjustment: None })
    }

    /// Pairs two IPv6 prefixes so that translation keeps the sum of an address: no
    /// transport checksum has to change, but host bits are not kept (RFC 6296).
    ///
    /// The two gateways of a tunnel choose independently; the remote does not notice.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and
    /// - [`RuleError::NeutralIpv4`] if the prefixes are IPv4: there is no word to compensate the change.
    /// - [`RuleError::NeutralTooLong`] if they leave no whole 16-bit word.
    pub fn checksum_neutral(remote: Prefix, local: Prefix) -> Result<Self, RuleError> {
        let rule = Self::new(remote, local)?;
        let (IpAddr::V6(to), IpAddr::V6(from)) = (remote.network(), local.network()) else {
            return Err(RuleError::NeutralIpv4 { remote, local });
        };
        if remote.len_bits() > nptv6::MAX_LEN {
            return Err(RuleError::NeutralTooLong { remote, local });
        }

        let adjustment = Adjustment::between(from.to_bits(), to.to_bits());
        Ok(Self { adjustment: Some(adjustment), ..rule })
    }

    /// Whether translation keeps the sum of an address instead of its host bits.
    #[must_use]
    pub const fn is_checksum_neutral(&self) -> bool {
        self.adjustment.is_some()
    }

    /// The real prefix: in the remote cluster, and on the wire between gateways.
    #[must_use]
    pub const fn remote(&self) -> Prefix {
        self.remote
    }

    /// The remapped prefix: in this cluster.
    #[must_use]
    pub const fn local(&self) -> Prefix {
        self.local
    }

    /// Outbound: translates a remapped address to the real one. `None` if the rule does not cover it,
    /// or if it has no counterpart (checksum-neutral rules only).
    #[must_use]
    #[inline]
    pub fn to_remote(&self, address: IpAddr) -> Option<IpAddr> {
        match self.adjustment {
            None => self.local.translate(address, self.remote),
            Some(adjustment) => adjusted(address, self.local, self.remote, adjustment),
        }
    }

    /// Inbound: translates a real address to the remapped one. `None` if the rule does not cover it,
    /// or if it has no counterpart (checksum-neutral rules only).
    #[must_use]
    #[inline]
    pub fn to_local(&self, address: IpAddr) -> Option<IpAddr> {
        match self.adjustment {
            None => self.remote.translate(address, self.local),
            Some(adjustment) => adjusted(address, self.remote, self.local, adjustment.inverse()),
        }
    }
}

fn adjusted(address: IpAddr, from: Prefix, to: Prefix, adjustment: Adjustment) -> Option<IpAddr> {
    match (address, to.network()) {
        (IpAddr::V6(bits), IpAddr::V6(network)) if from.contains(address) => adjustment
            .apply(bits.to_bits(), network.to_bits(), to.len_bits())
            .map(|bits| IpAddr::V6(bits.into())),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.remote, self.local)?;

        if self.is_checksum_neutral() { f.write_str(" (checksum-neutral)") } else { Ok(()) }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why two prefixes form no [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum RuleError {
    /// One is IPv4 and the other IPv6.
    #[error("remote {remote} and local {local} are not of the same IP version")]
    VersionMismatch { remote: Prefix, local: Prefix },
    /// They differ in length, so no one-to-one translation exists.
    #[error(
        "remote {remote} and local {local} differ in length: choose a local prefix of /{}",
        remote.len_bits()
    )]
    LengthMismatch { remote: Prefix, local: Prefix },
    /// Only IPv6 addresses have a word to compensate the change.
    #[error("remote {remote} and local {local} are IPv4: checksum_neutral is for IPv6 only")]
    NeutralIpv4 { remote: Prefix, local: Prefix },
    /// No whole word is left outside the prefix.
    #[error(
        "remote {remote} and local {local} are too long for checksum_neutral: at most /{}",
        nptv6::MAX_LEN
    )]
    NeutralTooLong { remote: Prefix, local: Prefix },
    /// Both are the same prefix.
    #[error("{prefix} is remapped to itself: leave the remap out, allowed_ips is enough")]
    Identity { prefix: Prefix },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_bits_are_kept() {
        let rule = rule("10.244.0.0/16", "10.71.0.0/16");

        assert_eq!(rule.to_remote(ip("10.71.2.7")), Some(ip("10.244.2.7")));
        assert_eq!(rule.to_local(ip("10.244.255.255")), Some(ip("10.71.255.255")));
    }

    #[test]
    fn addresses_outside_are_not_translated() {
        let rule = rule("10.244.0.0/16", "10.71.0.0/16");

        assert_eq!(rule.to_remote(ip("10.72.0.0")), None);
        assert_eq!(rule.to_remote(ip("10.244.0.1")), None, "that is the other direction");
        assert_eq!(rule.to_local(ip("fd00::1")), None);
    }

    #[test]
    fn invalid_pairs_are_rejected_with_a_remedy() {
        let error = |remote: &str, local: &str| {
            Rule::new(prefix(remote), prefix(local)).unwrap_err().to_string()
        };

        assert_eq!(
            error("10.244.0.0/16", "10.71.0.0/17"),
            "remote 10.244.0.0/16 and local 10.71.0.0/17 differ in length: choose a local prefix of /16"
        );
        assert!(error("10.244.0.0/16", "fd00::/16").contains("not of the same IP version"));
        assert!(error("10.244.0.0/16", "10.244.0.0/16").contains("remapped to itself"));
    }

    #[test]
    fn neutral_rules_need_short_ipv6_prefixes() {
        let error = |remote: &str, local: &str| {
            Rule::checksum_neutral(prefix(remote), prefix(local)).unwrap_err().to_string()
        };

        assert!(error("10.244.0.0/16", "10.71.0.0/16").contains("for IPv6 only"));
        assert!(error("fd00::/113", "fd01::/113").contains("at most /112"));
    }

    #[test]
    fn neutral_rules_translate_both_ways() {
        let rule =
            Rule::checksum_neutral(prefix("2001:db8:1::/48"), prefix("fd01:203:405::/48")).unwrap();

        assert_eq!(rule.to_remote(ip("fd01:203:405:1::1234")), Some(ip("2001:db8:1:d550::1234")));
        assert_eq!(rule.to_local(ip("2001:db8:1:d550::1234")), Some(ip("fd01:203:405:1::1234")));
        assert_eq!(rule.to_remote(ip("fd01:203:405:ffff::1")), None, "it has no counterpart");
        assert_eq!(rule.to_remote(ip("fd01:203:406:1::1234")), None, "it is not covered");
    }

    proptest! {
        /// Every length, both versions: the round trip is the identity, and no two addresses coincide.
        #[test]
        fn translation_is_a_bijection(
            remote: u128,
            local: u128,
            hosts: [u128; 2],
            len in 0u8..=128,
            is_ipv4: bool,
        ) {
            let Some((rule, [a, b])) = any_rule(remote, local, hosts, len, is_ipv4) else {
                return Ok(());
            };

            let remote_a = rule.to_remote(a).unwrap();
            prop_assert!(rule.remote().contains(remote_a));
            prop_assert_eq!(rule.to_local(remote_a), Some(a));
            prop_assert_eq!(a == b, rule.to_remote(b) == Some(remote_a));
        }
    }

    fn any_rule(
        remote: u128,
        local: u128,
        hosts: [u128; 2],
        len: u8,
        is_ipv4: bool,
    ) -> Option<(Rule, [IpAddr; 2])> {
        let len = if is_ipv4 { len.min(32) } else { len };
        let address = |bits: u128| match is_ipv4 {
            true => IpAddr::V4(u32::try_from(bits >> 96).unwrap().into()),
            false => IpAddr::V6(bits.into()),
        };
        let mask = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
        let network = |bits: u128| Prefix::new(address(bits & !mask), len).ok();
        let rule = Rule::new(network(remote)?, network(local)?).ok()?;

        Some((rule, hosts.map(|host| address((local & !mask) | (host & mask)))))
    }

    fn rule(remote: &str, local: &str) -> Rule {
        Rule::new(prefix(remote), prefix(local)).unwrap()
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
