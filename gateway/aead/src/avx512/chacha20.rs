//! ChaCha20 (RFC 8439, section 2.3) of sixteen blocks at once, each in a lane of 32 bits.

use std::arch::x86_64::*;

use super::memory::load_words;
use super::{KEY_LEN, LANES, Matrix};

/// Bytes of key stream for each value of the block counter.
pub(super) const BLOCK_LEN: usize = 64;

/// What all blocks of a message have in common.
pub(super) struct Prepared {
    /// The initial state. Each block puts its counter into word 12.
    initial: Matrix,
    /// The state after the three quarter rounds of the first round in which the block counter has no part.
    words: Matrix,
}

impl Prepared {
    /// RFC 8439, section 2.3. `nonces` are the words of the nonces, one for each lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(key: &[u8; KEY_LEN], nonces: &[[[u8; 4]; LANES]; 3]) -> Self {
        let mut initial = [_mm512_setzero_si512(); 16];
        let constants = [*b"expa", *b"nd 3", *b"2-by", *b"te k"];
        let (keys, _) = key.as_chunks();
        for (word, bytes) in initial.iter_mut().zip(constants.iter().chain(keys)) {
            *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
        }
        let [.., n0, n1, n2] = &mut initial;
        for (word, nonces) in [n0, n1, n2].into_iter().zip(nonces) {
            *word = load_words(nonces);
        }

        let [a0, mut a1, mut a2, mut a3, b0, mut b1, mut b2, mut b3, ..] = initial;
        let [.., c0, mut c1, mut c2, mut c3, d0, mut d1, mut d2, mut d3] = initial;
        [a1, b1, c1, d1] = quarter_round([a1, b1, c1, d1]);
        [a2, b2, c2, d2] = quarter_round([a2, b2, c2, d2]);
        [a3, b3, c3, d3] = quarter_round([a3, b3, c3, d3]);
        let words = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3];

        Self { initial, words }
    }

    /// The key stream of one block per lane, one vector per word. RFC 8439, section 2.3.1.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn block(&self, counters: __m512i) -> Matrix {
        self.begin(counters).finish(self)
    }

    /// The first of the ten double rounds of a block per lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn begin(&self, counters: __m512i) -> Rounds {
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, _, d1, d2, d3] = self.words;
        let [a0, b0, c0, d0] = quarter_round([a0, b0, c0, counters]);
        let mut rounds = Rounds {
            counters,
            rows: [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]],
            left: 10,
        };
        rounds.diagonal_round();

        rounds
    }
}

/// The four rows of the state.
type Rows = [[__m512i; 4]; 4];

/// A block per lane whose rounds are not all done. Other work between them fills the ports that they leave free.
#[derive(Clone, Copy)]
pub(super) struct Rounds {
    counters: __m512i,
    rows: Rows,
    /// How many double rounds are left: 9 at first.
    left: u32,
}

impl Rounds {
    /// A column round and a diagonal round.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn double_round(&mut self) {
        self.column_round();
        self.diagonal_round();
    }

    /// RFC 8439, section 2.3. A diagonal round has to follow.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn column_round(&mut self) {
        self.rows = round(self.rows);
    }

    /// RFC 8439, section 2.3: the columns of rows that are turned.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn diagonal_round(&mut self) {
        let [a, [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]] = self.rows;
        let [a, [b1, b2, b3, b0], [c2, c3, c0, c1], [d3, d0, d1, d2]] =
            round([a, [b1, b2, b3, b0], [c2, c3, c0, c1], [d3, d0, d1, d2]]);
        self.rows = [a, [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]];
        self.left -= 1;
    }

    /// The key stream after the rounds that are left, as [`Prepared::block`] returns it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn finish(mut self, prepared: &Prepared) -> Matrix {
        while self.left > 0 {
            self.double_round();
        }

        let mut initial = prepared.initial;
        initial[12] = self.counters;
        let [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]] = self.rows;
        let mut words = [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3];
        for (word, initial) in words.iter_mut().zip(initial) {
            *word = _mm512_add_epi32(*word, initial);
        }

        words
    }
}

/// Four quarter rounds, step by step: each has to wait for its own steps, but not for those of the others.
#[inline]
#[target_feature(enable = "avx512f")]
fn round([mut a, mut b, mut c, mut d]: Rows) -> Rows {
    [a, d] = add_xor_rotate::<16>(a, b, d);
    [c, b] = add_xor_rotate::<12>(c, d, b);
    [a, d] = add_xor_rotate::<8>(a, b, d);
    [c, b] = add_xor_rotate::<7>(c, d, b);

    [a, b, c, d]
}

/// `a + b`, and with that as `a`, `(d ^ a)` rotated: a line of RFC 8439, section 2.1.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_xor_rotate<const BITS: i32>(
    mut a: [__m512i; 4],
    b: [__m512i; 4],
    mut d: [__m512i; 4],
) -> [[__m512i; 4]; 2] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = _mm512_add_epi32(*a, b);
    }
    for (d, a) in d.iter_mut().zip(a) {
        *d = _mm512_xor_si512(*d, a);
    }
    for d in &mut d {
        *d = _mm512_rol_epi32::<BITS>(*d);
    }

    [a, d]
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
