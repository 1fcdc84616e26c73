//! One message, with a block of it in each lane.
//!
//! The cipher makes sixteen blocks of the key stream at once. The authenticator adds eight parts at once: each lane has
//! every eighth part of the message, multiplied by `r^8` from one to the next. At the end each lane is multiplied by the
//! power of `r` that its last part needs, and the lanes are added.
//!
//! Between the rounds of the cipher the authenticator adds encrypted blocks: it stays behind the encryption, and ahead of
//! the decryption.

use std::arch::x86_64::*;

use super::chacha20::{BLOCK_LEN, Prepared, Rounds};
use super::memory::{load, load_short};
use super::poly1305::{PART_LEN, Sum, interleaved};
use super::transpose::transposed;
use super::{LANES, Matrix, TEXT_MAX, as_i64, xor, xor_block};
use crate::{KEY_LEN, Nonce, TAG_LEN};

/// Length of the part of the text that the first sixteen blocks of the key stream cover. Block 0 is the one-time key.
const FIRST_LEN: usize = (LANES - 1) * BLOCK_LEN;

/// Parts of a block. Two blocks have one for each lane of [`Sum`].
const PARTS: usize = BLOCK_LEN / PART_LEN;

/// Length of the blocks that [`Sum`] adds between four double rounds.
const RUN_LEN: usize = 8 * BLOCK_LEN;

/// Encrypts or decrypts `text`, and returns the tag that it has when encrypted.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
pub(super) fn crypt<const SEALS: bool>(
    key: &[u8; KEY_LEN],
    nonce: Nonce,
    text: &mut [u8],
) -> [u8; TAG_LEN] {
    let len = text.len();
    assert!(len <= TEXT_MAX, "a text of {len} bytes");

    let (words, _) = nonce.as_chunks();
    let [n0, n1, n2] = words else { unreachable!("a nonce has three words") };
    let state = Prepared::new(key, &[[*n0; LANES], [*n1; LANES], [*n2; LANES]]);
    let first = transposed(state.block(counters(0)));
    let [one_time_key, streams @ ..] = &first;
    let mut authenticator = Authenticator::new(*one_time_key);

    let mut end = len.min(FIRST_LEN);
    if !SEALS {
        authenticator.add_until(end, text);
    }
    xor_each(text.get_mut(..end).unwrap_or_default(), streams);
    let mut block = 0;
    while end < len {
        block += 16;
        let mut rounds = state.begin(counters(block));
        let start = end;
        end = len.min(start + LANES * BLOCK_LEN);
        let encrypted = text.get(..if SEALS { start } else { len }).unwrap_or_default();
        authenticator.add_between(encrypted, &mut rounds);
        if !SEALS {
            authenticator.add_until(end, text);
        }
        xor_next(text.get_mut(start..end).unwrap_or_default(), rounds.finish(&state));
    }

    authenticator.tag(text)
}

/// Authenticates an encrypted text while it is encrypted or decrypted.
struct Authenticator {
    sum: Sum,
    /// How many bytes are in the sum.
    added: usize,
    /// The tag, as soon as the whole text is authenticated.
    tag: Option<[u8; TAG_LEN]>,
}

impl Authenticator {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn new(one_time_key: __m512i) -> Self {
        Self { sum: Sum::new(one_time_key), added: 0, tag: None }
    }

    /// Adds up to two runs of what `encrypted` has and the sum has not.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn add_between(&mut self, encrypted: &[u8], rounds: &mut Rounds) {
        for run in runs(encrypted, self.added).iter().take(2) {
            self.sum.add_between(run, rounds);
            self.added += RUN_LEN;
        }
    }

    /// Adds so much that the sum has the bytes before `end`, before they are decrypted.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
    fn add_until(&mut self, end: usize, text: &[u8]) {
        for run in runs(text, self.added) {
            if self.added >= end {
                return;
            }
            self.sum.add(run);
            self.added += RUN_LEN;
        }
        if self.added < end {
            self.tag = Some(self.tag(text));
            self.added = text.len();
        }
    }

    /// The tag of `text`. RFC 8439, section 2.8.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
    fn tag(&mut self, text: &[u8]) -> [u8; TAG_LEN] {
        if let Some(tag) = self.tag {
            return tag;
        }

        for run in runs(text, self.added) {
            self.sum.add(run);
            self.added += RUN_LEN;
        }
        let (blocks, end) = text.get(self.added..).unwrap_or_default().as_chunks::<BLOCK_LEN>();
        let (pairs, rest) = blocks.as_chunks();
        if !pairs.is_empty() {
            self.sum.add(pairs);
        }

        // What is left, and the part with the lengths: that of the associated data, which is 0, and that of the text.
        let left = rest.len() * BLOCK_LEN + end.len();
        let count = left.div_ceil(PART_LEN);
        let mut last = [_mm512_setzero_si512(); 4];
        let (blocks, end_block) = last.split_at_mut(rest.len());
        for (last, block) in blocks.iter_mut().zip(rest) {
            *last = load(block);
        }
        if let ([last, ..], false) = (end_block, end.is_empty()) {
            *last = load_short(end);
        }
        if let Some(last) = last.get_mut(count / PARTS) {
            let upper_half = 1 << (2 * (count % PARTS) + 1);
            *last = _mm512_mask_set1_epi64(*last, upper_half, as_i64(text.len()));
        }

        let [a, b, c, d] = last;
        match (count + 1).checked_sub(2 * PARTS) {
            None => self.sum.tag(interleaved(a, b), count + 1),
            Some(count) => {
                self.sum.add_eight(interleaved(a, b));
                self.sum.tag(interleaved(c, d), count)
            }
        }
    }
}

/// The runs of a text from `start` on: four pairs of blocks each.
#[inline]
fn runs(text: &[u8], start: usize) -> &[[[[u8; BLOCK_LEN]; 2]; 4]] {
    text.get(start..).unwrap_or_default().as_chunks().0.as_chunks().0.as_chunks().0
}

/// The counters of sixteen blocks from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn counters(first: i32) -> __m512i {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    _mm512_add_epi32(lanes, _mm512_set1_epi32(first))
}

/// Encrypts or decrypts the sixteen blocks of `text`, or fewer, with words of the key stream.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor_next(text: &mut [u8], words: Matrix) {
    let (blocks, _) = text.as_chunks_mut();
    if let Some(blocks) = blocks.first_chunk_mut::<LANES>() {
        for (block, stream) in blocks.iter_mut().zip(transposed(words)) {
            xor_block::<true>(block, stream);
        }
    } else {
        xor_each(text, &transposed(words));
    }
}

/// Encrypts or decrypts each block of `text`. The last may be shorter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn xor_each(text: &mut [u8], streams: &[__m512i]) {
    for (block, stream) in text.chunks_mut(BLOCK_LEN).zip(streams) {
        xor::<true>(block, *stream);
    }
}
