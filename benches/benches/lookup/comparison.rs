//! Lookup tables of several crates, with the same prefixes and keys.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput};
use remap::Prefix;
use remap::lpm::Lpm;

use super::prefixes::{Bits, Layout, Random, any_keys, covered_keys, prefixes, to_prefix};

/// More than the L1 and L2 caches hold.
const KEYS: usize = 1 << 19;
/// Few enough that the best of several rounds is not interrupted.
const KEYS_PER_ROUND: usize = 1 << 16;

const SETS: [(Layout, usize); 5] = [
    (Layout::Random, 1_000),
    (Layout::Clusters, 1_000),
    (Layout::Random, 100_000),
    (Layout::Clusters, 100_000),
    (Layout::Random, 1_000_000),
];

/// Looks up all keys and returns something that depends on all results.
type Pass<'a, K> = &'a dyn Fn(&[K]) -> u64;

/// Measures twice: with criterion, and as the best of a few rounds taken in turn. On a machine with
/// other load, only the latter gives repeatable ratios.
pub(crate) fn lookups<A: Bits>(criterion: &mut Criterion) {
    let any = any_keys::<A>(KEYS);
    for (layout, count) in SETS {
        let prefixes = prefixes::<A>(layout, count);
        let covered = covered_keys(&prefixes, KEYS);
        let Ok(map) = Lpm::new(numbered(&prefixes)) else { return };
        let trie = A::trie(&prefixes);
        let tree = A::tree(&prefixes);
        let contestants: [(&str, Pass<'_, A::Key>); 4] = [
            ("each", &|keys| each::<A>(&map, keys)),
            ("one", &|keys| sum(keys, |key| map.get(A::key_to_address(key)).copied())),
            ("prefix-trie", &|keys| sum(keys, |key| Some(*trie.get_lpm(&A::key_to_net(key))?.1))),
            ("treebitmap", &|keys| sum(keys, |key| Some(*tree.longest_match(key)?.2))),
        ];

        println!(
            "{} {layout} {count}: {:.1} bytes of index for each prefix",
            A::NAME,
            f64::from(to_u32(map.index_bytes())) / f64::from(to_u32(count))
        );
        for (name, keys) in [("any", &any), ("covered", &covered)] {
            let [each, one, trie, tree] = contestants.map(|(_, pass)| best_round(pass, keys));
            println!(
                "  {name:<8} each {each:.1} ns, one {one:.1} ns, prefix-trie {trie:.1} ns, \
                 treebitmap {tree:.1} ns: {:.1} times the best of the others",
                trie.min(tree) / each
            );
            let mut group =
                criterion.benchmark_group(format!("{} {layout} {count} {name}", A::NAME));
            group.throughput(Throughput::Elements(to_u32(keys.len()).into()));
            group.sample_size(10).measurement_time(Duration::from_millis(700));
            group.warm_up_time(Duration::from_millis(200));
            for (contestant, pass) in contestants {
                group.bench_function(contestant, |b| b.iter(|| pass(black_box(keys))));
            }
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

/// The shortest time of a lookup, in ns, over rounds with different keys.
fn best_round<K>(pass: Pass<'_, K>, keys: &[K]) -> f64 {
    let mut best = f64::MAX;
    for round in keys.chunks(KEYS_PER_ROUND).cycle().take(3 * KEYS / KEYS_PER_ROUND) {
        let before = Instant::now();
        black_box(pass(black_box(round)));
        best = best.min(before.elapsed().as_secs_f64() * 1e9 / f64::from(to_u32(round.len())));
    }

    best
}

fn each<A: Bits>(map: &Lpm<u32>, keys: &[A::Key]) -> u64 {
    let (batches, _) = keys.as_chunks::<16>();
    let mut sum = 0u64;
    for batch in batches {
        for found in A::each(map, batch) {
            sum = sum.wrapping_add(found.map_or(1, |value| u64::from(*value)));
        }
    }

    sum
}

fn sum<K: Copy>(keys: &[K], lookup: impl Fn(K) -> Option<u32>) -> u64 {
    keys.iter().map(|key| lookup(*key).map_or(1, u64::from)).fold(0, u64::wrapping_add)
}

fn numbered<A: Bits>(prefixes: &[(A, u8)]) -> Vec<(Prefix, u32)> {
    prefixes.iter().filter_map(|prefix| to_prefix(*prefix)).zip(0..).collect()
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
