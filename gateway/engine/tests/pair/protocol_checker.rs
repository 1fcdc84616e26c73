// Checks every datagram of every test against the whitepaper.
//
// Source: WireGuard whitepaper, sections 5.4.6 and 6. Both engines are checked for what an outsider sees, the native
// one also for its timers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use strait_wg::Engine;
use strait_wg::message::Message;

use super::ENGINES;

/// After this, nothing is sent in a session (section 6.2).
const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);

/// After this, a receiver of data must have sent something (section 6.5).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A copy of an initiation follows the former one after at least this: see `strait_wg::initiation_copies`.
const COPY_INTERVAL: Duration = Duration::from_millis(20);

/// Tolerance of timers: they are checked ten times a second, and the initiator counts the age of a session from the
/// arrival of the response.
const LATENESS: Duration = Duration::from_millis(500);

/// The sessions, and what each side has sent.
#[derive(Debug, Default)]
pub(crate) struct ProtocolChecker {
    /// By receiving side and receiver index.
    sessions: HashMap<(usize, u32), Session>,
    /// Ambiguous indices: from before a restart, which may belong to another session, or of two sessions since a
    /// renewal.
    former: HashSet<(usize, u32)>,
    sides: [Side; 2],
}

#[derive(Debug)]
struct Session {
    since: Duration,
    last_counter: Option<u64>,
    /// Whether only one end still has it, and uses it until it gets a new one.
    is_one_sided: bool,
}

#[derive(Debug, Default)]
struct Side {
    initiation: Vec<u8>,
    /// When [`Self::initiation`] or a copy of it was last sent.
    initiation_sent: Duration,
    initiations: Vec<Duration>,
    /// When data arrived after which nothing was sent.
    silent_since: Option<Duration>,
}

impl ProtocolChecker {
    /// Checks a datagram that `from` sends.
    pub(crate) fn sent(&mut self, from: usize, bytes: &[u8], now: Duration) {
        let to = 1 - from;
        self.sides[from].silent_since = None;
        match Message::classify(bytes).unwrap() {
            Message::Initiation => {
                let side = &mut self.sides[from];
                let last = std::mem::replace(&mut side.initiation_sent, now);
                if side.initiation == bytes {
                    assert!(now - last >= COPY_INTERVAL, "a copy follows after {:?}", now - last);
                } else {
                    side.initiation = bytes.to_vec();
                    side.initiations.push(now);
                }
            }
            Message::Response { receiver_index } => {
                for key in [(from, sender_index(bytes)), (to, receiver_index)] {
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

    /// Records that `side` has received data.
    pub(crate) fn received_data(&mut self, side: usize, now: Duration) {
        self.sides[side].silent_since.get_or_insert(now);
    }

    /// Checks `side` after its timers ran. `can_send` if it has a session and an endpoint.
    pub(crate) fn check_timers(&mut self, side: usize, can_send: bool, now: Duration) {
        let silent_since = &mut self.sides[side].silent_since;
        if !can_send {
            *silent_since = None;
        }
        let is_late = silent_since.is_some_and(|since| now > since + KEEPALIVE_TIMEOUT + LATENESS);

        assert!(
            ENGINES[side] != Engine::Native || !is_late,
            "side {side} has received data at {silent_since:?} and sent nothing until {now:?}"
        );
    }

    /// `side` restarts, and may use the same indices for other sessions.
    pub(crate) fn handle_restart(&mut self, side: usize) {
        self.former.extend(self.sessions.keys().filter(|(to, _)| *to == side));
        self.sides[side].silent_since = None;
    }

    /// `side` ends its sessions and sends nothing more in them. The peer does until it has a new session.
    pub(crate) fn end_sessions(&mut self, side: usize) {
        self.sessions.retain(|(to, _), _| *to == side);
        for session in self.sessions.values_mut() {
            session.is_one_sided = true;
        }
    }

    /// The times at which `side` has sent initiations.
    pub(crate) fn initiations(&self, side: usize) -> &[Duration] {
        &self.sides[side].initiations
    }

    fn sent_data(&mut self, from: usize, key: (usize, u32), bytes: &[u8], now: Duration) {
        let Some(session) = self.sessions.get_mut(&key) else {
            panic!("side {from} sends in an unknown session: {bytes:?}");
        };
        let counter = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let last = session.last_counter.replace(counter);
        assert!(last < Some(counter), "side {from} reuses counter {counter}: the last was {last:?}");

        let age = now - session.since;
        assert!(
            ENGINES[from] != Engine::Native || age < REJECT_AFTER_TIME + LATENESS,
            "side {from} sends in a session of age {age:?}"
        );
    }
}

/// The sender index of a handshake message.
fn sender_index(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[4..8].try_into().unwrap())
}
