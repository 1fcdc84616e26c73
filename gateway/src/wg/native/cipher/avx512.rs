//! ChaCha20-Poly1305 (RFC 8439) for up to sixteen messages at once, each in a lane of its own.
//!
//! A vector has one word of every message, so that nothing is ever rotated between lanes in the rounds of the
//! cipher, and no powers of a key are needed for the authenticator: it walks eight messages at the pace of
//! one, with products of 52 bits (AVX-512 IFMA). Only where the key stream meets the text are words and
//! messages transposed. Time and places depend on the lengths of the messages and on nothing else. As in the
//! library, what the stack and the registers of the thread still have of a key afterwards is not wiped.

#![expect(unsafe_code, reason = "DESIGN.md decision 11: the one module for vector code")]

use std::arch::x86_64::*;
use std::array;

use super::{BLOCK_LEN, LANES, Lane, TAG_LEN};

/// One vector for each word of the state of the cipher, with that word of all messages; or one for each
/// message, with all of its words.
type Square = [__m512i; 16];

/// Bytes that the authenticator takes at a time.
const PART_LEN: usize = 16;

const MASK_44: i64 = (1 << 44) - 1;
const MASK_42: i64 = (1 << 42) - 1;

/// The processor has what this module needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has_it = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma");

        has_it.then_some(Self(()))
    }

    /// Encrypts the texts of as many lanes as there are, and gives the tags.
    pub(super) fn seal(self, key: &[u8; 32], lanes: &mut [Lane<'_>]) -> [[u8; TAG_LEN]; LANES] {
        // SAFETY: the features that the function is compiled for were detected, or there were no `self`.
        unsafe { crypt::<true>(key, lanes) }
    }

    /// Decrypts the texts of as many lanes as there are, and gives the tags that they should have.
    pub(super) fn open(self, key: &[u8; 32], lanes: &mut [Lane<'_>]) -> [[u8; TAG_LEN]; LANES] {
        // SAFETY: as above.
        unsafe { crypt::<false>(key, lanes) }
    }
}

/// Encrypts or decrypts, and authenticates what is encrypted.
#[target_feature(enable = "avx512f,avx512ifma")]
fn crypt<const SEALS: bool>(key: &[u8; 32], lanes: &mut [Lane<'_>]) -> [[u8; TAG_LEN]; LANES] {
    let lens: [usize; LANES] =
        array::from_fn(|lane| lanes.get(lane).map_or(0, |lane| lane.text.len()));
    let longest = lens.into_iter().max().unwrap_or(0);
    let shortest = lens.into_iter().take(lanes.len()).min().unwrap_or(0);

    let state = initial_state(key, lanes);
    let one_time_keys = rounds(&state, 0);
    let mut sums = Poly1305::both(&one_time_keys);

    let mut block = 0;
    for at in (0..longest).step_by(BLOCK_LEN) {
        block += 1;
        let streams = transposed(rounds(&state, block));
        let mut encrypted = [_mm512_setzero_si512(); LANES];
        for ((lane, stream), encrypted) in lanes.iter_mut().zip(streams).zip(&mut encrypted) {
            *encrypted = cross::<SEALS>(lane.text.get_mut(at..).unwrap_or_default(), stream);
        }

        let parts = by_part(&encrypted);
        if at + BLOCK_LEN <= shortest {
            for part in parts {
                absorb(&mut sums, part);
            }
        } else {
            for (number, part) in parts.into_iter().enumerate() {
                let start = at + number * PART_LEN;
                absorb_if(&mut sums, part, lens.map(|len| start < len));
            }
        }
    }

    let zero = _mm512_setzero_si512();
    let lens = lens.map(|len| i64::try_from(len).unwrap_or(i64::MAX));
    let [l0, l1, l2, l3, l4, l5, l6, l7, others @ ..] = lens;
    let lens = [[l0, l1, l2, l3, l4, l5, l6, l7], others].map(|lens| gathered(&lens));
    absorb(&mut sums, lens.map(|len| [zero, len]));

    tags(&sums, &one_time_keys)
}

/// RFC 8439, section 2.3, with the nonce of WireGuard: four zeros and the counter.
#[inline]
#[target_feature(enable = "avx512f")]
fn initial_state(key: &[u8; 32], lanes: &[Lane<'_>]) -> Square {
    let constants = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
    let counter = |lane: usize| lanes.get(lane).map_or(0, |lane| lane.counter);
    let nonces: [[u8; 8]; LANES] = array::from_fn(|lane| counter(lane).to_le_bytes());
    let low = nonces.map(|[a, b, c, d, ..]| i32::from_le_bytes([a, b, c, d]));
    let high = nonces.map(|[.., a, b, c, d]| i32::from_le_bytes([a, b, c, d]));

    let mut state = [_mm512_setzero_si512(); 16];
    let (keys, _) = key.as_chunks::<4>();
    let keys = keys.iter().map(|word| i32::from_le_bytes(*word));
    for (word, value) in state.iter_mut().zip(constants.into_iter().chain(keys)) {
        *word = _mm512_set1_epi32(value);
    }
    state[14] = spread(&low);
    state[15] = spread(&high);

    state
}

/// The key stream of one block of every message, by word. RFC 8439, section 2.3.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounds(state: &Square, block: i32) -> Square {
    let mut initial = *state;
    initial[12] = _mm512_set1_epi32(block);

    let [mut a0, mut a1, mut a2, mut a3, mut b0, mut b1, mut b2, mut b3, ..] = initial;
    let [.., mut c0, mut c1, mut c2, mut c3, mut d0, mut d1, mut d2, mut d3] = initial;
    for _ in 0..10 {
        [a0, b0, c0, d0] = quarter_round([a0, b0, c0, d0]);
        [a1, b1, c1, d1] = quarter_round([a1, b1, c1, d1]);
        [a2, b2, c2, d2] = quarter_round([a2, b2, c2, d2]);
        [a3, b3, c3, d3] = quarter_round([a3, b3, c3, d3]);

        [a0, b1, c2, d3] = quarter_round([a0, b1, c2, d3]);
        [a1, b2, c3, d0] = quarter_round([a1, b2, c3, d0]);
        [a2, b3, c0, d1] = quarter_round([a2, b3, c0, d1]);
        [a3, b0, c1, d2] = quarter_round([a3, b0, c1, d2]);
    }

    let mut words = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3];
    for (word, initial) in words.iter_mut().zip(initial) {
        *word = _mm512_add_epi32(*word, initial);
    }

    words
}

/// RFC 8439, section 2.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter_round([mut a, mut b, mut c, mut d]: [__m512i; 4]) -> [__m512i; 4] {
    a = _mm512_add_epi32(a, b);
    d = _mm512_rol_epi32::<16>(_mm512_xor_si512(d, a));
    c = _mm512_add_epi32(c, d);
    b = _mm512_rol_epi32::<12>(_mm512_xor_si512(b, c));
    a = _mm512_add_epi32(a, b);
    d = _mm512_rol_epi32::<8>(_mm512_xor_si512(d, a));
    c = _mm512_add_epi32(c, d);
    b = _mm512_rol_epi32::<7>(_mm512_xor_si512(b, c));

    [a, b, c, d]
}

/// Encrypts or decrypts the first block of `rest`, which may be shorter or not there. Gives what is encrypted
/// of it, with zeros behind.
#[inline]
#[target_feature(enable = "avx512f")]
fn cross<const SEALS: bool>(rest: &mut [u8], stream: __m512i) -> __m512i {
    if let Some(block) = rest.first_chunk_mut() {
        return cross_block::<SEALS>(block, stream);
    }
    if rest.is_empty() {
        return _mm512_setzero_si512();
    }

    let mut block = [0; BLOCK_LEN];
    let (start, _) = block.split_at_mut(rest.len());
    start.copy_from_slice(rest);
    let encrypted = cross_block::<SEALS>(&mut block, stream);
    let (start, behind) = block.split_at_mut(rest.len());
    rest.copy_from_slice(start);
    behind.fill(0);

    if SEALS { load(&block) } else { encrypted }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn cross_block<const SEALS: bool>(block: &mut [u8; BLOCK_LEN], stream: __m512i) -> __m512i {
    let before = load(block);
    let after = _mm512_xor_si512(before, stream);
    store(block, after);

    if SEALS { after } else { before }
}

/// Eight authenticators, RFC 8439 section 2.5, each in a lane of 64 bits. Numbers are in base 2^44, the lowest
/// digit first.
#[derive(Clone, Copy)]
struct Poly1305 {
    sum: [__m512i; 3],
    /// The factor.
    r: [__m512i; 3],
    /// Its upper digits times 20, as 2^132 is 20 here.
    r_20: [__m512i; 2],
}

impl Poly1305 {
    /// Those of the first eight messages and of the others, with the key stream of their block 0.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn both(one_time_keys: &Square) -> [Self; 2] {
        let [words @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *one_time_keys;
        let first = words.map(|word| _mm512_cvtepu32_epi64(_mm512_castsi512_si256(word)));
        let others = words.map(|word| _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(word)));

        [Self::with_factor(first), Self::with_factor(others)]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn with_factor([word_0, word_1, word_2, word_3]: [__m512i; 4]) -> Self {
        let low = _mm512_or_si512(word_0, _mm512_slli_epi64::<32>(word_1));
        let high = _mm512_or_si512(word_2, _mm512_slli_epi64::<32>(word_3));
        let low = _mm512_and_si512(low, _mm512_set1_epi64(0x0fff_fffc_0fff_ffff));
        let high = _mm512_and_si512(high, _mm512_set1_epi64(0x0fff_fffc_0fff_fffc));
        let r @ [_, r_1, r_2] = digits(low, high);

        Self { sum: [_mm512_setzero_si512(); 3], r, r_20: [times_20(r_1), times_20(r_2)] }
    }

    /// Takes another 16 bytes of every message.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn absorb(&mut self, [low, high]: [__m512i; 2]) {
        let [mut h_0, mut h_1, mut h_2] = self.sum;
        let [m_0, m_1, m_2] = digits(low, high);
        h_0 = _mm512_add_epi64(h_0, m_0);
        h_1 = _mm512_add_epi64(h_1, m_1);
        // One bit behind the 16 bytes: 2^128.
        h_2 = _mm512_add_epi64(h_2, _mm512_or_si512(m_2, _mm512_set1_epi64(1 << 40)));

        let ([r_0, r_1, r_2], [r_1_20, r_2_20]) = (self.r, self.r_20);
        let (d_0, over_0) = product([(h_0, r_0), (h_1, r_2_20), (h_2, r_1_20)]);
        let (d_1, over_1) = product([(h_0, r_1), (h_1, r_0), (h_2, r_2_20)]);
        let (d_2, over_2) = product([(h_0, r_2), (h_1, r_1), (h_2, r_0)]);

        // What is over 2^52 is worth 2^8 in the next digit. Digits of the sum stay below 2^45, so that no
        // factor of a product is longer than 52 bits.
        let mask = _mm512_set1_epi64(MASK_44);
        let d_1 = _mm512_add_epi64(d_1, _mm512_slli_epi64::<8>(over_0));
        let d_2 = _mm512_add_epi64(d_2, _mm512_slli_epi64::<8>(over_1));
        let d_1 = _mm512_add_epi64(d_1, _mm512_srli_epi64::<44>(d_0));
        let d_2 = _mm512_add_epi64(d_2, _mm512_srli_epi64::<44>(d_1));
        // 2^130 is 5.
        let over = _mm512_srli_epi64::<42>(d_2);
        let over = _mm512_add_epi64(over, _mm512_slli_epi64::<10>(over_2));
        let over = _mm512_add_epi64(over, _mm512_slli_epi64::<2>(over));
        let h_0 = _mm512_add_epi64(_mm512_and_si512(d_0, mask), over);
        let h_1 = _mm512_and_si512(d_1, mask);

        self.sum = [
            _mm512_and_si512(h_0, mask),
            _mm512_add_epi64(h_1, _mm512_srli_epi64::<44>(h_0)),
            _mm512_and_si512(d_2, _mm512_set1_epi64(MASK_42)),
        ];
    }
}

/// The sum of three products: its lower 52 bits, and what is over them.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn product(factors: [(__m512i, __m512i); 3]) -> (__m512i, __m512i) {
    let zero = _mm512_setzero_si512();
    let [(a, b), (c, d), (e, f)] = factors;
    let low = _mm512_madd52lo_epu64(zero, a, b);
    let low = _mm512_madd52lo_epu64(low, c, d);
    let high = _mm512_madd52hi_epu64(zero, a, b);
    let high = _mm512_madd52hi_epu64(high, c, d);

    (_mm512_madd52lo_epu64(low, e, f), _mm512_madd52hi_epu64(high, e, f))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_20(digit: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_slli_epi64::<4>(digit), _mm512_slli_epi64::<2>(digit))
}

/// A number of 128 bits in base 2^44.
#[inline]
#[target_feature(enable = "avx512f")]
fn digits(low: __m512i, high: __m512i) -> [__m512i; 3] {
    let mask = _mm512_set1_epi64(MASK_44);
    let middle = _mm512_or_si512(_mm512_srli_epi64::<44>(low), _mm512_slli_epi64::<20>(high));

    [_mm512_and_si512(low, mask), _mm512_and_si512(middle, mask), _mm512_srli_epi64::<24>(high)]
}

/// Adds 16 bytes of every message: those of the first eight and those of the others.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn absorb(sums: &mut [Poly1305; 2], part: [[__m512i; 2]; 2]) {
    for (sum, part) in sums.iter_mut().zip(part) {
        sum.absorb(part);
    }
}

/// The same for those messages that have them.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn absorb_if(sums: &mut [Poly1305; 2], part: [[__m512i; 2]; 2], has: [bool; LANES]) {
    let (has, _) = has.as_chunks::<8>();
    for ((sum, part), has) in sums.iter_mut().zip(part).zip(has) {
        let before = sum.sum;
        sum.absorb(part);
        let mask = has.iter().rev().fold(0, |mask, has| mask << 1 | u8::from(*has));
        for (digit, before) in sum.sum.iter_mut().zip(before) {
            *digit = _mm512_mask_mov_epi64(before, mask, *digit);
        }
    }
}

/// What the sums come to, and the other half of the one-time keys. RFC 8439, section 2.5.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn tags(sums: &[Poly1305; 2], one_time_keys: &Square) -> [[u8; TAG_LEN]; LANES] {
    let mut tags = [[0; TAG_LEN]; LANES];
    let [_, _, _, _, pads @ .., _, _, _, _, _, _, _, _] = one_time_keys;
    let pads: [[u8; 64]; 4] = pads.map(|words| stored(words));
    let digits = sums.map(|sum| sum.sum.map(|digits| stored(digits)));

    for (lane, tag) in tags.iter_mut().enumerate() {
        let pad = pads.iter().rev().fold(0, |pad, words| {
            let (words, _) = words.as_chunks::<4>();
            pad << 32 | words.get(lane).map_or(0, |word| u128::from(u32::from_le_bytes(*word)))
        });
        let digits = digits.get(lane / 8).map(|digits| {
            digits.each_ref().map(|digits| {
                let (digits, _) = digits.as_chunks::<8>();
                digits.get(lane % 8).map_or(0, |digit| u64::from_le_bytes(*digit))
            })
        });
        *tag = reduced(digits.unwrap_or_default()).wrapping_add(pad).to_le_bytes();
    }

    tags
}

/// A number below 2^131 modulo 2^130 - 5, and of that the lower 128 bits.
#[inline]
fn reduced([h_0, h_1, h_2]: [u64; 3]) -> u128 {
    let mask = MASK_44.cast_unsigned();
    let (h_1, h_0) = (h_1 + (h_0 >> 44), h_0 & mask);
    let (h_2, h_1) = (h_2 + (h_1 >> 44), h_1 & mask);
    let (over, h_2) = (h_2 >> 42, h_2 & MASK_42.cast_unsigned());
    let h_0 = h_0 + over * 5;
    let (h_1, h_0) = (h_1 + (h_0 >> 44), h_0 & mask);
    let (h_2, h_1) = (h_2 + (h_1 >> 44), h_1 & mask);

    let low = u128::from(h_0) | u128::from(h_1) << 44 | u128::from(h_2) << 88;
    let (less_the_prime, carry) = low.overflowing_add(5);
    let is_above = ((h_2 >> 40) + u64::from(carry)) >> 2;
    let choice = u128::from(is_above).wrapping_neg();

    (less_the_prime & choice) | (low & !choice)
}

/// Words of all messages become all words of a message, or the other way round.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(words: Square) -> Square {
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

/// The four parts of a block of every message: of the first eight and of the others, the lower 64 bits and
/// the upper ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn by_part(messages: &Square) -> [[[__m512i; 2]; 2]; 4] {
    let [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = *messages;
    let [a0, a1, a2, a3] = by_part_of_eight([m0, m1, m2, m3, m4, m5, m6, m7]);
    let [b0, b1, b2, b3] = by_part_of_eight([m8, m9, m10, m11, m12, m13, m14, m15]);

    [[a0, b0], [a1, b1], [a2, b2], [a3, b3]]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn by_part_of_eight([m0, m1, m2, m3, m4, m5, m6, m7]: [__m512i; 8]) -> [[__m512i; 2]; 4] {
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

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; BLOCK_LEN]) -> __m512i {
    // SAFETY: 64 bytes are read, at whatever alignment, of an array that has as many.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; BLOCK_LEN], vector: __m512i) {
    // SAFETY: 64 bytes are written, at whatever alignment, of an array that has as many.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn stored(vector: __m512i) -> [u8; BLOCK_LEN] {
    let mut bytes = [0; BLOCK_LEN];
    store(&mut bytes, vector);

    bytes
}

#[inline]
#[target_feature(enable = "avx512f")]
fn spread(words: &[i32; 16]) -> __m512i {
    // SAFETY: 64 bytes are read, at whatever alignment, of an array that has as many.
    unsafe { _mm512_loadu_epi32(words.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn gathered(words: &[i64; 8]) -> __m512i {
    // SAFETY: 64 bytes are read, at whatever alignment, of an array that has as many.
    unsafe { _mm512_loadu_epi64(words.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::hex::{array, bytes};
    use super::super::tests::lanes;
    use super::*;

    /// The tag of `message`, of whole parts, in every lane.
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn authenticated(key: &[u8; 32], message: &[u8]) -> [[u8; TAG_LEN]; LANES] {
        let mut one_time_keys = [_mm512_setzero_si512(); 16];
        for (word, bytes) in one_time_keys.iter_mut().zip(key.as_chunks().0) {
            *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
        }
        let mut sums = Poly1305::both(&one_time_keys);
        for part in message.chunks(PART_LEN) {
            let halves = part.as_chunks().0.iter().map(|half| i64::from_le_bytes(*half));
            let [low, high] = array::from_fn(|half| halves.clone().nth(half).unwrap());
            absorb(&mut sums, [[_mm512_set1_epi64(low), _mm512_set1_epi64(high)]; 2]);
        }

        tags(&sums, &one_time_keys)
    }

    /// RFC 8439, appendix A.3: the test vectors 5 to 11, whose sums come close to the prime or lie beyond.
    #[test]
    fn sums_at_the_prime_are_those_of_rfc_8439() {
        if lanes().is_none() {
            return;
        }
        let two = "02000000000000000000000000000000";
        let one = "01000000000000000000000000000000";
        let one_and_four = "01000000000000000400000000000000";
        let zeros = "00000000000000000000000000000000";
        let ones = "ffffffffffffffffffffffffffffffff";
        let less_one = "f0ffffffffffffffffffffffffffffff";
        let vectors = [
            ([two, zeros], vec![ones], "03000000000000000000000000000000"),
            ([two, ones], vec![two], "03000000000000000000000000000000"),
            (
                [one, zeros],
                vec![ones, less_one, "11000000000000000000000000000000"],
                "05000000000000000000000000000000",
            ),
            (
                [one, zeros],
                vec![ones, "fbfefefefefefefefefefefefefefefe", "01010101010101010101010101010101"],
                zeros,
            ),
            (
                [two, zeros],
                vec!["fdffffffffffffffffffffffffffffff"],
                "faffffffffffffffffffffffffffffff",
            ),
            (
                [one_and_four, zeros],
                vec![
                    "e33594d7505e43b90000000000000000",
                    "3394d7505e4379cd0100000000000000",
                    zeros,
                    one,
                ],
                "14000000000000005500000000000000",
            ),
            (
                [one_and_four, zeros],
                vec!["e33594d7505e43b90000000000000000", "3394d7505e4379cd0100000000000000", zeros],
                "13000000000000000000000000000000",
            ),
        ];

        for (key, message, tag) in vectors {
            let (key, message) = (array(&key.concat()), bytes(&message.concat()));
            // SAFETY: the features were detected above.
            let found = unsafe { authenticated(&key, &message) };
            assert_eq!(found, [array::<TAG_LEN>(tag); LANES], "{}", message.len());
        }
    }
}
