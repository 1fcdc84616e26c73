//! Our own static keys: the current one, and former ones for their grace period.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::path::Path;
use strait_wg::PublicKey;
use strait_wg::key_rotation::{Deadline, MAX_OLDER_KEYS};
use strait_wg::tunnel::{Identification, Identity};
use strait_wg::{AcceptedByPeer, Epoch};

/// All static keys of ours that peers may use. `Control` adds keys, `Handshakes` uses and expires them.
#[derive(Debug)]
pub(super) struct Keyring {
    keys: ArcSwap<OwnKeys>,
    /// Accepted timestamps of all keys, expired ones too: a key may come back.
    accepted: AcceptedByPeer,
}

/// The keys at one point in time.
#[derive(Clone, Debug)]
pub(super) struct OwnKeys {
    /// The newest key.
    pub(super) current: OwnKey,
    /// The former keys, the latest first.
    pub(super) older: Vec<OwnKey>,
}

/// One static key.
#[derive(Clone, Debug)]
pub(super) struct OwnKey {
    pub(super) identity: Arc<dyn Identity>,
    /// The end of its grace period; `None` for the current one.
    pub(super) end: Option<Arc<Deadline>>,
    /// Whether it is valid only for receiving in existing sessions.
    pub(super) is_superseded: bool,
}

impl Keyring {
    pub(super) fn new(identity: Arc<dyn Identity>) -> Self {
        let accepted = AcceptedByPeer::default();
        identity.share_accepted(&accepted);
        let keys = OwnKeys { current: OwnKey::current(identity), older: Vec::new() };

        Self { keys: ArcSwap::from_pointee(keys), accepted }
    }

    /// All of them.
    pub(super) fn keys(&self) -> Arc<OwnKeys> {
        self.keys.load_full()
    }

    /// Makes `identity` the current one. If its key is still in its grace period, the existing identity is reused,
    /// with its sessions and the timestamps it has accepted. Returns whether the key changed.
    pub(super) fn rotate(&self, identity: &Arc<dyn Identity>) -> bool {
        self.add(identity, false)
    }

    /// The same, but former keys end at once for sending and for handshakes.
    pub(super) fn supersede(&self, identity: &Arc<dyn Identity>) -> bool {
        self.add(identity, true)
    }

    fn add(&self, identity: &Arc<dyn Identity>, supersedes: bool) -> bool {
        let key = identity.public_key();
        let before = self.keys();
        if before.current.identity.public_key() == key {
            return false;
        }
        let same = before.older.iter().find(|held| {
            held.identity.public_key() == key && held.end.as_ref().is_none_or(|end| end.revoke())
        });
        let identity = same.map_or(identity, |held| &held.identity);
        identity.share_accepted(&self.accepted);

        self.keys.rcu(|before| {
            let older = before.all().filter(|held| held.identity.public_key() != key);
            let older = older.map(|held| OwnKey {
                identity: Arc::clone(&held.identity),
                end: Some(held.end.clone().unwrap_or_default()),
                is_superseded: held.is_superseded || supersedes,
            });

            OwnKeys {
                current: OwnKey::current(Arc::clone(identity)),
                older: older.take(MAX_OLDER_KEYS).collect(),
            }
        });

        true
    }

    /// Makes `identity` the only key.
    pub(super) fn replace(&self, identity: &Arc<dyn Identity>) {
        let current = OwnKey::current(Arc::clone(identity));
        identity.share_accepted(&self.accepted);

        self.keys.store(Arc::new(OwnKeys { current, older: Vec::new() }));
    }

    /// The key of ours that an initiation is for, and the initiator. See [`Identity::identify`].
    pub(super) fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<(PublicKey, Identification), DropReason> {
        for OwnKey { identity, .. } in self.keys.load().all().filter(|held| !held.is_superseded) {
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
        for OwnKey { identity, .. } in self.keys.load().all() {
            identity.handle_wall_clock(epoch);
        }
    }

    /// See [`Identity::continue_after`].
    pub(super) fn continue_after(&self, epoch: Epoch) {
        for OwnKey { identity, .. } in self.keys.load().all() {
            identity.continue_after(epoch);
        }
    }

    /// Time has advanced to `now`. Drops the keys whose grace period is over.
    pub(super) fn handle_timeout(&self, now: Instant) {
        let mut has_ended = false;
        for OwnKey { identity, end, .. } in self.keys.load().all() {
            identity.handle_timeout(now);
            has_ended |= end.as_ref().is_some_and(|end| end.handle_timeout(now));
        }
        if has_ended {
            self.keys.rcu(|keys| {
                let mut keys = OwnKeys::clone(keys);
                keys.older.retain(|held| !held.end.as_ref().is_some_and(|end| end.has_passed()));
                keys
            });
        }
    }
}

impl OwnKey {
    const fn current(identity: Arc<dyn Identity>) -> Self {
        Self { identity, end: None, is_superseded: false }
    }
}

impl OwnKeys {
    fn all(&self) -> impl Iterator<Item = &OwnKey> {
        std::iter::once(&self.current).chain(&self.older)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use remap::Table;

    use super::*;
    use crate::{Engine, PeerConfig, Settings};
    use strait_wg::key_rotation::GRACE;
    use strait_wg::native::Environment;
    use strait_wg::tunnel::PeerKeys;
    use strait_wg::{IndexSlot, PrivateKey};

    /// A recorded initiation would move the endpoint of the peer to the attacker.
    #[test]
    fn reactivated_key_rejects_replayed_initiations() {
        let start = Instant::now();
        let [ours, theirs] = [(); 2].map(|()| PrivateKey::generate());
        let mut engine = engine(&native(&ours, start), start);
        engine.control.apply(vec![peer(theirs.public_key())], Table::default());
        let recorded = initiation(&native(&theirs, start), ours.public_key(), start);
        assert!(is_answered(&mut engine, &recorded, start));

        engine.control.rotate_key(&native(&PrivateKey::generate(), start));
        for now in [start, start + GRACE] {
            engine.handshakes.handle_timeout(now).fill(&mut TransmitBatch::default());
        }
        engine.control.free_retired();
        let now = start + 2 * GRACE;
        assert!(!is_answered(&mut engine, &recorded, now), "the key has ended");
        engine.control.rotate_key(&native(&ours, start));

        assert!(!is_answered(&mut engine, &recorded, now));
        let account = engine.control.accounts().inbound.snapshot();
        assert_eq!(account.drops(DropReason::Replayed), 1);
        let next = initiation(&native(&theirs, start), ours.public_key(), now);
        assert!(is_answered(&mut engine, &next, now));
    }

    fn engine(identity: &Arc<dyn Identity>, start: Instant) -> Engine {
        let settings = Settings { max_flows: 1024, seed: 7, index_seed: 7, start };

        Engine::new(Arc::clone(identity), settings).unwrap()
    }

    fn native(key: &PrivateKey, start: Instant) -> Arc<dyn Identity> {
        let epoch = Epoch::new(start, Duration::from_secs(1_700_000_000));

        strait_wg::Engine::Native.identity(key, &Environment::new(epoch, 1420))
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
        identity.tunnel(&keys(to), IndexSlot::from(1)).initiate(path(), &mut out, now);

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
