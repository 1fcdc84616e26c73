//! Cryptokey routing: the peer that packets to an address go to, and the peer that may send from it.
//!
//! There are two kinds of peers:
//!
//! - A peer *with* remap rules is a realm of its own. Its allowed IPs hold addresses as used in the remote realm,
//!   which may overlap with another peer's and with our own. Only its own set decides what it may send.
//! - A peer *without* rules shares our realm. As in the kernel, an address belongs to the peer with
//!   the longest prefix among all such peers.
//!
//! The prefixes of a peer with rules that lie outside every `remote` prefix of its rules (its tunnel
//! address, say) are addresses of our realm too, so they take part in the shared map.
//!
//! Source: WireGuard whitepaper, section 2 "Cryptokey Routing".

use std::net::IpAddr;
use std::sync::Arc;

use remap::lpm::Lpm;
use remap::{PeerId, Prefix, PrefixMap, Table};

/// The allowed IPs of all peers of one generation.
#[derive(Debug, Default)]
pub struct AllowedIps {
    shared: Lpm<PeerId>,
    realms: Vec<Option<Lpm<()>>>,
    /// The configured list of each peer, shared with the configuration.
    given: Vec<Arc<[Prefix]>>,
}

impl AllowedIps {
    /// Builds the maps. `peers` yields the allowed IPs of each peer in the order of their ids.
    ///
    /// Where two peers claim one prefix of the shared map, the last one has it, as with `wg set`.
    #[must_use]
    pub fn new(peers: impl IntoIterator<Item = Arc<[Prefix]>>, table: &Table) -> Self {
        let given: Vec<_> = peers.into_iter().collect();
        let mut shared = Vec::with_capacity(given.iter().map(|prefixes| prefixes.len()).sum());
        let mut realms = Vec::with_capacity(given.len());

        for (id, prefixes) in (0..).map(PeerId).zip(&given) {
            let remotes = PrefixMap::new(table.rules(id).map(|rule| (rule.remote(), ())));
            for prefix in &**prefixes {
                if remotes.overlapping(*prefix).next().is_none() {
                    shared.push((*prefix, id));
                }
            }
            realms.push(table.has_rules(id).then(|| unique(prefixes)));
        }
        // The sort is stable: of the peers with the same prefix, the last one stays last.
        shared.sort_by_key(|(prefix, _)| *prefix);
        shared.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                first.1 = later.1;
            }
            is_same
        });

        Self { shared: Lpm::new(shared).unwrap_or_default(), realms, given }
    }

    /// The peer to send to for a destination that no rule remaps.
    #[must_use]
    #[inline]
    pub fn owner(&self, destination: IpAddr) -> Option<PeerId> {
        self.shared.lookup(destination)
    }

    /// Whether `peer` may send packets from `source`, an address as it stands on the wire.
    #[must_use]
    #[inline]
    pub fn allows(&self, peer: PeerId, source: IpAddr) -> bool {
        let realm = usize::try_from(peer.0).ok().and_then(|index| self.realms.get(index));

        match realm {
            Some(Some(realm)) => realm.lookup(source).is_some(),
            Some(None) => self.owner(source) == Some(peer),
            None => false,
        }
    }

    /// The longest allowed prefix of `peer` that covers `address`, if `peer` may send from it or owns it. Linear in
    /// the number of prefixes: for `explain`, not for packets.
    #[must_use]
    pub fn covering(&self, peer: PeerId, address: IpAddr) -> Option<Prefix> {
        let given = usize::try_from(peer.0).ok().and_then(|index| self.given.get(index))?;
        // If another peer had a longer prefix, it would own the address.
        if !self.allows(peer, address) && self.owner(address) != Some(peer) {
            return None;
        }

        let covering = given.iter().copied().filter(|prefix| prefix.contains(address));
        covering.max_by_key(Prefix::len_bits)
    }
}

fn unique(prefixes: &[Prefix]) -> Lpm<()> {
    let set: std::collections::BTreeSet<Prefix> = prefixes.iter().copied().collect();

    Lpm::new(set.into_iter().map(|prefix| (prefix, ()))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use remap::{Cluster, Rule};

    use super::*;

    #[test]
    fn the_longest_prefix_owns_an_address() {
        let wide = [prefix("10.0.0.0/8")];
        let narrow = [prefix("10.1.0.0/16")];

        let allowed = AllowedIps::new([wide, narrow].map(Arc::from), &Table::default());

        assert!(allowed.allows(PeerId(0), ip("10.2.0.1")));
        assert!(!allowed.allows(PeerId(0), ip("10.1.0.1")), "owned by the narrower prefix");
        assert!(allowed.allows(PeerId(1), ip("10.1.0.1")));
        assert_eq!(allowed.owner(ip("11.0.0.1")), None);
    }

    #[test]
    fn peers_with_rules_may_overlap() {
        let pods = [prefix("10.244.0.0/16")];
        let table =
            table(&[(0, "10.244.0.0/16", "10.71.0.0/16"), (1, "10.244.0.0/16", "10.72.0.0/16")]);

        let allowed = AllowedIps::new([pods, pods].map(Arc::from), &table);

        assert!(allowed.allows(PeerId(0), ip("10.244.1.1")));
        assert!(allowed.allows(PeerId(1), ip("10.244.1.1")));
        assert_eq!(allowed.owner(ip("10.244.1.1")), None, "reachable under its remapped name only");
    }

    #[test]
    fn an_address_outside_all_rules_is_shared() {
        let prefixes = [prefix("10.244.0.0/16"), prefix("169.254.18.1/32")];
        let table = table(&[(0, "10.244.0.0/16", "10.71.0.0/16")]);

        let allowed = AllowedIps::new([prefixes].map(Arc::from), &table);

        assert_eq!(allowed.owner(ip("169.254.18.1")), Some(PeerId(0)));
        assert!(allowed.allows(PeerId(0), ip("169.254.18.1")));
    }

    #[test]
    fn the_last_peer_with_a_prefix_owns_it() {
        let prefixes = [prefix("10.1.0.0/16"), prefix("10.2.0.0/16")];

        let peers = [&prefixes[..], &prefixes[..1], &prefixes[..1]].map(Arc::from);
        let allowed = AllowedIps::new(peers, &Table::default());

        assert_eq!(allowed.owner(ip("10.1.0.1")), Some(PeerId(2)));
        assert_eq!(allowed.owner(ip("10.2.0.1")), Some(PeerId(0)));
        let covering = [0, 1, 2].map(|id| allowed.covering(PeerId(id), ip("10.1.0.1")));
        assert_eq!(covering, [None, None, Some(prefixes[0])]);
    }

    #[test]
    fn an_unknown_peer_may_send_nothing() {
        let allowed = AllowedIps::new([], &Table::default());

        assert!(!allowed.allows(PeerId(7), ip("10.0.0.1")));
    }

    fn table(rules: &[(u32, &str, &str)]) -> Table {
        let rules = rules.iter().map(|(peer, remote, local)| {
            (PeerId(*peer), Rule::new(prefix(remote), prefix(local)).unwrap())
        });

        Table::build(1, &Cluster::default(), rules).0
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
