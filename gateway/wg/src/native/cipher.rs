//! What a session seals or opens with: ChaCha20-Poly1305 (RFC 8439), one message or many of them at once.
//!
//! Sixteen messages in the lanes of vectors take as long on a Xeon as seven of full size do one after the other in
//! the library, and less if they are shorter. Where the processor has no such vectors, and where there are too few
//! messages, the library does it.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "cipher/elsewhere.rs"]
mod avx512;

use std::fmt;
use std::hint::black_box;

use ring::aead::{Aad, LessSafeKey, Nonce, Tag};

use self::avx512::Avx512;
use super::noise::{Secret, TAG_LEN, aead};

/// The most messages that are sealed or opened at once.
pub(super) const LANES: usize = 16;

/// The messages that are worth as many lanes, whatever their length. One frame of 8, 10, 12, 16 packets takes 5.5,
/// 5.8, 6.3, 6.8 µs with lanes on a Xeon, and 7.0, 8.9, 10.4, 14.1 µs without (`cargo bench --bench engine`).
const FEWEST: usize = 8;

/// Whether messages are sealed and opened in the lanes of vectors, and how wide those are: chosen at run time.
#[derive(Clone, Copy, Default)]
pub struct Lanes(Option<Avx512>);

impl Lanes {
    /// As wide as this processor has them.
    #[must_use]
    pub fn detect() -> Self {
        Self(Avx512::detect())
    }

    /// One message after the other.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Whether there are any.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "AVX-512" } else { "none" })
    }
}

/// One message.
#[derive(Debug, Default)]
pub(super) struct Lane<'a> {
    /// What its nonce is made of.
    pub(super) counter: u64,
    /// What is encrypted or decrypted, in place.
    pub(super) text: &'a mut [u8],
}

/// A tag for each of the messages, of which there may be fewer; what is behind says nothing.
pub(super) type Tags = [[u8; TAG_LEN]; LANES];

/// The key of one direction of a session.
pub(super) struct Cipher {
    single: LessSafeKey,
    /// The same for the lanes; zeros without any.
    key: Secret,
    lanes: Lanes,
}

impl Cipher {
    pub(super) fn new(key: &Secret, lanes: Lanes) -> Self {
        let single = aead(key);
        let key = if lanes.is_some() { key.clone() } else { Secret::default() };

        Self { single, key, lanes }
    }

    /// How many of so many messages are best brought at once.
    #[inline]
    pub(super) const fn width(&self, messages: usize) -> usize {
        if self.lanes.is_some() && messages >= FEWEST { LANES } else { 1 }
    }

    /// Encrypts the messages, at most [`LANES`] of them, and gives their tags.
    #[inline]
    pub(super) fn seal(&self, messages: &mut [Lane<'_>]) -> Tags {
        if let Some(lanes) = self.lanes.0
            && messages.len() >= FEWEST
        {
            return lanes.seal(&self.key, messages);
        }

        let mut tags = Tags::default();
        for (message, tag) in messages.iter_mut().zip(&mut tags) {
            *tag = self.seal_one(message.counter, message.text);
        }

        tags
    }

    /// Encrypts one message, and gives its tag.
    #[inline]
    pub(super) fn seal_one(&self, counter: u64, text: &mut [u8]) -> [u8; TAG_LEN] {
        match self.single.seal_in_place_separate_tag(nonce(counter), Aad::empty(), text) {
            Ok(tag) => tag.as_ref().try_into().unwrap_or_default(),
            // Never in clear: only a packet of 256 GiB could be too long.
            Err(_) => {
                text.fill(0);
                [0; TAG_LEN]
            }
        }
    }

    /// Decrypts the messages, at most [`LANES`] of them, and says of each whether it is what was sealed with
    /// its tag. Of those that are not nothing is left.
    #[inline]
    pub(super) fn open(&self, messages: &mut [Lane<'_>], tags: &[[u8; TAG_LEN]]) -> [bool; LANES] {
        let mut authentic = [false; LANES];
        let Some(lanes) = self.lanes.0.filter(|_| messages.len() >= FEWEST) else {
            for ((message, tag), is_authentic) in messages.iter_mut().zip(tags).zip(&mut authentic)
            {
                *is_authentic = self.open_one(message.counter, message.text, *tag);
            }
            return authentic;
        };

        let expected = lanes.open(&self.key, messages);
        let each = messages.iter_mut().zip(tags).zip(&mut authentic).zip(expected);
        for (((message, tag), is_authentic), expected) in each {
            *is_authentic = is_same(*tag, expected);
            if !*is_authentic {
                message.text.fill(0);
            }
        }

        authentic
    }

    /// Decrypts one message, and says whether it is what was sealed with this tag.
    #[inline]
    pub(super) fn open_one(&self, counter: u64, text: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
        self.single
            .open_in_place_separate_tag(nonce(counter), Aad::empty(), Tag::from(tag), text, 0..)
            .is_ok()
    }

    /// The library does not wipe its keys, so another one is put into its place.
    pub(super) fn wipe(&mut self) {
        self.key = Secret::default();
        self.single = aead(&self.key);
        black_box(&self.single);
    }
}

#[inline]
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    if let Some(number) = bytes.last_chunk_mut::<8>() {
        *number = counter.to_le_bytes();
    }

    Nonce::assume_unique_for_key(bytes)
}

/// Takes the same time whatever they have in common.
#[inline]
fn is_same(tag: [u8; TAG_LEN], expected: [u8; TAG_LEN]) -> bool {
    black_box(u128::from_ne_bytes(tag) ^ u128::from_ne_bytes(expected)) == 0
}

#[cfg(test)]
mod tests;
