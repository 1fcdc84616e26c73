//! Dormant tunnels, and the events that wake them.

use super::*;

/// An event at the first end of a pair, with its name.
type Event<'a> = (&'a str, &'a dyn Fn(&Pair));

#[test]
fn a_tunnel_is_dormant_without_a_session() {
    let mut pair = Pair::new([Native, Native], None);
    let are_dormant = |pair: &Pair| [0, 1].map(|number| pair.ends[number].tunnel.is_dormant());
    pair.run(Duration::from_millis(100));
    assert_eq!(are_dormant(&pair), [true; 2], "before the first session");

    let sent = pair.send(0, &packet(1));
    assert_eq!(pair.exchange(0, sent), [packet(1)]);
    pair.run(Duration::from_secs(170));
    assert_eq!(are_dormant(&pair), [false; 2], "the keys must be wiped later");

    pair.run(Duration::from_secs(11));
    assert_eq!(are_dormant(&pair), [true; 2]);
}

#[test]
fn every_event_wakes_a_dormant_tunnel() {
    let other = Pair::new([Native, Native], None);
    other.send(0, &packet(1));
    let staged = || other.ends[0].tunnel.take_staged();
    let events: [Event<'_>; 5] = [
        ("a packet", &|pair| drop(pair.send(0, &packet(1)))),
        ("initiate", &|pair| {
            let (to, mut out) = (pair.ends[1].address, TransmitBatch::default());
            pair.ends[0].tunnel.initiate(to.into(), &mut out, pair.now);
        }),
        ("restart", &|pair| drop(pair.restart(0))),
        ("an initiation", &|pair| drop(pair.deliver(1, &pair.restart(1)[0]))),
        ("staged packets of another tunnel", &|pair| pair.ends[0].tunnel.append_staged(staged())),
    ];

    for (name, event) in events {
        let mut pair = Pair::new([Native, Native], None);
        pair.run(Duration::from_millis(100));
        assert!(pair.ends[0].tunnel.is_dormant());

        event(&pair);

        assert!(!pair.ends[0].tunnel.is_dormant(), "{name}");
    }
}

#[test]
fn a_persistent_keepalive_prevents_dormancy() {
    let mut pair = Pair::new([Native, Native], None);
    pair.ends[0].persistent_keepalive = Some(Duration::from_secs(25));
    let tunnel = &pair.ends[0].tunnel;

    tunnel.handle_timeout(pair.timer_policy(0), &mut TransmitBatch::default(), pair.now);

    assert!(!tunnel.is_dormant());
}
