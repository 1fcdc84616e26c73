//! Up to sixteen messages at once, each in a lane of its own (`lanes`); or one message with a block in each lane
//! (`blocks`).
//!
//! In the rounds of the cipher a vector has the same word of all messages, so no word moves between lanes. The
//! authenticator takes eight messages in the time of one, with products of 52 bits (AVX-512 IFMA). Words and messages
//! are transposed only where the key stream meets the text. Copies of keys on the stack and in registers of the thread
//! are not zeroed, as in ring.
//!
//! # What makes it fast
//!
//! Fewer instructions: the powers of the factor, with which the authenticator carries once per 64 bytes instead of once
//! per 16, and three quarters of the first round, which all blocks of a message share.
//!
//! Ports that are never idle: four quarter rounds go step by step, and between the rounds of a block the authenticator
//! adds blocks before it. On a Zen 4 the rounds alone take 590 cycles in any order of their 960 instructions; with
//! the 144 multiplications between them 730, after them 780.
//!
//! Blocks that stay in registers from the key stream to the transposition for the authenticator: a Zen 4 needs two
//! cycles for each store of 64 bytes, and the stores took more time than the shuffles beside them.
//!
//! Tried and rejected. On a Xeon: rotations as byte shuffles on the other port (slower beside the transposition). On a
//! Zen 4: blends in place of half of the shuffles (1 % slower); the transposition for the authenticator between the
//! rounds (2 % slower); the four steps between the rounds without a loop (9 % slower, as the compiler reorders them);
//! the powers of the factor between the rounds of the first block, which then last from one turn of the loop to the next
//! (5 % slower).

mod blocks;
mod chacha20;
mod lanes;
mod memory;
mod numbers;
mod poly1305;
mod transpose;

use std::arch::x86_64::*;

use self::chacha20::BLOCK_LEN;
use self::lanes::crypt;
use self::memory::{load, load_short, mask, store, store_short};
use super::{KEY_LEN, LANES, Message, Nonce, TAG_LEN, Tags, is_same};

/// Sixteen vectors of sixteen words: one vector for each word of ChaCha20's state, with that word of all messages; or
/// one for each message, with all of its words.
type Matrix = [__m512i; 16];

/// From this number of messages on, lanes are faster at any length. One frame of 8, 10, 12, 16 packets takes 5.5, 5.8,
/// 6.3, 6.8 µs with lanes on a Xeon, and 7.0, 8.9, 10.4, 14.1 µs without (`cargo bench --bench engine`).
pub(super) const FEWEST: usize = 8;

/// From this length of a text in bytes on, each block of one message has a lane. On a Zen 4, one message of 1,024 bytes
/// takes as long so as in ring, 0.56 µs, and one of 1,344 bytes 0.59 instead of 0.66 µs (`cargo bench --bench aead`). The
/// limit is between both.
pub(super) const ALONE_FROM: usize = 1280;

/// From this number of messages of `len` bytes on, a lane for each is faster than one after the other, each with its
/// blocks in lanes. On a Zen 4 both take the same time for 9 messages of 1,376 bytes, 11 of 3,072 and 13 of 6,144.
pub(super) const fn together_from(len: usize) -> usize {
    FEWEST + len / 1024
}

/// Length of the longest text in bytes. The counter of its blocks stays positive.
const TEXT_MAX: usize = 127 << 30;

/// Shows that the processor has the features that this module needs.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

#[expect(
    unsafe_code,
    reason = "DESIGN.md decision 11: calls of a function that is compiled for AVX-512"
)]
impl Avx512 {
    pub(super) const NAME: &str = "AVX-512";

    pub(super) fn detect() -> Option<Self> {
        let is_available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512vbmi2");

        is_available.then_some(Self(()))
    }

    /// Encrypts the texts and returns the tags.
    pub(super) fn seal(self, key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
        // SAFETY: `self` exists only after detection of the features that the function is compiled for.
        unsafe { crypt::<true>(key, messages) }
    }

    /// Decrypts the texts and returns the tags that they should have.
    pub(super) fn open(self, key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
        // SAFETY: `self` exists only after detection of the features that the function is compiled for.
        unsafe { crypt::<false>(key, messages) }
    }

    /// Encrypts one text and returns its tag.
    pub(super) fn seal_one(
        self,
        key: &[u8; KEY_LEN],
        nonce: Nonce,
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        // SAFETY: `self` exists only after detection of the features that the function is compiled for.
        unsafe { seal_one(key, nonce, text) }
    }

    /// Decrypts one text and returns true if it is authentic. If not, it is zeroed.
    pub(super) fn open_one(
        self,
        key: &[u8; KEY_LEN],
        nonce: Nonce,
        text: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        // SAFETY: `self` exists only after detection of the features that the function is compiled for.
        unsafe { open_one(key, nonce, text, tag) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
fn seal_one(key: &[u8; KEY_LEN], nonce: Nonce, text: &mut [u8]) -> [u8; TAG_LEN] {
    blocks::crypt::<true>(key, nonce, text)
}

#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
fn open_one(key: &[u8; KEY_LEN], nonce: Nonce, text: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
    let is_authentic = is_same(tag, blocks::crypt::<false>(key, nonce, text));
    if !is_authentic {
        text.fill(0);
    }

    is_authentic
}

/// Encrypts or decrypts the first block of `rest`, which may be shorter or empty. Returns the encrypted bytes, and
/// zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor<const SEALS: bool>(rest: &mut [u8], stream: __m512i) -> __m512i {
    if let Some(block) = rest.first_chunk_mut() {
        return xor_block::<SEALS>(block, stream);
    }
    // A masked access to an invalid address is slow, also if the mask is zero.
    if rest.is_empty() {
        return _mm512_setzero_si512();
    }

    let before = load_short(rest);
    let after = _mm512_xor_si512(before, stream);
    store_short(rest, after);

    if SEALS { _mm512_maskz_mov_epi8(mask(rest.len()), after) } else { before }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor_block<const SEALS: bool>(block: &mut [u8; BLOCK_LEN], stream: __m512i) -> __m512i {
    let before = load(block);
    let after = _mm512_xor_si512(before, stream);
    store(block, after);

    if SEALS { after } else { before }
}

#[inline]
fn as_i64(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
