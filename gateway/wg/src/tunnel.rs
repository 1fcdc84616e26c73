//! The seam between the engine and a WireGuard implementation: batch in, batch out.
//!
//! A [`Tunnel`] is the protocol state of one peer under one private key of ours; an [`Identity`] is such a key.
//! Both directions call the same tunnel from their own threads; synchronisation is the tunnel's. Time is passed in
//! as `now`.
//!
//! The keys of a tunnel never change: other keys take another tunnel, and [`KeyRotation`](super::KeyRotation)
//! switches from one to the next.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blake2::{Blake2s256, Digest as _};

use super::handover::TunnelState;
use super::{
    AcceptedByPeer, Epoch, IndexSlot, OpenedProbes, OpenedRun, Opening, PathProbe, PresharedKey,
    PublicKey, Staged,
};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;
use strait_packet::segment::Segments;

/// The most staged packets of one peer.
pub const MAX_STAGED_PACKETS: usize = 256;

/// How long an initiation may stay unanswered before the next one is sent (whitepaper, section 6.1).
pub(super) const REKEY_TIMEOUT: Duration = Duration::from_secs(5);

/// The protocol state of one peer.
pub trait Tunnel: Send + Sync + fmt::Debug {
    /// Seals the segments of a frame into `out`, until either is used up.
    ///
    /// Without a session the segments are staged and a handshake begins. If `out` is full, segments are left: empty
    /// it and call again.
    fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed;

    /// As [`Self::seal`] if there is a session. Without one nothing happens, and the result is `None`.
    fn seal_with_session(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Option<Sealed>;

    /// Reserves counters to seal all of `segments` later, on any thread. Packets sealed after this call have later
    /// counters.
    ///
    /// `None`, without any effect, if sealing cannot be deferred: without a session, with packets staged, near the
    /// end of a session, or if the implementation does not support it. Then call [`Self::seal`], after everything
    /// that was reserved before has been sent.
    fn reserve(&self, _segments: &Segments<'_>, _now: Instant) -> Option<Reserved> {
        None
    }

    /// Seals the staged packets if there is a session.
    fn seal_staged(&self, path: Path, out: &mut TransmitBatch, now: Instant) -> Sealed;

    /// Seals a probe of the path, or an answer to one. It counts as a keepalive. Returns the bytes of its datagram: 0
    /// without a session or room, or if the implementation does not support it.
    fn seal_probe(
        &self,
        _probe: PathProbe,
        _path: Path,
        _out: &mut TransmitBatch,
        _now: Instant,
    ) -> u64 {
        0
    }

    /// Opens a run of transport data messages, each `stride` bytes long but the last one, and
    /// appends the packets to `out`.
    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened;

    /// Takes the keys to open `run` later, on any thread. Pass the opened run to [`Self::admit`] then, in the order
    /// of arrival.
    ///
    /// `None` if there is no session for `run`, or if the implementation does not support it. Then call
    /// [`Self::open`], after everything that was received before is admitted.
    fn opening(&self, _run: &[u8], _stride: usize, _now: Instant) -> Option<Opening> {
        None
    }

    /// Does the rest of [`Self::open`] for a run that was opened in `bytes`: replay window, timers and counts.
    /// Afterwards `run` lists its packets.
    fn admit(
        &self,
        _opening: &Opening,
        run: &mut OpenedRun,
        _bytes: &[u8],
        _now: Instant,
    ) -> Opened {
        Opened { no_session: run.datagrams(), ..Opened::default() }
    }

    /// Handles a handshake message or a cookie reply, and writes the answer to `out`. Returns whether the endpoint of
    /// the peer is that of the message.
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
    ) -> Result<EndpointUpdate, DropReason>;

    /// Time has advanced to `now`: handshakes, keepalives and expiry, as far as `policy` allows.
    fn handle_timeout(
        &self,
        policy: TimerPolicy,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut;

    /// Whether [`Self::handle_timeout`] without a persistent keepalive has nothing to do until another method is
    /// called. Takes no lock, so `false` may be out of date.
    fn is_dormant(&self) -> bool {
        false
    }

    /// Whether a handshake is under way: one of its messages was sent within `REKEY_TIMEOUT` (5 s), and it has not
    /// completed.
    fn is_handshaking(&self, now: Instant) -> bool;

    /// Begins a handshake unless one is under way.
    fn initiate(&self, path: Path, out: &mut TransmitBatch, now: Instant);

    /// Begins a handshake even if one is under way; the earlier one may still complete.
    fn restart(&self, path: Path, out: &mut TransmitBatch, now: Instant);

    /// Stages the segments of a frame without beginning a handshake. Returns how many packets were dropped because
    /// too many are staged.
    fn stage(&self, segments: &mut Segments<'_>, ecn: Ecn, now: Instant) -> u64;

    /// Whether packets are staged. Does not wait for a lock, so the result may be out of date.
    fn has_staged(&self) -> bool;

    /// Removes and returns the staged packets.
    fn take_staged(&self) -> Staged;

    /// Stages packets taken from another tunnel, behind its own.
    fn append_staged(&self, staged: Staged);

    /// Stops sending: ends all handshakes, and returns the staged packets. Datagrams of the peer are still opened
    /// until the sessions expire, unless the implementation cannot stop one direction alone: then the tunnel is
    /// closed.
    fn end_sending(&self) -> Staged {
        self.close()
    }

    /// Wipes its keys and sessions, drops its reference to our key, and returns the staged packets. Afterwards
    /// nothing is sealed or opened, even through other references to the tunnel.
    fn close(&self) -> Staged;

    /// The state for a successor of this process. Nothing may use the tunnel afterwards, unless there is no successor:
    /// both would use the same counters.
    ///
    /// `None` if the tunnel is closed, or if the implementation cannot hand over.
    fn export(&self) -> Option<TunnelState> {
        None
    }

    /// Goes on where the tunnel that exported `state` has stopped. That tunnel had the same keys, the same slot, and the
    /// same base of time; this one was not used yet.
    fn import(&self, _state: TunnelState) {}

    /// The state of the session, for status and decisions.
    fn session(&self) -> SessionState;
}

/// The sending key of a session, to seal with counters that were reserved before.
pub trait SealingKeys: Send + Sync {
    /// Seals the segments into `out`, until either is used up. Their counters begin at `first_counter`, and must
    /// never be used for anything else. `mtu` is the device's, in bytes: it bounds the padding.
    fn seal_reserved(
        &self,
        first_counter: u64,
        segments: &mut Segments<'_>,
        outer: Outer,
        mtu: u16,
        out: &mut TransmitBatch,
    ) -> Sealed;
}

/// Permission to seal the segments of one frame once: the key, and counters reserved for them.
pub struct Reserved {
    keys: Arc<dyn SealingKeys>,
    first_counter: u64,
    mtu: u16,
    sealed: Sealed,
}

impl Reserved {
    /// `sealed` is the result that sealing all of the segments will have.
    pub(super) fn new(
        keys: Arc<dyn SealingKeys>,
        first_counter: u64,
        mtu: u16,
        sealed: Sealed,
    ) -> Self {
        Self { keys, first_counter, mtu, sealed }
    }

    /// The result of sealing the segments, if there is room for all of them.
    #[must_use]
    pub const fn sealed(&self) -> Sealed {
        self.sealed
    }

    /// Seals the segments that this was reserved for into `out`, and drops the key.
    pub fn seal(
        self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
    ) -> Sealed {
        self.keys.seal_reserved(self.first_counter, segments, outer, self.mtu, out)
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("sealed", &self.sealed).finish_non_exhaustive()
    }
}

/// One private key of ours: identifies the senders of initiations, and creates tunnels.
///
/// The key is wiped when the identity is dropped and all its tunnels are dropped or closed.
pub trait Identity: Send + Sync + fmt::Debug {
    /// Our public key.
    fn public_key(&self) -> PublicKey;

    /// Creates the tunnel of a peer, behind a pointer: moving it would leave copies of secrets behind. No other live
    /// tunnel may have `slot`; every receiver index of the tunnel belongs to it.
    fn tunnel(&self, keys: &PeerKeys, slot: IndexSlot) -> Arc<dyn Tunnel>;

    /// Whether its tunnels take their receiver indices from [`IndexSlot::index`], so that slots can be
    /// [enciphered](super::ReceiverIndices::secret). Otherwise the upper 24 bits of an index are the slot.
    fn uses_slot_indices(&self) -> bool;

    /// Reads the static public key of the sender of an initiation. Under load a cookie reply may be written to `out`
    /// instead.
    ///
    /// # Errors
    ///
    /// Why the message was dropped: [`DropReason::Unauthenticated`] if its mac1 is for another key than this one.
    fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<Identification, DropReason>;

    /// Time has advanced to `now`.
    fn handle_timeout(&self, now: Instant);

    /// The wall clock was read as `epoch`; it may have been set.
    fn handle_wall_clock(&self, _epoch: Epoch) {}

    /// Another holder of this key may have sent initiations until `epoch`: later ones need later timestamps, or peers
    /// drop them as replayed. An implementation with a clock of its own does nothing.
    fn continue_after(&self, _epoch: Epoch) {}

    /// Shares the record of accepted initiations, and of the timestamps of ours, with the other keys that use
    /// `accepted`. Call it before creating tunnels. An implementation that keeps this record in its tunnels does
    /// nothing.
    fn share_accepted(&self, _accepted: &AcceptedByPeer) {}
}

/// The result of reading an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identification {
    /// It names this peer as its sender. That is not authenticated yet.
    Peer(PublicKey),
    /// It was not read because of load; its sender may have been sent a cookie.
    UnderLoad,
}

/// What a tunnel may send because time has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerPolicy {
    /// Where to send to. Without it nothing is sent.
    pub path: Option<Path>,
    /// Without authenticated traffic in either direction for this long, a keepalive is sent, or a handshake begins if
    /// there is no session. Zero is now.
    pub persistent_keepalive: Option<Duration>,
    /// Whether a handshake may begin.
    pub may_initiate: bool,
}

/// The keys of a peer. Other keys take another tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerKeys {
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Mixed into the handshake if present.
    pub preshared_key: Option<PresharedKey>,
}

impl PeerKeys {
    /// Identifies these keys beside our key `own`, without revealing the preshared key.
    #[must_use]
    pub fn digest(&self, own: PublicKey) -> [u8; 32] {
        let preshared = self.preshared_key.as_ref().map(PresharedKey::as_bytes);

        Blake2s256::new()
            .chain_update(b"strait keys of a tunnel")
            .chain_update(own.as_bytes())
            .chain_update(self.public_key.as_bytes())
            .chain_update(preshared.map_or(&[][..], |key| key))
            .finalize()
            .into()
    }
}

/// The result of sealing packets.
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
    /// Counts one more datagram.
    #[inline]
    pub(super) fn add(&mut self, datagram_len: usize) {
        self.packets += 1;
        self.bytes += as_u64(datagram_len);
    }
}

/// The result of opening a run of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Packets appended.
    pub packets: u64,
    /// Datagrams that were authentic: packets, keepalives and probes.
    pub authentic: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keepalives and [probes](PathProbe) among them.
    pub keepalives: u64,
    /// The probes among them.
    pub probes: OpenedProbes,
    /// Datagrams without a session for their receiver index.
    pub no_session: u64,
    /// Datagrams seen before, or behind the replay window.
    pub replayed: u64,
    /// Datagrams with a wrong tag.
    pub unauthenticated: u64,
    /// Authentic, but neither an IP packet nor a probe, or longer than the batch has room for.
    pub malformed: u64,
    /// Newer datagrams had arrived before, as far as the implementation can tell: do not learn the endpoint from
    /// these.
    pub is_late: bool,
    /// There is a session now, and packets are staged: call [`Tunnel::seal_staged`].
    pub has_staged: bool,
}

/// Whether the endpoint of a peer is learned from an authentic handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointUpdate {
    /// The endpoint is the source of the message.
    Learn,
    /// The endpoint stays: data was received meanwhile that may have overtaken the message. The next datagram of the
    /// peer updates it.
    Keep,
}

/// The result of [`Tunnel::handle_timeout`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedOut {
    /// Staged packets that were dropped because the handshake failed.
    pub given_up: u64,
    /// There is a session, and packets are staged: call [`Tunnel::seal_staged`].
    pub has_staged: bool,
}

/// The state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// Whether packets can be sealed right away.
    pub is_established: bool,
    /// When the last handshake completed.
    pub last_handshake: Option<Instant>,
    /// Round trip of the last handshake: from our message to its answer.
    pub rtt: Option<Duration>,
    /// Staged packets.
    pub staged: usize,
}

impl SessionState {
    /// The state after the session has ended: without staged packets.
    #[must_use]
    pub fn ended(self) -> Self {
        Self { is_established: false, staged: 0, ..self }
    }
}
