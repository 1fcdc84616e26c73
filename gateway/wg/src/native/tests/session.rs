//! What makes a session, whose it is, and which of several is used.

use super::super::timers::MOMENT;
use super::*;
use crate::tunnel::Whereabouts;

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
    let common = shared(&identity.shared.own.private, &there).unwrap();
    let peer = Acquaintance::new(there, &common, &[0; 32]);
    let ours = NativeTunnel::new(Arc::clone(&identity.shared), peer, Slot::from(1));
    let keys = PeerKeys { public_key: key.public_key(), preshared_key: None };
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

/// Each end sends with the session that the other one asked for.
fn crossed() -> Pair {
    let mut pair = Pair::established([Native, Native]);
    pair.tick(Duration::from_secs(10));
    let initiations = [0, 1].map(|end| pair.restart(end).remove(0));
    let responses = [0, 1].map(|end| pair.deliver(end, &initiations[end]).1.remove(0));
    let first = [0, 1].map(|end| pair.deliver(1 - end, &responses[end]).1.remove(0));
    // Each has used what it asked for, and takes that for a sign to use what the other one asked for.
    for end in [0, 1] {
        assert_eq!(pair.deliver(end, &first[end]).0, Vec::<Vec<u8>>::new(), "a keepalive");
    }

    pair
}

/// What tells whether a peer is to be looked for where its datagram comes from. At first it may be one that was
/// under way while the peer moved, and went on to the other session.
#[test]
fn of_two_sessions_made_at_once_the_peer_may_prefer_the_other_one() {
    let mut pair = crossed();

    for (passed, is_late) in [(Duration::ZERO, true), (MOMENT, false)] {
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

/// Whoever asks for the next one first.
#[test]
fn what_is_under_way_in_the_other_of_two_sessions_made_at_once_still_arrives() {
    for end in [0, 1] {
        let mut pair = crossed();
        pair.tick(Duration::from_secs(135));
        let response = pair.deliver(end, &pair.restart(end)[0]).1;
        let under_way = [end, 1 - end].map(|from| pair.send(from, &packet(7)).remove(0));
        pair.exchange(1 - end, response);

        for (from, datagram) in [end, 1 - end].into_iter().zip(under_way) {
            assert_eq!(pair.deliver(from, &datagram).0, [packet(7)], "{end} asks, {from} sends");
        }
    }
}

/// Their sessions are of the same age, and both wait for the other one to begin the next.
#[test]
fn two_ends_that_have_both_answered_do_not_begin_together_for_ever() {
    let mut pair = crossed();
    let (mut begun, mut together) = (0, 0);
    for number in 0..6_000 {
        for end in [0, 1] {
            assert_eq!(pair.exchange(end, pair.send(end, &packet(number))), [packet(number)]);
        }
        pair.tick(Duration::from_millis(100));
        let mut under_way = [0, 1].map(|end| pair.timers(end));
        let is_initiation = |datagram: &&Vec<u8>| datagram.len() == INITIATION_LEN;
        let asked = under_way.iter().flatten().filter(is_initiation).count();
        begun += usize::from(asked > 0);
        together += usize::from(asked > 1);
        // What both send meets on the way, and so do the answers.
        while under_way.iter().any(|datagrams| !datagrams.is_empty()) {
            let answer = |from: usize| {
                let each = under_way[from].iter().map(|datagram| pair.deliver(from, datagram).1);
                each.flatten().collect()
            };
            under_way = [answer(1), answer(0)];
        }
    }

    assert_eq!((begun, together), (4, 0), "in ten minutes");
}

/// The peer may be two that take turns, and what the former one still sends tells nothing of the other.
#[test]
fn of_two_sessions_that_the_peer_asked_for_soon_after_one_another_the_former_is_over() {
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
fn an_old_promise_is_not_taken_up_when_there_is_another_session() {
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
    };
    // The one before stays for a while.
    let after = pair.ends[1].identity.tunnel(&peer, Slot::from(5));
    pair.tick(Duration::from_secs(1));
    let mut out = TransmitBatch::default();

    let taken = after.handle_handshake(&captured, pair.ends[0].address.into(), &mut out, pair.now);

    assert_eq!(taken, Err(DropReason::Replayed));
}

/// Its clock may have been set back, and there is no other way to say so. Packets may still be under way to the
/// tunnel before.
#[test]
fn a_peer_that_is_named_again_is_somebody_new() {
    let mut pair = Pair::new([Native, Native], None);
    let earlier = pair.restart(0).remove(0);
    pair.tick(Duration::from_secs(1));
    assert_eq!(pair.deliver(0, &pair.restart(0)[0]).1.len(), 1);
    let peer = PeerKeys { public_key: pair.ends[0].identity.public_key(), preshared_key: None };
    pair.tick(Duration::from_secs(1));
    pair.ends[1].tunnel.close();
    let after = pair.ends[1].identity.tunnel(&peer, Slot::from(5));
    let mut out = TransmitBatch::default();

    let taken = after.handle_handshake(&earlier, pair.ends[0].address.into(), &mut out, pair.now);

    assert_eq!(taken, Ok(Whereabouts::Here));
    assert_eq!(datagrams(&out).len(), 1);
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
fn a_key_of_low_order_gets_no_session_and_costs_nothing() {
    for engine in [Native, Boringtun] {
        let mut pair = Pair::new([engine, Native], None);
        let peer = PeerKeys {
            // The point of order two (RFC 7748, section 6.1).
            public_key: PublicKey::from_bytes([0; 32]),
            preshared_key: None,
        };
        pair.ends[0].tunnel = pair.ends[0].identity.tunnel(&peer, Slot::from(3));
        pair.ends[0].persistent_keepalive = Some(Duration::from_secs(1));
        let initiation = pair.restart(1).remove(0);

        assert!(pair.restart(0).is_empty());
        assert!(pair.send(0, &packet(1)).is_empty());
        assert!(!pair.ends[0].tunnel.has_staged(), "it would wait for ever");
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

/// Or what comes late would be tried with the keys of another session.
#[test]
fn a_receiver_index_comes_again_only_after_all_others() {
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
