//! Who is answered, who is sent a cookie, and what is remembered of them.

#![expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[test]
fn cookies_are_asked_for_above_the_rate_and_until_it_was_kept_for_a_second() {
    let start = Instant::now();
    let mut load = Load::new(start);

    assert!((0..ALL.burst).all(|_| !load.is_heavy(start)), "a burst is no load");
    assert!(load.is_heavy(start));
    assert!(load.is_heavy(start + CALM / 2), "not over yet");
    assert!(!load.is_heavy(start + CALM));
}

#[test]
fn one_source_gets_its_rate_and_no_more() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let source = IpAddr::from([192, 0, 2, 1]);

    let admitted = (0..10_000_u32)
        .filter(|number| load.admit(source, start + Duration::from_millis(1) * *number))
        .count();

    assert_eq!(admitted, usize::try_from(SOURCE.per_second * 10 + SOURCE.burst - 1).unwrap());
    assert!(load.admit(IpAddr::from([192, 0, 2, 2]), start), "another source");
}

#[test]
fn neighbours_in_one_network_of_ipv6_are_one_source() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let source = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, host]);

    let admitted = (0..100).filter(|host| load.admit(source(*host), start)).count();

    assert_eq!(admitted, usize::try_from(SOURCE.burst).unwrap());
}

#[test]
fn a_flood_of_sources_takes_bounded_memory_and_passes() {
    let start = Instant::now();
    let mut load = Load::new(start);
    for source in 0..100_000_u32 {
        load.admit(IpAddr::from(source.to_be_bytes()), start);
    }
    assert_eq!(load.sources.len(), SOURCES_MAX);

    let later = start + Duration::from_secs(1);
    assert!(load.admit(IpAddr::from([192, 0, 2, 1]), later), "room for somebody new");
    load.handle_timeout(later);
    assert_eq!(load.sources.capacity(), 0);
}

#[test]
fn who_asks_once_is_answered_after_the_probation() {
    let start = Instant::now();
    let mut load = Load::new(start);
    for number in 0..NEWCOMERS.burst {
        assert!(ask(&mut load, number, start));
    }

    let early = release(&mut load, start + PROBATION - Duration::from_millis(1));
    let (released, turned_away) = release(&mut load, start + PROBATION);

    assert_eq!(early, (vec![], 0));
    assert_eq!(released, (0..NEWCOMERS.burst).map(source).collect::<Vec<_>>());
    assert_eq!(turned_away, 0);
    assert!(!ask(&mut load, 0, start + PROBATION), "not new any more");
}

/// Half of a million messages a second, and thirty a second from each.
#[test]
fn a_flood_from_ten_thousand_sources_is_found_out_and_leaves_room_for_somebody_new() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let (mut held, mut turned_away, mut released) = (0, 0, Vec::new());
    for millis in 0..4_000_u32 {
        let now = start + Duration::from_millis(1) * millis;
        for number in 0..300 {
            held += u64::from(ask(&mut load, (millis * 300 + number) % 10_000, now));
        }
        if millis == 1_000 {
            assert!(ask(&mut load, 77_777, now), "somebody new");
        }
        if millis % 100 == 0 {
            let (more, away) = release(&mut load, now);
            turned_away += away;
            if !more.is_empty() {
                assert!((1_500..=1_600).contains(&millis), "{millis}");
            }
            released.extend(more);
        }
    }

    assert_eq!((held, turned_away), (10_000, 10_000), "each of them once");
    assert_eq!(released, [source(77_777)]);
    assert!(load.held.is_empty());
}

#[test]
fn who_sends_one_message_to_many_addresses_of_ours_does_not_insist() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let copy = |load: &mut Load| {
        let from = SocketAddr::new(source(3), 51840);
        load.hold(&[3; INITIATION_LEN], from.into(), start)
    };
    assert!(ask(&mut load, 1, start) && ask(&mut load, 2, start) && copy(&mut load));

    for number in 1..INSISTENCE {
        assert!(!ask(&mut load, 1, start), "its first message counts");
        if number > 1 {
            assert!(!ask(&mut load, 2, start));
        }
    }
    assert!((0..100).all(|_| !copy(&mut load)));

    assert_eq!(release(&mut load, start + PROBATION), (vec![source(2), source(3)], 1));
}

/// Most of a flood is turned away so, and nobody who would get an answer.
#[test]
fn only_who_would_get_no_answer_is_hopeless() {
    for (sources, may_wait) in
        [1, 10, 10_000, 1_000_000].into_iter().flat_map(|n| [(n, true), (n, false)])
    {
        let start = Instant::now();
        let mut load = Load::new(start);
        let mut hopeless = 0;
        for number in 0..200_000_u32 {
            let now = start + Duration::from_micros(5) * number;
            let from = source(number % sources);
            let known = load.hear(from, now);
            let is_hopeless = load.is_hopeless((from, known), may_wait, now);
            let is_answered = !load.is_heavy(now)
                || may_wait && ask(&mut load, number % sources, now)
                || !may_wait && load.admit_newcomer(from, now)
                || load.may_reply(from, now);
            assert!(!(is_hopeless && is_answered), "{number} of {sources}");
            hopeless += u32::from(is_hopeless);
        }

        // Those who are held have to insist first.
        let least = if may_wait && sources == 10_000 { 150_000 } else { 180_000 };
        assert!(hopeless > least, "{hopeless} from {sources}");
        let later = start + Duration::from_secs(3);
        let known = load.hear(source(0), later);
        assert!(!load.is_hopeless((source(0), known), may_wait, later), "the flood is over");
    }
}

#[test]
fn a_flood_from_everywhere_takes_bounded_memory_and_passes() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let mut answered = 0;
    for number in 0..400_000_u32 {
        let now = start + Duration::from_micros(50) * number;
        ask(&mut load, number, now);
        if number % 2_000 == 0 {
            answered += release(&mut load, now).0.len();
        }
        assert!(load.held.len() <= HELD_MAX && load.queue.len() <= QUEUE_MAX);
    }
    assert_eq!((answered, load.newcomers.len()), (NEWCOMERS_MAX, NEWCOMERS_MAX));

    let later = start + NEWCOMER_INTERVAL + Duration::from_secs(1);
    release(&mut load, later);
    assert!(ask(&mut load, 7_000_000, later), "the first are old");
    load.handle_timeout(later);
    assert_eq!(load.newcomers.capacity(), 0);
    release(&mut load, later + PROBATION);
    load.handle_timeout(later + PROBATION);
    assert_eq!((load.held.capacity(), load.queue.capacity()), (0, 0));
}

#[test]
fn a_flood_that_never_insists_is_answered_at_a_bounded_rate() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let mut answered = 0;
    for number in 0..300_000_u32 {
        let now = start + Duration::from_micros(10) * number;
        ask(&mut load, number, now);
        if number % 10_000 == 0 {
            answered += u32::try_from(release(&mut load, now).0.len()).unwrap();
        }
    }

    assert!((7_000..=3 * NEWCOMERS.per_second + NEWCOMERS.burst).contains(&answered), "{answered}");
}

#[test]
fn cookies_are_sent_at_a_bounded_rate() {
    let [all, burst] =
        [COOKIES.per_second + MORE_COOKIES.per_second, COOKIES.burst + MORE_COOKIES.burst];
    let looks = [Duration::from_micros(1), LOOK];
    for (sources, look) in
        [1, 10_000, 1_000_000].into_iter().flat_map(|sources| looks.map(|look| (sources, look)))
    {
        let start = Instant::now();
        let mut load = Load::new(start);
        let mut sent = 0;
        for number in 0..1_000_000_u32 {
            let elapsed = Duration::from_micros(1) * number;
            let now = start + look * u32::try_from(elapsed.as_micros() / look.as_micros()).unwrap();
            if !ask(&mut load, number % sources, now) {
                sent += u32::from(load.may_reply(source(number % sources), now));
            }
        }

        assert!((all..=all + burst).contains(&sent), "{sent} to {sources}, looks each {look:?}");
    }
}

/// Nine thousand sources, none of which waits for half a second.
#[test]
fn in_a_torrent_cookies_are_kept_for_those_that_ask_after_a_pause() {
    for (per_second, cookies) in [
        (40_000, COOKIES.per_second + MORE_COOKIES.per_second),
        (60_000, MORE_COOKIES.per_second),
        (600_000, MORE_COOKIES.per_second),
    ] {
        let start = Instant::now();
        let mut load = Load::new(start);
        let mut sent = [0; 5];
        for (second, sent) in sent.iter_mut().enumerate() {
            for number in 0..per_second {
                let elapsed = Duration::from_secs(1) * number / per_second;
                let look = u32::try_from(elapsed.as_millis() / LOOK.as_millis()).unwrap();
                let now =
                    start + Duration::from_secs(1) * u32::try_from(second).unwrap() + LOOK * look;
                if number % (per_second / 10) == 0 {
                    load.handle_timeout(now);
                }
                let from = source(number % 9_000);
                load.is_heavy(now);
                let known = load.hear(from, now);
                let is_hopeless = load.is_hopeless((from, known), true, now);
                if !is_hopeless && !ask(&mut load, number % 9_000, now) {
                    *sent += u32::from(load.may_reply(from, now));
                }
            }
        }

        let [.., last] = sent;
        assert!(last.abs_diff(cookies) <= cookies / 10, "{sent:?} at {per_second}");
    }
}

/// Five thousand sources that never pause; one more where a peer was before, and one of many peers, all of which
/// ask every five seconds.
#[test]
fn who_never_pauses_in_a_torrent_insists_unless_a_peer_was_heard_there() {
    for (per_look, lost, is_torrent) in [(4_000, 0, false), (6_000, 0, true), (4_000, 2_000, true)]
    {
        let start = Instant::now();
        let mut load = Load::new(start);
        let [home, office] = [5_000, 77_777];
        load.settle(source(home));
        let hear = |load: &mut Load, number: u32, now| {
            load.is_heavy(now);
            load.hear(source(number), now);
            ask(load, number, now);
        };

        for look in 0..100_u32 {
            let now = start + LOOK * look;
            load.handle_lost(lost);
            load.handle_timeout(now);
            release(&mut load, now);
            for number in 0..per_look {
                hear(&mut load, (look * per_look + number) % (home + 1), now);
            }
            // A third of a second is by how much each of them differs (section 6.4).
            for _ in 0..if look % 50 < 4 { 25 } else { 0 } {
                hear(&mut load, office, now);
            }

            let insistent: HashSet<_> = load.insistent(now).collect();
            assert!(!insistent.contains(&source(home)) && !insistent.contains(&source(office)));
            let expected = match (is_torrent, look) {
                // To be found out takes some looks, as there is no room to hold a message of each, and then ten.
                (true, 30..) => 5_000,
                (false, _) | (_, ..10) => 0,
                _ => continue,
            };
            assert_eq!(insistent.len(), expected, "{look}");
        }

        let end = start + LOOK * 100;
        assert_eq!(load.insistent(end + PROBATION).count(), 0, "they are silent");
    }
}

/// It sends a message every five seconds, and the others thirteen a second each.
#[test]
fn who_was_answered_and_asks_again_is_sent_a_cookie_whoever_else_asks() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let peer = source(77_777);
    assert!(ask(&mut load, 77_777, start));

    for number in 0..2_600_000_u32 {
        let now = start + Duration::from_nanos(7_700) * number;
        let other = number % 10_000;
        load.hear(source(other), now);
        if !ask(&mut load, other, now) {
            load.may_reply(source(other), now);
        }
        if number % 13_000 == 0 {
            release(&mut load, now);
        }
        if number > 0 && number % 650_000 == 0 {
            let known = load.hear(peer, now);
            let is_hopeless = load.is_hopeless((peer, known), true, now);
            assert!(!is_hopeless && load.may_reply(peer, now), "{number}");
        }
    }
}

/// More sources than can be remembered, each of them once: nobody who comes now is told from them but by where
/// peers were before.
#[test]
fn a_peer_is_sent_a_cookie_where_it_was_before_a_flood_from_everywhere() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let home = source(77_777_777);
    load.settle(home);
    load.handle_timeout(start);

    let mut sent = 0;
    for number in 0..1_000_000_u32 {
        // Fifty thousand a second, and time passes ten times a second.
        let now = start + LOOK * (number / 5_000);
        if number % 5_000 == 0 {
            release(&mut load, now);
        }
        load.is_heavy(now);
        let stranger = source(number);
        if load.hear(stranger, now).is_none() && !ask(&mut load, number, now) {
            load.may_reply(stranger, now);
        }
        // After ten seconds, when all places are taken, as often as a peer asks that is not answered.
        if number >= 500_000 && number % 250_000 == 4_999 {
            let known = load.hear(home, now);
            assert!(!load.is_hopeless((home, known), true, now), "{number}");
            assert!(!ask(&mut load, 77_777_777, now) && load.may_reply(home, now), "{number}");
            assert!(!load.is_due_at_home(home, now), "once is enough");
            sent += 1;
        }
    }

    assert_eq!((sent, load.newcomers.len()), (2, NEWCOMERS_MAX));
}

#[test]
fn where_peers_were_takes_bounded_memory() {
    let mut load = Load::new(Instant::now());
    for number in 0..100_000 {
        load.settle(source(number));
    }

    assert!(load.homes.len() <= HOMES_MAX && load.homes.contains_key(&source(99_999)));

    let room = u32::try_from(HOMES_MAX - load.homes.len()).unwrap();
    for number in 0..room {
        load.settle(source(1_000_000 + number));
    }
    load.settle(source(99_999));
    assert_eq!(load.homes.len(), HOMES_MAX, "that one is not new");
}

/// An initiation, another one than all before, comes from a source that is one of many. Says whether it is
/// held.
fn ask(load: &mut Load, number: u32, now: Instant) -> bool {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let from = SocketAddr::new(source(number), 51840);
    let mut message = [1; INITIATION_LEN];
    message[8..16].copy_from_slice(&SENT.fetch_add(1, Ordering::Relaxed).to_le_bytes());

    load.hold(&message, from.into(), now)
}

/// Whose messages are held no longer, and how many are turned away.
fn release(load: &mut Load, now: Instant) -> (Vec<IpAddr>, u64) {
    let (mut sources, mut all_turned_away) = (Vec::new(), 0);
    loop {
        let (held, turned_away) = load.release(now);
        all_turned_away += turned_away;
        match held {
            Some(held) => sources.push(held.path.remote.ip()),
            None => return (sources, all_turned_away),
        }
    }
}

fn source(number: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + number).to_be_bytes())
}
