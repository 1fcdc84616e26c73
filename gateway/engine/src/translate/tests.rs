//! Compares the translated packet with a packet that is built with the expected addresses: every protocol, fragments,
//! options and extension headers, both IP versions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use remap::{Cluster, HostMap, PeerId, Rule, Table};

use super::*;
use crate::flows::OriginalPacket;
use crate::{Control, Engine, PeerConfig, Settings};
use strait_packet::fixtures::{Extension, Packet, TCP, UDP, any_packet, tcp, udp};
use strait_wg::PresharedKey;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};

const AUTHENTICATION_HEADER: u8 = 51;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn outbound_equals_packet_with_remote_addresses(
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
    fn inbound_equals_packet_with_local_addresses(
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

    /// An ICMP error of one realm about a packet from the other realm, in both directions.
    #[test]
    fn icmp_error_quotes_the_packet_as_sent(
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
        // The outer checksum may be either form of zero.
        prop_assert_eq!(&translated[..at], &expected[..at]);
        prop_assert_eq!(&translated[at + 2..], &expected[at + 2..]);
    }
}

#[test]
fn source_routed_packets_are_dropped() {
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
fn authentication_header_passes_without_remapping() {
    let world = World::new();
    let direct = ip("10.99.1.1");
    let out = Packet::new(pod(false), direct, AUTHENTICATION_HEADER, vec![7; 24]);
    let back = Packet::new(direct, pod(false), AUTHENTICATION_HEADER, vec![7; 24]);

    assert_eq!(world.outbound(&out), Ok(out.build()));
    assert_eq!(world.inbound(&back), Ok(back.build()));
}

#[test]
fn mss_is_clamped_in_both_directions() {
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
fn untranslatable_address_is_dropped() {
    let world = World::new();
    let out = Packet::new(pod(true), ip("fd71:0:1:ffff::1"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Err(DropReason::Untranslatable));
}

#[test]
fn hosts_reach_each_other_by_external_address() {
    let world = World::new();
    let out = Packet::new(ip("192.0.2.8"), ip("10.70.0.9"), UDP, udp([1, 2], b"x"));
    let back = Packet::new(ip("10.70.0.8"), ip("192.0.2.9"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Ok(back.build()));
}

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

#[test]
fn answer_has_the_address_of_the_question() {
    let world = World::sharing();
    let question =
        |name, port| Packet::new(remote(false, 7), ip(name), UDP, udp([port, 53], b"who?"));
    let answer = |port| Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, port], b"me"));
    let translated =
        |name, port| Packet::new(ip(name), remote(false, 7), UDP, udp([53, port], b"me")).build();

    assert!(world.inbound(&question("10.70.0.7", 1)).is_ok());
    assert!(world.inbound(&question("10.244.1.9", 2)).is_ok());

    assert_eq!(world.outbound(&answer(1)), Ok(translated("10.70.0.7", 1)));
    assert_eq!(world.outbound(&answer(2)), Ok(translated("10.244.1.9", 2)));
    assert_eq!(world.outbound(&answer(3)), Ok(translated("10.244.1.9", 3)), "no question");
}

#[test]
fn latest_destination_address_is_the_answer_source() {
    let world = World::sharing();
    let question = |name| Packet::new(remote(false, 7), ip(name), UDP, udp([1, 53], b"who?"));
    let answer = Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, 1], b"me"));
    let translated = |name| Packet::new(ip(name), remote(false, 7), UDP, udp([53, 1], b"me"));

    for name in ["10.70.0.7", "10.244.1.9", "10.70.0.7"] {
        assert!(world.inbound(&question(name)).is_ok());

        for _ in 0..2 {
            assert_eq!(world.outbound(&answer), Ok(translated(name).build()));
        }
    }
}

/// The first connection has ended and not yet expired.
#[test]
fn connection_keeps_its_address_until_a_new_syn() {
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
    assert_eq!(source(ACK), ip("10.70.0.7"), "a stray segment opens no connection");
    world.inbound(&there("10.244.1.9", SYN)).unwrap();

    assert_eq!(source(SYN | ACK), ip("10.244.1.9"));
}

/// Later fragments have no ports.
#[test]
fn fragments_of_an_answer_share_its_address() {
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

    let last = hairpin::REALMS_MAX - 2;
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

/// One gateway with one peer.
struct World {
    control: Control,
    flows: Arc<Flows>,
    pool: Vec<IpAddr>,
    start: Instant,
}

/// The sender of a packet of ours.
#[derive(Clone, Copy, Debug)]
enum From {
    /// A pod, whose own address the remote knows.
    Pod,
    /// A host outside the pods, with an external address.
    Host,
}

impl World {
    /// Without a shared address: sources that the remote does not know are not translated.
    fn new() -> Self {
        Self::with_pool(&[])
    }

    /// Sources that the remote does not know are masqueraded.
    fn sharing() -> Self {
        Self::with_pool(&["10.70.0.1", "fd70::1"])
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
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
            // No clamping: random bytes may be a SYN with an MSS.
            clamp_mtu: None,
            persistent_keepalive: None,
        };

        self.control.apply(vec![peer], table);
    }

    /// An address of ours, and the address as a remote knows it.
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
            assert_eq!(bytes, before, "an ICMP error quotes the packet as sent");
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

        inbound(&context, PeerId(0), &self.peer(), &mut bytes, &mut header)?;
        assert_eq!(Header::parse(&bytes), Ok(header));
        Ok(bytes)
    }

    fn context<'a>(&'a self, forwarding: &'a Forwarding) -> Context<'a> {
        let now = self.flows.tick(self.start);

        Context { forwarding, flows: &self.flows, flow_access: FlowAccess::Update, now }
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.control.current().peers()[0])
    }
}

/// An ICMP host unreachable error about an IPv4 packet.
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
