//! Transposition between one word of all messages and all words of one message.

use std::arch::x86_64::*;

use super::Matrix;

/// One word of each message per vector becomes one message per vector, or the reverse.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(words: Matrix) -> Matrix {
    let [w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15] = words;
    // Each has, in its quarter q, four words of the message 4 q + k.
    let [a0, a1, a2, a3] = quarters([w0, w1, w2, w3]);
    let [b0, b1, b2, b3] = quarters([w4, w5, w6, w7]);
    let [c0, c1, c2, c3] = quarters([w8, w9, w10, w11]);
    let [d0, d1, d2, d3] = quarters([w12, w13, w14, w15]);

    let [m0, m4, m8, m12] = transposed_quarters([a0, b0, c0, d0]);
    let [m1, m5, m9, m13] = transposed_quarters([a1, b1, c1, d1]);
    let [m2, m6, m10, m14] = transposed_quarters([a2, b2, c2, d2]);
    let [m3, m7, m11, m15] = transposed_quarters([a3, b3, c3, d3]);

    [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15]
}

/// Transposes four by four words of 32 bits within each quarter.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));

    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Transposes four by four quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_even, ab_odd) =
        (_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b));
    let (cd_even, cd_odd) =
        (_mm512_shuffle_i32x4::<0b10_00_10_00>(c, d), _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d));

    [
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even),
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd),
    ]
}

/// The four parts of a block, of the first eight messages and of the others: the lower 64 bits of each part, and the
/// upper 64 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn by_part(messages: &Matrix) -> [[[__m512i; 2]; 4]; 2] {
    let [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = *messages;

    [
        by_part_of_eight([m0, m1, m2, m3, m4, m5, m6, m7]),
        by_part_of_eight([m8, m9, m10, m11, m12, m13, m14, m15]),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn by_part_of_eight(messages: [__m512i; 8]) -> [[__m512i; 2]; 4] {
    let [m0, m1, m2, m3, m4, m5, m6, m7] = messages;
    let [low_0, low_1, low_2, low_3] = transposed_quarters([
        _mm512_unpacklo_epi64(m0, m1),
        _mm512_unpacklo_epi64(m2, m3),
        _mm512_unpacklo_epi64(m4, m5),
        _mm512_unpacklo_epi64(m6, m7),
    ]);
    let [high_0, high_1, high_2, high_3] = transposed_quarters([
        _mm512_unpackhi_epi64(m0, m1),
        _mm512_unpackhi_epi64(m2, m3),
        _mm512_unpackhi_epi64(m4, m5),
        _mm512_unpackhi_epi64(m6, m7),
    ]);

    [[low_0, high_0], [low_1, high_1], [low_2, high_2], [low_3, high_3]]
}
