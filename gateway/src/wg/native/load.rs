//! Whether there are more handshakes than can be answered, and whose turn it is then.
//!
//! Source: WireGuard whitepaper, section 5.3, which leaves to us whether a message without a cookie is
//! worked for under load. It is, once for each source, as long as that takes a small part of a core:
//!
//! | who | under load |
//! |---|---|
//! | a source that was not heard of since it began | is answered, [`NEWCOMERS`] of them a second |
//! | a source that was sent no cookie for a while | is sent one, [`COOKIES`] of them a second |
//! | anybody else without a cookie | is sent one, [`MORE_COOKIES`] of them a second, and what the others leave |
//! | a source with a cookie | is answered as [`SOURCE`] says |
//!
//! An honest peer is new: it sends one message, and without an answer the next after five seconds
//! (section 6.4), a cookie or none (section 6.6). So a flood from few sources delays nobody, and one from
//! more than [`NEWCOMERS_MAX`] makes a peer try twice. Whoever was answered and asks again is sent a cookie
//! for the time after that, however many others are, unless somebody floods from its address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::bucket::{Bucket, Rate};

/// Handshake messages a second above which we are under load. Answering this many takes about a tenth
/// of a core: four multiplications on the curve each.
///
/// The burst is let pass: peers of a gateway that has restarted come at once.
const ALL: Rate = Rate { per_second: 500, burst: 250 };

/// Once under load, we are until the rate was kept for this long.
const CALM: Duration = Duration::from_secs(1);

/// Handshakes a second from one source, under load.
const SOURCE: Rate = Rate { per_second: 20, burst: 5 };

/// Sources with a cookie that are remembered at the most: less than a megabyte.
const SOURCES_MAX: usize = 8192;

/// Handshakes a second of sources that are new, under load. To find out that one is of nobody takes a
/// multiplication on the curve: all of them a tenth of a core.
///
/// The burst is more than the rate gives between two looks at the clock.
const NEWCOMERS: Rate = Rate { per_second: 3000, burst: 600 };

/// After this a source is new again.
const NEWCOMER_INTERVAL: Duration = Duration::from_secs(30);

/// Sources without a cookie that are remembered at the most: about a megabyte.
const NEWCOMERS_MAX: usize = 16_384;

/// Cookies a second, under load, for sources that were sent none for [`COOKIE_INTERVAL`]: ten thousand of them
/// have one each, and to spare. To make and send this many takes a few hundredths of a core.
const COOKIES: Rate = Rate { per_second: 3_000, burst: 600 };

/// Cookies a second, under load, for everybody else.
const MORE_COOKIES: Rate = Rate { per_second: 2_000, burst: 600 };

/// Less than an honest peer waits before it asks again (section 6.1, `REKEY_TIMEOUT`).
const COOKIE_INTERVAL: Duration = Duration::from_secs(4);

/// How busy we are, and who makes us so.
#[derive(Debug)]
pub(super) struct Load {
    all: Bucket,
    last_excess: Option<Instant>,
    /// Those that have shown a cookie: they are where they say.
    sources: HashMap<IpAddr, Bucket>,
    /// Those that have not. Anybody can be anywhere here.
    newcomers: HashMap<IpAddr, Newcomer>,
    /// Until then there is no room for more of them.
    newcomers_full: Option<Instant>,
    new: Bucket,
    cookies: Bucket,
    more_cookies: Bucket,
}

/// A source that has shown no cookie.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    /// When it was new.
    answered: Instant,
    /// When it was sent a cookie last.
    cookie: Option<Instant>,
}

impl Newcomer {
    fn is_new_again(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.answered) >= NEWCOMER_INTERVAL
    }

    fn may_have_cookie(&self, now: Instant) -> bool {
        self.cookie.is_none_or(|at| now.saturating_duration_since(at) >= COOKIE_INTERVAL)
    }
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all: Bucket::new(ALL, now),
            last_excess: None,
            sources: HashMap::new(),
            newcomers: HashMap::new(),
            newcomers_full: None,
            new: Bucket::new(NEWCOMERS, now),
            cookies: Bucket::new(COOKIES, now),
            more_cookies: Bucket::new(MORE_COOKIES, now),
        }
    }

    /// A message with a right first MAC came. Says whether it must have a second one.
    pub(super) fn is_heavy(&mut self, now: Instant) -> bool {
        if !self.all.take(now) {
            self.last_excess = Some(now);
        }

        self.is_under(now)
    }

    fn is_under(&self, now: Instant) -> bool {
        self.last_excess.is_some_and(|last| now.saturating_duration_since(last) < CALM)
    }

    /// Whether `source` may be new, as far as can be told without a look at all others.
    fn is_newcomer(&self, source: IpAddr, now: Instant) -> bool {
        let known = self.newcomers.get(&network(source));

        self.new.has_token(now) && known.is_none_or(|known| known.is_new_again(now))
    }

    /// Whether `source`, which shows no cookie, would be turned away now without an answer, whatever it
    /// sends. Costs less than to look at that.
    pub(super) fn is_hopeless(&self, source: IpAddr, now: Instant) -> bool {
        self.is_under(now) && !self.has_cookie_for(source, now) && !self.is_newcomer(source, now)
    }

    /// Whether it is the turn of `source`, which is where it says.
    pub(super) fn admit(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        if !self.sources.contains_key(&network) && self.sources.len() >= SOURCES_MAX {
            // Whoever has all tokens is no other than somebody new.
            self.sources.retain(|_, bucket| !bucket.is_full(now));
            if self.sources.len() >= SOURCES_MAX {
                return false;
            }
        }

        self.sources.entry(network).or_insert(Bucket::new(SOURCE, now)).take(now)
    }

    /// Whether `source`, which shows no cookie and may be anywhere, is answered because it is new.
    pub(super) fn admit_newcomer(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        let is_known = |known: &Newcomer| !known.is_new_again(now);
        if self.newcomers.get(&network).is_some_and(is_known) {
            return false;
        }
        if self.newcomers.len() >= NEWCOMERS_MAX && !self.newcomers.contains_key(&network) {
            // Nobody becomes old earlier than the first of them, so one look in a while will do.
            if self.newcomers_full.is_some_and(|until| now < until) {
                return false;
            }
            self.newcomers.retain(|_, known| is_known(known));
            let oldest = self.newcomers.values().map(|known| known.answered).min();
            self.newcomers_full = oldest.map(|answered| answered + NEWCOMER_INTERVAL);
            if self.newcomers.len() >= NEWCOMERS_MAX {
                return false;
            }
        }
        if !self.new.take(now) {
            return false;
        }
        self.newcomers.insert(network, Newcomer { answered: now, cookie: None });

        true
    }

    /// Whether `source`, which shows no cookie, is sent one.
    pub(super) fn may_reply(&mut self, source: IpAddr, now: Instant) -> bool {
        let due =
            self.newcomers.get_mut(&network(source)).filter(|known| known.may_have_cookie(now));
        if let Some(known) = due
            && self.cookies.take(now)
        {
            known.cookie = Some(now);
            return true;
        }

        self.more_cookies.take(now) || self.cookies.is_full(now) && self.cookies.take(now)
    }

    /// Whether [`Self::may_reply`] would say so.
    fn has_cookie_for(&self, source: IpAddr, now: Instant) -> bool {
        let is_due = || {
            let known = self.newcomers.get(&network(source));
            known.is_some_and(|known| known.may_have_cookie(now))
        };

        self.more_cookies.has_token(now)
            || self.cookies.is_full(now)
            || self.cookies.has_token(now) && is_due()
    }

    /// Forgets sources when they do not matter.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_calm =
            self.last_excess.is_none_or(|last| now.saturating_duration_since(last) >= CALM);
        if is_calm && !(self.sources.is_empty() && self.newcomers.is_empty()) {
            self.sources = HashMap::new();
            self.newcomers = HashMap::new();
            self.newcomers_full = None;
        }
    }
}

/// What one owner has: an IPv4 address, or 64 bits of an IPv6 one.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
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
    fn a_flood_from_ten_thousand_sources_leaves_room_for_somebody_new() {
        let start = Instant::now();
        let mut load = Load::new(start);
        let mut admitted = 0;
        // Thirty messages a second from each; by the third second all were new once.
        for millis in 0..4_000_u32 {
            let now = start + Duration::from_millis(1) * millis;
            for number in 0..300 {
                let source = 0x0a00_0000 + (millis * 300 + number) % 10_000;
                admitted += u32::from(load.admit_newcomer(IpAddr::from(source.to_be_bytes()), now));
            }
        }

        assert_eq!(admitted, 10_000, "each of them once");
        let now = start + Duration::from_secs(4);
        assert!(load.admit_newcomer(IpAddr::from([192, 0, 2, 1]), now));
        assert!(!load.admit_newcomer(IpAddr::from([192, 0, 2, 1]), now), "not new any more");
    }

    /// Most of a flood is turned away so, and nobody who would get an answer.
    #[test]
    fn only_who_would_get_no_answer_is_hopeless() {
        for sources in [1, 10, 10_000, 1_000_000] {
            let start = Instant::now();
            let mut load = Load::new(start);
            let mut hopeless = 0;
            for number in 0..200_000_u32 {
                let now = start + Duration::from_micros(5) * number;
                let source = IpAddr::from((0x0a00_0000 + number % sources).to_be_bytes());
                let is_hopeless = load.is_hopeless(source, now);
                let is_answered = !load.is_heavy(now)
                    || load.admit_newcomer(source, now)
                    || load.may_reply(source, now);
                assert!(!(is_hopeless && is_answered), "{number} of {sources}");
                hopeless += u32::from(is_hopeless);
            }

            assert!(hopeless > 180_000, "{hopeless} from {sources}");
            let later = start + Duration::from_secs(3);
            assert!(!load.is_hopeless(IpAddr::from([10, 0, 0, 0]), later), "the flood is over");
        }
    }

    #[test]
    fn a_flood_from_everywhere_takes_bounded_memory_and_passes() {
        let start = Instant::now();
        let mut load = Load::new(start);
        let mut admitted = 0;
        for number in 0..400_000_u32 {
            let now = start + Duration::from_micros(50) * number;
            admitted += usize::from(load.admit_newcomer(IpAddr::from(number.to_be_bytes()), now));
        }
        assert_eq!((admitted, load.newcomers.len()), (NEWCOMERS_MAX, NEWCOMERS_MAX));

        let later = start + NEWCOMER_INTERVAL + Duration::from_secs(1);
        assert!(load.admit_newcomer(IpAddr::from([192, 0, 2, 1]), later), "the first are old");
        load.handle_timeout(later);
        assert_eq!(load.newcomers.capacity(), 0);
    }

    #[test]
    fn cookies_are_sent_at_a_bounded_rate() {
        let [all, burst] =
            [COOKIES.per_second + MORE_COOKIES.per_second, COOKIES.burst + MORE_COOKIES.burst];
        for sources in [1, 10_000, 1_000_000] {
            let start = Instant::now();
            let mut load = Load::new(start);
            let mut sent = 0;
            for number in 0..1_000_000_u32 {
                let now = start + Duration::from_micros(1) * number;
                let source = IpAddr::from((0x0a00_0000 + number % sources).to_be_bytes());
                if !load.admit_newcomer(source, now) {
                    sent += u32::from(load.may_reply(source, now));
                }
            }

            assert!((all..=all + burst).contains(&sent), "{sent} to {sources}");
        }
    }

    /// It sends a message every five seconds, and the others thirteen a second each.
    #[test]
    fn who_was_answered_and_asks_again_is_sent_a_cookie_whoever_else_asks() {
        let start = Instant::now();
        let mut load = Load::new(start);
        let peer = IpAddr::from([192, 0, 2, 1]);
        assert!(load.admit_newcomer(peer, start));

        for number in 0..2_600_000_u32 {
            let now = start + Duration::from_nanos(7_700) * number;
            let other = IpAddr::from((0x0a00_0000 + number % 10_000).to_be_bytes());
            if !load.admit_newcomer(other, now) {
                load.may_reply(other, now);
            }
            if number > 0 && number % 650_000 == 0 {
                assert!(!load.is_hopeless(peer, now) && load.may_reply(peer, now), "{number}");
            }
        }
    }
}
