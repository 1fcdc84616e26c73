//! Cost of one packet from device to device without system calls, for two engines in memory:
//! outbound (remap, segment, seal) and inbound (open, check, remap, coalesce).

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use strait_benches::{frame, pair::Pair};
use strait_wg::Engine;
use strait_wg::native::Lanes;

const SEGMENTS: u16 = 47;

/// Segments of frames around the limit from which vector lanes pay off.
const FEW_SEGMENTS: [u16; 5] = [7, 8, 10, 12, 16];

/// Consecutive frames of one packet each: as many as one send takes.
const FRAMES: u16 = 64;

/// Payload of each of these frames.
const PAYLOAD_BYTES: u16 = 64;

fn directions(criterion: &mut Criterion) {
    directions_of(criterion, Engine::Boringtun, Lanes::none());
    directions_of(criterion, Engine::Native, Lanes::none());
    if Lanes::detect().is_some() {
        directions_of(criterion, Engine::Native, Lanes::detect());
    }
}

fn directions_of(criterion: &mut Criterion, implementation: Engine, lanes: Lanes) {
    let mut group = criterion.benchmark_group(format!("engine, {implementation}, lanes {lanes:?}"));
    let mut pair = Pair::established(implementation, lanes);
    let (virtio, frame) = frame::tcp(SEGMENTS);
    group.throughput(Throughput::Elements(SEGMENTS.into()));

    group.bench_function("outbound, one 64 KiB frame", |b| {
        b.iter_batched_ref(
            || frame.clone(),
            |frame| pair.outbound(&virtio, frame),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("outbound and inbound, one 64 KiB frame", |b| {
        b.iter_batched_ref(
            || frame.clone(),
            |frame| {
                pair.outbound(&virtio, frame);
                pair.inbound();
            },
            BatchSize::SmallInput,
        );
    });

    for segments in FEW_SEGMENTS {
        let (virtio, frame) = frame::tcp(segments);
        group.throughput(Throughput::Elements(segments.into()));
        group.bench_function(format!("outbound, one frame of {segments} packets"), |b| {
            b.iter_batched_ref(
                || frame.clone(),
                |frame| pair.outbound(&virtio, frame),
                BatchSize::SmallInput,
            );
        });
    }

    let (virtio, frame) = frame::udp(PAYLOAD_BYTES);
    let frames = vec![frame; FRAMES.into()];
    group.throughput(Throughput::Elements(FRAMES.into()));
    group.bench_function("outbound, 64 frames of 64 bytes", |b| {
        b.iter_batched_ref(
            || frames.clone(),
            |frames| pair.outbound_all(&virtio, frames.iter_mut().map(Vec::as_mut_slice)),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("outbound and inbound, 64 frames of 64 bytes", |b| {
        b.iter_batched_ref(
            || frames.clone(),
            |frames| {
                pair.outbound_all(&virtio, frames.iter_mut().map(Vec::as_mut_slice));
                pair.inbound();
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, directions);
criterion_main!(benches);
