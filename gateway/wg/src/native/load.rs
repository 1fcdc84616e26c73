//! Rate limits for handshake messages under load.
//!
//! Source: WireGuard whitepaper, section 5.3. Under load, a message
//!
//! | with | is |
//! |---|---|
//! | a valid mac2 | processed, up to [`SOURCE`] from one source |
//! | no valid mac2 | answered with a cookie reply, up to [`ANSWERED`]; above that only [`COOKIES`] are |
//!
//! So a peer gets its session with its second initiation, five seconds after the first, even if a flood forges its
//! address: messages without a cookie do not count against an address, except that in a flood of more than
//! [`ANSWERED`] some cookies are [reserved](RESERVED) for sources that were not sent one recently.
//!
//! A source is an IPv4 address or an IPv6 /64.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use strait_packet::bucket::{Bucket, Rate};
use strait_packet::path::network;

/// Handshake messages a second above which the gateway is under load. Answering this many takes about a tenth of a
/// core: four multiplications on the curve each. The burst admits the peers of a gateway that restarts.
const ALL: Rate = Rate { per_second: 500, burst: 250 };

/// Load and flood end when their rate was not exceeded for this long.
const CALM: Duration = Duration::from_secs(1);

/// Handshakes a second from one source with valid cookies, under load.
const SOURCE: Rate = Rate { per_second: 20, burst: 5 };

/// The most sources with a valid cookie that are remembered: less than a megabyte.
const SOURCES_MAX: usize = 8192;

/// Messages a second without a valid cookie that are all answered with one: less than half of a core. The burst is
/// the rate over two ticks of the clock, which does not advance within a tick.
const ANSWERED: Rate = Rate { per_second: 120_000, burst: 24_000 };

/// Cookie replies a second in a larger flood, so that most of the processor is left to sessions.
const COOKIES: Rate = Rate { per_second: 15_000, burst: 2 * RESERVED };

/// Cookies of the burst for sources that were not sent one for [`COOKIE_INTERVAL`]: a flood from few sources cannot
/// use them up.
const RESERVED: u32 = 3_000;

/// Less than a peer waits before it sends its next initiation (section 6.1, `REKEY_TIMEOUT`).
const COOKIE_INTERVAL: Duration = Duration::from_secs(4);

/// Hash slots for the sources that were sent a cookie: a megabyte, during a flood only.
const COOKIE_SLOTS: usize = 1 << 16;

/// Rates of handshake messages, in total and by source.
#[derive(Debug)]
pub(super) struct Load {
    all: Bucket,
    last_excess: Option<Instant>,
    sources: HashMap<IpAddr, Bucket>,
    answered: Bucket,
    /// When [`ANSWERED`] was last exceeded.
    last_flood: Option<Instant>,
    cookies: Bucket,
    /// In a flood, when a source was last sent a cookie, by a keyed hash of the source; empty otherwise.
    cookie_sent: Vec<Option<Instant>>,
    hash: RandomState,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all: Bucket::new(ALL, now),
            last_excess: None,
            sources: HashMap::new(),
            answered: Bucket::new(ANSWERED, now),
            last_flood: None,
            cookies: Bucket::new(COOKIES, now),
            cookie_sent: Vec::new(),
            hash: RandomState::new(),
        }
    }

    /// Counts a message with a valid mac1. Returns whether it needs a valid mac2.
    pub(super) fn count(&mut self, now: Instant) -> bool {
        if !self.all.take(now) {
            self.last_excess = Some(now);
        }

        self.is_under(now)
    }

    /// Whether messages need a valid mac2.
    pub(super) fn is_under(&self, now: Instant) -> bool {
        is_recent(self.last_excess, now)
    }

    /// Counts a message without a valid cookie. Returns whether `source` may be sent one. If not, mac1 need not be
    /// checked, which is most of the work for a message of a flood.
    pub(super) fn may_reply(&mut self, source: IpAddr, now: Instant) -> bool {
        if !self.answered.take(now) {
            self.last_flood = Some(now);
        }

        !self.is_flood(now) || self.has_cookie_for(source, now)
    }

    fn is_flood(&self, now: Instant) -> bool {
        is_recent(self.last_flood, now)
    }

    /// Whether a handshake message with a valid cookie from `source` is processed.
    pub(super) fn admit(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&network) {
            return false;
        }

        self.sources.entry(network).or_insert(Bucket::new(SOURCE, now)).take(now)
    }

    /// A cookie is sent to `source`, as [`Self::may_reply`] allowed.
    pub(super) fn handle_reply(&mut self, source: IpAddr, now: Instant) {
        if !self.is_flood(now) {
            return;
        }
        self.cookies.take(now);
        self.cookie_sent.resize(COOKIE_SLOTS, None);
        let slot = self.slot(source);
        if let Some(sent) = self.cookie_sent.get_mut(slot) {
            *sent = Some(now);
        }
    }

    fn has_cookie_for(&self, source: IpAddr, now: Instant) -> bool {
        let sent = || self.cookie_sent.get(self.slot(source)).copied().flatten();
        let is_due = || sent().is_none_or(|sent| now >= sent + COOKIE_INTERVAL);

        self.cookies.has_more_than(RESERVED, now) || self.cookies.has_token(now) && is_due()
    }

    fn slot(&self, source: IpAddr) -> usize {
        let slots = u64::try_from(COOKIE_SLOTS).unwrap_or(u64::MAX);

        usize::try_from(self.hash.hash_one(network(source)) % slots).unwrap_or_default()
    }

    /// Removes sources with a full bucket, and frees the memory after the load has ended.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.sources.retain(|_, bucket| !bucket.is_full(now));
        if !self.is_under(now) {
            self.sources = HashMap::new();
        }
        if !self.is_flood(now) {
            self.cookie_sent = Vec::new();
        }
    }
}

fn is_recent(last: Option<Instant>, now: Instant) -> bool {
    last.is_some_and(|last| now.saturating_duration_since(last) < CALM)
}
