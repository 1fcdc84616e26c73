//! Which messages need a cookie, which sources are sent one, and the memory this takes.

#![expect(clippy::disallowed_methods, reason = "a test may start at any instant")]

use proptest::prelude::*;

use super::*;

/// How often the clock is updated.
const TICK: Duration = Duration::from_millis(100);

#[test]
fn load_ends_after_a_second_below_the_rate() {
    let start = Instant::now();
    let mut load = Load::new(start);

    assert!((0..ALL.burst).all(|_| !load.count(start)), "a burst is no load");
    assert!(load.count(start));
    assert!(load.count(start + CALM / 2), "not over yet");
    assert!(!load.count(start + CALM));
}

#[test]
fn one_source_gets_its_rate_only() {
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
fn an_ipv6_64_is_one_source() {
    let start = Instant::now();
    let mut load = Load::new(start);
    let source = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, host]);

    let admitted = (0..100).filter(|host| load.admit(source(*host), start)).count();

    assert_eq!(admitted, usize::try_from(SOURCE.burst).unwrap());
}

#[test]
fn memory_is_bounded_and_released_after_load() {
    let start = Instant::now();
    let mut load = loaded(start);
    for number in 0..200_000 {
        load.admit(source(number), start);
        ask(&mut load, number, start);
    }
    assert_eq!((load.sources.len(), load.cookie_sent.len()), (SOURCES_MAX, COOKIE_SLOTS));
    assert!(size_of_val(load.cookie_sent.as_slice()) <= 1 << 20);

    let another = IpAddr::from([192, 0, 2, 1]);
    assert!(!load.admit(another, start + TICK), "no room");
    load.handle_timeout(start + TICK);
    assert!(load.admit(another, start + TICK), "room for another source");
    load.handle_timeout(start + CALM);
    assert_eq!((load.sources.capacity(), load.cookie_sent.capacity()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// Also if all messages have the same source.
    #[test]
    fn each_message_within_the_rate_gets_a_cookie(
        per_second in 1_000..=ANSWERED.per_second,
        sources in prop::sample::select(vec![1, 10, 10_000, 131_072, u32::MAX]),
    ) {
        let start = Instant::now();
        let mut load = loaded(start);

        for (number, now) in messages(start, per_second).take(150_000) {
            load.handle_timeout(now);
            prop_assert!(ask(&mut load, number % sources, now), "{number}");
        }
    }

    /// A flood from up to a thousand sources leaves cookies for all others.
    #[test]
    fn quiet_sources_get_cookies_in_any_flood(
        per_second in 2 * ANSWERED.per_second..1_000_000,
        sources in prop::sample::select(vec![1, 10, 1_000]),
    ) {
        let start = Instant::now();
        let mut load = loaded(start);
        let (mut asked, mut answered) = (0, 0);

        for (number, now) in messages(start, per_second).take(300_000) {
            ask(&mut load, number % sources, now);
            if number % 300 == 299 {
                asked += 1;
                answered += u32::from(ask(&mut load, 1_000_000 + number, now));
            }
        }

        // A source shares its slot with one of the flood with a probability of 1.5 % at most, and with another
        // of these likewise.
        prop_assert!(answered >= asked * 94 / 100, "{answered} of {asked}");
    }

    #[test]
    fn a_flood_gets_cookies_at_a_bounded_rate(
        per_second in 2 * ANSWERED.per_second..1_000_000,
        sources in prop::sample::select(vec![1, 10_000, u32::MAX]),
    ) {
        let start = Instant::now();
        let mut load = loaded(start);

        let sent = messages(start, per_second)
            .take_while(|(_, now)| *now < start + Duration::from_secs(1))
            .filter(|(number, now)| ask(&mut load, number % sources, *now))
            .count();

        let sent = u32::try_from(sent).unwrap();
        let most = 2 * ANSWERED.burst + COOKIES.per_second + COOKIES.burst;
        prop_assert!((COOKIES.per_second / 2..=most).contains(&sent), "{sent}");
    }
}

/// A message without a cookie from the source `number`. Returns whether a cookie is sent.
fn ask(load: &mut Load, number: u32, now: Instant) -> bool {
    load.count(now);
    let may_reply = load.may_reply(source(number), now);
    if may_reply {
        load.handle_reply(source(number), now);
    }

    may_reply
}

/// Under load.
fn loaded(now: Instant) -> Load {
    let mut load = Load::new(now);
    while !load.count(now) {}

    load
}

/// Number and arrival time of each message; the clock advances in ticks.
fn messages(start: Instant, per_second: u32) -> impl Iterator<Item = (u32, Instant)> {
    (0..).map(move |number| {
        let elapsed = Duration::from_secs(number) / per_second;
        let ticks = u32::try_from(elapsed.as_millis() / TICK.as_millis()).unwrap();

        (u32::try_from(number).unwrap(), start + TICK * ticks)
    })
}

fn source(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}
