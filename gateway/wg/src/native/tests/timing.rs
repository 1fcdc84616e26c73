//! The accuracy of timers. The gateway runs timeouts ten times a second: no timer expires early, nor more than a
//! tenth of a second late.

use super::*;

/// Between two timeouts.
const TICK: Duration = Duration::from_millis(100);

/// When an event occurs, in milliseconds after a timeout.
const PHASES: [u64; 5] = [0, 1, 33, 50, 99];

#[test]
fn an_initiation_is_repeated_within_5333_ms() {
    let mut gaps = Vec::new();
    for phase in PHASES {
        let mut pair = Pair::new([Native, Native], None);
        pair.tick(Duration::from_millis(phase));
        pair.send(0, &packet(0));
        let sent = pair.now;
        pair.tick(TICK - Duration::from_millis(phase));

        let mut last = sent;
        while pair.now - sent < Duration::from_secs(89) {
            if !pair.timers(0).is_empty() {
                gaps.push((pair.now - last).as_millis());
                last = pair.now;
            }
            pair.tick(TICK);
        }
    }

    assert!(gaps.len() >= 16 * PHASES.len(), "{gaps:?}");
    assert!(gaps.iter().all(|gap| (5_000..=5_333).contains(gap)), "{gaps:?}");
}

/// After an initiation that is dated ahead, the peer drops those of another program with the same key, such as a replica.
#[test]
fn only_unanswered_initiations_are_dated_ahead() {
    for (delay, is_ahead) in [(0, false), (1_000, false), (4_999, false), (5_000, true)] {
        let mut pair = Pair::new([Native, Native], None);
        pair.restart(0);
        pair.tick(Duration::from_millis(delay));
        let second = pair.restart(0);
        assert_eq!(pair.deliver(0, &second[0]).1.len(), 1);
        pair.tick(Duration::from_secs(1));

        assert_eq!(answers_to_other(&pair), usize::from(!is_ahead), "{delay} ms");
    }
}

/// How many answers end 1 gives to an initiation of another program with the key and the clock of end 0.
fn answers_to_other(pair: &Pair) -> usize {
    let End { private_key, peer, .. } = &pair.ends[0];
    let other = NativeIdentity::new(private_key, environment(pair.start, 11));
    let tunnel = other.tunnel(peer, IndexSlot::from(3));
    let mut out = TransmitBatch::default();
    tunnel.initiate(pair.ends[1].address.into(), &mut out, pair.now);

    pair.deliver(0, &datagrams(&out)[0]).1.len()
}

/// The peer answers the first of two initiations, and drops the second because it comes too soon. The second is repeated,
/// but the peer has accepted the dates.
#[test]
fn answered_initiations_are_not_dated_ahead() {
    let mut pair = Pair::new([Native, Native], None);
    let older = pair.restart(0);
    pair.tick(Duration::from_millis(8));
    let newer = pair.restart(0);
    let answer = pair.deliver(0, &older[0]).1;
    assert!(pair.deliver(0, &newer[0]).1.is_empty());
    pair.exchange(1, answer);
    let sent = pair.run(Duration::from_secs(8));
    let is_initiation = |d: &[u8]| Message::classify(d) == Some(Message::Initiation);
    assert_eq!(sent.iter().filter(|(_, datagram)| is_initiation(datagram)).count(), 1);

    assert_eq!(answers_to_other(&pair), 1);
}

#[test]
fn a_passive_keepalive_is_sent_after_ten_seconds() {
    for phase in PHASES {
        let mut pair = Pair::established([Native, Native]);
        pair.run(Duration::from_secs(20));
        pair.now += Duration::from_millis(phase);
        assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
        let received = pair.now;
        pair.tick(TICK - Duration::from_millis(phase));

        let mut sent = pair.timers(1);
        while sent.is_empty() {
            pair.tick(TICK);
            sent = pair.timers(1);
        }

        let after = (pair.now - received).as_millis();
        assert!((10_000..=10_100).contains(&after), "{after} ms");
        assert!(matches!(Message::classify(&sent[0]), Some(Message::Data { .. })));
        assert_eq!(sent[0].len(), 32, "without content");
    }
}

#[test]
fn staged_packets_are_sent_with_the_response() {
    for engines in PAIRS {
        let mut pair = Pair::new(engines, None);
        let initiation = pair.send(0, &packet(1)).remove(0);
        pair.tick(Duration::from_millis(30));
        let response = pair.deliver(0, &initiation).1.remove(0);
        pair.tick(Duration::from_millis(30));

        // No time passes from here.
        let sent = pair.deliver(1, &response).1;

        let arrived: Vec<_> =
            sent.iter().flat_map(|datagram| pair.deliver(0, datagram).0).collect();
        assert_eq!(arrived, [packet(1)], "{engines:?}");
    }
}

#[test]
fn a_session_is_rekeyed_after_120_seconds() {
    let mut pair = Pair::established([Native, Native]);
    let mut created = pair.now;
    let mut ages = Vec::new();

    for number in 0..6_000 {
        for from in 0..2 {
            assert_eq!(pair.exchange(from, pair.send(from, &packet(number))), [packet(number)]);
        }
        for (from, datagram) in pair.run(TICK) {
            if Message::classify(&datagram) == Some(Message::Initiation) {
                assert_eq!(from, 0, "the initiator rekeys");
                ages.push((pair.now - created).as_millis());
                created = pair.now;
            }
        }
    }

    assert_eq!(ages.len(), 5, "{ages:?}");
    assert!(ages.iter().all(|age| (120_000..=120_100).contains(age)), "{ages:?}");
}
