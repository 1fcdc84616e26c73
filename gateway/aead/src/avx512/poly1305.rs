//! Poly1305 (RFC 8439, section 2.5) in eight lanes of 64 bits: of eight messages, or of eight parts of one message.

use std::arch::x86_64::*;

use super::chacha20::{BLOCK_LEN, Rounds};
use super::memory::{load, stored};
use super::numbers::{Digits, Factor, Product, clamped, digits, padded, plus, reduced, select};
use super::{LANES, Matrix, TAG_LEN, Tags};

/// Bytes of what RFC 8439 calls a block of Poly1305: one number. Here a block is one of ChaCha20, which has four.
pub(super) const PART_LEN: usize = 16;

/// Eight authenticators.
pub(super) struct Poly1305 {
    /// It has the last part, which is not multiplied yet.
    sum: Digits,
    /// `r^4`, `r^3`, `r^2` and `r`.
    powers: [Factor; 4],
}

impl Poly1305 {
    /// The authenticators of the first eight messages and of the others. Their keys are in block 0 of the key stream.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn both(one_time_keys: &Matrix) -> [Self; 2] {
        let [words @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *one_time_keys;
        let [low, high] = halves(words);

        [Self::new(low), Self::new(high)]
    }

    /// With the 128 bits of `r`, before they are clamped.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn new(r: [__m512i; 2]) -> Self {
        let r = clamped(r);
        let r_2 = r.times(&r);
        let (r_3, r_4) = (r_2.times(&r), r_2.times(&r_2));

        Self { sum: [_mm512_setzero_si512(); 3], powers: [r_4, r_3, r_2, r] }
    }

    /// Adds the next parts, up to four, of the messages that `mask` selects. `(((sum r + a) r + b) r + c) r + d` is
    /// `sum r^4 + a r^3 + b r^2 + c r + d`, which needs one carry.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add(&mut self, parts: &[[__m512i; 2]], mask: u8) {
        let mut product = Product::zero();
        let mut digits_before = self.sum;
        for (part, power) in parts.iter().zip(self.powers.iter().skip(4 - parts.len())) {
            product.add(digits_before, power);
            digits_before = digits(*part, 1);
        }
        self.sum = select(mask, self.sum, plus(product.carried(), digits_before));
    }

    /// As [`Self::add`], between four double rounds.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add_between(&mut self, parts: &[[__m512i; 2]; 4], mask: u8, rounds: &mut Rounds) {
        let mut product = Product::zero();
        let mut digits_before = self.sum;
        for (part, power) in parts.iter().zip(&self.powers) {
            product.add_between(digits_before, power, rounds);
            digits_before = digits(*part, 1);
        }
        self.sum = select(mask, self.sum, plus(product.carried(), digits_before));
    }

    /// The tags: the sums, reduced, plus the other halves of the one-time keys. RFC 8439, section 2.5.1.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn tags(sums: &[Self; 2], one_time_keys: &Matrix) -> Tags {
        let [_, _, _, _, pads @ .., _, _, _, _, _, _, _, _] = *one_time_keys;
        let pads = halves(pads);
        let mut tags = [[0; TAG_LEN]; LANES];
        let each = sums.iter().zip(&pads).zip(tags.as_chunks_mut::<8>().0);
        for ((sum, pad), tags) in each {
            let [.., r] = &sum.powers;
            *tags = tags_of(padded(reduced(r.times_digits(sum.sum)), *pad));
        }

        tags
    }
}

/// The authenticator of one message: each lane has every eighth part of it, in the order of [`positions`].
pub(super) struct Sum {
    sum: Digits,
    /// `r^32`, `r^24`, `r^16` and `r^8`.
    powers: [Factor; 4],
    /// `r^8`, `r^7`, and so on to `r`, one in each lane.
    last_powers: Digits,
    /// The other half of the one-time key, in all lanes.
    pad: [__m512i; 2],
}

impl Sum {
    /// With the block 0 of the key stream.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn new(one_time_key: __m512i) -> Self {
        let [r_low, r_high, pad_low, pad_high] = [0, 1, 2, 3]
            .map(|word| _mm512_permutexvar_epi64(_mm512_set1_epi64(word), one_time_key));
        let r = clamped([r_low, r_high]);
        let r_2 = r.times(&r);
        let r_4 = r_2.times(&r_2);
        let r_8 = r_4.times(&r_4);
        let r_16 = r_8.times(&r_8);
        let (r_24, r_32) = (r_16.times(&r_8), r_16.times(&r_16));

        let from_2 = select(0b1010_1010, r_2.digits, r.digits);
        let from_4 = select(0b0011_0011, from_2, r_2.times_digits(from_2));
        let from_8 = select(0b0000_1111, from_4, r_4.times_digits(from_4));

        Self {
            sum: [_mm512_setzero_si512(); 3],
            powers: [r_32, r_24, r_16, r_8],
            last_powers: from_8,
            pad: [pad_low, pad_high],
        }
    }

    /// Adds the next parts, eight for each two blocks, of up to eight blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add(&mut self, pairs: &[[[u8; BLOCK_LEN]; 2]]) {
        let mut product = Product::zero();
        let mut digits_before = self.sum;
        for ([a, b], power) in pairs.iter().zip(self.powers.iter().skip(4 - pairs.len())) {
            product.add(digits_before, power);
            digits_before = digits(interleaved(load(a), load(b)), 1);
        }
        self.sum = plus(product.carried(), digits_before);
    }

    /// As [`Self::add`], between four double rounds.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add_between(&mut self, pairs: &[[[u8; BLOCK_LEN]; 2]; 4], rounds: &mut Rounds) {
        let mut product = Product::zero();
        let mut digits_before = self.sum;
        for ([a, b], power) in pairs.iter().zip(&self.powers) {
            product.add_between(digits_before, power, rounds);
            digits_before = digits(interleaved(load(a), load(b)), 1);
        }
        self.sum = plus(product.carried(), digits_before);
    }

    /// Adds the next eight parts.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add_eight(&mut self, parts: [__m512i; 2]) {
        let [.., r_8] = &self.powers;
        self.sum = plus(r_8.times_digits(self.sum), digits(parts, 1));
    }

    /// Adds the last parts, fewer than eight: the first `count` of `parts`. Returns the tag.
    ///
    /// The last part of the message is at the position `count - 1` and needs the factor `r`, the one before it `r^2`,
    /// and so on around the eight lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn tag(&self, parts: [__m512i; 2], count: usize) -> [u8; TAG_LEN] {
        let count = _mm512_set1_epi64(i64::try_from(count).unwrap_or(0));
        let has_part = _mm512_cmplt_epi64_mask(positions(), count);
        let [.., r_8] = &self.powers;
        let with_part = plus(r_8.times_digits(self.sum), digits(parts, 1));
        let sum = select(has_part, self.sum, with_part);

        // The permutation reads the lower three bits of an index.
        let index = _mm512_sub_epi64(positions(), count);
        let [p_0, p_1, p_2] = self.last_powers;
        let powers = Factor::new([
            _mm512_permutexvar_epi64(index, p_0),
            _mm512_permutexvar_epi64(index, p_1),
            _mm512_permutexvar_epi64(index, p_2),
        ]);
        let all_lanes = Product::of_lanes(powers.times_digits(sum));
        let tag = padded(reduced(all_lanes.carried()), self.pad);
        let [tag, ..] = tags_of(tag);

        tag
    }
}

/// The eight parts of two blocks: their lower and their upper 64 bits, in the order of [`positions`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn interleaved(first: __m512i, second: __m512i) -> [__m512i; 2] {
    [_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second)]
}

/// The position of the part that each lane has among eight parts: interleaved, as two blocks are unpacked.
#[inline]
#[target_feature(enable = "avx512f")]
fn positions() -> __m512i {
    _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)
}

/// The lower and the upper 64 bits of numbers of four words, of the first eight messages and of the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(words: [__m512i; 4]) -> [[__m512i; 2]; 2] {
    let [word_0, word_1, word_2, word_3] = words;

    [
        [pairs(low_lanes(word_0), low_lanes(word_1)), pairs(low_lanes(word_2), low_lanes(word_3))],
        [
            pairs(high_lanes(word_0), high_lanes(word_1)),
            pairs(high_lanes(word_2), high_lanes(word_3)),
        ],
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn low_lanes(word: __m512i) -> __m512i {
    _mm512_cvtepu32_epi64(_mm512_castsi512_si256(word))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn high_lanes(word: __m512i) -> __m512i {
    _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(word))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(low: __m512i, high: __m512i) -> __m512i {
    _mm512_or_si512(low, _mm512_slli_epi64::<32>(high))
}

/// The tags with these lower and upper 64 bits, one for each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn tags_of([low, high]: [__m512i; 2]) -> [[u8; TAG_LEN]; LANES / 2] {
    let mut tags = [[0; TAG_LEN]; LANES / 2];
    let even = stored(_mm512_unpacklo_epi64(low, high));
    let odd = stored(_mm512_unpackhi_epi64(low, high));
    let pairs = even.as_chunks().0.iter().zip(odd.as_chunks().0);
    for (tags, (even, odd)) in tags.as_chunks_mut().0.iter_mut().zip(pairs) {
        *tags = [*even, *odd];
    }

    tags
}

#[cfg(test)]
#[expect(unsafe_code, reason = "calls of functions that are compiled for AVX-512")]
mod tests {
    use std::array;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::chacha20::Prepared;
    use super::*;
    use crate::tests::poly1305::near_the_prime;
    use crate::tests::{byte, lanes};

    /// How many parts are added at once.
    #[derive(Clone, Copy)]
    enum By {
        One,
        Four,
        FourBetweenRounds,
    }

    /// The tag of `message`, which consists of parts, in every lane.
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn authenticated(key: &[u8; 32], message: &[u8], by: By) -> Tags {
        let mut one_time_keys = [_mm512_setzero_si512(); 16];
        for (word, bytes) in one_time_keys.iter_mut().zip(key.as_chunks().0) {
            *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
        }
        let state = Prepared::new(key, &[[[0; 4]; LANES]; 3]);
        let mut sums = Poly1305::both(&one_time_keys);
        let (blocks, rest) = message.as_chunks::<{ 4 * PART_LEN }>();
        let (blocks, parts) = if let By::One = by { (&[][..], message) } else { (blocks, rest) };
        for sum in &mut sums {
            for block in blocks {
                let parts = array::from_fn(|number| spread(&block[number * PART_LEN..]));
                match by {
                    By::FourBetweenRounds => {
                        let mut rounds = state.begin(_mm512_setzero_si512());
                        sum.add_between(&parts, u8::MAX, &mut rounds);
                    }
                    By::One | By::Four => sum.add(&parts, u8::MAX),
                }
            }
            for part in parts.chunks(PART_LEN) {
                sum.add(&[spread(part)], u8::MAX);
            }
        }

        Poly1305::tags(&sums, &one_time_keys)
    }

    /// One part in all lanes.
    #[target_feature(enable = "avx512f")]
    fn spread(part: &[u8]) -> [__m512i; 2] {
        array::from_fn(|half| {
            _mm512_set1_epi64(i64::from_le_bytes(*part[half * 8..].first_chunk().unwrap()))
        })
    }

    proptest! {
        /// Bytes of 0xff are frequent, so sums, factors and numbers come close to their bounds.
        #[test]
        #[cfg_attr(not(has_lanes), ignore = "needs a processor with AVX-512, IFMA and VBMI2")]
        fn four_parts_at_once_equal_one_by_one(
            key in vec(byte(), 32),
            message in vec(byte(), 0..40).prop_map(|words| words.repeat(PART_LEN)),
            others in vec(byte(), 40 * PART_LEN),
            is_uniform in any::<bool>(),
        ) {
            lanes();
            let key = key.try_into().unwrap();
            let message = if is_uniform { message } else { others[..message.len()].to_vec() };
            let [one, four, between] = [By::One, By::Four, By::FourBetweenRounds].map(|by| {
                // SAFETY: `lanes` panics unless the processor has the features.
                unsafe { authenticated(&key, &message, by) }
            });
            prop_assert_eq!(four, one);
            prop_assert_eq!(between, one);
        }
    }

    #[test]
    #[cfg_attr(not(has_lanes), ignore = "needs a processor with AVX-512, IFMA and VBMI2")]
    fn sums_near_the_prime_match_rfc_8439() {
        lanes();
        for (key, message, tag) in near_the_prime() {
            // SAFETY: `lanes` panics unless the processor has the features.
            let found = unsafe { authenticated(&key, &message, By::One) };
            assert_eq!(found, [tag; LANES], "{}", message.len());
        }
    }
}
