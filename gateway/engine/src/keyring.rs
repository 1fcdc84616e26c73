//! Our own keys: the one in force, and those before it for their grace period.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::path::Path;
use strait_wg::PublicKey;
use strait_wg::native::{AcceptedByPeer, Epoch};
use strait_wg::succession::{Deadline, MAX_OLDER};
use strait_wg::tunnel::{Identity, Introduction};

/// All keys that a peer may know us by. `Control` adds, `Handshakes` asks and forgets.
#[derive(Debug)]
pub(super) struct Keyring {
    keys: ArcSwap<Keys>,
    /// By all of them, those that are forgotten too: they may come back.
    accepted: AcceptedByPeer,
}

/// The keys of one moment.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// In force.
    pub(super) current: Held,
    /// Those before it, the latest first.
    pub(super) older: Vec<Held>,
}

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) identity: Arc<dyn Identity>,
    /// `None` for the one in force.
    pub(super) end: Option<Arc<Deadline>>,
    /// Whether it ended at once for sending, and for handshakes.
    pub(super) is_superseded: bool,
}

impl Keyring {
    pub(super) fn new(identity: Arc<dyn Identity>) -> Self {
        let accepted = AcceptedByPeer::default();
        identity.remember_in(&accepted);
        let keys = Keys { current: Held::in_force(identity), older: Vec::new() };

        Self { keys: ArcSwap::from_pointee(keys), accepted }
    }

    /// All of them.
    pub(super) fn keys(&self) -> Arc<Keys> {
        self.keys.load_full()
    }

    /// Puts `identity` in force, or the same as it was if its end has not come yet: its sessions hang on that,
    /// and whom it has heard. Says whether another was before.
    pub(super) fn succeed(&self, identity: &Arc<dyn Identity>) -> bool {
        self.follow(identity, false)
    }

    /// The same, but those before end at once for sending, and for handshakes.
    pub(super) fn supersede(&self, identity: &Arc<dyn Identity>) -> bool {
        self.follow(identity, true)
    }

    fn follow(&self, identity: &Arc<dyn Identity>, supersedes: bool) -> bool {
        let key = identity.public_key();
        let before = self.keys();
        if before.current.identity.public_key() == key {
            return false;
        }
        let same = before.older.iter().find(|held| {
            held.identity.public_key() == key && held.end.as_ref().is_none_or(|end| end.take_back())
        });
        let identity = same.map_or(identity, |held| &held.identity);
        identity.remember_in(&self.accepted);

        self.keys.rcu(|before| {
            let older = before.all().filter(|held| held.identity.public_key() != key);
            let older = older.map(|held| Held {
                identity: Arc::clone(&held.identity),
                end: Some(held.end.clone().unwrap_or_default()),
                is_superseded: held.is_superseded || supersedes,
            });

            Keys {
                current: Held::in_force(Arc::clone(identity)),
                older: older.take(MAX_OLDER).collect(),
            }
        });

        true
    }

    /// Puts `identity` in force and forgets every other.
    pub(super) fn replace(&self, identity: &Arc<dyn Identity>) {
        let current = Held::in_force(Arc::clone(identity));
        identity.remember_in(&self.accepted);

        self.keys.store(Arc::new(Keys { current, older: Vec::new() }));
    }

    /// Which key of ours an initiation is for, and what it tells. See [`Identity::identify`].
    pub(super) fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<(PublicKey, Introduction), DropReason> {
        for Held { identity, .. } in self.keys.load().all().filter(|held| !held.is_superseded) {
            match identity.identify(initiation, path, out) {
                Ok(introduction) => return Ok((identity.public_key(), introduction)),
                Err(DropReason::Unauthenticated) => {}
                Err(reason) => return Err(reason),
            }
        }

        Err(DropReason::Unauthenticated)
    }

    /// See [`Identity::handle_wall_clock`].
    pub(super) fn handle_wall_clock(&self, epoch: Epoch) {
        for Held { identity, .. } in self.keys.load().all() {
            identity.handle_wall_clock(epoch);
        }
    }

    /// See [`Identity::continue_after`].
    pub(super) fn continue_after(&self, epoch: Epoch) {
        for Held { identity, .. } in self.keys.load().all() {
            identity.continue_after(epoch);
        }
    }

    /// Time has advanced to `now`. Forgets the keys whose grace period is over.
    pub(super) fn handle_timeout(&self, now: Instant) {
        let mut has_ended = false;
        for Held { identity, end, .. } in self.keys.load().all() {
            identity.handle_timeout(now);
            has_ended |= end.as_ref().is_some_and(|end| end.handle_timeout(now));
        }
        if has_ended {
            self.keys.rcu(|keys| {
                let mut keys = Keys::clone(keys);
                keys.older.retain(|held| !held.end.as_ref().is_some_and(|end| end.has_passed()));
                keys
            });
        }
    }
}

impl Held {
    const fn in_force(identity: Arc<dyn Identity>) -> Self {
        Self { identity, end: None, is_superseded: false }
    }
}

impl Keys {
    fn all(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(&self.current).chain(&self.older)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use remap::Table;

    use super::*;
    use crate::Engine;
    use crate::PeerConfig;
    use crate::Settings;
    use strait_wg::PrivateKey;
    use strait_wg::Slot;
    use strait_wg::native::Surroundings;
    use strait_wg::succession::GRACE;
    use strait_wg::tunnel::PeerKeys;

    /// Somebody may have recorded it, and be taken for the peer now, wherever that is.
    #[test]
    fn a_key_that_comes_back_answers_no_initiation_again() {
        let start = Instant::now();
        let [ours, theirs] = [(); 2].map(|()| PrivateKey::generate());
        let mut engine = engine(&native(&ours, start), start);
        engine.control.apply(vec![peer(theirs.public_key())], Table::default());
        let recorded = initiation(&native(&theirs, start), ours.public_key(), start);
        assert!(is_answered(&mut engine, &recorded, start));

        engine.control.succeed(&native(&PrivateKey::generate(), start));
        for now in [start, start + GRACE] {
            engine.handshakes.handle_timeout(
                now,
                &mut TransmitBatch::default(),
                TransmitBatch::clear,
            );
        }
        engine.control.free_retired();
        let now = start + 2 * GRACE;
        assert!(!is_answered(&mut engine, &recorded, now), "the key has ended");
        engine.control.succeed(&native(&ours, start));

        assert!(!is_answered(&mut engine, &recorded, now));
        let account = engine.control.accounts().inbound.snapshot();
        assert_eq!(account.drops(DropReason::Replayed), 1);
        let next = initiation(&native(&theirs, start), ours.public_key(), now);
        assert!(is_answered(&mut engine, &next, now));
    }

    fn engine(identity: &Arc<dyn Identity>, start: Instant) -> Engine {
        let settings = Settings { max_flows: 1024, seed: 7, start };

        Engine::new(Arc::clone(identity), settings).unwrap()
    }

    fn native(key: &PrivateKey, start: Instant) -> Arc<dyn Identity> {
        let epoch = Epoch::new(start, Duration::from_secs(1_700_000_000));

        strait_wg::Engine::Native.identity(key, &Surroundings::new(epoch, 1420))
    }

    fn peer(public_key: PublicKey) -> PeerConfig {
        PeerConfig {
            name: "rome".to_owned(),
            keys: keys(public_key),
            endpoints: Vec::new(),
            allowed_ips: Arc::default(),
            clamp_mtu: None,
            persistent_keepalive: None,
        }
    }

    fn keys(public_key: PublicKey) -> PeerKeys {
        PeerKeys { public_key, preshared_key: None }
    }

    fn initiation(identity: &Arc<dyn Identity>, to: PublicKey, now: Instant) -> Vec<u8> {
        let mut out = TransmitBatch::default();
        identity.tunnel(&keys(to), Slot::from(1)).initiate(path(), &mut out, now);

        out.bytes(&out.transmits()[0]).to_vec()
    }

    fn is_answered(engine: &mut Engine, message: &[u8], now: Instant) -> bool {
        let mut out = TransmitBatch::default();
        engine.handshakes.handle_message(message, path(), now, &mut out);

        !out.is_empty()
    }

    fn path() -> Path {
        SocketAddr::from(([192, 0, 2, 1], 51840)).into()
    }
}
