use std::net::IpAddr;

use super::*;
use crate::HostMap;

#[test]
fn directions_are_translated_separately() {
    let (table, _) = build(1, [rule(0, "10.244.0.0/16", "10.71.0.0/16")]);

    let outbound = table.outbound(ip("10.71.2.7")).unwrap();
    assert_eq!(outbound, Outbound { peer: PeerId(0), destination: ip("10.244.2.7") });
    assert_eq!(table.inbound(PeerId(0), ip("10.244.1.5")), Some(ip("10.71.1.5")));
    assert_eq!(table.outbound(ip("10.244.2.7")), None);
    assert_eq!(table.inbound(PeerId(0), ip("10.71.1.5")), None);
}

#[test]
fn each_peer_is_an_address_realm() {
    let (table, conflicts) = build(
        1,
        [rule(0, "10.244.0.0/16", "10.71.0.0/16"), rule(1, "10.244.0.0/16", "10.72.0.0/16")],
    );

    assert_eq!(conflicts, []);
    assert_eq!(table.inbound(PeerId(0), ip("10.244.1.5")), Some(ip("10.71.1.5")));
    assert_eq!(table.inbound(PeerId(1), ip("10.244.1.5")), Some(ip("10.72.1.5")));
    assert_eq!(table.outbound(ip("10.72.1.5")).unwrap().peer, PeerId(1));
    assert_eq!(table.inbound(PeerId(2), ip("10.244.1.5")), None);
}

#[test]
fn two_prefixes_may_swap() {
    let (table, conflicts) =
        build(1, [rule(0, "10.1.0.0/16", "10.2.0.0/16"), rule(0, "10.2.0.0/16", "10.1.0.0/16")]);

    assert_eq!(conflicts, []);
    assert_eq!(table.outbound(ip("10.2.0.9")).unwrap().destination, ip("10.1.0.9"));
    assert_eq!(table.outbound(ip("10.1.0.9")).unwrap().destination, ip("10.2.0.9"));
}

#[test]
fn longest_prefix_of_a_peer_wins() {
    let (table, conflicts) = build(
        1,
        [rule(0, "10.70.0.0/16", "10.68.0.0/16"), rule(0, "192.0.2.9/32", "10.68.0.3/32")],
    );

    assert_eq!(conflicts, []);
    assert_eq!(table.outbound(ip("10.68.0.3")).unwrap().destination, ip("192.0.2.9"));
    assert_eq!(table.outbound(ip("10.68.0.4")).unwrap().destination, ip("10.70.0.4"));
}

#[test]
fn conflicting_rules_are_rejected_one_by_one() {
    let first = rule(0, "10.244.0.0/16", "10.71.0.0/16");
    let inside = rule(1, "10.9.4.0/24", "10.71.4.0/24");
    let around = rule(1, "100.0.0.0/8", "10.0.0.0/8");
    let twice = rule(0, "10.244.0.0/16", "10.73.0.0/16");
    let good = rule(1, "10.244.0.0/16", "10.72.0.0/16");

    let (table, conflicts) = build(1, [first, inside, around, twice, good]);

    assert_eq!(
        conflicts,
        [
            Conflict::Local { kept: first, rejected: inside },
            Conflict::Local { kept: first, rejected: around },
            Conflict::Remote { kept: first, rejected: twice },
        ]
    );
    assert_eq!(table.outbound(ip("10.72.0.1")).unwrap().peer, PeerId(1));
}

#[test]
fn local_prefixes_of_a_peer_are_listed() {
    let (table, _) = build(
        7,
        [rule(1, "10.244.0.0/16", "10.71.0.0/16"), rule(1, "10.70.0.0/16", "10.68.0.0/16")],
    );

    let prefixes: Vec<_> = table.local_prefixes(PeerId(1)).map(|p| p.to_string()).collect();
    assert_eq!(prefixes, ["10.68.0.0/16", "10.71.0.0/16"]);
    assert_eq!(table.generation(), 7);
    assert!(!table.has_rules(PeerId(0)));
}

#[test]
fn overlaps_with_own_prefixes_are_rejected() {
    let cluster = Cluster {
        prefixes: vec!["10.244.0.0/16".parse().unwrap(), "10.70.0.0/16".parse().unwrap()],
        host_maps: vec![HostMap::new(ip("192.0.2.9"), ip("203.0.113.9")).unwrap()],
        masquerade: vec![ip("203.0.113.1")],
        sharing: Vec::new(),
    };
    let around = rule(0, "10.0.0.0/8", "11.0.0.0/8");
    let inside = rule(0, "192.168.3.0/24", "10.244.3.0/24");
    let external = rule(0, "192.168.4.0/24", "203.0.113.0/24");
    let good = rule(0, "10.244.0.0/16", "10.71.0.0/16");

    let (table, conflicts) = Table::build(1, &cluster, [around, inside, external, good]);

    let own: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
    assert_eq!(own.len(), 2, "{own:?}");
    assert!(own[0].starts_with("local 10.244.3.0/24 overlaps 10.244.0.0/16, which is this"));
    assert!(own[1].starts_with("local 203.0.113.0/24 overlaps 203.0.113."), "{}", own[1]);
    assert_eq!(table.outbound(ip("10.71.0.1")).unwrap().destination, ip("10.244.0.1"));
    assert_eq!(table.outbound(ip("10.244.3.1")), None);
    assert_eq!(table.source(ip("192.0.2.9")), Source::Mapped(ip("203.0.113.9")));
}

#[test]
fn address_without_counterpart_is_not_translated() {
    let prefix = |text: &str| text.parse().unwrap();
    let neutral = Rule::checksum_neutral(prefix("2001:db8:1::/48"), prefix("fd01:203:405::/48"));

    let (table, _) = build(1, [(PeerId(0), neutral.unwrap())]);

    let unusable = ip("fd01:203:405:ffff::1");
    assert!(table.outbound_rule(unusable).is_some());
    assert_eq!(table.outbound(unusable), None);
}

fn build(
    generation: u64,
    rules: impl IntoIterator<Item = (PeerId, Rule)>,
) -> (Table, Vec<Conflict>) {
    Table::build(generation, &Cluster::default(), rules)
}

fn rule(peer: u32, remote: &str, local: &str) -> (PeerId, Rule) {
    let prefix = |text: &str| text.parse().unwrap();

    (PeerId(peer), Rule::new(prefix(remote), prefix(local)).unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
