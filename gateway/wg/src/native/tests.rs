//! Two tunnels and the datagrams between them, each tunnel of one of the engines.

mod contents;
mod dormancy;
mod handover;
pub(super) mod hex;
mod hostile;
mod lanes;
mod limits;
mod load;
mod opening;
mod primitives;
pub(super) mod residue;
mod session;
mod timers;
mod timing;
mod transcripts;
mod vectors;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::message::Message;
use crate::tunnel::{Opened, TimerPolicy};
use crate::{Engine, PathProbe, PresharedKey};
use strait_packet::buffer::PacketBatch;
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::segment::Segments;
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_packet::{Header, fixtures};

const MTU: u16 = 1420;

use Engine::{Boringtun, Native};

const PAIRS: [[Engine; 2]; 3] = [[Native, Native], [Native, Boringtun], [Boringtun, Native]];

/// One of two peers.
struct End {
    identity: Arc<dyn Identity>,
    tunnel: Arc<dyn Tunnel>,
    address: SocketAddr,
    persistent_keepalive: Option<Duration>,
    private_key: PrivateKey,
    peer: PeerKeys,
}

struct Pair {
    ends: [End; 2],
    start: Instant,
    now: Instant,
}

#[expect(clippy::disallowed_methods, reason = "a test may start at any instant")]
fn start() -> Instant {
    Instant::now()
}

impl Pair {
    fn new(engines: [Engine; 2], preshared: Option<[u8; 32]>) -> Self {
        Self::in_environment(|now| environment(now, 7), engines, preshared)
    }

    fn in_environment(
        environment: impl Fn(Instant) -> Environment,
        engines: [Engine; 2],
        preshared: Option<[u8; 32]>,
    ) -> Self {
        let now = start();
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        let identities = [0, 1].map(|own| engines[own].identity(&keys[own], &environment(now)));
        let mut number = 0;
        let ends = identities.map(|identity| {
            number += 1;
            let preshared_key = preshared.map(|key| PresharedKey::from_file_content(&key).unwrap());
            let peer = PeerKeys { public_key: keys[2 - number].public_key(), preshared_key };
            let tunnel = identity.tunnel(&peer, IndexSlot::from(u16::try_from(number).unwrap()));
            let port = u16::try_from(number).unwrap();
            let address = SocketAddr::from(([192, 0, 2, 1], port));
            let private_key = keys[number - 1].clone();
            End { identity, tunnel, address, persistent_keepalive: None, private_key, peer }
        });

        Self { ends, start: now, now }
    }

    /// Delivers `datagrams` of end `from`, then the answers, until there are none. Returns all opened packets.
    fn exchange(&self, from: usize, datagrams: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let (mut from, mut datagrams) = (from, datagrams);
        while !datagrams.is_empty() {
            let to = 1 - from;
            let mut answers = Vec::new();
            for datagram in &datagrams {
                let (opened, more) = self.deliver(from, datagram);
                packets.extend(opened);
                answers.extend(more);
            }
            (from, datagrams) = (to, answers);
        }

        packets
    }

    /// Delivers one datagram of end `from`. Returns the opened packets and the answers.
    fn deliver(&self, from: usize, datagram: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (sender, receiver) = (&self.ends[from], &self.ends[1 - from]);
        let mut out = TransmitBatch::default();
        let mut opened = PacketBatch::with_capacity(1 << 16, 64);
        match Message::classify(datagram) {
            Some(Message::Data { .. }) => {
                receiver.tunnel.open(datagram, datagram.len(), &mut opened, self.now);
            }
            Some(Message::Initiation) => {
                let known = receiver.identity.identify(datagram, sender.address.into(), &mut out);
                if let Ok(Identification::Peer(_)) = known {
                    let _ = receiver.tunnel.handle_handshake(
                        datagram,
                        sender.address.into(),
                        &mut out,
                        self.now,
                    );
                }
            }
            Some(_) => {
                let _ = receiver.tunnel.handle_handshake(
                    datagram,
                    sender.address.into(),
                    &mut out,
                    self.now,
                );
            }
            None => {}
        }
        receiver.tunnel.seal_staged(sender.address.into(), &mut out, self.now);
        let packets = opened.packets().iter().map(|range| opened.bytes()[range.clone()].to_vec());

        (packets.collect(), datagrams(&out))
    }

    fn send(&self, from: usize, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut out = TransmitBatch::default();
        let mut packet = packet.to_vec();
        let header = Header::parse(&packet).unwrap();
        let virtio = VirtioHeader::default();
        let mut segments = Segments::new(&mut packet, &virtio, &header).unwrap();
        let outer = Outer::data(self.ends[1 - from].address, Ecn::NotEct);
        self.ends[from].tunnel.seal(&mut segments, outer, &mut out, self.now);

        datagrams(&out)
    }

    fn restart(&self, from: usize) -> Vec<Vec<u8>> {
        let mut out = TransmitBatch::default();
        self.ends[from].tunnel.restart(self.ends[1 - from].address.into(), &mut out, self.now);

        datagrams(&out)
    }

    fn tick(&mut self, by: Duration) {
        self.now += by;
        for end in &self.ends {
            end.identity.handle_timeout(self.now);
        }
    }

    /// The datagrams that a timeout makes end `number` send.
    fn timers(&self, number: usize) -> Vec<Vec<u8>> {
        let mut out = TransmitBatch::default();
        self.ends[number].tunnel.handle_timeout(self.timer_policy(number), &mut out, self.now);

        datagrams(&out)
    }

    /// A policy under which end `number` may send everything.
    fn timer_policy(&self, number: usize) -> TimerPolicy {
        TimerPolicy {
            path: Some(self.ends[1 - number].address.into()),
            persistent_keepalive: self.ends[number].persistent_keepalive,
            may_initiate: true,
        }
    }

    /// Advances time in steps; all datagrams arrive within their step. Returns the datagrams, each with its sender.
    fn run(&mut self, duration: Duration) -> Vec<(usize, Vec<u8>)> {
        const STEP: Duration = Duration::from_millis(100);
        let end = self.now + duration;
        let mut sent = Vec::new();
        while self.now < end {
            self.tick(STEP);
            for number in 0..2 {
                let datagrams = self.timers(number);
                sent.extend(datagrams.iter().map(|datagram| (number, datagram.clone())));
                self.exchange(number, datagrams);
            }
        }

        sent
    }

    fn established(engines: [Engine; 2]) -> Self {
        let pair = Self::new(engines, None);
        assert_eq!(pair.exchange(0, pair.send(0, &packet(0))), [packet(0)]);

        pair
    }
}

/// With randomness that differs with every call, but not from run to run.
fn environment(now: Instant, seed: u64) -> Environment {
    let state = AtomicU64::new(seed);
    let randomness = move |bytes: &mut [u8]| {
        let number = state.fetch_add(1, Ordering::Relaxed);
        for (block, chunk) in (0_u8..).zip(bytes.chunks_mut(32)) {
            let random = noise::hash(&[&seed.to_le_bytes(), &number.to_le_bytes(), &[block]]);
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    };

    Environment {
        randomness: Arc::new(randomness),
        epoch: Epoch::new(now, Duration::from_secs(1_700_000_000)),
        mtu: Arc::new(AtomicU16::new(MTU)),
        lanes: Lanes::detect(),
    }
}

fn datagrams(out: &TransmitBatch) -> Vec<Vec<u8>> {
    let transmits = out.transmits().iter();

    transmits
        .flat_map(|transmit| out.bytes(transmit).chunks(transmit.segment_bytes).map(<[u8]>::to_vec))
        .collect()
}

/// An IPv4 packet that carries `number`.
fn packet(number: u16) -> Vec<u8> {
    sized_packet(number, 33)
}

fn sized_packet(number: u16, len: u16) -> Vec<u8> {
    let mut packet = vec![0; len.into()];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 0]);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[4..6].copy_from_slice(&number.to_be_bytes());
    packet[8..10].copy_from_slice(&[64, 253]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);

    packet
}

/// A frame for segmentation into packets with `size` bytes of payload.
fn tcp_frame(size: u16, payload: usize) -> (Vec<u8>, VirtioHeader) {
    let segment = fixtures::tcp([1, 2], 3, 0x10, &[], &vec![7; payload]);
    let mut frame = sized_packet(1, 20);
    fixtures::put(&mut frame, 2, u16::try_from(20 + segment.len()).unwrap());
    frame[9] = 6;
    frame.extend(segment);
    let virtio = VirtioHeader {
        needs_checksum: true,
        gso: Gso::TcpV4,
        header_len: 40,
        gso_size: size,
        checksum_start: 20,
        checksum_offset: 16,
        overlay: None,
    };

    (frame, virtio)
}
