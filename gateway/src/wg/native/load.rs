//! Whether there are more handshakes than can be answered, and whose turn it is then.
//!
//! Source: WireGuard whitepaper, section 5.3, which leaves to us whether a message without a cookie is
//! worked for under load. It is, once for each source that does not insist, as long as that takes a small part
//! of a core:
//!
//! | who | under load |
//! |---|---|
//! | a source that was not heard of since it began | is answered after [`PROBATION`], [`NEWCOMERS`] of them a second |
//! | one that has sent [`INSISTENCE`] messages by then | is not answered |
//! | one that asks again after a pause, and was sent no cookie for a while | is sent one, [`COOKIES`] of them a second |
//! | anybody else without a cookie | is sent one, [`MORE_COOKIES`] of them a second, and what the others leave |
//! | a source with a cookie | is answered as [`SOURCE`] says |
//!
//! An honest peer is new: it sends one message, and without an answer the next after five seconds
//! (section 6.4), a cookie or none (section 6.6). Who floods from some thousand sources sends from each more
//! often than that, and is found out before anything is multiplied for it. So a flood from few sources delays
//! nobody for longer than the probation, and one from more than [`NEWCOMERS_MAX`] makes a peer try twice.
//! Whoever was answered and asks again is sent a cookie for the time after that, however many others are,
//! unless somebody floods from its address.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::handshake::INITIATION_LEN;
use crate::bucket::{Bucket, Rate};
use crate::path::Path;

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

/// For how long the message of a new source is held: in this time a flood from twenty thousand sources that
/// fills a link of a gigabit has sent from each of them again and again.
const PROBATION: Duration = Duration::from_millis(500);

/// So many messages within [`PROBATION`] that are not the same are a flood. An honest peer sends one, to each
/// address of ours that it knows, or one for each key of ours that there may be.
const INSISTENCE: u8 = 4;

/// Messages that are held at the most: half a megabyte.
const HELD_MAX: usize = table_max(2048);

/// Entries of the queue at the most: a quarter of a megabyte.
const QUEUE_MAX: usize = 6 * HELD_MAX;

/// After this a source is new again.
const NEWCOMER_INTERVAL: Duration = Duration::from_secs(30);

/// Sources without a cookie that are remembered at the most: less than a megabyte.
const NEWCOMERS_MAX: usize = table_max(16_384);

/// Cookies a second, under load, for sources that ask after a pause and were sent none for [`COOKIE_INTERVAL`]:
/// ten thousand of them have one each, and to spare. To make and send this many takes a few hundredths of a core.
const COOKIES: Rate = Rate { per_second: 3_000, burst: 3_000 };

/// Cookies a second, under load, for everybody else.
const MORE_COOKIES: Rate = Rate { per_second: 2_000, burst: 600 };

/// Less than an honest peer waits before it asks again (section 6.1, `REKEY_TIMEOUT`).
const COOKIE_INTERVAL: Duration = Duration::from_millis(4_800);

/// How busy we are, and who makes us so.
#[derive(Debug)]
pub(super) struct Load {
    all: Bucket,
    last_excess: Option<Instant>,
    /// What moments count from: there was nobody to remember.
    began: Instant,
    /// Those that have shown a cookie: they are where they say.
    sources: HashMap<IpAddr, Bucket>,
    /// Those that have not. Anybody can be anywhere here.
    newcomers: HashMap<IpAddr, Newcomer>,
    /// Those whose first message is held.
    held: HashMap<IpAddr, Held>,
    /// The same in the order of arrival, and some that are not held any more.
    queue: VecDeque<(IpAddr, Moment)>,
    /// Messages that were held and are not to be answered, and were not told of yet.
    turned_away: u64,
    /// Until then there is no room for more of them.
    newcomers_full: Option<Instant>,
    new: Bucket,
    cookies: Bucket,
    more_cookies: Bucket,
}

/// A time in few bytes, of which there are many: tens of milliseconds since [`Load::began`]. They last for more
/// than a year of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(u32);

impl Moment {
    const STEP: Duration = Duration::from_millis(10);

    const fn since(self, earlier: Self) -> Duration {
        Self::STEP.saturating_mul(self.0.saturating_sub(earlier.0))
    }
}

/// The first message of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) message: [u8; INITIATION_LEN],
    pub(super) path: Path,
    since: Moment,
    /// Messages so far.
    count: u8,
}

/// A source that has shown no cookie.
#[derive(Clone, Copy, Debug)]
struct Newcomer {
    /// When it was new.
    met: Moment,
    /// When it sent something last.
    heard: Moment,
    /// Before that it was silent for [`PROBATION`].
    is_patient: bool,
    /// When it was sent a cookie last.
    cookie: Option<Moment>,
}

impl Newcomer {
    fn is_new_again(&self, now: Moment) -> bool {
        now.since(self.met) >= NEWCOMER_INTERVAL
    }

    fn may_have_cookie(&self, now: Moment) -> bool {
        self.is_patient && self.cookie.is_none_or(|at| now.since(at) >= COOKIE_INTERVAL)
    }
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all: Bucket::new(ALL, now),
            last_excess: None,
            began: now,
            sources: HashMap::new(),
            newcomers: HashMap::new(),
            held: HashMap::new(),
            queue: VecDeque::new(),
            turned_away: 0,
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

    fn moment(&self, now: Instant) -> Moment {
        let steps =
            now.saturating_duration_since(self.began).as_millis() / Moment::STEP.as_millis();

        Moment(u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// A message came from `source` that shows no cookie.
    pub(super) fn hear(&mut self, source: IpAddr, now: Instant) {
        let moment = self.moment(now);
        if let Some(known) = self.newcomers.get_mut(&network(source)) {
            known.is_patient = moment.since(known.heard) >= PROBATION;
            known.heard = moment;
        }
    }

    /// Whether `source` may be new, as far as can be told without a look at all others, and something is done
    /// for one that is.
    fn is_newcomer(&self, source: IpAddr, may_wait: bool, now: Instant) -> bool {
        let network = network(source);
        let (moment, known) = (self.moment(now), self.newcomers.get(&network));
        if known.is_some_and(|known| !known.is_new_again(moment)) {
            return false;
        }
        if !may_wait {
            return self.new.has_token(now);
        }

        self.has_room() || self.held.contains_key(&network)
    }

    /// Whether another message can be held.
    fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX && self.queue.len() < QUEUE_MAX
    }

    /// Whether `source`, which shows no cookie, would be turned away now without an answer, whatever else
    /// there is in its message, which can be held or cannot. Costs less than to look at that.
    pub(super) fn is_hopeless(&self, source: IpAddr, may_wait: bool, now: Instant) -> bool {
        self.is_under(now)
            && !self.has_cookie_for(source, now)
            && !self.is_newcomer(source, may_wait, now)
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

    /// Whether `source`, which shows no cookie and may be anywhere, is answered at once because it is new.
    pub(super) fn admit_newcomer(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        if !self.may_be_new(network, now) || !self.new.take(now) {
            return false;
        }
        self.meet(network, now);

        true
    }

    /// Whether an initiation is held, because its source shows no cookie and is new. [`Self::release`] gives it
    /// back if the source does not insist.
    pub(super) fn hold(&mut self, initiation: &[u8], path: Path, now: Instant) -> bool {
        let network = network(path.remote.ip());
        if let Some(held) = self.held.get_mut(&network) {
            held.count += u8::from(held.message != initiation);
            if held.count >= INSISTENCE {
                self.held.remove(&network);
                self.turned_away += 1;
                self.meet(network, now);
            }
            return false;
        }
        let Ok(message) = initiation.try_into() else { return false };
        if !self.has_room() || !self.may_be_new(network, now) {
            return false;
        }
        // All of it at once: a table that grows is there twice for a moment.
        if self.held.capacity() == 0 {
            self.held.reserve(HELD_MAX);
            self.queue.reserve_exact(QUEUE_MAX);
        }
        let since = self.moment(now);
        self.held.insert(network, Held { message, path, since, count: 1 });
        self.queue.push_back((network, since));

        true
    }

    /// A message that was held for long enough, if there is one that may be answered now, and how many may
    /// never be. With all places taken the last of them waits for little more than a second.
    pub(super) fn release(&mut self, now: Instant) -> (Option<Held>, u64) {
        let moment = self.moment(now);
        while let Some((network, since)) = self.queue.front().copied()
            && moment.since(since) >= PROBATION
        {
            // Who insisted may be new again by now, and be held for another message.
            let is_held = self.held.get(&network).is_some_and(|held| held.since == since);
            if is_held && !self.new.has_token(now) {
                break;
            }
            self.queue.pop_front();
            let Some(held) = is_held.then(|| self.held.remove(&network)).flatten() else {
                continue;
            };
            if self.may_be_new(network, now) && self.new.take(now) {
                self.meet(network, now);
                return (Some(held), mem::take(&mut self.turned_away));
            }
            self.turned_away += 1;
        }

        (None, mem::take(&mut self.turned_away))
    }

    /// Whether nothing is known of `network`, and there is room to remember it.
    fn may_be_new(&mut self, network: IpAddr, now: Instant) -> bool {
        let moment = self.moment(now);
        let is_known = |known: &Newcomer| !known.is_new_again(moment);
        if self.newcomers.get(&network).is_some_and(is_known) {
            return false;
        }
        if self.newcomers.len() < NEWCOMERS_MAX || self.newcomers.contains_key(&network) {
            return true;
        }
        // Nobody becomes old earlier than the first of them, so one look in a while will do.
        if self.newcomers_full.is_some_and(|until| now < until) {
            return false;
        }
        self.newcomers.retain(|_, known| is_known(known));
        let oldest = self.newcomers.values().map(|known| known.met).min();
        self.newcomers_full = oldest.map(|met| now + NEWCOMER_INTERVAL - moment.since(met));

        self.newcomers.len() < NEWCOMERS_MAX
    }

    /// `network` is not new from now on. If too many others have come meanwhile it will be.
    fn meet(&mut self, network: IpAddr, now: Instant) {
        if self.newcomers.len() < NEWCOMERS_MAX || self.newcomers.contains_key(&network) {
            if self.newcomers.capacity() == 0 {
                self.newcomers.reserve(NEWCOMERS_MAX);
            }
            let now = self.moment(now);
            let newcomer = Newcomer { met: now, heard: now, is_patient: false, cookie: None };
            self.newcomers.insert(network, newcomer);
        }
    }

    /// Whether `source`, which shows no cookie, is sent one.
    pub(super) fn may_reply(&mut self, source: IpAddr, now: Instant) -> bool {
        let moment = self.moment(now);
        let due =
            self.newcomers.get_mut(&network(source)).filter(|known| known.may_have_cookie(moment));
        if let Some(known) = due
            && self.cookies.take(now)
        {
            known.cookie = Some(moment);
            return true;
        }

        self.more_cookies.take(now) || self.cookies.is_full(now) && self.cookies.take(now)
    }

    /// Whether [`Self::may_reply`] would say so.
    fn has_cookie_for(&self, source: IpAddr, now: Instant) -> bool {
        let is_due = || {
            let known = self.newcomers.get(&network(source));
            known.is_some_and(|known| known.may_have_cookie(self.moment(now)))
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
        if is_calm && self.queue.is_empty() {
            self.began = now;
            if self.queue.capacity() > 0 {
                (self.held, self.queue) = (HashMap::new(), VecDeque::new());
            }
        }
    }
}

/// How many entries a hash table of the standard library takes before it has more places than so many.
const fn table_max(places: usize) -> usize {
    places / 8 * 7
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
                load.hear(from, now);
                let is_hopeless = load.is_hopeless(from, may_wait, now);
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
            assert!(!load.is_hopeless(source(0), may_wait, later), "the flood is over");
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

        assert!(
            (7_000..=3 * NEWCOMERS.per_second + NEWCOMERS.burst).contains(&answered),
            "{answered}"
        );
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
                if !ask(&mut load, number % sources, now) {
                    sent += u32::from(load.may_reply(source(number % sources), now));
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
                load.hear(peer, now);
                assert!(
                    !load.is_hopeless(peer, true, now) && load.may_reply(peer, now),
                    "{number}"
                );
            }
        }
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
}
