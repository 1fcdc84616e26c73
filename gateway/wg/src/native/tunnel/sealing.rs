//! Sealing: packets, those that waited for a session, and messages without a packet.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::NativeTunnel;
use crate::native::datagram::{self, Content, Sealer};
use crate::native::keypair::Keypair;
use crate::native::state::State;
use crate::tunnel::{Sealed, Tunnel as _};
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

impl NativeTunnel {
    /// Seals the staged packets and then the segments, until either is used up.
    #[inline]
    pub(super) fn seal_with(
        &self,
        keypair: &Keypair,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        let mut sealed = Sealed::default();
        if self.has_staged.load(Ordering::Acquire) {
            sealed = self.seal_staged(outer.path, out, now);
            if self.has_staged.load(Ordering::Acquire) {
                return sealed;
            }
        }

        let counter = keypair.reserve(as_u64(segments.remaining()));
        let sealer = Sealer { keypair, counter, outer, mtu: self.mtu() };
        sealer.seal(segments, out, &mut sealed);
        self.traffic.count_sent(true, now);

        sealed
    }

    /// Stages the segments, and begins a handshake.
    #[cold]
    pub(in crate::native) fn seal_without_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        let mut state = self.lock();
        let Some(state) = state.as_mut() else {
            return Sealed { overflow: segments.skip(), ..Sealed::default() };
        };
        if state.has_ended {
            return Sealed { overflow: segments.skip(), ..Sealed::default() };
        }
        let overflow = state.staged.stage(segments, outer.ecn);
        // A handshake may have completed while this waited for the lock.
        let sealed = self.flush(state, outer.path, out, now);
        if self.sessions.load().usable(now).is_none() {
            state.extend_attempt(now);
            if !state.is_handshaking(now) {
                self.send_initiation(state, outer.path, out, now);
            }
        }

        Sealed { overflow, ..sealed }
    }

    /// Seals a message without a packet. Returns the bytes of the datagram: 0 without a session or room.
    pub(super) fn seal_other(
        &self,
        content: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> u64 {
        let sessions = self.sessions.load();
        let Some(keypair) = sessions.usable(now) else { return 0 };
        let content = Content::Other(content);
        let sealed = datagram::seal_one(keypair, content, Outer::message(path), self.mtu(), out);
        let Some(bytes) = sealed else { return 0 };
        self.traffic.count_sent(false, now);

        as_u64(bytes)
    }

    /// Seals the staged packets if there is a session.
    pub(super) fn flush(
        &self,
        state: &mut State,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        let mut sealed = Sealed::default();
        let sessions = self.sessions.load();
        if let Some(keypair) = sessions.usable(now) {
            while let Some((packet, ecn)) = state.staged.first() {
                let outer = Outer::data(path, ecn);
                let packet = Content::Packet(packet);
                let len = datagram::seal_one(keypair, packet, outer, self.mtu(), out);
                let Some(len) = len else { break };
                sealed.add(len);
                state.staged.remove_first();
            }
        }
        if sealed.packets > 0 {
            self.traffic.count_sent(true, now);
        }
        self.note_staged(state);

        sealed
    }

    /// Updates `has_staged`. Call it after each change of the staged packets.
    pub(super) fn note_staged(&self, state: &State) {
        self.has_staged.store(!state.staged.is_empty(), Ordering::Release);
    }
}
