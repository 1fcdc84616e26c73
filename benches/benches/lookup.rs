//! Cost of a lookup, of building a map, and of a publication for the readers.
//!
//! Goals: 100 million lookups a second at 1,000 prefixes and 25 million at 1,000,000; three times the
//! best other crate at 100,000; 100,000 prefixes built in well under 50 ms; a publication costs a
//! reader at most 1 µs.
//!
//! `each` looks up sixteen addresses at once; `one` looks them up one after the other, as the other
//! crates do. Keys are `any` address, or `covered` by a prefix of the map, as most packets are.

#![expect(clippy::print_stdout, reason = "prints figures that criterion cannot measure")]

mod lookup {
    pub(crate) mod comparison;
    pub(crate) mod prefixes;
    pub(crate) mod publish;
}

use criterion::{Criterion, criterion_group};

fn main() {
    benches();
    lookup::publish::report();
    Criterion::default().configure_from_args().final_summary();
}

fn lookups(criterion: &mut Criterion) {
    lookup::comparison::lookups::<u32>(criterion);
    lookup::comparison::lookups::<u128>(criterion);
}

fn builds(criterion: &mut Criterion) {
    lookup::comparison::builds::<u32>(criterion);
    lookup::comparison::builds::<u128>(criterion);
}

criterion_group!(benches, lookups, builds);
