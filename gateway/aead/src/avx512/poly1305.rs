//! Poly1305 (RFC 8439, section 2.5) in eight lanes of 64 bits: of eight messages, or of eight parts of one message.

use std::arch::x86_64::*;

use super::memory::stored;
use super::{LANES, Matrix, TAG_LEN, Tags};

/// Bytes of what RFC 8439 calls a block of Poly1305: one number. Here a block is one of ChaCha20, which has four.
pub(super) const PART_LEN: usize = 16;

/// Eight numbers in base 2^44, the lowest digit first. Digits may be larger than the base; the bounds are at
/// [`Product`].
type Digits = [__m512i; 3];

const MASK_44: i64 = (1 << 44) - 1;
const MASK_42: i64 = (1 << 42) - 1;

/// Eight authenticators.
pub(super) struct Poly1305 {
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

    /// Adds the next four parts of the messages that `mask` selects. `((((sum + a) r + b) r + c) r + d) r` is
    /// `(sum + a) r^4 + b r^3 + c r^2 + d r`, which needs one carry.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add_four(&mut self, [part, parts @ ..]: &[[__m512i; 2]; 4], mask: u8) {
        let [power, powers @ ..] = &self.powers;
        let mut product = Product::zero();
        product.add(plus(digits(*part, 1), self.sum), power);
        for (part, power) in parts.iter().zip(powers) {
            product.add(digits(*part, 1), power);
        }
        self.sum = select(mask, self.sum, product.carried());
    }

    /// Adds the next part of the messages that `mask` selects.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add(&mut self, part: &[__m512i; 2], mask: u8) {
        let [.., r] = &self.powers;
        let mut product = Product::zero();
        product.add(plus(digits(*part, 1), self.sum), r);
        self.sum = select(mask, self.sum, product.carried());
    }

    /// The tags: the sums, reduced, plus the other halves of the one-time keys. RFC 8439, section 2.5.1.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn tags(sums: &[Self; 2], one_time_keys: &Matrix) -> Tags {
        let [_, _, _, _, pads @ .., _, _, _, _, _, _, _, _] = *one_time_keys;
        let pads = halves(pads);
        let mut tags = [[0; TAG_LEN]; LANES];
        let each = sums.iter().zip(&pads).zip(tags.as_chunks_mut::<8>().0);
        for ((sum, pad), tags) in each {
            *tags = tags_of(padded(reduced(sum.sum), *pad));
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

    /// Adds the next `8 * COUNT` parts, up to 32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn add<const COUNT: usize>(&mut self, parts: &[[__m512i; 2]; COUNT]) {
        let mut product = Product::zero();
        let mut digits_before = self.sum;
        for (parts, power) in parts.iter().zip(self.powers.iter().skip(4 - COUNT)) {
            product.add(digits_before, power);
            digits_before = digits(*parts, 1);
        }
        self.sum = plus(product.carried(), digits_before);
    }

    /// Adds the last parts, fewer than eight: the first `count` of `parts`. Returns the tag.
    ///
    /// The last part of the message is at the position `count - 1` and needs the factor `r`, the one before it `r^2`,
    /// and so on around the eight lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    pub(super) fn tag(&self, parts: [__m512i; 2], count: usize) -> [u8; TAG_LEN] {
        let [.., r_8] = &self.powers;
        let count = _mm512_set1_epi64(i64::try_from(count).unwrap_or(0));
        let has_part = _mm512_cmplt_epi64_mask(positions(), count);
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
        let [h_0, h_1, h_2] = powers.times_digits(sum);
        let all_lanes = Product {
            low: [
                _mm512_set1_epi64(_mm512_reduce_add_epi64(h_0)),
                _mm512_set1_epi64(_mm512_reduce_add_epi64(h_1)),
                _mm512_set1_epi64(_mm512_reduce_add_epi64(h_2)),
            ],
            ..Product::zero()
        };
        let tag = padded(reduced(all_lanes.carried()), self.pad);
        let [tag, ..] = tags_of(tag);

        tag
    }
}

/// The position of the part that each lane has among eight parts: interleaved, as two blocks are unpacked.
#[inline]
#[target_feature(enable = "avx512f")]
fn positions() -> __m512i {
    _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)
}

/// A power of `r`.
struct Factor {
    digits: Digits,
    /// The upper two digits times 20: 2^132 is 20 modulo 2^130 - 5.
    times_20: [__m512i; 2],
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(digits: Digits) -> Self {
        let [_, r_1, r_2] = digits;

        Self { digits, times_20: [times_20(r_1), times_20(r_2)] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn times(&self, other: &Self) -> Self {
        Self::new(other.times_digits(self.digits))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn times_digits(&self, digits: Digits) -> Digits {
        let mut product = Product::zero();
        product.add(digits, self);

        product.carried()
    }
}

/// The sum of up to four products, not carried: for each digit the sum of the lower 52 bits of products of digits, and
/// the sum of the bits above.
///
/// Digits stay below 2^46, and twenty times a digit of a factor below 2^49. So both fit into the 52 bits that the
/// instructions multiply, and the sums of twelve stay below 2^56. `AUDIT.md` has the bounds of each step.
struct Product {
    low: Digits,
    over: Digits,
}

impl Product {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Self {
        Self { low: [_mm512_setzero_si512(); 3], over: [_mm512_setzero_si512(); 3] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, [h_0, h_1, h_2]: Digits, factor: &Factor) {
        let ([r_0, r_1, r_2], [r_1_20, r_2_20]) = (factor.digits, factor.times_20);
        let factors = [
            [(h_0, r_0), (h_1, r_2_20), (h_2, r_1_20)],
            [(h_0, r_1), (h_1, r_0), (h_2, r_2_20)],
            [(h_0, r_2), (h_1, r_1), (h_2, r_0)],
        ];
        for ((low, over), factors) in self.low.iter_mut().zip(&mut self.over).zip(factors) {
            for (h, r) in factors {
                *low = _mm512_madd52lo_epu64(*low, h, r);
                *over = _mm512_madd52hi_epu64(*over, h, r);
            }
        }
    }

    /// Carries and reduces to about 130 bits. 2^52 in one digit is 2^8 in the next, and 2^130 is 5. Afterwards the
    /// lowest digit is below 2^44, the next below 2^44 + 2^16, and the last below 2^42.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn carried(self) -> Digits {
        let ([d_0, d_1, d_2], [over_0, over_1, over_2]) = (self.low, self.over);
        let mask = _mm512_set1_epi64(MASK_44);
        let d_1 = _mm512_add_epi64(d_1, _mm512_slli_epi64::<8>(over_0));
        let d_2 = _mm512_add_epi64(d_2, _mm512_slli_epi64::<8>(over_1));
        let d_1 = _mm512_add_epi64(d_1, _mm512_srli_epi64::<44>(d_0));
        let d_2 = _mm512_add_epi64(d_2, _mm512_srli_epi64::<44>(d_1));
        let over = _mm512_srli_epi64::<42>(d_2);
        let over = _mm512_add_epi64(over, _mm512_slli_epi64::<10>(over_2));
        let over = times_5(over);
        let h_0 = _mm512_add_epi64(_mm512_and_si512(d_0, mask), over);
        let h_1 = _mm512_and_si512(d_1, mask);

        [
            _mm512_and_si512(h_0, mask),
            _mm512_add_epi64(h_1, _mm512_srli_epi64::<44>(h_0)),
            _mm512_and_si512(d_2, _mm512_set1_epi64(MASK_42)),
        ]
    }
}

/// `r` of its 128 bits. RFC 8439, section 2.5.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn clamped([low, high]: [__m512i; 2]) -> Factor {
    let low = _mm512_and_si512(low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff));
    let high = _mm512_and_si512(high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc));

    Factor::new(digits([low, high], 0))
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

/// The digits of a number of 128 bits, with `above` at the bit 128.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn digits([low, high]: [__m512i; 2], above: i64) -> Digits {
    let mask = _mm512_set1_epi64(MASK_44);

    [
        _mm512_and_si512(low, mask),
        _mm512_and_si512(_mm512_shrdi_epi64::<44>(low, high), mask),
        _mm512_shrdi_epi64::<24>(high, _mm512_set1_epi64(above)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn plus([a_0, a_1, a_2]: Digits, [b_0, b_1, b_2]: Digits) -> Digits {
    [_mm512_add_epi64(a_0, b_0), _mm512_add_epi64(a_1, b_1), _mm512_add_epi64(a_2, b_2)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_20(digit: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_slli_epi64::<4>(digit), _mm512_slli_epi64::<2>(digit))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_5(digit: __m512i) -> __m512i {
    _mm512_add_epi64(digit, _mm512_slli_epi64::<2>(digit))
}

/// The second number in the lanes that `mask` selects, the first in the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn select(mask: u8, [a_0, a_1, a_2]: Digits, [b_0, b_1, b_2]: Digits) -> Digits {
    [
        _mm512_mask_mov_epi64(a_0, mask, b_0),
        _mm512_mask_mov_epi64(a_1, mask, b_1),
        _mm512_mask_mov_epi64(a_2, mask, b_2),
    ]
}

/// A number below 2^131 modulo 2^130 - 5: bits 0 to 63 and 64 to 127.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduced(sum: Digits) -> [__m512i; 2] {
    let [h_0, h_1, h_2] = carry_up(sum);
    let over = _mm512_srli_epi64::<42>(h_2);
    let h_2 = _mm512_and_si512(h_2, _mm512_set1_epi64(MASK_42));
    let sum = carry_up([_mm512_add_epi64(h_0, times_5(over)), h_1, h_2]);
    let zero = _mm512_setzero_si512();
    let less_the_prime = carry_up(plus(sum, [_mm512_set1_epi64(5), zero, zero]));
    let [_, _, top] = less_the_prime;
    let is_above = _mm512_test_epi64_mask(top, _mm512_set1_epi64(1 << 42));
    let [h_0, h_1, h_2] = select(is_above, sum, less_the_prime);

    [
        _mm512_or_si512(h_0, _mm512_slli_epi64::<44>(h_1)),
        _mm512_or_si512(_mm512_srli_epi64::<20>(h_1), _mm512_slli_epi64::<24>(h_2)),
    ]
}

/// The sum plus the other half of the one-time key, modulo 2^128.
#[inline]
#[target_feature(enable = "avx512f")]
fn padded([low, high]: [__m512i; 2], [pad_low, pad_high]: [__m512i; 2]) -> [__m512i; 2] {
    let low = _mm512_add_epi64(low, pad_low);
    let carry = _mm512_cmplt_epu64_mask(low, pad_low);
    let high = _mm512_add_epi64(high, pad_high);

    [low, _mm512_mask_add_epi64(high, carry, high, _mm512_set1_epi64(1))]
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

/// Carries so that the lower two digits are below 2^44.
#[inline]
#[target_feature(enable = "avx512f")]
fn carry_up([h_0, h_1, h_2]: Digits) -> Digits {
    let mask = _mm512_set1_epi64(MASK_44);
    let h_1 = _mm512_add_epi64(h_1, _mm512_srli_epi64::<44>(h_0));
    let h_2 = _mm512_add_epi64(h_2, _mm512_srli_epi64::<44>(h_1));

    [_mm512_and_si512(h_0, mask), _mm512_and_si512(h_1, mask), h_2]
}

#[cfg(test)]
#[expect(unsafe_code, reason = "calls of functions that are compiled for AVX-512")]
mod tests {
    use std::array;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::tests::poly1305::near_the_prime;
    use crate::tests::{byte, lanes};

    /// The tag of `message`, which consists of parts, in every lane. With `by_block` four parts are added at once.
    #[target_feature(enable = "avx512f,avx512ifma,avx512vbmi2")]
    fn authenticated(key: &[u8; 32], message: &[u8], by_block: bool) -> Tags {
        let mut one_time_keys = [_mm512_setzero_si512(); 16];
        for (word, bytes) in one_time_keys.iter_mut().zip(key.as_chunks().0) {
            *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
        }
        let mut sums = Poly1305::both(&one_time_keys);
        let (blocks, rest) = message.as_chunks::<{ 4 * PART_LEN }>();
        let (blocks, parts) = if by_block { (blocks, rest) } else { (&[][..], message) };
        for sum in &mut sums {
            for block in blocks {
                sum.add_four(
                    &array::from_fn(|number| spread(&block[number * PART_LEN..])),
                    u8::MAX,
                );
            }
            for part in parts.chunks(PART_LEN) {
                sum.add(&spread(part), u8::MAX);
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
            // SAFETY: `lanes` panics unless the processor has the features.
            let [by_block, by_part] =
                [true, false].map(|by_block| unsafe { authenticated(&key, &message, by_block) });
            prop_assert_eq!(by_block, by_part);
        }
    }

    #[test]
    #[cfg_attr(not(has_lanes), ignore = "needs a processor with AVX-512, IFMA and VBMI2")]
    fn sums_near_the_prime_match_rfc_8439() {
        lanes();
        for (key, message, tag) in near_the_prime() {
            // SAFETY: `lanes` panics unless the processor has the features.
            let found = unsafe { authenticated(&key, &message, false) };
            assert_eq!(found, [tag; LANES], "{}", message.len());
        }
    }
}
