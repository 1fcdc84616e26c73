//! What does a lookup cost, what does a map cost, and does a publication cost the readers anything?
//!
//! Goals: 100 million lookups a second at 1,000 prefixes and 25 million at 1,000,000; three times the
//! best other crate at 100,000; 100,000 prefixes built in well under 50 ms; publishing at most 1 µs
//! for a reader.
//!
//! `each` looks up sixteen addresses at once, `one` one after the other, as the other crates do. Keys
//! are `any` address, or `covered` by a prefix of the map as those of packets mostly are.

#![expect(clippy::print_stdout, reason = "figures that are no duration of one function")]

mod lookup {
    pub(crate) mod contest;
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
    lookup::contest::lookups::<u32>(criterion);
    lookup::contest::lookups::<u128>(criterion);
}

fn builds(criterion: &mut Criterion) {
    lookup::contest::builds::<u32>(criterion);
    lookup::contest::builds::<u128>(criterion);
}

criterion_group!(benches, lookups, builds);
