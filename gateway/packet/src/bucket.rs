//! Token bucket: limits a rate and allows bursts.

use std::time::{Duration, Instant};

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Tokens that are added in a second.
    pub per_second: u32,
    /// Most tokens that it can contain.
    pub burst: u32,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Nanoseconds for one token. Computed once, because in a flood each message needs it.
    interval: u32,
    burst: u32,
    /// When the bucket is full again if no token is taken.
    full: Instant,
}

impl Bucket {
    /// A full bucket.
    pub const fn new(rate: Rate, now: Instant) -> Self {
        Self { interval: 1_000_000_000 / rate.per_second, burst: rate.burst, full: now }
    }

    /// Takes one token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        if !self.has_token(now) {
            return false;
        }
        self.full = self.after_one(now);

        true
    }

    /// Whether there is a token.
    pub fn has_token(&self, now: Instant) -> bool {
        self.has_more_than(0, now)
    }

    /// Whether there are more than `tokens` tokens.
    pub fn has_more_than(&self, tokens: u32, now: Instant) -> bool {
        let taken = self.after_one(now).saturating_duration_since(now);

        taken <= self.interval() * self.burst.saturating_sub(tokens)
    }

    /// Whether the bucket is full.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full <= now
    }

    fn after_one(&self, now: Instant) -> Instant {
        self.full.max(now) + self.interval()
    }

    const fn interval(&self) -> Duration {
        Duration::new(0, self.interval)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use super::*;

    #[test]
    fn burst_is_followed_by_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Rate { per_second: 100, burst: 50 }, start);
        let mut taken_at = |milliseconds| bucket.take(start + Duration::from_millis(milliseconds));

        let burst = (0..1_000).filter(|_| taken_at(0)).count();
        let next_second = (1..=1_000).filter(|at| taken_at(*at)).count();
        let after_a_pause = (0..1_000).filter(|_| taken_at(60_000)).count();

        assert_eq!((burst, next_second, after_a_pause), (50, 100, 50));
    }

    #[test]
    fn checking_takes_no_token() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Rate { per_second: 1, burst: 1 }, start);

        assert!(bucket.has_token(start) && bucket.has_token(start) && bucket.is_full(start));
        assert!(bucket.take(start));
        assert!(!bucket.has_token(start) && !bucket.is_full(start));
        assert!(bucket.is_full(start + Duration::from_secs(1)));
    }
}
