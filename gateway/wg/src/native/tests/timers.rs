//! What time does to a session and to who asks for one.

use super::*;

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
fn nothing_is_sent_in_a_session_that_the_other_end_has_no_more() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    let response = pair.deliver(0, &initiation).1.remove(0);
    // Both are asleep, and the response is on its way.
    pair.now += Duration::from_secs(13);
    let sent = pair.deliver(1, &response).1;
    assert_eq!(pair.deliver(0, &sent[0]).0, [packet(0)]);

    pair.now += Duration::from_secs(180 - 13);
    let sent = pair.send(0, &packet(1));

    let kinds: Vec<_> = sent.iter().map(|datagram| Message::classify(datagram)).collect();
    assert_eq!(kinds, [Some(Message::Initiation)]);
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
        given_up += pair.ends[0].tunnel.handle_timeout(pair.upkeep(0), &mut out, pair.now).given_up;
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
        given_up += pair.ends[0].tunnel.handle_timeout(pair.upkeep(0), &mut out, pair.now).given_up;
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
    let peer = PeerKeys { public_key: pair.ends[0].identity.public_key(), preshared_key: None };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&peer, Slot::from(5));
    pair.tick(Duration::from_secs(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(2))).len(), 0);
    pair.run(Duration::from_secs(16));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(3))), [packet(3)]);
}

#[test]
fn a_persistent_keepalive_keeps_the_session_without_data() {
    let mut pair = Pair::new([Native, Native], None);
    pair.ends[0].persistent_keepalive = Some(Duration::from_secs(10));

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
    pair.ends[1].persistent_keepalive = Some(Duration::from_secs(25));
    pair.exchange(0, pair.restart(0));

    for _ in 0..1_000 {
        pair.run(Duration::from_secs(1));
        assert!(pair.ends.iter().all(|end| end.tunnel.session().is_established));
    }
}

/// It has dated what it sent to the silent one ahead.
#[test]
fn whoever_restarts_beside_a_silent_peer_is_answered_at_once() {
    let mut pair = Pair::new([Native, Native], None);
    let keys = [PrivateKey::generate(), PrivateKey::generate()];
    let [silent, own] = keys.each_ref().map(PrivateKey::public_key);
    let gateway_until_now = NativeIdentity::new(&keys[1], surroundings(pair.now, 8));
    let to_silent = PeerKeys { public_key: silent, preshared_key: None };
    let silent = gateway_until_now.tunnel(&to_silent, Slot::from(9));
    let to = pair.ends[1].identity.public_key();
    let to = PeerKeys { public_key: to, preshared_key: None };
    let from = PeerKeys { public_key: own, preshared_key: None };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&from, Slot::from(2));
    let address = pair.ends[1].address.into();
    silent.initiate(address, &mut TransmitBatch::default(), pair.now);
    pair.tick(Duration::from_secs(6));
    silent.initiate(address, &mut TransmitBatch::default(), pair.now);

    pair.ends[0].tunnel = gateway_until_now.tunnel(&to, Slot::from(1));
    assert_eq!(pair.exchange(0, pair.send(0, &packet(0))), [packet(0)]);
    pair.tick(Duration::from_secs(1));
    let epoch = Epoch::new(pair.now, Duration::from_secs(1_700_000_007));
    let gateway_from_now =
        NativeIdentity::new(&keys[1], Surroundings { epoch, ..surroundings(pair.now, 9) });
    pair.ends[0].tunnel = gateway_from_now.tunnel(&to, Slot::from(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
}

#[test]
fn a_tunnel_that_follows_another_dates_its_initiations_later() {
    let mut pair = Pair::new([Native, Native], None);
    pair.send(0, &packet(0));
    pair.tick(Duration::from_secs(6));
    assert_eq!(pair.exchange(0, pair.restart(0)), [packet(0)]);

    let peer = PeerKeys { public_key: pair.ends[1].identity.public_key(), preshared_key: None };
    pair.ends[0].tunnel = pair.ends[0].identity.tunnel(&peer, Slot::from(5));
    pair.tick(Duration::from_secs(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
}
