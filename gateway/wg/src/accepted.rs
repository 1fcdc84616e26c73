//! The initiations that were answered, so that none is answered twice, and the timestamps of ours.
//!
//! The record of a peer is kept as long as the peer has a tunnel under any key of ours: a key that is used again
//! finds what it had answered. With the last tunnel the record is dropped, and a peer that is configured again
//! starts without one: its clock may have been set back.
//!
//! Source: WireGuard whitepaper, section 5.1.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::tai64n::{Timestamp, Timestamps};
use crate::PublicKey;
use crate::handover::{AcceptedRecord, AcceptedState};
use strait_packet::DropReason;

/// The least time between two answered initiations of one peer: fifty a second.
const INITIATION_GAP: Duration = Duration::from_millis(20);

/// How many keys of ours have a record of their own, beside the one that has answered last: twice as many as are in
/// use at most.
const MAX_OTHERS: usize = 8;

/// The records of all peers with a tunnel. Clones share them.
#[derive(Clone, Default)]
pub struct AcceptedByPeer(Arc<Mutex<ByPeer>>);

#[derive(Default)]
struct ByPeer {
    by_key: HashMap<PublicKey, Weak<Mutex<Accepted>>>,
    /// At this size, records of peers without a tunnel are removed.
    sweep_len: usize,
}

impl AcceptedByPeer {
    /// The record of `peer`. It is kept as long as the caller holds it.
    pub(super) fn of(&self, peer: PublicKey) -> Arc<Mutex<Accepted>> {
        let ByPeer { by_key, sweep_len } = &mut *self.0.lock();
        if let Some(accepted) = by_key.get(&peer).and_then(Weak::upgrade) {
            return accepted;
        }
        if by_key.len() >= *sweep_len {
            by_key.retain(|_, accepted| accepted.strong_count() > 0);
            *sweep_len = 2 * by_key.len() + 16;
        }
        let accepted = Arc::default();
        by_key.insert(peer, Arc::downgrade(&accepted));

        accepted
    }
}

impl fmt::Debug for AcceptedByPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptedByPeer").finish_non_exhaustive()
    }
}

/// The initiations of one peer that were answered, by key of ours: a peer that does not know which key is in force
/// sends initiations to several at once.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Of the key that has answered last. Most peers use no other.
    latest: Option<Latest>,
    /// Of other keys, in the order in which they answered.
    others: Vec<Latest>,
    /// Initiations to any other key must be newer than this.
    floor: Option<Timestamp>,
    /// Of our initiations to the peer, with all tunnels and keys of ours.
    pub(super) ours: Timestamps,
}

/// The latest initiation that a key of ours has answered.
#[derive(Debug)]
struct Latest {
    own: PublicKey,
    timestamp: Timestamp,
    at: Instant,
}

impl Accepted {
    /// Records an authentic initiation to our key `own` with this `timestamp`.
    ///
    /// # Errors
    ///
    /// [`DropReason::Replayed`] if it is not newer than the last one, [`DropReason::UnderLoad`] if it arrives less
    /// than [`INITIATION_GAP`] after that.
    pub(super) fn take(
        &mut self,
        own: PublicKey,
        timestamp: Timestamp,
        now: Instant,
    ) -> Result<(), DropReason> {
        let mut known = self.latest.iter().chain(&self.others);
        let latest = known.find(|latest| latest.own == own);
        let newest = latest.map(|latest| latest.timestamp).or(self.floor);
        if newest.is_some_and(|newest| timestamp <= newest) {
            return Err(DropReason::Replayed);
        }
        if latest.is_some_and(|latest| now < latest.at + INITIATION_GAP) {
            return Err(DropReason::UnderLoad);
        }
        self.others.retain(|latest| latest.own != own);
        let previous = self.latest.replace(Latest { own, timestamp, at: now });
        if let Some(previous) = previous.filter(|previous| previous.own != own) {
            if self.others.len() >= MAX_OTHERS {
                let forgotten = self.others.remove(0);
                self.floor = self.floor.max(Some(forgotten.timestamp));
            }
            self.others.push(previous);
        }

        Ok(())
    }

    /// A copy for a successor of this process.
    pub(super) fn export(&self) -> AcceptedState {
        let records = self.others.iter().chain(&self.latest).map(|latest| AcceptedRecord {
            own: latest.own,
            timestamp: *latest.timestamp.as_bytes(),
            at: latest.at,
        });

        AcceptedState {
            records: records.collect(),
            floor: self.floor.map(|floor| *floor.as_bytes()),
            ours: self.ours.last(),
        }
    }

    /// Takes over the record of the predecessor. It replaces this one, which is empty.
    pub(super) fn import(&mut self, state: &AcceptedState) {
        let mut records: Vec<_> = state.records.iter().map(Latest::imported).collect();
        self.latest = records.pop();
        self.others = records;
        self.floor = state.floor.map(Timestamp::from_bytes);
        self.ours = Timestamps::after(state.ours);
    }
}

impl Latest {
    const fn imported(record: &AcceptedRecord) -> Self {
        let AcceptedRecord { own, timestamp, at } = *record;

        Self { own, timestamp: Timestamp::from_bytes(timestamp), at }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test may start at any instant")]
mod tests {
    use super::*;

    #[test]
    fn each_of_our_keys_has_its_own_record() {
        let (accepted, now) = (AcceptedByPeer::default().of(own(0)), Instant::now());
        let mut accepted = accepted.lock();

        assert_eq!(accepted.take(own(1), made_at(5), now), Ok(()));
        assert_eq!(accepted.take(own(2), made_at(4), now), Ok(()));

        assert_eq!(accepted.take(own(1), made_at(5), now), Err(DropReason::Replayed));
        assert_eq!(accepted.take(own(1), made_at(6), now), Err(DropReason::UnderLoad));
        assert_eq!(accepted.take(own(2), made_at(6), now + INITIATION_GAP), Ok(()));
    }

    #[test]
    fn an_answered_initiation_stays_known_after_many_keys() {
        let (mut accepted, now) = (Accepted::default(), Instant::now());
        for number in 0..100 {
            assert_eq!(accepted.take(own(number), made_at(number + 1), now), Ok(()));
        }

        for number in 0..100 {
            let again = accepted.take(own(number), made_at(number + 1), now + INITIATION_GAP);
            assert_eq!(again, Err(DropReason::Replayed), "{number}");
        }
        assert_eq!(accepted.others.len(), MAX_OTHERS);
        assert_eq!(accepted.take(own(0), made_at(101), now), Ok(()));
    }

    #[test]
    fn a_record_lasts_as_long_as_a_tunnel() {
        let (all, now) = (AcceptedByPeer::default(), Instant::now());
        let [first, second] = [(); 2].map(|()| all.of(own(1)));
        first.lock().take(own(9), made_at(5), now).unwrap();

        drop(first);
        assert!(Arc::ptr_eq(&all.of(own(1)), &second));
        drop(second);

        let again = all.of(own(1));
        assert_eq!(again.lock().take(own(9), made_at(5), now), Ok(()));
    }

    #[test]
    fn records_without_a_tunnel_are_removed() {
        let all = AcceptedByPeer::default();

        for number in 0..=u8::MAX {
            let _ = all.of(own(number));
        }

        assert!(all.0.lock().by_key.len() <= 16);
    }

    fn own(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    fn made_at(second: u8) -> Timestamp {
        Timestamp::from_bytes([0, 0, 0, 0, 0, 0, 0, second, 0, 0, 0, 0])
    }
}
