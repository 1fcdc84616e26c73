//! For a gateway that tracks flows of sources that share an address alone.

use remap::{Destination, Source};

use super::*;

#[test]
fn nodes_share_the_unknown_source() {
    let lowered = lower(&[unknown_sources("10.70.0.0")]);

    assert_eq!(problem(&lowered), "");
    let shared = ip("10.70.0.0");
    assert_eq!(lowered.shared_sources, BTreeMap::from([(NodeId(0), shared), (NodeId(1), shared)]));
    for node in ["10.80.0.1", "10.80.0.2"] {
        assert_eq!(lowered.table.source(ip(node)), Source::Shared);
    }
    assert_eq!(lowered.table.source(ip("192.0.2.7")), Source::Known);
    assert_eq!(lowered.table.destination(shared), Destination::Shared);
    assert!(lowered.policy().is_none());
}

#[test]
fn a_second_unknown_source_is_refused() {
    let lowered = lower(&[unknown_sources("10.70.0.0"), unknown_sources("10.90.0.0")]);

    assert!(problem(&lowered).contains("10.90.0.0 is a further source"), "{}", problem(&lowered));
    assert_eq!(lowered.cluster.masquerade, [ip("10.70.0.0")]);
}

#[test]
fn rules_that_need_flows_are_refused() {
    let tcp = json!({"op": "eq", "proto": {"value": "tcp"}});
    let cases = [
        (
            chain("nat", "postrouting", 100, translate("masquerade", "", &[])),
            "translates addresses",
        ),
        (
            chain("filter", "forward", 0, act("ctmark", "7", std::slice::from_ref(&tcp))),
            "sets the mark",
        ),
        (chain("filter", "forward", 0, act("metamarkfromctmark", "", &[])), "reads the mark"),
        (chain("filter", "prerouting", -300, act("notrack", "", &[tcp])), "exempts packets"),
    ];
    let mut dropping = chain("nat", "postrouting", 100, translate("masquerade", "", &[]));
    dropping["policy"] = json!("drop");
    dropping["rules"] = json!({"natRules": []});
    let cases = cases.into_iter().chain([(dropping, "drops the first packet")]);
    for (chain, action) in cases {
        let lowered = lower(&[table(&[chain])]);

        let problem = problem(&lowered);
        assert!(problem.contains(action) && problem.contains("chain c, rule 0"), "{problem}");
        assert!(lowered.ruleset.is_empty());
    }
}

#[test]
fn only_packets_from_nodes_are_rejected() {
    let reject = |matches: &[Value]| {
        lower(&[table(&[chain("filter", "forward", 0, act("reject", "", matches))])])
    };
    for of_nodes in [
        device("eq", "in", "liqo.*"),
        device("eq", "in", "liqo.one"),
        device("neq", "in", "liqo-tunnel"),
        device("eq", "out", "liqo-tunnel"),
    ] {
        assert_eq!(problem(&reject(&[of_nodes])), "");
    }
    for others in [device("neq", "in", "liqo.one"), device("eq", "in", "liqo-tunnel")] {
        let refused = problem(&reject(&[others]));
        assert!(refused.contains("rejects packets from the tunnel"), "{refused}");
    }
    assert!(problem(&reject(&[])).contains("write drop"));
}

#[test]
fn a_limit_of_the_mss_is_a_policy() {
    let clamp = |value: &str| {
        let matches = [device("eq", "out", "liqo-tunnel")];
        lower(&[table(&[chain("filter", "forward", 0, act("tcpmssclamp", value, &matches))])])
    };

    assert!(clamp("0").policy().is_none());
    assert!(clamp("1200").policy().is_some());
    assert_ne!(clamp("1200").policy(), clamp("1100").policy());
}

fn lower(firewalls: &[Value]) -> Lowered {
    rome_with(&Scope { tracks_flows: false, ..scope() }, firewalls, &[])
}

/// What Liqo writes for two nodes.
fn unknown_sources(address: &str) -> Value {
    let mark = |number: &str, name: &str| {
        act("ctmark", number, &[ip_is("src", address), device("eq", "in", name)])
    };
    let restore = [ip_is("dst", address), device("eq", "in", "liqo-tunnel")];
    let mut marks = chain("filter", "forward", 0, mark("1", "liqo.one"));
    marks["rules"]["filterRules"].as_array_mut().unwrap().push(mark("2", "liqo.two"));

    table(&[marks, chain("filter", "prerouting", 0, act("metamarkfromctmark", "", &restore))])
}
