//! Telling the senders of packets that go nowhere: who is told what, and how often.
//!
//! Errors are limited over the whole engine (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)): a
//! flood to an address that nobody has must not become a flood of errors. And for each sender, so that one
//! who goes on and on does not use up what others would have been told.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Instant;

use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::bucket::{Bucket, Rate};
use strait_packet::icmp_error::{self, Cause, MAX_ERROR_BYTES};

/// Enough for whoever waits, little beside a flood.
const ALL: Rate = Rate { per_second: 100, burst: 50 };

/// Of one sender: a fifth of all.
const SENDER: Rate = Rate { per_second: 20, burst: 10 };

/// Who sends has one of so many buckets, by chance. Two that share one are told less; all of them take 6 kB.
const BUCKETS: usize = 256;

/// What the sender of a packet that was dropped outbound is told; `None` if nothing.
///
/// Whoever has no way to a destination says so, as the WireGuard of the kernel does. Whoever could have
/// translated the packet, and does not, says that (RFC 5508 section 6, REQ-8). Nobody is told what
/// passes by itself, what is wrong with the packet, or what somebody else sent.
#[must_use]
pub const fn cause(reason: DropReason) -> Option<Cause> {
    match reason {
        DropReason::NoRoute
        | DropReason::NoEndpoint
        | DropReason::Untranslatable
        | DropReason::NoMapping => Some(Cause::Unreachable),
        DropReason::AddressAuthenticated
        | DropReason::MasqueradeFull
        | DropReason::MasqueradeShare
        | DropReason::MasqueradeProtocol => Some(Cause::Prohibited),
        DropReason::Malformed
        | DropReason::SourceNotAllowed
        | DropReason::StagingFull
        | DropReason::HandshakeTimeout
        | DropReason::UnknownIndex
        | DropReason::NoSession
        | DropReason::Unauthenticated
        | DropReason::Replayed
        | DropReason::UnderLoad
        | DropReason::CongestionUnmarkable
        | DropReason::WriteFailed
        | DropReason::HandshakeQueueFull
        | DropReason::PeerRemoved
        | DropReason::SourceRouted
        | DropReason::FragmentUnknown
        | DropReason::RoutingLoop => None,
    }
}

/// The newest error, and how many more there may be.
pub(super) struct Notice {
    all: Bucket,
    senders: Box<[Bucket]>,
    /// Nobody can choose whom to share a bucket with.
    seed: u64,
    buffer: [u8; MAX_ERROR_BYTES],
    len: usize,
}

impl Notice {
    pub(super) fn new(seed: u64, start: Instant) -> Self {
        Self {
            all: Bucket::new(ALL, start),
            senders: [Bucket::new(SENDER, start); BUCKETS].into(),
            seed,
            buffer: [0; MAX_ERROR_BYTES],
            len: 0,
        }
    }

    /// Prepares the error about `packet`, which is as its sender sent it and was dropped. Says whether there is
    /// one.
    #[cold]
    pub(super) fn prepare(&mut self, packet: &[u8], reason: DropReason, now: Instant) -> bool {
        cause(reason).is_some_and(|cause| self.prepare_cause(packet, cause, now))
    }

    /// The same for `cause`, also of a packet that is sent.
    #[cold]
    pub(super) fn prepare_cause(&mut self, packet: &[u8], cause: Cause, now: Instant) -> bool {
        let Ok(header) = Header::parse(packet) else {
            return false;
        };
        let place = place(self.seed, header.source());
        let Some(sender) = self.senders.get_mut(place) else {
            return false;
        };
        if !self.all.has_token(now) || !sender.has_token(now) {
            return false;
        }
        let Some(error) = icmp_error::write(packet, cause, &mut self.buffer) else {
            return false;
        };
        self.len = error.len();

        self.all.take(now) && sender.take(now)
    }

    /// The error that was prepared last.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

/// Which bucket is the sender's.
fn place(seed: u64, sender: IpAddr) -> usize {
    let mut hasher = DefaultHasher::new();
    (seed, sender).hash(&mut hasher);

    usize::try_from(hasher.finish()).unwrap_or_default() % BUCKETS
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice").field("all", &self.all).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use std::time::Duration;

    use super::*;
    use strait_packet::fixtures::{Packet, UDP, udp};

    /// The senders of a second, in turn, a millisecond apart: how many errors each is told.
    fn told(senders: &[IpAddr]) -> Vec<usize> {
        let start = Instant::now();
        let mut notice = Notice::new(7, start);
        let to = "10.99.0.1".parse().unwrap();
        let packets: Vec<_> = senders
            .iter()
            .map(|from| Packet::new(*from, to, UDP, udp([7, 9], b"?")).build())
            .collect();
        let mut told = vec![0; senders.len()];

        for millis in 0..1_000 {
            let now = start + Duration::from_millis(millis);
            for (packet, told) in packets.iter().zip(&mut told) {
                *told += usize::from(notice.prepare(packet, DropReason::NoRoute, now));
            }
        }

        told
    }

    #[test]
    fn who_goes_on_and_on_uses_up_nobody_elses_errors() {
        let [noisy, quiet] = ["10.244.1.5", "10.244.1.6"].map(|ip| ip.parse().unwrap());
        assert_ne!(place(7, noisy), place(7, quiet));

        let told = told(&[noisy, quiet]);

        // The burst and what a second adds.
        assert_eq!(told, [29, 29]);
    }

    #[test]
    fn many_senders_together_get_no_more_than_all_may() {
        let senders: Vec<_> = (1..=200).map(|host| IpAddr::from([10, 244, 3, host])).collect();

        assert_eq!(told(&senders).into_iter().sum::<usize>(), 149);
    }
}
