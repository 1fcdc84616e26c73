//! The seam: one peer. Packets go by without a lock; handshakes and timers have one of their own.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use zeroize::Zeroizing;

use super::Shared;
use super::cipher::Lanes;
use super::datagram;
use super::handshake::{Acquaintance, Pending};
use super::keypair::Keypair;
use super::mac::{Cookie, MacKeys};
use super::sessions::Sessions;
use super::state::State;
use super::timers::{JITTER_MAX, REJECT_AFTER_TIME, Traffic};
use crate::OpenedRun;
use crate::Opening;
use crate::Slot;
use crate::Staged;
use crate::message::Message;
use crate::scrub::scrubbed;
use crate::tunnel::{
    Opened, REKEY_TIMEOUT, Reserved, Sealed, SessionState, TimedOut, Tunnel, Upkeep, Whereabouts,
};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// One peer under one key of ours.
pub(super) struct NativeTunnel {
    macs: MacKeys,
    slot: Slot,
    /// Of the device, as in [`Surroundings`](super::Surroundings).
    mtu: Arc<AtomicU16>,
    lanes: Lanes,
    /// Published by who holds the lock of the state.
    sessions: ArcSwap<Sessions>,
    traffic: Traffic,
    /// Packets wait, which go before others.
    has_staged: AtomicBool,
    /// Nothing is due, nor will be before something happens that takes the lock of the state. Thousands
    /// of peers are like this at any time, and time passes for all of them.
    is_dormant: AtomicBool,
    /// `None` once it is closed.
    state: Mutex<Option<State>>,
}

impl NativeTunnel {
    pub(super) fn new(shared: Arc<Shared>, peer: Acquaintance, slot: Slot) -> Self {
        Self {
            macs: MacKeys::new(peer.peer),
            slot,
            mtu: Arc::clone(&shared.surroundings.mtu),
            lanes: shared.surroundings.lanes,
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

    /// For whoever may change something.
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        let state = self.look();
        self.is_dormant.store(false, Ordering::Relaxed);

        state
    }

    /// For whoever changes nothing.
    fn look(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals what waits and then the segments, until either is used up.
    #[inline]
    fn seal_with(
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

        let way = (outer, self.mtu());
        let counter = keypair.reserve(as_u64(segments.remaining()));
        datagram::seal_segments((keypair, counter), segments, way, out, &mut sealed);
        self.traffic.count_sent(true, now);

        sealed
    }

    /// Has the segments wait, and asks for a session.
    #[cold]
    pub(super) fn seal_without_session(
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
        // One may have come while the lock was waited for.
        let sealed = self.flush(state, outer.path, out, now);
        if self.sessions.load().usable(now).is_none() {
            state.want_session(now);
            if !state.is_asking(now) {
                self.ask(state, outer.path, out, now);
            }
        }

        Sealed { overflow, ..sealed }
    }

    fn send_keepalive(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let sessions = self.sessions.load();
        let Some(keypair) = sessions.usable(now) else { return };
        let way = (Outer::message(path), self.mtu());
        if datagram::seal_one(keypair, &[], way, out).is_some() {
            self.traffic.count_sent(false, now);
        }
    }

    /// Seals what is staged if there is a session.
    fn flush(
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
                let way = (Outer::data(path, ecn), self.mtu());
                let Some(len) = datagram::seal_one(keypair, packet, way, out) else { break };
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

    /// To be called whenever what is staged may have become something or nothing.
    fn note_staged(&self, state: &State) {
        self.has_staged.store(!state.staged.is_empty(), Ordering::Release);
    }

    /// Sends an initiation, whatever else is on its way.
    fn ask(&self, state: &mut State, path: Path, out: &mut TransmitBatch, now: Instant) {
        if state.has_ended {
            return;
        }
        scrubbed(|| self.begin_handshake(state, path, out, now));
    }

    fn begin_handshake(
        &self,
        state: &mut State,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) {
        let index = self.new_index(state);
        let timestamp = state.timestamp(now);
        let State { shared, peer, .. } = state;
        let ephemeral = shared.ephemeral();
        let Ok((pending, mut message)) =
            Pending::initiate(&shared.own, peer, index, ephemeral, timestamp)
        else {
            return;
        };

        self.send_handshake(state, &mut message, path, out, now);
        let jitter = JITTER_MAX.mul_f64(f64::from(state.shared.random_byte()) / 256.0);
        state.ask(pending, now, now + REKEY_TIMEOUT + jitter);
    }

    /// Stamps a message of a handshake and writes it to `out`. If there is no room it is lost, as on the
    /// network.
    fn send_handshake(
        &self,
        state: &mut State,
        message: &mut [u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) {
        let cookie = state.cookie.as_ref().and_then(|cookie| cookie.get(now));
        state.last_mac = Some(self.macs.stamp(message, cookie));
        if out.push_message(message, Outer::handshake(path)) {
            self.traffic.count_sent(false, now);
        }
    }

    /// An index of our slot that nothing else has and nothing had for long, and that nobody can foresee.
    fn new_index(&self, state: &mut State) -> u32 {
        let sessions = self.sessions.load();
        loop {
            let index = self.slot.index(state.next_number());
            let is_pending =
                state.attempt.as_ref().is_some_and(|attempt| attempt.answered(index).is_some());
            if !is_pending && sessions.with_index(index).is_none() {
                return index;
            }
        }
    }

    fn handle_initiation(
        &self,
        state: &mut State,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        if state.has_ended {
            return Err(DropReason::NoSession);
        }
        let introduced =
            state.shared.introduced(message).map_err(|_| DropReason::Unauthenticated)?;
        let authentic =
            introduced.authenticate(&state.peer).map_err(|_| DropReason::Unauthenticated)?;
        state.accept(authentic.timestamp, now)?;
        self.traffic.count_handshake(now);

        let index = self.new_index(state);
        let (session, mut response) = authentic
            .respond(&state.peer, index, &state.shared.ephemeral())
            .map_err(|_| DropReason::Unauthenticated)?;
        let next = Keypair::new(&session, false, self.lanes, now);
        self.publish(self.sessions.load().promised(next));
        state.answered = Some((now, index));
        self.send_handshake(state, &mut response, path, out, now);

        Ok(())
    }

    fn handle_response(
        &self,
        state: &mut State,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        let Some(Message::Response { receiver_index }) = Message::classify(message) else {
            return Err(DropReason::Malformed);
        };
        let attempt = state.attempt.as_ref().ok_or(DropReason::NoSession)?;
        let asked = attempt.answered(receiver_index).ok_or(DropReason::NoSession)?;
        // Both were asleep for so long that there is nothing left of the session.
        if now.saturating_duration_since(asked.at) >= REJECT_AFTER_TIME {
            return Err(DropReason::NoSession);
        }
        let session = asked
            .pending
            .complete(&state.shared.own, &state.peer, message)
            .map_err(|_| DropReason::Unauthenticated)?;
        let at = asked.at;
        state.forget(receiver_index);
        self.traffic.count_handshake(now);
        state.complete(at, now);
        let current = Keypair::new(&session, true, self.lanes, now).asked_at(at);
        self.publish(self.sessions.load().granted(current));

        // The peer may use the session only when it has seen that we do.
        if state.staged.is_empty() {
            self.send_keepalive(path, out, now);
        }

        Ok(())
    }

    fn handle_cookie(
        &self,
        state: &mut State,
        message: &[u8],
        now: Instant,
    ) -> Result<(), DropReason> {
        let mac = state.last_mac.take().ok_or(DropReason::Replayed)?;
        match self.macs.open_cookie(message, &mac) {
            Ok(value) => {
                state.cookie = Some(Cookie { value: Zeroizing::new(value), received: now });
                Ok(())
            }
            Err(_) => {
                state.last_mac = Some(mac);
                Err(DropReason::Unauthenticated)
            }
        }
    }

    /// What it tells of the session that something was received.
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
        opened.is_late |= sessions.is_over(keypair, now);
        if sessions.is_promised(keypair) {
            self.confirm(keypair, now);
        }
        opened.has_staged = self.has_staged.load(Ordering::Acquire);
    }

    /// The peer has used the session that we had promised, so we do as well.
    #[cold]
    fn confirm(&self, keypair: &Arc<Keypair>, now: Instant) {
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return };
        let sessions = self.sessions.load();
        if !sessions.is_promised(keypair) {
            return;
        }
        self.publish(sessions.confirmed());
        if let Some((at, index)) = state.answered.take()
            && index == keypair.local_index
        {
            state.complete(at, now);
        }
        // Nothing is left to ask for.
        state.attempt = None;
    }

    /// To be called by who holds the lock of the state.
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
        if keypair.is_worn() || self.has_staged.load(Ordering::Acquire) {
            return None;
        }
        let first_counter = keypair.reserve(as_u64(segments.remaining()));
        self.traffic.count_sent(true, now);
        let mtu = self.mtu();
        let sealed = datagram::foresee(segments, mtu);

        let keys = Arc::<Keypair>::clone(keypair);
        Some(Reserved::new(keys, first_counter, mtu, sealed))
    }

    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed {
        let mut state = self.lock();

        state.as_mut().map(|state| self.flush(state, path, out, now)).unwrap_or_default()
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
        // Not after it was wiped, even if it was there when the run was opened.
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
    ) -> Result<Whereabouts, DropReason> {
        let kind = Message::classify(message).ok_or(DropReason::Malformed)?;
        if matches!(kind, Message::Response { .. }) {
            let shared = self.look().as_ref().map(|state| Arc::clone(&state.shared));
            let shared = shared.ok_or(DropReason::NoSession)?;
            if !shared.admit(message, path, out)? {
                return Err(DropReason::UnderLoad);
            }
        }
        let mut state = self.lock();
        let state = state.as_mut().ok_or(DropReason::NoSession)?;

        scrubbed(|| match kind {
            Message::Initiation => self.handle_initiation(state, message, path, out, now),
            Message::Response { .. } => self.handle_response(state, message, path, out, now),
            Message::CookieReply { .. } => self.handle_cookie(state, message, now),
            Message::Data { .. } => Err(DropReason::Malformed),
        })?;

        // A response comes from where we have just asked, which may be somewhere else on purpose.
        if kind == Message::Initiation && self.traffic.has_just_received(now) {
            return Ok(Whereabouts::Unknown);
        }
        Ok(Whereabouts::Here)
    }

    fn handle_timeout(&self, upkeep: Upkeep, out: &mut TransmitBatch, now: Instant) -> TimedOut {
        let Upkeep { path, persistent_keepalive, may_initiate } = upkeep;
        if self.is_dormant() && persistent_keepalive.is_none() {
            return TimedOut::default();
        }
        let mut state = self.lock();
        let Some(state) = state.as_mut() else { return TimedOut::default() };
        let mut sessions = self.sessions.load();
        // With the last who reads them they are wiped.
        if let Some(fresh) = sessions.without_expired(now) {
            self.publish(fresh);
            sessions = self.sessions.load();
        }
        let news = state.debts.look(&self.traffic);
        let may_ask = may_initiate && !state.is_asking(now);
        let is_silent = may_ask && state.debts.take_silence(now);
        let mut given_up = 0;
        // Remembered until it may be asked for: what makes it due is seen once.
        state.is_rekey_due |= sessions.is_succession_due(news, now);
        state.is_rekey_due &= sessions.has_current();
        let mut wants_session = is_silent || state.is_rekey_due;

        if let Some(attempt) = &state.attempt {
            if attempt.has_failed(now) {
                given_up = as_u64(mem::take(&mut state.staged).len());
                self.note_staged(state);
                state.attempt = None;
            } else {
                wants_session = now >= attempt.again;
            }
        }
        let has_session = sessions.has_current();
        let is_idle = persistent_keepalive
            .is_some_and(|interval| state.debts.is_idle(&self.traffic, interval, now));
        if !has_session && (is_idle || !state.staged.is_empty()) && state.attempt.is_none() {
            wants_session = true;
        }

        if let Some(path) = path {
            if wants_session && may_ask {
                self.ask(state, path, out, now);
            }
            if has_session && (is_idle || state.debts.is_keepalive_due(now)) {
                self.send_keepalive(path, out, now);
            }
        }
        let is_dormant =
            persistent_keepalive.is_none() && sessions.is_empty() && state.is_at_rest();
        self.is_dormant.store(is_dormant, Ordering::Relaxed);

        TimedOut { given_up, has_staged: has_session && !state.staged.is_empty() }
    }

    fn is_dormant(&self) -> bool {
        self.is_dormant.load(Ordering::Relaxed)
    }

    fn is_asking(&self, now: Instant) -> bool {
        self.look().as_ref().is_some_and(|state| state.is_asking(now))
    }

    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let mut state = self.lock();
        if let Some(state) = state.as_mut().filter(|state| !state.is_asking(now)) {
            self.ask(state, path, out, now);
        }
    }

    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        if let Some(state) = self.lock().as_mut() {
            state.want_session(now);
            self.ask(state, path, out, now);
        }
    }

    fn stage(&self, segments: &mut Segments<'_>, ecn: Ecn, now: Instant) -> u64 {
        let mut state = self.lock();
        let Some(state) = state.as_mut().filter(|state| !state.has_ended) else {
            return segments.skip();
        };
        let overflow = state.staged.stage(segments, ecn);
        self.note_staged(state);
        state.want_session(now);

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

    fn adopt(&self, staged: Staged) {
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
        // Dropped where it is: a move would leave a copy behind of what is wiped.
        *state = None;

        staged.unwrap_or_default()
    }

    fn session(&self) -> SessionState {
        let state = self.look();
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
