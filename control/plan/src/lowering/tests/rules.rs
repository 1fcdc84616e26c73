//! `FirewallConfiguration`s.

use remap::ruleset::{Device, Flow, Hook, Packet, Verdict};

use super::*;

#[test]
fn deleted_objects_are_no_longer_in_force() {
    let mut object: FirewallConfiguration =
        object("FirewallConfiguration", "firewall", 0, remap("10.244.0.0/16", "10.71.0.0/16"));
    let lower = |object: &FirewallConfiguration| {
        let firewall_configurations = vec![listed(object.clone())];
        Lowered::new(&scope(), &Objects { firewall_configurations, ..Objects::default() })
    };
    assert_eq!(lower(&object).remaps.len(), 1);

    object.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-11-01T00:00:00Z")).unwrap();

    let lowered = lower(&object);
    assert_eq!(lowered.remaps, []);
    assert_eq!(lowered.outcomes, []);
}

#[test]
fn objects_of_other_gateways_are_not_lowered() {
    let mut object: FirewallConfiguration =
        object("FirewallConfiguration", "firewall", 0, remap("10.244.0.0/16", "10.71.0.0/16"));
    object.metadata.labels = Some(
        [
            ("networking.liqo.io/firewall-category", "gateway"),
            ("networking.liqo.io/firewall-unique", "oslo"),
        ]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into(),
    );
    let firewall_configurations = vec![listed(object)];

    let lowered =
        Lowered::new(&scope(), &Objects { firewall_configurations, ..Objects::default() });

    assert_eq!(lowered.outcomes, []);
    assert_eq!(lowered.remaps, []);
}

#[test]
fn half_a_shape_is_executed_as_rules() {
    let outgoing = [ip_is("dst", "10.71.0.0/16"), device("neq", "in", "liqo-tunnel")];
    let half = chain("nat", "prerouting", -100, translate("dnat", "10.244.0.0/16", &outgoing));

    let lowered = rome(&[table(&[half])], &[]);

    assert_eq!(problem(&lowered), "");
    assert_eq!(lowered.remaps, []);
    let mut packet = packet(Device::Node(NodeId(0)));
    packet.destination = ip("10.71.2.7");
    assert_eq!(lowered.ruleset.pass(Hook::Prerouting, &mut packet, None), Verdict::Accept);
    assert_eq!(packet.destination, ip("10.244.2.7"));
}

#[test]
fn devices_are_matched_by_name_and_wildcard() {
    for (op, name, dropped) in [
        ("eq", "liqo.one", [true, false, false]),
        ("eq", "liqo.*", [true, true, false]),
        ("neq", "liqo.*", [false, false, true]),
        ("eq", "liqo-tunnel*", [false, false, true]),
        ("eq", "liqo-tunnel3", [false, false, true]),
        ("eq", "eth0", [false, false, false]),
        ("neq", "eth0", [true, true, true]),
        ("eq", "*", [true, true, true]),
    ] {
        let rule = act("drop", "", &[device(op, "in", name)]);
        let lowered = rome(&[table(&[chain("filter", "forward", 0, rule)])], &[]);

        let inputs = [Device::Node(NodeId(0)), Device::Node(NodeId(1)), Device::Tunnel];
        let verdicts =
            inputs.map(|input| lowered.ruleset.pass(Hook::Forward, &mut packet(input), None));
        assert_eq!(verdicts.map(|verdict| verdict == Verdict::Drop), dropped, "{op} {name}");
    }
}

#[test]
fn what_cannot_be_executed_is_refused_by_name() {
    let all: &[Value] = &[];
    let filter = |hook: &str, priority: i32, action: &str| {
        table(&[chain("filter", hook, priority, act(action, "5", all))])
    };
    let nat = |hook: &str, priority: i32, type_: &str| {
        table(&[chain("nat", hook, priority, translate(type_, "10.0.0.9", all))])
    };
    let mut of_frames = filter("forward", 0, "drop");
    of_frames["table"]["family"] = json!("BRIDGE");

    for (spec, expected) in [
        (of_frames, "spec.table.family is \"BRIDGE\""),
        (filter("input", 0, "drop"), "chain c: hook is \"input\""),
        (filter("ingress", 0, "accept"), "chain c: hook is \"ingress\""),
        (nat("forward", 0, "snat"), "chain c: a chain of natRules has to be at hook"),
        (nat("prerouting", -300, "dnat"), "chain c: a chain of natRules at priority -300"),
        (nat("prerouting", -100, "snat"), "chain c: rule 0 translates sources"),
        (nat("postrouting", 100, "dnat"), "chain c: rule 0 translates destinations"),
        (filter("postrouting", 0, "reject"), "chain c: rule 0 rejects"),
        (filter("prerouting", -300, "ctmark"), "chain c: rule 0 uses the mark"),
        (filter("forward", 0, "notrack"), "chain c: rule 0 exempts packets"),
        (filter("forward", 0, "queue"), "chain c, rule 0: action is \"queue\""),
    ] {
        let good = table(&[chain("filter", "forward", 0, act("drop", "", all))]);
        let lowered = rome(&[good.clone(), spec.clone()], &[]);

        let problem = problem(&lowered);
        assert!(problem.starts_with(expected), "{problem}");
        assert_eq!(lowered.ruleset, rome(&[good], &[]).ruleset, "the other one is in force");
        let now = jiff::Timestamp::UNIX_EPOCH;
        let status = |outcome: &Outcome| outcome.condition("gw", None, now).status;
        assert_eq!(lowered.outcomes.iter().filter(|it| status(it) == "False").count(), 1);
        assert!(lowered.outcomes.iter().all(|outcome| outcome.generation == Some(7)));
    }
}

#[test]
fn the_later_of_two_contradicting_objects_is_refused() {
    let (one, other) =
        (remap("10.244.0.0/16", "10.71.0.0/16"), remap("10.9.0.0/16", "10.71.0.0/16"));

    let lowered = rome(&[one, other, remap("10.8.0.0/16", "10.72.0.0/16")], &[]);

    assert!(problem(&lowered).starts_with("local 10.71.0.0/16 overlaps"), "{}", problem(&lowered));
    let refused = lowered.outcomes.iter().find(|outcome| outcome.problem.is_some()).unwrap();
    assert_eq!(refused.object.name, "1");
    assert_eq!(lowered.remaps.len(), 2);
}

#[test]
fn host_maps_of_pods_apply_to_replies_only() {
    let map = |external: &str, internal: &str| {
        table(&[
            chain(
                "nat",
                "prerouting",
                -100,
                translate("dnat", internal, &[ip_is("dst", external)]),
            ),
            chain(
                "nat",
                "postrouting",
                100,
                translate("snat", internal, &[ip_is("src", external)]),
            ),
        ])
    };
    let pods = json!({"table": {"name": "p", "rules": [{"iif": "liqo-tunnel", "routes": [
        {"dst": "10.244.1.5/32", "gw": "10.80.0.1", "targetRef": {"kind": "Pod", "name": "a"}},
    ]}]}});

    let lowered = rome(&[map("10.70.0.1", "10.96.0.1"), map("10.70.0.2", "10.244.1.5")], &[pods]);

    assert_eq!(problem(&lowered), "");
    let (host, pod) = (ip("10.96.0.1"), ip("10.244.1.5"));
    assert_eq!(lowered.table.destination(ip("10.70.0.1")), remap::Destination::Mapped(host));
    assert_eq!(lowered.table.source(host), remap::Source::Mapped(ip("10.70.0.1")));
    assert_eq!(lowered.table.source(pod), remap::Source::MappedReplies(ip("10.70.0.2")));
}

#[test]
fn no_tracking_of_the_overlay_is_no_rule() {
    let udp = |position: &str| json!({"op": "eq", "proto": {"value": "udp"}, "port": {"position": position, "value": "6091"}});
    let untrack = |position: &str| act("notrack", "", &[udp(position)]);

    let lowered = rome(
        &[table(&[
            chain("filter", "prerouting", -300, untrack("dst")),
            chain("filter", "output", -300, untrack("src")),
        ])],
        &[],
    );

    assert_eq!(problem(&lowered), "");
    assert!(lowered.ruleset.is_empty());
}

fn packet(input: Device) -> Packet {
    Packet {
        source: ip("10.244.1.5"),
        destination: ip("10.71.2.7"),
        protocol: 17,
        ports: Some([40_000, 53]),
        input,
        output: None,
        output_address: None,
        mark: 0,
        flow: Some(Flow { is_new: true, mark: 0 }),
        is_untracked: false,
        shares_source: false,
        clamp: Clamp::default(),
    }
}
