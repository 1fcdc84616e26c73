//! Cost of each stage of the engine, in time per packet.
//!
//! ```text
//!   outbound   parse ─▶ look up and rewrite ─▶ segment and seal
//!   inbound    open ─▶ parse ─▶ look up and rewrite ─▶ coalesce
//! ```
//!
//! Measured with a frame of 45 segments, which pass the first two stages as one packet, and with a
//! datagram of 64 bytes. Sealing includes segmentation, so `segment` is also shown alone. Rewriting
//! includes the restoration of the old headers. `engine.rs` measures whole directions.

#![expect(clippy::expect_used, reason = "a benchmark may panic")]

mod stages {
    pub(crate) mod measure;
}

use std::hint::black_box;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use remap::PeerId;
use strait_benches::{frame, pair::Pair};
use strait_engine::flows::FlowAccess;
use strait_engine::translate::{self, Context};
use strait_engine::{Engine, Forwarding};
use strait_packet::Header;
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::coalesce::{Coalescer, Merge};
use strait_packet::ecn::Ecn;
use strait_packet::segment::Segments;
use strait_packet::virtio::VirtioHeader;
use strait_wg::Peer;
use strait_wg::native::Lanes;

use stages::measure::Stages;

const SEGMENTS: u16 = 45;
const PAYLOAD_BYTES: u16 = 64;

/// Bytes that are restored before a rewrite: the headers, and for UDP some payload.
const HEADER_BYTES: usize = 40;

/// Capacity for the packets or the datagrams of one frame.
const BATCH_BYTES: usize = 128 * 1024;

fn stages(criterion: &mut Criterion) {
    let pair = Pair::established(strait_wg::Engine::default(), Lanes::detect());

    for (name, packets, (virtio, frame)) in [
        ("45 segments", SEGMENTS, frame::tcp(SEGMENTS)),
        ("64 bytes", 1, frame::udp(PAYLOAD_BYTES)),
    ] {
        let mut stages = Stages::new(criterion, name, packets);
        let rewritten = outbound(&mut stages, pair.rome(), &virtio, &frame);
        let mut batch = TransmitBatch::with_capacity(BATCH_BYTES);
        let sealed = || seal(&mut batch, pair.rome(), &virtio, &mut rewritten.clone());
        inbound(&mut stages, pair.milan(), sealed);
    }
}

/// Returns the frame as it is before segmentation.
fn outbound(
    stages: &mut Stages<'_>,
    gateway: &Engine,
    virtio: &VirtioHeader,
    frame: &[u8],
) -> Vec<u8> {
    let mut reader = gateway.forwarding.clone();
    let context = context(gateway, reader.load());
    let header = Header::parse(frame).expect("the frame is one");
    let checksum = virtio.checksum(&header);
    let headers = frame.get(..HEADER_BYTES).expect("the frame has headers").to_vec();
    let mut rewritten = frame.to_vec();

    stages.measure("outbound, parse", || (), |()| Header::parse(black_box(frame)).is_ok());
    let mut rewrite = || {
        restore(&mut rewritten, &headers);
        let mut header = header;
        translate::route(&context, &rewritten, &header).is_ok_and(|outgoing| {
            translate::outbound(&context, &outgoing, &mut rewritten, &mut header, checksum).is_ok()
        })
    };
    // Runs at least once: a filter may leave out the benchmark on whose result others depend.
    assert!(rewrite(), "there is a rule for the frame");
    stages.measure("outbound, look up and rewrite", || (), |()| rewrite());
    stages.measure(
        "outbound, segment",
        || rewritten.clone(),
        |frame| {
            let header = Header::parse(frame).expect("the frame is still one");
            let mut segments = Segments::new(frame, virtio, &header).expect("it can be cut");
            while let Some(segment) = segments.next_segment() {
                black_box(segment);
            }
            true
        },
    );
    let mut batch = TransmitBatch::with_capacity(BATCH_BYTES);
    let now = Instant::now();
    stages.measure(
        "outbound, segment and seal",
        || rewritten.clone(),
        |frame| seal_into(&mut batch, gateway, virtio, frame, now),
    );

    rewritten
}

/// `sealed` returns new datagrams and the length of each: a datagram must not be opened twice.
fn inbound(
    stages: &mut Stages<'_>,
    gateway: &Engine,
    mut sealed: impl FnMut() -> (Vec<u8>, usize),
) {
    const MERGE: Merge = Merge { tcp: true, udp: true };

    let mut reader = gateway.forwarding.clone();
    let context = context(gateway, reader.load());
    let peer = peer(context.forwarding);
    let slot = peer.tunnel.current().slot;
    let mut packets = PacketBatch::with_capacity(BATCH_BYTES, usize::from(SEGMENTS));
    let now = Instant::now();

    let mut open = |(datagrams, stride): &mut (Vec<u8>, usize)| {
        packets.clear();
        peer.tunnel.open(slot, datagrams, *stride, &mut packets, now).packets > 0
    };
    assert!(open(&mut sealed()), "there is a session");
    stages.measure("inbound, open", sealed, open);

    let opened: Vec<(Range<usize>, Header, Vec<u8>)> = packets
        .packets()
        .iter()
        .map(|range| {
            let packet = packets.bytes().get(range.clone()).expect("it is in the batch");
            let header = Header::parse(packet).expect("it is a packet");
            let headers = packet.get(..HEADER_BYTES).expect("it has headers");
            (range.clone(), header, headers.to_vec())
        })
        .collect();
    let mut arena = packets.bytes().to_vec();
    stages.measure(
        "inbound, parse",
        || (),
        |()| {
            opened.iter().all(|(range, ..)| {
                Header::parse(black_box(arena.get(range.clone()).unwrap_or_default())).is_ok()
            })
        },
    );
    let mut rewritten: Vec<Header> = Vec::with_capacity(opened.len());
    let mut rewrite = || {
        rewritten.clear();
        opened.iter().all(|(range, header, headers)| {
            let packet = arena.get_mut(range.clone()).unwrap_or_default();
            restore(packet, headers);
            let mut header = *header;
            let result = translate::inbound(&context, PeerId(0), peer, packet, &mut header);
            rewritten.push(header);
            result.is_ok()
        })
    };
    assert!(rewrite(), "there is a rule for the packets");
    stages.measure("inbound, look up and rewrite", || (), |()| rewrite());

    let mut coalescer = Coalescer::new();
    stages.measure(
        "inbound, coalesce",
        || (),
        |()| {
            coalescer.clear();
            let is_taken = opened.iter().zip(&rewritten).all(|((range, ..), header)| {
                coalescer.push(black_box(&arena), range.clone(), header, MERGE)
            });
            is_taken && coalescer.frames().count() == 1
        },
    );
}

fn context<'a>(gateway: &'a Engine, forwarding: &'a Forwarding) -> Context<'a> {
    let now = gateway.flows.tick(Instant::now());

    Context { forwarding, flows: &gateway.flows, flow_access: FlowAccess::Update, now }
}

/// The only peer.
fn peer(forwarding: &Forwarding) -> &Peer {
    forwarding.peer(PeerId(0)).expect("a pair knows each other")
}

fn restore(packet: &mut [u8], headers: &[u8]) {
    packet.get_mut(..headers.len()).expect("it is as long as before").copy_from_slice(headers);
}

/// The datagrams of a frame, and the length of each datagram but the last.
fn seal(
    batch: &mut TransmitBatch,
    gateway: &Engine,
    virtio: &VirtioHeader,
    frame: &mut [u8],
) -> (Vec<u8>, usize) {
    assert!(seal_into(batch, gateway, virtio, frame, Instant::now()), "there is a session");
    let transmit = batch.transmits().first().expect("the frame was sealed");

    (batch.bytes(transmit).to_vec(), transmit.segment_bytes)
}

fn seal_into(
    batch: &mut TransmitBatch,
    gateway: &Engine,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    now: Instant,
) -> bool {
    batch.clear();
    let header = Header::parse(frame).expect("the frame is one");
    let mut segments = Segments::new(frame, virtio, &header).expect("it can be cut");
    let outer = Outer::data(SocketAddr::from(([192, 0, 2, 1], 51840)), Ecn::NotEct);
    let mut reader = gateway.forwarding.clone();

    peer(reader.load()).tunnel.seal(&mut segments, outer, batch, now).packets > 0
        && segments.next_len().is_none()
}

criterion_group!(benches, stages);
criterion_main!(benches);
