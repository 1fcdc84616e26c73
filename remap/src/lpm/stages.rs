//! Finds the owner of an address: stages of slots, then a block of few pieces.
//!
//! ```text
//! address ─▶ stage: base, shift ─▶ slot ─┬─▶ owner           the slot lies in one piece
//!              ▲                         ├─▶ block ─▶ owner  it is cut a few times
//!              └─────────────────────────┴─▶ stage           it is cut more often
//! ```
//!
//! A stage spans exactly the range of its cuts, and has about as many slots as cuts. So its size depends
//! on the number of prefixes, not on their lengths. Thousands of random prefixes, and a dense block of
//! host maps far from all other prefixes, need the same two stages: a coarse and a fine one.

use std::hint::select_unpredictable;

use super::address::Address;
use super::cut::Cut;

/// The owner of a piece that no prefix covers.
pub(super) const NO_OWNER: u32 = Slot::INDEX;

/// A block fills a cache line of 64 bytes: seven cuts and eight owners.
pub(super) type StagesV4 = Stages<u32, 7, 8>;
/// A block fills two adjacent cache lines: six cuts and seven owners. One line has
/// room for three cuts, but two adjacent prefixes can have four.
pub(super) type StagesV6 = Stages<u128, 6, 7>;

/// The pieces of one version. `OWNERS` is `CUTS` + 1.
#[derive(Clone, Debug)]
pub(super) struct Stages<A, const CUTS: usize, const OWNERS: usize> {
    root: Slot,
    stages: Box<[Stage<A>]>,
    slots: Box<[Slot]>,
    blocks: Box<[Block<A, CUTS, OWNERS>]>,
}

/// The next step of a lookup: two bits of kind, thirty bits of index.
#[derive(Clone, Copy, Debug)]
struct Slot(u32);

impl Slot {
    const INDEX: u32 = (1 << 30) - 1;
    const BLOCK: u32 = 1 << 30;
    const STAGE: u32 = 1 << 31;

    /// The whole slot is one piece.
    const fn owner(owner: u32) -> Self {
        Self(owner)
    }

    /// An index that does not fit becomes [`NO_OWNER`]: 2^30 blocks would take 64 GiB.
    fn new(kind: u32, index: usize) -> Self {
        match u32::try_from(index) {
            Ok(index) if index < Self::INDEX => Self(kind | index),
            Ok(_) | Err(_) => Self(NO_OWNER),
        }
    }

    #[inline]
    const fn is(self, kind: u32) -> bool {
        self.0 & kind != 0
    }

    #[inline]
    const fn index(self) -> u32 {
        self.0 & Self::INDEX
    }
}

/// Divides the addresses from `base` on evenly among slots; the first and the last slot also contain the
/// addresses outside.
#[derive(Clone, Copy, Debug)]
struct Stage<A> {
    base: A,
    /// The binary logarithm of the addresses in one slot.
    shift: u32,
    first: u32,
    /// The index of the last slot, relative to `first`.
    last: u32,
}

/// A few pieces, adjacent in memory. Unused elements repeat the last owner.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block<A, const CUTS: usize, const OWNERS: usize> {
    cuts: [A; CUTS],
    /// The first owner has the addresses before the first cut.
    owners: [u32; OWNERS],
}

impl<A: Address, const CUTS: usize, const OWNERS: usize> Stages<A, CUTS, OWNERS> {
    /// `cuts` is sorted.
    pub(super) fn new(cuts: &[Cut<A>]) -> Self {
        let mut builder = Builder {
            stages: Vec::new(),
            slots: Vec::new(),
            // Most cuts come in pairs, the two ends of a prefix.
            blocks: Vec::with_capacity(cuts.len() / 2),
        };
        let root = builder.slot(NO_OWNER, cuts);

        Self {
            root,
            stages: builder.stages.into(),
            slots: builder.slots.into(),
            blocks: builder.blocks.into(),
        }
    }

    /// The owner of the piece around `address`, or [`NO_OWNER`].
    #[inline]
    pub(super) fn owner(&self, address: A) -> u32 {
        self.resolve(self.descend(address), address)
    }

    /// [`Self::owner`] for several addresses. Performs each step for all of them before the next step, so
    /// that their reads overlap. The first stage is the same for all.
    ///
    /// The addresses that need a later step are collected without a branch: neither the depth of an address
    /// nor whether it ends in a block is predictable.
    #[inline]
    pub(super) fn owners<const N: usize>(&self, addresses: [A; N]) -> [u32; N] {
        let mut slots = [self.root; N];
        if self.root.is(Slot::STAGE)
            && let Some(stage) = get(&self.stages, self.root.index())
        {
            slots = addresses.map(|address| self.slot_in(stage, address));
        }
        // The first `left` of `lanes` are the indexes of the addresses that are at a stage.
        let mut lanes: [usize; N] = [0; N];
        let mut left = collect(&mut lanes, &slots, Slot::STAGE);
        while left > 0 {
            let mut kept = 0;
            for n in 0..left {
                let Some(lane) = lanes.get(n).copied() else { break };
                let Some((slot, address)) = slots.get_mut(lane).zip(addresses.get(lane)) else {
                    break;
                };
                *slot = self.step(*slot, *address);
                if let Some(place) = lanes.get_mut(kept) {
                    *place = lane;
                }
                kept += usize::from(slot.is(Slot::STAGE));
            }
            left = kept;
        }

        let mut owners = slots.map(Slot::index);
        let blocks = collect(&mut lanes, &slots, Slot::BLOCK);
        for lane in lanes.iter().take(blocks) {
            let Some((owner, address)) = owners.get_mut(*lane).zip(addresses.get(*lane)) else {
                break;
            };
            *owner = get(&self.blocks, *owner).map_or(NO_OWNER, |block| block.owner(*address));
        }

        owners
    }

    /// Descends the stages to a block or an owner.
    #[inline]
    fn descend(&self, address: A) -> Slot {
        let mut slot = self.root;
        while slot.is(Slot::STAGE) {
            slot = self.step(slot, address);
        }

        slot
    }

    /// The slot of `address` in the stage at `slot`.
    #[inline]
    fn step(&self, slot: Slot, address: A) -> Slot {
        let Some(stage) = get(&self.stages, slot.index()) else { return Slot::owner(NO_OWNER) };

        self.slot_in(stage, address)
    }

    /// The slot of `address` in `stage`.
    #[inline]
    fn slot_in(&self, stage: &Stage<A>, address: A) -> Slot {
        let step = address.beyond(stage.base).step(stage.shift, stage.last);
        let next = get(&self.slots, stage.first.wrapping_add(step));

        next.copied().unwrap_or(Slot::owner(NO_OWNER))
    }

    /// The owner at the last slot.
    #[inline]
    fn resolve(&self, slot: Slot, address: A) -> u32 {
        if !slot.is(Slot::BLOCK) {
            return slot.index();
        }

        get(&self.blocks, slot.index()).map_or(NO_OWNER, |block| block.owner(address))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.stages) + size_of_val(&*self.slots) + size_of_val(&*self.blocks)
    }
}

impl<A: Address, const CUTS: usize, const OWNERS: usize> Block<A, CUTS, OWNERS> {
    fn new(before: u32, cuts: &[Cut<A>]) -> Self {
        let last = cuts.last().map_or(before, |(_, owner)| *owner);
        let mut block = Self { cuts: [A::MAX; CUTS], owners: [last; OWNERS] };
        for (place, (cut, _)) in block.cuts.iter_mut().zip(cuts) {
            *place = *cut;
        }
        let owners = [before].into_iter().chain(cuts.iter().map(|(_, owner)| *owner));
        for (place, owner) in block.owners.iter_mut().zip(owners) {
            *place = owner;
        }

        block
    }

    /// Compares every cut instead of searching: all are in the cache, and there is no branch.
    #[inline]
    fn owner(&self, address: A) -> u32 {
        let Some((first, owners)) = self.owners.split_first() else { return NO_OWNER };
        self.cuts
            .iter()
            .zip(owners)
            .fold(*first, |owner, (cut, next)| select_unpredictable(*cut <= address, *next, owner))
    }
}

struct Builder<A, const CUTS: usize, const OWNERS: usize> {
    stages: Vec<Stage<A>>,
    slots: Vec<Slot>,
    blocks: Vec<Block<A, CUTS, OWNERS>>,
}

impl<A: Address, const CUTS: usize, const OWNERS: usize> Builder<A, CUTS, OWNERS> {
    /// The fewest slots of a stage, so that a lookup takes at most 8 stages for IPv4 and 32 for IPv6. Only
    /// a chain of nested prefixes that share one end needs so many.
    const SLOTS_MIN: usize = 16;

    /// Builds the slot with `cuts`; `before` is the owner before the first.
    fn slot(&mut self, before: u32, cuts: &[Cut<A>]) -> Slot {
        match cuts {
            [] => Slot::owner(before),
            [(base, _), .., (end, _)] if cuts.len() > CUTS => self.stage(before, cuts, *base, *end),
            [..] => {
                let place = Slot::new(Slot::BLOCK, self.blocks.len());
                self.blocks.push(Block::new(before, cuts));
                place
            }
        }
    }

    /// A stage has about as many slots as cuts, so most slots have none, one or two.
    fn stage(&mut self, mut before: u32, cuts: &[Cut<A>], base: A, end: A) -> Slot {
        let slots = cuts.len().max(Self::SLOTS_MIN).next_power_of_two();
        let shift = end.beyond(base).width().saturating_sub(slots.ilog2());
        let base = base.slot_before(shift);
        let last = end.beyond(base).step(shift, Slot::INDEX) + 1;
        let place = Slot::new(Slot::STAGE, self.stages.len());
        let start = self.slots.len();
        let Ok(first) = u32::try_from(start) else { return Slot::owner(NO_OWNER) };
        self.stages.push(Stage { base, shift, first, last });
        self.slots.resize(start + index(last) + 1, Slot::owner(NO_OWNER));

        let step = |cut: &Cut<A>| cut.0.beyond(base).step(shift, last);
        let mut done = start;
        for group in cuts.chunk_by(|a, b| step(a) == step(b)) {
            let at = start + group.first().map_or(0, |cut| index(step(cut)));
            if let Some(uncut) = self.slots.get_mut(done..at) {
                uncut.fill(Slot::owner(before));
            }
            // A cut at the first address of a slot leaves no addresses before it in the slot. The first slot
            // begins earlier.
            let slot = match group {
                [(cut, owner), inside @ ..] if cut.beyond(base).is_multiple(shift) => {
                    self.slot(*owner, inside)
                }
                _ => self.slot(before, group),
            };
            if let Some(place) = self.slots.get_mut(at) {
                *place = slot;
            }
            before = group.last().map_or(before, |(_, owner)| *owner);
            done = at + 1;
        }
        if let Some(behind) = self.slots.get_mut(start + index(last)) {
            *behind = Slot::owner(before);
        }

        place
    }
}

/// Writes the indexes of the slots of one kind to the front of `lanes`, and counts them.
#[inline]
fn collect<const N: usize>(lanes: &mut [usize; N], slots: &[Slot; N], kind: u32) -> usize {
    let mut count = 0;
    for (lane, slot) in slots.iter().enumerate() {
        if let Some(place) = lanes.get_mut(count) {
            *place = lane;
        }
        count += usize::from(slot.is(kind));
    }

    count
}

#[inline]
fn get<T>(slice: &[T], at: u32) -> Option<&T> {
    slice.get(index(at))
}

#[inline]
fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}
