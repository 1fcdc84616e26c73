//! Lanes beside the library, which is the oracle.

use std::array;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn cipher(key: [u8; 32], lanes: Lanes) -> Cipher {
    Cipher::new(&Secret::new(key), lanes)
}

/// Those of this processor, for tests that are ignored where it has none.
pub(super) fn lanes() -> Lanes {
    let lanes = Lanes::detect();
    assert!(lanes.is_some(), "this processor has no AVX-512 with IFMA and VBMI2");

    lanes
}

/// Otherwise tests of vector code are ignored for no reason, or fail.
#[test]
fn the_build_knows_this_processor() {
    assert_eq!(
        cfg!(has_avx512),
        Lanes::detect().is_some(),
        "built on another machine: touch gateway/build.rs"
    );
}

fn messages<'a>(counters: &[u64], texts: &'a mut [Vec<u8>]) -> Vec<Lane<'a>> {
    counters.iter().zip(texts).map(|(counter, text)| Lane { counter: *counter, text }).collect()
}

/// Long carries are likelier than by chance.
pub(super) fn byte() -> impl Strategy<Value = u8> {
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
    #[cfg_attr(not(has_avx512), ignore = "needs a processor with AVX-512, IFMA and VBMI2")]
    fn lanes_do_what_the_library_does(
        key in any::<[u8; 32]>(),
        counters in any::<[u64; LANES]>(),
        texts in texts(),
        flipped in any::<Option<(usize, u8)>>(),
    ) {
        let (lanes, library) = (cipher(key, lanes()), cipher(key, Lanes::none()));
        let (mut sealed, mut expected) = (texts.clone(), texts.clone());

        let mut tags = lanes.seal(&mut messages(&counters, &mut sealed));
        let expected_tags = library.seal(&mut messages(&counters, &mut expected));
        prop_assert_eq!(&sealed, &expected);
        prop_assert_eq!(&tags[..texts.len()], &expected_tags[..texts.len()]);

        let mut whole = [true; LANES];
        if let Some((place, bit)) = flipped {
            let (lane, bit) = (place % texts.len(), 1 << (bit % 8));
            whole[lane] = false;
            match sealed[lane].len() {
                len if place % 3 != 0 && len > 0 => sealed[lane][place / 3 % len] ^= bit,
                _ => tags[lane][place % TAG_LEN] ^= bit,
            }
        }
        let authentic = lanes.open(&mut messages(&counters, &mut sealed), &tags);
        for (lane, text) in texts.iter().enumerate() {
            prop_assert_eq!(authentic[lane], whole[lane]);
            if whole[lane] {
                prop_assert_eq!(&sealed[lane], text);
            } else {
                prop_assert!(sealed[lane].iter().all(|byte| *byte == 0));
            }
        }
    }
}

/// Every bit of a message and its tag, in every lane.
#[test]
#[cfg_attr(not(has_avx512), ignore = "needs a processor with AVX-512, IFMA and VBMI2")]
fn one_wrong_bit_in_one_lane_refuses_that_one() {
    let cipher = cipher([7; 32], lanes());
    let counters = array::from_fn::<u64, LANES, _>(|lane| 1 << (4 * lane));
    let mut sealed: [Vec<u8>; LANES] = array::from_fn(|lane| vec![9; 70 + lane]);
    let tags = cipher.seal(&mut messages(&counters, &mut sealed));

    for lane in 0..LANES {
        for bit in 0..8 * (70 + lane + TAG_LEN) {
            let (mut wrong, mut wrong_tags) = (sealed.clone(), tags);
            let (byte, bit) = (bit / 8, 1 << (bit % 8));
            match wrong[lane].get_mut(byte) {
                Some(byte) => *byte ^= bit,
                None => wrong_tags[lane][byte - 70 - lane] ^= bit,
            }
            let authentic = cipher.open(&mut messages(&counters, &mut wrong), &wrong_tags);
            assert_eq!(authentic, array::from_fn(|other| other != lane), "{lane}: {byte}, {bit}");
        }
    }
}

#[test]
fn fewer_messages_than_are_worth_lanes_take_one_at_a_time() {
    let cipher = cipher([7; 32], Lanes::detect());

    assert_eq!(cipher.width(FEWEST - 1), 1);
    assert_eq!(cipher.width(FEWEST), if Lanes::detect().is_some() { LANES } else { 1 });
}
