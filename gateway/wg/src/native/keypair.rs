//! The keypair of a session: one key for each direction, the sending counter, and the replay window.
//!
//! Source: WireGuard whitepaper, sections 5.4.6 (data) and 6.1 (limits).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::handshake::{Session, boxed};
use super::noise::{LEN, Secret};
use super::replay::{WINDOW, Window};
use super::timers::{
    CROSSING, MAX_TRANSIT, REJECT_AFTER_TIME, REKEY_AFTER_TIME, RESPONDER_JITTER_MILLIS,
    RESPONDER_REKEY_TIME,
};
use crate::handover::KeypairState;
use strait_aead::{Cipher, LANES, Lanes, Message, NONCE_LEN, Nonce, TAG_LEN, Tags};

/// Bytes before the sealed packet: type, receiver index, counter.
pub(super) const HEADER_LEN: usize = 16;

/// Messages of a session after which a rekey is due.
const REKEY_AFTER_MESSAGES: u64 = 1 << 60;

/// Messages of a session after which it is rejected.
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - WINDOW;

/// One session. Both directions use it from their own threads and write no shared field.
pub(super) struct Keypair {
    pub(super) local_index: u32,
    created: Instant,
    /// The earliest time at which the peer may have had the session: it drops it [`REJECT_AFTER_TIME`] later.
    initiated: Instant,
    pub(super) is_initiator: bool,
    header: [u8; 8],
    sending: Cipher,
    receiving: Cipher,
    /// Of the next message.
    counter: AtomicU64,
    /// Used by the receiving thread.
    window: Mutex<Window>,
    /// The keys of `sending` and `receiving`, for a successor of this process.
    keys: Box<[Secret; 2]>,
}

impl Keypair {
    pub(super) fn new(session: &Session, is_initiator: bool, lanes: Lanes, now: Instant) -> Self {
        #[cfg(test)]
        super::tests::residue::record_session_keys(session);
        Self {
            local_index: session.local_index,
            created: now,
            initiated: now,
            is_initiator,
            header: header(session.remote_index),
            sending: Cipher::new(&session.sending, lanes),
            receiving: Cipher::new(&session.receiving, lanes),
            counter: AtomicU64::new(0),
            window: Mutex::default(),
            keys: kept(&session.sending, &session.receiving),
        }
    }

    /// The session for a successor of this process.
    pub(super) fn export(&self) -> KeypairState {
        let [_, _, _, _, index @ ..] = self.header;
        let [sending, receiving] = &*self.keys;
        let window = self.window();

        KeypairState {
            local_index: self.local_index,
            remote_index: u32::from_le_bytes(index),
            created: self.created,
            initiated: self.initiated,
            is_initiator: self.is_initiator,
            sending: boxed(sending),
            receiving: boxed(receiving),
            counter: self.counter.load(Ordering::Relaxed),
            next: window.next(),
            seen: window.blocks().to_vec(),
        }
    }

    /// The session of the predecessor of this process.
    pub(super) fn imported(state: KeypairState, lanes: Lanes) -> Self {
        Self {
            local_index: state.local_index,
            created: state.created,
            initiated: state.initiated,
            is_initiator: state.is_initiator,
            header: header(state.remote_index),
            sending: Cipher::new(&state.sending, lanes),
            receiving: Cipher::new(&state.receiving, lanes),
            counter: AtomicU64::new(state.counter),
            window: Mutex::new(Window::imported(state.next, state.seen)),
            keys: kept(&state.sending, &state.receiving),
        }
    }

    /// With the time when the initiation was sent. The responder has had the session since some time after that. If
    /// both ends were suspended before the response arrived, that is much longer than this end.
    pub(super) const fn initiated_at(mut self, initiated: Instant) -> Self {
        self.initiated = initiated;

        self
    }

    /// Whether it may still be used for sending.
    #[inline]
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.age(now) < REJECT_AFTER_TIME
            && self.counter.load(Ordering::Relaxed) < REJECT_AFTER_MESSAGES
    }

    /// How long the peer may have had it.
    #[inline]
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.initiated)
    }

    /// The age at which sending triggers a rekey. For the responder it has a jitter, taken from the index, which is
    /// as good as random.
    pub(super) fn rekey_age(&self) -> Duration {
        if self.is_initiator {
            return REKEY_AFTER_TIME;
        }
        let jitter = self.local_index % RESPONDER_JITTER_MILLIS;

        RESPONDER_REKEY_TIME + Duration::from_millis(jitter.into())
    }

    /// Whether the handshakes of both sessions may have crossed: one initiated at each end, under way at the same
    /// time. Both times count, because a response may arrive much later if both machines were suspended.
    pub(super) fn has_crossed(&self, before: &Self) -> bool {
        let is_near = |one: Instant, other: Instant| {
            one.max(other).saturating_duration_since(one.min(other)) < CROSSING
        };

        let is_near =
            is_near(self.initiated, before.initiated) || is_near(self.created, before.created);
        self.is_initiator != before.is_initiator && is_near
    }

    /// Whether datagrams that the peer sent before it had this session may still arrive.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.created) < MAX_TRANSIT
    }

    /// Whether it may still be used for receiving.
    #[inline]
    pub(super) fn may_receive(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.created) < REJECT_AFTER_TIME
    }

    /// Reserves `count` counters, and returns the first: one atomic step per batch.
    #[inline]
    pub(super) fn reserve(&self, count: u64) -> u64 {
        self.counter.fetch_add(count, Ordering::Relaxed)
    }

    /// Whether more than [`REKEY_AFTER_MESSAGES`] were sent.
    pub(super) fn has_sent_too_many(&self) -> bool {
        self.counter.load(Ordering::Relaxed) > REKEY_AFTER_MESSAGES
    }

    /// How many of `datagrams`, each with `len` bytes, are best sealed or opened at once: one, or [`LANES`].
    #[inline]
    pub(super) const fn width(&self, datagrams: usize, len: usize) -> usize {
        self.sending.width(datagrams, len)
    }

    /// Seals the datagram `room` in place: its content begins at [`HEADER_LEN`], and room for the tag follows.
    #[inline]
    pub(super) fn seal(&self, counter: u64, room: &mut [u8]) {
        let Some((content, tag)) = self.begin(counter, room) else { return };
        *tag = self.sending.seal_one(nonce(counter), content);
    }

    /// Seals up to [`LANES`] datagrams with these lengths, one behind the other in `rooms`. Their counters begin at
    /// `first_counter`.
    pub(super) fn seal_all(&self, first_counter: u64, rooms: &mut [u8], lens: &[usize]) {
        let mut messages: [Message<'_>; LANES] = Default::default();
        let mut rooms_of_tags: [Option<&mut [u8; TAG_LEN]>; LANES] = Default::default();
        let mut rest = rooms;
        let each = (first_counter..).zip(lens).zip(&mut messages).zip(&mut rooms_of_tags);
        for (((counter, len), message), room_of_tag) in each {
            let (room, behind) = rest.split_at_mut(rest.len().min(*len));
            rest = behind;
            if let Some((text, tag)) = self.begin(counter, room) {
                *message = Message { nonce: nonce(counter), text };
                *room_of_tag = Some(tag);
            }
        }

        let messages = messages.get_mut(..lens.len()).unwrap_or_default();
        for (room, tag) in rooms_of_tags.into_iter().zip(self.sending.seal(messages)) {
            if let Some(room) = room {
                *room = tag;
            }
        }
    }

    /// Writes the header of a datagram. Returns its content, and the room for its tag.
    #[inline]
    fn begin<'a>(
        &self,
        counter: u64,
        room: &'a mut [u8],
    ) -> Option<(&'a mut [u8], &'a mut [u8; TAG_LEN])> {
        let (header, content) = room.split_first_chunk_mut::<HEADER_LEN>()?;
        let (start, number) = header.split_first_chunk_mut::<8>()?;
        *start = self.header;
        number.copy_from_slice(&counter.to_le_bytes());

        content.split_last_chunk_mut()
    }

    /// Whether a message may have this counter.
    #[inline]
    pub(super) const fn allows(counter: u64) -> bool {
        counter < REJECT_AFTER_MESSAGES
    }

    /// Opens the content of a datagram in place, without its tag. Returns whether it is authentic.
    #[inline]
    pub(super) fn open(&self, counter: u64, content: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
        self.receiving.open_one(nonce(counter), content, tag)
    }

    /// Opens the contents of up to [`LANES`] datagrams in place, without their tags. Returns for each whether it is
    /// authentic.
    #[inline]
    pub(super) fn open_all(&self, contents: &mut [Message<'_>], tags: &Tags) -> [bool; LANES] {
        self.receiving.open(contents, tags)
    }

    /// The replay window. The lock is not contended: only the receiving thread takes it.
    pub(super) fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock()
    }
}

/// The beginning of each datagram to the owner of this index.
fn header(remote_index: u32) -> [u8; 8] {
    let mut header = [4, 0, 0, 0, 0, 0, 0, 0];
    if let Some(index) = header.last_chunk_mut::<4>() {
        *index = remote_index.to_le_bytes();
    }

    header
}

/// Copies the keys of a session to the heap, without another copy on the stack.
fn kept(sending: &[u8; LEN], receiving: &[u8; LEN]) -> Box<[Secret; 2]> {
    let mut keys = Box::<[Secret; 2]>::default();
    for (kept, key) in keys.iter_mut().zip([sending, receiving]) {
        kept.copy_from_slice(key);
    }

    keys
}

/// The nonce of a message: four zero bytes and its counter. WireGuard whitepaper, section 5.4.6.
#[inline]
pub(super) fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    if let Some(number) = nonce.last_chunk_mut() {
        *number = counter.to_le_bytes();
    }

    nonce
}
