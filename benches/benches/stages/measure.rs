//! Time per packet, of a stage that takes a frame at a time.

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};

/// Inputs made at a time. Few, so that they are still in the cache when their turn comes.
const INPUTS: u64 = 16;

/// Benchmarks of one kind of frame.
pub(crate) struct Stages<'a> {
    group: BenchmarkGroup<'a, WallTime>,
    packets: u64,
}

impl<'a> Stages<'a> {
    /// Of a frame of so many packets.
    pub(crate) fn new(criterion: &'a mut Criterion, name: &str, packets: u16) -> Self {
        let mut group = criterion.benchmark_group(format!("stages, {name}"));
        group.sample_size(20);
        group.warm_up_time(Duration::from_millis(200));
        group.measurement_time(Duration::from_millis(500));

        Self { group, packets: packets.into() }
    }

    /// Measures `stage`, which answers whether it did what it is for, on what `prepare` makes.
    pub(crate) fn measure<I>(
        &mut self,
        name: &str,
        mut prepare: impl FnMut() -> I,
        mut stage: impl FnMut(&mut I) -> bool,
    ) {
        let packets = self.packets;
        self.group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let frames = iterations.div_ceil(packets);
                let mut elapsed = Duration::ZERO;
                let mut left = frames;
                while left > 0 {
                    let count = left.min(INPUTS);
                    let mut inputs: Vec<I> = (0..count).map(|_| prepare()).collect();
                    let start = Instant::now();
                    let is_done = inputs.iter_mut().all(&mut stage);
                    elapsed += start.elapsed();
                    assert!(is_done, "{name} failed");
                    left -= count;
                }

                // An iteration is a packet, and whole frames were measured.
                let nanos = elapsed.as_nanos() * u128::from(iterations)
                    / u128::from(frames * packets).max(1);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            });
        });
    }
}
