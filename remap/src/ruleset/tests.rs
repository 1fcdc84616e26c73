//! What the tests against nftables (`gateway/tests/it/firewall.rs`) do not cover: flows that go on, and what chains may
//! not be.

use super::*;
use crate::Prefix;

#[test]
fn nat_rules_see_a_flows_first_packet() {
    let ruleset = Ruleset::new([translating(Hook::Prerouting, -100, "10.9.0.1")]);
    let mut later = Packet { flow: Some(Flow { is_new: false, mark: 0 }), ..packet() };

    assert_eq!(ruleset.pass(Hook::Prerouting, &mut later, None), Verdict::Accept);

    assert_eq!(later.destination, packet().destination);
    let mut none = Packet { flow: None, ..packet() };
    assert_eq!(ruleset.pass(Hook::Prerouting, &mut none, None), Verdict::Accept);
    assert_eq!(none.destination, packet().destination);
}

#[test]
fn the_table_has_the_priority_of_nat() {
    let table = ip("10.8.0.1");
    for (priority, expected) in [(-150, "10.9.0.1"), (-100, "10.9.0.1"), (-99, "10.8.0.1")] {
        let ruleset = Ruleset::new([translating(Hook::Prerouting, priority, "10.9.0.1")]);
        let mut packet = packet();

        assert_eq!(ruleset.pass(Hook::Prerouting, &mut packet, Some(table)), Verdict::Accept);

        assert_eq!(packet.destination, ip(expected), "{priority}");
    }
}

#[test]
fn filters_after_translation_see_its_result() {
    for (priority, verdict) in [(-101, Verdict::Accept), (-100, Verdict::Drop), (0, Verdict::Drop)]
    {
        let drop = filtering(Hook::Prerouting, priority, "10.8.0.0/16", Action::Drop);
        let ruleset = Ruleset::new([drop]);

        let found = ruleset.pass(Hook::Prerouting, &mut packet(), Some(ip("10.8.0.1")));

        assert_eq!(found, verdict, "{priority}");
    }
}

#[test]
fn the_last_of_equal_priority_comes_first() {
    let chain = |action| filtering(Hook::Forward, 0, "10.71.0.0/16", action);
    let ruleset = Ruleset::new([chain(Action::Drop), chain(Action::Reject)]);

    assert_eq!(ruleset.pass(Hook::Forward, &mut packet(), None), Verdict::Reject);
}

#[test]
fn untracked_packets_are_not_translated() {
    let untrack = filtering(Hook::Prerouting, -300, "10.71.0.0/16", Action::Untrack);
    let ruleset = Ruleset::new([untrack, translating(Hook::Prerouting, -100, "10.9.0.1")]);
    let mut packet = packet();

    assert_eq!(ruleset.pass(Hook::Prerouting, &mut packet, Some(ip("10.8.0.1"))), Verdict::Accept);

    assert_eq!(packet.destination, self::packet().destination);
    assert_eq!(packet.flow, None);
}

#[test]
fn packets_have_the_mark_of_their_flow() {
    let mark = filtering(Hook::Forward, 0, "10.71.0.0/16", Action::MarkFlow(7));
    let restore = filtering(Hook::Forward, 1, "10.71.0.0/16", Action::RestoreMark);
    let ruleset = Ruleset::new([restore, mark]);
    let (mut known, mut unknown) = (packet(), Packet { flow: None, ..packet() });

    for packet in [&mut known, &mut unknown] {
        assert_eq!(ruleset.pass(Hook::Forward, packet, None), Verdict::Accept);
    }

    assert_eq!((known.mark, known.flow.map(|flow| flow.mark)), (7, Some(7)));
    assert_eq!((unknown.mark, unknown.flow), (0, None));
    assert!(ruleset.uses_flows());
}

#[test]
fn the_lowest_limit_of_the_mss_applies() {
    let clamp = |to| filtering(Hook::Forward, 0, "10.71.0.0/16", Action::ClampMss(to));
    let ruleset = Ruleset::new([clamp(Some(1300)), clamp(None), clamp(Some(1200))]);
    let mut packet = packet();

    assert_eq!(ruleset.pass(Hook::Forward, &mut packet, None), Verdict::Accept);

    assert_eq!(packet.clamp, Clamp { to_route: true, to: Some(1200) });
    assert!(!ruleset.uses_flows());
}

#[test]
fn masquerading_needs_an_address_of_the_device() {
    let rule = Rule { conditions: Vec::new(), action: Translation::Masquerade };
    let rules = Rules::Translate(vec![rule]);
    let ruleset = Ruleset::new(Chain::new(Hook::Postrouting, 100, Versions::Both, true, rules));
    let own = Some(ip("169.254.18.2"));
    let mut packet = packet();

    assert_eq!(ruleset.pass(Hook::Postrouting, &mut packet, None), Verdict::Drop);
    packet.output_address = own;
    assert_eq!(ruleset.pass(Hook::Postrouting, &mut packet, None), Verdict::Accept);

    assert_eq!((Some(packet.source), packet.shares_source), (own, true));
}

#[test]
fn chains_of_one_ip_version_ignore_the_other() {
    let drop = Rules::Filter(vec![Rule { conditions: Vec::new(), action: Action::Drop }]);
    for (versions, verdict) in [
        (Versions::Ipv4, Verdict::Drop),
        (Versions::Ipv6, Verdict::Accept),
        (Versions::Both, Verdict::Drop),
    ] {
        let chain = Chain::new(Hook::Forward, 0, versions, false, drop.clone());
        let ruleset = Ruleset::new(chain);

        assert_eq!(ruleset.pass(Hook::Forward, &mut packet(), None), verdict, "{versions:?}");
    }
}

fn filtering(hook: Hook, priority: i32, destination: &str, action: Action) -> Chain {
    let property = Property::Destination(Addresses::Prefix(prefix(destination)));
    let rule = Rule { conditions: vec![Condition { is_negated: false, property }], action };

    Chain::new(hook, priority, Versions::Ipv4, true, Rules::Filter(vec![rule])).unwrap()
}

fn translating(hook: Hook, priority: i32, to: &str) -> Chain {
    let rule = Rule { conditions: Vec::new(), action: Translation::Destination(prefix(to)) };

    Chain::new(hook, priority, Versions::Ipv4, true, Rules::Translate(vec![rule])).unwrap()
}

fn packet() -> Packet {
    Packet {
        source: ip("10.244.1.5"),
        destination: ip("10.71.2.7"),
        protocol: 17,
        ports: Some([40_000, 53]),
        input: Device::Node(NodeId(0)),
        output: Some(Device::Tunnel),
        output_address: None,
        mark: 0,
        flow: Some(Flow { is_new: true, mark: 0 }),
        is_untracked: false,
        shares_source: false,
        clamp: Clamp::default(),
    }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
