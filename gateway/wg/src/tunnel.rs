//! The seam between the engine and a WireGuard implementation: batch in, batch out.
//!
//! A [`Tunnel`] is the protocol state of one peer under one key of ours, an [`Identity`] is such a key.
//! Both directions call the same tunnel from their own threads; how it keeps them apart is its
//! business. Time comes in as `now`.
//!
//! Keys never change within a tunnel: other keys take another tunnel, and
//! [`Succession`](super::Succession) leads from one to the next.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::OpenedRun;
use super::Opening;
use super::PresharedKey;
use super::PublicKey;
use super::Slot;
use super::Staged;
use super::native::{AcceptedByPeer, Epoch};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// The most packets of one peer that wait for a handshake.
pub const MAX_STAGED_PACKETS: usize = 256;

/// How long an initiation may be on its way before another one is sent (whitepaper, section 6.1).
pub(super) const REKEY_TIMEOUT: Duration = Duration::from_secs(5);

/// The protocol state of one peer.
pub trait Tunnel: Send + Sync + fmt::Debug {
    /// Seals the segments of a frame into `out`, until either is used up.
    ///
    /// Without a session the segments are staged and a handshake is begun. If `out` is full,
    /// segments are left: empty it and call again.
    fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed;

    /// As [`Self::seal`] if there is a session. Without one nothing happens, and the answer is `None`.
    fn seal_with_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Option<Sealed>;

    /// Takes what it needs to seal all of `segments` later, on whatever thread: what is sealed afterwards
    /// has later counters.
    ///
    /// `None`, and nothing has happened, if this cannot be done in two steps or not at once: without a
    /// session, with packets staged, near the end of a session. Then [`Self::seal`] is to be called, after
    /// everything that was reserved before is on its way.
    fn reserve(&self, _segments: &Segments<'_>, _now: Instant) -> Option<Reserved> {
        None
    }

    /// Seals what was staged, if there is a session by now.
    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed;

    /// Opens a run of transport data messages, each `stride` bytes long but the last one, and
    /// appends the packets to `out`.
    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened;

    /// Takes what it needs to open `run` later, on whatever thread. What was opened is handed to
    /// [`Self::admit`] then, behind everything that was received before.
    ///
    /// `None` if this cannot be done in two steps, or if there is no session for it. Then [`Self::open`] is
    /// to be called, after everything that was received before is admitted.
    fn opening(&self, _run: &[u8], _stride: usize, _now: Instant) -> Option<Opening> {
        None
    }

    /// Does with a run that was opened in `bytes` what [`Self::open`] does besides. Its packets are what the
    /// run says afterwards.
    fn admit(
        &self,
        _opening: &Opening,
        run: &mut OpenedRun,
        _bytes: &[u8],
        _now: Instant,
    ) -> Opened {
        Opened { no_session: run.datagrams(), ..Opened::default() }
    }

    /// Takes a handshake message or a cookie reply, and writes what answers it to `out`. Says what a
    /// handshake message tells of where its sender is.
    ///
    /// # Errors
    ///
    /// Why the message was dropped.
    fn handle_handshake(
        &self,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<Whereabouts, DropReason>;

    /// Time has advanced to `now`: handshakes, keepalives, expiry, as far as `upkeep` allows.
    fn handle_timeout(&self, upkeep: Upkeep, out: &mut TransmitBatch, now: Instant) -> TimedOut;

    /// Whether [`Self::handle_timeout`] without a persistent keepalive would find nothing to do, and will not
    /// before something else is called that gives it something. As far as can be said without waiting for a lock.
    fn is_dormant(&self) -> bool {
        false
    }

    /// Whether a handshake is under way: a message of it was sent within `REKEY_TIMEOUT` (5 s), and no session has
    /// come of it yet.
    fn is_asking(&self, now: Instant) -> bool;

    /// Begins a handshake unless one is under way.
    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant);

    /// Begins a handshake even if one is under way, which may still be answered.
    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant);

    /// Stages the segments of a frame and begins no handshake. Returns how many packets were dropped because too
    /// many are staged.
    fn stage(&self, segments: &mut Segments<'_>, ecn: Ecn, now: Instant) -> u64;

    /// Whether anything is staged, as far as can be said without waiting for anybody.
    fn has_staged(&self) -> bool;

    /// Gives away what is staged.
    fn take_staged(&self) -> Staged;

    /// Stages what another tunnel gave away.
    fn adopt(&self, staged: Staged);

    /// Ends the sessions for sending, and every handshake, and gives away what is staged. What the peer sends in
    /// these sessions is still opened until they expire, unless the implementation cannot tell the directions
    /// apart: that closes the tunnel.
    fn end_sending(&self) -> Staged {
        self.close()
    }

    /// Wipes its keys and sessions, lets go of ours, and gives away what is staged. From now on nothing is
    /// sealed or opened, whoever still holds the tunnel.
    fn close(&self) -> Staged;

    /// What there is to tell about the session.
    fn session(&self) -> SessionState;
}

/// The keys of a session, for who seals with counters that were taken before.
pub trait SealingKeys: Send + Sync {
    /// Seals the segments into `out`, until either is used up, for a device with this MTU. Their counters
    /// begin at `first_counter`, and nothing else is ever sealed with those.
    fn seal_reserved(
        &self,
        first_counter: u64,
        segments: &mut Segments<'_>,
        way: (Outer, u16),
        out: &mut TransmitBatch,
    ) -> Sealed;
}

/// The right to seal the segments of one frame, once: keys, and counters that nobody else has.
pub struct Reserved {
    keys: Arc<dyn SealingKeys>,
    first_counter: u64,
    mtu: u16,
    sealed: Sealed,
}

impl Reserved {
    /// `sealed` is what will have become of the segments.
    pub(super) fn new(
        keys: Arc<dyn SealingKeys>,
        first_counter: u64,
        mtu: u16,
        sealed: Sealed,
    ) -> Self {
        Self { keys, first_counter, mtu, sealed }
    }

    /// What will have become of the segments, if there is room for them.
    #[must_use]
    pub const fn sealed(&self) -> Sealed {
        self.sealed
    }

    /// Seals the segments that this was reserved for into `out`, and lets go of the keys.
    pub fn seal(
        self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
    ) -> Sealed {
        self.keys.seal_reserved(self.first_counter, segments, (outer, self.mtu), out)
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("sealed", &self.sealed).finish_non_exhaustive()
    }
}

/// One key of ours: recognises who begins a handshake, and creates the state for a peer.
///
/// Wipes the key when it is dropped and all its tunnels are dropped or closed.
pub trait Identity: Send + Sync + fmt::Debug {
    /// Our public key.
    fn public_key(&self) -> PublicKey;

    /// The state for a peer, which stays where it is: whoever moved it would leave copies of secrets behind. No
    /// other live tunnel has `slot`; every receiver index of the tunnel belongs to it.
    fn tunnel(&self, keys: &PeerKeys, slot: Slot) -> Arc<dyn Tunnel>;

    /// Whether its tunnels take their receiver indices from their [`Slot`], so that they may be
    /// [secret](super::Indices::secret). Otherwise slots stand in clear.
    fn takes_indices(&self) -> bool;

    /// Who sends this initiation. Under load the answer may be a cookie reply, which is written to
    /// `out`.
    ///
    /// # Errors
    ///
    /// Why the message was dropped: [`DropReason::Unauthenticated`] if it is for another key than
    /// this, which its first MAC tells.
    fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<Introduction, DropReason>;

    /// Time has advanced to `now`.
    fn handle_timeout(&self, now: Instant);

    /// The clock of the wall says `epoch`, which may be another time than was to be expected.
    fn handle_wall_clock(&self, _epoch: Epoch) {}

    /// Whoever had this key before may have begun sessions until `epoch`: what is begun now is to be dated
    /// later, or peers take it for old. An implementation that dates by its own clock does nothing.
    fn continue_after(&self, _epoch: Epoch) {}

    /// Which initiations are answered, and how ours are dated, is remembered in `accepted` from now on, with those
    /// of all other keys that do so. To be called before there are tunnels. An implementation whose tunnels remember it
    /// themselves does nothing.
    fn remember_in(&self, _accepted: &AcceptedByPeer) {}
}

/// What an initiation tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Introduction {
    /// This peer says that it has sent it.
    By(PublicKey),
    /// Nothing: there are too many, and its sender may have been sent a cookie.
    TurnedAway,
}

/// What passing time may make a tunnel send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Where to send to. Without it nothing is sent.
    pub path: Option<Path>,
    /// A keepalive is sent, or a session is asked for, when nothing authenticated has gone either way for so long;
    /// zero is now.
    pub persistent_keepalive: Option<Duration>,
    /// Whether a handshake may begin.
    pub may_initiate: bool,
}

/// What a tunnel must know about its peer. A change of any of it takes a new tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerKeys {
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Mixed into the handshake if present.
    pub preshared_key: Option<PresharedKey>,
}

/// What became of packets on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Packets sealed.
    pub packets: u64,
    /// Bytes of the datagrams that carry them.
    pub bytes: u64,
    /// Packets dropped because too many are staged.
    pub overflow: u64,
}

impl Sealed {
    /// One more datagram of so many bytes.
    #[inline]
    pub(super) fn add(&mut self, datagram_len: usize) {
        self.packets += 1;
        self.bytes += as_u64(datagram_len);
    }
}

/// What became of a run of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Packets appended.
    pub packets: u64,
    /// Datagrams that were authentic: packets and keepalives.
    pub authentic: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keepalives among them.
    pub keepalives: u64,
    /// Datagrams without a session for their receiver index.
    pub no_session: u64,
    /// Datagrams seen before, or behind the replay window.
    pub replayed: u64,
    /// Datagrams with a wrong tag.
    pub unauthenticated: u64,
    /// Authentic, but no IP packet, or longer than the batch has room for.
    pub malformed: u64,
    /// Something newer had arrived before, as far as the implementation can tell: where these come from is
    /// where the peer was.
    pub is_late: bool,
    /// There is a session now, and packets wait for it: call [`Tunnel::seal_staged`].
    pub has_staged: bool,
}

/// What an authentic message of a handshake tells of where its sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It is where the message came from.
    Here,
    /// It was heard since, perhaps elsewhere: by packets that may have overtaken the message. It is where they
    /// came from, and the next one will say so again.
    Unknown,
}

/// What the passing of time did to a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedOut {
    /// Staged packets that were given up.
    pub given_up: u64,
    /// There is a session, and packets wait for it: call [`Tunnel::seal_staged`].
    pub has_staged: bool,
}

/// What there is to tell about a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// Whether packets can be sealed right away.
    pub is_established: bool,
    /// When the last handshake completed.
    pub last_handshake: Option<Instant>,
    /// Time between our last handshake message that was answered and its answer.
    pub rtt: Option<Duration>,
    /// Packets that wait for a handshake.
    pub staged: usize,
}

impl SessionState {
    /// What is left of it when the session has ended and nothing waits any more.
    #[must_use]
    pub fn over(self) -> Self {
        Self { is_established: false, staged: 0, ..self }
    }
}
