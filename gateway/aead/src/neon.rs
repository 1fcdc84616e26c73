//! One message after the other, with a block of it in each lane.
//!
//! The vectors make the key stream, four or six blocks at once. Between their instructions, the authenticator computes
//! in registers of 64 bits: a Neoverse has pipes for each, which vectors for both would share. It takes what was
//! encrypted before, which may be the end of another message, so it runs alone only at the end of a call. Ring does that
//! within one message, for five blocks at once. Copies of keys on the stack and in registers of the thread are not
//! zeroed, as in ring.
//!
//! This was not measured. The model of llvm-mca 19 gives a loop of the rounds with authentication, in cycles per byte:
//!
//! | blocks | Neoverse N1 | N2 | V1 | V2 |
//! |---|---|---|---|---|
//! | 4, in four lanes | 3.0 | 2.5 | 2.3 | 2.2 |
//! | 6, two of them beside the lanes | 2.5 | 2.4 | 1.6 | 1.6 |
//! | 8, in two times four lanes, which spill registers | 3.5 | 2.9 | 1.5 | 1.5 |
//! | ring: 5, one of them beside the lanes | 2.5 | 2.4 | 1.9 | 1.9 |

mod chacha20;
mod memory;
mod poly1305;

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;
use std::{iter, mem};

use self::chacha20::{BLOCK_LEN, BLOCKS, ChaCha20, Stream};
use self::memory::{load, store};
use self::poly1305::{PART_LEN, Poly1305};
use super::{KEY_LEN, Message, Nonce, TAG_LEN, Tags, is_same};

/// From this number of messages on, they follow each other without a gap.
pub(super) const FEWEST: usize = 2;

/// The same for messages of `len` bytes: any length.
pub(super) const fn together_from(_len: usize) -> usize {
    FEWEST
}

/// From this length of a text in bytes on, one message is sealed and opened in lanes. A keepalive is not.
pub(super) const ALONE_FROM: usize = 1;

/// Length of a piece of text in bytes, and of the first one of a message: block 0 is the one-time key.
const STREAM_LEN: usize = BLOCKS * BLOCK_LEN;
const FIRST_LEN: usize = STREAM_LEN - BLOCK_LEN;

/// Length of the longest text in bytes. The counter of its blocks stays below 2^31.
const TEXT_MAX: usize = 127 << 30;

/// Shows that the processor has the feature that this module needs.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

#[expect(
    unsafe_code,
    reason = "DESIGN.md decision 11: calls of a function that is compiled for NEON"
)]
impl Neon {
    pub(super) const NAME: &str = "NEON";

    /// The order of bytes in lanes is that of little-endian processors.
    pub(super) fn detect() -> Option<Self> {
        let is_available = cfg!(target_endian = "little") && is_aarch64_feature_detected!("neon");

        is_available.then_some(Self(()))
    }

    /// Encrypts the texts and returns the tags.
    pub(super) fn seal(self, key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
        // SAFETY: `self` exists only after detection of the feature that the function is compiled for.
        unsafe { crypt::<true>(key, messages) }
    }

    /// Decrypts the texts and returns the tags that they should have.
    pub(super) fn open(self, key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
        // SAFETY: `self` exists only after detection of the feature that the function is compiled for.
        unsafe { crypt::<false>(key, messages) }
    }

    /// Encrypts one text and returns its tag.
    pub(super) fn seal_one(
        self,
        key: &[u8; KEY_LEN],
        nonce: Nonce,
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        let [tag, ..] = self.seal(key, &mut [Message { nonce, text }]);

        tag
    }

    /// Decrypts one text and returns true if it is authentic. If not, it is zeroed.
    pub(super) fn open_one(
        self,
        key: &[u8; KEY_LEN],
        nonce: Nonce,
        text: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        let [expected, ..] = self.open(key, &mut [Message { nonce, text }]);
        let is_authentic = is_same(tag, expected);
        if !is_authentic {
            text.fill(0);
        }

        is_authentic
    }
}

/// Encrypts or decrypts, and authenticates the encrypted text.
#[target_feature(enable = "neon")]
fn crypt<const SEALS: bool>(key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
    let mut tags = Tags::default();
    let mut tag_before: Option<&mut [u8; TAG_LEN]> = None;
    let mut sum = Poly1305::default();
    let mut piece = Piece { text: &mut [], skipped: 0 };
    let mut streams = [[[vdupq_n_u8(0); 4]; BLOCKS]; 2];
    let [mut stream, mut stream_before] = streams.each_mut();
    for (Message { nonce, text }, tag) in messages.iter_mut().zip(&mut tags) {
        let len = text.len();
        assert!(len <= TEXT_MAX, "a text of {len} bytes");

        let cipher = ChaCha20::new(key, *nonce);
        let (first, rest) = text.split_at_mut(len.min(FIRST_LEN));
        let pieces = iter::once(first).chain(rest.chunks_mut(STREAM_LEN));
        for (text, counter) in pieces.zip((0..).step_by(BLOCKS)) {
            let skipped = if counter == 0 { BLOCK_LEN } else { 0 };
            mem::swap(&mut stream, &mut stream_before);
            let needed = skipped + text.len();
            cipher.key_stream(counter, needed, stream, (&mut sum, piece.parts()));
            piece.finish::<SEALS>(&mut sum, stream_before);
            if counter == 0 {
                if let Some(tag) = tag_before.take() {
                    *tag = sum.tag();
                }
                sum = Poly1305::new(&one_time_key(stream), len);
            }
            piece = Piece { text, skipped };
            if SEALS {
                piece.apply(stream);
            }
        }
        tag_before = Some(tag);
    }

    for part in piece.parts() {
        sum.add(part);
    }
    piece.finish::<SEALS>(&mut sum, stream);
    if let Some(tag) = tag_before {
        *tag = sum.tag();
    }

    tags
}

/// The first 32 bytes of block 0.
#[inline]
#[target_feature(enable = "neon")]
fn one_time_key([[r, pad, ..], ..]: &Stream) -> [[u8; PART_LEN]; 2] {
    let mut key = [[0; PART_LEN]; 2];
    for (bytes, vector) in key.iter_mut().zip([r, pad]) {
        store(bytes, *vector);
    }

    key
}

/// A piece of a text that is not authenticated yet. Until it is, it stays encrypted.
struct Piece<'a> {
    text: &'a mut [u8],
    /// Bytes of the key stream before those of the text.
    skipped: usize,
}

impl Piece<'_> {
    /// The parts that are complete.
    #[inline]
    fn parts(&self) -> &[[u8; PART_LEN]] {
        self.text.as_chunks().0
    }

    /// Adds the last part to `sum`, after the others were added: with zeros behind it if it is not complete. Then
    /// decrypts, unless the text is sealed.
    #[inline]
    #[target_feature(enable = "neon")]
    fn finish<const SEALS: bool>(&mut self, sum: &mut Poly1305, stream: &Stream) {
        let (_, rest) = self.text.as_chunks::<PART_LEN>();
        if !rest.is_empty() {
            sum.add(&padded(rest));
        }
        if !SEALS {
            self.apply(stream);
        }
    }

    /// Encrypts or decrypts.
    #[inline]
    #[target_feature(enable = "neon")]
    fn apply(&mut self, stream: &Stream) {
        let mut vectors = stream.as_flattened().iter().skip(self.skipped / PART_LEN);
        let (parts, rest) = self.text.as_chunks_mut();
        for (part, vector) in parts.iter_mut().zip(&mut vectors) {
            let after = veorq_u8(load(part), *vector);
            store(part, after);
        }
        if let (false, Some(vector)) = (rest.is_empty(), vectors.next()) {
            let mut part = padded(rest);
            let after = veorq_u8(load(&part), *vector);
            store(&mut part, after);
            for (byte, after) in rest.iter_mut().zip(part) {
                *byte = after;
            }
        }
    }
}

/// Fewer bytes than a part has, with zeros behind them.
#[inline]
fn padded(bytes: &[u8]) -> [u8; PART_LEN] {
    let mut part = [0; PART_LEN];
    for (place, byte) in part.iter_mut().zip(bytes) {
        *place = *byte;
    }

    part
}
