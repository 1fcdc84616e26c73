//! Which strands a peer has: one for every combination of our keys and the peer's that is in use.

use std::collections::HashSet;
use std::sync::Arc;

use super::keyring::Held;
use strait_wg::Indices;
use strait_wg::Peer;
use strait_wg::PublicKey;
use strait_wg::Slot;
use strait_wg::Succession;
use strait_wg::succession::{Deadline, MAX_OLDER, Older, Strand};
use strait_wg::tunnel::PeerKeys;

/// Makes strands, and gives each a slot of its own.
#[derive(Debug)]
pub(super) struct Strands {
    indices: Indices,
    free_slots: Vec<u32>,
    next_slot: u32,
}

/// Keys of a peer, and their end unless they are the newest.
type Variant = (PeerKeys, Option<Arc<Deadline>>);

impl Strands {
    /// No strands yet. Those of this engine have their slots among `indices`.
    pub(super) const fn new(indices: Indices) -> Self {
        Self { indices, free_slots: Vec::new(), next_slot: 0 }
    }

    /// The strands of a peer that is to have `keys` and is `known` with others, or not at all.
    /// Strands that there were before stay. `wanted` are the keys that all peers are to have.
    pub(super) fn succession(
        &mut self,
        known: Option<&Peer>,
        keys: &PeerKeys,
        wanted: &HashSet<PublicKey>,
        keyring: (&Held, &[Held]),
    ) -> Succession {
        let variants = older_variants(known, keys, wanted);

        self.combine(known, keys, &variants, keyring)
    }

    /// Strands for the keys of `peer` as it has them, newest and older, none of which it has already: with
    /// nothing of its sessions.
    pub(super) fn anew(
        &mut self,
        peer: &Peer,
        wanted: &HashSet<PublicKey>,
        keyring: (&Held, &[Held]),
    ) -> Succession {
        let variants = older_variants(Some(peer), &peer.keys, wanted);

        self.combine(None, &peer.keys, &variants, keyring).asking_first_as(&peer.tunnel)
    }

    /// Nobody has this slot any more.
    pub(super) fn free(&mut self, slot: u32) {
        self.free_slots.push(slot);
    }

    /// A strand for each of our keys with each of the peer's: `keys`, then the `variants`. Those of `known` stay.
    fn combine(
        &mut self,
        known: Option<&Peer>,
        keys: &PeerKeys,
        variants: &[Variant],
        (current, older): (&Held, &[Held]),
    ) -> Succession {
        let going_on = known.and_then(|peer| {
            let own = current.identity.public_key();
            let strand = peer.tunnel.going_on(own, keys, [None; 2], false)?;
            let stays = strand.slot == peer.tunnel.current().slot;
            (stays || !peer.tunnel.is_superseded(strand)).then(|| strand.clone())
        });
        let first = going_on.unwrap_or_else(|| self.new_strand(current, keys));

        let mut strands = Vec::new();
        let newest = (keys.clone(), None);
        for (keys, end) in std::iter::once(&newest).chain(variants) {
            let first = end.as_ref().map(|_| current);
            for held in first.into_iter().chain(older) {
                if let Some(strand) = self.strand(known, held, (keys, end.as_ref())) {
                    let older = Older::new(strand, held.end.clone(), end.clone());
                    strands.push(older.receive_only(held.is_superseded));
                }
            }
        }

        Succession::new(first, strands)
    }

    /// The strand of our key and the peer's, which may have an end: as there was before, if it is not over. A key that
    /// is superseded gets no other.
    fn strand(
        &mut self,
        known: Option<&Peer>,
        held: &Held,
        (keys, end): (&PeerKeys, Option<&Arc<Deadline>>),
    ) -> Option<Strand> {
        let own = held.identity.public_key();
        let ends = [held.end.as_ref(), end];
        let before =
            known.and_then(|peer| peer.tunnel.going_on(own, keys, ends, held.is_superseded));

        before.cloned().or_else(|| (!held.is_superseded).then(|| self.new_strand(held, keys)))
    }

    fn new_strand(&mut self, held: &Held, keys: &PeerKeys) -> Strand {
        let own = held.identity.public_key();
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.next_slot;
            self.next_slot += 1;
            slot
        });
        let tunnel = held.identity.tunnel(keys, Slot::new(slot, self.indices));

        Strand { own, keys: keys.clone(), slot, tunnel }
    }
}

/// The keys that the peer had before and may still use. None that another peer has now.
fn older_variants(
    known: Option<&Peer>,
    keys: &PeerKeys,
    wanted: &HashSet<PublicKey>,
) -> Vec<Variant> {
    let Some(known) = known else {
        return Vec::new();
    };
    let newest = (&known.keys, None);
    let older = known.tunnel.older().iter();
    let older = older.map(|older| (&older.strand.keys, older.peer_end.as_ref()));

    let mut variants: Vec<Variant> = Vec::new();
    for (before, end) in std::iter::once(newest).chain(older) {
        let is_free = before.public_key == keys.public_key || !wanted.contains(&before.public_key);
        let is_known = before == keys || variants.iter().any(|(known, _)| known == before);
        let has_ended = end.is_some_and(|end| end.has_passed());
        if is_free && !is_known && !has_ended && variants.len() < MAX_OLDER {
            variants.push((before.clone(), Some(end.cloned().unwrap_or_default())));
        }
    }

    variants
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use remap::Table;

    use super::*;
    use crate::Engine;
    use crate::PeerConfig;
    use crate::Settings;
    use strait_packet::buffer::TransmitBatch;
    use strait_packet::path::Path;
    use strait_wg::PrivateKey;
    use strait_wg::boringtun::BoringtunIdentity;
    use strait_wg::succession::GRACE;
    use strait_wg::tunnel::{Identity, Upkeep};

    #[test]
    fn a_peer_with_another_key_keeps_the_strand_of_the_key_before() {
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

    /// A packet thread sees that with its next batch.
    #[test]
    fn what_is_learned_by_who_does_not_know_yet_that_keys_changed_is_not_lost() {
        let mut engine = engine();
        let [before] = apply(&mut engine, [peer("rome", 1)]);
        let [after] = apply(&mut engine, [peer("rome", 2)]);

        before.learn_path(path());
        before.learn_path_mtu(1400);

        assert_eq!((after.path(), after.path_mtu()), (Some(path()), Some(1400)));
    }

    #[test]
    fn peers_that_exchange_their_keys_exchange_their_names_only() {
        let mut engine = engine();
        let [rome, oslo] = apply(&mut engine, [peer("rome", 1), peer("oslo", 2)]);

        let after = apply(&mut engine, [peer("rome", 2), peer("oslo", 1)]);

        assert!(Arc::ptr_eq(&after[0], &oslo) && Arc::ptr_eq(&after[1], &rome));
    }

    #[test]
    fn a_key_that_another_peer_has_now_is_no_older_key() {
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
    fn every_combination_of_keys_has_one_strand_and_a_slot_of_its_own() {
        let mut engine = engine();
        apply(&mut engine, [peer("rome", 1)]);
        engine.control.succeed(&identity());
        engine.control.succeed(&identity());

        let [rome] = apply(&mut engine, [peer("rome", 2)]);

        let keys: HashSet<_> =
            rome.tunnel.strands().map(|strand| (strand.own, strand.keys.public_key)).collect();
        let slots: HashSet<_> = rome.tunnel.slots().collect();
        assert_eq!((keys.len(), slots.len(), rome.tunnel.slots().count()), (6, 6, 6));
    }

    #[test]
    fn keys_that_come_back_after_their_end_have_another_strand() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        pass(&mut engine, [start, start + GRACE]);

        let [rome] = apply(&mut engine, [peer("rome", 1)]);

        assert_ne!(rome.tunnel.current().slot, first.tunnel.current().slot);
        assert!(can_begin(&rome, start + GRACE));
    }

    #[test]
    fn keys_that_come_back_before_their_end_have_none_any_more() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        pass(&mut engine, [start, start + GRACE / 2]);
        let before = engine.control.current();

        let [rome] = apply(&mut engine, [peer("rome", 1)]);
        // Who does not know yet what is in force now looks at the end once more.
        for peer in before.peers() {
            peer.tunnel.handle_timeout(
                Upkeep::default(),
                &mut TransmitBatch::default(),
                start + 2 * GRACE,
            );
        }

        assert_eq!(rome.tunnel.current().slot, first.tunnel.current().slot);
        assert!(can_begin(&rome, start + 2 * GRACE));
    }

    #[test]
    fn when_all_older_keys_have_ended_it_is_as_if_there_had_been_none() {
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
    fn keys_that_have_ended_are_forgotten_also_if_nothing_is_configured() {
        let (mut engine, start) = (engine(), Instant::now());
        let [first] = apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 1) }]);
        first.learn_path(path());
        let before = Arc::downgrade(&first.tunnel.current().tunnel);
        drop(first);
        let [second] =
            apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 2) }]);
        let (realm, slot) = (second.realm, second.tunnel.current().slot);
        drop(second);
        engine.control.succeed(&identity());
        pass(&mut engine, [start, start + GRACE / 2]);
        engine.control.free_retired();
        assert_eq!(peers_of::<1>(&engine)[0].tunnel.slots().count(), 4);

        pass(&mut engine, [start + GRACE]);
        engine.control.free_retired();

        let [rome] = peers_of(&engine);
        assert_eq!(rome.tunnel.older().len(), 0);
        assert!(engine.control.current().by_key(public_key(1)).is_none());
        assert_eq!((rome.realm, rome.path(), rome.clamp_mtu()), (realm, Some(path()), Some(1400)));
        assert_ne!(rome.tunnel.current().slot, slot, "that of another key of ours");
        // Each packet thread looks at what is in force with its next batch.
        drop((engine.outbound, engine.inbound, engine.handshakes, engine.forwarding));
        engine.control.free_retired();
        assert!(before.upgrade().is_none());
    }

    #[test]
    fn of_keys_that_end_one_after_the_other_each_is_forgotten_at_its_end() {
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

    /// A key of ours that is the one in force again is not another one: its cookies and its rates hang on it.
    #[test]
    fn a_key_of_ours_that_comes_back_before_its_end_is_what_it_was() {
        let start = Instant::now();
        for (passed, is_same) in [(GRACE / 2, true), (GRACE, false)] {
            let key = PrivateKey::generate();
            let [first, again] = [(); 2].map(|()| identity_of(&key));
            let mut engine = engine_with(Arc::clone(&first));
            apply(&mut engine, [peer("rome", 1)]);
            engine.control.succeed(&identity());
            pass(&mut engine, [start, start + passed]);

            engine.control.succeed(&again);

            let keys = engine.control.keyring.keys();
            assert_eq!(Arc::ptr_eq(&keys.current.identity, &first), is_same, "{passed:?}");
            let [rome] = peers_of(&engine);
            pass(&mut engine, [start + 2 * GRACE]);
            assert!(can_begin(&rome, start + 2 * GRACE), "{passed:?}");
        }
    }

    /// Also those that end soon: the peer may know no others.
    #[test]
    fn sessions_that_are_renewed_have_strands_of_their_own_for_the_same_keys() {
        let mut engine = engine();
        let [first] = apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 1) }]);
        first.learn_path(path());
        let [before] =
            apply(&mut engine, [PeerConfig { clamp_mtu: Some(1400), ..peer("rome", 2) }]);
        engine.control.succeed(&identity());
        let [before_both] = peers_of(&engine);

        engine.control.renew_sessions();

        let [after] = peers_of(&engine);
        let keys = |peer: &Peer| -> Vec<_> {
            peer.tunnel.strands().map(|strand| (strand.own, strand.keys.public_key)).collect()
        };
        assert_eq!(keys(&after), keys(&before_both));
        let slots: HashSet<_> = after.tunnel.slots().collect();
        assert!(before_both.tunnel.slots().all(|slot| !slots.contains(&slot)));
        assert_eq!((after.realm, after.path()), (before.realm, Some(path())));
        assert_eq!(after.clamp_mtu(), Some(1400));
        assert!(can_begin(&after, Instant::now()) && !can_begin(&before_both, Instant::now()));
    }

    /// What they have in common with those before is when they end.
    #[test]
    fn keys_end_when_they_would_have_ended_although_their_sessions_were_renewed() {
        let (mut engine, start) = (engine(), Instant::now());
        apply(&mut engine, [peer("rome", 1)]);
        apply(&mut engine, [peer("rome", 2)]);
        engine.control.succeed(&identity());
        pass(&mut engine, [start, start + GRACE / 2]);

        engine.control.renew_sessions();

        assert_eq!(peers_of::<1>(&engine)[0].tunnel.slots().count(), 4);
        pass(&mut engine, [start + GRACE]);
        engine.control.free_retired();
        let [rome] = peers_of(&engine);
        assert!(rome.tunnel.is_settled() && can_begin(&rome, start + GRACE));
    }

    #[test]
    fn older_keys_are_bounded_and_their_slots_are_used_again() {
        let mut engine = engine();

        for key in 1..=100 {
            engine.control.succeed(&identity());
            apply(&mut engine, [peer("rome", key)]);
        }

        let [rome] = apply(&mut engine, [peer("rome", 100)]);
        let combinations = (MAX_OLDER + 1) * (MAX_OLDER + 1);
        assert_eq!(rome.tunnel.slots().count(), combinations);
        let highest = rome.tunnel.slots().max().unwrap();
        assert!(usize::try_from(highest).unwrap() < 3 * combinations, "slot {highest}");
    }

    fn engine() -> Engine {
        engine_with(identity())
    }

    fn engine_with(identity: Arc<dyn Identity>) -> Engine {
        Engine::new(identity, Settings { max_flows: 1024, seed: 7, start: Instant::now() }).unwrap()
    }

    /// Time advances to each of `moments`.
    fn pass<const N: usize>(engine: &mut Engine, moments: [Instant; N]) {
        let mut out = TransmitBatch::default();
        for now in moments {
            engine.handshakes.handle_timeout(now, &mut out, TransmitBatch::clear);
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
