//! Telling the senders of packets that go nowhere: who is told what, and how often.
//!
//! Errors are limited over the whole engine (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)): a
//! flood to an address that nobody has must not become a flood of errors.

use std::fmt;
use std::time::Instant;

use crate::DropReason;
use crate::bucket::{Bucket, Rate};
use crate::packet::reply::{self, Cause, MAX_REPLY_BYTES};

/// Enough for whoever waits, little beside a flood.
const ERRORS: Rate = Rate { per_second: 100, burst: 50 };

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
    limit: Bucket,
    buffer: [u8; MAX_REPLY_BYTES],
    len: usize,
}

impl Notice {
    pub(super) const fn new(start: Instant) -> Self {
        Self { limit: Bucket::new(ERRORS, start), buffer: [0; MAX_REPLY_BYTES], len: 0 }
    }

    /// Prepares the error about `packet`, which is as its sender sent it. Says whether there is one.
    #[cold]
    pub(super) fn prepare(&mut self, packet: &[u8], reason: DropReason, now: Instant) -> bool {
        let Some(cause) = cause(reason) else {
            return false;
        };
        if !self.limit.has_token(now) {
            return false;
        }
        let Some(error) = reply::write(packet, cause, &mut self.buffer) else {
            return false;
        };
        self.len = error.len();

        self.limit.take(now)
    }

    /// The error that was prepared last.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice").field("limit", &self.limit).finish_non_exhaustive()
    }
}
