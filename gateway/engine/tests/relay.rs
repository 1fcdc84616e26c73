//! A change of leaders: three engines behind the address of a Service, which leads to the former leader at first and to its
//! successor then. What the former leader sends to the peer by itself is lost from then on.
//!
//! ```text
//!   peer ── Service ──┬── former leader ──┐
//!                     └── successor ──────┴── nodes
//! ```

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use remap::{Cluster, PeerId, Rule, Table};
use strait_engine::inbound::Received;
use strait_engine::{Engine, PeerConfig, Settings};
use strait_packet::buffer::TransmitBatch;
use strait_packet::ecn::Ecn;
use strait_packet::fixtures;
use strait_packet::path::{Local, Path};
use strait_packet::virtio::VirtioHeader;
use strait_wg::native::Environment;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{Epoch, PrivateKey, PublicKey};

const PEER: usize = 0;
const FORMER: usize = 1;
const SUCCESSOR: usize = 2;

const RELAY: Duration = Duration::from_secs(5);

#[test]
fn relayed_sessions_work_in_both_directions() {
    let mut world = World::new();
    world.lead_to_successor();

    world.send(PEER, 1);
    world.send(FORMER, 2);
    world.send(PEER, 3);

    assert_eq!(world.received(FORMER), [0, 1, 3]);
    assert_eq!(world.received(PEER), [0, 2]);
    assert_eq!(world.received(SUCCESSOR), []);
    assert_eq!(world.relayed(), 3);
    world.assert_balance();
}

#[test]
fn the_relay_ends() {
    let mut world = World::new();
    world.lead_to_successor();
    world.now += RELAY;

    world.send(PEER, 1);

    assert_eq!(world.received(FORMER), [0]);
    assert_eq!(world.relayed(), 0);
    world.assert_balance();
}

/// A guess at the receiver index, or a datagram that an eavesdropper repeats.
#[test]
fn datagrams_of_others_are_not_relayed() {
    let mut world = World::new();
    let seen = world.datagrams(PEER, 9);
    world.lead_to_successor();
    world.send(PEER, 1);
    let mut guessed = seen[0].clone();
    guessed[4] ^= 1;
    let before = world.relayed();

    world.receive(SUCCESSOR, "203.0.113.9:7".parse().unwrap(), &seen[0]);
    world.receive(SUCCESSOR, world.gateways[PEER].address, &guessed);
    world.send(FORMER, 2);

    assert_eq!(world.relayed(), before + 1);
    assert_eq!(world.received(PEER), [0, 2]);
    world.assert_balance();
}

proptest! {
    /// Also while the successor gets a session of its own.
    #[test]
    fn no_packet_is_lost_or_repeated(steps in prop::collection::vec(0..3_u8, 1..60)) {
        let mut world = World::new();
        world.lead_to_successor();
        world.send(PEER, 1);
        let mut sent = [vec![0, 1], vec![0]];

        for (number, step) in (2..).zip(steps) {
            match step {
                0 => {
                    world.send(PEER, number);
                    sent[0].push(number);
                }
                1 => {
                    world.send(FORMER, number);
                    sent[1].push(number);
                }
                _ => world.handle_timeouts(),
            }
            world.now += Duration::from_millis(10);
        }

        let mut at_nodes = [world.received(FORMER), world.received(SUCCESSOR)].concat();
        at_nodes.sort_unstable();
        prop_assert_eq!([at_nodes, world.received(PEER)], sent);
        world.assert_balance();
    }
}

struct Gateway {
    engine: Engine,
    /// That of a pod is not the one to which the peer sends.
    address: SocketAddr,
    received: Vec<Vec<u8>>,
}

struct Datagram {
    from: usize,
    to: SocketAddr,
    bytes: Vec<u8>,
}

struct World {
    now: Instant,
    service: SocketAddr,
    /// Where the Service leads.
    active: usize,
    gateways: [Gateway; 3],
}

impl World {
    /// The peer has a session with the former leader, to which it has sent packet 0, as the former leader has to it.
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    fn new() -> Self {
        let now = Instant::now();
        let service = "192.0.2.1:51840".parse().unwrap();
        let [key, peer_key] = [PrivateKey::generate(), PrivateKey::generate()];
        let pod = |address: &str| {
            Gateway::new(&key, peer_key.public_key(), address.parse().unwrap(), &[], now)
        };
        let address = "198.51.100.1:40000".parse().unwrap();
        let gateways = [
            Gateway::new(&peer_key, key.public_key(), address, &[service], now),
            pod("10.244.0.1:51840"),
            pod("10.244.0.2:51840"),
        ];
        let mut world = Self { now, service, active: FORMER, gateways };

        world.handle_timeouts();
        world.send(PEER, 0);
        world.send(FORMER, 0);
        assert_eq!([world.received(PEER), world.received(FORMER)], [[0], [0]]);

        world
    }

    fn lead_to_successor(&mut self) {
        self.active = SUCCESSOR;
        let former = self.gateways[FORMER].address;
        self.gateways[SUCCESSOR].engine.control.relay(former, self.now + RELAY);
    }

    /// Packet `number` leaves the cluster of a gateway.
    fn send(&mut self, from: usize, number: u16) {
        let wire = self.datagrams(from, number).into_iter();
        let to = self.endpoint(from);

        self.deliver(wire.map(|bytes| Datagram { from, to, bytes }).collect());
    }

    /// The datagrams with packet `number`.
    fn datagrams(&mut self, from: usize, number: u16) -> Vec<Vec<u8>> {
        let mut packet = packet(number);
        let mut out = TransmitBatch::default();
        let outbound = &mut self.gateways[from].engine.outbound;
        let handled =
            outbound.handle_frame(&VirtioHeader::default(), &mut packet, self.now, &mut out);
        assert!(!handled.is_incomplete());

        self.sent(from, &out).into_iter().map(|datagram| datagram.bytes).collect()
    }

    fn endpoint(&self, gateway: usize) -> SocketAddr {
        self.gateways[gateway].engine.control.current().peers()[0].endpoint().unwrap()
    }

    fn handle_timeouts(&mut self) {
        for gateway in [PEER, FORMER, SUCCESSOR] {
            let mut out = TransmitBatch::default();
            self.gateways[gateway].engine.handshakes.handle_timeout(self.now).fill(&mut out);
            let wire = self.sent(gateway, &out);
            self.deliver(wire);
        }
    }

    fn deliver(&mut self, mut wire: VecDeque<Datagram>) {
        while let Some(Datagram { from, to, bytes }) = wire.pop_front() {
            let [peer, former, successor] = [0, 1, 2].map(|gateway| self.gateways[gateway].address);
            let (receiver, source) = if to == self.service {
                (self.active, peer)
            } else if to == peer && from == self.active {
                (PEER, self.service)
            } else if to == former {
                (FORMER, self.gateways[from].address)
            } else if to == successor {
                (SUCCESSOR, self.gateways[from].address)
            } else {
                continue;
            };
            wire.extend(self.receive(receiver, source, &bytes));
        }
    }

    /// What `gateway` sends in answer.
    fn receive(&mut self, gateway: usize, from: SocketAddr, bytes: &[u8]) -> VecDeque<Datagram> {
        let mut out = TransmitBatch::default();
        let local = Local::new(self.gateways[gateway].address.ip(), 0);
        let path = Path { local, ..from.into() };
        let received = Received { bytes, stride: bytes.len(), path, ecn: Ecn::NotEct };
        let Gateway { engine, received: packets, .. } = &mut self.gateways[gateway];
        let mut messages = Vec::new();
        engine.inbound.handle_datagrams(received, self.now, &mut out, |message, path| {
            messages.push((message.to_vec(), path));
            true
        });
        for (message, path) in messages {
            engine.handshakes.handle_message(&message, path, self.now, &mut out);
        }
        engine.inbound.drain(|frame, bytes, accounts| {
            for range in frame.members() {
                accounts.handle_frame(1, u64::try_from(range.len()).unwrap(), true);
                packets.push(bytes[range].to_vec());
            }
        });

        self.sent(gateway, &out)
    }

    fn sent(&self, from: usize, out: &TransmitBatch) -> VecDeque<Datagram> {
        let accounts = self.gateways[from].engine.control.accounts();
        let datagrams = out.transmits().iter().flat_map(|transmit| {
            accounts.handle_transmit(transmit, true);
            let to = transmit.outer.path.remote;
            let datagrams = out.bytes(transmit).chunks(transmit.segment_bytes);
            datagrams.map(move |bytes| Datagram { from, to, bytes: bytes.to_vec() })
        });

        datagrams.collect()
    }

    /// The numbers of the packets that arrived in the cluster of a gateway.
    fn received(&self, gateway: usize) -> Vec<u16> {
        let packets = self.gateways[gateway].received.iter();

        packets.map(|packet| u16::from_be_bytes(*packet.last_chunk().unwrap())).collect()
    }

    fn relayed(&self) -> u64 {
        self.gateways[SUCCESSOR].engine.control.accounts().inbound.snapshot().relayed
    }

    fn assert_balance(&self) {
        for gateway in &self.gateways {
            let accounts = gateway.engine.control.accounts();
            assert_eq!(accounts.inbound.snapshot().balance(), 0);
            assert_eq!(accounts.outbound.snapshot().balance(), 0);
        }
    }
}

impl Gateway {
    fn new(
        own: &PrivateKey,
        public_key: PublicKey,
        address: SocketAddr,
        endpoints: &[SocketAddr],
        start: Instant,
    ) -> Self {
        let environment =
            Environment::new(Epoch::new(start, Duration::from_secs(1_700_000_000)), 1_420);
        let identity = strait_wg::Engine::Native.identity(own, &environment);
        // The peer has the same, so that its indices are valid ones of the successor too.
        let settings = Settings { max_flows: 1_024, seed: 7, index_seed: 7, start };
        let mut engine = Engine::new(identity, settings).unwrap();
        let remote = "10.244.0.0/16".parse().unwrap();
        let rule = Rule::new(remote, "10.71.0.0/16".parse().unwrap()).unwrap();
        let (table, conflicts) = Table::build(1, &Cluster::default(), [(PeerId(0), rule)]);
        assert!(conflicts.is_empty());
        let peer = PeerConfig {
            name: "peer".to_owned(),
            keys: PeerKeys { public_key, preshared_key: None },
            endpoints: endpoints.to_vec(),
            allowed_ips: [remote].into(),
            clamp_mtu: None,
            persistent_keepalive: None,
        };
        engine.control.apply(vec![peer], table);

        Self { engine, address, received: Vec::new() }
    }
}

/// A packet to the other cluster, whose payload is its number.
fn packet(number: u16) -> Vec<u8> {
    let [source, destination] = [[10, 244, 1, 5], [10, 71, 2, 7]].map(IpAddr::from);
    let datagram = fixtures::udp([4_000, 5_000], &number.to_be_bytes());

    fixtures::Packet::new(source, destination, fixtures::UDP, datagram).build()
}
