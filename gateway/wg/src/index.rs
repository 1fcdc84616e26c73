//! Receiver indices: they map to slots without a table, and observers cannot read or guess the slot.
//!
//! Every datagram carries its receiver index in clear. If an observer could read slots there, it could tell that two
//! sessions, perhaps from two networks, belong to one peer, and how many peers there are; an attacker who sees no
//! traffic could guess an index and make us try keys. So an index is a slot and the number of a handshake,
//! enciphered with a key that only we know: it looks random.
//!
//! That key is derived from the private key of the gateway. A process that takes over from another one recognizes the
//! indices that the former process has given out, and answers data in sessions that it does not have with a handshake
//! ([`is_former`](ReceiverIndices::is_former)).
//!
//! The cipher is Speck32/64, because its block is as long as an index: R. Beaulieu et al., The Simon and
//! Speck Families of Lightweight Block Ciphers, IACR ePrint 2013/404. It protects no content: breaking it reveals
//! the slots, as if there were no cipher.

use std::fmt;

use blake2::{Blake2s256, Digest as _};

use super::PrivateKey;

/// The lower bits of an index before enciphering: they distinguish the sessions of a tunnel.
const SESSION_BITS: u32 = 8;

/// A gateway with one peer uses the first slots only, one for each pair of keys that was in use.
const FORMER_SLOTS: u32 = 256;

const ROUNDS: usize = 22;

/// The mapping between receiver indices and slots of one engine.
#[derive(Clone, Copy)]
pub struct ReceiverIndices {
    /// `None` if slots are not enciphered.
    round_keys: Option<[u16; ROUNDS]>,
}

impl ReceiverIndices {
    /// Not enciphered, for implementations of the protocol that choose their indices themselves.
    #[must_use]
    pub const fn plain() -> Self {
        Self { round_keys: None }
    }

    /// Enciphered with a key derived from `seed`, which must be unpredictable.
    #[must_use]
    pub fn secret(seed: u64) -> Self {
        let digest =
            Blake2s256::new().chain_update(b"receiver indices").chain_update(seed.to_le_bytes());
        let digest: [u8; 32] = digest.finalize().into();
        let mut words = digest
            .chunks_exact(2)
            .map(|word| word.iter().fold(0, |word, byte| word << 8 | u16::from(*byte)));
        let key = std::array::from_fn(|_| words.next().unwrap_or_default());

        Self { round_keys: Some(expand(key)) }
    }

    /// The seed for [`Self::secret`] of every process that has this private key.
    #[must_use]
    pub fn seed_of(private_key: &PrivateKey) -> u64 {
        let digest: [u8; 32] = Blake2s256::new()
            .chain_update(b"strait receiver indices of a private key")
            .chain_update(*private_key.to_bytes())
            .finalize()
            .into();

        digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Whether a process with the same seed has probably given out an index with this `slot`. A guessed index passes
    /// with a chance of 2^-16.
    #[must_use]
    pub fn is_former(&self, slot: u32) -> bool {
        self.round_keys.is_some() && slot < FORMER_SLOTS
    }

    /// The slot of an `index` that we have chosen, below 2^24. Other indices give any slot.
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> u32 {
        let clear = self.round_keys.as_ref().map_or(index, |keys| decipher(keys, index));

        clear >> SESSION_BITS
    }
}

/// Without the keys: they would reveal which sessions belong to one peer.
impl fmt::Debug for ReceiverIndices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiverIndices").field("is_secret", &self.round_keys.is_some()).finish()
    }
}

/// The part of a receiver index that identifies one tunnel.
#[derive(Clone, Copy, Debug)]
pub struct IndexSlot {
    number: u32,
    indices: ReceiverIndices,
}

impl IndexSlot {
    /// IndexSlot `number`, below 2^24, among `indices`.
    #[must_use]
    pub const fn new(number: u32, indices: ReceiverIndices) -> Self {
        Self { number, indices }
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The receiver index of the session with the number `session` of this tunnel.
    #[must_use]
    pub fn index(&self, session: u8) -> u32 {
        let clear = self.number << SESSION_BITS | u32::from(session);

        self.indices.round_keys.as_ref().map_or(clear, |keys| encipher(keys, clear))
    }
}

/// A slot that is not enciphered: for a single tunnel.
impl From<u16> for IndexSlot {
    fn from(number: u16) -> Self {
        Self::new(number.into(), ReceiverIndices::plain())
    }
}

/// The round keys. The first word of `key` is the key of the first round.
fn expand([first, rest @ ..]: [u16; 4]) -> [u16; ROUNDS] {
    let (mut key, [mut next, mut second, mut third]) = (first, rest);
    let mut round = 0;

    std::array::from_fn(|_| {
        let used = key;
        let fresh = key.wrapping_add(next.rotate_right(7)) ^ round;
        key = key.rotate_left(2) ^ fresh;
        (next, second, third) = (second, third, fresh);
        round += 1;

        used
    })
}

fn encipher(keys: &[u16; ROUNDS], block: u32) -> u32 {
    let (high, low) = keys.iter().fold(split(block), |(high, low), key| {
        let high = high.rotate_right(7).wrapping_add(low) ^ key;

        (high, low.rotate_left(2) ^ high)
    });

    join(high, low)
}

#[inline]
fn decipher(keys: &[u16; ROUNDS], block: u32) -> u32 {
    let (high, low) = keys.iter().rev().fold(split(block), |(high, low), key| {
        let low = (low ^ high).rotate_right(2);

        ((high ^ key).wrapping_sub(low).rotate_left(7), low)
    });

    join(high, low)
}

#[inline]
fn split(block: u32) -> (u16, u16) {
    let [a, b, c, d] = block.to_be_bytes();

    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

#[inline]
fn join(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Source: the paper, appendix C.
    #[test]
    fn the_cipher_matches_the_test_vector() {
        let keys = expand([0x0100, 0x0908, 0x1110, 0x1918]);

        assert_eq!(encipher(&keys, 0x6574_694c), 0xa868_42f2);
        assert_eq!(decipher(&keys, 0xa868_42f2), 0x6574_694c);
    }

    #[test]
    fn indices_of_one_slot_look_random() {
        let slot = IndexSlot::new(0, ReceiverIndices::secret(7));

        let indices: Vec<_> = (0..=255).map(|session| slot.index(session)).collect();

        let [upper, lower] = [24, 0].map(|shift| {
            indices.iter().map(|index| index >> shift & 0xff).collect::<HashSet<_>>().len()
        });
        // Of 256 random bytes about 162 differ; not enciphered it would be 1 and 256.
        assert!((130..195).contains(&upper) && (130..195).contains(&lower), "{upper}, {lower}");
    }

    #[test]
    fn processes_with_one_private_key_share_indices() {
        let [key, other] = [PrivateKey::generate(), PrivateKey::generate()];
        let of = |key: &PrivateKey| ReceiverIndices::secret(ReceiverIndices::seed_of(key));

        let index = IndexSlot::new(3, of(&key)).index(9);

        assert_eq!(of(&key).slot(index), 3);
        assert!(of(&key).is_former(3) && !of(&key).is_former(256));
        assert_ne!(ReceiverIndices::seed_of(&key), ReceiverIndices::seed_of(&other));
        assert!(!ReceiverIndices::plain().is_former(3));
    }

    #[test]
    fn another_seed_gives_other_indices() {
        let [one, other] = [1, 2].map(|seed| IndexSlot::new(3, ReceiverIndices::secret(seed)));

        let equal = (0..=255).filter(|session| one.index(*session) == other.index(*session));

        assert_eq!(equal.count(), 0);
    }

    #[test]
    fn guessed_indices_hit_slots_only_by_chance() {
        let indices = ReceiverIndices::secret(7);
        let hits = |guesses: &mut dyn Iterator<Item = u32>| {
            guesses.filter(|guess| indices.slot(*guess) < 1_000).count()
        };

        // Each guess has a chance of 1,000 in 2^24.
        let near_zero = hits(&mut (0..1_000_000));
        let spread = hits(&mut (0..1_000_000).map(|number: u32| number.wrapping_mul(0x9e37_79b9)));

        assert!(
            (25..100).contains(&near_zero) && (25..100).contains(&spread),
            "{near_zero}, {spread}"
        );
    }

    #[test]
    fn debug_output_hides_the_round_keys() {
        let [one, other] =
            [1, 2].map(|seed| format!("{:?}", IndexSlot::new(3, ReceiverIndices::secret(seed))));

        assert_eq!(one, other);
    }

    proptest! {
        #[test]
        fn an_index_maps_back_to_its_slot(number in 0..1_u32 << 24, session: u8, seed: u64) {
            for indices in [ReceiverIndices::plain(), ReceiverIndices::secret(seed)] {
                prop_assert_eq!(indices.slot(IndexSlot::new(number, indices).index(session)), number);
            }
        }
    }
}
