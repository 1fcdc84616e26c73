//! Which of the two ends is draining: it ends soon, and what is sent to it later is lost.
//!
//! A draining end says so at once in a few PINGs, as one may be lost, and from then on in every message. The mark in a
//! message is a nonce that the other end has sent. So neither a sender that cannot read the messages of the tunnel makes
//! one, nor an older release, which repeats the mark of the end that asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::message::Message;

/// PINGs that are sent because of draining.
const PINGS: u8 = 3;

/// Between two of them: a burst of losses is shorter.
const INTERVAL: Duration = Duration::from_millis(50);

/// The newest nonces that the other end may repeat: those of several seconds, while nothing arrives from it.
const NONCES: usize = 64;

/// Follows both ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Draining {
    /// Of PINGs to the other end, the newest last.
    sent_nonces: VecDeque<u64>,
    /// Of the newest PING of the other end. A stock gateway sends none.
    heard_nonce: Option<u64>,
    /// Of this end, if it is draining.
    own: Option<Announcement>,
    is_other_draining: bool,
}

/// What is still to be sent.
#[derive(Clone, Copy, Debug)]
struct Announcement {
    pings: u8,
    next: Instant,
}

impl Draining {
    /// This end is draining.
    pub(super) fn start(&mut self, now: Instant) {
        self.own.get_or_insert(Announcement { pings: PINGS, next: now });
    }

    /// Whether this end is draining.
    pub(super) const fn is_draining(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the other end is.
    pub(super) const fn is_other_draining(&self) -> bool {
        self.is_other_draining
    }

    /// Another process may be at the other end by now.
    pub(super) const fn forget_other(&mut self) {
        self.heard_nonce = None;
        self.is_other_draining = false;
    }

    /// When [`Self::poll`] is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let own = self.own.filter(|own| own.pings > 0 && self.heard_nonce.is_some())?;

        Some(own.next)
    }

    /// Whether to send a PING of its own with the mark.
    pub(super) fn poll(&mut self, now: Instant) -> bool {
        if self.next_timeout().is_none_or(|at| now < at) {
            return false;
        }
        if let Some(own) = &mut self.own {
            *own = Announcement { pings: own.pings - 1, next: now + INTERVAL };
        }

        true
    }

    /// A PING, with the mark if this end is draining.
    pub(super) fn message(&mut self, cluster_id: &str, time_stamp: &str, nonce: u64) -> Message {
        if self.sent_nonces.len() == NONCES {
            self.sent_nonces.pop_front();
        }
        self.sent_nonces.push_back(nonce);
        let mark = self.heard_nonce.filter(|_| self.is_draining());

        Message::ping(cluster_id, time_stamp, nonce, mark)
    }

    /// Handles a PING of the other end.
    pub(super) fn handle_ping(&mut self, ping: &Message) {
        self.heard_nonce = ping.nonce.or(self.heard_nonce);
        self.handle_mark(ping.draining);
    }

    /// Handles the mark of a message, or its absence.
    pub(super) fn handle_mark(&mut self, mark: Option<u64>) {
        self.is_other_draining = mark.is_some_and(|mark| self.sent_nonces.contains(&mark));
    }
}
