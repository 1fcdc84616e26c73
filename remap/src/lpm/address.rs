//! Address arithmetic of the lookup, for both versions.

use std::fmt::Debug;

/// An address as a number, its first bit the highest.
pub(super) trait Address: Copy + Ord + Debug {
    const MAX: Self;

    /// The next address; `None` after the last one.
    fn successor(self) -> Option<Self>;

    /// The distance from `base` to `self`, 0 if `self` is lower.
    fn beyond(self, base: Self) -> Self;

    /// `self >> shift`, at most `last`. `shift` is less than the width of an address.
    fn step(self, shift: u32, last: u32) -> u32;

    /// The first address of the slot of 2^`shift` addresses before the one that contains `self`, if there
    /// is one, else of the first slot.
    fn slot_before(self, shift: u32) -> Self;

    /// Whether none of the lowest `bits` bits is set.
    fn is_multiple(self, bits: u32) -> bool;

    /// The number of significant bits.
    fn width(self) -> u32;
}

macro_rules! address {
    ($bits:ty) => {
        impl Address for $bits {
            const MAX: Self = Self::MAX;

            #[inline]
            fn successor(self) -> Option<Self> {
                self.checked_add(1)
            }

            #[inline]
            fn beyond(self, base: Self) -> Self {
                self.saturating_sub(base)
            }

            #[inline]
            fn step(self, shift: u32, last: u32) -> u32 {
                // The minimum before the conversion avoids a branch.
                u32::try_from(self.wrapping_shr(shift).min(last.into())).unwrap_or(last)
            }

            fn slot_before(self, shift: u32) -> Self {
                let size = Self::MIN.wrapping_add(1).wrapping_shl(shift);

                (self & size.wrapping_neg()).saturating_sub(size)
            }

            #[inline]
            fn is_multiple(self, bits: u32) -> bool {
                self.trailing_zeros() >= bits
            }

            #[inline]
            fn width(self) -> u32 {
                Self::BITS - self.leading_zeros()
            }
        }
    };
}

address!(u32);
address!(u128);
