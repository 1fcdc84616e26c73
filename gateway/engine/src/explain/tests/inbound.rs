//! Packets from a peer.

use super::*;

#[test]
fn inbound_packet_is_delivered_with_remapped_source() {
    let question = inbound("10.244.2.7", "10.1.0.9", TCP, Some("milan"));

    let explanation = World::new().ask(&question);

    let after = explanation.after.unwrap();
    assert_eq!(explanation.outcome, Outcome::Delivered);
    assert_eq!(explanation.routing, Some(Routing::Rule(milan_rule())));
    assert_eq!(after.packet, summary("10.71.2.7", "10.1.0.9", TCP));
    assert_eq!(after.mss_bytes, Some(MTU - 40));
    assert_eq!(explanation.mtu, None);
    assert_eq!(explanation.may_send, ["milan", "genoa"]);
}

#[test]
fn inbound_external_destination_becomes_its_host() {
    for (external, internal) in [("10.70.0.9", "172.16.0.9"), ("10.70.0.5", "10.1.0.5")] {
        let explanation = World::new().ask(&inbound("198.18.5.5", external, UDP, None));

        let after = explanation.after.unwrap();
        assert_eq!(after.packet, summary("198.18.5.5", internal, UDP));
        assert_eq!(after.destination, Treatment::HostMap);
        assert_eq!(explanation.peer.unwrap().name, "turin");
    }
}

#[test]
fn refused_source_is_named_with_its_owner() {
    for (source, peer, expected) in [
        ("198.18.5.5", "milan", "198.18.5.5 belongs to 198.18.0.0/15 of turin, not to milan"),
        ("10.99.0.1", "milan", "10.99.0.1 is not in the allowed_ips of milan: add it to milan"),
        ("10.71.2.7", "milan", "10.71.2.7 is a remapped address of milan"),
        ("10.71.2.7", "turin", "on the wire it is 10.244.2.7"),
    ] {
        let explanation = World::new().ask(&inbound(source, "10.1.0.9", TCP, Some(peer)));

        let (reason, remedy) = dropped(&explanation);
        assert_eq!(reason, DropReason::SourceNotAllowed);
        assert!(remedy.contains(expected), "{remedy}");
    }
}

#[test]
fn source_of_no_peer_has_no_peer() {
    let explanation = World::new().ask(&inbound("10.99.0.1", "10.1.0.9", TCP, None));

    let (reason, remedy) = dropped(&explanation);
    assert_eq!((reason, explanation.peer), (DropReason::SourceNotAllowed, None));
    assert!(remedy.starts_with("10.99.0.1 is in no peer's allowed_ips"), "{remedy}");
}

#[test]
fn inbound_has_the_same_translation_drops() {
    let world = World::new();

    let neutral = world.ask(&inbound("fd00:10:245:ffff::1", "fd00:1::9", TCP, None));
    let authenticated = world.ask(&inbound("10.244.2.7", "10.1.0.9", AH, Some("milan")));

    assert_eq!(dropped(&neutral).0, DropReason::Untranslatable);
    assert_eq!(dropped(&authenticated).0, DropReason::AddressAuthenticated);
}

#[test]
fn single_peer_is_the_sender() {
    let mut world = World::new();
    world.engine.control.apply(vec![peers().remove(0)], Table::default());

    let explanation = world.ask(&inbound("10.99.0.1", "10.1.0.9", TCP, None));

    assert_eq!(explanation.peer.unwrap().name, "milan");
}
