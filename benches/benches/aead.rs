//! Sealing and opening: the datagrams of one frame, with and without lanes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use strait_aead::{Cipher, LANES, Lanes, Message, Nonce, Tags};

/// Number of messages and their length in bytes: small packets, MTU 1340, the whole frames of MTU 1500 and 8920.
const FRAMES: [(usize, usize); 10] = [
    (1, 96),
    (1, 512),
    (1, 1024),
    (1, 1344),
    (7, 1344),
    (16, 1344),
    (1, 2048),
    (1, 8928),
    (7, 8928),
    (16, 8928),
];

fn frames(criterion: &mut Criterion) {
    frames_in(criterion, Lanes::none());
    if Lanes::detect().is_some() {
        frames_in(criterion, Lanes::detect());
    }
}

fn frames_in(criterion: &mut Criterion, lanes: Lanes) {
    let mut group = criterion.benchmark_group(format!("aead, lanes {lanes:?}"));
    let cipher = Cipher::new(&[7; 32], lanes);
    for (count, len) in FRAMES {
        group.throughput(Throughput::Bytes(u64::try_from(count * len).unwrap_or_default()));
        let mut texts = vec![vec![0; len]; count];
        let name = format!("{count} x {len}");
        group.bench_function(BenchmarkId::new("seal", &name), |b| {
            b.iter(|| black_box(seal(&cipher, &mut texts)));
        });
        group.bench_function(BenchmarkId::new("open", &name), |b| {
            b.iter_batched_ref(
                || {
                    let tags = seal(&cipher, &mut texts);
                    (texts.clone(), tags)
                },
                |(texts, tags)| black_box(open(&cipher, texts, tags)),
                criterion::BatchSize::SmallInput,
            );
        });
    }
}

/// As sessions do it: at once, or one by one.
fn seal(cipher: &Cipher, texts: &mut [Vec<u8>]) -> Tags {
    if cipher.width(texts.len(), len(texts)) == LANES {
        return cipher.seal(&mut messages(texts));
    }
    let mut tags = Tags::default();
    for ((text, tag), number) in texts.iter_mut().zip(&mut tags).zip(0..) {
        *tag = cipher.seal_one(nonce(number), text);
    }

    tags
}

fn open(cipher: &Cipher, texts: &mut [Vec<u8>], tags: &Tags) -> bool {
    if cipher.width(texts.len(), len(texts)) == LANES {
        return cipher.open(&mut messages(texts), tags).iter().any(|is_authentic| *is_authentic);
    }

    texts
        .iter_mut()
        .zip(tags)
        .zip(0..)
        .all(|((text, tag), number)| cipher.open_one(nonce(number), text, *tag))
}

fn len(texts: &[Vec<u8>]) -> usize {
    texts.first().map_or(0, Vec::len)
}

fn messages(texts: &mut [Vec<u8>]) -> Vec<Message<'_>> {
    texts.iter_mut().zip(0..).map(|(text, number)| Message { nonce: nonce(number), text }).collect()
}

fn nonce(number: u8) -> Nonce {
    [number; 12]
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(700));
    targets = frames
}
criterion_main!(benches);
