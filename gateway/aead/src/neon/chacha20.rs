//! ChaCha20 (RFC 8439, section 2.3) of four or six blocks of one message at once.
//!
//! Four blocks have a lane of 32 bits each. With two more blocks, which have vectors of their own, the state fills 24
//! of the 32 registers. With four more blocks it would fill all, and vectors would move to the stack and back.

use std::arch::aarch64::*;

use super::KEY_LEN;
use super::memory::load;
use super::poly1305::{PART_LEN, Poly1305};
use crate::Nonce;

/// Bytes of key stream for each value of the block counter.
pub(super) const BLOCK_LEN: usize = 64;

/// Lanes of a vector.
const LANES: usize = 4;

/// Most blocks that are made at once.
pub(super) const BLOCKS: usize = 6;

/// Blocks of the key stream.
pub(super) type Stream = [[uint8x16_t; 4]; BLOCKS];

/// Most parts of a text that are added meanwhile: as many as the blocks have.
const PARTS: usize = BLOCKS * BLOCK_LEN / PART_LEN;

/// A double round is one of the columns and one of the diagonals.
const DOUBLE_ROUNDS: usize = 10;

/// A row of the state in RFC 8439, which has four words. The first four vectors have one word of four blocks each. Each
/// of the other vectors has all words of one block.
type Row<const COUNT: usize> = [uint32x4_t; COUNT];

/// The initial state of all blocks of a message.
pub(super) struct ChaCha20 {
    /// The rows of a block.
    rows: [uint32x4_t; 4],
}

impl ChaCha20 {
    /// RFC 8439, section 2.3.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn new(key: &[u8; KEY_LEN], nonce: Nonce) -> Self {
        let mut nonce_row = [0; 16];
        for (place, byte) in nonce_row.iter_mut().skip(4).zip(nonce) {
            *place = byte;
        }
        let mut rows = [vdupq_n_u32(0); 4];
        let keys = key.as_chunks().0;
        let bytes = [b"expand 32-byte k"].into_iter().chain(keys).chain([&nonce_row]);
        for (row, bytes) in rows.iter_mut().zip(bytes) {
            *row = vreinterpretq_u32_u8(load(bytes));
        }

        Self { rows }
    }

    /// Makes the blocks from `counter` on that `len` bytes need, which are at most [`BLOCKS`]. Meanwhile adds parts to
    /// the sum of a text.
    #[target_feature(enable = "neon")]
    pub(super) fn key_stream(
        &self,
        counter: u32,
        len: usize,
        stream: &mut Stream,
        text: (&mut Poly1305, &[[u8; PART_LEN]]),
    ) {
        if len > LANES * BLOCK_LEN {
            self.blocks::<BLOCKS>(counter, stream, text);
        } else {
            self.blocks::<LANES>(counter, stream, text);
        }
    }

    /// Makes `COUNT` blocks, at least four, and adds `parts` between the rounds. RFC 8439, section 2.3.1.
    #[inline]
    #[target_feature(enable = "neon")]
    fn blocks<const COUNT: usize>(
        &self,
        counter: u32,
        stream: &mut Stream,
        (sum, parts): (&mut Poly1305, &[[u8; PART_LEN]]),
    ) {
        assert!(parts.len() <= PARTS, "{} parts at once", parts.len());

        let initial = self.initial::<COUNT>(counter);
        let mut rows = initial;
        let mut sum_in_registers = *sum;
        // Four times five and two times two parts: spread evenly, because a Neoverse N1 multiplies slowly.
        let (fives, rest) = parts.as_chunks();
        let (twos, rest) = rest.as_chunks();
        for [p, q, r, s, t] in fives {
            rows = round(rows);
            sum_in_registers.add(p);
            rows = diagonals(round(columns(rows)));
            sum_in_registers.add(q);
            rows = round(rows);
            sum_in_registers.add(r);
            rows = diagonals(round(columns(rows)));
            sum_in_registers.add(s);
            sum_in_registers.add(t);
        }
        for [p, q] in twos {
            rows = round(rows);
            sum_in_registers.add(p);
            rows = diagonals(round(columns(rows)));
            sum_in_registers.add(q);
        }
        for _ in 2 * fives.len() + twos.len()..DOUBLE_ROUNDS {
            rows = diagonals(round(columns(round(rows))));
        }
        for part in rest {
            sum_in_registers.add(part);
        }
        *sum = sum_in_registers;

        for (number, (row, initial)) in rows.into_iter().zip(initial).enumerate() {
            let mut words = plus(row, initial);
            if let Some(group) = words.first_chunk_mut() {
                *group = transposed(*group);
            }
            for (block, words) in stream.iter_mut().zip(words) {
                if let Some(place) = block.get_mut(number) {
                    *place = vreinterpretq_u8_u32(words);
                }
            }
        }
    }

    /// The state before the first round.
    #[inline]
    #[target_feature(enable = "neon")]
    fn initial<const COUNT: usize>(&self, counter: u32) -> [Row<COUNT>; 4] {
        let mut rows = self.rows.map(|row| {
            let mut vectors = [row; COUNT];
            if let Some(group) = vectors.first_chunk_mut() {
                *group = transposed([row; 4]);
            }
            vectors
        });
        let [_, _, _, row] = &mut rows;
        if let Some((counters, singles)) = row.split_first_chunk_mut::<LANES>() {
            let [counters, ..] = counters;
            *counters = vaddq_u32(
                vdupq_n_u32(counter),
                vcombine_u32(vcreate_u32(1 << 32), vcreate_u32(3 << 32 | 2)),
            );
            for (number, single) in (counter + 4..).zip(singles) {
                *single = vsetq_lane_u32::<0>(number, *single);
            }
        }

        rows
    }
}

/// Four quarter rounds of each block. RFC 8439, section 2.1.
#[inline]
#[target_feature(enable = "neon")]
fn round<const COUNT: usize>([a, b, c, d]: [Row<COUNT>; 4]) -> [Row<COUNT>; 4] {
    let a = plus(a, b);
    let d = xor(d, a, |d| vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(d))));
    let c = plus(c, d);
    // Not `vsriq_n_u32`: the compiler makes an accumulation of it, which takes twice as long.
    let b = xor(b, c, |b| vsliq_n_u32::<12>(vshrq_n_u32::<20>(b), b));
    let a = plus(a, b);
    let d = xor(d, a, |d| rotated_by_8(d));
    let c = plus(c, d);
    let b = xor(b, c, |b| vsliq_n_u32::<7>(vshrq_n_u32::<25>(b), b));

    [a, b, c, d]
}

/// As one permutation of bytes: shifts have fewer pipes.
#[inline]
#[target_feature(enable = "neon")]
fn rotated_by_8(words: uint32x4_t) -> uint32x4_t {
    let indices = vcombine_u8(vcreate_u8(0x0605_0407_0201_0003), vcreate_u8(0x0e0d_0c0f_0a09_080b));

    vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(words), indices))
}

#[inline]
#[target_feature(enable = "neon")]
fn plus<const COUNT: usize>(mut a: Row<COUNT>, b: Row<COUNT>) -> Row<COUNT> {
    for (a, b) in a.iter_mut().zip(b) {
        *a = vaddq_u32(*a, b);
    }

    a
}

/// The exclusive or, rotated.
#[inline]
#[target_feature(enable = "neon")]
fn xor<const COUNT: usize>(
    mut a: Row<COUNT>,
    b: Row<COUNT>,
    rotated: impl Fn(uint32x4_t) -> uint32x4_t,
) -> Row<COUNT> {
    for (a, b) in a.iter_mut().zip(b) {
        *a = rotated(veorq_u32(*a, b));
    }

    a
}

/// Moves the words so that each diagonal becomes a column.
#[inline]
#[target_feature(enable = "neon")]
fn columns<const COUNT: usize>([a, b, c, d]: [Row<COUNT>; 4]) -> [Row<COUNT>; 4] {
    [a, moved::<1, COUNT>(b), moved::<2, COUNT>(c), moved::<3, COUNT>(d)]
}

/// The reverse of [`columns`].
#[inline]
#[target_feature(enable = "neon")]
fn diagonals<const COUNT: usize>([a, b, c, d]: [Row<COUNT>; 4]) -> [Row<COUNT>; 4] {
    [a, moved::<3, COUNT>(b), moved::<2, COUNT>(c), moved::<1, COUNT>(d)]
}

/// Moves the words of each block by `BY` columns to the left.
#[inline]
#[target_feature(enable = "neon")]
fn moved<const BY: i32, const COUNT: usize>(mut row: Row<COUNT>) -> Row<COUNT> {
    if let Some((group, singles)) = row.split_first_chunk_mut::<LANES>() {
        let [a, b, c, d] = *group;
        *group = match BY {
            1 => [b, c, d, a],
            2 => [c, d, a, b],
            _ => [d, a, b, c],
        };
        for single in singles {
            *single = vextq_u32::<BY>(*single, *single);
        }
    }

    row
}

/// Four words of four blocks, a word in each vector, become a vector for each block.
#[inline]
#[target_feature(enable = "neon")]
fn transposed([a, b, c, d]: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    let [even_ab, odd_ab] = [vtrn1q_u32(a, b), vtrn2q_u32(a, b)].map(|v| vreinterpretq_u64_u32(v));
    let [even_cd, odd_cd] = [vtrn1q_u32(c, d), vtrn2q_u32(c, d)].map(|v| vreinterpretq_u64_u32(v));

    [
        vtrn1q_u64(even_ab, even_cd),
        vtrn1q_u64(odd_ab, odd_cd),
        vtrn2q_u64(even_ab, even_cd),
        vtrn2q_u64(odd_ab, odd_cd),
    ]
    .map(|v| vreinterpretq_u32_u64(v))
}
