//! A key of ring whose memory is zeroed when it is dropped.

#![expect(
    unsafe_code,
    reason = "DESIGN.md decision 11: memory of ring's type is zeroed as a whole"
)]

use std::mem::MaybeUninit;

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use zeroize::Zeroize as _;

use super::KEY_LEN;

/// A key for ChaCha20-Poly1305.
///
/// Ring's type has room for the key schedule of AES. The rest of that room is not initialised: a move may fill it with
/// what the stack held, which is copies of the key, as a search of the release build's memory showed. Hence all of
/// it is zeroed, not the key alone.
pub(super) struct RingKey(MaybeUninit<LessSafeKey>);

impl RingKey {
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Self {
        match UnboundKey::new(&CHACHA20_POLY1305, key) {
            Ok(key) => Self(MaybeUninit::new(LessSafeKey::new(key))),
            Err(_) => unreachable!("the key has the length of the algorithm"),
        }
    }

    #[inline]
    pub(super) const fn get(&self) -> &LessSafeKey {
        // SAFETY: `new` initialises it, and only `drop` ends that.
        unsafe { self.0.assume_init_ref() }
    }
}

impl Drop for RingKey {
    fn drop(&mut self) {
        // SAFETY: it was initialised by `new`, and is not used after this.
        unsafe { self.0.assume_init_drop() };
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, slice};

    use super::*;

    #[test]
    fn dropping_zeroes_all_memory() {
        let mut place = Box::new(MaybeUninit::new(RingKey::new(&[7; KEY_LEN])));

        // SAFETY: it is initialised, and not used as a key afterwards.
        unsafe { place.assume_init_drop() };

        let start = ptr::from_ref(&*place).cast::<u8>();
        // SAFETY: the box has so many bytes, each of which `drop` wrote.
        let bytes = unsafe { slice::from_raw_parts(start, size_of::<RingKey>()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
