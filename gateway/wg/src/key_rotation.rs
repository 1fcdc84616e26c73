//! Key rotation without packet loss: make before break.
//!
//! A peer usually has one [`KeyedTunnel`], for the keys in the configuration. When our key or the peer's changes, the
//! two ends do not switch at the same moment: each learns the new key from its own configuration. So the tunnels of
//! the previous keys stay for a grace period, one for each combination of keys that the peer may use. Tunnels are
//! ordered from the newest keys to the oldest:
//!
//! - The first tunnel with a session seals. All of them open.
//! - While an older tunnel has a session, which is renewed meanwhile, the tunnel of the newest keys begins handshakes
//!   until one is answered. While no tunnel has a session, handshakes begin for packets and keepalives only, as
//!   always.
//! - One handshake is under way at a time, with any keys. The tunnels that want one alternate: a peer discards an
//!   answered handshake when it answers the next, and does not answer initiations in quick succession.
//! - An initiation for an older tunnel is answered until a newer one has a session: from then on the peer has the
//!   newer keys, and both ends must use the same. An initiation does not name its preshared key: it is answered with
//!   the newest, which a peer without that key cannot read. Until it has the key, we renew the session with the older
//!   one.
//! - A key of ours may stop sending at once: then its tunnels only open what the peer still sends.
//! - At the end of the grace period the older tunnels are closed, which wipes their keys, and then removed.

mod deadline;
mod older_tunnel;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::tunnel::{
    EndpointUpdate, Opened, PeerKeys, Reserved, Sealed, SessionState, TimedOut, TimerPolicy, Tunnel,
};
use super::{OpenedRun, Opening, PathProbe, PublicKey};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::path::Path;
use strait_packet::segment::Segments;

pub use deadline::Deadline;
pub use older_tunnel::OlderTunnel;

/// How long previous keys stay in use: the whitepaper's `REJECT_AFTER_TIME`.
///
/// Every session that existed at the change ends within it, so only a peer that renewed its session with an older key
/// still depends on one. It also leaves a minute between the latest rekey of such a session and its end.
pub const GRACE: Duration = Duration::from_secs(180);

/// How many previous keys are kept at once. More changes than this within a grace period lose the sessions of the
/// oldest.
pub const MAX_OLDER_KEYS: usize = 3;

/// A tunnel with its keys and its slot.
#[derive(Clone, Debug)]
pub struct KeyedTunnel {
    /// Our key.
    pub own: PublicKey,
    /// The peer's keys.
    pub keys: PeerKeys,
    /// Its slot in receiver indices.
    pub slot: u32,
    /// The protocol state.
    pub tunnel: Arc<dyn Tunnel>,
}

/// The tunnels of one peer, those of the newest keys first.
#[derive(Debug)]
pub struct KeyRotation {
    current: KeyedTunnel,
    older: Box<[OlderTunnel]>,
    /// Whether all older ones have ended or only receive, so that nothing is sent with them.
    is_settled: AtomicBool,
    /// The slot of the tunnel that began the last handshake, while there are several.
    last_initiator: AtomicU32,
    /// The last state of removed tunnels.
    removed: SessionState,
}

impl KeyRotation {
    /// `older` in the order of preference.
    #[must_use]
    pub fn new(current: KeyedTunnel, older: Vec<OlderTunnel>) -> Self {
        let is_settled = AtomicBool::new(older.iter().all(|older| older.is_receive_only));
        let last_initiator = AtomicU32::new(u32::MAX);
        let removed = SessionState::default();

        Self { current, older: older.into_boxed_slice(), is_settled, last_initiator, removed }
    }

    /// The same, with the last handshake of `previous`, which it replaces.
    #[must_use]
    pub fn with_last_handshake_of(self, previous: &Self) -> Self {
        Self { removed: previous.session().ended(), ..self }
    }

    /// The same, where the first handshake uses the keys of the session of `previous`: the peer has those. `previous`
    /// has tunnels for the same keys in the same order.
    #[must_use]
    pub fn starting_with_session_keys_of(self, previous: &Self) -> Self {
        let sealing = previous.sealing().map(|keyed| keyed.slot);
        let place = previous.keyed_tunnels().position(|keyed| Some(keyed.slot) == sealing);
        let last = place.and_then(|place| self.slots().nth(place.checked_sub(1)?));
        self.last_initiator.store(last.unwrap_or(u32::MAX), Ordering::Relaxed);

        self
    }

    /// The tunnel of the newest keys.
    #[must_use]
    pub const fn current(&self) -> &KeyedTunnel {
        &self.current
    }

    /// The others, in the order of preference.
    #[must_use]
    pub const fn older(&self) -> &[OlderTunnel] {
        &self.older
    }

    /// All of them, in the order of preference.
    pub fn keyed_tunnels(&self) -> impl Iterator<Item = &KeyedTunnel> {
        std::iter::once(&self.current).chain(self.older.iter().map(|older| &older.keyed))
    }

    /// Their slots.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.keyed_tunnels().map(|keyed| keyed.slot)
    }

    /// Whether only the newest keys are in use.
    #[must_use]
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed)
    }

    /// Whether a tunnel had ended at the last timeout.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.older.iter().any(OlderTunnel::has_ended)
    }

    /// The tunnels that have not ended.
    #[must_use]
    pub fn without_ended(&self) -> Self {
        let older = self.older.iter().filter(|older| !older.has_ended());

        Self::new(self.current.clone(), older.cloned().collect())
    }

    /// The tunnel of these keys, ours and the peer's, if it can be used with `deadlines`; its other deadlines are
    /// revoked. A tunnel that only receives is returned only if it `is_receive_only` again.
    #[must_use]
    pub fn reuse(
        &self,
        own: PublicKey,
        keys: &PeerKeys,
        deadlines: [Option<&Arc<Deadline>>; 2],
        is_receive_only: bool,
    ) -> Option<&KeyedTunnel> {
        let is_it = |keyed: &KeyedTunnel| keyed.own == own && keyed.keys == *keys;
        if is_it(&self.current) {
            return Some(&self.current);
        }
        let mut older = self
            .older
            .iter()
            .filter(|older| is_it(&older.keyed) && (is_receive_only || !older.is_receive_only));

        older.find(|older| older.try_reuse(deadlines)).map(|older| &older.keyed)
    }

    /// Whether the peer has a newer session than that of `keyed`, and may have dropped this one: it keeps two or
    /// three, with any keys.
    #[must_use]
    pub fn is_superseded(&self, keyed: &KeyedTunnel) -> bool {
        if self.older.is_empty() {
            return false;
        }
        let session = keyed.tunnel.session();
        let mut others = self.keyed_tunnels().filter(|other| other.slot != keyed.slot);

        session.is_established
            && others.any(|other| {
                let other = other.tunnel.session();
                other.is_established && other.last_handshake > session.last_handshake
            })
    }

    /// Stops sending with the tunnels that only receive. Their staged packets wait for the newest keys.
    pub fn end_sending(&self) {
        for older in self.older.iter().filter(|older| older.is_receive_only && !older.has_ended()) {
            self.current.tunnel.append_staged(older.keyed.tunnel.end_sending());
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
            for keyed in self.usable() {
                if let Some(sealed) = keyed.tunnel.seal_with_session(segments, outer, out, now) {
                    return sealed;
                }
            }
            let overflow = self.current.tunnel.stage(segments, outer.ecn, now);
            if !self.is_handshaking(now) {
                let keyed = self.next_initiator();
                keyed.tunnel.initiate(outer.path, out, now);
                self.set_last_initiator(keyed);
            }
            return Sealed { overflow, ..Sealed::default() };
        }

        self.current.tunnel.seal(segments, outer, out, now)
    }

    /// See [`Tunnel::reserve`]. `None` until the rotation has settled.
    #[inline]
    pub fn reserve(&self, segments: &Segments<'_>, now: Instant) -> Option<Reserved> {
        if !self.is_settled() {
            return None;
        }

        self.current.tunnel.reserve(segments, now)
    }

    /// See [`Tunnel::seal_staged`]: seals the staged packets of all tunnels with the first that has a session.
    pub fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed {
        let Some(sealing) = self.sealing() else {
            return self.current.tunnel.seal_staged(path, out, now);
        };
        for keyed in self.keyed_tunnels().filter(|keyed| keyed.slot != sealing.slot) {
            sealing.tunnel.append_staged(keyed.tunnel.take_staged());
        }

        sealing.tunnel.seal_staged(path, out, now)
    }

    /// See [`Tunnel::seal_probe`].
    pub fn seal_probe(
        &self,
        probe: PathProbe,
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> u64 {
        self.sealing().map_or(0, |keyed| keyed.tunnel.seal_probe(probe, path, out, now))
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
        let Some(older) = self.older.iter().find(|older| older.keyed.slot == slot) else {
            return Opened::default();
        };

        let mut opened = older.keyed.tunnel.open(run, stride, out, now);
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

    /// See [`Tunnel::admit`]. The run was for a session in `slot`, whose tunnel may have been removed.
    pub fn admit(
        &self,
        slot: u32,
        opening: &Opening,
        run: &mut OpenedRun,
        bytes: &[u8],
        now: Instant,
    ) -> Opened {
        let Some(keyed) = self.in_slot(slot) else {
            return Opened { no_session: run.datagrams(), ..Opened::default() };
        };
        let mut opened = keyed.tunnel.admit(opening, run, bytes, now);
        opened.has_staged |= opened.authentic > 0 && self.has_staged();

        opened
    }

    /// Answers an initiation of the peer with the key `sender` to our key `own`. See [`Tunnel::handle_handshake`].
    ///
    /// # Errors
    ///
    /// Why the message was dropped.
    pub fn handle_initiation(
        &self,
        own: PublicKey,
        sender: PublicKey,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<EndpointUpdate, DropReason> {
        for keyed in self.usable() {
            if (keyed.own, keyed.keys.public_key) == (own, sender) {
                return keyed.tunnel.handle_handshake(message, path, out, now);
            }
            if keyed.tunnel.session().is_established {
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
    ) -> Result<EndpointUpdate, DropReason> {
        let keyed = self.in_slot(slot).ok_or(DropReason::UnknownIndex)?;

        keyed.tunnel.handle_handshake(message, path, out, now)
    }

    /// See [`Tunnel::handle_timeout`].
    pub fn handle_timeout(
        &self,
        policy: TimerPolicy,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        self.close_ended(now);
        if self.is_settled() {
            return self.current.tunnel.handle_timeout(policy, out, now);
        }

        let sealing = self.sealing().map(|keyed| keyed.slot);
        let is_wanted = policy.persistent_keepalive.is_some() || self.has_staged();
        let mut may_initiate = policy.may_initiate && !self.is_handshaking(now);
        let mut timed_out = TimedOut::default();
        for keyed in self.round_robin() {
            let is_sealing = sealing == Some(keyed.slot);
            // While another tunnel has a session this one is not renewed, and while no session is wanted, none is
            // begun with older keys.
            let is_used =
                is_sealing || keyed.slot == self.current.slot || (sealing.is_none() && is_wanted);
            let path = policy.path.filter(|_| is_used);
            let persistent_keepalive =
                policy.persistent_keepalive.filter(|_| is_sealing || sealing.is_none());
            let policy = TimerPolicy { path, persistent_keepalive, may_initiate };
            timed_out.given_up += keyed.tunnel.handle_timeout(policy, out, now).given_up;
            // The peer may get our keys at any time, also long after a tunnel has given up.
            let is_awaited = !is_sealing && (sealing.is_some() || self.has_staged());
            if let Some(path) = path.filter(|_| may_initiate && is_awaited) {
                keyed.tunnel.initiate(path, out, now);
            }
            if may_initiate && keyed.tunnel.is_handshaking(now) {
                self.set_last_initiator(keyed);
                may_initiate = false;
            }
        }
        timed_out.has_staged = self.sealing().is_some() && self.has_staged();

        timed_out
    }

    /// Closes the tunnels that have ended by `now`.
    fn close_ended(&self, now: Instant) {
        if self.older.iter().all(OlderTunnel::is_closed) {
            return;
        }
        for older in
            self.older.iter().filter(|older| !older.is_closed() && older.handle_timeout(now))
        {
            self.current.tunnel.append_staged(older.close());
        }
        if self.older.iter().all(|older| older.is_receive_only || older.has_ended()) {
            self.is_settled.store(true, Ordering::Relaxed);
        }
    }

    /// The tunnels that may send, in rotation, beginning with the one whose handshake is next.
    fn round_robin(&self) -> impl Iterator<Item = &KeyedTunnel> {
        let last = self.last_initiator.load(Ordering::Relaxed);
        let count = self.usable().count();
        let last = self.usable().position(|keyed| keyed.slot == last);

        self.usable().cycle().skip(last.map_or(0, |last| last + 1)).take(count)
    }

    /// The tunnel that begins the next handshake.
    fn next_initiator(&self) -> &KeyedTunnel {
        self.round_robin().next().unwrap_or(&self.current)
    }

    /// Whether a handshake is under way.
    pub fn is_handshaking(&self, now: Instant) -> bool {
        self.usable().any(|keyed| keyed.tunnel.is_handshaking(now))
    }

    fn set_last_initiator(&self, keyed: &KeyedTunnel) {
        self.last_initiator.store(keyed.slot, Ordering::Relaxed);
    }

    /// See [`Tunnel::initiate`]: with the newest keys, unless a handshake with others is under way.
    pub fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        if self.is_settled() || !self.is_handshaking(now) {
            self.set_last_initiator(&self.current);
            self.current.tunnel.initiate(path, out, now);
        }
    }

    /// See [`Tunnel::restart`]: with the keys of the session, if there is one.
    pub fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant) {
        let keyed = self.sealing().unwrap_or_else(|| self.next_initiator());
        keyed.tunnel.restart(path, out, now);
        self.set_last_initiator(keyed);
    }

    /// See [`Tunnel::is_dormant`]. While older tunnels have not ended, timeouts must check their deadlines.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.older.iter().all(OlderTunnel::has_ended) && self.current.tunnel.is_dormant()
    }

    /// See [`Tunnel::session`]: of all tunnels together. The last handshake is kept when its session or its tunnel
    /// has ended.
    #[must_use]
    pub fn session(&self) -> SessionState {
        let mut all = self.current.tunnel.session();
        for session in self.older.iter().map(OlderTunnel::session).chain([self.removed]) {
            all.is_established |= session.is_established;
            all.staged += session.staged;
            if session.last_handshake > all.last_handshake {
                all.last_handshake = session.last_handshake;
                all.rtt = session.rtt;
            }
        }

        all
    }

    /// The tunnel that seals, if any has a session.
    fn sealing(&self) -> Option<&KeyedTunnel> {
        self.usable().find(|keyed| keyed.tunnel.session().is_established)
    }

    /// The tunnels that may send, in the order of preference.
    fn usable(&self) -> impl Iterator<Item = &KeyedTunnel> + Clone {
        let older = self.older.iter().filter(|older| !older.is_receive_only && !older.has_ended());

        std::iter::once(&self.current).chain(older.map(|older| &older.keyed))
    }

    fn in_slot(&self, slot: u32) -> Option<&KeyedTunnel> {
        self.keyed_tunnels().find(|keyed| keyed.slot == slot)
    }

    fn has_staged(&self) -> bool {
        self.current.tunnel.has_staged() || self.has_older_staged()
    }

    /// Ended tunnels were closed and have no staged packets.
    fn has_older_staged(&self) -> bool {
        let mut older = self.older.iter().filter(|older| !older.has_ended());

        older.any(|older| older.keyed.tunnel.has_staged())
    }
}
