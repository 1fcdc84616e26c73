//! What comes out is compared with the same packet built anew with the addresses it should have:
//! every protocol, fragments, options and extension headers, both IP versions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use remap::{Cluster, HostMap, PeerId, Rule, Table};

use super::*;
use crate::Control;
use crate::Engine;
use crate::PeerConfig;
use crate::Settings;
use crate::flows::Seen;
use strait_packet::fixtures::{Extension, Packet, TCP, UDP, any_packet, tcp, udp};
use strait_wg::PresharedKey;
use strait_wg::PrivateKey;
use strait_wg::PublicKey;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;

const AUTHENTICATION_HEADER: u8 = 51;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn outbound_equals_building_with_the_addresses_that_the_remote_knows(
        packet in any_packet(),
        from in any_source(),
        host: u8,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(from, is_ipv6);
        let before = Packet { source: internal, destination: local(is_ipv6, host), ..packet };
        let after = Packet {
            source: external,
            destination: remote(is_ipv6, host),
            ..before.clone()
        };

        let translated = world.outbound(&before);

        if before.protocol == AUTHENTICATION_HEADER && !before.is_later_fragment() {
            prop_assert_eq!(translated, Err(DropReason::AddressAuthenticated));
        } else {
            prop_assert_eq!(translated, Ok(after.build()));
        }
    }

    #[test]
    fn inbound_equals_building_with_the_addresses_that_we_know(
        packet in any_packet(),
        to in any_source(),
        host: u8,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(to, is_ipv6);
        let before = Packet { source: remote(is_ipv6, host), destination: external, ..packet };
        let after = Packet {
            source: local(is_ipv6, host),
            destination: internal,
            ..before.clone()
        };

        let translated = world.inbound(&before);

        if before.protocol == AUTHENTICATION_HEADER && !before.is_later_fragment() {
            prop_assert_eq!(translated, Err(DropReason::AddressAuthenticated));
        } else {
            prop_assert_eq!(translated, Ok(after.build()));
        }
    }

    /// A router of ours reports on a packet that came from the remote, and the other way round.
    #[test]
    fn an_error_names_the_packet_as_its_sender_sent_it(
        packet in any_packet(),
        from in any_source(),
        host: u8,
        is_outbound: bool,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(from, is_ipv6);
        let here = [local(is_ipv6, host), internal];
        let wire = [remote(is_ipv6, host), external];
        let error = |[theirs, ours]: [IpAddr; 2]| {
            let (source, destination) = if is_outbound { (ours, theirs) } else { (theirs, ours) };
            let quoted = Packet { source: destination, destination: source, ..packet.clone() };
            let (protocol, kind) = if is_ipv6 { (58, 1) } else { (1, 3) };
            let mut message = vec![kind, 1, 0, 0, 0, 0, 0, 0];
            message.extend(quoted.build());
            Packet::new(source, destination, protocol, message)
        };

        let (translated, expected) = if is_outbound {
            (world.outbound(&error(here)), error(wire))
        } else {
            (world.inbound(&error(wire)), error(here))
        };

        let translated = translated.unwrap();
        let expected = expected.build();
        let at = if is_ipv6 { 42 } else { 22 };
        // Both zeros of the outer checksum are the same sum.
        prop_assert_eq!(&translated[..at], &expected[..at]);
        prop_assert_eq!(&translated[at + 2..], &expected[at + 2..]);
    }
}

#[test]
fn source_routed_packets_are_dropped_in_both_directions() {
    let world = World::new();
    let routing = Extension::Routing { segments_left: 0, last: [9_u16; 8].into() };
    let mut out = Packet::new(pod(true), local(true, 7), UDP, udp([1, 2], b"x"));
    out.extensions = vec![routing];
    let mut back = out.clone();
    (back.source, back.destination) = (remote(true, 7), pod(true));
    let type_0 = |packet: &Packet| {
        let mut bytes = packet.build();
        bytes[42] = 0;
        bytes
    };

    assert_eq!(world.outbound_bytes(type_0(&out)), Err(DropReason::SourceRouted));
    assert_eq!(world.inbound_bytes(type_0(&back)), Err(DropReason::SourceRouted));
    assert!(world.outbound(&out).is_ok(), "another type passes");
}

#[test]
fn an_authenticated_packet_passes_where_nothing_changes() {
    let world = World::new();
    let direct = ip("10.99.1.1");
    let out = Packet::new(pod(false), direct, AUTHENTICATION_HEADER, vec![7; 24]);
    let back = Packet::new(direct, pod(false), AUTHENTICATION_HEADER, vec![7; 24]);

    assert_eq!(world.outbound(&out), Ok(out.build()));
    assert_eq!(world.inbound(&back), Ok(back.build()));
}

#[test]
fn a_connection_is_told_what_fits_the_tunnel_in_both_directions() {
    let world = World::new();
    world.peer().set_clamp_mtu(Some(1340));
    let syn = |source, destination, mss: u16| {
        let [high, low] = mss.to_be_bytes();
        Packet::new(source, destination, TCP, tcp([1, 2], 1, 2, &[2, 4, high, low], b""))
    };

    let out = world.outbound(&syn(pod(false), local(false, 7), 1460));
    let back = world.inbound(&syn(remote(true, 7), pod(true), 1440));
    world.peer().learn_path_mtu(1300);
    let learned = world.outbound(&syn(pod(false), local(false, 7), 1460));

    assert_eq!(out, Ok(syn(pod(false), remote(false, 7), 1340 - 40).build()));
    assert_eq!(back, Ok(syn(local(true, 7), pod(true), 1340 - 60).build()));
    assert_eq!(learned, Ok(syn(pod(false), remote(false, 7), 1300 - 40).build()));
}

#[test]
fn an_address_without_counterpart_is_not_sent_anywhere_else() {
    let world = World::new();
    let out = Packet::new(pod(true), ip("fd71:0:1:ffff::1"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Err(DropReason::Untranslatable));
}

#[test]
fn a_host_of_ours_reaches_another_one_under_its_external_address() {
    let world = World::new();
    let out = Packet::new(ip("192.0.2.8"), ip("10.70.0.9"), UDP, udp([1, 2], b"x"));
    let back = Packet::new(ip("10.70.0.8"), ip("192.0.2.9"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Ok(back.build()));
}

/// Liqo's own gateway gives the answer of the second one to the first.
#[test]
fn two_nodes_that_choose_the_same_port_are_told_apart() {
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

/// Nobody would get the answers to an address that is shared no more.
#[test]
fn a_flow_goes_on_under_an_address_that_is_still_shared() {
    let mut world = World::sharing();
    let question = Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([40_000, 53], b"who?"));
    let asked_as =
        |shared| Packet { source: ip(shared), destination: remote(false, 7), ..question.clone() };
    let answer = Packet::new(remote(false, 7), ip("10.70.0.2"), UDP, udp([53, 40_000], b"me"));
    assert_eq!(world.outbound(&question), Ok(asked_as("10.70.0.1").build()));

    world.pool = vec![ip("10.70.0.2")];
    world.reconfigure(None);

    assert_eq!(world.outbound(&question), Ok(asked_as("10.70.0.2").build()));
    let expected = Packet::new(local(false, 7), ip("172.18.0.2"), UDP, udp([53, 40_000], b"me"));
    assert_eq!(world.inbound(&answer), Ok(expected.build()));
}

#[test]
fn a_packet_for_a_shared_address_without_a_flow_goes_nowhere() {
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
fn a_protocol_without_ports_cannot_share_an_address() {
    const GRE: u8 = 47;
    let world = World::sharing();
    let from_node = Packet::new(ip("172.18.0.2"), local(false, 7), GRE, vec![0; 8]);
    let from_pod = Packet { source: pod(false), ..from_node.clone() };

    assert_eq!(world.outbound(&from_node), Err(DropReason::MasqueradeProtocol));
    assert!(world.outbound(&from_pod).is_ok());
}

#[test]
fn a_source_that_fills_the_memory_leaves_room_for_others() {
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
fn whoever_only_asks_changes_nothing() {
    let world = World::sharing();
    let mut bytes =
        Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([7, 53], b"who?")).build();
    let forwarding = world.control.current();
    let mut header = Header::parse(&bytes).unwrap();
    let context = Context { memory: Memory::Unchanged, ..world.context(&forwarding) };

    let outgoing = route(&context, &bytes, &header).unwrap();
    outbound(&context, &outgoing, &mut bytes, &mut header, Checksum::Complete).unwrap();

    assert_eq!(header.source(), ip("10.70.0.1"));
    assert_eq!(world.flows.mappings(context.now).count(), 0);
}

#[test]
fn a_pod_with_two_names_answers_under_the_one_it_was_called() {
    let world = World::sharing();
    let question =
        |name, port| Packet::new(remote(false, 7), ip(name), UDP, udp([port, 53], b"who?"));
    let answer = |port| Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, port], b"me"));
    let answered_as =
        |name, port| Packet::new(ip(name), remote(false, 7), UDP, udp([53, port], b"me")).build();

    assert!(world.inbound(&question("10.70.0.7", 1)).is_ok());
    assert!(world.inbound(&question("10.244.1.9", 2)).is_ok());

    assert_eq!(world.outbound(&answer(1)), Ok(answered_as("10.70.0.7", 1)));
    assert_eq!(world.outbound(&answer(2)), Ok(answered_as("10.244.1.9", 2)));
    assert_eq!(world.outbound(&answer(3)), Ok(answered_as("10.244.1.9", 3)), "nobody asked");
}

#[test]
fn the_last_name_that_a_pod_was_called_by_counts() {
    let world = World::sharing();
    let question = |name| Packet::new(remote(false, 7), ip(name), UDP, udp([1, 53], b"who?"));
    let answer = Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, 1], b"me"));
    let answered_as = |name| Packet::new(ip(name), remote(false, 7), UDP, udp([53, 1], b"me"));

    for name in ["10.70.0.7", "10.244.1.9", "10.70.0.7"] {
        assert!(world.inbound(&question(name)).is_ok());

        for _ in 0..2 {
            assert_eq!(world.outbound(&answer), Ok(answered_as(name).build()));
        }
    }
}

/// The first one is over and not yet forgotten.
#[test]
fn a_connection_keeps_the_name_that_it_was_opened_under() {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let world = World::sharing();
    let there = |name, flags| {
        Packet::new(remote(false, 7), ip(name), TCP, tcp([5_000, 443], 1, flags, &[], b""))
    };
    let back = |flags| {
        Packet::new(ip("10.244.1.9"), local(false, 7), TCP, tcp([443, 5_000], 1, flags, &[], b""))
    };
    let source = |flags| Header::parse(&world.outbound(&back(flags)).unwrap()).unwrap().source();
    for flags in [SYN, ACK, FIN | ACK] {
        world.inbound(&there("10.70.0.7", flags)).unwrap();
        assert_eq!(source(flags | ACK), ip("10.70.0.7"));
    }

    world.inbound(&there("10.244.1.9", ACK)).unwrap();
    assert_eq!(source(ACK), ip("10.70.0.7"), "a stray segment opens nothing");
    world.inbound(&there("10.244.1.9", SYN)).unwrap();

    assert_eq!(source(SYN | ACK), ip("10.244.1.9"));
}

/// A fragment has no ports behind the first.
#[test]
fn fragments_of_a_pod_with_two_names_stay_together() {
    const MORE: u16 = 0x2000;
    let world = World::sharing();
    let question = Packet::new(remote(false, 7), ip("10.70.0.7"), UDP, udp([9, 53], b"who?"));
    let mut first = Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, 9], &[0; 64]));
    (first.fragment, first.identification, first.without_checksum) = (MORE, 77, true);
    let mut later = Packet { transport: vec![7; 16], fragment: 9, ..first.clone() };
    later.without_checksum = false;
    let stray = Packet { identification: 78, ..later.clone() };

    world.inbound(&question).unwrap();
    let sources = [&first, &later]
        .map(|fragment| Header::parse(&world.outbound(fragment).unwrap()).unwrap().source());

    assert_eq!(sources, [ip("10.70.0.7"); 2]);
    assert_eq!(world.outbound(&stray), Err(DropReason::FragmentUnknown));
}

/// Behind the fragment header of the first one stand further headers; what the later ones name is the
/// first of these, not the transport protocol.
#[test]
fn fragments_with_more_extension_headers_stay_together_in_both_directions() {
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
    let ends = |packet: Vec<u8>| {
        let header = Header::parse(&packet).unwrap();
        (header.source(), header.destination())
    };

    for fragment in fragments(node, local(true, 7), [4000, 53]) {
        assert_eq!(ends(world.outbound(&fragment).unwrap()), (shared, remote(true, 7)));
    }
    for fragment in fragments(remote(true, 7), shared, [53, 4000]) {
        assert_eq!(ends(world.inbound(&fragment).unwrap()), (local(true, 7), node));
    }
}

#[test]
fn an_answer_through_the_hairpin_comes_back_the_same_way() {
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

/// The host, or a router on the way to it that has no external address.
#[test]
fn an_error_about_a_packet_through_the_hairpin_finds_its_sender() {
    for (reporter, reports_as) in [("192.0.2.9", "10.70.0.9"), ("192.0.2.8", "10.70.0.8")]
        .into_iter()
        .chain([("192.0.2.1", "10.70.0.9")])
    {
        let world = World::sharing();
        let question = Packet::new(pod(false), ip("10.70.0.9"), UDP, udp([4000, 53], b"who?"));
        let there = world.outbound(&question).unwrap();

        let error = unreachable(ip(reporter), ip("10.70.0.1"), &there);

        let expected = unreachable(ip(reports_as), pod(false), &question.build());
        assert_eq!(world.outbound(&error), Ok(expected.build()));
    }
}

/// The first to speak is a host with an external address; who answers shares one.
#[test]
fn an_error_about_an_answer_through_the_hairpin_finds_its_sender() {
    let world = World::sharing();
    let question = Packet::new(pod(false), ip("10.70.0.9"), UDP, udp([4000, 53], b"who?"));
    let port = source_port(&world.outbound(&question).unwrap());
    let answer = Packet::new(ip("192.0.2.9"), ip("10.70.0.1"), UDP, udp([53, port], b"me"));
    let back = world.outbound(&answer).unwrap();

    let error = unreachable(pod(false), ip("10.70.0.9"), &back);

    let expected = unreachable(ip("10.70.0.1"), ip("192.0.2.9"), &answer.build());
    assert_eq!(world.outbound(&error), Ok(expected.build()));
}

/// Both nodes have their ports towards the same remote, whose port space is not that of our own hosts.
#[test]
fn two_nodes_that_share_an_address_reach_each_other_at_the_ports_they_are_known_by() {
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
    assert_eq!(port_of(a), port_of_a, "and the remote knows it by the same one");
}

#[test]
fn the_hairpin_finds_hosts_in_the_port_spaces_of_the_first_peers_only() {
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

    let last = hairpin::REALMS_MAX - 2;
    for (place, is_found) in [(0, true), (last, true), (last + 1, false), (999, false)] {
        let port = 40_000 + u16::try_from(place).unwrap();
        let packet = Packet::new(own, remote(false, 7), UDP, udp([port, 53], b"who?")).build();
        let header = Header::parse(&packet).unwrap();
        let seen = Seen { packet: &packet, header: &header };
        let pool = forwarding.table().masquerade();
        let realm = forwarding.peers()[place].realm;
        let known_as = context
            .flows
            .leave(realm, seen, header.destination(), pool, Memory::Updated, context.now)
            .unwrap();
        let (address, port) = (known_as.0, known_as.1.unwrap());

        let question = Packet::new(ip("192.0.2.9"), address, UDP, udp([53, port], b"you?"));
        let found = world.outbound(&question);

        let destination = found.map(|bytes| Header::parse(&bytes).unwrap().destination());
        let expected = if is_found { Ok(own) } else { Err(DropReason::NoMapping) };
        assert_eq!(destination, expected, "{place}");
    }
}

#[test]
fn an_error_about_what_never_came_through_the_hairpin_goes_nowhere() {
    let world = World::sharing();
    let never = Packet::new(ip("10.70.0.1"), ip("192.0.2.9"), UDP, udp([4000, 53], b"who?"));
    let quoting = |destination| unreachable(ip("192.0.2.9"), ip(destination), &never.build());

    assert_eq!(world.outbound(&quoting("10.70.0.1")), Err(DropReason::NoMapping));
    assert_eq!(world.outbound(&quoting("10.70.0.8")), Err(DropReason::NoRoute), "not its sender");
}

#[test]
fn flows_outlive_new_keys_of_their_peer_and_end_with_it() {
    let mut world = World::sharing();
    let question = Packet::new(ip("172.18.0.2"), local(false, 7), UDP, udp([4000, 53], b"who?"));
    let answer = Packet::new(remote(false, 7), ip("10.70.0.1"), UDP, udp([53, 4000], b"me"));
    world.outbound(&question).unwrap();

    world.reconfigure(PresharedKey::from_bytes(&[7; 32]).ok());
    assert!(world.inbound(&answer).is_ok());
    world.control.apply(Vec::new(), Table::default());
    assert_eq!(world.flows.statistics().mappings, 0);
}

/// One gateway with one peer.
struct World {
    control: Control,
    flows: Arc<Flows>,
    pool: Vec<IpAddr>,
    start: Instant,
}

/// Whom a packet of ours is from.
#[derive(Clone, Copy, Debug)]
enum From {
    /// A pod, whose own address the remote knows.
    Pod,
    /// A host outside the pods, with an external address.
    Host,
}

impl World {
    /// Sources that the remote cannot know leave as they are.
    fn new() -> Self {
        Self::with_pool(&[])
    }

    /// Sources that the remote cannot know share an address.
    fn sharing() -> Self {
        Self::with_pool(&["10.70.0.1", "fd70::1"])
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
    fn with_pool(pool: &[&str]) -> Self {
        let start = Instant::now();
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 1, start };
        let Engine { control, flows, .. } = Engine::new(identity, settings).unwrap();
        let pool = pool.iter().map(|address| ip(address)).collect();
        let mut world = Self { control, flows, pool, start };
        world.reconfigure(None);

        world
    }

    fn reconfigure(&mut self, preshared_key: Option<PresharedKey>) {
        let map = |internal, external| HostMap::new(ip(internal), ip(external)).unwrap();
        let cluster = Cluster {
            prefixes: ["10.244.0.0/16", "fd24::/48", "10.70.0.0/16"].map(prefix).into(),
            host_maps: vec![
                map("192.0.2.9", "10.70.0.9"),
                map("192.0.2.8", "10.70.0.8"),
                map("10.244.1.9", "10.70.0.7"),
                map("2001:db8::9", "fd70::9"),
            ],
            masquerade: self.pool.clone(),
        };
        let rules = [
            Rule::new(prefix("10.244.0.0/16"), prefix("10.71.0.0/16")),
            Rule::new(prefix("fd24::/48"), prefix("fd71::/48")),
            Rule::checksum_neutral(prefix("fd24:0:1::/48"), prefix("fd71:0:1::/48")),
        ];
        let (table, conflicts) =
            Table::build(1, &cluster, rules.map(|rule| (PeerId(0), rule.unwrap())));
        assert_eq!(conflicts, []);
        let peer = PeerConfig {
            name: "rome".into(),
            keys: PeerKeys { public_key: PublicKey::from_bytes([7; 32]), preshared_key },
            endpoints: Vec::new(),
            allowed_ips: ["10.244.0.0/16", "fd24::/47", "10.99.0.0/16"].map(prefix).into(),
            // Random bytes may be a SYN with an MSS.
            clamp_mtu: None,
            persistent_keepalive: None,
        };

        self.control.apply(vec![peer], table);
    }

    /// An address of ours, and what a remote calls it.
    fn source(&self, from: From, is_ipv6: bool) -> (IpAddr, IpAddr) {
        match (from, is_ipv6) {
            (From::Pod, _) => (pod(is_ipv6), pod(is_ipv6)),
            (From::Host, false) => (ip("192.0.2.9"), ip("10.70.0.9")),
            (From::Host, true) => (ip("2001:db8::9"), ip("fd70::9")),
        }
    }

    fn outbound(&self, packet: &Packet) -> Result<Vec<u8>, DropReason> {
        self.outbound_bytes(packet.build())
    }

    fn outbound_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, DropReason> {
        let forwarding = self.control.current();
        let mut header = Header::parse(&bytes).unwrap();
        let context = self.context(&forwarding);
        let before = bytes.clone();

        let outgoing = route(&context, &bytes, &header)?;
        let result = outbound(&context, &outgoing, &mut bytes, &mut header, Checksum::Complete);
        if result.is_err() && strait_packet::icmp::embedded(&before, &header).is_none() {
            assert_eq!(bytes, before, "what is quoted is what was sent");
        }
        result?;
        assert_eq!(Header::parse(&bytes), Ok(header));
        Ok(bytes)
    }

    fn inbound(&self, packet: &Packet) -> Result<Vec<u8>, DropReason> {
        self.inbound_bytes(packet.build())
    }

    fn inbound_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, DropReason> {
        let forwarding = self.control.current();
        let mut header = Header::parse(&bytes).unwrap();
        let context = self.context(&forwarding);

        inbound(&context, (PeerId(0), &self.peer()), &mut bytes, &mut header)?;
        assert_eq!(Header::parse(&bytes), Ok(header));
        Ok(bytes)
    }

    fn context<'a>(&'a self, forwarding: &'a Forwarding) -> Context<'a> {
        let now = self.flows.tick(self.start);

        Context { forwarding, flows: &self.flows, memory: Memory::Updated, now }
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.control.current().peers()[0])
    }
}

/// Host unreachable, about an IPv4 packet.
fn unreachable(source: IpAddr, destination: IpAddr, about: &[u8]) -> Packet {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(about);

    Packet::new(source, destination, 1, message)
}

fn source_port(packet: &[u8]) -> u16 {
    let header = Header::parse(packet).unwrap();

    strait_packet::ports::Ports::read(packet, &header).unwrap().source
}

fn any_source() -> impl Strategy<Value = From> {
    prop_oneof![Just(From::Pod), Just(From::Host)]
}

fn pod(is_ipv6: bool) -> IpAddr {
    ip(if is_ipv6 { "fd24::5" } else { "10.244.1.5" })
}

fn local(is_ipv6: bool, host: u8) -> IpAddr {
    host_of(if is_ipv6 { "fd71::" } else { "10.71.0.0" }, host)
}

fn remote(is_ipv6: bool, host: u8) -> IpAddr {
    host_of(if is_ipv6 { "fd24::" } else { "10.244.0.0" }, host)
}

fn host_of(network: &str, host: u8) -> IpAddr {
    match ip(network) {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() | u32::from(host)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() | u128::from(host)).into()),
    }
}

fn prefix(text: &str) -> remap::Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
