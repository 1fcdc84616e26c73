//! Cost of a new generation for the packet threads that load it, and for the thread that publishes it.
//!
//! A gateway publishes table, allowed IPs and peers as one value. Every packet thread checks once a
//! batch for a new value, so `nothing new` is on the packet path; `lookup.rs` measures lookups beside
//! a publisher.

#![expect(clippy::expect_used, reason = "a benchmark may panic")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use remap::{Cluster, PeerId, Prefix, Rule, Table};
use strait_engine::Engine;
use strait_engine::PeerConfig;
use strait_wg::PrivateKey;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;

/// Readers of one publication: the cost of reading the clock is divided by their number.
const READERS: usize = 64;

fn follow(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish, load");
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    let (mut engine, peer) = engine();

    let mut reader = engine.forwarding.clone();
    group.bench_function("nothing new", |b| {
        b.iter(|| black_box(reader.load()).peers().len());
    });

    let mut readers = vec![engine.forwarding.clone(); READERS];
    let share = u32::try_from(READERS).expect("they are few");
    group.bench_function("a new generation", |b| {
        b.iter_custom(|iterations| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..iterations.div_ceil(share.into()) {
                engine.control.apply(vec![peer.clone()], Table::default());
                let start = Instant::now();
                for reader in &mut readers {
                    black_box(reader.load());
                }
                elapsed += start.elapsed();
            }
            let loads = iterations.next_multiple_of(share.into());
            let nanos = elapsed.as_nanos() * u128::from(iterations) / u128::from(loads).max(1);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
    });
}

/// From the finished table until it is in force and the previous one is freed.
fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish, apply");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));

    for rules in [1, 1_000, 100_000] {
        let (mut engine, peer) = engine();
        group.bench_function(format!("{rules} rules"), |b| {
            b.iter_batched(
                || (vec![peer.clone()], table(rules)),
                |(peers, table)| {
                    engine.control.apply(peers, table);
                    // A reader loads the new generation at once, so that the previous one can be freed.
                    black_box(engine.forwarding.load());
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// An engine, and a peer that is the same in each generation.
fn engine() -> (Engine, PeerConfig) {
    let [own, other] = [PrivateKey::generate(), PrivateKey::generate()];
    let keys = PeerKeys { public_key: other.public_key(), preshared_key: None };
    let engine = Engine::new(
        Arc::new(BoringtunIdentity::new(&own)),
        strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: Instant::now() },
    );
    let peer = PeerConfig {
        name: "peer".into(),
        keys,
        endpoints: Vec::new(),
        allowed_ips: Prefix::new([100, 0, 0, 0].into(), 8).into_iter().collect(),
        clamp_mtu: None,
        persistent_keepalive: None,
    };

    (engine.expect("1024 flows can be remembered"), peer)
}

fn table(rules: u32) -> Table {
    let host = |bits: u32| Prefix::new(Ipv4Addr::from_bits(bits).into(), 32);
    let rules = (0..rules).filter_map(|n| {
        let rule = Rule::new(host(0x6400_0000 | n).ok()?, host(0x0a00_0000 | n).ok()?);
        Some((PeerId(0), rule.ok()?))
    });

    Table::build(1, &Cluster::default(), rules).0
}

criterion_group!(benches, follow, apply);
criterion_main!(benches);
