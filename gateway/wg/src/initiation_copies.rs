//! Copies of initiations that wait for their turn.
//!
//! A responder should not get two copies of an initiation at the same time. Linux (`wg_noise_handshake_consume_initiation`)
//! and wireguard-go (`ConsumeMessageInitiation`) compare its timestamp under one lock and store it under another, so they
//! may answer both copies. The session of the second response then replaces that of the first, with which the initiator
//! has completed the handshake: what it sends is dropped until the next handshake, 15 s later (`NEW_HANDSHAKE_TIME`).
//!
//! So the copies for one peer leave one after another, [`COPY_INTERVAL`] apart, until one is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strait_packet::path::Path;

use crate::PublicKey;
use crate::message::Initiation;

/// The time between two copies of an initiation. A responder has answered one by then, and also refuses another
/// initiation for this long (20 ms in Linux and wireguard-go).
pub const COPY_INTERVAL: Duration = Duration::from_millis(20);

/// An initiation, and where copies of it still go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiationCopies {
    /// The peer.
    pub peer: PublicKey,
    /// The message.
    pub initiation: Initiation,
    /// The paths of the copies, in their order.
    pub paths: VecDeque<Path>,
}

/// The copies for all peers, the next one first. Any thread may add some.
#[derive(Debug, Default)]
pub struct CopyQueue(Mutex<VecDeque<(Instant, InitiationCopies)>>);

impl CopyQueue {
    /// The first of `copies` is sent after [`COPY_INTERVAL`], or after those of the same initiation that wait already.
    pub fn push(&self, copies: InitiationCopies, now: Instant) {
        if copies.paths.is_empty() {
            return;
        }
        let mut queue = self.0.lock();
        let same = queue.iter_mut().find(|(_, waiting)| waiting.initiation == copies.initiation);
        match same {
            Some((_, waiting)) => waiting.paths.extend(copies.paths),
            // The interval is always the same, so the queue is in the order of time.
            None => queue.push_back((now + COPY_INTERVAL, copies)),
        }
    }

    /// The next copy that is due at `now`: the peer, the message, and its path.
    pub fn pop_due(&self, now: Instant) -> Option<(PublicKey, Initiation, Path)> {
        let mut queue = self.0.lock();
        queue.front().filter(|(due, _)| *due <= now)?;
        let (_, mut copies) = queue.pop_front()?;
        let due = (copies.peer, copies.initiation, copies.paths.pop_front()?);
        if !copies.paths.is_empty() {
            queue.push_back((now + COPY_INTERVAL, copies));
        }

        Some(due)
    }

    /// When the next copy is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.0.lock().front().map(|(due, _)| *due)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::message::MAX_HANDSHAKE_BYTES;

    #[test]
    fn copies_leave_one_after_another() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let queue = CopyQueue::default();
        queue.push(copies(1, &[1, 2]), start);
        queue.push(copies(2, &[3]), at(5));
        queue.push(copies(1, &[4]), at(10));
        queue.push(copies(3, &[]), at(10));

        let sequence: Vec<_> = (0..100)
            .filter_map(|millis| {
                let (_, _, path) = queue.pop_due(at(millis))?;
                Some((millis, path))
            })
            .collect();

        let expected = [(20, 1), (25, 3), (40, 2), (60, 4)];
        assert_eq!(sequence, expected.map(|(millis, port)| (millis, path(port))));
        assert_eq!(queue.next_due(), None);
    }

    fn copies(number: u8, ports: &[u16]) -> InitiationCopies {
        InitiationCopies {
            peer: PublicKey::from_bytes([number; 32]),
            initiation: [number; MAX_HANDSHAKE_BYTES],
            paths: ports.iter().copied().map(path).collect(),
        }
    }

    fn path(port: u16) -> Path {
        SocketAddr::from(([192, 0, 2, 1], port)).into()
    }
}
