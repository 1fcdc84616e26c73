//! The keyed tunnels of a peer: one for each combination of our keys and the peer's keys that is in use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::keyring::{OwnKey, OwnKeys};
use strait_wg::handover::TunnelState;
use strait_wg::key_rotation::{Deadline, KeyedTunnel, MAX_OLDER_KEYS, OlderTunnel};
use strait_wg::tunnel::PeerKeys;
use strait_wg::{IndexSlot, KeyRotation, Peer, PublicKey, ReceiverIndices};

/// Creates keyed tunnels, each with a slot of its own.
#[derive(Debug)]
pub(super) struct KeyedTunnels {
    indices: ReceiverIndices,
    free_slots: Vec<u32>,
    next_slot: u32,
    /// Tunnels of the predecessor of this process, by the digest of their keys.
    handed_over: HashMap<[u8; 32], (u32, TunnelState)>,
}

/// Keys of a peer, and the end of their grace period unless they are the newest.
type PeerKeysUntil = (PeerKeys, Option<Arc<Deadline>>);

impl KeyedTunnels {
    /// Without tunnels. Their slots are among `indices`.
    pub(super) fn new(indices: ReceiverIndices) -> Self {
        Self { indices, free_slots: Vec::new(), next_slot: 0, handed_over: HashMap::new() }
    }

    /// Keeps the `tunnels` of the predecessor of this process, each with the digest of its keys and its slot, until a peer
    /// with these keys is configured. To be called before there are tunnels.
    pub(super) fn import(&mut self, tunnels: Vec<([u8; 32], u32, TunnelState)>) {
        let taken: HashSet<u32> = tunnels.iter().map(|(_, slot, _)| *slot).collect();
        self.next_slot = taken.iter().max().map_or(0, |slot| slot + 1);
        self.free_slots = (0..self.next_slot).filter(|slot| !taken.contains(slot)).collect();
        self.handed_over =
            tunnels.into_iter().map(|(keys, slot, state)| (keys, (slot, state))).collect();
    }

    /// Wipes the tunnels of the predecessor that no peer has claimed. Returns how many there were.
    pub(super) fn forget_handed_over(&mut self) -> usize {
        let forgotten = std::mem::take(&mut self.handed_over);
        self.free_slots.extend(forgotten.values().map(|(slot, _)| *slot));

        forgotten.len()
    }

    /// The tunnels of a peer that is to have `keys` and may be `known` with other keys. Existing tunnels are kept.
    /// `wanted` are the configured keys of all peers.
    pub(super) fn for_keys(
        &mut self,
        known: Option<&Peer>,
        keys: &PeerKeys,
        wanted: &HashSet<PublicKey>,
        own_keys: &OwnKeys,
    ) -> KeyRotation {
        let older = older_peer_keys(known, keys, wanted);

        self.combine(known, keys, &older, own_keys)
    }

    /// New tunnels without sessions for all keys of `peer`, newest and older.
    pub(super) fn renewed(
        &mut self,
        peer: &Peer,
        wanted: &HashSet<PublicKey>,
        own_keys: &OwnKeys,
    ) -> KeyRotation {
        let older = older_peer_keys(Some(peer), &peer.keys, wanted);

        self.combine(None, &peer.keys, &older, own_keys).starting_with_session_keys_of(&peer.tunnel)
    }

    /// Makes the slot of a closed tunnel available again.
    pub(super) fn free(&mut self, slot: u32) {
        self.free_slots.push(slot);
    }

    /// A tunnel for each pair of our keys and the peer's: `keys`, then the `older` ones. Tunnels of `known` are kept.
    fn combine(
        &mut self,
        known: Option<&Peer>,
        keys: &PeerKeys,
        older: &[PeerKeysUntil],
        own_keys: &OwnKeys,
    ) -> KeyRotation {
        let current = &own_keys.current;
        let reused = known.and_then(|peer| {
            let own = current.identity.public_key();
            let keyed = peer.tunnel.reuse(own, keys, [None; 2], false)?;
            let stays = keyed.slot == peer.tunnel.current().slot;
            (stays || !peer.tunnel.is_superseded(keyed)).then(|| keyed.clone())
        });
        let first = reused.unwrap_or_else(|| self.new_tunnel(current, keys));

        let mut older_tunnels = Vec::new();
        let newest = (keys.clone(), None);
        for (keys, end) in std::iter::once(&newest).chain(older) {
            let first = end.as_ref().map(|_| current);
            for own_key in first.into_iter().chain(&own_keys.older) {
                if let Some(keyed) = self.tunnel_for(known, own_key, keys, end.as_ref()) {
                    let older = OlderTunnel::new(keyed, own_key.end.clone(), end.clone());
                    older_tunnels.push(older.receive_only(own_key.is_superseded));
                }
            }
        }

        KeyRotation::new(first, older_tunnels)
    }

    /// The tunnel for a key of ours and a key of the peer, whose grace period may have an `end`: the existing one if it
    /// has not ended. A superseded key gets no new one.
    fn tunnel_for(
        &mut self,
        known: Option<&Peer>,
        own_key: &OwnKey,
        keys: &PeerKeys,
        end: Option<&Arc<Deadline>>,
    ) -> Option<KeyedTunnel> {
        let own = own_key.identity.public_key();
        let ends = [own_key.end.as_ref(), end];
        let before =
            known.and_then(|peer| peer.tunnel.reuse(own, keys, ends, own_key.is_superseded));

        before.cloned().or_else(|| (!own_key.is_superseded).then(|| self.new_tunnel(own_key, keys)))
    }

    fn new_slot(&mut self) -> u32 {
        self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.next_slot;
            self.next_slot += 1;
            slot
        })
    }

    fn new_tunnel(&mut self, own_key: &OwnKey, keys: &PeerKeys) -> KeyedTunnel {
        let own = own_key.identity.public_key();
        let (slot, state) = match self.handed_over.remove(&keys.digest(own)) {
            Some((slot, state)) => (slot, Some(state)),
            None => (self.new_slot(), None),
        };
        let tunnel = own_key.identity.tunnel(keys, IndexSlot::new(slot, self.indices));
        if let Some(state) = state {
            tunnel.import(state);
        }

        KeyedTunnel { own, keys: keys.clone(), slot, tunnel }
    }
}

/// The former keys of the peer that are still in their grace period, except those that another peer has now.
fn older_peer_keys(
    known: Option<&Peer>,
    keys: &PeerKeys,
    wanted: &HashSet<PublicKey>,
) -> Vec<PeerKeysUntil> {
    let Some(known) = known else {
        return Vec::new();
    };
    let newest = (&known.keys, None);
    let older = known.tunnel.older().iter();
    let older = older.map(|older| (&older.keyed.keys, older.peer_deadline.as_ref()));

    let mut former: Vec<PeerKeysUntil> = Vec::new();
    for (before, end) in std::iter::once(newest).chain(older) {
        let is_free = before.public_key == keys.public_key || !wanted.contains(&before.public_key);
        let is_known = before == keys || former.iter().any(|(known, _)| known == before);
        let has_ended = end.is_some_and(|end| end.has_passed());
        if is_free && !is_known && !has_ended && former.len() < MAX_OLDER_KEYS {
            former.push((before.clone(), Some(end.cloned().unwrap_or_default())));
        }
    }

    former
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use remap::Table;

    use super::*;
    use crate::{Engine, PeerConfig, Settings};
    use strait_packet::buffer::TransmitBatch;
    use strait_packet::path::Path;
    use strait_wg::PrivateKey;
    use strait_wg::boringtun::BoringtunIdentity;
    use strait_wg::key_rotation::GRACE;
    use strait_wg::tunnel::{Identity, TimerPolicy};
    use strait_wg::{PathMtu, PathMtuSource};

    #[test]
    fn peer_with_new_key_keeps_its_former_tunnel() {
        let mut engine = engine();
        let [before] = apply(&mut engine, [peer("rome", 1)]);

        let [after] = apply(&mut engine, [peer("rome", 2)]);

        let slots: Vec<_> = after.tunnel.slots().collect();
        assert_eq!(slots.len(), 2);
        assert_eq!(slots.last(), before.tunnel.slots().next().as_ref());
        assert_eq!(after.realm, before.realm);
        let forwarding = engine.control.current();
        for key in [1, 2] {
            assert!(Arc::ptr_eq(forwarding.by_key(public_key(key)).unwrap(), &after));
        }
    }

    /// A packet thread sees the change with its next batch.
    #[test]
    fn paths_learned_with_the_former_value_are_kept() {
        let mut engine = engine();
        let [before] = apply(&mut engine, [peer("rome", 1)]);
        let [after] = apply(&mut engine, [peer("rome", 2)]);

        before.learn_path(path());
        before.learn_path_mtu(PathMtu { bytes: 1400, source: PathMtuSource::Route });

        assert_eq!((after.path(), after.path_mtu_bytes()), (Some(path()), Some(1400)));
    }

    #[test]
    fn peers_that_swap_keys_only_swap_names() {
        let mut engine = engine();
        let [rome, oslo] = apply(&mut engine, [peer("rome", 1), peer("oslo", 2)]);

        let after = apply(&mut engine, [peer("rome", 2), peer("oslo", 1)]);

        assert!(Arc::ptr_eq(&after[0], &oslo) && Arc::ptr_eq(&after[1], &rome));
    }

    #[test]
    fn key_moved_to_another_peer_is_not_kept() {
        let mut engine = engine();
        apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);

        let [rome, oslo] = apply(&mut engine, [peer("rome", 2), peer("oslo", 1)]);

        assert_eq!((rome.tunnel.slots().count(), oslo.tunnel.slots().count()), (1, 1));
        assert_ne!(rome.realm, oslo.realm);
        let forwarding = engine.control.current();
        assert!(Arc::ptr_eq(forwarding.by_key(public_key(1)).unwrap(), &oslo));
    }

    #[test]
    fn each_key_pair_has_one_tunnel_and_slot() {
        let mut engine = engine();
        apply(&mut engine, [peer("rome", 1)]);
        engine.control.rotate_key(&identity());
        engine.control.rotate_key(&identity());

        let [rome] = apply(&mut engine, [peer("rome", 2)]);

        let keys: HashSet<_> =
            rome.tunnel.keyed_tunnels().map(|keyed| (keyed.own, keyed.keys.public_key)).collect();
        let slots: HashSet<_> = rome.tunnel.slots().collect();
        assert_eq!((keys.len(), slots.len(), rome.tunnel.slots().count()), (6, 6, 6));
    }

    #[test]
    fn key_restored_after_grace_gets_new_tunnel() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        pass(&mut engine, [start, start + GRACE]);

        let [rome] = apply(&mut engine, [peer("rome", 1)]);

        assert_ne!(rome.tunnel.current().slot, first.tunnel.current().slot);
        assert!(can_begin(&rome, start + GRACE));
    }

    #[test]
    fn key_restored_within_grace_no_longer_ends() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        pass(&mut engine, [start, start + GRACE / 2]);
        let before = engine.control.current();

        let [rome] = apply(&mut engine, [peer("rome", 1)]);
        // A thread with the former value checks the deadline once more.
        for peer in before.peers() {
            peer.tunnel.handle_timeout(
                TimerPolicy::default(),
                &mut TransmitBatch::default(),
                start + 2 * GRACE,
            );
        }

        assert_eq!(rome.tunnel.current().slot, first.tunnel.current().slot);
        assert!(can_begin(&rome, start + 2 * GRACE));
    }

    #[test]
    fn peer_is_settled_after_all_older_keys_end() {
        let (mut engine, start) = (engine(), Instant::now());
        apply(&mut engine, [peer("rome", 1)]);

        let [rome] = apply(&mut engine, [peer("rome", 2)]);

        pass(&mut engine, [start, start + GRACE / 2]);
        assert!(!rome.tunnel.is_settled());
        pass(&mut engine, [start + GRACE]);
        assert!(rome.tunnel.is_settled());
    }

    /// The configuration may never change again.
    #[test]
    fn ended_keys_are_dropped_without_reconfiguration() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 1) }]);
        first.learn_path(path());
        let before = Arc::downgrade(&first.tunnel.current().tunnel);
        drop(first);
        let [second] =
            apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 2) }]);
        let (realm, slot) = (second.realm, second.tunnel.current().slot);
        drop(second);
        engine.control.rotate_key(&identity());
        pass(&mut engine, [start, start + GRACE / 2]);
        engine.control.free_retired();
        assert_eq!(peers_of::<1>(&engine)[0].tunnel.slots().count(), 4);

        pass(&mut engine, [start + GRACE]);
        engine.control.free_retired();

        let [rome] = peers_of(&engine);
        assert_eq!(rome.tunnel.older().len(), 0);
        assert!(engine.control.current().by_key(public_key(1)).is_none());
        assert_eq!((rome.realm, rome.path(), rome.clamp_mtu()), (realm, Some(path()), Some(1400)));
        assert_ne!(rome.tunnel.current().slot, slot, "the slot of the other key of ours");
        // Each packet thread loads the published value with its next batch.
        drop((engine.outbound, engine.inbound, engine.handshakes, engine.forwarding));
        engine.control.free_retired();
        assert!(before.upgrade().is_none());
    }

    #[test]
    fn each_older_key_ends_separately() {
        let (mut engine, start) = (engine(), Instant::now());
        apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        pass(&mut engine, [start, start + GRACE / 2]);
        apply(&mut engine, [peer("rome", 3)]);
        pass(&mut engine, [start + GRACE / 2]);

        let left = [GRACE, GRACE + GRACE / 2].map(|passed| {
            pass(&mut engine, [start + passed]);
            engine.control.free_retired();
            peers_of::<1>(&engine)[0].tunnel.older().len()
        });

        assert_eq!(left, [1, 0]);
        let [rome] = peers_of(&engine);
        assert!(rome.tunnel.is_settled() && can_begin(&rome, start + 2 * GRACE));
    }

    /// The identity holds the cookie secret and the rate limits of the key.
    #[test]
    fn own_key_restored_within_grace_keeps_its_identity() {
        let start = Instant::now();
        for (passed, is_same) in [(GRACE / 2, true), (GRACE, false)] {
            let key = PrivateKey::generate();
            let [first, again] = [(); 2].map(|()| identity_of(&key));
            let mut engine = engine_with(Arc::clone(&first));
            apply(&mut engine, [peer("rome", 1)]);
            engine.control.rotate_key(&identity());
            pass(&mut engine, [start, start + passed]);

            engine.control.rotate_key(&again);

            let keys = engine.control.keyring.keys();
            assert_eq!(Arc::ptr_eq(&keys.current.identity, &first), is_same, "{passed:?}");
            let [rome] = peers_of(&engine);
            pass(&mut engine, [start + 2 * GRACE]);
            assert!(can_begin(&rome, start + 2 * GRACE), "{passed:?}");
        }
    }

    /// Also for keys that end soon: the peer may know no others.
    #[test]
    fn renewed_sessions_have_new_tunnels_for_all_keys() {
        let mut engine = engine();
        let [first] = apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 1) }]);
        first.learn_path(path());
        let [before] =
            apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 2) }]);
        engine.control.rotate_key(&identity());
        let [before_both] = peers_of(&engine);

        engine.control.renew_sessions();

        let [after] = peers_of(&engine);
        let keys = |peer: &Peer| -> Vec<_> {
            peer.tunnel.keyed_tunnels().map(|keyed| (keyed.own, keyed.keys.public_key)).collect()
        };
        assert_eq!(keys(&after), keys(&before_both));
        let slots: HashSet<_> = after.tunnel.slots().collect();
        assert!(before_both.tunnel.slots().all(|slot| !slots.contains(&slot)));
        assert_eq!((after.realm, after.path()), (before.realm, Some(path())));
        assert_eq!(after.clamp_mtu(), Some(1400));
        assert!(can_begin(&after, Instant::now()) && !can_begin(&before_both, Instant::now()));
    }

    /// The new tunnels share the deadlines of the former ones.
    #[test]
    fn session_renewal_does_not_extend_the_grace_period() {
        let (mut engine, start) = (engine(), Instant::now());
        apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        engine.control.rotate_key(&identity());
        pass(&mut engine, [start, start + GRACE / 2]);

        engine.control.renew_sessions();

        assert_eq!(peers_of::<1>(&engine)[0].tunnel.slots().count(), 4);
        pass(&mut engine, [start + GRACE]);
        engine.control.free_retired();
        let [rome] = peers_of(&engine);
        assert!(rome.tunnel.is_settled() && can_begin(&rome, start + GRACE));
    }

    #[test]
    fn older_keys_are_bounded_and_slots_reused() {
        let mut engine = engine();

        for key in 1..=100 {
            engine.control.rotate_key(&identity());
            apply(&mut engine, [peer("rome", key)]);
        }

        let [rome] = apply(&mut engine, [peer("rome", 100)]);
        let combinations = (MAX_OLDER_KEYS + 1) * (MAX_OLDER_KEYS + 1);
        assert_eq!(rome.tunnel.slots().count(), combinations);
        let highest = rome.tunnel.slots().max().unwrap();
        assert!(usize::try_from(highest).unwrap() < 3 * combinations, "slot {highest}");
    }

    fn engine() -> Engine {
        engine_with(identity())
    }

    fn engine_with(identity: Arc<dyn Identity>) -> Engine {
        Engine::new(
            identity,
            Settings { max_flows: 1024, seed: 7, index_seed: 7, start: Instant::now() },
        )
        .unwrap()
    }

    /// Time advances to each of `moments`.
    fn pass<const N: usize>(engine: &mut Engine, moments: [Instant; N]) {
        let mut out = TransmitBatch::default();
        for now in moments {
            out.clear();
            engine.handshakes.handle_timeout(now).fill(&mut out);
        }
    }

    /// Whether a handshake with the newest keys can begin.
    fn can_begin(peer: &Peer, now: Instant) -> bool {
        let mut out = TransmitBatch::default();
        peer.tunnel.initiate(path(), &mut out, now);

        !out.is_empty()
    }

    fn path() -> Path {
        SocketAddr::from(([192, 0, 2, 1], 51840)).into()
    }

    fn identity() -> Arc<dyn Identity> {
        identity_of(&PrivateKey::generate())
    }

    fn identity_of(key: &PrivateKey) -> Arc<dyn Identity> {
        Arc::new(BoringtunIdentity::new(key))
    }

    fn apply<const N: usize>(engine: &mut Engine, peers: [PeerConfig; N]) -> [Arc<Peer>; N] {
        engine.control.apply(peers.to_vec(), Table::default());

        peers_of(engine)
    }

    fn peers_of<const N: usize>(engine: &Engine) -> [Arc<Peer>; N] {
        engine.control.current().peers().to_vec().try_into().unwrap()
    }

    fn peer(name: &str, key: u8) -> PeerConfig {
        PeerConfig {
            name: name.to_owned(),
            keys: PeerKeys { public_key: public_key(key), preshared_key: None },
            endpoints: Vec::new(),
            allowed_ips: Arc::default(),
            clamp_mtu: None,
            persistent_keepalive: None,
        }
    }

    fn public_key(key: u8) -> PublicKey {
        PublicKey::from_bytes([key; 32])
    }
}
