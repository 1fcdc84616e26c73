//! Bytes to vectors and back: the only memory that vector code addresses by pointers.

#![expect(unsafe_code, reason = "DESIGN.md decision 11: loads and stores of vectors take pointers")]

use std::arch::aarch64::*;

/// Bytes of a vector.
pub(super) const VECTOR_LEN: usize = 16;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; VECTOR_LEN]) -> uint8x16_t {
    // SAFETY:
    // - The reference is valid for reads of the 16 bytes that are read.
    // - The instruction needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store(bytes: &mut [u8; VECTOR_LEN], vector: uint8x16_t) {
    // SAFETY:
    // - The reference is valid for writes of the 16 bytes that are written, and exclusive.
    // - The instruction needs no alignment.
    // - Any value is a valid byte.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vector) }
}
