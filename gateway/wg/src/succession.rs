//! How one key follows another without a lost packet: make before break.
//!
//! A peer usually has one [`Strand`]: a tunnel for the keys that the configuration names. When our key
//! changes, or the peer's, nobody changes theirs at the same moment: the other end learns of it later,
//! from somebody else. So the strands of the keys before stay for a grace period, one for each
//! combination that the peer may speak, and this is who does what:
//!
//! - The first strand that has a session seals; the strand for the newest keys is the first. What the
//!   peer sealed for another one is opened all the same.
//! - The strand for the newest keys begins handshakes until one is answered, as long as an older one has a
//!   session, which is renewed meanwhile. Where no strand has a session there is nothing to agree upon: then
//!   handshakes are begun for packets and to keep alive, as always.
//! - One handshake is under way at a time, whatever keys it is with. The strands that want one take turns: the peer
//!   forgets what it has answered with the next that it answers, and answers none that follows at once.
//! - An initiation for an older strand is answered until a strand before it has a session: from then
//!   on the peer knows better, and both ends must come to agree. An initiation does not say which
//!   preshared key it is for: it is answered with the newest, which a peer that does not have it yet
//!   cannot read. Until it has, the session with the older one is renewed from our end.
//! - A key of ours may also have ended at once, for sending: its strands are there to open what the peer still sends.
//! - At the end of the grace period the older strands are closed, which wipes their keys; soon after that
//!   nobody remembers that they were there.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::OpenedRun;
use super::Opening;
use super::PublicKey;
use super::Staged;
use super::tunnel::{
    Opened, PeerKeys, Reserved, Sealed, SessionState, TimedOut, Tunnel, Upkeep, Whereabouts,
};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// How long the keys before stay in use: the whitepaper's `REJECT_AFTER_TIME`.
///
/// Every session that there was at the change ends within it, so nobody depends on an older key by
/// then who did not renew a session with it. It also leaves a minute between the latest rekey of such
/// a session and its end.
pub const GRACE: Duration = Duration::from_secs(180);

/// How many keys before the newest are kept at once. Whoever changes a key more often than this in a
/// grace period loses the sessions of the oldest.
pub const MAX_OLDER: usize = 3;

/// The end of a key: a grace period after somebody first looked, unless it is taken back before.
#[derive(Debug, Default)]
pub struct Deadline {
    at: OnceLock<Instant>,
    /// [`AHEAD`] at first. It is decided once between those who look and who takes it back.
    state: AtomicU8,
}

const AHEAD: u8 = 0;
const PASSED: u8 = 1;
const TAKEN_BACK: u8 = 2;

impl Deadline {
    /// Time has advanced to `now`: whether the end has come.
    pub fn handle_timeout(&self, now: Instant) -> bool {
        if now >= *self.at.get_or_init(|| now + GRACE) {
            self.decide(PASSED);
        }

        self.has_passed()
    }

    /// Whether the end had come when somebody last looked.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == PASSED
    }

    /// The key is in force again: the end never comes. Says whether it had not come yet.
    pub fn take_back(&self) -> bool {
        self.decide(TAKEN_BACK);

        !self.has_passed()
    }

    fn decide(&self, state: u8) {
        // Whoever comes second finds it decided, which is no failure.
        let _ = self.state.compare_exchange(AHEAD, state, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A tunnel and what it was made from.
#[derive(Clone, Debug)]
pub struct Strand {
    /// Our key.
    pub own: PublicKey,
    /// The peer's keys.
    pub keys: PeerKeys,
    /// Its place in receiver indices.
    pub slot: u32,
    /// The protocol state.
    pub tunnel: Arc<dyn Tunnel>,
}

/// A strand of keys that are not the newest.
#[derive(Clone, Debug)]
pub struct Older {
    /// The strand.
    pub strand: Strand,
    /// The end of our key, unless it is the one in force.
    pub own_end: Option<Arc<Deadline>>,
    /// The end of the peer's keys, unless they are the newest.
    pub peer_end: Option<Arc<Deadline>>,
    /// Whether it only opens what the peer still sends.
    pub is_receive_only: bool,
    /// What is still known of the tunnel since it was closed.
    left: OnceLock<SessionState>,
}

impl Older {
    /// A strand that ends with the first of its keys.
    #[must_use]
    pub const fn new(
        strand: Strand,
        own_end: Option<Arc<Deadline>>,
        peer_end: Option<Arc<Deadline>>,
    ) -> Self {
        Self { strand, own_end, peer_end, is_receive_only: false, left: OnceLock::new() }
    }

    /// The same, which only opens what the peer still sends if `is_receive_only`.
    #[must_use]
    pub fn receive_only(self, is_receive_only: bool) -> Self {
        Self { is_receive_only, ..self }
    }

    /// Wipes the keys. When there was a handshake is still known afterwards.
    fn close(&self) -> Staged {
        self.left.get_or_init(|| self.strand.tunnel.session().over());

        self.strand.tunnel.close()
    }

    fn is_closed(&self) -> bool {
        self.left.get().is_some()
    }

    fn session(&self) -> SessionState {
        self.left.get().copied().unwrap_or_else(|| self.strand.tunnel.session())
    }

    fn has_ended(&self, now: Instant) -> bool {
        self.ends().any(|end| end.handle_timeout(now))
    }

    /// Whether it had ended when somebody last looked.
    fn is_over(&self) -> bool {
        self.ends().any(|end| end.has_passed())
    }

    /// Whether the tunnel may go on with `ends`, having none of its own that is not among them: not if it is
    /// over, which nothing undoes.
    fn goes_on(&self, ends: [Option<&Arc<Deadline>>; 2]) -> bool {
        let stays = |end| ends.into_iter().flatten().any(|other| Arc::ptr_eq(other, end));

        !self.is_over() && self.ends().all(|end| stays(end) || end.take_back())
    }

    fn ends(&self) -> impl Iterator<Item = &Arc<Deadline>> {
        self.own_end.iter().chain(&self.peer_end)
    }
}

/// The strands of one peer, those of the newest keys first.
#[derive(Debug)]
pub struct Succession {
    current: Strand,
    older: Box<[Older]>,
    /// Whether all older ones are over or only receive, so that nothing is sent with them.
    is_settled: AtomicBool,
    /// The slot of the strand that has begun the last handshake, while there are several.
    last_asker: AtomicU32,
    /// What is still known of strands that there were before.
    before: SessionState,
}

impl Succession {
    /// `older` in the order of preference.
    #[must_use]
    pub fn new(current: Strand, older: Vec<Older>) -> Self {
        let is_settled = AtomicBool::new(older.iter().all(|older| older.is_receive_only));
        let last_asker = AtomicU32::new(u32::MAX);
        let before = SessionState::default();

        Self { current, older: older.into_boxed_slice(), is_settled, last_asker, before }
    }

    /// Takes the place of `before` and remembers its last handshake.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        Self { before: before.session().over(), ..self }
    }

    /// The same, where the first handshake is begun with the keys that `before`, which has the same strands in the same
    /// order, has a session with: those are known to the peer.
    #[must_use]
    pub fn asking_first_as(self, before: &Self) -> Self {
        let sealing = before.sealing().map(|strand| strand.slot);
        let place = before.strands().position(|strand| Some(strand.slot) == sealing);
        let previous = place.and_then(|place| self.slots().nth(place.checked_sub(1)?));
        self.last_asker.store(previous.unwrap_or(u32::MAX), Ordering::Relaxed);

        self
    }

    /// The strand of the newest keys.
    #[must_use]
    pub const fn current(&self) -> &Strand {
        &self.current
    }

    /// The others, in the order of preference.
    #[must_use]
    pub const fn older(&self) -> &[Older] {
        &self.older
    }

    /// All of them, in the order of preference.
    pub fn strands(&self) -> impl Iterator<Item = &Strand> {
        std::iter::once(&self.current).chain(self.older.iter().map(|older| &older.strand))
    }

    /// Their slots.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.strands().map(|strand| strand.slot)
    }

    /// Whether only the newest keys are in use.
    #[must_use]
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed)
    }

    /// Whether there are strands whose end had come when somebody last looked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.older.iter().any(Older::is_over)
    }

    /// The same strands but those.
    #[must_use]
    pub fn without_ended(&self) -> Self {
        let older = self.older.iter().filter(|older| !older.is_over());

        Self::new(self.current.clone(), older.cloned().collect())
    }

    /// The strand of these keys, ours and the peer's, if it may go on with `ends`; those that it has beside
    /// them are taken back. Not one that only receives, unless it `is_receive_only` from now on.
    #[must_use]
    pub fn going_on(
        &self,
        own: PublicKey,
        keys: &PeerKeys,
        ends: [Option<&Arc<Deadline>>; 2],
        is_receive_only: bool,
    ) -> Option<&Strand> {
        let is_it = |strand: &Strand| strand.own == own && strand.keys == *keys;
        if is_it(&self.current) {
            return Some(&self.current);
        }
        let mut older = self
            .older
            .iter()
            .filter(|older| is_it(&older.strand) && (is_receive_only || !older.is_receive_only));

        older.find(|older| older.goes_on(ends)).map(|older| &older.strand)
    }

    /// Whether the peer has a newer session than that of `strand` and may have forgotten this one: it keeps no more
    /// than two or three, whatever keys they came of.
    #[must_use]
    pub fn is_superseded(&self, strand: &Strand) -> bool {
        if self.older.is_empty() {
            return false;
        }
        let session = strand.tunnel.session();
        let mut others = self.strands().filter(|other| other.slot != strand.slot);

        session.is_established
            && others.any(|other| {
                let other = other.tunnel.session();
                other.is_established && other.last_handshake > session.last_handshake
            })
    }

    /// Ends for sending what is to receive only. What is staged there waits for the newest keys.
    pub fn end_sending(&self) {
        for older in self.older.iter().filter(|older| older.is_receive_only && !older.is_over()) {
            self.current.tunnel.adopt(older.strand.tunnel.end_sending());
        }
    }

    /// See [`Tunnel::seal`].
    #[inline]
    pub fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        if !self.is_settled() {
            for strand in self.usable() {
                if let Some(sealed) = strand.tunnel.seal_with_session(segments, outer, out, now) {
                    return sealed;
                }
            }
            let overflow = self.current.tunnel.stage(segments, outer.ecn, now);
            if !self.is_asking(now) {
                let strand = self.next_asker();
                strand.tunnel.initiate(outer.path, out, now);
                self.note_asker(strand);
            }
            return Sealed { overflow, ..Sealed::default() };
        }

        self.current.tunnel.seal(segments, outer, out, now)
    }

    /// See [`Tunnel::reserve`]. With keys before the newest, `None`: that passes.
    #[inline]
    pub fn reserve(&self, segments: &Segments<'_>, now: Instant) -> Option<Reserved> {
        if !self.is_settled() {
            return None;
        }

        self.current.tunnel.reserve(segments, now)
    }

    /// See [`Tunnel::seal_staged`]; it does not matter which strand the packets waited for.
    pub fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed {
        let Some(sealing) = self.sealing() else {
            return self.current.tunnel.seal_staged(path, out, now);
        };
        for strand in self.strands().filter(|strand| strand.slot != sealing.slot) {
            sealing.tunnel.adopt(strand.tunnel.take_staged());
        }

        sealing.tunnel.seal_staged(path, out, now)
    }

    /// See [`Tunnel::open`]. The run is for a session in `slot`.
    #[inline]
    pub fn open(
        &self,
        slot: u32,
        run: &[u8],
        stride: usize,
        out: &mut PacketBatch,
        now: Instant,
    ) -> Opened {
        if slot == self.current.slot {
            let mut opened = self.current.tunnel.open(run, stride, out, now);
            opened.has_staged |= opened.authentic > 0 && self.has_older_staged();
            return opened;
        }
        let Some(older) = self.older.iter().find(|older| older.strand.slot == slot) else {
            return Opened::default();
        };

        let mut opened = older.strand.tunnel.open(run, stride, out, now);
        if opened.authentic > 0 {
            opened.has_staged |= self.has_staged();
        }

        opened
    }

    /// See [`Tunnel::opening`]. The run is for a session in `slot`.
    #[inline]
    pub fn opening(&self, slot: u32, run: &[u8], stride: usize, now: Instant) -> Option<Opening> {
        self.in_slot(slot)?.tunnel.opening(run, stride, now)
    }

    /// See [`Tunnel::admit`]. The run was for a session in `slot`, which may be gone by now.
    pub fn admit(
        &self,
        slot: u32,
        opening: &Opening,
        (run, bytes): (&mut OpenedRun, &[u8]),
        now: Instant,
    ) -> Opened {
        let Some(strand) = self.in_slot(slot) else {
            return Opened { no_session: run.datagrams(), ..Opened::default() };
        };
        let mut opened = strand.tunnel.admit(opening, run, bytes, now);
        opened.has_staged |= opened.authentic > 0 && self.has_staged();

        opened
    }

    /// Answers an initiation that `key` sent to `own`. See [`Tunnel::handle_handshake`].
    ///
    /// # Errors
    ///
    /// Why the message was dropped.
    pub fn handle_initiation(
        &self,
        (own, key): (PublicKey, PublicKey),
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<Whereabouts, DropReason> {
        for strand in self.usable() {
            if (strand.own, strand.keys.public_key) == (own, key) {
                return strand.tunnel.handle_handshake(message, path, out, now);
            }
            if strand.tunnel.session().is_established {
                break;
            }
        }

        Err(DropReason::Unauthenticated)
    }

    /// Takes a message of a handshake that began in `slot`. See [`Tunnel::handle_handshake`].
    ///
    /// # Errors
    ///
    /// Why the message was dropped.
    pub fn handle_answer(
        &self,
        slot: u32,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<Whereabouts, DropReason> {
        let strand = self.in_slot(slot).ok_or(DropReason::UnknownIndex)?;

        strand.tunnel.handle_handshake(message, path, out, now)
    }

    /// See [`Tunnel::handle_timeout`].
    pub fn handle_timeout(
        &self,
        upkeep: Upkeep,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        self.close_ended(now);
        if self.is_settled() {
            return self.current.tunnel.handle_timeout(upkeep, out, now);
        }

        let sealing = self.sealing().map(|strand| strand.slot);
        let is_wanted = upkeep.persistent_keepalive.is_some() || self.has_staged();
        let mut may_initiate = upkeep.may_initiate && !self.is_asking(now);
        let mut timed_out = TimedOut::default();
        for strand in self.in_turn() {
            let is_sealing = sealing == Some(strand.slot);
            // Where another strand has a session this one is not renewed, and where no session is wanted, none is
            // begun with keys from before.
            let is_used =
                is_sealing || strand.slot == self.current.slot || (sealing.is_none() && is_wanted);
            let path = upkeep.path.filter(|_| is_used);
            let persistent_keepalive =
                upkeep.persistent_keepalive.filter(|_| is_sealing || sealing.is_none());
            let upkeep = Upkeep { path, persistent_keepalive, may_initiate };
            timed_out.given_up += strand.tunnel.handle_timeout(upkeep, out, now).given_up;
            // The peer learns our keys at any moment, long after a tunnel gives up.
            let is_awaited = !is_sealing && (sealing.is_some() || self.has_staged());
            if let Some(path) = path.filter(|_| may_initiate && is_awaited) {
                strand.tunnel.initiate(path, out, now);
            }
            if may_initiate && strand.tunnel.is_asking(now) {
                self.note_asker(strand);
                may_initiate = false;
            }
        }
        timed_out.has_staged = self.sealing().is_some() && self.has_staged();

        timed_out
    }

    /// Closes the strands whose end has come.
    fn close_ended(&self, now: Instant) {
        if self.older.iter().all(Older::is_closed) {
            return;
        }
        for older in self.older.iter().filter(|older| !older.is_closed() && older.has_ended(now)) {
            self.current.tunnel.adopt(older.close());
        }
        if self.older.iter().all(|older| older.is_receive_only || older.is_over()) {
            self.is_settled.store(true, Ordering::Relaxed);
        }
    }

    /// Those that may send, from the one that begins the next handshake.
    fn in_turn(&self) -> impl Iterator<Item = &Strand> {
        let last = self.last_asker.load(Ordering::Relaxed);
        let count = self.usable().count();
        let last = self.usable().position(|strand| strand.slot == last);

        self.usable().cycle().skip(last.map_or(0, |last| last + 1)).take(count)
    }

    /// The strand that begins the next handshake.
    fn next_asker(&self) -> &Strand {
        self.in_turn().next().unwrap_or(&self.current)
    }

    /// Whether a handshake is under way.
    fn is_asking(&self, now: Instant) -> bool {
        self.usable().any(|strand| strand.tunnel.is_asking(now))
    }

    fn note_asker(&self, strand: &Strand) {
        self.last_asker.store(strand.slot, Ordering::Relaxed);
    }

    /// See [`Tunnel::initiate`]: with the newest keys, unless a handshake with others is under way.
    pub fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        if self.is_settled() || !self.is_asking(now) {
            self.note_asker(&self.current);
            self.current.tunnel.initiate(path, out, now);
        }
    }

    /// See [`Tunnel::restart`]: with the keys of the session, if there is one.
    pub fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let strand = self.sealing().unwrap_or_else(|| self.next_asker());
        strand.tunnel.restart(path, out, now);
        self.note_asker(strand);
    }

    /// See [`Tunnel::is_dormant`]. Keys before the newest have an end, for which somebody must look.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.older.iter().all(Older::is_over) && self.current.tunnel.is_dormant()
    }

    /// See [`Tunnel::session`]: of all strands together. A handshake stays the last one when its session has
    /// ended, and when its strand has.
    #[must_use]
    pub fn session(&self) -> SessionState {
        let mut all = self.current.tunnel.session();
        for session in self.older.iter().map(Older::session).chain([self.before]) {
            all.is_established |= session.is_established;
            all.staged += session.staged;
            if session.last_handshake > all.last_handshake {
                all.last_handshake = session.last_handshake;
                all.rtt = session.rtt;
            }
        }

        all
    }

    /// The strand that seals, if any can.
    fn sealing(&self) -> Option<&Strand> {
        self.usable().find(|strand| strand.tunnel.session().is_established)
    }

    /// Those that may send, in the order of preference.
    fn usable(&self) -> impl Iterator<Item = &Strand> + Clone {
        let older = self.older.iter().filter(|older| !older.is_receive_only && !older.is_over());

        std::iter::once(&self.current).chain(older.map(|older| &older.strand))
    }

    fn in_slot(&self, slot: u32) -> Option<&Strand> {
        self.strands().find(|strand| strand.slot == slot)
    }

    fn has_staged(&self) -> bool {
        self.current.tunnel.has_staged() || self.has_older_staged()
    }

    /// What is over was closed, and has nothing.
    fn has_older_staged(&self) -> bool {
        let mut older = self.older.iter().filter(|older| !older.is_over());

        older.any(|older| older.strand.tunnel.has_staged())
    }
}
