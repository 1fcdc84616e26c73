//! The same prefixes and the same keys for each contestant.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use remap::Prefix;
use remap::lpm::Lpm;

use super::prefixes::{Bits, Layout, Random, any_keys, covered_keys, prefixes, to_prefix};

/// Enough to fall out of the nearer caches.
const KEYS: usize = 1 << 19;

const SETS: [(Layout, usize); 5] = [
    (Layout::Random, 1_000),
    (Layout::Clusters, 1_000),
    (Layout::Random, 100_000),
    (Layout::Clusters, 100_000),
    (Layout::Random, 1_000_000),
];

pub(crate) fn lookups<A: Bits>(criterion: &mut Criterion) {
    let any = any_keys::<A>(KEYS);
    for (layout, count) in SETS {
        let prefixes = prefixes::<A>(layout, count);
        let covered = covered_keys(&prefixes, KEYS);
        let Ok(map) = Lpm::new(numbered(&prefixes)) else { return };
        let trie = A::trie(&prefixes);
        let tree = A::tree(&prefixes);
        println!(
            "{} {layout} {count}: {:.1} bytes of index for each prefix",
            A::NAME,
            per_prefix(map.index_bytes(), count)
        );

        for (name, keys) in [("any", &any), ("covered", &covered)] {
            let mut group =
                criterion.benchmark_group(format!("{} {layout} {count} {name}", A::NAME));
            group.throughput(Throughput::Elements(u64::try_from(keys.len()).unwrap_or_default()));
            group.sample_size(20).measurement_time(Duration::from_secs(1));
            group.warm_up_time(Duration::from_millis(300));
            group.bench_function("each", |b| b.iter(|| each::<A>(&map, black_box(keys))));
            group.bench_function("one", |b| {
                b.iter(|| sum(black_box(keys), |key| map.get(A::key_to_address(key)).copied()));
            });
            group.bench_function("prefix-trie", |b| {
                b.iter(|| sum(black_box(keys), |key| Some(*trie.get_lpm(&A::key_to_net(key))?.1)));
            });
            group.bench_function("treebitmap", |b| {
                b.iter(|| sum(black_box(keys), |key| Some(*tree.longest_match(key)?.2)));
            });
        }
    }
}

pub(crate) fn builds<A: Bits>(criterion: &mut Criterion) {
    for layout in [Layout::Random, Layout::Clusters] {
        let prefixes = prefixes::<A>(layout, 100_000);
        let sorted = numbered(&prefixes);
        let mut shuffled = sorted.clone();
        let mut random = Random(3);
        for n in 1..shuffled.len() {
            shuffled.swap(n, random.below(n + 1));
        }

        let mut group = criterion.benchmark_group(format!("build {} {layout} 100000", A::NAME));
        group.sample_size(20).measurement_time(Duration::from_secs(1));
        group.bench_function("sorted", |b| {
            b.iter_batched(|| sorted.clone(), Lpm::new, BatchSize::PerIteration);
        });
        group.bench_function("shuffled", |b| {
            b.iter_batched(|| shuffled.clone(), Lpm::new, BatchSize::PerIteration);
        });
        group.bench_function("sorted, prefix-trie", |b| b.iter(|| A::trie(&prefixes)));
        group.bench_function("sorted, treebitmap", |b| b.iter(|| A::tree(&prefixes)));
    }
}

fn each<A: Bits>(map: &Lpm<u32>, keys: &[A::Key]) -> u64 {
    let (batches, _) = keys.as_chunks::<16>();

    batches
        .iter()
        .flat_map(|batch| A::each(map, batch))
        .map(|found| found.map_or(1, |value| u64::from(*value)))
        .fold(0, u64::wrapping_add)
}

fn sum<K: Copy>(keys: &[K], lookup: impl Fn(K) -> Option<u32>) -> u64 {
    keys.iter().map(|key| lookup(*key).map_or(1, u64::from)).fold(0, u64::wrapping_add)
}

fn numbered<A: Bits>(prefixes: &[(A, u8)]) -> Vec<(Prefix, u32)> {
    prefixes.iter().filter_map(|prefix| to_prefix(*prefix)).zip(0..).collect()
}

fn per_prefix(bytes: usize, count: usize) -> f64 {
    let [bytes, count] = [bytes, count].map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));

    bytes / count
}
