//! ChaCha20-Poly1305 (RFC 8439) without associated data, of one message or of up to sixteen at once.
//!
//! Answers one question: *what is this text, sealed or opened with this key and nonce?* On a processor with AVX-512,
//! IFMA and VBMI2 each message has a lane of the vectors. Sixteen messages of full size then take as long on a Xeon as
//! seven do one by one in ring, and less if they are shorter. Where there are fewer, each block of a long message has a
//! lane. On arm64 the lanes of NEON have blocks of a message of any length, and messages follow each other without
//! a gap. That was not measured, so callers have to choose it. Ring does the work on other processors, and where there
//! are too few messages or bytes.
//!
//! # Invariants
//!
//! - Lanes change the time, not the result: it is ring's for each message.
//! - The text of a message that is not authentic is zeroed. The other messages of the call are not affected.
//! - Time and addresses depend on how many messages there are, on their lengths, and on which of them are authentic:
//!   not on keys, nonces, texts and tags.
//! - A [`Cipher`] zeroes its keys when it is dropped.
//!
//! # Not here
//!
//! Nonces, replay protection and the layout of datagrams (`strait-wg`). Associated data: handshakes and cookies, which
//! need it, use libraries.
//!
//! # Sources
//!
//! RFC 8439. `AUDIT.md` beside this crate says why the `unsafe` blocks are sound, why no carry is lost, and what was
//! not audited.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fallback;
#[cfg(target_arch = "aarch64")]
mod neon;
mod ring_key;
#[cfg(test)]
mod tests;

use std::fmt;

use ring::aead::{Aad, Tag};
use subtle::ConstantTimeEq as _;
use zeroize::{ZeroizeOnDrop, Zeroizing};

#[cfg(target_arch = "x86_64")]
use self::avx512::{ALONE_FROM, Avx512 as Vectors, FEWEST, together_from};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use self::fallback::{ALONE_FROM, FEWEST, Fallback as Vectors, together_from};
#[cfg(target_arch = "aarch64")]
use self::neon::{ALONE_FROM, FEWEST, Neon as Vectors, together_from};
use self::ring_key::RingKey;

/// The most messages that are sealed or opened at once.
pub const LANES: usize = 16;

/// Length of a key in bytes.
pub const KEY_LEN: usize = 32;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 12;

/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;

/// A nonce: never the same for two messages that are sealed with one key.
pub type Nonce = [u8; NONCE_LEN];

/// One tag per message. With fewer messages than [`LANES`], the tags after them have no meaning.
pub type Tags = [[u8; TAG_LEN]; LANES];

/// One message.
#[derive(Default)]
pub struct Message<'a> {
    /// Its nonce.
    pub nonce: Nonce,
    /// Encrypted or decrypted in place.
    pub text: &'a mut [u8],
}

/// Whether messages are sealed and opened in the lanes of vectors: detected at run time.
#[derive(Clone, Copy, Default)]
pub struct Lanes(Option<Vectors>);

impl Lanes {
    /// Lanes if this processor has the vectors for them.
    #[must_use]
    pub fn detect() -> Self {
        Self(Vectors::detect())
    }

    /// No lanes: one message after the other.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Whether there are lanes.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { Vectors::NAME } else { "none" })
    }
}

/// A key, and what seals and opens with it.
pub struct Cipher {
    single: RingKey,
    /// The same key for the lanes; zeros without lanes.
    key: Zeroizing<[u8; KEY_LEN]>,
    lanes: Lanes,
}

impl Cipher {
    /// Seals and opens with `key`.
    #[must_use]
    pub fn new(key: &[u8; KEY_LEN], lanes: Lanes) -> Self {
        let single = RingKey::new(key);
        let key = if lanes.is_some() { Zeroizing::new(*key) } else { Zeroizing::default() };

        Self { single, key, lanes }
    }

    /// The number of messages that [`Cipher::seal`] and [`Cipher::open`] should get at once, if there are `messages`
    /// of `len` bytes in all: [`LANES`], or 1 if a lane for each does not make it faster.
    #[inline]
    #[must_use]
    pub const fn width(&self, messages: usize, len: usize) -> usize {
        if self.lanes.is_some() && messages >= together_from(len) { LANES } else { 1 }
    }

    /// Encrypts the messages and returns their tags.
    ///
    /// # Panics
    ///
    /// With more than [`LANES`] messages, or with a text of more than 127 GiB.
    #[inline]
    pub fn seal(&self, messages: &mut [Message<'_>]) -> Tags {
        if let Some(vectors) = self.vectors_for(messages) {
            return vectors.seal(&self.key, messages);
        }

        let mut tags = Tags::default();
        for (message, tag) in messages.iter_mut().zip(&mut tags) {
            *tag = self.seal_one(message.nonce, message.text);
        }

        tags
    }

    /// Encrypts one message and returns its tag.
    #[inline]
    pub fn seal_one(&self, nonce: Nonce, text: &mut [u8]) -> [u8; TAG_LEN] {
        if let Some(vectors) = self.vectors_for_one(text) {
            return vectors.seal_one(&self.key, nonce, text);
        }
        match self.single.get().seal_in_place_separate_tag(ring_nonce(nonce), Aad::empty(), text) {
            Ok(tag) => tag.as_ref().try_into().unwrap_or_default(),
            // A text of more than 256 GiB, which ring leaves unencrypted.
            Err(_) => {
                text.fill(0);
                [0; TAG_LEN]
            }
        }
    }

    /// Decrypts the messages, and returns for each whether it is authentic: sealed with this key, its nonce and its
    /// tag. The texts of the others are zeroed.
    ///
    /// # Panics
    ///
    /// With more than [`LANES`] messages, or with a text of more than 127 GiB.
    #[inline]
    pub fn open(&self, messages: &mut [Message<'_>], tags: &Tags) -> [bool; LANES] {
        let mut authentic = [false; LANES];
        let Some(vectors) = self.vectors_for(messages) else {
            for ((message, tag), is_authentic) in messages.iter_mut().zip(tags).zip(&mut authentic)
            {
                *is_authentic = self.open_one(message.nonce, message.text, *tag);
            }
            return authentic;
        };

        let expected = vectors.open(&self.key, messages);
        let each = messages.iter_mut().zip(tags).zip(&mut authentic).zip(expected);
        for (((message, tag), is_authentic), expected) in each {
            *is_authentic = is_same(*tag, expected);
            if !*is_authentic {
                message.text.fill(0);
            }
        }

        authentic
    }

    /// Decrypts one message, and returns whether it is authentic. If not, its text is zeroed.
    #[inline]
    #[must_use]
    pub fn open_one(&self, nonce: Nonce, text: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
        if let Some(vectors) = self.vectors_for_one(text) {
            return vectors.open_one(&self.key, nonce, text, tag);
        }
        self.single
            .get()
            .open_in_place_separate_tag(ring_nonce(nonce), Aad::empty(), Tag::from(tag), text, 0..)
            .is_ok()
    }

    /// The vectors, if they are faster for these messages.
    #[inline]
    fn vectors_for(&self, messages: &[Message<'_>]) -> Option<Vectors> {
        assert!(messages.len() <= LANES, "{} messages at once", messages.len());

        self.lanes.0.filter(|_| messages.len() >= FEWEST)
    }

    /// The vectors, if they are faster for this text.
    #[inline]
    fn vectors_for_one(&self, text: &[u8]) -> Option<Vectors> {
        self.lanes.0.filter(|_| text.len() >= ALONE_FROM)
    }
}

impl ZeroizeOnDrop for Cipher {}

#[inline]
fn ring_nonce(nonce: Nonce) -> ring::aead::Nonce {
    ring::aead::Nonce::assume_unique_for_key(nonce)
}

/// Compares in constant time. As one number, a tag takes one step instead of sixteen.
#[inline]
fn is_same(tag: [u8; TAG_LEN], expected: [u8; TAG_LEN]) -> bool {
    u128::from_ne_bytes(tag).ct_eq(&u128::from_ne_bytes(expected)).into()
}
