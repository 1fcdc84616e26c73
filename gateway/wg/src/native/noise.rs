//! Noise IKpsk2 as WireGuard uses it: the handshake hash, the chaining key, and encryption with them.
//!
//! Sources: WireGuard whitepaper, section 5.4; The Noise Protocol Framework, revision 34, section 5.
//! `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` without a payload in the response and with a timestamp in the
//! initiation. Pure: randomness is passed in.

use blake2::digest::FixedOutput as _;
use blake2::{Blake2s256, Digest as _};
use hmac::{Mac as _, SimpleHmac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use x25519_dalek::StaticSecret;
use zeroize::{Zeroize, Zeroizing};

use crate::PublicKey;

/// Length of a key, of a hash and of a point in bytes.
pub(super) const LEN: usize = 32;

/// Length of an authentication tag in bytes.
pub(super) const TAG_LEN: usize = 16;

/// Bytes that are wiped when dropped.
pub(super) type Secret = Zeroizing<[u8; LEN]>;

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// A message failed authentication, or a key is a point of low order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuthError;

/// The handshake state: chaining key and hash of all messages so far.
#[derive(Clone)]
pub(super) struct Transcript {
    chaining_key: Secret,
    hash: [u8; LEN],
}

impl Transcript {
    /// The beginning of a handshake with the owner of `responder`.
    pub(super) fn new(responder: PublicKey) -> Self {
        Self::with_prologue(IDENTIFIER, responder)
    }

    /// The same with another prologue, for test vectors of Noise.
    pub(super) fn with_prologue(prologue: &[u8], responder: PublicKey) -> Self {
        let chaining_key = hash(&[CONSTRUCTION]);
        let hash = hash(&[&hash(&[&chaining_key, prologue]), responder.as_bytes()]);

        Self { chaining_key: Zeroizing::new(chaining_key), hash }
    }

    /// Mixes an ephemeral key into the hash, and into the chaining key, as a pattern with a preshared key requires
    /// (Noise, section 9.2).
    pub(super) fn mix_ephemeral(&mut self, key: &PublicKey) {
        self.mix_hash(key.as_bytes());
        let [chaining_key] = derive(&self.chaining_key, key.as_bytes());
        self.chaining_key = chaining_key;
    }

    /// Mixes in a shared secret. Returns the key for the next encryption.
    pub(super) fn mix_shared(&mut self, shared: &Secret) -> Secret {
        let [chaining_key, key] = derive(&self.chaining_key, &**shared);
        self.chaining_key = chaining_key;

        key
    }

    /// Mixes in the preshared key, zeros if there is none. Returns the key for the next encryption.
    pub(super) fn mix_preshared(&mut self, preshared: &[u8; LEN]) -> Secret {
        let [chaining_key, mixed, key] = derive(&self.chaining_key, preshared);
        self.chaining_key = chaining_key;
        self.mix_hash(&*mixed);

        key
    }

    /// Seals `plain` into `sealed`, which has room for the tag as well.
    pub(super) fn seal(&mut self, key: &Secret, plain: &[u8], sealed: &mut [u8]) {
        if let Some((text, tag)) = sealed.split_at_mut_checked(plain.len()) {
            text.copy_from_slice(plain);
            if let Ok(made) = aead(key).seal_in_place_separate_tag(
                Nonce::assume_unique_for_key([0; 12]),
                Aad::from(&self.hash),
                text,
            ) {
                tag.copy_from_slice(made.as_ref());
            }
        }
        self.mix_hash(sealed);
    }

    /// Opens `sealed`, which is `N` bytes and a tag.
    ///
    /// # Errors
    ///
    /// [`AuthError`]: do not use the transcript afterwards.
    pub(super) fn open<const N: usize>(
        &mut self,
        key: &Secret,
        sealed: &[u8],
    ) -> Result<[u8; N], AuthError> {
        let mut buffer = [0; LEN + TAG_LEN];
        let room = buffer.get_mut(..sealed.len()).ok_or(AuthError)?;
        room.copy_from_slice(sealed);
        let opened = aead(key).open_in_place(
            Nonce::assume_unique_for_key([0; 12]),
            Aad::from(&self.hash),
            room,
        );
        let plain = opened.map_err(|_| AuthError)?;
        let plain = <[u8; N]>::try_from(&*plain).map_err(|_| AuthError)?;
        self.mix_hash(sealed);

        Ok(plain)
    }

    /// The keys of the session: the sending key of the initiator, and that of the responder.
    pub(super) fn split(self) -> [Secret; 2] {
        derive(&self.chaining_key, &[])
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = hash(&[&self.hash, data]);
    }
}

/// The shared secret of a private and a public key.
///
/// # Errors
///
/// [`AuthError`] if `public` is a point of low order: then the secret is zero (RFC 7748, section 6.1).
pub(super) fn shared(private: &StaticSecret, public: &PublicKey) -> Result<Secret, AuthError> {
    let shared = private.diffie_hellman(&x25519_dalek::PublicKey::from(*public.as_bytes()));
    if !shared.was_contributory() {
        return Err(AuthError);
    }

    Ok(Zeroizing::new(shared.to_bytes()))
}

/// The public half of a key.
pub(super) fn public(private: &StaticSecret) -> PublicKey {
    PublicKey::from_bytes(x25519_dalek::PublicKey::from(private).to_bytes())
}

/// BLAKE2s of all parts, one behind the other.
pub(super) fn hash(parts: &[&[u8]]) -> [u8; LEN] {
    let mut hasher = Blake2s256::new();
    for part in parts {
        hasher.update(part);
    }

    hasher.finalize().into()
}

/// A key for the AEAD of RFC 8439.
pub(super) fn aead(key: &Secret) -> LessSafeKey {
    match UnboundKey::new(&CHACHA20_POLY1305, &**key) {
        Ok(key) => LessSafeKey::new(key),
        Err(_) => unreachable!("the key has the length of the algorithm"),
    }
}

/// `KDF_n` of the whitepaper: HKDF (RFC 5869) with HMAC-BLAKE2s.
fn derive<const N: usize>(chaining_key: &Secret, input: &[u8]) -> [Secret; N] {
    let mut extracted = hmac(chaining_key, &[input]);
    let mut previous = Secret::default();
    let mut number = 0_u8;
    let outputs = std::array::from_fn(|_| {
        let before: &[u8] = if number == 0 { &[] } else { &*previous };
        number += 1;
        previous = Zeroizing::new(hmac(&extracted, &[before, &[number]]));
        previous.clone()
    });
    extracted.zeroize();

    outputs
}

fn hmac(key: &[u8; LEN], parts: &[&[u8]]) -> [u8; LEN] {
    let Ok(mut mac) = SimpleHmac::<Blake2s256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length")
    };
    for part in parts {
        mac.update(part);
    }

    mac.finalize_fixed().into()
}
