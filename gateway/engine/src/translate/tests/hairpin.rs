//! Packets to an external address of our own cluster.

use super::super::hairpin::REALMS_MAX;
use super::*;
use crate::flows::OriginalPacket;

#[test]
fn hosts_reach_each_other_by_external_address() {
    let world = World::new();
    let out = Packet::new(ip("192.0.2.8"), ip("10.70.0.9"), UDP, udp([1, 2], b"x"));
    let back = Packet::new(ip("10.70.0.8"), ip("192.0.2.9"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Ok(back.build()));
}

#[test]
fn hairpin_answer_returns_through_the_hairpin() {
    let world = World::sharing();
    let question = Packet::new(pod(false), ip("10.70.0.9"), UDP, udp([4000, 53], b"who?"));

    let there = world.outbound(&question).unwrap();
    let header = Header::parse(&there).unwrap();
    assert_eq!((header.source(), header.destination()), (ip("10.70.0.1"), ip("192.0.2.9")));
    let port = source_port(&there);
    let answer = Packet::new(ip("192.0.2.9"), ip("10.70.0.1"), UDP, udp([53, port], b"me"));

    let expected = Packet::new(ip("10.70.0.9"), pod(false), UDP, udp([53, 4000], b"me"));
    assert_eq!(world.outbound(&answer), Ok(expected.build()));
}

/// The error comes from the host, or from a router without an external address.
#[test]
fn hairpin_error_reaches_the_sender() {
    for (reporter, external_reporter) in [("192.0.2.9", "10.70.0.9"), ("192.0.2.8", "10.70.0.8")]
        .into_iter()
        .chain([("192.0.2.1", "10.70.0.9")])
    {
        let world = World::sharing();
        let question = Packet::new(pod(false), ip("10.70.0.9"), UDP, udp([4000, 53], b"who?"));
        let there = world.outbound(&question).unwrap();

        let error = unreachable(ip(reporter), ip("10.70.0.1"), &there);

        let expected = unreachable(ip(external_reporter), pod(false), &question.build());
        assert_eq!(world.outbound(&error), Ok(expected.build()));
    }
}

/// The sender of the answer has a host map, its receiver shares an address.
#[test]
fn hairpin_error_about_an_answer_reaches_its_sender() {
    let world = World::sharing();
    let question = Packet::new(pod(false), ip("10.70.0.9"), UDP, udp([4000, 53], b"who?"));
    let port = source_port(&world.outbound(&question).unwrap());
    let answer = Packet::new(ip("192.0.2.9"), ip("10.70.0.1"), UDP, udp([53, port], b"me"));
    let back = world.outbound(&answer).unwrap();

    let error = unreachable(pod(false), ip("10.70.0.9"), &back);

    let expected = unreachable(ip("10.70.0.1"), ip("192.0.2.9"), &answer.build());
    assert_eq!(world.outbound(&error), Ok(expected.build()));
}

/// Both nodes have their mappings in the realm of the same remote, not in our own realm.
#[test]
fn masqueraded_nodes_reach_each_other_by_mapped_ports() {
    let world = World::sharing();
    let [a, b, c] = ["172.18.0.2", "172.18.0.3", "172.18.0.4"].map(ip);
    let shared = ip("10.70.0.1");
    let to_remote = |node| Packet::new(node, local(false, 7), UDP, udp([40_000, 53], b"who am I?"));
    let port_of = |node| source_port(&world.outbound(&to_remote(node)).unwrap());
    let [_, port_of_b] = [c, b].map(port_of);

    let question = Packet::new(a, shared, UDP, udp([40_000, port_of_b], b"who?"));
    let there = world.outbound(&question).unwrap();
    let port_of_a = source_port(&there);
    let expected = Packet::new(shared, b, UDP, udp([port_of_a, 40_000], b"who?"));
    assert_eq!(there, expected.build());

    let answer = Packet::new(b, shared, UDP, udp([40_000, port_of_a], b"me"));
    let expected = Packet::new(shared, a, UDP, udp([port_of_b, 40_000], b"me"));
    assert_eq!(world.outbound(&answer), Ok(expected.build()));
    let refusal = unreachable(b, shared, &there);
    let expected = unreachable(shared, a, &question.build());
    assert_eq!(world.outbound(&refusal), Ok(expected.build()));
    assert_eq!(port_of(a), port_of_a, "the same mapping towards the remote");
}

#[test]
fn hairpin_searches_a_bounded_number_of_realms() {
    let mut world = World::sharing();
    let peers = (1..=1_000_u16).map(|number| {
        let [high, low] = number.to_be_bytes();
        let mut key = [7; 32];
        key[..2].copy_from_slice(&[high, low]);
        let keys = PeerKeys { public_key: PublicKey::from_bytes(key), preshared_key: None };
        PeerConfig {
            name: format!("peer {number}"),
            keys,
            endpoints: Vec::new(),
            allowed_ips: Arc::default(),
            clamp_mtu: None,
            persistent_keepalive: None,
        }
    });
    let table = world.control.current().table().clone();
    world.control.apply(peers.collect(), table);
    let forwarding = world.control.current();
    let context = world.context(&forwarding);
    let own = ip("172.18.0.2");

    let last = REALMS_MAX - 2;
    for (place, is_found) in [(0, true), (last, true), (last + 1, false), (999, false)] {
        let port = 40_000 + u16::try_from(place).unwrap();
        let packet = Packet::new(own, remote(false, 7), UDP, udp([port, 53], b"who?")).build();
        let header = Header::parse(&packet).unwrap();
        let original = OriginalPacket { packet: &packet, header: &header };
        let pool = forwarding.table().masquerade();
        let realm = forwarding.peers()[place].realm;
        let mapped = context
            .flows
            .map_outbound(
                realm,
                original,
                header.destination(),
                pool,
                FlowAccess::Update,
                context.now,
            )
            .unwrap();
        let (address, port) = (mapped.0, mapped.1.unwrap());

        let question = Packet::new(ip("192.0.2.9"), address, UDP, udp([53, port], b"you?"));
        let found = world.outbound(&question);

        let destination = found.map(|bytes| Header::parse(&bytes).unwrap().destination());
        let expected = if is_found { Ok(own) } else { Err(DropReason::NoMapping) };
        assert_eq!(destination, expected, "{place}");
    }
}

#[test]
fn error_about_unknown_hairpin_packet_is_dropped() {
    let world = World::sharing();
    let never = Packet::new(ip("10.70.0.1"), ip("192.0.2.9"), UDP, udp([4000, 53], b"who?"));
    let quoting = |destination| unreachable(ip("192.0.2.9"), ip(destination), &never.build());

    assert_eq!(world.outbound(&quoting("10.70.0.1")), Err(DropReason::NoMapping));
    assert_eq!(world.outbound(&quoting("10.70.0.8")), Err(DropReason::NoRoute), "not its sender");
}

/// An ICMP host unreachable error about an IPv4 packet.
fn unreachable(source: IpAddr, destination: IpAddr, about: &[u8]) -> Packet {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(about);

    Packet::new(source, destination, 1, message)
}
