//! Latency of readers while one thread builds and publishes tables of 100,000 rules at full speed.
//!
//! On a machine with few cores the builder takes time from the reader, and the longest batches show
//! the scheduler. Therefore the same builder also runs without publishing: the difference between
//! the two runs is the cost of publishing.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remap::{Cluster, PeerId, Prefix, Publisher, Reader, Rule, Table, channel};

use super::prefixes::Random;

const RULES: u32 = 100_000;
const BATCH: usize = 16;
const DURATION: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Idle,
    Builds,
    BuildsAndPublishes,
}

pub(crate) fn report() {
    println!("batches of one load and {BATCH} lookups among {RULES} rules, in ns:");
    for (name, writer) in [
        ("no thread builds", Writer::Idle),
        ("another thread builds", Writer::Builds),
        ("another thread builds and publishes", Writer::BuildsAndPublishes),
    ] {
        let (mut publisher, mut reader) = channel(table(0));
        let is_done = AtomicBool::new(false);
        let (batches, generations) = thread::scope(|scope| {
            let writing = scope.spawn(|| write(&mut publisher, writer, &is_done));
            let batches = read(&mut reader);
            is_done.store(true, Ordering::Relaxed);
            (batches, writing.join().unwrap_or_default())
        });
        println!("  {name:<36} {} ({generations} tables)", quantiles(batches));
    }

    println!("the first load after a publication, in ns: {}", quantiles(first_loads()));
}

/// Builds tables until `is_done`; returns their number.
fn write(publisher: &mut Publisher<Table>, writer: Writer, is_done: &AtomicBool) -> u64 {
    let mut generation = 0;
    while writer != Writer::Idle && !is_done.load(Ordering::Relaxed) {
        generation += 1;
        let table = black_box(table(generation));
        if writer == Writer::BuildsAndPublishes {
            publisher.publish(table);
        }
    }

    generation
}

/// The duration of each batch, in ns.
fn read(reader: &mut Reader<Table>) -> Vec<u64> {
    let mut random = Random(1);
    let mut batches = Vec::with_capacity(1 << 24);
    let begin = Instant::now();
    let mut batch = begin;
    while batch.duration_since(begin) < DURATION && batches.len() < batches.capacity() {
        let addresses: [IpAddr; BATCH] = std::array::from_fn(|_| address(&mut random));
        batch = Instant::now();
        let table = reader.load();
        for address in addresses {
            black_box(table.outbound(address));
        }
        batches.push(u64::try_from(batch.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    batches
}

/// The duration of each load that finds a new table, in ns.
fn first_loads() -> Vec<u64> {
    let (mut publisher, mut reader) = channel(table(0));

    (1..=200)
        .map(|generation| {
            // Only the load is measured, so the tables are small.
            publisher.publish(Table::build(generation, &Cluster::default(), []).0);
            let before = Instant::now();
            black_box(reader.load());
            u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX)
        })
        .collect()
}

fn quantiles(mut durations: Vec<u64>) -> String {
    durations.sort_unstable();
    let at = |per_mille: usize| durations.get(durations.len() * per_mille / 1_000).copied();
    let [p50, p99, p999] = [500, 990, 999].map(|per_mille| at(per_mille).unwrap_or_default());

    format!("p50 {p50}, p99 {p99}, p99.9 {p999}")
}

fn table(generation: u64) -> Table {
    let host = |bits: u32| Prefix::new(Ipv4Addr::from_bits(bits).into(), 32);
    let rules = (0..RULES).filter_map(|n| {
        let rule = Rule::new(host(0x6400_0000 | n).ok()?, host(0x0a00_0000 | n).ok()?);
        Some((PeerId(n % 16), rule.ok()?))
    });

    Table::build(generation, &Cluster::default(), rules).0
}

fn address(random: &mut Random) -> IpAddr {
    let n = random.below(usize::try_from(RULES).unwrap_or_default());

    Ipv4Addr::from_bits(0x0a00_0000 | u32::try_from(n).unwrap_or_default()).into()
}
