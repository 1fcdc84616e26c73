//! Lanes against ring, which is the oracle, and against test vectors.

use std::array;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub(crate) mod hex;
pub(crate) mod poly1305;
mod vectors;

/// The lanes of this processor. Tests that call it are ignored where there are none.
///
/// # Panics
///
/// Without lanes: callers rely on the features of the processor.
pub(crate) fn lanes() -> Lanes {
    let lanes = Lanes::detect();
    assert!(lanes.is_some(), "this processor has no AVX-512 with IFMA and VBMI2, and no NEON");

    lanes
}

/// Otherwise tests of vector code would be ignored without reason, or fail.
#[test]
fn build_script_detects_what_the_crate_detects() {
    assert_eq!(
        cfg!(has_lanes),
        Lanes::detect().is_some(),
        "built on another machine: touch gateway/aead/build.rs"
    );
}

fn messages<'a>(nonces: &[Nonce], texts: &'a mut [Vec<u8>]) -> Vec<Message<'a>> {
    nonces.iter().zip(texts).map(|(nonce, text)| Message { nonce: *nonce, text }).collect()
}

/// Makes long carries likelier.
pub(crate) fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => any::<u8>(), 1 => Just(0xff), 1 => Just(0)]
}

fn texts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let of_one_length = (0_usize..1_600, FEWEST..=LANES).prop_flat_map(|(len, count)| {
        (vec(vec(byte(), len), count - 1), vec(byte(), 0..=len)).prop_map(|(mut texts, last)| {
            texts.push(last);
            texts
        })
    });
    let of_any = vec(vec(byte(), 0..400), FEWEST..=LANES);

    prop_oneof![of_one_length, of_any]
}

proptest! {
    #[test]
    #[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
    fn lanes_give_the_result_of_ring(
        key in any::<[u8; KEY_LEN]>(),
        nonces in any::<[Nonce; LANES]>(),
        texts in texts(),
        flipped in any::<Option<(usize, u8)>>(),
    ) {
        let (lanes, ring) = (Cipher::new(&key, lanes()), Cipher::new(&key, Lanes::none()));
        let (mut sealed, mut expected) = (texts.clone(), texts.clone());

        let mut tags = lanes.seal(&mut messages(&nonces, &mut sealed));
        let expected_tags = ring.seal(&mut messages(&nonces, &mut expected));
        prop_assert_eq!(&sealed, &expected);
        prop_assert_eq!(&tags[..texts.len()], &expected_tags[..texts.len()]);

        let mut intact = [true; LANES];
        if let Some((place, bit)) = flipped {
            let (lane, bit) = (place % texts.len(), 1 << (bit % 8));
            intact[lane] = false;
            match sealed[lane].len() {
                len if place % 3 != 0 && len > 0 => sealed[lane][place / 3 % len] ^= bit,
                _ => tags[lane][place % TAG_LEN] ^= bit,
            }
        }
        let authentic = lanes.open(&mut messages(&nonces, &mut sealed), &tags);
        for (lane, text) in texts.iter().enumerate() {
            prop_assert_eq!(authentic[lane], intact[lane]);
            if intact[lane] {
                prop_assert_eq!(&sealed[lane], text);
            } else {
                prop_assert!(sealed[lane].iter().all(|byte| *byte == 0));
            }
        }
    }
}

/// The vectors for one message of any length.
fn one(cipher: &Cipher) -> Vectors {
    cipher.lanes.0.unwrap()
}

proptest! {
    #[test]
    #[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
    fn blocks_in_lanes_give_the_result_of_ring(
        key in any::<[u8; KEY_LEN]>(),
        nonce in any::<Nonce>(),
        text in prop_oneof![vec(byte(), 0..400), vec(byte(), 0..10_000)],
        flipped in any::<Option<(prop::sample::Index, u8)>>(),
    ) {
        let (lanes, ring) = (Cipher::new(&key, lanes()), Cipher::new(&key, Lanes::none()));
        let (mut sealed, mut expected) = (text.clone(), text.clone());

        let mut tag = one(&lanes).seal_one(&lanes.key, nonce, &mut sealed);
        let expected_tag = ring.seal_one(nonce, &mut expected);
        prop_assert_eq!(&sealed, &expected);
        prop_assert_eq!(tag, expected_tag);

        if let Some((place, bit)) = flipped {
            let place = place.index(text.len() + TAG_LEN);
            match sealed.get_mut(place) {
                Some(byte) => *byte ^= 1 << (bit % 8),
                None => tag[place - text.len()] ^= 1 << (bit % 8),
            }
        }
        let is_authentic = one(&lanes).open_one(&lanes.key, nonce, &mut sealed, tag);
        prop_assert_eq!(is_authentic, flipped.is_none());
        let zeros = vec![0; text.len()];
        prop_assert_eq!(&sealed, if is_authentic { &text } else { &zeros });
    }
}

/// Each number of parts and of blocks, and each length of the last part.
#[test]
#[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
fn blocks_in_lanes_take_each_length() {
    let (lanes, ring) =
        (Cipher::new(&[7; KEY_LEN], lanes()), Cipher::new(&[7; KEY_LEN], Lanes::none()));
    for len in 0..3_200 {
        let (mut sealed, mut expected) = (vec![0xff; len], vec![0xff; len]);
        let tag = one(&lanes).seal_one(&lanes.key, [9; NONCE_LEN], &mut sealed);

        assert_eq!(tag, ring.seal_one([9; NONCE_LEN], &mut expected), "{len}");
        assert!(sealed == expected, "{len}");
        assert!(one(&lanes).open_one(&lanes.key, [9; NONCE_LEN], &mut sealed, tag), "{len}");
        assert!(sealed.iter().all(|byte| *byte == 0xff), "{len}");
    }
}

#[test]
#[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
fn long_texts_are_sealed_in_lanes() {
    let cipher = Cipher::new(&[7; KEY_LEN], lanes());

    assert!(cipher.vectors_for_one(&[0; ALONE_FROM - 1]).is_none());
    assert!(cipher.vectors_for_one(&[0; ALONE_FROM]).is_some());
}

/// Every bit of a message and its tag, in every lane.
#[test]
#[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
fn a_flipped_bit_refuses_its_message_only() {
    let cipher = Cipher::new(&[7; KEY_LEN], lanes());
    let nonces: [Nonce; LANES] = array::from_fn(|lane| [u8::try_from(lane).unwrap(); NONCE_LEN]);
    let mut sealed: [Vec<u8>; LANES] = array::from_fn(|lane| vec![9; 70 + lane]);
    let tags = cipher.seal(&mut messages(&nonces, &mut sealed));

    for lane in 0..LANES {
        for bit in 0..8 * (70 + lane + TAG_LEN) {
            let (mut wrong, mut wrong_tags) = (sealed.clone(), tags);
            let (byte, bit) = (bit / 8, 1 << (bit % 8));
            match wrong[lane].get_mut(byte) {
                Some(byte) => *byte ^= bit,
                None => wrong_tags[lane][byte - 70 - lane] ^= bit,
            }
            let authentic = cipher.open(&mut messages(&nonces, &mut wrong), &wrong_tags);
            assert_eq!(authentic, array::from_fn(|other| other != lane), "{lane}: {byte}, {bit}");
        }
    }
}

#[test]
fn few_messages_are_sealed_one_by_one() {
    let cipher = Cipher::new(&[7; KEY_LEN], Lanes::detect());

    let width = if Lanes::detect().is_some() { LANES } else { 1 };
    assert_eq!(cipher.width(FEWEST - 1, 0), 1);
    assert_eq!(cipher.width(FEWEST, 0), width);
    for len in [200, 1_376, 8_928] {
        assert_eq!(cipher.width(together_from(len) - 1, len), 1);
        assert_eq!(cipher.width(together_from(len), len), width);
    }
}

#[test]
#[should_panic(expected = "17 messages at once")]
fn more_messages_than_lanes_panic() {
    let cipher = Cipher::new(&[7; KEY_LEN], Lanes::none());
    let mut messages: [Message<'_>; LANES + 1] = Default::default();

    cipher.seal(&mut messages);
}
