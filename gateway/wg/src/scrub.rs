//! Nothing that was secret stays on the stack.
//!
//! What moves a key, and what computes with it, leaves copies in frames of functions that have returned. The next
//! functions that are called write over them, or do not, for as long as the thread lives.

use std::hint::black_box;

/// Bytes of the stack that are wiped. `tests/residue.rs` of the native core needs 5,888 of them; in the release build
/// more than 5,120 wipe nothing more.
const DEPTH: usize = 8 << 10;

/// Does what leaves secrets on the stack, and wipes what it has used of that. What it returns should not be
/// secret.
#[inline]
pub(crate) fn scrubbed<T>(work: impl FnOnce() -> T) -> T {
    let result = deeper(work);
    scrub();

    result
}

/// In a frame of its own, which [`scrub`] takes the place of.
#[inline(never)]
fn deeper<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn scrub() {
    black_box(&mut [0_u8; DEPTH]);
}
