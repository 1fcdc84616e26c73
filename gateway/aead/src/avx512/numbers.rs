//! Numbers modulo 2^130 - 5, one in each of eight lanes of 64 bits.

use std::arch::x86_64::*;

use super::chacha20::Rounds;

/// Eight numbers in base 2^44, the lowest digit first. Digits may be larger than the base; the bounds are at
/// [`Product`].
pub(super) type Digits = [__m512i; 3];

const MASK_44: i64 = (1 << 44) - 1;
const MASK_42: i64 = (1 << 42) - 1;

/// A power of `r`.
pub(super) struct Factor {
    pub(super) digits: Digits,
    /// The upper two digits times 20: 2^132 is 20 modulo 2^130 - 5.
    times_20: [__m512i; 2],
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(digits: Digits) -> Self {
        let [_, r_1, r_2] = digits;

        Self { digits, times_20: [times_20(r_1), times_20(r_2)] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn times(&self, other: &Self) -> Self {
        Self::new(other.times_digits(self.digits))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn times_digits(&self, digits: Digits) -> Digits {
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
pub(super) struct Product {
    low: Digits,
    over: Digits,
}

impl Product {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn zero() -> Self {
        Self { low: [_mm512_setzero_si512(); 3], over: [_mm512_setzero_si512(); 3] }
    }

    /// The sum of the eight numbers, in all lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn of_lanes([h_0, h_1, h_2]: Digits) -> Self {
        let low = [
            _mm512_set1_epi64(_mm512_reduce_add_epi64(h_0)),
            _mm512_set1_epi64(_mm512_reduce_add_epi64(h_1)),
            _mm512_set1_epi64(_mm512_reduce_add_epi64(h_2)),
        ];

        Self { low, ..Self::zero() }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn add(&mut self, digits: Digits, factor: &Factor) {
        self.add_lower(digits, factor);
        self.add_upper(digits, factor);
    }

    /// Adds a product between a double round of the cipher.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub(super) fn add_between(&mut self, digits: Digits, factor: &Factor, rounds: &mut Rounds) {
        rounds.column_round();
        self.add_lower(digits, factor);
        rounds.diagonal_round();
        self.add_upper(digits, factor);
    }

    /// Adds the products of the lower two digits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add_lower(&mut self, [h_0, h_1, _]: Digits, factor: &Factor) {
        let ([r_0, r_1, r_2], [_, r_2_20]) = (factor.digits, factor.times_20);
        self.add_digit(h_0, [r_0, r_1, r_2]);
        self.add_digit(h_1, [r_2_20, r_0, r_1]);
    }

    /// Adds the products of the upper digit.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add_upper(&mut self, [_, _, h_2]: Digits, factor: &Factor) {
        let ([r_0, ..], [r_1_20, r_2_20]) = (factor.digits, factor.times_20);
        self.add_digit(h_2, [r_1_20, r_2_20, r_0]);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add_digit(&mut self, h: __m512i, factors: Digits) {
        for ((low, over), r) in self.low.iter_mut().zip(&mut self.over).zip(factors) {
            *low = _mm512_madd52lo_epu64(*low, h, r);
            *over = _mm512_madd52hi_epu64(*over, h, r);
        }
    }

    /// Carries and reduces to about 130 bits. 2^52 in one digit is 2^8 in the next, and 2^130 is 5. Afterwards the
    /// lowest digit is below 2^44, the next below 2^44 + 2^16, and the last below 2^42.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn carried(self) -> Digits {
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
pub(super) fn clamped([low, high]: [__m512i; 2]) -> Factor {
    let low = _mm512_and_si512(low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff));
    let high = _mm512_and_si512(high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc));

    Factor::new(digits([low, high], 0))
}

/// The digits of a number of 128 bits, with `above` at the bit 128.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
pub(super) fn digits([low, high]: [__m512i; 2], above: i64) -> Digits {
    let mask = _mm512_set1_epi64(MASK_44);

    [
        _mm512_and_si512(low, mask),
        _mm512_and_si512(_mm512_shrdi_epi64::<44>(low, high), mask),
        _mm512_shrdi_epi64::<24>(high, _mm512_set1_epi64(above)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn plus([a_0, a_1, a_2]: Digits, [b_0, b_1, b_2]: Digits) -> Digits {
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
pub(super) fn select(mask: u8, [a_0, a_1, a_2]: Digits, [b_0, b_1, b_2]: Digits) -> Digits {
    [
        _mm512_mask_mov_epi64(a_0, mask, b_0),
        _mm512_mask_mov_epi64(a_1, mask, b_1),
        _mm512_mask_mov_epi64(a_2, mask, b_2),
    ]
}

/// A number below 2^131 modulo 2^130 - 5: bits 0 to 63 and 64 to 127.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn reduced(sum: Digits) -> [__m512i; 2] {
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
pub(super) fn padded([low, high]: [__m512i; 2], [pad_low, pad_high]: [__m512i; 2]) -> [__m512i; 2] {
    let low = _mm512_add_epi64(low, pad_low);
    let carry = _mm512_cmplt_epu64_mask(low, pad_low);
    let high = _mm512_add_epi64(high, pad_high);

    [low, _mm512_mask_add_epi64(high, carry, high, _mm512_set1_epi64(1))]
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
