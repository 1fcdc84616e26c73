//! Flattens nested prefixes into adjacent pieces.

use super::address::Address;
use super::stages::NO_OWNER;

/// The first address of a piece of the address space, and the owner of the piece.
pub(super) type Cut<A> = (A, u32);

/// Cuts the address space in one walk over the prefixes, in ascending order, outer ones first. The piece
/// before the first cut has no owner.
pub(super) struct Cutter<A> {
    cuts: Vec<Cut<A>>,
    /// Last address and owner of each prefix that contains the current address, the longest last.
    open: Vec<(A, u32)>,
}

impl<A: Address> Cutter<A> {
    /// `prefixes` is the number of prefixes to come.
    pub(super) fn new(prefixes: usize) -> Self {
        Self { cuts: Vec::with_capacity(prefixes.saturating_mul(2)), open: Vec::new() }
    }

    /// The next prefix covers `first` to `last`.
    pub(super) fn prefix(&mut self, first: A, last: A, owner: u32) {
        while let Some((last, _)) = self.open.pop_if(|(last, _)| *last < first) {
            self.close(last);
        }
        self.cut(first, owner);
        self.open.push((last, owner));
    }

    pub(super) fn finish(mut self) -> Vec<Cut<A>> {
        while let Some((last, _)) = self.open.pop() {
            self.close(last);
        }

        self.cuts
    }

    /// After the end of a prefix, the prefix around it is the owner again. After the end of the
    /// address space there is no cut.
    fn close(&mut self, last: A) {
        if let Some(behind) = last.successor() {
            self.cut(behind, self.open.last().map_or(NO_OWNER, |(_, outer)| *outer));
        }
    }

    fn cut(&mut self, begin: A, owner: u32) {
        match self.cuts.last_mut() {
            Some((last, last_owner)) if *last == begin => *last_owner = owner,
            Some(_) | None => self.cuts.push((begin, owner)),
        }
    }
}
