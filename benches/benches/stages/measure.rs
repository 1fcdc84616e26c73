//! Time per packet of a stage that processes one frame at a time.

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};

/// Inputs prepared at a time: few, so that they are still in the cache when they are used.
const INPUTS: u64 = 16;

/// Benchmarks of one kind of frame.
pub(crate) struct Stages<'a> {
    group: BenchmarkGroup<'a, WallTime>,
    packets: u64,
}

impl<'a> Stages<'a> {
    /// For a frame of `packets` packets.
    pub(crate) fn new(criterion: &'a mut Criterion, name: &str, packets: u16) -> Self {
        let mut group = criterion.benchmark_group(format!("stages, {name}"));
        group.sample_size(20);
        group.warm_up_time(Duration::from_millis(200));
        group.measurement_time(Duration::from_millis(500));

        Self { group, packets: packets.into() }
    }

    /// Measures `stage` on the inputs that `prepare` makes. `stage` returns whether it succeeded.
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

                // Criterion counts packets as iterations; the loop processes whole frames.
                let nanos = elapsed.as_nanos() * u128::from(iterations)
                    / u128::from(frames * packets).max(1);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            });
        });
    }
}
