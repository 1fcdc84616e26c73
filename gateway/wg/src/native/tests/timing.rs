//! When things happen that have their time. A gateway looks at the clock ten times a second, so nothing
//! happens earlier than it should, and hardly anything more than a tenth of a second later.

use super::*;

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(100);

/// When something comes, after a look at the clock.
const PHASES: [u64; 5] = [0, 1, 33, 50, 99];

#[test]
fn an_initiation_is_repeated_after_five_seconds_and_a_third_at_the_most() {
    let mut gaps = Vec::new();
    for phase in PHASES {
        let mut pair = Pair::new([Native, Native], None);
        pair.tick(Duration::from_millis(phase));
        pair.send(0, &packet(0));
        let asked = pair.now;
        pair.tick(LOOK - Duration::from_millis(phase));

        let mut last = asked;
        while pair.now - asked < Duration::from_secs(89) {
            if !pair.timers(0).is_empty() {
                gaps.push((pair.now - last).as_millis());
                last = pair.now;
            }
            pair.tick(LOOK);
        }
    }

    assert!(gaps.len() >= 16 * PHASES.len(), "{gaps:?}");
    assert!(gaps.iter().all(|gap| (5_000..=5_333).contains(gap)), "{gaps:?}");
}

#[test]
fn who_has_nothing_to_say_says_so_after_ten_seconds() {
    for phase in PHASES {
        let mut pair = Pair::established([Native, Native]);
        pair.run(Duration::from_secs(20));
        pair.now += Duration::from_millis(phase);
        assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
        let received = pair.now;
        pair.tick(LOOK - Duration::from_millis(phase));

        let mut said = pair.timers(1);
        while said.is_empty() {
            pair.tick(LOOK);
            said = pair.timers(1);
        }

        let after = (pair.now - received).as_millis();
        assert!((10_000..=10_100).contains(&after), "{after} ms");
        assert!(matches!(Message::classify(&said[0]), Some(Message::Data { .. })));
        assert_eq!(said[0].len(), 32, "without content");
    }
}

#[test]
fn what_waited_for_a_response_goes_when_it_comes() {
    for engines in PAIRS {
        let mut pair = Pair::new(engines, None);
        let initiation = pair.send(0, &packet(1)).remove(0);
        pair.tick(Duration::from_millis(30));
        let response = pair.deliver(0, &initiation).1.remove(0);
        pair.tick(Duration::from_millis(30));

        // No time passes from here on.
        let sent = pair.deliver(1, &response).1;

        let arrived: Vec<_> =
            sent.iter().flat_map(|datagram| pair.deliver(0, datagram).0).collect();
        assert_eq!(arrived, [packet(1)], "{engines:?}");
    }
}

#[test]
fn a_session_is_replaced_after_two_minutes_of_use_without_a_loss() {
    let mut pair = Pair::established([Native, Native]);
    let mut begun = pair.now;
    let mut ages = Vec::new();

    for number in 0..6_000 {
        for from in 0..2 {
            assert_eq!(pair.exchange(from, pair.send(from, &packet(number))), [packet(number)]);
        }
        for (from, datagram) in pair.run(LOOK) {
            if Message::classify(&datagram) == Some(Message::Initiation) {
                assert_eq!(from, 0, "the initiator begins");
                ages.push((pair.now - begun).as_millis());
                begun = pair.now;
            }
        }
    }

    assert_eq!(ages.len(), 5, "{ages:?}");
    assert!(ages.iter().all(|age| (120_000..=120_100).contains(age)), "{ages:?}");
}
