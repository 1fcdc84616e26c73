//! Poly1305 (RFC 8439, section 2.5) of one message, in registers of 64 bits.

use subtle::{Choice, ConditionallySelectable as _};

use super::TAG_LEN;

/// Bytes of what RFC 8439 calls a block of Poly1305: one number. Here a block is one of ChaCha20, which has four.
pub(super) const PART_LEN: usize = 16;

/// The authenticator of one message.
#[derive(Clone, Copy, Default)]
pub(super) struct Poly1305 {
    /// The lower 128 bits of the sum.
    low: u128,
    /// The bits above: at most 4.
    high: u64,
    /// The factor, clamped: its lower and its upper 64 bits.
    r: [u64; 2],
    /// The upper 64 bits of the factor times 5 / 4: 2^128 is 5 / 4 modulo 2^130 - 5.
    r_1_folded: u64,
    /// The other half of the one-time key.
    pad: u128,
    /// Length of the text in bytes.
    len: u64,
}

impl Poly1305 {
    /// Of a text of `len` bytes, with the first 32 bytes of block 0 of the key stream.
    pub(super) fn new(one_time_key: &[[u8; PART_LEN]; 2], len: usize) -> Self {
        let [r, pad] = one_time_key.map(u128::from_le_bytes);
        let r = halves(r & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff);
        let [_, r_1] = r;
        let len = u64::try_from(len).unwrap_or(u64::MAX);

        Self { low: 0, high: 0, r, r_1_folded: r_1 + (r_1 >> 2), pad, len }
    }

    /// Adds the next part of the text.
    #[inline]
    pub(super) fn add(&mut self, part: &[u8; PART_LEN]) {
        self.add_number(u128::from_le_bytes(*part));
    }

    /// The tag. RFC 8439, section 2.8: after the text follow the length of the associated data, which is 0, and that
    /// of the text.
    pub(super) fn tag(mut self) -> [u8; TAG_LEN] {
        self.add_number(u128::from(self.len) << 64);

        self.finished()
    }

    /// The sum, reduced, plus the other half of the one-time key. RFC 8439, section 2.5.1.
    fn finished(self) -> [u8; TAG_LEN] {
        let (less_the_prime, carry) = self.low.overflowing_add(5);
        let is_above = Choice::from(u8::from(self.high + u64::from(carry) > 3));
        let sum = u128::conditional_select(&self.low, &less_the_prime, is_above);

        sum.wrapping_add(self.pad).to_le_bytes()
    }

    /// `(sum + number + 2^128) r`, reduced to about 130 bits. `AUDIT.md` has the bounds of each step.
    #[inline]
    fn add_number(&mut self, number: u128) {
        let (low, carry) = self.low.overflowing_add(number);
        let high = self.high + 1 + u64::from(carry);

        let ([h_0, h_1], [r_0, r_1]) = (halves(low), self.r);
        let d_0 = product(h_0, r_0) + product(h_1, self.r_1_folded);
        let d_1 = product(h_0, r_1) + product(h_1, r_0) + u128::from(high * self.r_1_folded);
        let [low, over] = halves(d_0);
        let [middle, over] = halves(d_1 + u128::from(over));
        let high = high * r_0 + over;

        // 2^130 is 5: `4 q + q` of the quotient `q`.
        let folded = (high & !3) + (high >> 2);
        let low = u128::from(low) | u128::from(middle) << 64;
        let (low, carry) = low.overflowing_add(u128::from(folded));
        self.low = low;
        self.high = (high & 3) + u64::from(carry);
    }
}

#[inline]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// The lower and the upper 64 bits.
#[inline]
fn halves(number: u128) -> [u64; 2] {
    let half = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or(0);

    [half(number), half(number >> 64)]
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::tests::byte;
    use crate::tests::poly1305::near_the_prime;

    fn authenticated(key: &[u8; 32], message: &[u8]) -> [u8; TAG_LEN] {
        let (halves, _) = key.as_chunks();
        let mut sum = Poly1305::new(halves.try_into().unwrap(), 0);
        for part in message.as_chunks().0 {
            sum.add(part);
        }

        sum.finished()
    }

    /// A number below 2^130 - 5: its bits from 128 on, and those below.
    type Number = (u64, u128);

    fn plus((a_high, a_low): Number, (b_high, b_low): Number) -> Number {
        let (low, carry) = a_low.overflowing_add(b_low);
        let high = a_high + b_high + u64::from(carry);
        let (less_the_prime, carry) = low.overflowing_add(5);

        match (high + u64::from(carry)).checked_sub(4) {
            Some(high) => (high, less_the_prime),
            None => (high, low),
        }
    }

    /// The definition of RFC 8439, section 2.5, with a multiplication bit by bit.
    fn defined(key: &[u8; 32], message: &[u8]) -> [u8; TAG_LEN] {
        let [r, pad] = [0, 16].map(|at| u128::from_le_bytes(*key[at..].first_chunk().unwrap()));
        let r = r & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        let mut sum = (0, 0);
        for part in message.as_chunks().0 {
            let factor = plus(sum, (1, u128::from_le_bytes(*part)));
            sum = (0, 0);
            for bit in (0..128).rev() {
                sum = plus(sum, sum);
                if r >> bit & 1 == 1 {
                    sum = plus(sum, factor);
                }
            }
        }

        sum.1.wrapping_add(pad).to_le_bytes()
    }

    proptest! {
        /// Bytes of 0xff are frequent, so sums, factors and numbers come close to their bounds.
        #[test]
        fn sums_match_the_definition(
            key in prop_oneof![vec(byte(), 32), vec(0xff_u8..=0xff, 32)],
            message in prop_oneof![vec(byte(), 0..160), vec(0xfe_u8..=0xff, 160)],
        ) {
            let key = key.try_into().unwrap();
            prop_assert_eq!(authenticated(&key, &message), defined(&key, &message));
        }
    }

    /// With the factor 1 the sum of the first three parts is `5 · 2^128 - 2`. Its lower 128 bits overflow when 5 is added
    /// for its bit 130, which random factors hardly ever cause. The other parts move that carry to the bit 130.
    #[test]
    fn the_last_carry_is_kept() {
        let mut key = [0; 32];
        key[0] = 1;
        let message = [[0xff; 2 * PART_LEN].as_slice(), &[0; 4 * PART_LEN]].concat();

        assert_eq!(authenticated(&key, &message), defined(&key, &message));
    }

    #[test]
    fn sums_near_the_prime_match_rfc_8439() {
        for (key, message, tag) in near_the_prime() {
            assert_eq!(authenticated(&key, &message), tag, "{}", message.len());
        }
    }
}
