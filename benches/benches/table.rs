//! Time to build a table of 100,000 rules, with and without rules that contradict each other.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use remap::{Cluster, PeerId, Prefix, Rule, Table};

const RULES: u32 = 100_000;

fn build(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.sample_size(20);

    for (name, peers, is_contradictory) in [
        ("build, one peer", 1, false),
        ("build, 1,000 peers", 1000, false),
        ("build, 1,000 peers, one rule in ten rejected", 1000, true),
    ] {
        let rules = rules(peers, is_contradictory);
        let cluster = Cluster { prefixes: prefix(0x0a46_0000, 16), ..Cluster::default() };
        group.bench_function(name, |b| {
            b.iter_batched(
                || rules.clone(),
                |rules| Table::build(1, &cluster, rules),
                BatchSize::LargeInput,
            );
        });
    }
}

/// Host maps in an order that does not help a sort.
fn rules(peers: u32, is_contradictory: bool) -> Vec<(PeerId, Rule)> {
    (0..RULES)
        .filter_map(|n| {
            let scattered = n.wrapping_mul(0x9e37_79b1) >> 8;
            let local = if is_contradictory && n % 10 == 0 { n / 10 % 8 } else { scattered };
            let remote = prefix(0x0b00_0000 | scattered, 32).pop()?;
            let local = prefix(0x6400_0000 | local, 32).pop()?;

            Some((PeerId(n % peers), Rule::new(remote, local).ok()?))
        })
        .collect()
}

fn prefix(bits: u32, len: u8) -> Vec<Prefix> {
    Prefix::new(std::net::IpAddr::V4(bits.into()), len).into_iter().collect()
}

criterion_group!(benches, build);
criterion_main!(benches);
