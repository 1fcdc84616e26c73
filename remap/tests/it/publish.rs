//! One writer, many readers: a batch never sees two generations, and no reader waits.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use strait_remap::{Cluster, PeerId, Prefix, Rule, Table, channel};

const GENERATIONS: u64 = 2_000;
const READERS: usize = 4;

/// Generation `n` remaps all prefixes to `n`, so differing rules in a table show a mix of generations.
#[test]
fn readers_see_whole_generations_in_order() {
    let (mut publisher, reader) = channel(table(0));
    let is_done = AtomicBool::new(false);

    thread::scope(|scope| {
        for _ in 0..READERS {
            let mut reader = reader.clone();
            let is_done = &is_done;
            scope.spawn(move || {
                let mut last = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let table = reader.load();
                    assert!(table.generation() >= last, "went back from {last}");
                    last = table.generation();
                    assert_is_whole(table);
                }
                assert_eq!(reader.load().generation(), GENERATIONS);
            });
        }

        for generation in 1..=GENERATIONS {
            publisher.publish(table(generation));
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// The build of each large table waits in the middle until each reader has finished a hundred more
/// batches. A reader that waited for the build would deadlock.
#[test]
fn large_publications_never_block_readers() {
    const RULES: u32 = 100_000;
    const LARGE_GENERATIONS: u64 = 3;
    let (mut publisher, reader) = channel(large_table(0, RULES, || ()));
    let batches: [AtomicU64; 8] = Default::default();
    let is_done = AtomicBool::new(false);

    thread::scope(|scope| {
        for batches in &batches {
            let mut reader = reader.clone();
            let is_done = &is_done;
            scope.spawn(move || {
                let mut last = 0;
                let mut n = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let table = reader.load();
                    assert!(table.generation() >= last, "went back from {last}");
                    last = table.generation();
                    for _ in 0..16 {
                        n = (n + 7_919) % RULES;
                        assert_eq!(remapped(table, n), Some(expected(last, n)));
                    }
                    batches.fetch_add(1, Ordering::Relaxed);
                    // There may be fewer cores than threads: the publisher must run, too.
                    thread::yield_now();
                }
                assert_eq!(reader.load().generation(), LARGE_GENERATIONS);
            });
        }

        for generation in 1..=LARGE_GENERATIONS {
            let table = large_table(generation, RULES, || wait_for_batches(&batches, 100));
            publisher.publish(table);
            wait_for_batches(&batches, 2);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn batch_keeps_its_generation() {
    let (mut publisher, mut reader) = channel(table(1));

    let batch = reader.load();
    for generation in 2..=5 {
        publisher.publish(table(generation));
    }

    assert_eq!(batch.generation(), 1);
    assert_is_whole(batch);
    assert_eq!(reader.load().generation(), 5);
}

/// Waits until every reader has finished `more` batches from now on.
fn wait_for_batches(batches: &[AtomicU64], more: u64) {
    let before: Vec<u64> = batches.iter().map(|count| count.load(Ordering::Relaxed)).collect();

    for (count, before) in batches.iter().zip(before) {
        while count.load(Ordering::Relaxed) < before + more {
            thread::yield_now();
        }
    }
}

/// Host maps, whose real addresses depend on the generation. `in_the_middle` runs between two rules.
fn large_table(generation: u64, rules: u32, in_the_middle: impl Fn()) -> Table {
    let host = |bits: u32| Prefix::new(Ipv4Addr::from_bits(bits).into(), 32).unwrap();
    let rules = (0..rules).map(|n| {
        if n == rules / 2 {
            in_the_middle();
        }
        let IpAddr::V4(remote) = expected(generation, n) else { unreachable!("only IPv4 here") };
        (PeerId(n % 4), Rule::new(host(remote.to_bits()), host(0x0a00_0000 + n)).unwrap())
    });

    let (table, conflicts) = Table::build(generation, &Cluster::default(), rules);
    assert!(conflicts.is_empty());

    table
}

fn remapped(table: &Table, n: u32) -> Option<IpAddr> {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + n);

    Some(table.outbound(address.into())?.destination)
}

fn expected(generation: u64, n: u32) -> IpAddr {
    let network = 100 + u32::try_from(generation).unwrap();

    Ipv4Addr::from_bits((network << 24) + n).into()
}

fn assert_is_whole(table: &Table) {
    let third_octet = u8::try_from(table.generation() % 200).unwrap();

    for n in 0..8 {
        let address: IpAddr = [10, 71 + n, 0, 1].into();
        let found = table.outbound(address).unwrap();
        assert_eq!(found.destination, IpAddr::from([100 + n, third_octet, 0, 1]));
    }
}

fn table(generation: u64) -> Table {
    let third_octet = u8::try_from(generation % 200).unwrap();
    let prefix = |a, b| Prefix::new([a, b, 0, 0].into(), 16).unwrap();
    let rules = (0..8)
        .map(|n| (PeerId(0), Rule::new(prefix(100 + n, third_octet), prefix(10, 71 + n)).unwrap()));

    let (table, conflicts) = Table::build(generation, &Cluster::default(), rules);
    assert!(conflicts.is_empty());

    table
}
