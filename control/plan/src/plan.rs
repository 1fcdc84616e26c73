//! The pure half of configuration: desired peers in, one table and the rejections out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remap::{Cluster, Conflict, PeerId, Prefix, PrefixMap, Rule, Table};

/// The input of planning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanInput {
    /// The prefixes of this cluster.
    pub cluster: Cluster,
    /// The remote peers.
    pub peers: Vec<DesiredPeer>,
}

/// The desired state of one peer, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredPeer {
    /// Unique among all peers.
    pub name: String,
    /// The addresses of its gateway, as far as they are known.
    pub endpoints: Vec<IpAddr>,
    /// The remote's real prefixes.
    pub allowed_ips: Vec<Prefix>,
    /// The rules from the remote's prefixes to local ones.
    pub remaps: Vec<Rule>,
}

/// The outcome of planning.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The table to publish. [`PeerId`] `n` is the `n`th desired peer.
    pub table: Table,
    /// What is not in force, and why.
    pub rejected: Vec<Rejection>,
}

/// Computes the table for `generation` from all desired peers.
///
/// Of two that contradict each other, the first in the list is kept.
#[must_use]
pub fn plan(generation: u64, wanted: &PlanInput) -> Plan {
    let PlanInput { cluster, peers } = wanted;
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

    let (table, conflicts) = Table::build(generation, cluster, rules);
    rejected.extend(conflicts.into_iter().map(|conflict| rejection(peers, conflict)));

    Plan { table, rejected }
}

/// The part of `wanted` that can be in force, and the rejections.
///
/// The remote prefix of a rejected rule is removed too: under its real addresses it could be mistaken for a prefix of
/// this cluster.
#[must_use]
pub(crate) fn without_rejected(mut wanted: PlanInput) -> (PlanInput, Vec<Rejection>) {
    let Plan { table, rejected } = plan(0, &wanted);
    for (id, peer) in ids().zip(&mut wanted.peers) {
        let kept: Vec<Rule> = table.rules(id).collect();
        let lost: Vec<Prefix> =
            peer.remaps.iter().filter(|rule| !kept.contains(rule)).map(Rule::remote).collect();
        peer.remaps.retain(|rule| kept.contains(rule));
        peer.allowed_ips.retain(|prefix| !lost.contains(prefix));
    }

    (wanted, rejected)
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
fn allowed_rules(peers: &[DesiredPeer], rejected: &mut Vec<Rejection>) -> Vec<(PeerId, Rule)> {
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

fn gateways(peers: &[DesiredPeer]) -> PrefixMap<PeerId> {
    let gateways = ids().zip(peers).flat_map(|(id, peer)| {
        peer.endpoints.iter().map(move |address| (Prefix::of_host(*address), id))
    });

    PrefixMap::new(gateways)
}

fn rejection(peers: &[DesiredPeer], conflict: Conflict) -> Rejection {
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
    fn new(peers: &[DesiredPeer], rules: &[(PeerId, Rule)], rejected: &mut Vec<Rejection>) -> Self {
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

fn duplicate_names(wanted: &[DesiredPeer]) -> Vec<Rejection> {
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

fn name(wanted: &[DesiredPeer], id: PeerId) -> String {
    let peer = usize::try_from(id.0).ok().and_then(|index| wanted.get(index));

    peer.map_or_else(String::new, |peer| peer.name.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remap::HostMap;

    use super::*;

    #[test]
    fn local_prefixes_distinguish_overlapping_clusters() {
        let wanted = [
            peer("rome", &["10.244.0.0/16"], &[("10.244.0.0/16", "10.71.0.0/16")]),
            peer("oslo", &["10.244.0.0/16"], &[("10.244.0.0/16", "10.72.0.0/16")]),
        ];

        let plan = plan(3, &peers(&wanted));

        assert_eq!(plan.rejected, []);
        assert_eq!(plan.table.generation(), 3);
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

            let plan = plan(1, &peers(&wanted));

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

        let plan = plan(1, &peers(&wanted));

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("give each peer a name of its own"));
        assert!(texts[1].contains("10.9.0.0/16 is in the allowed_ips of peer \"rome\" too"));
    }

    #[test]
    fn a_local_prefix_around_an_endpoint_is_rejected() {
        let mut wanted = peers(&[
            peer("rome", &["10.244.0.0/16"], &[("10.244.0.0/16", "192.0.0.0/16")]),
            peer("oslo", &["10.9.0.0/16"], &[]),
        ]);
        wanted.peers[1].endpoints = vec![ip("198.51.100.1"), ip("192.0.2.1")];

        let plan = plan(1, &wanted);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].contains("rome") && texts[0].contains("oslo"), "{}", texts[0]);
        assert!(texts[0].contains("192.0.0.0/16 contains 192.0.2.1"), "{}", texts[0]);
    }

    #[test]
    fn a_rejected_rule_removes_its_prefix_alone() {
        let mut wanted = peers(&[peer(
            "rome",
            &["169.254.18.1/32", "10.244.0.0/16", "10.9.0.0/16"],
            &[("10.244.0.0/16", "192.0.0.0/16"), ("10.9.0.0/16", "10.71.0.0/16")],
        )]);
        wanted.peers[0].endpoints = vec![ip("192.0.2.1")];

        let (left, rejected) = without_rejected(wanted.clone());

        let expected =
            peer("rome", &["169.254.18.1/32", "10.9.0.0/16"], &[("10.9.0.0/16", "10.71.0.0/16")]);
        assert_eq!(
            left.peers,
            [DesiredPeer { endpoints: wanted.peers[0].endpoints.clone(), ..expected }]
        );
        assert_eq!(rejected.len(), 1, "{rejected:?}");
        assert_eq!(without_rejected(left.clone()), (left, Vec::new()));
    }

    #[test]
    fn a_local_prefix_of_this_cluster_is_rejected() {
        let mut wanted =
            peers(&[peer("rome", &["10.9.0.0/16"], &[("10.9.0.0/16", "10.244.0.0/16")])]);
        wanted.cluster.prefixes.push("10.244.0.0/16".parse().unwrap());

        let plan = plan(1, &wanted);

        let texts: Vec<_> = plan.rejected.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("peer \"rome\": local 10.244.0.0/16 overlaps 10.244.0.0/16"));
    }

    #[test]
    fn contradicting_host_maps_concern_the_cluster() {
        let map = |external| HostMap::new(ip("192.0.2.9"), ip(external)).unwrap();
        let host_maps = vec![map("10.70.0.5"), map("10.70.0.6")];
        let wanted =
            PlanInput { cluster: Cluster { host_maps, ..Cluster::default() }, peers: Vec::new() };

        let plan = plan(1, &wanted);

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

            let plan = plan(1, &peers(&wanted));

            let in_force: usize = (0..3).map(|id| plan.table.rules(PeerId(id)).count()).sum();
            let rejected = plan
                .rejected
                .iter()
                .filter(|rejection| !matches!(rejection, Rejection::SharedPrefix { .. }))
                .count();
            prop_assert_eq!(in_force + rejected, remaps.len());
        }
    }

    fn peers(peers: &[DesiredPeer]) -> PlanInput {
        PlanInput { cluster: Cluster::default(), peers: peers.to_vec() }
    }

    fn peer(name: &str, allowed_ips: &[&str], remaps: &[(&str, &str)]) -> DesiredPeer {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();

        DesiredPeer {
            name: name.into(),
            endpoints: Vec::new(),
            allowed_ips: allowed_ips.iter().map(|text| prefix(text)).collect(),
            remaps: remaps.iter().map(|(r, l)| Rule::new(prefix(r), prefix(l)).unwrap()).collect(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
