//! Two tunnels and the datagrams between them, one of either engine at each end.

mod hex;
mod hostile;
mod limits;
mod primitives;
mod rest;
mod transcripts;
mod vectors;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::buffer::PacketBatch;
use crate::counters::as_u64;
use crate::packet::ecn::Ecn;
use crate::packet::segment::Segments;
use crate::packet::virtio::{Gso, VirtioHeader};
use crate::packet::{Header, fixtures};
use crate::wg::message::Message;
use crate::wg::tunnel::Opened;
use crate::wg::{Engine, PresharedKey};

const MTU: u16 = 1420;

use Engine::{Boringtun, Native};

const PAIRS: [[Engine; 2]; 3] = [[Native, Native], [Native, Boringtun], [Boringtun, Native]];

/// One end.
struct End {
    identity: Arc<dyn Identity>,
    tunnel: Box<dyn Tunnel>,
    address: SocketAddr,
}

struct Pair {
    ends: [End; 2],
    now: Instant,
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
fn start() -> Instant {
    Instant::now()
}

impl Pair {
    fn new(engines: [Engine; 2], preshared: Option<[u8; 32]>) -> Self {
        let now = start();
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        let identities = [0, 1].map(|own| engines[own].identity(&keys[own], &surroundings(now, 7)));
        let mut number = 0;
        let ends = identities.map(|identity| {
            number += 1;
            let preshared_key = preshared.map(|key| PresharedKey::from_file_content(&key).unwrap());
            let peer = PeerKeys {
                public_key: keys[2 - number].public_key(),
                preshared_key,
                persistent_keepalive: None,
            };
            let tunnel = identity.tunnel(&peer, Slot::from(u16::try_from(number).unwrap()));
            let port = u16::try_from(number).unwrap();
            End { identity, tunnel, address: SocketAddr::from(([192, 0, 2, 1], port)) }
        });

        Self { ends, now }
    }

    /// What end `from` has to send is brought to the other one, which answers, until both are silent.
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

    /// One datagram of end `from`: what is in it, and what is answered.
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
                if let Ok(Some(_)) = known {
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

    /// What end `number` sends because time has passed.
    fn timers(&self, number: usize) -> Vec<Vec<u8>> {
        let mut out = TransmitBatch::default();
        let destination = Some(self.ends[1 - number].address.into());
        self.ends[number].tunnel.handle_timeout(destination, &mut out, self.now);

        datagrams(&out)
    }

    /// Lets time pass in steps in which all that is sent arrives at once. Gives what was sent, by whom.
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

/// Different with every call, the same with every run.
fn surroundings(now: Instant, seed: u64) -> Surroundings {
    let state = AtomicU64::new(seed);
    let randomness = move |bytes: &mut [u8]| {
        let number = state.fetch_add(1, Ordering::Relaxed);
        for (block, chunk) in (0_u8..).zip(bytes.chunks_mut(32)) {
            let random = noise::hash(&[&seed.to_le_bytes(), &number.to_le_bytes(), &[block]]);
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    };

    Surroundings {
        randomness: Arc::new(randomness),
        epoch: Epoch::new(now, Duration::from_secs(1_700_000_000)),
        mtu: MTU,
    }
}

fn datagrams(out: &TransmitBatch) -> Vec<Vec<u8>> {
    let transmits = out.transmits().iter();

    transmits
        .flat_map(|transmit| out.bytes(transmit).chunks(transmit.segment_bytes).map(<[u8]>::to_vec))
        .collect()
}

/// An IPv4 packet with a number in it.
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

/// A frame that is to be cut into segments of `size` bytes of payload.
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
    };

    (frame, virtio)
}

#[test]
fn a_packet_waits_for_its_session_and_the_answer_finds_one() {
    for engines in PAIRS {
        for preshared in [None, Some([9; 32])] {
            let pair = Pair::new(engines, preshared);

            let there = pair.exchange(0, pair.send(0, &packet(1)));
            let back = pair.exchange(1, pair.send(1, &packet(2)));

            assert_eq!((there, back), (vec![packet(1)], vec![packet(2)]), "{engines:?}");
            for end in &pair.ends {
                let session = end.tunnel.session();
                assert!(session.is_established && session.last_handshake.is_some(), "{engines:?}");
            }
        }
    }
}

#[test]
fn whoever_has_another_preshared_key_gets_no_session() {
    let ours = Pair::new([Native, Native], Some([1; 32]));
    let keys = ours.ends[1].identity.public_key();
    let peer = PeerKeys {
        public_key: keys,
        preshared_key: Some(PresharedKey::from_file_content(&[2; 32]).unwrap()),
        persistent_keepalive: None,
    };
    let stranger = ours.ends[0].identity.tunnel(&peer, Slot::from(1));
    let mut out = TransmitBatch::default();
    stranger.initiate(ours.ends[1].address.into(), &mut out, ours.now);

    let (_, answers) = ours.deliver(0, &datagrams(&out)[0]);
    let mut out = TransmitBatch::default();
    let refused =
        stranger.handle_handshake(&answers[0], ours.ends[1].address.into(), &mut out, ours.now);

    assert_eq!(refused, Err(DropReason::Unauthenticated));
    assert!(!stranger.session().is_established);
}

#[test]
fn contents_are_padded_and_no_longer_than_a_full_packet() {
    let pair = Pair::established([Native, Native]);

    for (len, content) in [(20, 32), (32, 32), (33, 48), (1408, 1408), (1409, 1420), (1420, 1420)] {
        let sent = pair.send(0, &sized_packet(1, len));
        assert_eq!(sent[0].len(), content + 32, "{len}");
        assert_eq!(pair.exchange(0, sent), [sized_packet(1, len)]);
    }
}

#[test]
fn nothing_is_opened_twice_whatever_the_order() {
    for engines in [[Native, Native], [Boringtun, Native]] {
        let pair = Pair::established(engines);
        let mut sent: Vec<_> = (0..500).flat_map(|number| pair.send(0, &packet(number))).collect();
        sent.reverse();

        assert_eq!(pair.exchange(0, sent.clone()).len(), 500);
        assert_eq!(pair.exchange(0, sent), Vec::<Vec<u8>>::new(), "{engines:?}");
    }
}

#[test]
fn an_initiation_is_answered_once() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    assert_eq!(pair.deliver(0, &initiation).1.len(), 1);

    pair.tick(Duration::from_secs(1));
    assert_eq!(pair.deliver(0, &initiation).1.len(), 0);
}

#[test]
fn a_peer_is_answered_fifty_times_a_second_at_the_most() {
    let mut pair = Pair::new([Native, Native], None);
    let mut answers = 0;
    for _ in 0..200 {
        pair.tick(Duration::from_millis(5));
        answers += pair.deliver(0, &pair.restart(0)[0]).1.len();
    }

    assert!((45..=51).contains(&answers), "{answers}");
}

#[test]
fn under_load_whoever_is_new_is_answered_once_and_then_with_a_cookie() {
    for engines in [[Native, Native], [Boringtun, Native]] {
        let mut pair = Pair::new(engines, None);
        let flood = pair.send(0, &packet(0)).remove(0);
        // Whoever floods has no right second MAC, and is at many addresses.
        let mut replies = 0;
        for port in 1_000..2_000 {
            let source = SocketAddr::from(([198, 51, 100, 1], port));
            let mut out = TransmitBatch::default();
            let _ = pair.ends[1].identity.identify(&flood, source.into(), &mut out);
            for reply in datagrams(&out) {
                assert!(reply.len() < flood.len());
                replies += 1;
            }
        }
        assert!(replies > 500, "{replies}");

        pair.tick(Duration::from_millis(100));
        let kinds: Vec<_> = (0..3)
            .map(|_| {
                pair.tick(Duration::from_millis(30));
                let (_, answers) = pair.deliver(0, &pair.restart(0)[0]);
                pair.deliver(1, &answers[0]);
                Message::classify(&answers[0])
            })
            .collect();
        let [
            Some(Message::Response { .. }),
            Some(Message::CookieReply { .. }),
            Some(Message::Response { .. }),
        ] = kinds[..]
        else {
            panic!("{engines:?}: new, asked for a cookie, and with it: {kinds:?}");
        };
    }
}

#[test]
fn a_cookie_is_of_use_to_nobody_else() {
    let pair = Pair::new([Native, Native], None);
    let mut mint = CookieMint::new();
    mint.refresh(pair.now, |bytes| bytes.fill(3));
    let mut message = pair.send(0, &packet(0)).remove(0);
    let own = MacKeys::new(pair.ends[1].identity.public_key());
    let source = pair.ends[0].address;
    let reply = mint.reply(&own, &message, source, &[5; COOKIE_NONCE_LEN]).unwrap();
    let mac = message[116..132].try_into().unwrap();
    let cookie = own.open_cookie(&reply, &mac).unwrap();
    own.stamp(&mut message, Some(&cookie));

    assert!(mint.check(&message, source));
    assert!(!mint.check(&message, SocketAddr::new(source.ip(), 9)), "another port");
    assert!(!mint.check(&message, SocketAddr::from(([192, 0, 2, 9], source.port()))));
    assert!(own.open_cookie(&reply, &[0; 16]).is_err(), "for another message");
}

#[test]
fn a_session_is_replaced_while_it_is_used_and_nothing_is_lost() {
    let mut pair = Pair::established([Native, Native]);
    let handshakes = |sent: &[(usize, Vec<u8>)]| {
        let is_initiation =
            |(_, d): &&(usize, Vec<u8>)| Message::classify(d) == Some(Message::Initiation);
        sent.iter().filter(is_initiation).count()
    };
    let mut initiations = 0;
    for number in 0..1_000 {
        let sent = pair.run(Duration::from_secs(1));
        initiations += handshakes(&sent);
        for from in 0..2 {
            let arrived = pair.exchange(from, pair.send(from, &packet(number)));
            assert_eq!(arrived, [packet(number)]);
        }
    }

    assert_eq!(initiations, 8, "every two minutes, and by one end");
}

#[test]
fn a_silent_session_ends_and_nothing_is_sent_for_it() {
    let mut pair = Pair::established([Native, Native]);

    let sent = pair.run(Duration::from_secs(400));

    // Whoever has received says so once; then nobody owes anybody anything.
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(pair.ends.iter().all(|end| !end.tunnel.session().is_established));
}

#[test]
fn an_initiation_is_repeated_for_ninety_seconds_and_then_given_up() {
    let mut pair = Pair::new([Native, Native], None);
    let first = pair.send(0, &packet(0));
    assert_eq!(first.len(), 1);
    let (mut repeated, mut given_up) = (0, 0);
    for _ in 0..2_000 {
        pair.tick(Duration::from_millis(100));
        let mut out = TransmitBatch::default();
        let destination = Some(pair.ends[1].address.into());
        given_up += pair.ends[0].tunnel.handle_timeout(destination, &mut out, pair.now).given_up;
        repeated += datagrams(&out).len();
    }

    assert_eq!(given_up, 1);
    assert!((16..=18).contains(&repeated), "{repeated}");
}

/// Whitepaper, section 6.4: what is queued begins the time anew.
#[test]
fn nobody_gives_up_while_there_is_more_to_send() {
    let mut pair = Pair::new([Native, Native], None);
    let mut given_up = 0;
    for second in 0..200 {
        if second <= 100 {
            pair.send(0, &packet(second));
        }
        pair.tick(Duration::from_secs(1));
        let mut out = TransmitBatch::default();
        let destination = Some(pair.ends[1].address.into());
        given_up += pair.ends[0].tunnel.handle_timeout(destination, &mut out, pair.now).given_up;
        assert_eq!(given_up > 0, second >= 189, "in second {second}");
    }

    assert_eq!(given_up, 101, "and then all of it");
}

/// Whitepaper, section 6.2: never more than one initiation in five seconds.
#[test]
fn who_has_given_up_waits_before_the_next_attempt() {
    let mut pair = Pair::new([Native, Native], None);
    let mut last = pair.now;
    pair.send(0, &packet(0));
    for step in 1..4_000 {
        pair.tick(Duration::from_millis(50));
        let mut asked = pair.timers(0);
        // All that was given up was the first packet: this one comes right after.
        if step == 90 * 20 {
            asked.extend(pair.send(0, &packet(1)));
        }
        if !asked.is_empty() {
            assert_eq!(asked.len(), 1);
            assert!(pair.now - last >= Duration::from_secs(5), "{:?}", pair.now - last);
            last = pair.now;
            if step > 90 * 20 {
                return;
            }
        }
    }

    panic!("what came after was never asked for");
}

#[test]
fn who_begins_again_at_the_last_moment_does_not_give_up() {
    let mut pair = Pair::new([Native, Native], None);
    pair.send(0, &packet(0));
    pair.tick(Duration::from_secs(90));

    let mut out = TransmitBatch::default();
    pair.ends[0].tunnel.restart(pair.ends[1].address.into(), &mut out, pair.now);
    let initiation = datagrams(&out);
    assert_eq!(pair.timers(0).len(), 0, "it has just asked");

    assert_eq!(pair.exchange(0, initiation), [packet(0)]);
}

#[test]
fn a_peer_that_has_forgotten_the_session_gets_another_one() {
    let mut pair = Pair::established([Native, Native]);
    pair.exchange(1, pair.send(1, &packet(1)));
    // The other end restarts.
    let peer = PeerKeys {
        public_key: pair.ends[0].identity.public_key(),
        preshared_key: None,
        persistent_keepalive: None,
    };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&peer, Slot::from(5));
    pair.tick(Duration::from_secs(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(2))).len(), 0);
    pair.run(Duration::from_secs(16));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(3))), [packet(3)]);
}

#[test]
fn a_persistent_keepalive_keeps_the_session_without_data() {
    let now = start();
    let mut pair = Pair::new([Native, Native], None);
    pair.now = now;
    let peer = PeerKeys {
        public_key: pair.ends[1].identity.public_key(),
        preshared_key: None,
        persistent_keepalive: Some(10),
    };
    pair.ends[0].tunnel = pair.ends[0].identity.tunnel(&peer, Slot::from(9));

    let sent = pair.run(Duration::from_secs(100));

    assert!(pair.ends[0].tunnel.session().is_established);
    assert!((9..=12).contains(&sent.len()), "{}", sent.len());
    // Sessions come and go meanwhile, and nobody is ever without one.
    for _ in 0..1_000 {
        pair.run(Duration::from_secs(1));
        assert!(pair.ends.iter().all(|end| end.tunnel.session().is_established));
    }
}

#[test]
fn keepalives_that_come_keep_the_session_as_well() {
    let mut pair = Pair::established([Native, Native]);
    // The initiator is the one that has none sent.
    let peer = PeerKeys {
        public_key: pair.ends[0].identity.public_key(),
        preshared_key: None,
        persistent_keepalive: Some(25),
    };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&peer, Slot::from(9));
    pair.exchange(0, pair.restart(0));

    for _ in 0..1_000 {
        pair.run(Duration::from_secs(1));
        assert!(pair.ends.iter().all(|end| end.tunnel.session().is_established));
    }
}

/// The peer has forgotten what it answered first by the time that the answer arrives.
#[test]
fn of_two_initiations_that_are_answered_the_newer_one_counts() {
    for engines in PAIRS {
        let mut pair = Pair::new(engines, None);
        let older = pair.restart(0);
        pair.tick(Duration::from_millis(30));
        let newer = pair.restart(0);
        let (_, to_older) = pair.deliver(0, &older[0]);
        pair.tick(Duration::from_millis(30));
        let (_, to_newer) = pair.deliver(0, &newer[0]);
        assert_eq!((to_older.len(), to_newer.len()), (1, 1), "{engines:?}");

        pair.exchange(1, to_older);
        pair.exchange(1, to_newer);

        for (number, from) in [(1, 0), (2, 1), (3, 0)] {
            let arrived = pair.exchange(from, pair.send(from, &packet(number)));
            assert_eq!(arrived, [packet(number)], "{engines:?}");
        }
    }
}

/// As when a response was read between the look for a session and the lock.
#[test]
fn what_finds_a_session_late_is_sent_with_it() {
    let pair = Pair::new([Native, Native], None);
    let key = PrivateKey::generate();
    let identity = NativeIdentity::new(&key, surroundings(pair.now, 3));
    let there = pair.ends[1].identity.public_key();
    let peer = Acquaintance {
        peer: there,
        static_static: shared(&identity.shared.own.private, &there).unwrap(),
        preshared: Secret::default(),
    };
    let ours = NativeTunnel::new(Arc::clone(&identity.shared), peer, None, Slot::from(1));
    let keys =
        PeerKeys { public_key: key.public_key(), preshared_key: None, persistent_keepalive: None };
    let theirs = pair.ends[1].identity.tunnel(&keys, Slot::from(2));
    let address = pair.ends[1].address;
    let mut out = TransmitBatch::default();
    ours.initiate(address.into(), &mut out, pair.now);
    let mut answer = TransmitBatch::default();
    theirs.handle_handshake(&datagrams(&out)[0], address.into(), &mut answer, pair.now).unwrap();
    let mut out = TransmitBatch::default();
    ours.handle_handshake(&datagrams(&answer)[0], address.into(), &mut out, pair.now).unwrap();

    let mut packet = packet(7);
    let header = Header::parse(&packet).unwrap();
    let mut segments = Segments::new(&mut packet, &VirtioHeader::default(), &header).unwrap();
    let mut out = TransmitBatch::default();
    let outer = Outer::data(address, Ecn::NotEct);
    let sealed = ours.seal_without_session(&mut segments, outer, &mut out, pair.now);

    assert_eq!((sealed.packets, sealed.overflow), (1, 0));
    let sent = datagrams(&out);
    assert!(matches!(Message::classify(&sent[0]), Some(Message::Data { .. })));
    assert_eq!(sent.len(), 1, "nothing is asked for");
}

/// What tells whether a peer is to be looked for where its datagram comes from.
#[test]
fn what_was_overtaken_is_late_within_a_session_and_from_one_to_the_next() {
    let mut pair = Pair::established([Native, Native]);
    let is_late = |pair: &Pair, datagram: &[u8]| {
        let mut out = PacketBatch::with_capacity(1 << 16, 64);
        let opened = pair.ends[1].tunnel.open(datagram, datagram.len(), &mut out, pair.now);
        assert_eq!(opened.authentic, 1);
        opened.is_late
    };
    let send = |pair: &Pair, number| pair.send(0, &packet(number)).remove(0);

    let [first, second] = [1, 2].map(|number| send(&pair, number));
    assert!(!is_late(&pair, &second));
    assert!(is_late(&pair, &first));

    let [third, fourth] = [3, 4].map(|number| send(&pair, number));
    pair.tick(Duration::from_secs(10));
    let answer = pair.deliver(0, &pair.restart(0)[0]).1.remove(0);
    // The response is on its way: the peer still uses the session before.
    assert!(!is_late(&pair, &third));
    pair.exchange(1, vec![answer]);
    assert!(!is_late(&pair, &send(&pair, 5)));
    assert!(is_late(&pair, &fourth), "of the session before");
}

#[test]
fn a_preshared_key_that_changes_makes_no_old_initiation_new() {
    let mut pair = Pair::new([Native, Native], None);
    let captured = pair.send(0, &packet(0)).remove(0);
    pair.exchange(0, vec![captured.clone()]);
    let peer = PeerKeys {
        public_key: pair.ends[0].identity.public_key(),
        preshared_key: Some(PresharedKey::from_file_content(&[2; 32]).unwrap()),
        persistent_keepalive: None,
    };
    // The one before stays for a while.
    let after = pair.ends[1].identity.tunnel(&peer, Slot::from(5));
    pair.tick(Duration::from_secs(1));
    let mut out = TransmitBatch::default();

    let taken = after.handle_handshake(&captured, pair.ends[0].address.into(), &mut out, pair.now);

    assert_eq!(taken, Err(DropReason::Replayed));
}

#[test]
fn both_ends_may_begin_at_once() {
    let pair = Pair::new([Native, Native], None);
    let [one, two] = [0, 1].map(|from| pair.send(from, &packet(u16::try_from(from).unwrap())));
    let (_, to_one) = pair.deliver(0, &one[0]);
    let (_, to_two) = pair.deliver(1, &two[0]);
    let mut arrived = pair.exchange(1, to_one);
    arrived.extend(pair.exchange(0, to_two));
    arrived.sort();

    assert_eq!(arrived, [packet(0), packet(1)]);
    for number in 2..20 {
        for from in 0..2 {
            assert_eq!(pair.exchange(from, pair.send(from, &packet(number))), [packet(number)]);
        }
    }
}

#[test]
fn a_closed_tunnel_opens_nothing_and_seals_nothing() {
    let pair = Pair::established([Native, Native]);
    let sent = pair.send(0, &packet(1));
    pair.ends[1].tunnel.close();

    assert_eq!(pair.exchange(0, sent).len(), 0);
    assert_eq!(pair.send(1, &packet(2)).len(), 0);
}

#[test]
fn a_key_of_low_order_gets_no_session() {
    let pair = Pair::new([Native, Native], None);
    let peer = PeerKeys {
        // The point of order two (RFC 7748, section 6.1).
        public_key: PublicKey::from_bytes([0; 32]),
        preshared_key: None,
        persistent_keepalive: None,
    };
    let tunnel = pair.ends[0].identity.tunnel(&peer, Slot::from(3));
    let mut out = TransmitBatch::default();

    tunnel.initiate(pair.ends[1].address.into(), &mut out, pair.now);

    assert!(out.is_empty());
}

proptest! {
    #[test]
    fn no_datagram_makes_it_panic(
        kind in 1..=4_u8,
        bytes in prop::collection::vec(any::<u8>(), 200),
        len in 32..200_usize,
    ) {
        let pair = Pair::established([Native, Native]);
        let live = pair.send(0, &packet(1)).remove(0);
        let mut datagram = bytes;
        datagram.truncate([148, 92, 64, len][usize::from(kind) - 1]);
        datagram[..4].copy_from_slice(&[kind, 0, 0, 0]);
        // So that it is looked at: it is for a session that there is, and from who knows our key.
        let index = if kind == 2 { 8..12 } else { 4..8 };
        datagram[index].copy_from_slice(&live[4..8]);
        if kind <= 2 {
            MacKeys::new(pair.ends[1].identity.public_key()).stamp(&mut datagram, None);
        }
        let (packets, answers) = pair.deliver(0, &datagram);

        prop_assert!(packets.is_empty() && answers.is_empty());
        prop_assert_eq!(pair.exchange(0, vec![live]), [packet(1)]);
    }

    #[test]
    fn what_was_sealed_in_a_batch_is_opened_in_one(
        payload in 1..1380_u16,
        segments in 1..40_u16,
        last in 1..1380_u16,
        room in 1..40_usize,
    ) {
        let pair = Pair::established([Native, Native]);
        let whole = usize::from(payload) * usize::from(segments - 1);
        let (mut frame, virtio) = tcp_frame(payload, whole + usize::from(last.min(payload)));
        let header = Header::parse(&frame).unwrap();
        let mut frame_segments = Segments::new(&mut frame, &virtio, &header).unwrap();
        let outer = Outer::data(pair.ends[1].address, Ecn::NotEct);
        let mut sent = Vec::new();
        // What finds no room goes with the next call.
        while frame_segments.next_len().is_some() {
            let mut out = TransmitBatch::with_capacity(room * 1500);
            let sealed = pair.ends[0].tunnel.seal(&mut frame_segments, outer, &mut out, pair.now);
            prop_assert_eq!(as_u64(datagrams(&out).len()), sealed.packets);
            sent.extend(datagrams(&out));
        }
        prop_assert_eq!(sent.len(), usize::from(segments));
        let stride = sent[0].len();
        let run: Vec<u8> = sent.concat();
        let mut out = PacketBatch::with_capacity(1 << 17, 64);

        let Opened { packets, authentic, .. } =
            pair.ends[1].tunnel.open(&run, stride, &mut out, pair.now);

        let expected = u64::from(segments);
        prop_assert_eq!((packets, authentic), (expected, expected));
    }
}
