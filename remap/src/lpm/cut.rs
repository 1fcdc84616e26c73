//! Nested prefixes become pieces side by side.

use super::address::Address;
use super::stages::NOBODY;

/// Where a piece of the address space begins, and whose it is up to the next beginning.
pub(super) type Cut<A> = (A, u32);

/// Cuts the address space while walking over it once, from prefix to prefix in ascending order,
/// outer ones first. Before the first cut nobody owns anything.
pub(super) struct Cutter<A> {
    cuts: Vec<Cut<A>>,
    /// The prefixes that contain the current address, the longest last: last address and owner.
    open: Vec<(A, u32)>,
}

impl<A: Address> Cutter<A> {
    /// `prefixes` is how many will come.
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

    /// Behind a prefix that ended, the next longer one rules again. At the end of the address space
    /// there is nothing behind.
    fn close(&mut self, last: A) {
        if let Some(behind) = last.successor() {
            self.cut(behind, self.open.last().map_or(NOBODY, |(_, outer)| *outer));
        }
    }

    fn cut(&mut self, begin: A, owner: u32) {
        match self.cuts.last_mut() {
            Some((last, last_owner)) if *last == begin => *last_owner = owner,
            Some(_) | None => self.cuts.push((begin, owner)),
        }
    }
}
