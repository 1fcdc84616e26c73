//! The state of one tunnel as a plain value.

use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::{HandoverError, Reader, Writer};
use crate::native::WINDOW_BLOCKS;
use crate::{PublicKey, Staged};
use strait_packet::ecn::Ecn;

/// A 256-bit secret on the heap, wiped when dropped.
type Secret = Box<Zeroizing<[u8; 32]>>;

/// What the tunnel of a peer needs to go on in another process.
#[derive(Debug)]
pub struct TunnelState {
    /// The number of the next handshake, for its index.
    pub(crate) number: u8,
    /// Earlier, previous, current and next session.
    pub(crate) sessions: [Option<KeypairState>; 4],
    pub(crate) staged: Staged,
    /// A session is wanted: a handshake of ours was under way, or due.
    pub(crate) wants_session: bool,
    /// Our unconfirmed response: when it was sent, and the sender index in it.
    pub(crate) answered: Option<(Instant, u32)>,
    /// The last cookie of the peer, and when it was received.
    pub(crate) cookie: Option<(Zeroizing<[u8; 16]>, Instant)>,
    pub(crate) last_handshake: Option<Instant>,
    pub(crate) rtt: Option<Duration>,
    pub(crate) timers: TimerState,
    pub(crate) accepted: AcceptedState,
}

/// The times of the last packets, and the timers that they have started.
#[derive(Debug, Default)]
pub(crate) struct TimerState {
    /// In microseconds since the base; 0 is never: any message sent, data sent, any message received, data received, and
    /// a handshake message received.
    pub(crate) last: [u64; 5],
    /// The same for the first four as of the last timeout.
    pub(crate) last_seen: [u64; 4],
    pub(crate) unanswered: Option<Instant>,
    pub(crate) unacknowledged: Option<Instant>,
}

/// One session.
pub(crate) struct KeypairState {
    pub(crate) local_index: u32,
    pub(crate) remote_index: u32,
    pub(crate) created: Instant,
    pub(crate) initiated: Instant,
    pub(crate) is_initiator: bool,
    pub(crate) sending: Secret,
    pub(crate) receiving: Secret,
    /// Of the next message.
    pub(crate) counter: u64,
    /// One above the greatest counter received.
    pub(crate) next: u64,
    /// The bits of the replay window.
    pub(crate) seen: Vec<u64>,
}

/// The initiations of the peer that were answered, and the timestamp of ours.
#[derive(Debug, Default)]
pub(crate) struct AcceptedState {
    /// By key of ours, the latest last.
    pub(crate) records: Vec<AcceptedRecord>,
    pub(crate) floor: Option<[u8; 12]>,
    /// Of our last initiation, since 1970.
    pub(crate) ours: Duration,
}

/// The latest initiation that one key of ours has answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptedRecord {
    pub(crate) own: PublicKey,
    pub(crate) timestamp: [u8; 12],
    pub(crate) at: Instant,
}

impl TunnelState {
    /// How many sessions it has.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.iter().flatten().count()
    }

    /// Appends it to a hand-over.
    pub fn write(&self, out: &mut Writer) {
        out.u8(self.number);
        for session in &self.sessions {
            out.optional(session.as_ref(), |out, session| session.write(out));
        }
        out.list(self.staged.iter(), |out, (packet, ecn)| {
            out.u8(ecn.bits());
            out.bytes(packet);
        });
        out.flag(self.wants_session);
        out.optional(self.answered, |out, (at, index)| {
            out.instant(at);
            out.u32(index);
        });
        out.optional(self.cookie.as_ref(), |out, (value, received)| {
            out.put(&**value);
            out.instant(*received);
        });
        out.optional(self.last_handshake, Writer::instant);
        out.optional(self.rtt, Writer::duration);
        self.timers.write(out);
        self.accepted.write(out);
    }

    /// Reads what [`Self::write`] wrote.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if it is not that.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        let number = from.u8()?;
        let mut sessions = [const { None }; 4];
        for session in &mut sessions {
            *session = from.optional(KeypairState::read)?;
        }
        let mut staged = Staged::default();
        let packets = from.list(|from| {
            let ecn = Ecn::from_traffic_class(from.u8()?);
            Ok((from.bytes()?, ecn))
        })?;
        for (packet, ecn) in packets {
            staged.push(packet, ecn);
        }

        Ok(Self {
            number,
            sessions,
            staged,
            wants_session: from.flag()?,
            answered: from.optional(|from| Ok((from.instant()?, from.u32()?)))?,
            cookie: from.optional(|from| Ok((Zeroizing::new(*from.array()?), from.instant()?)))?,
            last_handshake: from.optional(Reader::instant)?,
            rtt: from.optional(Reader::duration)?,
            timers: TimerState::read(from)?,
            accepted: AcceptedState::read(from)?,
        })
    }
}

impl KeypairState {
    fn write(&self, out: &mut Writer) {
        out.u32(self.local_index);
        out.u32(self.remote_index);
        out.instant(self.created);
        out.instant(self.initiated);
        out.flag(self.is_initiator);
        out.put(&**self.sending);
        out.put(&**self.receiving);
        out.u64(self.counter);
        out.u64(self.next);
        out.list(self.seen.iter(), |out, block| out.u64(*block));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        let state = Self {
            local_index: from.u32()?,
            remote_index: from.u32()?,
            created: from.instant()?,
            initiated: from.instant()?,
            is_initiator: from.flag()?,
            sending: secret(from)?,
            receiving: secret(from)?,
            counter: from.u64()?,
            next: from.u64()?,
            seen: from.list(Reader::u64)?,
        };
        if state.seen.len() != WINDOW_BLOCKS {
            return Err(HandoverError::Invalid("replay window"));
        }

        Ok(state)
    }
}

impl std::fmt::Debug for KeypairState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeypairState").field("counter", &self.counter).finish_non_exhaustive()
    }
}

impl TimerState {
    fn write(&self, out: &mut Writer) {
        for micros in self.last.into_iter().chain(self.last_seen) {
            out.u64(micros);
        }
        out.optional(self.unanswered, Writer::instant);
        out.optional(self.unacknowledged, Writer::instant);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        let mut state = Self::default();
        for micros in state.last.iter_mut().chain(&mut state.last_seen) {
            *micros = from.u64()?;
        }
        state.unanswered = from.optional(Reader::instant)?;
        state.unacknowledged = from.optional(Reader::instant)?;

        Ok(state)
    }
}

impl AcceptedState {
    fn write(&self, out: &mut Writer) {
        out.list(self.records.iter(), |out, record| {
            out.put(record.own.as_bytes());
            out.put(&record.timestamp);
            out.instant(record.at);
        });
        out.optional(self.floor, |out, floor| out.put(&floor));
        out.duration(self.ours);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        let records = from.list(|from| {
            Ok(AcceptedRecord {
                own: PublicKey::from_bytes(*from.array()?),
                timestamp: *from.array()?,
                at: from.instant()?,
            })
        })?;

        Ok(Self {
            records,
            floor: from.optional(|from| from.array().copied())?,
            ours: from.duration()?,
        })
    }
}

/// Reads a secret, without a copy on the stack.
fn secret(from: &mut Reader<'_>) -> Result<Secret, HandoverError> {
    let mut secret = Secret::default();
    secret.copy_from_slice(from.array::<32>()?);

    Ok(secret)
}
