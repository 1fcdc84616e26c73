//! Which strands a peer has: one for every combination of our keys and the peer's that is in use.

use std::collections::HashSet;
use std::sync::Arc;

use super::keyring::Held;
use crate::wg::succession::{Deadline, MAX_OLDER, Older, Strand};
use crate::wg::tunnel::PeerKeys;
use crate::wg::{Peer, PublicKey, Succession};

/// Makes strands, and gives each a slot of its own.
#[derive(Debug, Default)]
pub(super) struct Strands {
    free_slots: Vec<u32>,
    next_slot: u32,
}

/// Keys of a peer, and their end unless they are the newest.
type Variant = (PeerKeys, Option<Arc<Deadline>>);

impl Strands {
    /// The strands of a peer that is to have `keys` and is `known` with others, or not at all.
    /// Strands that there were before stay. `wanted` are the keys that all peers are to have.
    pub(super) fn succession(
        &mut self,
        known: Option<&Peer>,
        keys: &PeerKeys,
        wanted: &HashSet<PublicKey>,
        (current, older): (&Held, &[Held]),
    ) -> Succession {
        let variants = older_variants(known, keys, wanted);
        let first = self.strand(known, current, keys);

        let mut strands = Vec::new();
        for held in older {
            let strand = self.strand(known, held, keys);
            strands.push(Older::new(strand, held.end.clone(), None));
        }
        for (keys, end) in &variants {
            for held in std::iter::once(current).chain(older) {
                let strand = self.strand(known, held, keys);
                strands.push(Older::new(strand, held.end.clone(), end.clone()));
            }
        }

        Succession::new(first, strands)
    }

    /// Nobody has this slot any more.
    pub(super) fn free(&mut self, slot: u32) {
        self.free_slots.push(slot);
    }

    fn strand(&mut self, known: Option<&Peer>, held: &Held, keys: &PeerKeys) -> Strand {
        let own = held.identity.public_key();
        let mut before = known.into_iter().flat_map(|peer| peer.tunnel.strands());
        if let Some(strand) = before.find(|strand| strand.own == own && strand.keys == *keys) {
            return strand.clone();
        }

        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.next_slot;
            self.next_slot += 1;
            slot
        });
        let tunnel = Arc::from(held.identity.tunnel(keys, slot));

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
