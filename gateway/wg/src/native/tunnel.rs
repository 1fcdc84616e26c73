//! The tunnel: one peer. Packets with a session take no lock; handshakes and timers share one.

mod handshakes;
mod sealing;

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use super::datagram;
use super::handshake::PeerStatics;
use super::keypair::Keypair;
use super::mac::MacKeys;
use super::sessions::Sessions;
use super::state::State;
use super::timers::Traffic;
use crate::handover::TunnelState;
use crate::message::Message;
use crate::scrub::scrubbed;
use crate::tunnel::{
    EndpointUpdate, Opened, Reserved, Sealed, SessionState, TimedOut, TimerPolicy, Tunnel,
};
use crate::{IndexSlot, OpenedRun, Opening, PathProbe, Staged};
use strait_aead::Lanes;
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// One peer under one key of ours.
pub(super) struct NativeTunnel {
    macs: MacKeys,
    slot: IndexSlot,
    /// The MTU of the device, as in [`Environment`](super::Environment).
    mtu: Arc<AtomicU16>,
    lanes: Lanes,
    /// Changed only with the lock of the state held.
    sessions: ArcSwap<Sessions>,
    traffic: Traffic,
    /// Packets are staged; they are sent before others.
    has_staged: AtomicBool,
    /// No timer is pending until the lock of the state is taken again. Thousands of peers may be dormant, and
    /// timeouts come for all of them.
    is_dormant: AtomicBool,
    /// `None` once it is closed.
    state: Mutex<Option<State>>,
}

impl NativeTunnel {
    pub(super) fn new(shared: Arc<Shared>, peer: PeerStatics, slot: IndexSlot) -> Self {
        Self {
            macs: MacKeys::new(peer.peer),
            slot,
            mtu: Arc::clone(&shared.environment.mtu),
            lanes: shared.environment.lanes,
            sessions: ArcSwap::default(),
            traffic: Traffic::new(shared.base()),
            has_staged: AtomicBool::new(false),
            is_dormant: AtomicBool::new(false),
            state: Mutex::new(Some(State::new(shared, peer))),
        }
    }

    #[inline]
    fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// The state, to change it.
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        let state = self.lock_to_read();
        self.is_dormant.store(false, Ordering::Relaxed);

        state
    }

    /// The state, to read it.
    fn lock_to_read(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock()
    }

    /// Updates the timers and the sessions after datagrams were opened.
    #[inline]
    fn note_opened(
        &self,
        sessions: &Sessions,
        keypair: &Arc<Keypair>,
        opened: &mut Opened,
        now: Instant,
    ) {
        if opened.authentic == 0 {
            return;
        }
        self.traffic.count_received(opened.packets > 0, now);
        opened.is_late |= sessions.is_superseded(keypair, now);
        if sessions.is_next(keypair) {
            self.confirm(keypair, now);
        }
        opened.has_staged = self.has_staged.load(Ordering::Acquire);
    }

    /// The peer has used the next session: it becomes the current one.
    #[cold]
    fn confirm(&self, keypair: &Arc<Keypair>, now: Instant) {
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return };
        let sessions = self.sessions.load();
        if !sessions.is_next(keypair) {
            return;
        }
        self.publish(sessions.with_next_confirmed());
        if let Some((at, index)) = state.answered.take()
            && index == keypair.local_index
        {
            state.complete(at, now);
        }
        // A handshake of ours is not needed any more.
        state.attempt = None;
    }

    /// Call it only with the lock of the state held.
    fn publish(&self, sessions: Sessions) {
        self.sessions.store(Arc::new(sessions));
    }
}

impl Tunnel for NativeTunnel {
    fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        if let Some(sealed) = self.seal_with_session(segments, outer, out, now) {
            return sealed;
        }

        self.seal_without_session(segments, outer, out, now)
    }

    #[inline]
    fn seal_with_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Option<Sealed> {
        let sessions = self.sessions.load();
        let keypair = sessions.usable(now)?;

        Some(self.seal_with(keypair, segments, outer, out, now))
    }

    fn reserve(&self, segments: &Segments<'_>, now: Instant) -> Option<Reserved> {
        let sessions = self.sessions.load();
        let keypair = sessions.usable(now)?;
        if keypair.has_sent_too_many() || self.has_staged.load(Ordering::Acquire) {
            return None;
        }
        let first_counter = keypair.reserve(as_u64(segments.remaining()));
        self.traffic.count_sent(true, now);
        let mtu = self.mtu();
        let sealed = datagram::predict_sealed(segments, mtu);

        let keys = Arc::<Keypair>::clone(keypair);
        Some(Reserved::new(keys, first_counter, mtu, sealed))
    }

    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed {
        let mut state = self.lock();

        state.as_mut().map(|state| self.flush(state, path, out, now)).unwrap_or_default()
    }

    fn seal_probe(
        &self,
        probe: PathProbe,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> u64 {
        self.seal_other(&probe.content(), path, out, now)
    }

    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened {
        let stride = stride.max(1);
        let sessions = self.sessions.load();
        let Some(keypair) = sessions.receiver(run, stride, now) else {
            return Opened { no_session: as_u64(run.len().div_ceil(stride)), ..Opened::default() };
        };

        let mut opened = datagram::open_run(keypair, run, stride, out);
        self.note_opened(&sessions, keypair, &mut opened, now);

        opened
    }

    fn opening(&self, run: &[u8], stride: usize, now: Instant) -> Option<Opening> {
        let sessions = self.sessions.load();
        let keypair = sessions.receiver(run, stride, now)?;

        Some(Opening::new(Arc::<Keypair>::clone(keypair)))
    }

    fn admit(&self, opening: &Opening, run: &mut OpenedRun, bytes: &[u8], now: Instant) -> Opened {
        let sessions = self.sessions.load();
        // Not if the session was wiped after the run was opened.
        let Some(keypair) = sessions.all().find(|keypair| opening.is_with(keypair)) else {
            return Opened { no_session: run.datagrams(), ..Opened::default() };
        };

        let mut opened = datagram::admit(keypair, run, bytes);
        self.note_opened(&sessions, keypair, &mut opened, now);

        opened
    }

    fn handle_handshake(
        &self,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<EndpointUpdate, DropReason> {
        let kind = Message::classify(message).ok_or(DropReason::Malformed)?;
        if matches!(kind, Message::Response { .. }) {
            let shared = self.lock_to_read().as_ref().map(|state| Arc::clone(&state.shared));
            let shared = shared.ok_or(DropReason::NoSession)?;
            if !shared.admit(message, path, out)? {
                return Err(DropReason::UnderLoad);
            }
        }
        let mut state = self.lock();
        let state = state.as_mut().ok_or(DropReason::NoSession)?;

        // The keys of the new session are not to stay on the stack.
        scrubbed(|| match kind {
            Message::Initiation => self.handle_initiation(state, message, path, out, now),
            Message::Response { .. } => self.handle_response(state, message, path, out, now),
            Message::CookieReply { .. } => self.handle_cookie(state, message, now),
            Message::Data { .. } => Err(DropReason::Malformed),
        })?;

        // Only for initiations: a response comes from an address that we have just sent to.
        if kind == Message::Initiation && self.traffic.has_just_received(now) {
            return Ok(EndpointUpdate::Keep);
        }
        Ok(EndpointUpdate::Learn)
    }

    fn handle_timeout(
        &self,
        policy: TimerPolicy,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        let TimerPolicy { path, persistent_keepalive, may_initiate } = policy;
        if self.is_dormant() && persistent_keepalive.is_none() {
            return TimedOut::default();
        }
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return TimedOut::default() };
        let mut sessions = self.sessions.load();
        // Expired sessions are wiped when their last reader has finished.
        if let Some(fresh) = sessions.without_expired(now) {
            self.publish(fresh);
            sessions = self.sessions.load();
        }
        let activity = state.timers.update(&self.traffic);
        let may_send_initiation = may_initiate && !state.is_handshaking(now);
        let is_unanswered = may_send_initiation && state.timers.take_new_handshake(now);
        let mut given_up = 0;
        // Kept until an initiation may be sent: the activity that makes it due is reported once.
        state.is_rekey_due |= sessions.is_rekey_due(activity, now);
        state.is_rekey_due &= sessions.has_current();
        let mut wants_session = is_unanswered || state.is_rekey_due;

        if let Some(attempt) = &state.attempt {
            if attempt.has_failed(now) {
                given_up = as_u64(mem::take(&mut state.staged).len());
                self.note_staged(state);
                state.attempt = None;
            } else {
                wants_session = now >= attempt.next_at;
            }
        }
        let has_session = sessions.has_current();
        let is_idle = persistent_keepalive
            .is_some_and(|interval| state.timers.is_idle(&self.traffic, interval, now));
        if !has_session && (is_idle || !state.staged.is_empty()) && state.attempt.is_none() {
            wants_session = true;
        }

        if let Some(path) = path {
            if wants_session && may_send_initiation {
                self.send_initiation(state, path, out, now);
            }
            if has_session && (is_idle || state.timers.is_keepalive_due(now)) {
                self.seal_other(&[], path, out, now);
            }
        }
        let is_dormant =
            persistent_keepalive.is_none() && sessions.is_empty() && state.is_dormant();
        self.is_dormant.store(is_dormant, Ordering::Relaxed);

        TimedOut { given_up, has_staged: has_session && !state.staged.is_empty() }
    }

    fn is_dormant(&self) -> bool {
        self.is_dormant.load(Ordering::Relaxed)
    }

    fn is_handshaking(&self, now: Instant) -> bool {
        self.lock_to_read().as_ref().is_some_and(|state| state.is_handshaking(now))
    }

    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let mut state = self.lock();
        if let Some(state) = state.as_mut().filter(|state| !state.is_handshaking(now)) {
            self.send_initiation(state, path, out, now);
        }
    }

    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        if let Some(state) = self.lock().as_mut() {
            state.extend_attempt(now);
            self.send_initiation(state, path, out, now);
        }
    }

    fn stage(&self, segments: &mut Segments<'_>, ecn: Ecn, now: Instant) -> u64 {
        let mut state = self.lock();
        let Some(state) = state.as_mut().filter(|state| !state.has_ended) else {
            return segments.skip();
        };
        let overflow = state.staged.stage(segments, ecn);
        self.note_staged(state);
        state.extend_attempt(now);

        overflow
    }

    fn has_staged(&self) -> bool {
        self.has_staged.load(Ordering::Acquire)
    }

    fn take_staged(&self) -> Staged {
        let mut state = self.lock();
        let staged = state.as_mut().map(|state| mem::take(&mut state.staged)).unwrap_or_default();
        self.has_staged.store(false, Ordering::Release);

        staged
    }

    fn append_staged(&self, staged: Staged) {
        if let Some(state) = self.lock().as_mut() {
            state.staged.append(staged);
            self.note_staged(state);
        }
    }

    fn end_sending(&self) -> Staged {
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return Staged::default() };
        self.publish(self.sessions.load().for_receiving());
        let staged = state.end();
        self.note_staged(state);

        staged
    }

    fn close(&self) -> Staged {
        let mut state = self.lock();
        self.sessions.store(Arc::default());
        self.has_staged.store(false, Ordering::Release);
        let staged = state.as_mut().map(|state| mem::take(&mut state.staged));
        // Dropped in place: a move would leave a copy of the secrets.
        *state = None;

        staged.unwrap_or_default()
    }

    fn export(&self) -> Option<TunnelState> {
        let state = self.lock_to_read();

        Some(state.as_ref()?.export(&self.sessions.load(), &self.traffic))
    }

    fn import(&self, state: TunnelState) {
        let mut own = self.lock();
        let Some(own) = own.as_mut() else { return };
        self.traffic.import(state.timers.last);
        // The keys of the sessions are not to stay on the stack.
        let sessions = scrubbed(|| own.import(state, self.lanes));
        self.publish(sessions);
        self.note_staged(own);
    }

    fn session(&self) -> SessionState {
        let state = self.lock_to_read();
        let Some(state) = state.as_ref() else { return SessionState::default() };

        SessionState {
            is_established: self.sessions.load().has_current(),
            last_handshake: state.last_handshake,
            rtt: state.rtt,
            staged: state.staged.len(),
        }
    }
}

impl fmt::Debug for NativeTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeTunnel").field("session", &self.session()).finish()
    }
}
