//! Which initiations were answered, so that none is answered twice, and how ours were dated.
//!
//! What is known of a peer outlives its tunnels and our keys: the peer goes on for as long as it has a tunnel,
//! under whatever key of ours, and a key that comes back finds what it had answered. With the last tunnel all
//! of it is forgotten: whoever is named again after that is somebody new, whose clock may have been set back.
//!
//! Source: WireGuard whitepaper, section 5.1.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::tai64n::{Timestamp, Timestamps};
use super::timers::INITIATION_GAP;
use crate::PublicKey;
use strait_packet::DropReason;

/// So many keys of ours are told apart beside the one that has answered last: twice as many as are in use at the
/// most.
const MAX_OTHERS: usize = 8;

/// What was answered of every peer that has a tunnel. Whoever clones it shares it.
#[derive(Clone, Default)]
pub struct AcceptedByPeer(Arc<Mutex<ByPeer>>);

#[derive(Default)]
struct ByPeer {
    by_key: HashMap<PublicKey, Weak<Mutex<Accepted>>>,
    /// When there are so many those without a tunnel are looked for.
    enough: usize,
}

impl AcceptedByPeer {
    /// What was answered of `peer`. It is remembered as long as somebody holds it.
    pub(super) fn of(&self, peer: PublicKey) -> Arc<Mutex<Accepted>> {
        let ByPeer { by_key, enough } = &mut *self.0.lock();
        if let Some(accepted) = by_key.get(&peer).and_then(Weak::upgrade) {
            return accepted;
        }
        if by_key.len() >= *enough {
            by_key.retain(|_, accepted| accepted.strong_count() > 0);
            *enough = 2 * by_key.len() + 16;
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

/// Which initiations of one peer were answered. A peer that does not know which of our keys is in force asks
/// several at once, so each of them stands for itself.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// By the key that has answered last. Most peers know no other.
    latest: Option<Latest>,
    /// By other keys, that before it last.
    others: Vec<Latest>,
    /// What any key beside these is sent must be newer than this.
    floor: Option<Timestamp>,
    /// Of our initiations to the peer, whatever tunnel and key of ours they are with.
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
    /// Takes an authentic initiation to the owner of `own`, which was made at `timestamp`.
    ///
    /// # Errors
    ///
    /// [`DropReason::Replayed`] if it is not newer than the one before, [`DropReason::UnderLoad`] if it
    /// comes too soon after that.
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
        let before = self.latest.replace(Latest { own, timestamp, at: now });
        if let Some(before) = before.filter(|before| before.own != own) {
            if self.others.len() >= MAX_OTHERS {
                let forgotten = self.others.remove(0);
                self.floor = self.floor.max(Some(forgotten.timestamp));
            }
            self.others.push(before);
        }

        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use super::*;

    #[test]
    fn each_of_our_keys_has_what_it_answered_to_itself() {
        let (accepted, now) = (AcceptedByPeer::default().of(own(0)), Instant::now());
        let mut accepted = accepted.lock();

        assert_eq!(accepted.take(own(1), made_at(5), now), Ok(()));
        assert_eq!(accepted.take(own(2), made_at(4), now), Ok(()));

        assert_eq!(accepted.take(own(1), made_at(5), now), Err(DropReason::Replayed));
        assert_eq!(accepted.take(own(1), made_at(6), now), Err(DropReason::UnderLoad));
        assert_eq!(accepted.take(own(2), made_at(6), now + INITIATION_GAP), Ok(()));
    }

    #[test]
    fn what_a_key_of_ours_has_answered_is_known_after_any_number_of_others() {
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
    fn a_peer_is_remembered_while_it_has_a_tunnel() {
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
    fn peers_without_a_tunnel_do_not_add_up() {
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
