//! The first engine: `boringtun`, unmodified, behind the [`Tunnel`] seam.
//!
//! `Tunn` wants `&mut self` for both directions, so a lock stands around it: taken once per batch,
//! never per packet. What the library leaves out is added here where it can be added from outside:
//! staged packets are ours (the library drops some without saying so), the round trip of a handshake
//! is measured, and a persistent keepalive goes on after the library has given a peer up.
//!
//! The library keeps its own clock, which [`Tunnel::handle_timeout`] makes it read; `now` serves the
//! round trip only.
//!
//! Known limits of the library, which the native engine does not share: a replay window of 1024, no
//! padding, no limit on messages per session, cookies over the address without the port.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519;

use super::message::{DATA_OVERHEAD_BYTES, MAX_HANDSHAKE_BYTES, Message};
use super::tunnel::{
    Identity, MAX_STAGED_PACKETS, Opened, PeerKeys, Sealed, SessionState, TimedOut, Tunnel,
};
use super::{PrivateKey, PublicKey};
use crate::DropReason;
use crate::buffer::{Outer, PacketBatch, TransmitBatch};
use crate::packet::ecn::Ecn;
use crate::packet::segment::Segments;

/// Initiations a second from all sources before cookies are asked for.
const INITIATIONS_PER_SECOND: u64 = 100;

/// How long to wait before a peer that the library gave up is tried again, if it has a persistent
/// keepalive. The whitepaper's `REKEY_TIMEOUT`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Receiver indices of the library carry the peer in their upper 24 bits.
const SESSION_BITS: u32 = 8;

/// Our own identity, for boringtun.
pub struct BoringtunIdentity {
    private_key: x25519::StaticSecret,
    public_key: x25519::PublicKey,
    limiter: RateLimiter,
}

impl BoringtunIdentity {
    /// The identity that `private_key` is.
    #[must_use]
    pub fn new(private_key: &PrivateKey) -> Self {
        let private_key = private_key.to_secret();
        let public_key = x25519::PublicKey::from(&private_key);

        Self {
            private_key,
            public_key,
            limiter: RateLimiter::new(&public_key, INITIATIONS_PER_SECOND),
        }
    }
}

impl Identity for BoringtunIdentity {
    fn public_key(&self) -> PublicKey {
        PublicKey::from_bytes(self.public_key.to_bytes())
    }

    fn tunnel(&self, keys: &PeerKeys, slot: u32) -> Box<dyn Tunnel> {
        let tunn = Tunn::new(
            self.private_key.clone(),
            x25519::PublicKey::from(*keys.public_key.as_bytes()),
            keys.preshared_key.as_ref().map(|key| *key.as_bytes()),
            keys.persistent_keepalive,
            slot,
            None,
        );

        Box::new(BoringtunTunnel {
            state: Mutex::new(State {
                tunn,
                is_persistent: keys.persistent_keepalive.is_some(),
                session: SessionState::default(),
                staged: VecDeque::new(),
                asked: None,
                answered: None,
            }),
        })
    }

    fn slot(&self, receiver_index: u32) -> u32 {
        receiver_index >> SESSION_BITS
    }

    fn identify(
        &self,
        initiation: &[u8],
        source: SocketAddr,
        out: &mut TransmitBatch,
    ) -> Result<Option<PublicKey>, DropReason> {
        let mut reply = [0; MAX_HANDSHAKE_BYTES];
        let packet = match self.limiter.verify_packet(Some(source.ip()), initiation, &mut reply) {
            Ok(packet) => packet,
            Err(TunnResult::WriteToNetwork(cookie)) => {
                commit(out, cookie, source);
                return Ok(None);
            }
            Err(TunnResult::Err(error)) => return Err(drop_reason(&error)),
            Err(_) => return Err(DropReason::Malformed),
        };
        let Packet::HandshakeInit(initiation) = packet else {
            return Err(DropReason::Malformed);
        };

        match parse_handshake_anon(&self.private_key, &self.public_key, &initiation) {
            Ok(half) => Ok(Some(PublicKey::from_bytes(half.peer_static_public))),
            Err(error) => Err(drop_reason(&error)),
        }
    }

    fn handle_timeout(&self, _now: Instant) {
        self.limiter.reset_count();
    }
}

impl fmt::Debug for BoringtunIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoringtunIdentity").field("public_key", &self.public_key()).finish()
    }
}

/// One peer's state, for boringtun.
struct BoringtunTunnel {
    state: Mutex<State>,
}

struct State {
    tunn: Tunn,
    is_persistent: bool,
    session: SessionState,
    staged: VecDeque<Staged>,
    /// When our initiation went out that nothing has answered yet.
    asked: Option<Instant>,
    /// The response of ours that no data has confirmed yet.
    answered: Option<Answered>,
}

/// When a response went out, and the index that the data it allows will carry.
struct Answered {
    at: Instant,
    index: u32,
}

struct Staged {
    packet: Vec<u8>,
    ecn: Ecn,
}

impl BoringtunTunnel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BoringtunTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoringtunTunnel").field("session", &self.session()).finish()
    }
}

impl Tunnel for BoringtunTunnel {
    fn seal(
        &self,
        segments: &mut Segments<'_>,
        outer: Outer,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Sealed {
        let mut state = self.lock();
        if !state.session.is_established {
            let sealed = state.stage(segments, outer.ecn);
            state.initiate(outer.destination, out, now);
            return sealed;
        }

        let mut sealed = state.seal_staged(outer.destination, out);
        if !state.staged.is_empty() {
            return sealed;
        }
        while let Some(len) = segments.next_len() {
            let Some(room) = out.room(room_for(len)) else {
                break;
            };
            let Some(packet) = segments.next_segment() else {
                break;
            };
            if let TunnResult::WriteToNetwork(datagram) = state.tunn.encapsulate(packet, room) {
                let len = datagram.len();
                out.commit(len, outer, true);
                sealed.add(len);
            }
        }

        sealed
    }

    fn seal_staged(
        &self,
        destination: SocketAddr,
        out: &mut TransmitBatch,
        _now: Instant,
    ) -> Sealed {
        self.lock().seal_staged(destination, out)
    }

    fn open(&self, run: &[u8], stride: usize, out: &mut PacketBatch, now: Instant) -> Opened {
        let mut state = self.lock();
        let mut opened = Opened::default();

        for datagram in run.chunks(stride.max(1)) {
            let Some(room) = out.room(datagram.len()) else {
                opened.malformed += 1;
                continue;
            };
            match state.tunn.decapsulate(None, datagram, room) {
                TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                    let len = packet.len();
                    out.commit(len);
                    opened.packets += 1;
                    opened.bytes += as_u64(datagram.len());
                }
                TunnResult::Done => {
                    opened.keepalives += 1;
                    opened.bytes += as_u64(datagram.len());
                }
                TunnResult::Err(error) => opened.count(&error),
                TunnResult::WriteToNetwork(_) => opened.malformed += 1,
            }
        }
        opened.authentic = opened.packets + opened.keepalives;

        if opened.authentic > 0 {
            state.confirm(first_index(run), now);
            opened.has_staged = !state.staged.is_empty();
        }

        opened
    }

    fn handle_handshake(
        &self,
        message: &[u8],
        source: SocketAddr,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> Result<(), DropReason> {
        let mut state = self.lock();
        let mut reply = [0; MAX_HANDSHAKE_BYTES];

        match state.tunn.decapsulate(Some(source.ip()), message, &mut reply) {
            TunnResult::WriteToNetwork(datagram) => {
                let answer = Message::classify(datagram);
                commit(out, datagram, source);
                match answer {
                    Some(Message::Response { .. }) => {
                        let index = first_index(datagram);
                        state.answered = Some(Answered { at: now, index });
                    }
                    Some(Message::Data { .. }) => {
                        state.complete(now);
                        state.send_queued_keepalives(source, out);
                    }
                    _ => {}
                }
                Ok(())
            }
            TunnResult::Err(error) => Err(drop_reason(&error)),
            TunnResult::Done
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => Ok(()),
        }
    }

    fn handle_timeout(
        &self,
        destination: Option<SocketAddr>,
        out: &mut TransmitBatch,
        now: Instant,
    ) -> TimedOut {
        let mut state = self.lock();
        let mut message = [0; MAX_HANDSHAKE_BYTES];
        let mut given_up = 0;

        match state.tunn.update_timers(&mut message) {
            TunnResult::WriteToNetwork(datagram) => {
                if Message::classify(datagram) == Some(Message::Initiation) {
                    state.asked = Some(now);
                }
                if let Some(destination) = destination {
                    commit(out, datagram, destination);
                }
            }
            TunnResult::Err(WireGuardError::ConnectionExpired) => {
                given_up = state.give_up();
                let is_due = state.asked.is_none_or(|asked| now >= asked + RETRY_INTERVAL);
                if let Some(destination) = destination
                    && state.is_persistent
                    && is_due
                {
                    state.initiate(destination, out, now);
                }
            }
            TunnResult::Done
            | TunnResult::Err(_)
            | TunnResult::WriteToTunnelV4(..)
            | TunnResult::WriteToTunnelV6(..) => {}
        }
        state.session.is_established = state.tunn.time_since_last_handshake().is_some();
        let has_staged = state.session.is_established && !state.staged.is_empty();

        TimedOut { given_up, has_staged }
    }

    fn initiate(&self, destination: SocketAddr, out: &mut TransmitBatch, now: Instant) {
        self.lock().initiate(destination, out, now);
    }

    fn give_up(&self) -> u64 {
        self.lock().give_up()
    }

    fn session(&self) -> SessionState {
        let state = self.lock();

        SessionState { staged: state.staged.len(), ..state.session }
    }
}

impl State {
    /// Keeps the segments for later, as many as may be kept.
    fn stage(&mut self, segments: &mut Segments<'_>, ecn: Ecn) -> Sealed {
        let mut sealed = Sealed::default();

        while let Some(packet) = segments.next_segment() {
            if self.staged.len() < MAX_STAGED_PACKETS {
                self.staged.push_back(Staged { packet: packet.to_vec(), ecn });
            } else {
                sealed.overflow += 1;
            }
        }

        sealed
    }

    fn seal_staged(&mut self, destination: SocketAddr, out: &mut TransmitBatch) -> Sealed {
        let mut sealed = Sealed::default();
        if !self.session.is_established {
            return sealed;
        }

        while let Some(Staged { packet, ecn }) = self.staged.front() {
            let Some(room) = out.room(room_for(packet.len())) else {
                break;
            };
            if let TunnResult::WriteToNetwork(datagram) = self.tunn.encapsulate(packet, room) {
                let len = datagram.len();
                out.commit(len, Outer { destination, ecn: *ecn }, true);
                sealed.add(len);
            }
            self.staged.pop_front();
        }

        sealed
    }

    fn initiate(&mut self, destination: SocketAddr, out: &mut TransmitBatch, now: Instant) {
        let mut message = [0; MAX_HANDSHAKE_BYTES];

        if let TunnResult::WriteToNetwork(initiation) =
            self.tunn.format_handshake_initiation(&mut message, false)
        {
            commit(out, initiation, destination);
            self.asked = Some(now);
        }
    }

    /// A response of the peer was accepted.
    fn complete(&mut self, now: Instant) {
        self.session.is_established = true;
        self.session.last_handshake = Some(now);
        self.session.rtt = self
            .asked
            .take()
            .map(|asked| now.saturating_duration_since(asked))
            .or(self.session.rtt);
    }

    /// The library queues a keepalive that fell due without a session. Now there is one.
    fn send_queued_keepalives(&mut self, destination: SocketAddr, out: &mut TransmitBatch) {
        let mut message = [0; MAX_HANDSHAKE_BYTES];

        while let TunnResult::WriteToNetwork(keepalive) =
            self.tunn.decapsulate(None, &[], &mut message)
        {
            commit(out, keepalive, destination);
        }
    }

    /// Authentic data arrived for `index`. If our response promised that index, it completes the
    /// handshake; data of the session before does not.
    fn confirm(&mut self, index: u32, now: Instant) {
        if let Some(answered) = self.answered.take_if(|answered| answered.index == index) {
            self.session.last_handshake = Some(now);
            self.session.rtt = Some(now.saturating_duration_since(answered.at));
        }
        if !self.session.is_established {
            self.session.is_established = self.tunn.time_since_last_handshake().is_some();
        }
    }

    fn give_up(&mut self) -> u64 {
        let given_up = self.staged.len();
        self.staged.clear();

        as_u64(given_up)
    }
}

impl Sealed {
    #[inline]
    fn add(&mut self, datagram_len: usize) {
        self.packets += 1;
        self.bytes += as_u64(datagram_len);
    }
}

impl Opened {
    fn count(&mut self, error: &WireGuardError) {
        let reason = drop_reason(error);
        let counter = if reason == DropReason::NoSession {
            &mut self.no_session
        } else if reason == DropReason::Replayed {
            &mut self.replayed
        } else if reason == DropReason::Unauthenticated {
            &mut self.unauthenticated
        } else {
            &mut self.malformed
        };

        *counter += 1;
    }
}

/// The index behind the type: the one the sender of a handshake message chose, or the one a data
/// message is for.
fn first_index(message: &[u8]) -> u32 {
    message.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// What the library needs as room for a packet of `len` bytes, or it panics.
const fn room_for(len: usize) -> usize {
    let sealed = len + DATA_OVERHEAD_BYTES;

    if sealed > MAX_HANDSHAKE_BYTES { sealed } else { MAX_HANDSHAKE_BYTES }
}

/// Appends a message of the protocol. If the batch is full the message is lost, as on the network.
fn commit(out: &mut TransmitBatch, message: &[u8], destination: SocketAddr) {
    if let Some((room, _)) =
        out.room(message.len()).and_then(|room| room.split_at_mut_checked(message.len()))
    {
        room.copy_from_slice(message);
        out.commit(message.len(), Outer { destination, ecn: Ecn::NotEct }, false);
    }
}

fn drop_reason(error: &WireGuardError) -> DropReason {
    match error {
        WireGuardError::NoCurrentSession | WireGuardError::WrongIndex => DropReason::NoSession,
        WireGuardError::InvalidCounter
        | WireGuardError::DuplicateCounter
        | WireGuardError::WrongTai64nTimestamp => DropReason::Replayed,
        WireGuardError::InvalidMac
        | WireGuardError::InvalidAeadTag
        | WireGuardError::WrongKey
        | WireGuardError::InvalidTai64nTimestamp => DropReason::Unauthenticated,
        WireGuardError::UnderLoad => DropReason::UnderLoad,
        WireGuardError::UnexpectedPacket | WireGuardError::ConnectionExpired => {
            DropReason::NoSession
        }
        WireGuardError::DestinationBufferTooSmall
        | WireGuardError::IncorrectPacketLength
        | WireGuardError::WrongPacketType
        | WireGuardError::InvalidPacket
        | WireGuardError::LockFailed => DropReason::Malformed,
    }
}
