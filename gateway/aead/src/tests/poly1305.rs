//! Vectors of Poly1305 alone.

use super::hex::{array, bytes};
use super::*;

/// RFC 8439, appendix A.3, test vectors 5 to 11: one-time keys, messages and tags. Their sums are close to the prime or
/// above it.
pub(crate) fn near_the_prime() -> [([u8; 32], Vec<u8>, [u8; TAG_LEN]); 7] {
    let two = "02000000000000000000000000000000";
    let one = "01000000000000000000000000000000";
    let one_and_four = "01000000000000000400000000000000";
    let zeros = "00000000000000000000000000000000";
    let ones = "ffffffffffffffffffffffffffffffff";
    let less_one = "f0ffffffffffffffffffffffffffffff";
    let vectors = [
        ([two, zeros], vec![ones], "03000000000000000000000000000000"),
        ([two, ones], vec![two], "03000000000000000000000000000000"),
        (
            [one, zeros],
            vec![ones, less_one, "11000000000000000000000000000000"],
            "05000000000000000000000000000000",
        ),
        (
            [one, zeros],
            vec![ones, "fbfefefefefefefefefefefefefefefe", "01010101010101010101010101010101"],
            zeros,
        ),
        (
            [two, zeros],
            vec!["fdffffffffffffffffffffffffffffff"],
            "faffffffffffffffffffffffffffffff",
        ),
        (
            [one_and_four, zeros],
            vec![
                "e33594d7505e43b90000000000000000",
                "3394d7505e4379cd0100000000000000",
                zeros,
                one,
            ],
            "14000000000000005500000000000000",
        ),
        (
            [one_and_four, zeros],
            vec!["e33594d7505e43b90000000000000000", "3394d7505e4379cd0100000000000000", zeros],
            "13000000000000000000000000000000",
        ),
    ];

    vectors.map(|(key, message, tag)| (array(&key.concat()), bytes(&message.concat()), array(tag)))
}
