//! What becomes of a packet that does not go on.

/// Why a packet was dropped. One variant per counter, one counter per cause an operator can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropReason {
    /// Truncated, or a header field contradicts the length of the packet.
    Malformed,
    /// No rule and no peer covers the destination. Usually a missing or rejected remap rule.
    NoRoute,
    /// The inner source is outside what the sending peer may send (cryptokey routing).
    SourceNotAllowed,
    /// The peer has no endpoint yet: none configured, not resolved, or none learned.
    NoEndpoint,
    /// More packets wait for a handshake than may be staged.
    StagingFull,
    /// Staged packets were given up because no handshake completed in time.
    HandshakeTimeout,
    /// The receiver index belongs to no peer.
    UnknownIndex,
    /// No session has that receiver index any more.
    NoSession,
    /// The authentication tag, or the MAC of a handshake message, is wrong.
    Unauthenticated,
    /// The counter was seen before or lies behind the replay window; for a handshake, its timestamp.
    Replayed,
    /// A handshake came under load and without a valid cookie.
    UnderLoad,
    /// The outer header says congestion was experienced but the inner packet cannot say so (RFC 6040).
    CongestionUnmarkable,
    /// The kernel refused the datagram or the frame.
    WriteFailed,
    /// An authentication header (AH) covers the addresses that would have to change.
    AddressAuthenticated,
    /// The handshake thread could not keep up.
    HandshakeQueueFull,
    /// Staged packets were given up because their peer, or its keys, are configured no more.
    PeerRemoved,
}

impl DropReason {
    /// Every reason, in the order of [`Self::index`].
    pub const ALL: [Self; 16] = [
        Self::Malformed,
        Self::NoRoute,
        Self::SourceNotAllowed,
        Self::NoEndpoint,
        Self::StagingFull,
        Self::HandshakeTimeout,
        Self::UnknownIndex,
        Self::NoSession,
        Self::Unauthenticated,
        Self::Replayed,
        Self::UnderLoad,
        Self::CongestionUnmarkable,
        Self::WriteFailed,
        Self::AddressAuthenticated,
        Self::HandshakeQueueFull,
        Self::PeerRemoved,
    ];

    /// The value of the `reason` label. Part of our public interface: renaming one breaks alerts.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoRoute => "no_route",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::NoEndpoint => "no_endpoint",
            Self::StagingFull => "staging_full",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::UnknownIndex => "unknown_index",
            Self::NoSession => "no_session",
            Self::Unauthenticated => "unauthenticated",
            Self::Replayed => "replayed",
            Self::UnderLoad => "under_load",
            Self::CongestionUnmarkable => "congestion_unmarkable",
            Self::WriteFailed => "write_failed",
            Self::AddressAuthenticated => "address_authenticated",
            Self::HandshakeQueueFull => "handshake_queue_full",
            Self::PeerRemoved => "peer_removed",
        }
    }

    /// The place of this reason in [`Self::ALL`] and in arrays of counters.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant of a field-less enum fits")]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_stands_at_its_own_index_under_its_own_label() {
        let labels: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.label()).collect();

        assert_eq!(labels.len(), DropReason::ALL.len());
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
    }
}
