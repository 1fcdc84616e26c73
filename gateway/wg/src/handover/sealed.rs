//! Sealing of a hand-over on its way.
//!
//! A reader of the bytes without the key, which goes another way, learns nothing; bytes that were changed or cut off are
//! refused whole.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::HandoverError;

/// Length of a key in bytes.
pub const SEAL_KEY_LEN: usize = 32;

/// A key seals one hand-over.
const NONCE: [u8; 12] = [0; 12];

const TAG_LEN: usize = 16;

/// Seals `content` with a `key` that is never used again. Returns the tag, which belongs behind it.
///
/// # Errors
///
/// [`HandoverError::Invalid`] if it is longer than the cipher allows (256 GiB).
pub fn seal(key: &[u8; SEAL_KEY_LEN], content: &mut [u8]) -> Result<[u8; TAG_LEN], HandoverError> {
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let tag = cipher(key)?.seal_in_place_separate_tag(nonce, Aad::empty(), content);

    tag.ok()
        .and_then(|tag| tag.as_ref().first_chunk().copied())
        .ok_or(HandoverError::Invalid("length"))
}

/// Opens what [`seal`] has sealed, with its tag behind it.
///
/// # Errors
///
/// [`HandoverError::NotAuthentic`] if it was changed, or sealed with another key.
pub fn open(
    key: &[u8; SEAL_KEY_LEN],
    mut sealed: Zeroizing<Vec<u8>>,
) -> Result<Zeroizing<Vec<u8>>, HandoverError> {
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let opened = cipher(key)?.open_in_place(nonce, Aad::empty(), &mut sealed);
    let len = opened.map_err(|_| HandoverError::NotAuthentic)?.len();
    sealed.truncate(len);

    Ok(sealed)
}

fn cipher(key: &[u8; SEAL_KEY_LEN]) -> Result<LessSafeKey, HandoverError> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key);

    key.map(LessSafeKey::new).map_err(|_| HandoverError::Invalid("key"))
}
