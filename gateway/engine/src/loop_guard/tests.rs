use std::net::IpAddr;
use std::time::Instant;

use proptest::prelude::*;
use remap::Table;

use super::*;
use crate::flows::FlowAccess;
use crate::translate::{Context, route};
use crate::{Control, Engine, PeerConfig, Settings};
use strait_packet::DropReason;
use strait_packet::fixtures::{Extension, Packet, TCP, tcp, udp};
use strait_packet::path::Path;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};

const PORT: u16 = 51840;
const PEER_PORT: u16 = 51900;

const POD: &str = "10.244.1.5";
const OURS: &str = "198.51.100.2";

/// Names, endpoints and prefixes.
type Peers = &'static [(&'static str, &'static str, &'static str)];

/// Milan is in the underlay, Oslo behind Milan, and Genoa behind Oslo.
const ONION: Peers = &[
    ("milan", "198.51.100.1:51900", "203.0.113.0/24"),
    ("oslo", "203.0.113.1:51900", "192.0.2.0/24"),
    ("genoa", "192.0.2.1:51900", "10.99.0.0/16"),
];

/// Milan and Oslo are each behind the other, and Turin is behind itself.
const LOOP: Peers = &[
    ("milan", "198.51.100.1:51900", "203.0.113.0/24"),
    ("oslo", "203.0.113.1:51900", "198.51.100.0/24"),
    ("turin", "[2001:db8::1]:51900", "::/0"),
];

/// A list of names may hold an IPv4 address in this form.
const MAPPED: Peers = &[("genoa", "[::ffff:192.0.2.1]:51900", "192.0.2.0/24")];

#[test]
fn tunnel_through_another_peer_is_carried() {
    let world = World::new(ONION);

    for _ in 0..3 {
        assert!(!world.is_dropped(&to("203.0.113.1"), 1), "to Oslo, through Milan");
        assert!(!world.is_dropped(&to("192.0.2.1"), 1), "to Genoa, through Oslo");
    }
}

#[test]
fn datagram_to_peer_behind_itself_is_dropped() {
    let world = World::new(LOOP);

    let datagram = udp_packet("2001:db8::2", "2001:db8::1", [PORT, PEER_PORT]);

    assert!(world.is_dropped(&datagram, 1));
}

#[test]
fn circle_of_peers_is_detected_after_one_round() {
    let world = World::new(LOOP);

    assert!(!world.is_dropped(&to("198.51.100.1"), 1), "the route to Oslo may lead outside");
    assert!(world.is_dropped(&to("203.0.113.1"), 1), "it does not");
    assert!(world.is_dropped(&to("198.51.100.1"), 1));
    assert!(world.is_dropped(&to("198.51.100.1"), 2));
}

/// The route may have been repaired.
#[test]
fn returned_datagrams_expire_after_a_second() {
    let world = World::new(LOOP);
    assert!(!world.is_dropped(&to("198.51.100.1"), 1));
    assert!(world.is_dropped(&to("203.0.113.1"), 1));

    assert!(!world.is_dropped(&to("198.51.100.1"), 3));
}

/// As with wg-quick: a peer has the default route, and its endpoint a route of its own.
#[test]
fn default_route_peer_carries_another_tunnel() {
    let world = World::new(&[
        ("hub", "198.51.100.1:51900", "0.0.0.0/0"),
        ("oslo", "203.0.113.1:51900", "10.99.0.0/16"),
    ]);

    for second in 1..4 {
        assert!(!world.is_dropped(&to("203.0.113.1"), second));
    }
}

#[test]
fn explaining_a_datagram_changes_nothing() {
    let world = World::new(LOOP);
    for destination in ["198.51.100.1", "203.0.113.1"] {
        assert!(!world.would_drop(&to(destination), 1));
    }

    assert!(!world.is_dropped(&to("198.51.100.1"), 1));
}

#[test]
fn foreign_packet_with_our_port_is_carried() {
    let world = World::new(LOOP);

    for [source, destination] in
        [[POD, "198.51.100.99"], [POD, "203.0.113.99"], ["2001:db8::2", "2001:db8::99"]]
    {
        let packet = udp_packet(source, destination, [PORT, PEER_PORT]);
        assert!(!world.is_dropped(&packet, 1), "{destination}");
    }
    let v6 = |ports| udp_packet("2001:db8::2", "2001:db8::1", ports);
    assert!(!world.is_dropped(&v6([PORT, 53]), 1));
    assert!(!world.is_dropped(&v6([PORT + 1, PEER_PORT]), 1));
    let question = udp([PORT, PEER_PORT], b"\x12\x34\x01\x00\x00\x01");
    let question = Packet::new(ip("2001:db8::2"), ip("2001:db8::1"), UDP, question);
    assert!(!world.is_dropped(&question, 1));
    let segment = tcp([PORT, PEER_PORT], 0, 0, &[], b"");
    let segment = Packet::new(ip("2001:db8::2"), ip("2001:db8::1"), TCP, segment);
    assert!(!world.is_dropped(&segment, 1));
}

/// A pod may send such packets only.
#[test]
fn cache_is_rebuilt_only_after_a_peer_roamed() {
    let world = World::new(LOOP);
    let (endpoint_cache, forwarding) = (EndpointCache::default(), world.control.current());
    let now = Tick::from_secs(7);
    let look = || {
        endpoint_cache.current(
            world.control.loop_guard.moves().path_changes(),
            forwarding.peers(),
            now,
        )
    };
    let (first, again) = (look(), look());
    let peer = &forwarding.peers()[0];
    let path = peer.path().unwrap();

    peer.learn_path(path);
    let unmoved = look();
    let remote = "198.51.100.1:9".parse().unwrap();
    peer.learn_path(Path { remote, ..path });
    let moved = look();

    assert!(Arc::ptr_eq(&first, &again) && Arc::ptr_eq(&first, &unmoved));
    assert!(!first.returned.contains_key(&remote) && moved.returned.contains_key(&remote));
}

/// The attack: a pod sends such packets while a peer keeps changing its port.
#[test]
fn cache_rebuilds_are_limited_per_second() {
    let world = World::new(LOOP);
    let (endpoint_cache, forwarding) = (EndpointCache::default(), world.control.current());
    let peer = &forwarding.peers()[0];
    let mut last = None;
    let mut rebuilds_in = |second| {
        let mut rebuilds = 0;
        for port in 1..=1000 {
            let remote = SocketAddr::new(ip("198.51.100.1"), port);
            peer.learn_path(remote.into());
            let count = world.control.loop_guard.moves().path_changes();
            let cached = endpoint_cache.current(count, forwarding.peers(), Tick::from_secs(second));
            rebuilds += u32::from(!last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &cached)));
            last = Some(cached);
        }
        rebuilds
    };

    let limit = REBUILDS_PER_SECOND;
    assert_eq!([7, 7, 8].map(&mut rebuilds_in), [limit, 0, limit]);
}

#[test]
fn port_change_takes_effect_at_once() {
    let world = World::new(LOOP);
    let [before, after] =
        [PORT, 4000].map(|port| udp_packet("2001:db8::2", "2001:db8::1", [port, PEER_PORT]));

    world.control.set_port(4000);

    assert!(world.is_dropped(&after, 1));
    assert!(!world.is_dropped(&before, 1));
}

#[test]
fn only_the_first_fragment_is_recognized() {
    let world = World::new(MAPPED);
    let mut packet = to("192.0.2.1");
    for (offset, is_known) in [(0, true), (100, false)] {
        packet.fragment = 0x2000 | offset;

        assert_eq!(world.is_dropped(&packet, 1), is_known, "{offset}");
    }
}

#[test]
fn only_nested_tunnels_lower_the_hop_limit() {
    let hops = |packet: &Packet| {
        let bytes = packet.build();
        hop_limit(&bytes, &Header::parse(&bytes).unwrap())
    };
    let nested = to("203.0.113.1");
    let v6 = udp_packet("2001:db8::2", "2001:db8::1", [7, PEER_PORT]);
    let later = Packet { fragment: 100, ..nested.clone() };
    let mut later_v6 = v6.clone();
    later_v6.extensions = vec![Extension::Fragment { field: (100 << 3) | 1 }];
    let plain = Packet::new(ip(POD), ip("203.0.113.1"), UDP, udp([7, 53], b"a question"));
    let segment = Packet::new(ip(POD), ip("203.0.113.1"), TCP, tcp([7, 80], 0, 0, &[], b""));

    for packet in [&nested, &v6, &later, &later_v6] {
        assert_eq!(hops(packet), Some(56), "{packet:?}");
    }
    assert_eq!(hops(&Packet { hop_limit: 8, ..nested }), Some(0));
    assert_eq!(hops(&plain), None);
    assert_eq!(hops(&segment), None);
}

proptest! {
    /// For any arrangement of endpoints behind peers: a datagram that is followed from peer to peer is dropped, or
    /// reaches an endpoint that no peer has.
    #[test]
    fn no_datagram_circulates_endlessly(
        behind in prop::collection::vec(prop::option::of(0..6_usize), 6),
        first in 0..6_usize,
    ) {
        // The endpoint of peer n is 10.0.n.1; a peer has the networks of those that are behind it.
        let peers = (0..6_u8).map(|number| {
            let allowed = behind.iter().zip(0_u8..).filter(|(owner, _)| **owner == Some(number.into()));
            let allowed = allowed.map(|(_, behind)| format!("10.0.{behind}.0/24").parse().unwrap());
            let mut config = peer(&number.to_string(), number + 1, &format!("10.0.{number}.1:51900"), "10.99.0.0/24");
            config.allowed_ips = allowed.collect();
            config
        });
        let world = World::with(peers.collect());
        let mut at = first;
        let mut turns = 0;
        while let Some(owner) = behind[at] {
            turns += 1;
            if turns > 12 || world.is_dropped(&to(&format!("10.0.{at}.1")), 1) {
                break;
            }
            at = owner;
        }

        let mut end = first;
        let ends = (0..6).any(|_| match behind[end] {
            Some(owner) => {
                end = owner;
                false
            }
            None => true,
        });
        prop_assert!(turns <= 6, "{turns} turns");
        prop_assert_eq!(behind[at].is_none(), ends);
    }
}

struct World {
    control: Control,
    flows: Arc<crate::Flows>,
}

impl World {
    fn new(peers: Peers) -> Self {
        let peers = peers
            .iter()
            .zip(1..)
            .map(|((name, endpoint, allowed), key)| peer(name, key, endpoint, allowed));

        Self::with(peers.collect())
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    fn with(peers: Vec<PeerConfig>) -> Self {
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 1, index_seed: 1, start: Instant::now() };
        let Engine { mut control, flows, .. } = Engine::new(identity, settings).unwrap();
        control.set_port(PORT);
        control.apply(peers, Table::default());

        Self { control, flows }
    }

    fn is_dropped(&self, packet: &Packet, second: u64) -> bool {
        self.decide(packet, second, FlowAccess::Update)
    }

    fn would_drop(&self, packet: &Packet, second: u64) -> bool {
        self.decide(packet, second, FlowAccess::ReadOnly)
    }

    fn decide(&self, packet: &Packet, second: u64, flow_access: FlowAccess) -> bool {
        let bytes = packet.build();
        let header = Header::parse(&bytes).unwrap();
        let context = Context {
            forwarding: &self.control.current(),
            flows: &self.flows,
            flow_access,
            now: Tick::from_secs(second),
        };
        match route(&context, &bytes, &header) {
            Err(DropReason::RoutingLoop) => true,
            Err(reason) => panic!("{reason:?}"),
            Ok(_) => false,
        }
    }
}

fn peer(name: &str, key: u8, endpoint: &str, allowed: &str) -> PeerConfig {
    PeerConfig {
        name: name.into(),
        keys: PeerKeys { public_key: PublicKey::from_bytes([key; 32]), preshared_key: None },
        endpoints: vec![endpoint.parse().unwrap()],
        allowed_ips: [allowed.parse().unwrap()].into(),
        clamp_mtu: None,
        persistent_keepalive: None,
    }
}

/// A datagram of ours.
fn to(destination: &str) -> Packet {
    udp_packet(OURS, destination, [PORT, PEER_PORT])
}

fn udp_packet(source: &str, destination: &str, ports: [u16; 2]) -> Packet {
    Packet::new(ip(source), ip(destination), UDP, udp(ports, &[4, 0, 0, 0, 7, 7, 7, 7]))
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}
