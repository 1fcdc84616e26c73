//! Reads and writes 16-bit and 32-bit fields at an offset that depends on the packet.

/// The big-endian word at byte `at`; `None` past the end.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field))
}

/// The big-endian double word at byte `at`; `None` past the end.
#[inline]
pub(super) fn double_word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_be_bytes(*field))
}

/// The bytes of a field of `N` bytes at byte `at`, to be written; `None` past the end.
#[inline]
pub(super) fn bytes_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// Writes `value` big-endian at byte `at`, where the caller knows that the field exists.
#[inline]
pub(super) fn put_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes_mut(bytes, at) {
        *field = value.to_be_bytes();
    }
}

/// `len` as the value of a 16-bit length field. The length of a parsed packet always fits.
#[inline]
pub(super) fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
