//! Rules that packets must meet besides having a peer.

use std::collections::BTreeMap;

use remap::policy::Policy;
use remap::ruleset::{
    Action, Addresses, Chain, Clamp, Condition, Hook, Property, Rule, Rules, Ruleset, Versions,
};

use super::*;

#[test]
fn rules_apply_to_both_directions() {
    let world = World::filtering(Action::Drop, vec![Property::DestinationPort(7..=7)]);

    for (port, result) in [(7, Some(DropReason::Filtered)), (8, None)] {
        assert_eq!(world.outbound(&to_remote(port)).err(), result);
        assert_eq!(world.inbound(&to_pod(port)).err(), result);
    }
}

#[test]
fn rules_see_addresses_before_and_after_translation() {
    let to = |text: &str| vec![Property::Destination(Addresses::Prefix(prefix(text)))];
    let [real, local] =
        ["10.244.0.9/32", "10.71.0.9/32"].map(|text| World::filtering(Action::Drop, to(text)));

    // At the hook `forward` the destination is translated.
    assert_eq!(real.outbound(&to_remote(8)), Err(DropReason::Filtered));
    assert!(local.outbound(&to_remote(8)).is_ok());
}

#[test]
fn a_rejected_packet_is_unchanged() {
    let world = World::filtering(Action::Reject, Vec::new());

    assert_eq!(world.outbound(&to_remote(8)), Err(DropReason::Rejected));
}

#[test]
fn a_rule_lowers_the_mss() {
    let mss = |bytes: Result<Vec<u8>, DropReason>| {
        let bytes = bytes.unwrap();
        mss::announced(&bytes, &Header::parse(&bytes).unwrap())
    };
    let syn = |source: &str, destination: &str| {
        let segment = tcp([5, 80], 7, 0x02, &[2, 4, 0x05, 0xb4], &[]);
        Packet::new(ip(source), ip(destination), TCP, segment)
    };
    let clamp = Clamp::of_rule(Some(1_200));
    let of_rule = World::filtering(Action::ClampMss(Some(1_300)), Vec::new());
    let of_all = World::with_policy(Ruleset::default(), clamp);

    assert_eq!(mss(of_rule.outbound(&syn("10.244.1.5", "10.71.0.9"))), Some(1_300));
    assert_eq!(mss(of_rule.inbound(&syn("10.244.0.9", "10.244.1.5"))), Some(1_300));
    assert_eq!(mss(of_all.outbound(&syn("10.244.1.5", "10.71.0.9"))), Some(1_200));
    // That is for connections into the tunnel alone.
    assert_eq!(mss(of_all.inbound(&syn("10.244.0.9", "10.244.1.5"))), Some(1_460));
}

fn to_remote(port: u16) -> Packet {
    Packet::new(ip("10.244.1.5"), ip("10.71.0.9"), UDP, udp([5, port], b"text"))
}

fn to_pod(port: u16) -> Packet {
    Packet::new(ip("10.244.0.9"), ip("10.244.1.5"), UDP, udp([5, port], b"text"))
}

impl World {
    /// One rule at the hook `forward`.
    fn filtering(action: Action, properties: Vec<Property>) -> Self {
        let condition = |property| Condition { is_negated: false, property };
        let conditions = properties.into_iter().map(condition).collect();
        let rules = Rules::Filter(vec![Rule { conditions, action }]);
        let chain = Chain::new(Hook::Forward, 0, Versions::Both, true, rules).unwrap();

        Self::with_policy(Ruleset::new([chain]), Clamp::default())
    }

    fn with_policy(ruleset: Ruleset, clamp: Clamp) -> Self {
        let mut world = Self::new();
        let policy = Policy::new(ruleset, BTreeMap::new(), BTreeMap::new(), clamp);
        world.policy = Some(Arc::new(policy));
        world.reconfigure(None);

        world
    }
}
