//! One writer, many readers: a batch never sees two generations, and no reader waits.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use strait_remap::{Cluster, PeerId, Prefix, Rule, Table, channel};

const GENERATIONS: u64 = 2_000;
const READERS: usize = 4;

/// Generation `n` remaps everything to `n`, so a table whose rules disagree is a mixed one.
#[test]
fn a_reader_sees_whole_generations_in_order() {
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
