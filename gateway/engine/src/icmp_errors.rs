//! ICMP errors for senders of packets that cannot be delivered: which error, and at what rate.
//!
//! The rate is limited for the whole engine (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)): a flood to an
//! unassigned address must not become a flood of errors. It is also limited per sender, so that one sender cannot use
//! up the errors for the others.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Instant;

use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::bucket::{Bucket, Rate};
use strait_packet::icmp_error::{self, Cause, MAX_ERROR_BYTES};

/// Limit of the whole engine: enough for interactive use, little beside a flood.
const ALL: Rate = Rate { per_second: 100, burst: 50 };

/// Limit of one sender: a fifth of the total.
const SENDER: Rate = Rate { per_second: 20, burst: 10 };

/// The number of buckets. A sender is assigned to one by a hash; two senders in one bucket share its rate. All of them
/// take 6 kB.
const BUCKETS: usize = 256;

/// The ICMP error for the sender of a packet that was dropped outbound; `None` if there is none.
///
/// A missing route is reported as unreachable, as WireGuard in the kernel does; a refused translation as prohibited
/// (RFC 5508 section 6, REQ-8). Temporary conditions, malformed packets, and drops of packets that came from a peer are
/// not reported.
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
        DropReason::Rejected => Some(Cause::Rejected),
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
        | DropReason::RoutingLoop
        | DropReason::OverlaySource
        | DropReason::OverlayVni
        | DropReason::OverlayHeader
        | DropReason::OverlayFrame
        | DropReason::NoNode
        | DropReason::Filtered => None,
    }
}

/// The newest ICMP error, and the rate limits.
pub(super) struct IcmpErrors {
    all: Bucket,
    senders: Box<[Bucket]>,
    /// Makes the assignment of senders to buckets unpredictable.
    seed: u64,
    buffer: [u8; MAX_ERROR_BYTES],
    len: usize,
}

impl IcmpErrors {
    pub(super) fn new(seed: u64, start: Instant) -> Self {
        Self {
            all: Bucket::new(ALL, start),
            senders: [Bucket::new(SENDER, start); BUCKETS].into(),
            seed,
            buffer: [0; MAX_ERROR_BYTES],
            len: 0,
        }
    }

    /// Prepares the error about `packet`, which was dropped and is unchanged. Returns whether there is one.
    #[cold]
    pub(super) fn prepare(&mut self, packet: &[u8], reason: DropReason, now: Instant) -> bool {
        cause(reason).is_some_and(|cause| self.prepare_cause(packet, cause, now))
    }

    /// Prepares an error with this `cause`, also about a packet that is sent.
    #[cold]
    pub(super) fn prepare_cause(&mut self, packet: &[u8], cause: Cause, now: Instant) -> bool {
        let Ok(header) = Header::parse(packet) else {
            return false;
        };
        let bucket = bucket_of(self.seed, header.source());
        let Some(sender) = self.senders.get_mut(bucket) else {
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

/// The index of the sender's bucket.
fn bucket_of(seed: u64, sender: IpAddr) -> usize {
    let mut hasher = DefaultHasher::new();
    (seed, sender).hash(&mut hasher);

    usize::try_from(hasher.finish()).unwrap_or_default() % BUCKETS
}

impl fmt::Debug for IcmpErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcmpErrors").field("all", &self.all).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::time::Duration;

    use super::*;
    use strait_packet::fixtures::{Packet, UDP, udp};

    /// Each of `senders` sends a packet every millisecond for a second. Returns how many errors each gets.
    fn errors_for(senders: &[IpAddr]) -> Vec<usize> {
        let start = Instant::now();
        let mut icmp_errors = IcmpErrors::new(7, start);
        let to = "10.99.0.1".parse().unwrap();
        let packets: Vec<_> = senders
            .iter()
            .map(|from| Packet::new(*from, to, UDP, udp([7, 9], b"?")).build())
            .collect();
        let mut errors = vec![0; senders.len()];

        for millis in 0..1_000 {
            let now = start + Duration::from_millis(millis);
            for (packet, errors) in packets.iter().zip(&mut errors) {
                *errors += usize::from(icmp_errors.prepare(packet, DropReason::NoRoute, now));
            }
        }

        errors
    }

    #[test]
    fn noisy_sender_does_not_use_up_others_errors() {
        let [noisy, quiet] = ["10.244.1.5", "10.244.1.6"].map(|ip| ip.parse().unwrap());
        assert_ne!(bucket_of(7, noisy), bucket_of(7, quiet));

        let errors = errors_for(&[noisy, quiet]);

        // The burst, and the tokens of a second.
        assert_eq!(errors, [29, 29]);
    }

    #[test]
    fn many_senders_stay_within_the_total_limit() {
        let senders: Vec<_> = (1..=200).map(|host| IpAddr::from([10, 244, 3, host])).collect();

        assert_eq!(errors_for(&senders).into_iter().sum::<usize>(), 149);
    }
}
