//! The gateway that led before this one, while it still has the sessions of the peer.
//!
//! When another pod takes over, kube-proxy leads the datagrams of the peer to it, but nodes send packets to the former
//! pod until the new one has a session. Meanwhile datagrams of the former sessions go on to the former pod, and what it
//! sends to the peer takes the same way back:
//!
//! ```text
//!   peer ◀─▶ this gateway ◀─▶ predecessor ◀─▶ nodes
//! ```
//!
//! For the predecessor the peer has roamed to this gateway, so it takes part without knowing.
//!
//! Only the predecessor has the keys of the sessions: nothing is authenticated here. So the relay serves one peer, takes
//! datagrams with receiver indices of former processes alone ([`is_former`](strait_wg::ReceiverIndices::is_former)), sends
//! what comes back to the source of the first of them, and ends after a few seconds. Peer and predecessor authenticate
//! what they receive. One datagram causes at most one other.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwapOption;

use super::inbound::Received;
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::path::Path;

/// The predecessor, if there is one, shared by control and the inbound direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predecessor(Arc<ArcSwapOption<Relay>>);

#[derive(Debug)]
struct Relay {
    predecessor: SocketAddr,
    until: Instant,
    /// The first source of datagrams of its sessions.
    peer: OnceLock<Path>,
}

impl Predecessor {
    /// Relays to `predecessor` until then.
    pub(crate) fn set(&self, predecessor: SocketAddr, until: Instant) {
        self.0.store(Some(Arc::new(Relay { predecessor, until, peer: OnceLock::new() })));
    }

    /// Appends `run`, datagrams of one receiver index that belong to no session of this gateway, to `out` if they are for
    /// the predecessor or from it. Returns whether they are.
    #[cold]
    pub(crate) fn relay(
        &self,
        run: &[u8],
        is_former: bool,
        received: &Received<'_>,
        now: Instant,
        out: &mut TransmitBatch,
        account: &Counters,
    ) -> bool {
        let relay = self.0.load();
        let target = relay.as_ref().and_then(|relay| relay.target(received.path, is_former, now));
        let Some(target) = target else { return false };

        let outer = Outer::data(target, received.ecn);
        for datagram in run.chunks(received.stride.max(1)) {
            if out.push_message(datagram, outer) {
                account.relayed.add(1);
            } else {
                account.packets_in.add(1);
                account.bytes_in.add(as_u64(datagram.len()));
                account.count_drops(DropReason::WriteFailed, 1);
            }
        }

        true
    }
}

impl Relay {
    /// Where datagrams from `path` go.
    fn target(&self, path: Path, is_former: bool, now: Instant) -> Option<Path> {
        if now >= self.until {
            None
        } else if path.remote == self.predecessor {
            self.peer.get().copied()
        } else if is_former && self.peer.get_or_init(|| path).remote == path.remote {
            Some(self.predecessor.into())
        } else {
            None
        }
    }
}
