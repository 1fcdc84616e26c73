// Sees every datagram that is sent, and holds it against the whitepaper, whatever a test is about.
//
// Source: WireGuard whitepaper, sections 5.4.6 and 6. What an outsider sees is held against both engines,
// what the timers owe against our own.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use strait_wg::Engine;
use strait_wg::message::Message;

use super::ENGINES;

/// After this nothing is sent in a session (section 6.2).
const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);

/// After this whoever has received data has sent something (section 6.5).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How late anything may be: timers are looked at ten times a second, and the initiator of a session counts
/// from when the response arrived.
const LATENESS: Duration = Duration::from_millis(500);

/// What is known of the sessions by who may be sent what.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// By who receives the datagrams, and their receiver index.
    sessions: HashMap<(usize, u32), Session>,
    /// Indices from before a restart, which may mean another session by now, and those that mean two since a
    /// renewal.
    former: HashSet<(usize, u32)>,
    sides: [Side; 2],
}

#[derive(Debug)]
struct Session {
    since: Duration,
    last_counter: Option<u64>,
    /// Whether only one end has it any more, which goes on until it has heard of another.
    is_one_sided: bool,
}

#[derive(Debug, Default)]
struct Side {
    initiation: Vec<u8>,
    initiations: Vec<Duration>,
    /// Data came, and nothing was sent since.
    owes_since: Option<Duration>,
}

impl Watcher {
    /// `from` sends a datagram.
    pub(crate) fn sent(&mut self, from: usize, bytes: &[u8], now: Duration) {
        let to = 1 - from;
        self.sides[from].owes_since = None;
        match Message::classify(bytes).unwrap() {
            // The same one may go to several addresses.
            Message::Initiation if self.sides[from].initiation == bytes => {}
            Message::Initiation => {
                self.sides[from].initiation = bytes.to_vec();
                self.sides[from].initiations.push(now);
            }
            Message::Response { receiver_index } => {
                for key in [(from, first_index(bytes)), (to, receiver_index)] {
                    let session = Session { since: now, last_counter: None, is_one_sided: false };
                    let before = self.sessions.insert(key, session);
                    if before.is_some_and(|before| before.is_one_sided) {
                        self.former.insert(key);
                    }
                }
            }
            Message::CookieReply { .. } => {}
            Message::Data { receiver_index } => {
                let key = (to, receiver_index);
                if !self.former.contains(&key) {
                    self.sent_data(from, key, bytes, now);
                }
            }
        }
    }

    /// A packet came out of the tunnel at `side`.
    pub(crate) fn received_data(&mut self, side: usize, now: Duration) {
        self.sides[side].owes_since.get_or_insert(now);
    }

    /// `side` has looked at its timers. It may be without a session, or without anybody to send to.
    pub(crate) fn look(&mut self, side: usize, can_send: bool, now: Duration) {
        let owes_since = &mut self.sides[side].owes_since;
        if !can_send {
            *owes_since = None;
        }
        let is_late = owes_since.is_some_and(|since| now > since + KEEPALIVE_TIMEOUT + LATENESS);

        assert!(
            ENGINES[side] != Engine::Native || !is_late,
            "side {side} has received data at {owes_since:?} and says nothing until {now:?}"
        );
    }

    /// `side` begins again, with other sessions under perhaps the same indices.
    pub(crate) fn forget(&mut self, side: usize) {
        self.former.extend(self.sessions.keys().filter(|(to, _)| *to == side));
        self.sides[side].owes_since = None;
    }

    /// `side` ends its sessions: it sends nothing more in them. The peer does until it has heard of others.
    pub(crate) fn end_sessions(&mut self, side: usize) {
        self.sessions.retain(|(to, _), _| *to == side);
        for session in self.sessions.values_mut() {
            session.is_one_sided = true;
        }
    }

    /// When `side` has sent initiations.
    pub(crate) fn initiations(&self, side: usize) -> &[Duration] {
        &self.sides[side].initiations
    }

    fn sent_data(&mut self, from: usize, key: (usize, u32), bytes: &[u8], now: Duration) {
        let Some(session) = self.sessions.get_mut(&key) else {
            panic!("side {from} sends in a session that nobody has agreed to: {bytes:?}");
        };
        let counter = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let last = session.last_counter.replace(counter);
        assert!(last < Some(counter), "side {from} has used counter {counter} before: {last:?}");

        let age = now - session.since;
        assert!(
            ENGINES[from] != Engine::Native || age < REJECT_AFTER_TIME + LATENESS,
            "side {from} sends in a session of {age:?}"
        );
    }
}

/// The index behind the type.
fn first_index(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[4..8].try_into().unwrap())
}
