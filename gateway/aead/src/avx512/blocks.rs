//! One message, with a block of it in each lane.
//!
//! The cipher makes sixteen blocks of the key stream at once. The authenticator adds eight parts at once: each lane has
//! every eighth part of the message, multiplied by `r^8` from one to the next. At the end each lane is multiplied by the
//! power of `r` that its last part needs, and the lanes are added.
//!
//! The text is encrypted and authenticated in two passes: it is in the cache for the second.

use std::arch::x86_64::*;

use super::chacha20::{BLOCK_LEN, Prepared};
use super::memory::{load, load_short};
use super::poly1305::{PART_LEN, Sum};
use super::transpose::transposed;
use super::{LANES, Matrix, TEXT_MAX, as_i64, xor};
use crate::{KEY_LEN, Nonce, TAG_LEN};

/// Length of the part of the text that the first sixteen blocks of the key stream cover. Block 0 is the one-time key.
const FIRST_LEN: usize = (LANES - 1) * BLOCK_LEN;

/// Parts of a block. Two blocks have one for each lane of [`Sum`].
const PARTS: usize = BLOCK_LEN / PART_LEN;

/// The key stream of one message.
pub(super) struct KeyStream {
    state: Prepared,
    /// The blocks 0 to 15.
    first: Matrix,
}

impl KeyStream {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(key: &[u8; KEY_LEN], nonce: Nonce) -> Self {
        let (words, _) = nonce.as_chunks();
        let [n0, n1, n2] = words else { unreachable!("a nonce has three words") };
        let state = Prepared::new(key, &[[*n0; LANES], [*n1; LANES], [*n2; LANES]]);
        let first = transposed(state.block(counters(0)));

        Self { state, first }
    }

    /// Encrypts or decrypts `text`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn apply(&self, text: &mut [u8]) {
        assert!(text.len() <= TEXT_MAX, "a text of {} bytes", text.len());

        let (first, rest) = text.split_at_mut(text.len().min(FIRST_LEN));
        apply(first, self.first.iter().skip(1));
        let mut block = 0;
        for chunk in rest.chunks_mut(LANES * BLOCK_LEN) {
            block += 16;
            apply(chunk, transposed(self.state.block(counters(block))).iter());
        }
    }

    /// The tag of the encrypted `text`. RFC 8439, section 2.8.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
    pub(super) fn tag(&self, text: &[u8]) -> [u8; TAG_LEN] {
        let [one_time_key, ..] = self.first;
        let mut sum = Sum::new(one_time_key);
        let (blocks, end) = text.as_chunks::<BLOCK_LEN>();
        let (fours, rest) = blocks.as_chunks::<8>();
        for [a, b, c, d, e, f, g, h] in fours {
            sum.add(&[parts(a, b), parts(c, d), parts(e, f), parts(g, h)]);
        }
        let (pairs, rest) = rest.as_chunks();
        for [a, b] in pairs {
            sum.add(&[parts(a, b)]);
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
            None => sum.tag(interleaved(a, b), count + 1),
            Some(count) => {
                sum.add(&[interleaved(a, b)]);
                sum.tag(interleaved(c, d), count)
            }
        }
    }
}

/// The counters of sixteen blocks from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn counters(first: i32) -> __m512i {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    _mm512_add_epi32(lanes, _mm512_set1_epi32(first))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn apply<'a>(text: &mut [u8], streams: impl Iterator<Item = &'a __m512i>) {
    for (block, stream) in text.chunks_mut(BLOCK_LEN).zip(streams) {
        xor::<true>(block, *stream);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn parts(first: &[u8; BLOCK_LEN], second: &[u8; BLOCK_LEN]) -> [__m512i; 2] {
    interleaved(load(first), load(second))
}

/// The eight parts of two blocks: their lower and their upper 64 bits, in the order of [`Sum`].
#[inline]
#[target_feature(enable = "avx512f")]
fn interleaved(first: __m512i, second: __m512i) -> [__m512i; 2] {
    [_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second)]
}
