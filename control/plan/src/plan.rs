//! The pure half of configuration: desired peers in, one table and the rejections out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remap::{Cluster, Conflict, PeerId, Prefix, PrefixMap, Rule, Table};

use crate::peer::Peer;

/// The outcome of planning.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The table to publish. [`PeerId`] `n` is the `n`th desired peer.
    pub table: Table,
    /// What is not in force, and why.
    pub rejected: Vec<Rejection>,
}

/// Computes the table of all desired peers, and of the prefixes of this cluster.
///
/// Of two that contradict each other, the first in the list is kept.
#[must_use]
pub fn plan<K>(cluster: &Cluster, peers: &[Peer<K>]) -> Plan {
    let mut rejected = duplicate_names(peers);
    let mut rules = allowed_rules(peers, &mut rejected);

    let direct = Direct::new(peers, &rules, &mut rejected);
    let gateways = gateways(peers);
    rules.retain(|(id, rule)| {
        let local = rule.local();
        let is_loop = gateways.inside(local).next();
        let in_the_way = direct.conflicting_owner(*id, *rule);
        let rejection = match (is_loop, in_the_way) {
            (Some((endpoint, owner)), _) => {
                let (peer, owner) = (name(peers, *id), name(peers, *owner));
                Rejection::Loop { peer, local, owner, endpoint: endpoint.network() }
            }
            (None, Some((owner, prefix))) => {
                let (peer, owner) = (name(peers, *id), name(peers, owner));
                Rejection::LocalIsReal { peer, local, owner, prefix }
            }
            (None, None) => return true,
        };
        rejected.push(rejection);
        false
    });

    let (table, conflicts) = Table::build(0, cluster, rules);
    rejected.extend(conflicts.into_iter().map(|conflict| rejection(peers, conflict)));

    Plan { table, rejected }
}

/// Removes from `peers` what is not in their `table`.
///
/// The remote prefix of a rejected rule is removed too: under its real addresses it could be mistaken for a prefix of
/// this cluster.
pub(crate) fn remove_rejected<K>(table: &Table, peers: &mut [Peer<K>]) {
    for (id, peer) in ids().zip(peers) {
        let kept: Vec<Rule> = table.rules(id).collect();
        let lost: Vec<Prefix> =
            peer.remaps.iter().filter(|rule| !kept.contains(rule)).map(Rule::remote).collect();
        if !lost.is_empty() {
            peer.remaps.retain(|rule| kept.contains(rule));
            let allowed = peer.allowed_ips.iter().filter(|prefix| !lost.contains(prefix));
            peer.allowed_ips = allowed.copied().collect();
        }
    }
}

/// A part of the desired state that is not in force. The text is for an operator who sees nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Rejection {
    /// Two peers have one name. Both are planned; metrics could not tell them apart.
    #[error("peer {name:?} is there twice: give each peer a name of its own")]
    DuplicateName { name: String },
    /// No packet from there would pass the source check.
    #[error(
        "peer {peer:?}: remote {remote} is in no allowed_ips of the peer, so nothing from there would be let in: add it"
    )]
    NotAllowed { peer: String, remote: Prefix },
    /// The local prefix of a rule is a real prefix of another peer.
    #[error(
        "peer {peer:?}: local {local} overlaps {prefix} in the allowed_ips of peer {owner:?}, which is reached without a remap: choose another local prefix"
    )]
    LocalIsReal { peer: String, local: Prefix, owner: String, prefix: Prefix },
    /// The local prefix of a rule contains the endpoint of a peer: its encrypted packets would be routed into their own
    /// tunnel.
    #[error(
        "peer {peer:?}: local {local} contains {endpoint}, the endpoint of peer {owner:?}, so the tunnel would run inside itself: choose another local prefix"
    )]
    Loop { peer: String, local: Prefix, owner: String, endpoint: IpAddr },
    /// Two rules contradict each other.
    #[error("peer {peer:?} (against peer {other:?}): {conflict}")]
    Conflict { peer: String, other: String, conflict: Conflict },
    /// A rule contradicts a prefix of this cluster.
    #[error("peer {peer:?}: {conflict}")]
    Own { peer: String, conflict: Conflict },
    /// The prefixes of this cluster contradict each other.
    #[error("cluster: {conflict}")]
    Cluster { conflict: Conflict },
    /// Two peers without a rule for it claim one prefix.
    #[error(
        "peer {peer:?}: {prefix} is in the allowed_ips of peer {other:?} too: remap it for one of them, or leave it out"
    )]
    SharedPrefix { peer: String, other: String, prefix: Prefix },
}

/// The rules whose remote prefix is in the allowed IPs of the peer.
fn allowed_rules<K>(peers: &[Peer<K>], rejected: &mut Vec<Rejection>) -> Vec<(PeerId, Rule)> {
    let mut rules = Vec::new();
    for (id, peer) in ids().zip(peers) {
        let allowed = PrefixMap::new(peer.allowed_ips.iter().map(|prefix| (*prefix, ())));
        for rule in &peer.remaps {
            if allowed.covering(rule.remote()).next().is_some() {
                rules.push((id, *rule));
            } else {
                let (peer, remote) = (peer.name.clone(), rule.remote());
                rejected.push(Rejection::NotAllowed { peer, remote });
            }
        }
    }

    rules
}

fn gateways<K>(peers: &[Peer<K>]) -> PrefixMap<PeerId> {
    let gateways = ids().zip(peers).flat_map(|(id, peer)| {
        peer.endpoint_addresses().map(move |address| (Prefix::of_host(address.ip()), id))
    });

    PrefixMap::new(gateways)
}

fn rejection<K>(peers: &[Peer<K>], conflict: Conflict) -> Rejection {
    match (conflict.rejected_rule(), conflict.kept_rule()) {
        (Some((rejected, _)), Some((kept, _))) => {
            let (peer, other) = (name(peers, rejected), name(peers, kept));
            Rejection::Conflict { peer, other, conflict }
        }
        (Some((rejected, _)), None) => Rejection::Own { peer: name(peers, rejected), conflict },
        (None, _) => Rejection::Cluster { conflict },
    }
}

/// Prefixes that are reached under their real addresses: allowed IPs that no rule of the peer covers.
struct Direct {
    owners: PrefixMap<PeerId>,
}

impl Direct {
    fn new<K>(peers: &[Peer<K>], rules: &[(PeerId, Rule)], rejected: &mut Vec<Rejection>) -> Self {
        let mut owners: BTreeMap<Prefix, PeerId> = BTreeMap::new();
        let mut rules = rules;
        for (id, peer) in ids().zip(peers) {
            // The rules come in the order of their peers.
            let (of_peer, others) =
                rules.split_at(rules.iter().take_while(|(owner, _)| *owner == id).count());
            rules = others;
            let remotes = PrefixMap::new(of_peer.iter().map(|(_, rule)| (rule.remote(), ())));
            let is_direct = |prefix: &&Prefix| remotes.overlapping(**prefix).next().is_none();
            for prefix in peer.allowed_ips.iter().filter(is_direct) {
                match owners.get(prefix) {
                    Some(other) if *other != id => rejected.push(Rejection::SharedPrefix {
                        peer: peer.name.clone(),
                        other: name(peers, *other),
                        prefix: *prefix,
                    }),
                    Some(_) => {}
                    None => {
                        owners.insert(*prefix, id);
                    }
                }
            }
        }

        Self { owners: PrefixMap::new(owners) }
    }

    /// Another peer's real prefix that `rule` would hide. A default route hides nothing: it covers every other
    /// destination.
    fn conflicting_owner(&self, peer: PeerId, rule: Rule) -> Option<(PeerId, Prefix)> {
        self.owners
            .overlapping(rule.local())
            .find(|(prefix, owner)| **owner != peer && prefix.len_bits() > 0)
            .map(|(prefix, owner)| (*owner, prefix))
    }
}

fn duplicate_names<K>(wanted: &[Peer<K>]) -> Vec<Rejection> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for peer in wanted {
        *counts.entry(&peer.name).or_default() += 1;
    }

    counts
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|(name, _)| Rejection::DuplicateName { name: name.to_owned() })
        .collect()
}

fn ids() -> impl Iterator<Item = PeerId> {
    (0..).map(PeerId)
}

fn name<K>(wanted: &[Peer<K>], id: PeerId) -> String {
    let peer = usize::try_from(id.0).ok().and_then(|index| wanted.get(index));

    peer.map_or_else(String::new, |peer| peer.name.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remap::HostMap;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::origin::Origins;

    #[test]
    fn local_prefixes_distinguish_overlapping_clusters() {
        let wanted = [
            peer("rome", &["10.244.0.0/16"], &[("10.244.0.0/16", "10.71.0.0/16")]),
            peer("oslo", &["10.244.0.0/16"], &[("10.244.0.0/16", "10.72.0.0/16")]),
        ];

        let plan = plan(&Cluster::default(), &wanted);

        assert_eq!(plan.rejected, []);
        assert_eq!(plan.table.outbound(ip("10.72.1.2")).unwrap().peer, PeerId(1));
    }

    #[test]
    fn one_bad_rule_is_rejected_with_its_remedy() {
        let cases = [
            (("10.99.0.0/16", "10.80.0.0/16"), "is in no allowed_ips of the peer"),
            (("10.9.0.0/16", "10.71.0.0/16"), "a local prefix of its own"),
            (("10.9.0.0/16", "192.168.0.0/16"), "choose another local prefix"),
        ];

        for (bad, remedy) in cases {
            let wanted = [
                peer("rome", &["10.244.0.0/16"], &[("10.244.0.0/16", "10.71.0.0/16")]),
                peer("oslo", &["10.9.0.0/16"], &[bad]),
                peer("bern", &["192.168.7.0/24"], &[]),
            ];

            let plan = plan(&Cluster::default(), &wanted);

            let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
            assert_eq!(texts.len(), 1, "{texts:?}");
            assert!(texts[0].contains("oslo") && texts[0].contains(remedy), "{}", texts[0]);
            assert!(plan.table.outbound(ip("10.71.0.1")).is_some());
            assert!(!plan.table.has_rules(PeerId(1)));
        }
    }

    #[test]
    fn names_and_real_prefixes_belong_to_one_peer() {
        let wanted = [peer("rome", &["10.9.0.0/16"], &[]), peer("rome", &["10.9.0.0/16"], &[])];

        let plan = plan(&Cluster::default(), &wanted);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("give each peer a name of its own"));
        assert!(texts[1].contains("10.9.0.0/16 is in the allowed_ips of peer \"rome\" too"));
    }

    #[test]
    fn a_local_prefix_around_an_endpoint_is_rejected() {
        let mut wanted = [
            peer("rome", &["10.244.0.0/16"], &[("10.244.0.0/16", "192.0.0.0/16")]),
            peer("oslo", &["10.9.0.0/16"], &[]),
        ];
        wanted[1].endpoints = endpoints(&["198.51.100.1:51840", "192.0.2.1:51840"]);

        let plan = plan(&Cluster::default(), &wanted);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].contains("rome") && texts[0].contains("oslo"), "{}", texts[0]);
        assert!(texts[0].contains("192.0.0.0/16 contains 192.0.2.1"), "{}", texts[0]);
    }

    #[test]
    fn a_rejected_rule_removes_its_prefix_alone() {
        let mut wanted = [peer(
            "rome",
            &["169.254.18.1/32", "10.244.0.0/16", "10.9.0.0/16"],
            &[("10.244.0.0/16", "192.0.0.0/16"), ("10.9.0.0/16", "10.71.0.0/16")],
        )];
        wanted[0].endpoints = endpoints(&["192.0.2.1:51840"]);

        let before = plan(&Cluster::default(), &wanted);
        remove_rejected(&before.table, &mut wanted);

        let left =
            peer("rome", &["169.254.18.1/32", "10.9.0.0/16"], &[("10.9.0.0/16", "10.71.0.0/16")]);
        let after = plan(&Cluster::default(), &wanted);
        assert_eq!(wanted, [Peer { endpoints: wanted[0].endpoints.clone(), ..left }]);
        assert_eq!(before.rejected.len(), 1, "{before:?}");
        assert_eq!(after.rejected, []);
        let rules = |plan: &Plan| plan.table.rules(PeerId(0)).collect::<Vec<_>>();
        assert_eq!(rules(&after), rules(&before));
    }

    #[test]
    fn a_local_prefix_of_this_cluster_is_rejected() {
        let wanted = [peer("rome", &["10.9.0.0/16"], &[("10.9.0.0/16", "10.244.0.0/16")])];
        let prefixes = vec!["10.244.0.0/16".parse().unwrap()];

        let plan = plan(&Cluster { prefixes, ..Cluster::default() }, &wanted);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("peer \"rome\": local 10.244.0.0/16 overlaps 10.244.0.0/16"));
    }

    #[test]
    fn contradicting_host_maps_concern_the_cluster() {
        let map = |external| HostMap::new(ip("192.0.2.9"), ip(external)).unwrap();
        let host_maps = vec![map("10.70.0.5"), map("10.70.0.6")];

        let plan = plan::<[u8; 32]>(&Cluster { host_maps, ..Cluster::default() }, &[]);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("cluster: host map 192.0.2.9 as 10.70.0.6"), "{}", texts[0]);
    }

    proptest! {
        /// Every desired rule is either in the table or in exactly one rejection.
        #[test]
        fn every_rule_is_in_force_or_rejected(
            remaps in prop::collection::vec((0u8..3, 0u8..4, 0u8..4, 16u8..18), 0..12),
        ) {
            let mut wanted: Vec<_> =
                (0..3).map(|n| peer(&format!("peer-{n}"), &["10.0.0.0/8"], &[])).collect();
            for (owner, remote, local, len) in &remaps {
                let prefix = |base: u8, n: u8| {
                    Prefix::new(IpAddr::V4([10, base + n, 0, 0].into()), *len).unwrap()
                };
                let rule = Rule::new(prefix(100, *remote), prefix(200, *local)).unwrap();
                wanted[usize::from(*owner)].remaps.push(rule);
            }

            let plan = plan(&Cluster::default(), &wanted);

            let in_force: usize = (0..3).map(|id| plan.table.rules(PeerId(id)).count()).sum();
            let rejected = plan
                .rejected
                .iter()
                .filter(|rejection| !matches!(rejection, Rejection::SharedPrefix { .. }))
                .count();
            prop_assert_eq!(in_force + rejected, remaps.len());
        }
    }

    fn peer(name: &str, allowed_ips: &[&str], remaps: &[(&str, &str)]) -> Peer {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();

        Peer {
            name: name.into(),
            keys: [0; 32],
            endpoints: Vec::new(),
            persistent_keepalive: None,
            allowed_ips: allowed_ips.iter().map(|text| prefix(text)).collect(),
            remaps: remaps.iter().map(|(r, l)| Rule::new(prefix(r), prefix(l)).unwrap()).collect(),
            origins: Origins::default(),
        }
    }

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
