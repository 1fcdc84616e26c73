//! Whether there are more handshakes than can be answered, and whose turn it is then.
//!
//! Source: WireGuard whitepaper, section 5.3. Three bounds: a rate of messages above which cookies are
//! asked for, a rate for each source that has shown one, and the memory that this takes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Handshake messages a second above which we are under load. Answering this many takes about a tenth
/// of a core: four multiplications on the curve each.
const RATE: u32 = 500;

/// Messages above the rate that are let pass: peers of a gateway that has restarted come at once.
const BURST: u32 = 250;

/// Once under load, we are until the rate was kept for this long.
const CALM: Duration = Duration::from_secs(1);

/// Handshakes a second from one source, under load.
const SOURCE_RATE: u32 = 20;

/// Handshakes of one source that a pause saves up.
const SOURCE_BURST: u32 = 5;

/// Sources that are remembered at the most: less than a megabyte.
const SOURCES_MAX: usize = 8192;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u32,
    burst: u32,
    /// When all that was taken would be there again.
    full: Instant,
}

impl Bucket {
    const fn new(rate: u32, burst: u32, now: Instant) -> Self {
        Self { rate, burst, full: now }
    }

    /// Takes one token, if there is one.
    fn take(&mut self, now: Instant) -> bool {
        let price = Duration::from_secs(1) / self.rate;
        let full = self.full.max(now) + price;
        if full.saturating_duration_since(now) > price * self.burst {
            return false;
        }
        self.full = full;

        true
    }
}

/// How busy we are, and who makes us so.
#[derive(Debug)]
pub(super) struct Load {
    all: Bucket,
    last_excess: Option<Instant>,
    sources: HashMap<IpAddr, Bucket>,
}

impl Load {
    pub(super) fn new(now: Instant) -> Self {
        Self { all: Bucket::new(RATE, BURST, now), last_excess: None, sources: HashMap::new() }
    }

    /// A message with a right first MAC came. Says whether it must have a second one.
    pub(super) fn is_heavy(&mut self, now: Instant) -> bool {
        if !self.all.take(now) {
            self.last_excess = Some(now);
        }

        self.last_excess.is_some_and(|last| now.saturating_duration_since(last) < CALM)
    }

    /// Whether it is the turn of `source`, which is where it says.
    pub(super) fn admit(&mut self, source: IpAddr, now: Instant) -> bool {
        let network = network(source);
        if !self.sources.contains_key(&network) && self.sources.len() >= SOURCES_MAX {
            // Whoever has all tokens is no other than somebody new.
            self.sources.retain(|_, bucket| bucket.full > now);
            if self.sources.len() >= SOURCES_MAX {
                return false;
            }
        }
        let bucket = Bucket::new(SOURCE_RATE, SOURCE_BURST, now);

        self.sources.entry(network).or_insert(bucket).take(now)
    }

    /// Forgets sources when they do not matter.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if !self.sources.is_empty()
            && self.last_excess.is_none_or(|last| now.saturating_duration_since(last) >= CALM)
        {
            self.sources = HashMap::new();
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

        assert!((0..BURST).all(|_| !load.is_heavy(start)), "a burst is no load");
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

        assert_eq!(admitted, usize::try_from(SOURCE_RATE * 10 + SOURCE_BURST - 1).unwrap());
        assert!(load.admit(IpAddr::from([192, 0, 2, 2]), start), "another source");
    }

    #[test]
    fn neighbours_in_one_network_of_ipv6_are_one_source() {
        let start = Instant::now();
        let mut load = Load::new(start);
        let source = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, host]);

        let admitted = (0..100).filter(|host| load.admit(source(*host), start)).count();

        assert_eq!(admitted, usize::try_from(SOURCE_BURST).unwrap());
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
}
