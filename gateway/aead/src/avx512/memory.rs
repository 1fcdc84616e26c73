//! Bytes to vectors and back: the only memory that vector code addresses by pointers.

#![expect(unsafe_code, reason = "DESIGN.md decision 11: loads and stores of vectors take pointers")]

use std::arch::x86_64::*;

use super::chacha20::BLOCK_LEN;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(bytes: &[u8; BLOCK_LEN]) -> __m512i {
    // SAFETY:
    // - The reference is valid for reads of the 64 bytes that are read.
    // - The instruction needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(bytes: &mut [u8; BLOCK_LEN], vector: __m512i) {
    // SAFETY:
    // - The reference is valid for writes of the 64 bytes that are written, and exclusive.
    // - The instruction needs no alignment.
    // - Any value is a valid byte.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Loads up to 63 bytes, with zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load_short(bytes: &[u8]) -> __m512i {
    // SAFETY:
    // - `mask` selects at most the first `bytes.len()` bytes, for whose reads the reference is valid.
    // - Bytes that the mask leaves out are not read and cause no fault.
    // - The instruction needs no alignment.
    unsafe { _mm512_maskz_loadu_epi8(mask(bytes.len()), bytes.as_ptr().cast()) }
}

/// Stores the first bytes of `vector`, up to 63.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn store_short(bytes: &mut [u8], vector: __m512i) {
    // SAFETY:
    // - `mask` selects at most the first `bytes.len()` bytes, for whose writes the reference is valid, and exclusive.
    // - Bytes that the mask leaves out are not written and cause no fault.
    // - The instruction needs no alignment.
    // - Any value is a valid byte.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), mask(bytes.len()), vector) }
}

/// One bit for each of up to 63 bytes. From 64 bytes on it selects `len % 64`: fewer than there are.
#[inline]
pub(super) const fn mask(len: usize) -> u64 {
    !(u64::MAX << (len % BLOCK_LEN))
}

/// Loads `COUNT` words of `LEN` bytes, 64 bytes in all.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_words<const LEN: usize, const COUNT: usize>(
    words: &[[u8; LEN]; COUNT],
) -> __m512i {
    const { assert!(LEN * COUNT == BLOCK_LEN, "words of 64 bytes in all") };
    let Some(bytes) = words.as_flattened().first_chunk() else {
        unreachable!("there are 64 bytes")
    };

    load(bytes)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn stored(vector: __m512i) -> [u8; BLOCK_LEN] {
    let mut bytes = [0; BLOCK_LEN];
    store(&mut bytes, vector);

    bytes
}
