//! Cost of masquerading: packets of live mappings, new mappings, and memory.
//!
//! Goals: 10 M packets/s on one core, 1 M new mappings/s, 1,000,000 live mappings within 128 MiB.
//! The working set is every mapping: packets visit all of them in random order, so consecutive
//! packets never share a mapping. That is worse for the caches than real traffic. The tables have
//! room for 1,000,000 mappings in either case.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use remap::masquerade::{
    Endpoint, Flow, Limits, Masquerade, Pool, Protocol, Signal, Tick, Timeouts,
};

const REALM: u32 = 1;
const LIVE: [u32; 2] = [10_000, 1_000_000];
/// As many sources as a large cluster has nodes.
const NODES: u32 = 1_000;

fn established(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("masquerade, established");
    group.throughput(Throughput::Elements(1));

    for live in LIVE {
        let (masquerade, pool) = (masquerade(), pool());
        let flows = shuffled((0..live).map(flow).collect());
        let replies: Vec<_> = flows
            .iter()
            .map(|flow| {
                let now = Tick::default();
                let external = masquerade.outbound(REALM, flow, Signal::Syn, &pool, now)?;
                let reply = Flow { source: flow.destination, destination: external, ..*flow };
                let _established = masquerade.inbound(REALM, &reply, Signal::Syn, now);
                Ok::<_, remap::masquerade::Refused>(reply)
            })
            .collect::<Result<_, _>>()
            .unwrap_or_default();
        assert_eq!(replies.len(), flows.len(), "the pool and the limits are large enough");
        report_memory(&masquerade, live);

        let now = Tick::from_secs(1);
        let mut round = flows.iter().cycle();
        group.bench_function(format!("outbound, {live} live"), |b| {
            b.iter(|| {
                let flow = round.next();
                flow.map(|flow| masquerade.outbound(REALM, flow, Signal::Data, &pool, now))
            });
        });
        let mut round = replies.iter().cycle();
        group.bench_function(format!("inbound, {live} live"), |b| {
            b.iter(|| {
                let reply = round.next();
                reply.map(|reply| masquerade.inbound(REALM, reply, Signal::Data, now))
            });
        });
    }
}

/// Fills an empty table completely, so that the cost of growing the table is included.
fn created(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("masquerade, new");
    group.sample_size(10);

    for live in LIVE {
        let pool = pool();
        group.throughput(Throughput::Elements(live.into()));
        group.bench_function(format!("{live} mappings"), |b| {
            b.iter_custom(|fills| {
                let mut elapsed = Duration::ZERO;
                for _ in 0..fills {
                    let masquerade = masquerade();
                    let start = Instant::now();
                    for n in 0..live {
                        let new = flow(n);
                        let mapped =
                            masquerade.outbound(REALM, &new, Signal::Syn, &pool, Tick::default());
                        assert!(black_box(mapped).is_ok());
                    }
                    elapsed += start.elapsed();
                }
                elapsed
            });
        });
    }
}

#[expect(clippy::print_stdout, reason = "memory is a result of this benchmark too")]
fn report_memory(masquerade: &Masquerade, live: u32) {
    let (used, most) = (masquerade.memory_bytes(), masquerade.max_memory_bytes());
    assert!(used <= most && most <= 128 << 20);
    println!(
        "{live} live mappings: {} KiB, at most {} KiB; resident set {} KiB",
        used >> 10,
        most >> 10,
        resident_kib().unwrap_or_default()
    );
}

/// The resident memory of the process, including the flows to replay.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;

    line.split_whitespace().next()?.parse().ok()
}

/// Shuffles with a fixed seed.
fn shuffled(mut flows: Vec<Flow>) -> Vec<Flow> {
    let mut random = 1u32;
    for last in (1..flows.len()).rev() {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let other = (u64::from(random) * u64::try_from(last + 1).unwrap_or_default()) >> 32;
        flows.swap(last, usize::try_from(other).unwrap_or_default());
    }

    flows
}

/// Flow number `n`. Ports follow the order in which Linux allocates them; every node has all of them.
fn flow(n: u32) -> Flow {
    let port = u16::try_from(1_024 + n / NODES).unwrap_or(u16::MAX);
    let address = |bits: u32| IpAddr::V4(Ipv4Addr::from_bits(bits));

    Flow {
        protocol: Protocol::Tcp,
        source: Endpoint::new(address(0xc0a8_0000 + n % NODES), port),
        destination: Endpoint::new(address(0x0af4_0000 + n % 4_096), 443),
    }
}

/// Twice the 16 addresses that a million mappings need: each has 64,512 ports above 1023 within a
/// realm and protocol. A nearly exhausted pool is not measured here.
fn pool() -> Pool {
    (0..32).map(|n| IpAddr::V4(Ipv4Addr::new(10, 70, 0, n))).collect()
}

fn masquerade() -> Masquerade {
    let limits = Limits { max_mappings: 1_000_000, max_per_source: 100_000, ..Limits::DEFAULT };
    let Ok(masquerade) = Masquerade::new(limits, Timeouts::DEFAULT, 0x5eed) else {
        unreachable!("these limits are allowed");
    };

    masquerade
}

criterion_group!(benches, established, created);
criterion_main!(benches);
