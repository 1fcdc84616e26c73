//! Bytes as they are published.

/// The bytes that `text` writes down, two digits each. What is no digit is left out.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();

    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// The same if there are `N`.
pub(crate) fn array<const N: usize>(text: &str) -> [u8; N] {
    bytes(text).try_into().unwrap()
}
