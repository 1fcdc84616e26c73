//! A peer with which nothing is due, and what wakes it: time passes for thousands of them.

use super::*;

/// What happens to the first end of a pair.
type Way<'a> = (&'a str, &'a dyn Fn(&Pair));

#[test]
fn a_peer_rests_before_its_first_session_and_after_its_last() {
    let mut pair = Pair::new([Native, Native], None);
    let is_resting = |pair: &Pair| [0, 1].map(|number| pair.ends[number].tunnel.is_dormant());
    pair.run(Duration::from_millis(100));
    assert_eq!(is_resting(&pair), [true; 2], "nothing has happened yet");

    let sent = pair.send(0, &packet(1));
    assert_eq!(pair.exchange(0, sent), [packet(1)]);
    pair.run(Duration::from_secs(170));
    assert_eq!(is_resting(&pair), [false; 2], "there are keys to be wiped");

    pair.run(Duration::from_secs(11));
    assert_eq!(is_resting(&pair), [true; 2]);
}

#[test]
fn whatever_may_make_something_due_wakes_a_peer() {
    let other = Pair::new([Native, Native], None);
    other.send(0, &packet(1));
    let staged = || other.ends[0].tunnel.take_staged();
    let ways: [Way<'_>; 5] = [
        ("a packet", &|pair| drop(pair.send(0, &packet(1)))),
        ("a greeting", &|pair| {
            let (to, mut out) = (pair.ends[1].address, TransmitBatch::default());
            pair.ends[0].tunnel.initiate(to.into(), &mut out, pair.now);
        }),
        ("a search", &|pair| drop(pair.restart(0))),
        ("an initiation", &|pair| drop(pair.deliver(1, &pair.restart(1)[0]))),
        ("packets of a key before", &|pair| pair.ends[0].tunnel.adopt(staged())),
    ];

    for (what, happens) in ways {
        let mut pair = Pair::new([Native, Native], None);
        pair.run(Duration::from_millis(100));
        assert!(pair.ends[0].tunnel.is_dormant());

        happens(&pair);

        assert!(!pair.ends[0].tunnel.is_dormant(), "{what}");
    }
}

#[test]
fn who_is_kept_alive_never_rests() {
    let mut pair = Pair::new([Native, Native], None);
    pair.ends[0].persistent_keepalive = Some(Duration::from_secs(25));
    let tunnel = &pair.ends[0].tunnel;

    tunnel.handle_timeout(pair.upkeep(0), &mut TransmitBatch::default(), pair.now);

    assert!(!tunnel.is_dormant());
}
