//! How sessions begin, with which keys, and which of several is used.

use super::super::timers::MAX_TRANSIT;
use super::*;
use crate::tunnel::EndpointUpdate;

#[test]
fn a_staged_packet_arrives_after_the_handshake() {
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
fn a_wrong_preshared_key_gets_no_session() {
    let ours = Pair::new([Native, Native], Some([1; 32]));
    let keys = ours.ends[1].identity.public_key();
    let peer = PeerKeys {
        public_key: keys,
        preshared_key: Some(PresharedKey::from_file_content(&[2; 32]).unwrap()),
    };
    let stranger = ours.ends[0].identity.tunnel(&peer, IndexSlot::from(1));
    let mut out = TransmitBatch::default();
    stranger.initiate(ours.ends[1].address.into(), &mut out, ours.now);

    let (_, answers) = ours.deliver(0, &datagrams(&out)[0]);
    let mut out = TransmitBatch::default();
    let refused =
        stranger.handle_handshake(&answers[0], ours.ends[1].address.into(), &mut out, ours.now);

    assert_eq!(refused, Err(DropReason::Unauthenticated));
    assert!(!stranger.session().is_established);
}

/// The peer has replaced the session of its first answer before that answer arrives.
#[test]
fn of_two_answered_initiations_the_newer_counts() {
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

/// As if a response arrived between the check for a session and the lock.
#[test]
fn a_session_found_under_the_lock_is_used() {
    let pair = Pair::new([Native, Native], None);
    let key = PrivateKey::generate();
    let identity = NativeIdentity::new(&key, environment(pair.now, 3));
    let there = pair.ends[1].identity.public_key();
    let static_static = shared(&identity.shared.own.private, &there).unwrap();
    let peer = PeerStatics::new(there, &static_static, &[0; 32]);
    let ours = NativeTunnel::new(Arc::clone(&identity.shared), peer, IndexSlot::from(1));
    let keys = PeerKeys { public_key: key.public_key(), preshared_key: None };
    let theirs = pair.ends[1].identity.tunnel(&keys, IndexSlot::from(2));
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
    assert_eq!(sent.len(), 1, "no initiation");
}

/// A pair in which each end sends with the session that the other one initiated.
fn crossed() -> Pair {
    let mut pair = Pair::established([Native, Native]);
    pair.tick(Duration::from_secs(10));
    let initiations = [0, 1].map(|end| pair.restart(end).remove(0));
    let responses = [0, 1].map(|end| pair.deliver(end, &initiations[end]).1.remove(0));
    let first = [0, 1].map(|end| pair.deliver(1 - end, &responses[end]).1.remove(0));
    // Each end receives a keepalive in the session that the other one initiated, and switches to it.
    for end in [0, 1] {
        assert_eq!(pair.deliver(end, &first[end]).0, Vec::<Vec<u8>>::new(), "a keepalive");
    }

    pair
}

/// `is_late` decides whether the endpoint is learned from a datagram. At first the datagram may have been sent before
/// the peer roamed and switched to the other session.
#[test]
fn crossed_session_data_is_late_at_first() {
    let mut pair = crossed();

    for (passed, is_late) in [(Duration::ZERO, true), (MAX_TRANSIT, false)] {
        pair.tick(passed);
        for end in [0, 1] {
            let datagram = pair.send(end, &packet(7)).remove(0);
            let mut out = PacketBatch::with_capacity(1 << 16, 64);
            let receiver = &pair.ends[1 - end].tunnel;
            let opened = receiver.open(&datagram, datagram.len(), &mut out, pair.now);

            assert_eq!((opened.authentic, opened.is_late), (1, is_late), "from {end}");
        }
    }
}

/// With a rekey by either end.
#[test]
fn data_in_a_crossed_session_survives_a_rekey() {
    for end in [0, 1] {
        let mut pair = crossed();
        pair.tick(Duration::from_secs(135));
        let response = pair.deliver(end, &pair.restart(end)[0]).1;
        let under_way = [end, 1 - end].map(|from| pair.send(from, &packet(7)).remove(0));
        pair.exchange(1 - end, response);

        for (from, datagram) in [end, 1 - end].into_iter().zip(under_way) {
            assert_eq!(
                pair.deliver(from, &datagram).0,
                [packet(7)],
                "{end} initiates, {from} sends"
            );
        }
    }
}

/// Both are responders of the session that they send with, and the sessions have the same age.
#[test]
fn two_responders_do_not_rekey_together() {
    let mut pair = crossed();
    let (mut rekeys, mut together) = (0, 0);
    for number in 0..6_000 {
        for end in [0, 1] {
            assert_eq!(pair.exchange(end, pair.send(end, &packet(number))), [packet(number)]);
        }
        pair.tick(Duration::from_millis(100));
        let mut under_way = [0, 1].map(|end| pair.timers(end));
        let is_initiation = |datagram: &&Vec<u8>| datagram.len() == INITIATION_LEN;
        let initiations = under_way.iter().flatten().filter(is_initiation).count();
        rekeys += usize::from(initiations > 0);
        together += usize::from(initiations > 1);
        // The datagrams of both ends cross, and so do the answers.
        while under_way.iter().any(|datagrams| !datagrams.is_empty()) {
            let answer = |from: usize| {
                let each = under_way[from].iter().map(|datagram| pair.deliver(from, datagram).1);
                each.flatten().collect()
            };
            under_way = [answer(1), answer(0)];
        }
    }

    assert_eq!((rekeys, together), (4, 0), "in ten minutes");
}

/// The peer may be two replicas in turn: datagrams of the former must not change the endpoint of the latter.
#[test]
fn data_in_a_superseded_session_is_late() {
    let mut pair = Pair::established([Native, Native]);
    pair.tick(Duration::from_secs(1));
    let former = pair.send(0, &packet(1)).remove(0);
    pair.exchange(0, pair.restart(0));
    assert_eq!(pair.exchange(0, pair.send(0, &packet(2))), [packet(2)]);

    let mut out = PacketBatch::with_capacity(1 << 16, 64);
    let opened = pair.ends[1].tunnel.open(&former, former.len(), &mut out, pair.now);

    assert_eq!((opened.authentic, opened.is_late), (1, true));
}

#[test]
fn an_old_next_session_is_dropped() {
    let mut pair = Pair::established([Native, Native]);
    pair.tick(Duration::from_secs(10));
    let response = pair.deliver(1, &pair.restart(1)[0]).1.remove(0);
    let _lost = pair.deliver(0, &response);
    let held = pair.send(1, &packet(1)).remove(0);
    pair.tick(Duration::from_secs(20));
    pair.exchange(0, pair.restart(0));
    let in_use = |pair: &Pair| pair.send(0, &packet(2))[0][4..8].to_vec();
    let before = in_use(&pair);
    assert_eq!(pair.deliver(1, &pair.send(1, &packet(3))[0]).0, [packet(3)]);

    let mut out = PacketBatch::with_capacity(1 << 16, 64);
    let opened = pair.ends[0].tunnel.open(&held, held.len(), &mut out, pair.now);

    assert_eq!((opened.authentic, opened.no_session), (0, 1));
    assert_eq!(in_use(&pair), before);
}

#[test]
fn overtaken_datagrams_are_late() {
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
    // The response is under way: the peer still uses the previous session.
    assert!(!is_late(&pair, &third));
    pair.exchange(1, vec![answer]);
    assert!(!is_late(&pair, &send(&pair, 5)));
    assert!(is_late(&pair, &fourth), "of the previous session");
}

#[test]
fn another_preshared_key_accepts_no_old_initiation() {
    let mut pair = Pair::new([Native, Native], None);
    let captured = pair.send(0, &packet(0)).remove(0);
    pair.exchange(0, vec![captured.clone()]);
    let peer = PeerKeys {
        public_key: pair.ends[0].identity.public_key(),
        preshared_key: Some(PresharedKey::from_file_content(&[2; 32]).unwrap()),
    };
    // The tunnel of the previous key stays meanwhile.
    let after = pair.ends[1].identity.tunnel(&peer, IndexSlot::from(5));
    pair.tick(Duration::from_secs(1));
    let mut out = TransmitBatch::default();

    let taken = after.handle_handshake(&captured, pair.ends[0].address.into(), &mut out, pair.now);

    assert_eq!(taken, Err(DropReason::Replayed));
}

/// Its clock may have been set back, and removing and adding it is the only way to accept that. A packet may still
/// hold the old tunnel.
#[test]
fn a_recreated_peer_may_use_earlier_timestamps() {
    let mut pair = Pair::new([Native, Native], None);
    let earlier = pair.restart(0).remove(0);
    pair.tick(Duration::from_secs(1));
    assert_eq!(pair.deliver(0, &pair.restart(0)[0]).1.len(), 1);
    let peer = PeerKeys { public_key: pair.ends[0].identity.public_key(), preshared_key: None };
    pair.tick(Duration::from_secs(1));
    pair.ends[1].tunnel.close();
    let after = pair.ends[1].identity.tunnel(&peer, IndexSlot::from(5));
    let mut out = TransmitBatch::default();

    let taken = after.handle_handshake(&earlier, pair.ends[0].address.into(), &mut out, pair.now);

    assert_eq!(taken, Ok(EndpointUpdate::Learn));
    assert_eq!(datagrams(&out).len(), 1);
}

#[test]
fn both_ends_may_initiate_at_once() {
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
fn a_closed_tunnel_neither_opens_nor_seals() {
    let pair = Pair::established([Native, Native]);
    let sent = pair.send(0, &packet(1));
    pair.ends[1].tunnel.close();

    assert_eq!(pair.exchange(0, sent).len(), 0);
    assert_eq!(pair.send(1, &packet(2)).len(), 0);
}

#[test]
fn a_low_order_peer_key_gets_no_session() {
    for engine in [Native, Boringtun] {
        let mut pair = Pair::new([engine, Native], None);
        let peer = PeerKeys {
            // The point of order two (RFC 7748, section 6.1).
            public_key: PublicKey::from_bytes([0; 32]),
            preshared_key: None,
        };
        pair.ends[0].tunnel = pair.ends[0].identity.tunnel(&peer, IndexSlot::from(3));
        pair.ends[0].persistent_keepalive = Some(Duration::from_secs(1));
        let initiation = pair.restart(1).remove(0);

        assert!(pair.restart(0).is_empty());
        assert!(pair.send(0, &packet(1)).is_empty());
        assert!(!pair.ends[0].tunnel.has_staged(), "a staged packet would never be sent");
        let path = pair.ends[1].address.into();
        let mut out = TransmitBatch::default();
        let answer = pair.ends[0].tunnel.handle_handshake(&initiation, path, &mut out, pair.now);
        assert_eq!((answer, out.is_empty()), (Err(DropReason::NoSession), true));
        for _ in 0..20 {
            pair.tick(Duration::from_secs(1));
            assert!(pair.timers(0).is_empty());
        }
    }
}

/// Otherwise a late datagram would be opened with the keys of another session.
#[test]
fn a_receiver_index_is_reused_last() {
    let mut pair = Pair::new([Native, Native], None);
    let mut indices = Vec::new();
    for _ in 0..256 {
        let initiation = pair.restart(0).remove(0);
        indices.push(initiation[4..8].to_vec());
        pair.tick(Duration::from_millis(1));
    }

    let again = pair.restart(0).remove(0);

    assert_eq!(again[4..8], indices[0]);
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), 256);
}
