//! Which handshake messages are worked for while more arrive than can be.
//!
//! Source: WireGuard whitepaper, section 5.3. Under load, a message
//!
//! | with | is |
//! |---|---|
//! | a valid second MAC | worked for, up to [`SOURCE`] from one source |
//! | none | answered with a cookie reply, up to [`ANSWERED`] of them; if there are more, only [`COOKIES`] are |
//!
//! So a peer has its session with its second initiation, five seconds after the first. Its address may be one
//! that a flood forges: nothing that senders without a cookie do counts against an address, except that in a
//! flood of more than [`ANSWERED`] some cookies are [reserved](RESERVED) for sources that were sent none lately.
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

/// Handshake messages a second above which the gateway is under load. To answer this many takes about a tenth
/// of a core: four multiplications on the curve each. The burst admits the peers of a gateway that restarts.
const ALL: Rate = Rate { per_second: 500, burst: 250 };

/// Load and flood end when their rate was kept for this long.
const CALM: Duration = Duration::from_secs(1);

/// Handshakes a second from one source with valid cookies, under load.
const SOURCE: Rate = Rate { per_second: 20, burst: 5 };

/// The most sources with a valid cookie that are remembered: less than a megabyte.
const SOURCES_MAX: usize = 8192;

/// Messages a second without a valid cookie that are all answered by one: less than half of a core. The burst is what the
/// rate gives in two intervals of the clock, which stands still in between.
const ANSWERED: Rate = Rate { per_second: 120_000, burst: 24_000 };

/// Cookie replies a second in a flood of more than that, so that most of the processor is left to sessions.
const COOKIES: Rate = Rate { per_second: 15_000, burst: 2 * RESERVED };

/// Cookies of the burst that only sources get that were sent none for [`COOKIE_INTERVAL`]: a flood from few
/// sources does not take those of all others.
const RESERVED: u32 = 3_000;

/// Less than a peer waits before it sends its next initiation (section 6.1, `REKEY_TIMEOUT`).
const COOKIE_INTERVAL: Duration = Duration::from_secs(4);

/// Sources that are told apart there: a megabyte, as long as the load lasts.
const COOKIE_SLOTS: usize = 1 << 16;

/// How many handshakes there are, and from where.
#[derive(Debug)]
pub(super) struct Load {
    all: Bucket,
    last_excess: Option<Instant>,
    sources: HashMap<IpAddr, Bucket>,
    answered: Bucket,
    /// When more came than are all answered.
    last_flood: Option<Instant>,
    cookies: Bucket,
    /// In a flood, when sources were sent a cookie last, by a keyed hash; empty otherwise.
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

    /// Counts a message with a valid first MAC. Returns whether it needs a valid second one.
    pub(super) fn count(&mut self, now: Instant) -> bool {
        if !self.all.take(now) {
            self.last_excess = Some(now);
        }

        self.is_under(now)
    }

    /// Whether messages need a valid second MAC.
    pub(super) fn is_under(&self, now: Instant) -> bool {
        is_recent(self.last_excess, now)
    }

    /// Counts a message without a valid cookie. Returns whether `source` may be sent one: if not, there is no need
    /// to check the first MAC, which is most of the work for a message of a flood.
    pub(super) fn may_reply(&mut self, source: IpAddr, now: Instant) -> bool {
        if !self.answered.take(now) {
            self.last_flood = Some(now);
        }

        !self.is_flood(now) || self.has_cookie_for(source, now)
    }

    fn is_flood(&self, now: Instant) -> bool {
        is_recent(self.last_flood, now)
    }

    /// Whether a handshake from `source`, which has shown a valid cookie, is worked for.
    pub(super) fn admit(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&network) {
            return false;
        }

        self.sources.entry(network).or_insert(Bucket::new(SOURCE, now)).take(now)
    }

    /// `source` is sent a cookie, which it [may](Self::may_reply).
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

    /// Forgets sources that are as good as new, and releases the memory of a load that is over.
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
