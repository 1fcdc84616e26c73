//! Up to sixteen messages, each in a lane of its own.
//!
//! Between the rounds of the cipher the authenticator adds what was encrypted in the blocks before.

use std::arch::x86_64::*;
use std::array;

use super::chacha20::{BLOCK_LEN, Prepared};
use super::memory::load_words;
use super::poly1305::{PART_LEN, Poly1305};
use super::transpose::{by_part, transposed};
use super::{LANES, Matrix, TEXT_MAX, as_i64, xor, xor_block};
use crate::{KEY_LEN, Message, Tags};

/// Encrypts or decrypts, and authenticates the encrypted text.
#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
pub(super) fn crypt<const SEALS: bool>(key: &[u8; KEY_LEN], messages: &mut [Message<'_>]) -> Tags {
    let [low, high] = lens(messages);
    let lens = [load_words(&low), load_words(&high)];
    let halves = messages.len().div_ceil(LANES / 2);
    let longest = longest(messages);
    assert!(longest <= TEXT_MAX, "a text of {longest} bytes");

    let state = Prepared::new(key, &nonce_words(messages));
    let one_time_keys = state.block(_mm512_setzero_si512());
    let mut sums = Poly1305::both(&one_time_keys);

    // What was encrypted in the block before, and the messages in whose sums it is not yet.
    let mut parts = [[[_mm512_setzero_si512(); 2]; 4]; 2];
    let mut waiting = [0; 2];
    let mut halves_waiting = 0;
    let mut block = 0;
    for at in (0..longest).step_by(BLOCK_LEN) {
        block += 1;
        let mut rounds = state.begin(_mm512_set1_epi32(block));
        for ((sum, parts), waiting) in sums.iter_mut().zip(&parts).zip(waiting).take(halves_waiting)
        {
            sum.add_between(parts, waiting, &mut rounds);
        }
        let words = rounds.finish(&state);
        halves_waiting = halves;
        waiting = longer_than(&lens, at + 3 * PART_LEN);
        if longer_than(&lens, at) == longer_than(&lens, at + BLOCK_LEN - 1) {
            parts = by_part(&xor_blocks::<SEALS>(messages, at, words));
        } else {
            parts = by_part(&xor_ends::<SEALS>(messages, at, words));
            add_ends(&mut sums, &parts, &lens, at);
        }
    }

    for ((sum, parts), waiting) in sums.iter_mut().zip(&parts).zip(waiting) {
        sum.add(parts, waiting);
    }
    for (sum, lens) in sums.iter_mut().zip(lens) {
        // RFC 8439, section 2.8: the length of the associated data, which is 0, and that of the text.
        sum.add(&[[_mm512_setzero_si512(), lens]], u8::MAX);
    }

    Poly1305::tags(&sums, &one_time_keys)
}

/// Adds the parts of messages that end in the block at `at`, and have one to three there.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
fn add_ends(
    sums: &mut [Poly1305; 2],
    parts: &[[[__m512i; 2]; 4]; 2],
    lens: &[__m512i; 2],
    at: usize,
) {
    for count in [1, 2, 3] {
        let begun = longer_than(lens, at + (count - 1) * PART_LEN);
        let more = longer_than(lens, at + count * PART_LEN);
        for (((sum, parts), begun), more) in sums.iter_mut().zip(parts).zip(begun).zip(more) {
            if begun != more {
                sum.add(parts.get(..count).unwrap_or_default(), begun & !more);
            }
        }
    }
}

/// Encrypts or decrypts a block of each message, and returns the encrypted blocks. `words` are of the key stream. They
/// stay in registers, and so do the blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn xor_blocks<const SEALS: bool>(messages: &mut [Message<'_>], at: usize, words: Matrix) -> Matrix {
    let [s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15] = transposed(words);

    [
        xor_at::<SEALS>(messages, 0, at, s0),
        xor_at::<SEALS>(messages, 1, at, s1),
        xor_at::<SEALS>(messages, 2, at, s2),
        xor_at::<SEALS>(messages, 3, at, s3),
        xor_at::<SEALS>(messages, 4, at, s4),
        xor_at::<SEALS>(messages, 5, at, s5),
        xor_at::<SEALS>(messages, 6, at, s6),
        xor_at::<SEALS>(messages, 7, at, s7),
        xor_at::<SEALS>(messages, 8, at, s8),
        xor_at::<SEALS>(messages, 9, at, s9),
        xor_at::<SEALS>(messages, 10, at, s10),
        xor_at::<SEALS>(messages, 11, at, s11),
        xor_at::<SEALS>(messages, 12, at, s12),
        xor_at::<SEALS>(messages, 13, at, s13),
        xor_at::<SEALS>(messages, 14, at, s14),
        xor_at::<SEALS>(messages, 15, at, s15),
    ]
}

/// Encrypts or decrypts a block of one message, and returns the encrypted block, or zeros if there is no message.
#[inline]
#[target_feature(enable = "avx512f")]
fn xor_at<const SEALS: bool>(
    messages: &mut [Message<'_>],
    lane: usize,
    at: usize,
    stream: __m512i,
) -> __m512i {
    match block_at(messages, lane, at) {
        Some(block) => xor_block::<SEALS>(block, stream),
        None => _mm512_setzero_si512(),
    }
}

/// As [`xor_blocks`], where a message may end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor_ends<const SEALS: bool>(messages: &mut [Message<'_>], at: usize, words: Matrix) -> Matrix {
    let streams = transposed(words);
    let mut encrypted = [_mm512_setzero_si512(); LANES];
    for ((message, stream), encrypted) in messages.iter_mut().zip(&streams).zip(&mut encrypted) {
        *encrypted = xor::<SEALS>(message.text.get_mut(at..).unwrap_or_default(), *stream);
    }

    encrypted
}

/// One bit for each message of more than `len` bytes: for the first eight messages and for the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn longer_than([low, high]: &[__m512i; 2], len: usize) -> [u8; 2] {
    let len = _mm512_set1_epi64(as_i64(len));

    [_mm512_cmpgt_epi64_mask(*low, len), _mm512_cmpgt_epi64_mask(*high, len)]
}

// The functions below use no vectors. They are outside of the functions that do, because the compiler does not always
// inline a closure of such a function into the code of the standard library that calls it.

/// The block of a message that begins at `at`.
#[inline]
fn block_at<'a>(
    messages: &'a mut [Message<'_>],
    lane: usize,
    at: usize,
) -> Option<&'a mut [u8; BLOCK_LEN]> {
    messages.get_mut(lane)?.text.get_mut(at..)?.first_chunk_mut()
}

/// Lengths of the texts of the first eight messages and of the others, little-endian.
#[inline]
fn lens(messages: &[Message<'_>]) -> [[[u8; 8]; LANES / 2]; 2] {
    let len = |lane: usize| {
        messages.get(lane).map_or(0, |message| as_i64(message.text.len())).to_le_bytes()
    };

    [array::from_fn(len), array::from_fn(|lane| len(lane + LANES / 2))]
}

/// Length of the longest text.
#[inline]
fn longest(messages: &[Message<'_>]) -> usize {
    messages.iter().map(|message| message.text.len()).max().unwrap_or(0)
}

/// The three words of the nonces, each of all messages.
#[inline]
fn nonce_words(messages: &[Message<'_>]) -> [[[u8; 4]; LANES]; 3] {
    let nonces: [_; LANES] =
        array::from_fn(|lane| messages.get(lane).map(|message| message.nonce).unwrap_or_default());

    [
        nonces.map(|[a, b, c, d, ..]| [a, b, c, d]),
        nonces.map(|[_, _, _, _, a, b, c, d, ..]| [a, b, c, d]),
        nonces.map(|[.., a, b, c, d]| [a, b, c, d]),
    ]
}
