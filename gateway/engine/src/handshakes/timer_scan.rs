//! The timers of all peers: sends what is due, in batches, and limits how many handshakes start at once.

use std::iter::Chain;
use std::ops::Range;
use std::time::Instant;

use super::count_sent;
use crate::idle_peers::IdlePeers;
use crate::staged::seal_staged;
use crate::{Accounts, Forwarding, initiation_fanout};
use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::path::Path;
use strait_wg::Peer;

/// The most bytes that one peer may append: a full-size staged packet.
const FULL_BELOW_BYTES: usize = 68 * 1024;

/// The most sends that one peer may append: all staged packets, and a few handshake messages.
const SPARE_TRANSMITS: usize = 8 + 256;

/// The most handshakes that one timer scan starts with peers that no packet waits for: two thousand a second, which
/// take about a tenth of a core for Curve25519. So a gateway that starts with thousands of peers, or whose peers are
/// all unreachable, sends no burst, and answers others in between.
pub(super) const HANDSHAKES_PER_SCAN: usize = 200;

/// The timers of all peers at one time, from [`Handshakes::handle_timeout`](super::Handshakes::handle_timeout).
#[must_use]
pub struct TimerScan<'a> {
    pub(super) forwarding: &'a Forwarding,
    pub(super) accounts: &'a Accounts,
    pub(super) idle_peers: &'a mut IdlePeers,
    pub(super) initial_handshakes_left: &'a mut usize,
    pub(super) turn: &'a mut usize,
    /// The peers that are left.
    pub(super) places: Chain<Range<usize>, Range<usize>>,
    /// Handshakes that this scan has started.
    pub(super) started: usize,
    pub(super) now: Instant,
}

impl TimerScan<'_> {
    /// Runs timers until all peers are done or `out`, which is empty before, is full. Returns whether peers are left:
    /// the caller then drains `out`, and calls again.
    pub fn fill(&mut self, out: &mut TransmitBatch) -> bool {
        let Self { forwarding, idle_peers, initial_handshakes_left, places, now, .. } = self;
        let now = *now;
        for place in places {
            let Some(peer) = forwarding.peers().get(place) else { continue };
            // The common case with thousands of peers: nothing else of the peer is read.
            let is_initial_pass = **initial_handshakes_left > 0;
            if !is_initial_pass && idle_peers.is_skipped(place, || peer.is_dormant()) {
                continue;
            }
            let may_start = self.started < HANDSHAKES_PER_SCAN;
            // Its timers wait too: a handshake that they start, and count as started, could not be sent.
            if !may_start && !is_busy(peer) {
                continue;
            }
            let path = peer.path();
            let before = out.len();
            let mut is_new = false;
            if may_start {
                *self.turn = place + 1;
                is_new = is_initial_pass;
                **initial_handshakes_left = initial_handshakes_left.saturating_sub(1);
                self.started += initiation_fanout::seek(peer, out, now);
            }
            let sought = out.len();
            let timed_out = peer.tunnel.handle_timeout(peer.timer_policy(path), out, now);
            self.started += initiation_fanout::fan_out(peer, sought, out, now);
            count_sent(peer, before, out);
            self.accounts.outbound.count_drops(DropReason::HandshakeTimeout, timed_out.given_up);
            if let Some(path) = path {
                if timed_out.has_staged {
                    seal_staged(peer, path, out, now);
                }
                if is_new {
                    self.started += initiate_first(peer, path, out, now);
                }
            }
            if !out.has_room(FULL_BELOW_BYTES) || out.spare_transmits() < SPARE_TRANSMITS {
                return true;
            }
        }

        false
    }
}

/// Whether a delay of the peer's timers would affect packets.
fn is_busy(peer: &Peer) -> bool {
    let session = peer.tunnel.session();

    session.is_established || session.staged > 0
}

/// Starts a handshake with a peer that never had one. Returns how many were started.
fn initiate_first(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) -> usize {
    let session = peer.tunnel.session();
    if session.is_established || session.last_handshake.is_some() {
        return 0;
    }
    let before = out.len();
    peer.tunnel.initiate(path, out, now);
    let started = initiation_fanout::fan_out(peer, before, out, now);
    count_sent(peer, before, out);

    started
}
