//! The values of the protocol: keys in hexadecimal, numbers in decimal, addresses in their usual text form.

use std::fmt::Write;
use std::net::SocketAddr;
use std::str::FromStr;

use remap::{Prefix, PrefixError};
use zeroize::Zeroizing;

use crate::key::KEY_LEN;

/// A number without a sign. Leading zeros are allowed.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    // `from_str` takes a plus sign, the protocol has none.
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());

    is_number.then(|| text.parse().ok()).flatten()
}

/// 32 bytes as 64 hexadecimal digits, of either case.
pub(super) fn key(text: &str) -> Option<Zeroizing<[u8; KEY_LEN]>> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != KEY_LEN || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }

    Some(key)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Appends 64 hexadecimal digits, without another copy.
pub(super) fn push_key(out: &mut String, key: &[u8; KEY_LEN]) {
    for byte in key {
        for nibble in [byte >> 4, byte & 0xf] {
            out.push(char::from_digit(nibble.into(), 16).unwrap_or_default());
        }
    }
}

/// Address and port. An IPv4-mapped IPv6 address becomes an IPv4 address. The zone of a link-local address is the
/// index of its interface; other addresses have none.
pub(super) fn endpoint(text: &str) -> Option<SocketAddr> {
    let endpoint: SocketAddr = text.parse().ok()?;

    match endpoint {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(endpoint),
        SocketAddr::V4(_) | SocketAddr::V6(_) => {
            Some(SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port()))
        }
    }
}

/// An address with a prefix length. Host bits are cleared, as in the kernel.
pub(super) fn prefix(text: &str) -> Option<Prefix> {
    if !text.contains('/') {
        return None;
    }
    let parsed = text.parse();
    if let Err(PrefixError::HostBitsSet { meant, .. }) = parsed {
        return Some(meant);
    }

    parsed.ok()
}

/// Appends `key=value` as a line.
pub(super) fn push_line(out: &mut String, key: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{key}={value}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_has_no_sign_and_fits() {
        assert_eq!(number::<u16>("51820"), Some(51820));
        assert_eq!(number::<u16>("00065535"), Some(65535));
        for invalid in ["", "+1", "-1", " 1", "1 ", "0x1", "1_0", "65536", "99999999999999999999"] {
            assert_eq!(number::<u16>(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn a_key_has_64_hexadecimal_digits() {
        let digits = "0123456789abcdefABCDEF0123456789".repeat(2);

        let key_of_both_cases = key(&digits).unwrap();

        assert_eq!(key_of_both_cases[..11], [1, 35, 69, 103, 137, 171, 205, 239, 171, 205, 239]);
        for wrong in ["", "00", &digits[1..], &format!("{digits}00"), &digits.replace('a', "g")] {
            assert_eq!(key(wrong), None, "{wrong:?}");
        }
        assert_eq!(key(&"é".repeat(32)), None);
    }

    #[test]
    fn an_endpoint_is_an_address_and_a_port() {
        let mapped = endpoint("[::ffff:192.0.2.1]:7").unwrap();

        assert_eq!(mapped, "192.0.2.1:7".parse().unwrap());
        assert_eq!(endpoint("[2001:db8::3]:51820").unwrap().port(), 51820);
        assert_eq!(endpoint("[fe80::1%2]:1").unwrap().to_string(), "[fe80::1%2]:1");
        assert_eq!(endpoint("[2001:db8::3%2]:1"), endpoint("[2001:db8::3]:1"));
        for wrong in ["", "192.0.2.1", "milan:1", "2001:db8::3:1", "[fe80::1%eth0]:1"] {
            assert_eq!(endpoint(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_prefix_needs_a_length() {
        assert_eq!(prefix("10.1.2.3/8"), prefix("10.0.0.0/8"));
        assert_eq!(prefix("::/0").unwrap().to_string(), "::/0");
        for wrong in ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "a/8", "::/129"] {
            assert_eq!(prefix(wrong), None, "{wrong:?}");
        }
        assert_eq!(prefix("::ffff:10.0.0.0/104"), None, "not an address of packets");
    }

    proptest! {
        #[test]
        fn a_formatted_key_is_parsed_back(bytes in any::<[u8; KEY_LEN]>()) {
            let mut text = String::new();

            push_key(&mut text, &bytes);

            prop_assert_eq!(*key(&text).unwrap(), bytes);
        }
    }
}
