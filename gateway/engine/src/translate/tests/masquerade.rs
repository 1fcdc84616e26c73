//! Sources that the remote does not know share an address.

use super::*;

/// Liqo's own gateway delivers the second node's answer to the first node.
#[test]
fn nodes_with_the_same_port_are_distinguished() {
    let world = World::sharing();
    let [one, other] = ["172.18.0.2", "172.18.0.3"].map(ip);
    let question = |node| Packet::new(node, local(false, 7), UDP, udp([40_000, 53], b"who?"));
    let answer = |port| Packet::new(remote(false, 7), ip("10.70.0.1"), UDP, udp([53, port], b"me"));

    let ports = [one, other].map(|node| source_port(&world.outbound(&question(node)).unwrap()));

    assert_eq!(ports[0], 40_000, "it was free");
    assert_ne!(ports[1], 40_000);
    for (node, port) in [one, other].into_iter().zip(ports) {
        let expected = Packet::new(local(false, 7), node, UDP, udp([53, 40_000], b"me"));
        assert_eq!(world.inbound(&answer(port)), Ok(expected.build()));
    }
}

/// Answers to an address that is no longer shared would be lost.
#[test]
fn flow_moves_to_a_remaining_shared_address() {
    let mut world = World::sharing();
    let question = Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([40_000, 53], b"who?"));
    let translated =
        |shared| Packet { source: ip(shared), destination: remote(false, 7), ..question.clone() };
    let answer = Packet::new(remote(false, 7), ip("10.70.0.2"), UDP, udp([53, 40_000], b"me"));
    assert_eq!(world.outbound(&question), Ok(translated("10.70.0.1").build()));

    world.pool = vec![ip("10.70.0.2")];
    world.reconfigure(None);

    assert_eq!(world.outbound(&question), Ok(translated("10.70.0.2").build()));
    let expected = Packet::new(local(false, 7), ip("172.18.0.2"), UDP, udp([53, 40_000], b"me"));
    assert_eq!(world.inbound(&answer), Ok(expected.build()));
}

#[test]
fn unmapped_shared_address_is_dropped() {
    let world = World::sharing();
    let probe = Packet::new(remote(false, 7), ip("10.70.0.1"), UDP, udp([53, 9], b"x"));
    let quoted = Packet::new(ip("10.70.0.1"), remote(false, 7), UDP, udp([9, 53], b"x"));
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(quoted.build());
    let error = Packet::new(remote(false, 7), ip("10.70.0.1"), 1, message);

    assert_eq!(world.inbound(&probe), Err(DropReason::NoMapping));
    assert_eq!(world.inbound(&error), Err(DropReason::NoMapping));
}

#[test]
fn protocol_without_ports_is_not_masqueraded() {
    const GRE: u8 = 47;
    let world = World::sharing();
    let from_node = Packet::new(ip("172.18.0.2"), local(false, 7), GRE, vec![0; 8]);
    let from_pod = Packet { source: pod(false), ..from_node.clone() };

    assert_eq!(world.outbound(&from_node), Err(DropReason::MasqueradeProtocol));
    assert!(world.outbound(&from_pod).is_ok());
}

#[test]
fn one_source_cannot_exhaust_the_flow_table() {
    let world = World::sharing();
    let question =
        |node: &str, port| Packet::new(ip(node), local(false, 7), UDP, udp([port, 53], b"who?"));

    let refused = (1024..4096)
        .filter(|port| {
            world.outbound(&question("172.18.0.2", *port)) == Err(DropReason::MasqueradeShare)
        })
        .count();

    assert!(refused > 0);
    assert!(world.outbound(&question("172.18.0.3", 1024)).is_ok());
}

#[test]
fn read_only_access_creates_no_flow() {
    let world = World::sharing();
    let mut bytes =
        Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([7, 53], b"who?")).build();
    let forwarding = world.control.current();
    let mut header = Header::parse(&bytes).unwrap();
    let context = Context { flow_access: FlowAccess::ReadOnly, ..world.context(&forwarding) };

    let outgoing = route(&context, &bytes, &header).unwrap();
    outbound(&context, &outgoing, &mut bytes, &mut header, Checksum::Complete).unwrap();

    assert_eq!(header.source(), ip("10.70.0.1"));
    assert_eq!(world.flows.mappings(context.now).count(), 0);
}

/// The first fragment has more headers behind its fragment header. The next header field of the later ones names the
/// first of these, not the transport protocol.
#[test]
fn fragments_with_extension_headers_share_one_mapping() {
    const DESTINATION_OPTIONS: u8 = 60;
    const MORE: u16 = 1;
    let world = World::sharing();
    let (node, shared) = (ip("2001:db8::2"), ip("fd70::1"));
    let fragments = |source, destination, ports| {
        let mut first = Packet::new(source, destination, UDP, udp(ports, &[0; 64]));
        let options = Extension::Options { kind: DESTINATION_OPTIONS, units: 0, seed: 7 };
        first.extensions = vec![Extension::Fragment { field: MORE }, options];
        let mut later = Packet::new(source, destination, DESTINATION_OPTIONS, vec![7; 16]);
        later.extensions = vec![Extension::Fragment { field: 10 << 3 }];
        [first, later]
    };
    let addresses = |packet: Vec<u8>| {
        let header = Header::parse(&packet).unwrap();
        (header.source(), header.destination())
    };

    for fragment in fragments(node, local(true, 7), [4000, 53]) {
        assert_eq!(addresses(world.outbound(&fragment).unwrap()), (shared, remote(true, 7)));
    }
    for fragment in fragments(remote(true, 7), shared, [53, 4000]) {
        assert_eq!(addresses(world.inbound(&fragment).unwrap()), (local(true, 7), node));
    }
}

#[test]
fn flows_survive_key_changes_until_peer_removal() {
    let mut world = World::sharing();
    let question = Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([4000, 53], b"who?"));
    let answer = Packet::new(remote(false, 7), ip("10.70.0.1"), UDP, udp([53, 4000], b"me"));
    world.outbound(&question).unwrap();

    world.reconfigure(PresharedKey::from_bytes(&[7; 32]).ok());
    assert!(world.inbound(&answer).is_ok());
    world.control.apply(Vec::new(), Table::default());
    assert_eq!(world.flows.statistics().mappings, 0);
}
