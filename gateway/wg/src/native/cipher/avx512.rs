//! ChaCha20-Poly1305 (RFC 8439) for up to sixteen messages at once, each in a lane of its own.
//!
//! A vector has one word of every message, so that nothing is ever rotated between lanes in the rounds of the
//! cipher, and the authenticator walks eight messages at the pace of one, with products of 52 bits (AVX-512
//! IFMA). Only where the key stream meets the text are words and messages transposed. Time and places depend on
//! the lengths of the messages and on nothing else. As in the library, what the stack and the registers of the
//! thread still have of a key afterwards is not wiped.
//!
//! All ports that compute on vectors are busy, so that only fewer instructions are any faster: the powers of the
//! factor, by which the authenticator carries once in a block instead of once in 16 bytes, and the three quarters
//! of the first round that all blocks of a message share. Tried on a Xeon and left out: to rotate by bytes on the
//! other port (slower beside the transposing), and the authenticator's steps among the rounds of the next block
//! (1 %).

#![expect(unsafe_code, reason = "DESIGN.md decision 11: the one module for vector code")]

mod poly1305;

use std::arch::x86_64::*;
use std::array;

use self::poly1305::{PART_LEN, Poly1305};
use super::{LANES, Lane, TAG_LEN};

/// Bytes of key stream that one counter gives.
const BLOCK_LEN: usize = 64;

/// One vector for each word of the state of the cipher, with that word of all messages; or one for each
/// message, with all of its words.
type Square = [__m512i; 16];

/// The processor has what this module needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has_it = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512vbmi2");

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
#[target_feature(enable = "avx512f,avx512bw,avx512ifma,avx512vbmi2")]
fn crypt<const SEALS: bool>(key: &[u8; 32], lanes: &mut [Lane<'_>]) -> [[u8; TAG_LEN]; LANES] {
    let [first, others] = lens(lanes);
    let lens = [gathered(&first), gathered(&others)];
    let halves = lanes.len().div_ceil(LANES / 2);
    let longest = longest(lanes);

    let start = Start::new(initial_state(key, lanes));
    let one_time_keys = rounds(&start, 0);
    let mut sums = Poly1305::both(&one_time_keys);

    let mut block = 0;
    for at in (0..longest).step_by(BLOCK_LEN) {
        block += 1;
        let streams = transposed(rounds(&start, block));
        let mut encrypted = [_mm512_setzero_si512(); LANES];
        for ((lane, stream), encrypted) in lanes.iter_mut().zip(&streams).zip(&mut encrypted) {
            *encrypted = cross::<SEALS>(lane.text.get_mut(at..).unwrap_or_default(), *stream);
        }

        let parts = by_part(&encrypted);
        for ((sum, parts), lens) in sums.iter_mut().zip(&parts).zip(&lens).take(halves) {
            let (begun, whole) = (longer(*lens, at), longer(*lens, at + BLOCK_LEN - 1));
            if begun == whole {
                sum.absorb_block(parts, whole);
            } else {
                for (part, start) in parts.iter().zip((at..longest).step_by(PART_LEN)) {
                    sum.absorb(part, longer(*lens, start));
                }
            }
        }
    }

    for (sum, lens) in sums.iter_mut().zip(&lens) {
        // RFC 8439, section 2.8: no associated data, and so many bytes of text.
        sum.absorb(&[_mm512_setzero_si512(), *lens], u8::MAX);
    }

    Poly1305::tags(&sums, &one_time_keys)
}

/// RFC 8439, section 2.3, with the nonce of WireGuard: four zeros and the counter.
#[inline]
#[target_feature(enable = "avx512f")]
fn initial_state(key: &[u8; 32], lanes: &[Lane<'_>]) -> Square {
    let [low, high] = nonces(lanes);
    let mut state = [_mm512_setzero_si512(); 16];
    let (keys, _) = key.as_chunks();
    let constants = [*b"expa", *b"nd 3", *b"2-by", *b"te k"];
    for (word, bytes) in state.iter_mut().zip(constants.iter().chain(keys)) {
        *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
    }
    state[14] = spread(&low);
    state[15] = spread(&high);

    state
}

/// What all blocks of the messages begin with.
struct Start {
    initial: Square,
    /// After what no counter of blocks has a part in: three quarters of the first round.
    words: Square,
}

impl Start {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(initial: Square) -> Self {
        let [a0, mut a1, mut a2, mut a3, b0, mut b1, mut b2, mut b3, ..] = initial;
        let [.., c0, mut c1, mut c2, mut c3, d0, mut d1, mut d2, mut d3] = initial;
        [a1, b1, c1, d1] = quarter_round([a1, b1, c1, d1]);
        [a2, b2, c2, d2] = quarter_round([a2, b2, c2, d2]);
        [a3, b3, c3, d3] = quarter_round([a3, b3, c3, d3]);
        let words = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3];

        Self { initial, words }
    }
}

/// The key stream of one block of every message, by word. RFC 8439, section 2.3.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounds(start: &Start, block: i32) -> Square {
    let mut initial = start.initial;
    initial[12] = _mm512_set1_epi32(block);

    let [mut a0, mut a1, mut a2, mut a3, mut b0, mut b1, mut b2, mut b3, ..] = start.words;
    let [.., mut c0, mut c1, mut c2, mut c3, _, mut d1, mut d2, mut d3] = start.words;
    let mut d0 = initial[12];
    for round in 0..10 {
        [a0, b0, c0, d0] = quarter_round([a0, b0, c0, d0]);
        if round > 0 {
            [a1, b1, c1, d1] = quarter_round([a1, b1, c1, d1]);
            [a2, b2, c2, d2] = quarter_round([a2, b2, c2, d2]);
            [a3, b3, c3, d3] = quarter_round([a3, b3, c3, d3]);
        }

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
#[target_feature(enable = "avx512f,avx512bw")]
fn cross<const SEALS: bool>(rest: &mut [u8], stream: __m512i) -> __m512i {
    if let Some(block) = rest.first_chunk_mut() {
        return cross_block::<SEALS>(block, stream);
    }
    // A place that is not there takes long even if the mask leaves all of it out.
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
fn cross_block<const SEALS: bool>(block: &mut [u8; BLOCK_LEN], stream: __m512i) -> __m512i {
    let before = load(block);
    let after = _mm512_xor_si512(before, stream);
    store(block, after);

    if SEALS { after } else { before }
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

/// The four parts of a block, of the first eight messages and of the others: the lower 64 bits of each, and the
/// upper ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn by_part(messages: &Square) -> [[[__m512i; 2]; 4]; 2] {
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

/// A bit for each message that is longer than `start`.
#[inline]
#[target_feature(enable = "avx512f")]
fn longer(lens: __m512i, start: usize) -> u8 {
    _mm512_cmpgt_epi64_mask(lens, _mm512_set1_epi64(as_i64(start)))
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

/// Those of up to 63 bytes, with zeros behind.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_short(bytes: &[u8]) -> __m512i {
    // SAFETY: as many bytes are read as there are, at whatever alignment; what the mask leaves out is not
    // touched.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

/// As much of `vector` as there is room for, up to 63 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store_short(bytes: &mut [u8], vector: __m512i) {
    // SAFETY: as many bytes are written as there are, at whatever alignment; what the mask leaves out is not
    // touched.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask(bytes.len()), vector) }
}

/// A bit for each of up to 63 bytes.
#[inline]
const fn mask(len: usize) -> u64 {
    !(u64::MAX << (len % BLOCK_LEN))
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

// What follows has no vectors. It is not within the functions that have, as the compiler would not always make
// one of them and a closure of theirs that the standard library calls.

/// Bytes of each text.
#[inline]
fn lens(lanes: &[Lane<'_>]) -> [[i64; LANES / 2]; 2] {
    let len = |lane: usize| lanes.get(lane).map_or(0, |lane| as_i64(lane.text.len()));

    [array::from_fn(len), array::from_fn(|lane| len(lane + LANES / 2))]
}

/// Bytes of the longest text.
#[inline]
fn longest(lanes: &[Lane<'_>]) -> usize {
    lanes.iter().map(|lane| lane.text.len()).max().unwrap_or(0)
}

/// The lower half of each counter, and the upper one.
#[inline]
fn nonces(lanes: &[Lane<'_>]) -> [[i32; LANES]; 2] {
    let counters: [u64; LANES] =
        array::from_fn(|lane| lanes.get(lane).map_or(0, |lane| lane.counter));
    let nonces = counters.map(u64::to_le_bytes);

    [
        nonces.map(|[a, b, c, d, ..]| i32::from_le_bytes([a, b, c, d])),
        nonces.map(|[.., a, b, c, d]| i32::from_le_bytes([a, b, c, d])),
    ]
}

#[inline]
fn as_i64(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
