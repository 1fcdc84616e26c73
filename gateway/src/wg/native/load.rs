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
//! | one that asks again after a pause, or where a peer was heard before, and was sent no cookie for a while | is sent one, [`COOKIES`] of them a second |
//! | anybody else without a cookie | is sent one, [`MORE_COOKIES`] of them a second, and what the others leave unless it is a [`TORRENT`] |
//! | who of these never pauses in a torrent, where no peer was heard | is [insistent](Load::insistent): whoever receives may drop what it sends unread |
//! | a source with a cookie | is answered as [`SOURCE`] says |
//!
//! An honest peer is new: it sends one message, and without an answer the next after five seconds
//! (section 6.4), a cookie or none (section 6.6). Who floods from some thousand sources sends from each more
//! often than that, and is found out before anything is multiplied for it. So a flood from few sources delays
//! nobody for longer than the probation. One from more than [`NEWCOMERS_MAX`] leaves no room to remember anybody
//! new; a peer that comes from where it had a handshake before it is sent a cookie all the same, and tries twice.
//! Whoever was answered and asks again is sent a cookie for the time after that, however many others are,
//! unless somebody floods from its address.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::handshake::INITIATION_LEN;
use crate::bucket::{Bucket, Rate};
use crate::path::{Path, network};

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
const NEWCOMERS: Rate = Rate { per_second: 3_000, burst: 600 };

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

/// From one look at the clock to the next; in between time stands still here. What [`COOKIES`] gives in this
/// time is for whoever comes first, the others are kept.
const LOOK: Duration = Duration::from_millis(100);

/// Cookies a second, under load, for everybody else.
const MORE_COOKIES: Rate = Rate { per_second: 2_000, burst: 600 };

/// With more than so many messages a second, those that nobody received among them, cookies that are left stay so: of
/// all messages less than one in ten would have one, and to send them took a tenth of what such a flood costs.
const TORRENT: u32 = 50_000;

/// Who was heard in so many looks at the clock, never silent for [`PROBATION`] in between, insists: for a second at
/// the least. An honest peer asks once in five, and all that have one address do so within a few tenths of one.
const INSISTENT_LOOKS: u8 = 10;

/// Less than an honest peer waits before it asks again (section 6.1, `REKEY_TIMEOUT`).
const COOKIE_INTERVAL: Duration = Duration::from_millis(4_800);

/// Networks where peers had handshakes that are remembered at the most: less than a megabyte.
const HOMES_MAX: usize = table_max(16_384);

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
    /// Where peers had handshakes, and when a cookie was sent there last. Nobody else gets in here, so that it
    /// is not forgotten when all is calm.
    homes: HashMap<IpAddr, Option<Instant>>,
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
    /// Messages without a cookie since the last look at how many there are, and others that were lost unread.
    heard: u32,
    looked: Instant,
    is_torrent: bool,
}

/// A time in few bytes, of which there are many: tens of milliseconds since [`Load::began`]. They last for more
/// than a year of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(u32);

impl Moment {
    const STEP: Duration = Duration::from_millis(10);
    const STEPS_PER_SECOND: u64 = 100;
    const STEPS_PER_LOOK: u32 = 10;

    fn after(elapsed: Duration) -> Self {
        // Whole milliseconds of all of it would be 128 bits, which take long to divide.
        let steps = elapsed.as_secs().saturating_mul(Self::STEPS_PER_SECOND)
            + u64::from(elapsed.subsec_nanos() / Self::STEP.subsec_nanos());

        Self(u32::try_from(steps).unwrap_or(u32::MAX))
    }

    /// Which [`LOOK`] at the clock this is.
    const fn look(self) -> u32 {
        self.0 / Self::STEPS_PER_LOOK
    }

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
pub(super) struct Newcomer {
    /// When it was new.
    met: Moment,
    /// When it sent something last.
    heard: Moment,
    /// Before that it was silent for [`PROBATION`].
    is_patient: bool,
    /// In how many looks at the clock it was heard after that, without another such silence.
    looks: u8,
    /// When it was sent a cookie last.
    cookie: Option<Moment>,
}

impl Newcomer {
    fn is_new_again(&self, now: Moment) -> bool {
        now.since(self.met) >= NEWCOMER_INTERVAL
    }

    /// It sends something again.
    fn hear(&mut self, now: Moment) {
        self.is_patient = now.since(self.heard) >= PROBATION;
        if self.is_patient {
            self.looks = 0;
        } else if now.look() > self.heard.look() {
            self.looks = self.looks.saturating_add(1);
        }
        self.heard = now;
    }

    fn is_insistent(&self, now: Moment) -> bool {
        self.looks >= INSISTENT_LOOKS && now.since(self.heard) < PROBATION
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
            homes: HashMap::new(),
            held: HashMap::new(),
            queue: VecDeque::new(),
            turned_away: 0,
            newcomers_full: None,
            new: Bucket::new(NEWCOMERS, now),
            cookies: Bucket::new(COOKIES, now),
            more_cookies: Bucket::new(MORE_COOKIES, now),
            heard: 0,
            looked: now,
            is_torrent: false,
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
        Moment::after(now.saturating_duration_since(self.began))
    }

    /// A message came from `source` that shows no cookie. Gives what is known of it.
    pub(super) fn hear(&mut self, source: IpAddr, now: Instant) -> Option<Newcomer> {
        self.heard = self.heard.saturating_add(1);
        let moment = self.moment(now);
        let known = self.newcomers.get_mut(&network(source))?;
        known.hear(moment);

        Some(*known)
    }

    /// So many more have come that nobody received.
    pub(super) fn handle_lost(&mut self, messages: u32) {
        self.heard = self.heard.saturating_add(messages);
    }

    /// Whether something is done for `source` if it is new.
    fn is_welcome(&self, source: IpAddr, may_wait: bool, now: Instant) -> bool {
        if !may_wait {
            return self.new.has_token(now);
        }

        self.has_room() || self.held.contains_key(&network(source))
    }

    /// Whether another message can be held.
    fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX && self.queue.len() < QUEUE_MAX
    }

    /// Whether `source`, of which this is known and which shows no cookie, would be turned away now without an
    /// answer, whatever else there is in its message, which can be held or cannot. Costs less than to look at
    /// that: most messages of a flood get no further.
    pub(super) fn is_hopeless(
        &self,
        (source, known): (IpAddr, Option<Newcomer>),
        may_wait: bool,
        now: Instant,
    ) -> bool {
        if !self.is_under(now) {
            return false;
        }
        let moment = self.moment(now);
        // As far as can be told without a look at all others.
        let may_be_new = known.is_none_or(|known| known.is_new_again(moment));

        !(self.has_cookie_for((source, known), now)
            || may_be_new && self.is_welcome(source, may_wait, now))
    }

    /// In a torrent, the networks that insist and where no peer had a handshake. Nothing of what they send without
    /// a cookie is worth to be received.
    pub(super) fn insistent(&self, now: Instant) -> impl Iterator<Item = IpAddr> {
        let moment = self.moment(now);
        let newcomers = self.is_torrent.then_some(&self.newcomers).into_iter().flatten();

        newcomers
            .filter(move |(network, known)| {
                known.is_insistent(moment) && !self.homes.contains_key(*network)
            })
            .map(|(network, _)| *network)
    }

    /// A peer had a handshake from `source`.
    pub(super) fn settle(&mut self, source: IpAddr) {
        let network = network(source);
        if self.homes.len() >= HOMES_MAX && !self.homes.contains_key(&network) {
            // With so many peers that move about it fills up again with those that are there now.
            self.homes = HashMap::new();
        }
        self.homes.entry(network).or_default();
    }

    /// Whether a peer had a handshake from `source`, and no cookie was sent there for a while.
    fn is_due_at_home(&self, source: IpAddr, now: Instant) -> bool {
        let is_due = |sent: &Option<Instant>| sent.is_none_or(|sent| now >= sent + COOKIE_INTERVAL);

        self.homes.get(&network(source)).is_some_and(is_due)
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
            let newcomer =
                Newcomer { met: now, heard: now, is_patient: false, looks: 0, cookie: None };
            self.newcomers.insert(network, newcomer);
        }
    }

    /// Whether `source`, which shows no cookie, is sent one.
    pub(super) fn may_reply(&mut self, source: IpAddr, now: Instant) -> bool {
        let moment = self.moment(now);
        let network = network(source);
        if self.is_due_at_home(source, now) && self.cookies.take(now) {
            self.homes.insert(network, Some(now));
            return true;
        }
        let due = self.newcomers.get_mut(&network).filter(|known| known.may_have_cookie(moment));
        if let Some(known) = due
            && self.cookies.take(now)
        {
            known.cookie = Some(moment);
            return true;
        }

        self.more_cookies.take(now) || self.has_spare_cookie(now) && self.cookies.take(now)
    }

    /// Whether [`Self::may_reply`] would say so to `source`, of which this is known.
    fn has_cookie_for(&self, (source, known): (IpAddr, Option<Newcomer>), now: Instant) -> bool {
        let is_due = || {
            known.is_some_and(|known| known.may_have_cookie(self.moment(now)))
                || self.is_due_at_home(source, now)
        };

        self.more_cookies.has_token(now)
            || self.has_spare_cookie(now)
            || self.cookies.has_token(now) && is_due()
    }

    /// Whether those for whom cookies are kept have left one.
    fn has_spare_cookie(&self, now: Instant) -> bool {
        !self.is_torrent && self.cookies.is_full(now + LOOK)
    }

    /// Looks how many ask, and forgets sources when they do not matter.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.looked);
        if elapsed >= LOOK {
            self.looked = now;
            let heard = f64::from(mem::take(&mut self.heard));
            self.is_torrent = heard > f64::from(TORRENT) * elapsed.as_secs_f64();
        }
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
