//! Bytes from hexadecimal text.

/// The bytes that `text` spells, two digits each. Other characters are skipped.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();

    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// As [`bytes`], if there are `N`.
pub(crate) fn array<const N: usize>(text: &str) -> [u8; N] {
    bytes(text).try_into().unwrap()
}
