//! Cost of one packet before encryption: checksum, lookup, rewrite, segmentation.
//!
//! The cost of a rewrite must not depend on the length of the packet: 64 KiB cost as much as
//! 1,400 bytes.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use remap::{Cluster, PeerId, Prefix, Rule, Table, checksum};
use strait_benches::frame::{self, SEGMENT_BYTES};
use strait_packet::Header;
use strait_packet::ports::Side;
use strait_packet::rewrite;
use strait_packet::segment::Segments;

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    for len in [64, 1_400, 65_535] {
        let bytes = vec![0x5a; len];
        group.throughput(Throughput::Bytes(u64::try_from(len).unwrap_or_default()));
        group.bench_function(format!("sum {len} bytes"), |b| {
            b.iter(|| checksum::sum(black_box(&bytes)));
        });
    }
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    for rules in [1u32, 1_000, 100_000] {
        let table = table(rules);
        let mut host = 0u32;
        group.bench_function(format!("outbound, {rules} rules"), |b| {
            b.iter(|| {
                host = host.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let address = 0x0a00_0000 | ((host % rules) << 4) | (host >> 28);
                table.outbound(std::net::Ipv4Addr::from_bits(black_box(address)).into())
            });
        });
    }
}

fn rewrites(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rewrite");
    for segments in [1, 47] {
        let (virtio, mut frame) = frame::tcp(segments);
        let Ok(mut header) = Header::parse(&frame) else {
            return;
        };
        let checksum = virtio.checksum(&header);
        let names: [std::net::IpAddr; 2] = [[10, 71, 2, 7].into(), [10, 244, 2, 7].into()];
        let mut turn = 0usize;
        group.bench_function(format!("destination, {} bytes", frame.len()), |b| {
            b.iter(|| {
                turn ^= 1;
                let to = names.get(turn).copied().unwrap_or(header.destination());
                rewrite::address(
                    black_box(&mut frame),
                    &mut header,
                    Side::Destination,
                    to,
                    checksum,
                )
            });
        });
        group.bench_function(format!("parse, {} bytes", frame.len()), |b| {
            b.iter(|| Header::parse(black_box(&frame)));
        });
    }
}

fn segmentation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("segment");
    let (virtio, frame) = frame::tcp(47);
    group.throughput(Throughput::Elements(47));
    group.bench_function(format!("47 x {SEGMENT_BYTES} bytes"), |b| {
        b.iter_batched_ref(
            || frame.clone(),
            |frame| {
                let Ok(header) = Header::parse(frame) else { return 0 };
                let Ok(mut segments) = Segments::new(frame, &virtio, &header) else { return 0 };
                let mut bytes = 0;
                while let Some(segment) = segments.next_segment() {
                    bytes += black_box(segment).len();
                }
                bytes
            },
            BatchSize::SmallInput,
        );
    });
}

/// Rules of consecutive /28 prefixes from 10.0.0.0 on.
fn table(rules: u32) -> Table {
    let prefix =
        |base: u32, n: u32| Prefix::new(std::net::Ipv4Addr::from_bits(base | (n << 4)).into(), 28);
    let rules = (0..rules).filter_map(|n| {
        Some((
            PeerId(n % 16),
            Rule::new(prefix(0x6400_0000, n).ok()?, prefix(0x0a00_0000, n).ok()?).ok()?,
        ))
    });

    Table::build(1, &Cluster::default(), rules).0
}

criterion_group!(benches, sums, lookups, rewrites, segmentation);
criterion_main!(benches);
