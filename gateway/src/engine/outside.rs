//! How a datagram of our own is known when it comes back.
//!
//! If the route to an endpoint leads into the device, what we send comes back as a packet to send, is
//! sealed, sent, and comes back again, longer by a header each time. Sending to the device is not looked
//! at: only the kernel knows where a route leads. What comes from the device is.
//!
//! A packet is ours if it is UDP from one of our ports, begins as WireGuard does, and besides
//!
//! - comes from an address of the device; or
//! - comes from an address of ours that a peer has called; or
//! - goes to the endpoint of a peer, whichever: with two peers, each behind the other, a datagram to one
//!   comes back as a packet for the other.
//!
//! Whoever happens to use the same port, also because a NAT gave it that port and an address of ours, does
//! not speak WireGuard, or not to a server that is our peer. Of a datagram that was cut into fragments only
//! the first has ports: the others are sealed once more, each in one datagram that is whole and known when
//! it comes back.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use arc_swap::ArcSwapOption;
use remap::masquerade::Tick;

use crate::packet::Header;
use crate::packet::ports::Ports;
use crate::path::{LocalPort, canonical};
use crate::wg::Peer;
use crate::wg::endpoints::Moves;

const UDP: u8 = 17;

const UDP_HEADER_BYTES: usize = 8;

/// How often the peers are looked through in a second, at most.
const LOOKS: u32 = 10;

/// What we send from.
#[derive(Debug, Default)]
pub struct Outside {
    /// 0 as long as there is none.
    ports: [AtomicU16; 2],
    addresses: Box<[IpAddr]>,
    /// Of all peers.
    moves: Arc<Moves>,
}

/// Where the peers of one generation are, and what they call us.
///
/// Whoever sends from our port what looks like ours has each of its packets looked up here. There may be
/// thousands of peers, so they are looked through only after one of them has moved, and not for ever in
/// one second: a peer may move with every datagram.
#[derive(Debug, Default)]
pub(super) struct Ends(ArcSwapOption<Known>);

#[derive(Debug)]
struct Known {
    /// What had been counted when the peers were looked through.
    moves: u64,
    /// The second in which that was, and for which time in it.
    looked: (Tick, u32),
    remotes: HashSet<SocketAddr>,
    locals: HashSet<IpAddr>,
}

impl Outside {
    pub(super) fn with_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self {
            ports: self.ports.each_ref().map(|port| AtomicU16::new(port.load(Ordering::Relaxed))),
            addresses: addresses.into_iter().collect(),
            moves: self.moves(),
        }
    }

    /// What counts the moves of peers.
    pub(super) fn moves(&self) -> Arc<Moves> {
        Arc::clone(&self.moves)
    }

    pub(super) fn set_port(&self, of: LocalPort, port: u16) {
        let [listen, spare] = &self.ports;
        let known = match of {
            LocalPort::Listen => listen,
            LocalPort::Spare => spare,
        };
        known.store(port, Ordering::Relaxed);
    }

    /// Whether nothing speaks against it at first sight. All packets come here.
    #[inline]
    pub(super) fn may_have_sent(&self, packet: &[u8], header: &Header) -> bool {
        header.protocol() == UDP
            && Ports::read(packet, header).is_some_and(|ports| {
                let is_ours = |port: &AtomicU16| port.load(Ordering::Relaxed) == ports.source;
                ports.source != 0 && self.ports.iter().any(is_ours)
            })
            && is_wireguard(packet, header)
    }

    /// Whether we have sent `packet`, of which [`Self::may_have_sent`] says that we may have.
    #[cold]
    pub(super) fn has_sent(
        &self,
        packet: &[u8],
        header: &Header,
        (ends, peers): (&Ends, &[Arc<Peer>]),
        now: Tick,
    ) -> bool {
        let Some(ports) = Ports::read(packet, header) else { return false };
        let source = header.source();
        let destination = SocketAddr::new(header.destination(), ports.destination);
        let known = ends.known(self.moves.count(), peers, now);

        self.addresses.contains(&source)
            || known.remotes.contains(&destination)
            || known.locals.contains(&source)
    }
}

impl Ends {
    fn known(&self, moves: u64, peers: &[Arc<Peer>], now: Tick) -> Arc<Known> {
        let known = self.0.load_full();
        let times = known.as_ref().map_or(0, |known| known.times_in(now));
        if let Some(known) = known.filter(|known| known.moves == moves || times >= LOOKS) {
            return known;
        }

        let known = Arc::new(Known::new(moves, peers, (now, times + 1)));
        self.0.store(Some(Arc::clone(&known)));
        known
    }
}

impl Known {
    fn new(moves: u64, peers: &[Arc<Peer>], looked: (Tick, u32)) -> Self {
        let (mut remotes, mut locals) = (HashSet::new(), HashSet::new());
        for path in peers.iter().filter_map(|peer| peer.path()) {
            remotes.insert(canonical(path.remote));
            locals.extend(path.local.map(|local| local.address()));
        }

        Self { moves, looked, remotes, locals }
    }

    /// How often the peers were looked through in this second.
    fn times_in(&self, now: Tick) -> u32 {
        let (second, times) = self.looked;

        if second == now { times } else { 0 }
    }
}

/// Whether the datagram begins with the type of a message and three bytes that are reserved (WireGuard
/// whitepaper section 5.4).
fn is_wireguard(packet: &[u8], header: &Header) -> bool {
    let payload = packet.get(header.transport_offset() + UDP_HEADER_BYTES..);

    matches!(payload, Some([1..=4, 0, 0, 0, ..]))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;
    use remap::Table;

    use super::*;
    use crate::DropReason;
    use crate::engine::{self, Control, Engine, PeerConfig, Settings};
    use crate::packet::fixtures::{Extension, Packet, TCP, tcp, udp};
    use crate::path::{Local, Path};
    use crate::wg::boringtun::BoringtunIdentity;
    use crate::wg::tunnel::PeerKeys;
    use crate::wg::{PrivateKey, PublicKey};

    const PORT: u16 = 51840;
    const PEER_PORT: u16 = 51900;

    const DEVICE: &str = "169.254.18.1";
    const POD: &str = "10.244.1.5";
    const OURS: &str = "198.51.100.2";

    #[test]
    fn what_we_sent_to_a_peer_is_ours() {
        let world = World::new();

        for source in [OURS, POD, DEVICE, "203.0.113.9"] {
            assert!(
                world.is_own(&udp_packet(source, "198.51.100.1", [PORT, PEER_PORT])),
                "{source}"
            );
        }
        assert!(world.is_own(&udp_packet("2001:db8::2", "2001:db8::1", [PORT, PEER_PORT])));
    }

    /// Milan's endpoint is behind Oslo, and the other way round.
    #[test]
    fn it_does_not_matter_behind_which_peer_an_endpoint_is() {
        let world = World::new();
        let forwarding = world.control.current();
        let packet = udp_packet(OURS, "198.51.100.1", [PORT, PEER_PORT]);
        let route = forwarding.outbound(packet.destination).unwrap();
        let behind = forwarding.name(route.id);

        assert_eq!(behind, Some("oslo"));
        assert!(world.is_own(&packet));
    }

    #[test]
    fn a_pod_that_has_our_port_by_chance_is_not_us() {
        let world = World::new();

        for [source, destination] in [
            [POD, "198.51.100.99"],
            [POD, "203.0.113.1"],
            ["2001:db8::2", "2001:db8::99"],
            // Of us too it may ask something else.
            [OURS, "198.51.100.1"],
        ] {
            assert!(!world.is_own(&udp_packet(source, destination, [PORT, 53])), "{destination}");
        }
        assert!(!world.is_own(&udp_packet(DEVICE, "198.51.100.1", [PORT + 1, PEER_PORT])));
        // A NAT may have given it an address of ours as well.
        let (device, resolver) = (ip(DEVICE), ip("203.0.113.1"));
        let question = udp([PORT, 53], b"\x12\x34\x01\x00\x00\x01");
        assert!(!world.is_own(&Packet::new(device, resolver, UDP, question)));
        let same_ports = tcp([PORT, PEER_PORT], 0, 0, &[], b"");
        let (pod, endpoint) = (ip(POD), ip("198.51.100.1"));
        assert!(!world.is_own(&Packet::new(pod, endpoint, TCP, same_ports)));
    }

    #[test]
    fn an_address_of_ours_that_a_peer_called_is_ours() {
        let world = World::new();
        let forwarding = world.control.current();
        let called = Local::new(ip(OURS), 0);
        let packet = udp_packet(OURS, "192.0.2.77", [PORT, 9]);
        assert!(!world.is_own(&packet), "nobody knows yet");

        let remote: SocketAddr = "198.51.100.1:51900".parse().unwrap();
        forwarding.peers()[0].learn_path(Path { local: called, ..remote.into() });

        assert!(world.is_own(&packet));
    }

    /// A pod may send nothing else.
    #[test]
    fn the_peers_are_looked_through_again_when_one_has_moved_and_not_before() {
        let world = World::new();
        let (ends, forwarding) = (Ends::default(), world.control.current());
        let now = Tick::from_secs(7);
        let look = || ends.known(world.control.outside.moves().count(), forwarding.peers(), now);
        let (first, again) = (look(), look());
        let peer = &forwarding.peers()[0];
        let path = peer.path().unwrap();

        peer.learn_path(path);
        let unmoved = look();
        peer.learn_path(Path { local: Local::new(ip(OURS), 0), ..path });
        let moved = look();

        assert!(Arc::ptr_eq(&first, &again) && Arc::ptr_eq(&first, &unmoved));
        assert!(!first.locals.contains(&ip(OURS)) && moved.locals.contains(&ip(OURS)));
    }

    /// It may take a pod inside and a peer that changes its port all the time.
    #[test]
    fn peers_that_move_all_the_time_are_looked_through_some_times_in_a_second() {
        let world = World::new();
        let (ends, forwarding) = (Ends::default(), world.control.current());
        let peer = &forwarding.peers()[0];
        let mut last = None;
        let mut looks_in = |second| {
            let mut looks = 0;
            for port in 1..=1000 {
                let remote = SocketAddr::new(ip("198.51.100.1"), port);
                peer.learn_path(remote.into());
                let count = world.control.outside.moves().count();
                let known = ends.known(count, forwarding.peers(), Tick::from_secs(second));
                looks += u32::from(!last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &known)));
                last = Some(known);
            }
            looks
        };

        assert_eq!([7, 7, 8].map(&mut looks_in), [LOOKS, 0, LOOKS]);
    }

    #[test]
    fn another_port_is_known_at_once() {
        let world = World::new();
        let [before, after] =
            [PORT, 4000].map(|port| udp_packet(DEVICE, "198.51.100.1", [port, PEER_PORT]));

        world.control.set_port(4000);

        assert!(world.is_own(&after));
        assert!(!world.is_own(&before));
    }

    #[test]
    fn a_first_fragment_is_known_and_the_others_have_no_ports() {
        let world = World::new();
        let mut v4 = udp_packet(OURS, "198.51.100.1", [PORT, PEER_PORT]);
        let mut v6 = udp_packet("2001:db8::2", "2001:db8::1", [PORT, PEER_PORT]);
        for (offset, is_known) in [(0, true), (100, false)] {
            v4.fragment = 0x2000 | offset;
            v6.extensions = vec![Extension::Fragment { field: (offset << 3) | 1 }];

            assert_eq!(world.is_own(&v4), is_known, "{offset}");
            assert_eq!(world.is_own(&v6), is_known, "{offset}");
        }
    }

    #[test]
    fn an_ipv4_endpoint_is_known_in_either_form() {
        assert!(World::new().is_own(&udp_packet(POD, "192.0.2.1", [PORT, PEER_PORT])));
    }

    proptest! {
        /// Nothing else drops out of what the table and the allowed IPs carry.
        #[test]
        fn it_is_said_of_udp_from_our_port_alone(
            source in prop::sample::select(vec![OURS, POD, DEVICE]),
            destination in prop::sample::select(vec!["198.51.100.1", "203.0.113.1", "192.0.2.7"]),
            ports in prop::sample::select(vec![[PORT, PEER_PORT], [PORT, 53], [53, PEER_PORT], [0, 0]]),
        ) {
            let world = World::new();
            let is_endpoint = destination != "192.0.2.7" && ports[1] == PEER_PORT;

            let is_own = world.is_own(&udp_packet(source, destination, ports));

            prop_assert_eq!(is_own, ports[0] == PORT && (source == DEVICE || is_endpoint));
        }
    }

    struct World {
        control: Control,
        flows: Arc<engine::Flows>,
        start: Instant,
    }

    impl World {
        /// Milan and Oslo, each of them said to be behind the other, and Turin in IPv6.
        #[expect(
            clippy::disallowed_methods,
            reason = "any instant will do as the beginning of time"
        )]
        fn new() -> Self {
            let start = Instant::now();
            let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
            let settings = Settings { max_flows: 1024, seed: 1, start };
            let Engine { mut control, flows, .. } = engine::new(identity, settings).unwrap();
            control.set_port(PORT);
            control.set_device_addresses([ip(DEVICE)]);
            let peers = vec![
                peer("milan", 1, "198.51.100.1:51900", "203.0.113.0/24"),
                peer("oslo", 2, "203.0.113.1:51900", "0.0.0.0/0"),
                // A list of names may hold an address in this form.
                peer("genoa", 3, "[::ffff:192.0.2.1]:51900", "192.0.2.0/24"),
                peer("turin", 4, "[2001:db8::1]:51900", "::/0"),
            ];
            control.apply(peers, Table::default());

            Self { control, flows, start }
        }

        fn is_own(&self, packet: &Packet) -> bool {
            use crate::engine::translate::{Context, Memory, route};

            let bytes = packet.build();
            let header = Header::parse(&bytes).unwrap();
            let context = Context {
                forwarding: &self.control.current(),
                flows: &self.flows,
                memory: Memory::Unchanged,
                now: self.flows.tick(self.start),
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
            keys: PeerKeys {
                public_key: PublicKey::from_bytes([key; 32]),
                preshared_key: None,
                persistent_keepalive: None,
            },
            endpoints: vec![endpoint.parse().unwrap()],
            allowed_ips: [allowed.parse().unwrap()].into(),
            clamp_mtu: None,
        }
    }

    fn udp_packet(source: &str, destination: &str, ports: [u16; 2]) -> Packet {
        Packet::new(ip(source), ip(destination), UDP, udp(ports, &[4, 0, 0, 0, 7, 7, 7, 7]))
    }

    fn ip(address: &str) -> IpAddr {
        address.parse().unwrap()
    }
}
