//! Rekey, expiry, repeated initiations and keepalives over time.

use super::*;

#[test]
fn a_used_session_is_rekeyed_without_loss() {
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

    assert_eq!(initiations, 8, "every two minutes, by one end");
}

#[test]
fn a_silent_session_expires_without_traffic() {
    let mut pair = Pair::established([Native, Native]);

    let sent = pair.run(Duration::from_secs(400));

    // One passive keepalive, then nothing.
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(pair.ends.iter().all(|end| !end.tunnel.session().is_established));
}

#[test]
fn the_initiator_counts_from_its_initiation() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    let response = pair.deliver(0, &initiation).1.remove(0);
    // Both ends are suspended while the response is under way.
    pair.now += Duration::from_secs(13);
    let sent = pair.deliver(1, &response).1;
    assert_eq!(pair.deliver(0, &sent[0]).0, [packet(0)]);

    pair.now += Duration::from_secs(180 - 13);
    let sent = pair.send(0, &packet(1));

    let kinds: Vec<_> = sent.iter().map(|datagram| Message::classify(datagram)).collect();
    assert_eq!(kinds, [Some(Message::Initiation)]);
}

#[test]
fn initiations_are_repeated_for_ninety_seconds() {
    let mut pair = Pair::new([Native, Native], None);
    let first = pair.send(0, &packet(0));
    assert_eq!(first.len(), 1);
    let (mut repeated, mut given_up) = (0, 0);
    for _ in 0..2_000 {
        pair.tick(Duration::from_millis(100));
        let mut out = TransmitBatch::default();
        given_up +=
            pair.ends[0].tunnel.handle_timeout(pair.timer_policy(0), &mut out, pair.now).given_up;
        repeated += datagrams(&out).len();
    }

    assert_eq!(given_up, 1);
    assert!((16..=18).contains(&repeated), "{repeated}");
}

/// Whitepaper, section 6.4: another packet restarts `REKEY_ATTEMPT_TIME`.
#[test]
fn more_packets_extend_the_attempts() {
    let mut pair = Pair::new([Native, Native], None);
    let mut given_up = 0;
    for second in 0..200 {
        if second <= 100 {
            pair.send(0, &packet(second));
        }
        pair.tick(Duration::from_secs(1));
        let mut out = TransmitBatch::default();
        given_up +=
            pair.ends[0].tunnel.handle_timeout(pair.timer_policy(0), &mut out, pair.now).given_up;
        assert_eq!(given_up > 0, second >= 189, "in second {second}");
    }

    assert_eq!(given_up, 101, "all staged packets together");
}

/// Whitepaper, section 6.2: never more than one initiation in five seconds.
#[test]
fn the_next_attempt_keeps_the_rekey_timeout() {
    let mut pair = Pair::new([Native, Native], None);
    let mut last = pair.now;
    pair.send(0, &packet(0));
    for step in 1..4_000 {
        pair.tick(Duration::from_millis(50));
        let mut sent = pair.timers(0);
        // This packet comes right after the first one was dropped.
        if step == 90 * 20 {
            sent.extend(pair.send(0, &packet(1)));
        }
        if !sent.is_empty() {
            assert_eq!(sent.len(), 1);
            assert!(pair.now - last >= Duration::from_secs(5), "{:?}", pair.now - last);
            last = pair.now;
            if step > 90 * 20 {
                return;
            }
        }
    }

    panic!("no initiation for the second packet");
}

#[test]
fn a_restart_at_the_end_extends_the_attempts() {
    let mut pair = Pair::new([Native, Native], None);
    pair.send(0, &packet(0));
    pair.tick(Duration::from_secs(90));

    let mut out = TransmitBatch::default();
    pair.ends[0].tunnel.restart(pair.ends[1].address.into(), &mut out, pair.now);
    let initiation = datagrams(&out);
    assert_eq!(pair.timers(0).len(), 0, "an initiation was just sent");

    assert_eq!(pair.exchange(0, initiation), [packet(0)]);
}

#[test]
fn a_lost_session_is_replaced_within_16_seconds() {
    let mut pair = Pair::established([Native, Native]);
    pair.exchange(1, pair.send(1, &packet(1)));
    // The other end restarts, without its session.
    let peer = PeerKeys { public_key: pair.ends[0].identity.public_key(), preshared_key: None };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&peer, IndexSlot::from(5));
    pair.tick(Duration::from_secs(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(2))).len(), 0);
    pair.run(Duration::from_secs(16));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(3))), [packet(3)]);
}

#[test]
fn a_persistent_keepalive_maintains_the_session() {
    let mut pair = Pair::new([Native, Native], None);
    pair.ends[0].persistent_keepalive = Some(Duration::from_secs(10));

    let sent = pair.run(Duration::from_secs(100));

    assert!(pair.ends[0].tunnel.session().is_established);
    assert!((9..=12).contains(&sent.len()), "{}", sent.len());
    // Sessions are rekeyed meanwhile, and both ends always have one.
    for _ in 0..1_000 {
        pair.run(Duration::from_secs(1));
        assert!(pair.ends.iter().all(|end| end.tunnel.session().is_established));
    }
}

#[test]
fn received_keepalives_maintain_the_session() {
    let mut pair = Pair::established([Native, Native]);
    // The initiator has no persistent keepalive.
    pair.ends[1].persistent_keepalive = Some(Duration::from_secs(25));
    pair.exchange(0, pair.restart(0));

    for _ in 0..1_000 {
        pair.run(Duration::from_secs(1));
        assert!(pair.ends.iter().all(|end| end.tunnel.session().is_established));
    }
}

/// Its timestamps for the silent peer were ahead of the clock; those for others must not be.
#[test]
fn a_silent_peer_delays_no_other_after_restart() {
    let mut pair = Pair::new([Native, Native], None);
    let keys = [PrivateKey::generate(), PrivateKey::generate()];
    let [silent, own] = keys.each_ref().map(PrivateKey::public_key);
    let gateway_before = NativeIdentity::new(&keys[1], environment(pair.now, 8));
    let to_silent = PeerKeys { public_key: silent, preshared_key: None };
    let silent = gateway_before.tunnel(&to_silent, IndexSlot::from(9));
    let to = pair.ends[1].identity.public_key();
    let to = PeerKeys { public_key: to, preshared_key: None };
    let from = PeerKeys { public_key: own, preshared_key: None };
    pair.ends[1].tunnel = pair.ends[1].identity.tunnel(&from, IndexSlot::from(2));
    let address = pair.ends[1].address.into();
    silent.initiate(address, &mut TransmitBatch::default(), pair.now);
    pair.tick(Duration::from_secs(6));
    silent.initiate(address, &mut TransmitBatch::default(), pair.now);

    pair.ends[0].tunnel = gateway_before.tunnel(&to, IndexSlot::from(1));
    assert_eq!(pair.exchange(0, pair.send(0, &packet(0))), [packet(0)]);
    pair.tick(Duration::from_secs(1));
    let epoch = Epoch::new(pair.now, Duration::from_secs(1_700_000_007));
    let gateway_after =
        NativeIdentity::new(&keys[1], Environment { epoch, ..environment(pair.now, 9) });
    pair.ends[0].tunnel = gateway_after.tunnel(&to, IndexSlot::from(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
}

#[test]
fn a_new_tunnel_uses_later_timestamps() {
    let mut pair = Pair::new([Native, Native], None);
    pair.send(0, &packet(0));
    pair.tick(Duration::from_secs(6));
    assert_eq!(pair.exchange(0, pair.restart(0)), [packet(0)]);

    let peer = PeerKeys { public_key: pair.ends[1].identity.public_key(), preshared_key: None };
    pair.ends[0].tunnel = pair.ends[0].identity.tunnel(&peer, IndexSlot::from(5));
    pair.tick(Duration::from_secs(1));

    assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
}
