//! One remap rule: a one-to-one mapping between two prefixes of equal length.

use std::fmt;
use std::net::IpAddr;

use crate::Prefix;

/// A mapping between what a remote cluster calls its addresses and what we call them.
///
/// A `Rule` that exists is valid: both prefixes have the same version and the same length, and they
/// differ. Two prefixes of equal length are equal or disjoint, so a translated address never lies in
/// the prefix it came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    remote: Prefix,
    local: Prefix,
}

impl Rule {
    /// Pairs the remote's own name for a prefix with our name for it.
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

        Ok(Self { remote, local })
    }

    /// The prefix as the remote cluster calls it, and as it stands on the wire between gateways.
    #[must_use]
    pub const fn remote(&self) -> Prefix {
        self.remote
    }

    /// The prefix as this cluster calls it.
    #[must_use]
    pub const fn local(&self) -> Prefix {
        self.local
    }

    /// Outbound: our name for an address becomes the remote's. `None` if the rule does not cover it.
    #[must_use]
    #[inline]
    pub fn to_remote(&self, address: IpAddr) -> Option<IpAddr> {
        self.local.translate(address, self.remote)
    }

    /// Inbound: the remote's name for an address becomes ours. `None` if the rule does not cover it.
    #[must_use]
    #[inline]
    pub fn to_local(&self, address: IpAddr) -> Option<IpAddr> {
        self.remote.translate(address, self.local)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.remote, self.local)
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
    /// They hold a different number of addresses, so no one-to-one mapping exists.
    #[error(
        "remote {remote} and local {local} differ in length: choose a local prefix of /{}",
        remote.len_bits()
    )]
    LengthMismatch { remote: Prefix, local: Prefix },
    /// Nothing would change.
    #[error("{prefix} is remapped to itself: leave the remap out, allowed_ips is enough")]
    Identity { prefix: Prefix },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_bits_survive_in_both_directions() {
        let rule = rule("10.244.0.0/16", "10.71.0.0/16");

        assert_eq!(rule.to_remote(ip("10.71.2.7")), Some(ip("10.244.2.7")));
        assert_eq!(rule.to_local(ip("10.244.255.255")), Some(ip("10.71.255.255")));
    }

    #[test]
    fn an_address_outside_is_not_translated() {
        let rule = rule("10.244.0.0/16", "10.71.0.0/16");

        assert_eq!(rule.to_remote(ip("10.72.0.0")), None);
        assert_eq!(rule.to_remote(ip("10.244.0.1")), None, "that is the other direction");
        assert_eq!(rule.to_local(ip("fd00::1")), None);
    }

    #[test]
    fn prefixes_that_cannot_be_paired_are_named_with_the_remedy() {
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

    proptest! {
        /// Every length, both versions: out and back is the identity, and nothing is hit twice.
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
