//! Hexadecimal test vectors.

/// The bytes of `text`, two digits each. Other characters are ignored.
pub(in crate::native) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();

    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// The same, for exactly `N` bytes.
pub(in crate::native) fn array<const N: usize>(text: &str) -> [u8; N] {
    bytes(text).try_into().unwrap()
}
