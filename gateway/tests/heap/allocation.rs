//! The hot path allocates nothing: counted, not promised.
//!
//! Two engines in memory complete a handshake; then offload frames of 64 KiB go through both
//! directions and the allocator is asked how often it was called.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remap::{Cluster, PeerId, Rule, Table, checksum};
use strait_engine::inbound::{Received, each_frame};
use strait_engine::outbound::Disposition;
use strait_engine::{Engine, PeerConfig};
use strait_packet::buffer::{Transmit, TransmitBatch};
use strait_packet::ecn::Ecn;
use strait_packet::virtio::{VIRTIO_LEN, VirtioHeader};
use strait_wg::Epoch;
use strait_wg::native::Environment;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{OpenedRun, PrivateKey};

use crate::Count;

/// The thread of the test harness allocates too, when it gets to it: not in every round.
const ROUNDS: usize = 5;

/// TCP payload of one segment: the MTU of 1340 less 40 of headers.
const SEGMENT_BYTES: u16 = 1300;

#[test]
fn frames_cross_both_directions_without_an_allocation() {
    let _count = Count::start();

    for implementation in strait_wg::Engine::ALL {
        carries_without_an_allocation(implementation);
    }
}

fn carries_without_an_allocation(implementation: strait_wg::Engine) {
    let [mut rome, mut milan] = engines(implementation);
    let mut batch = TransmitBatch::default();
    let mut replies = TransmitBatch::default();
    establish(&mut rome, &mut milan);
    let (virtio, frame) = tcp_frame();
    let mut scratch = frame.clone();
    let mut worker = Worker::new();

    carry(&mut rome, &mut milan, &virtio, &mut scratch, &mut batch, &mut replies);
    let allocations = (0..ROUNDS).map(|_| {
        let before = dhat::HeapStats::get().total_blocks;
        for _ in 0..100 {
            scratch.copy_from_slice(&frame);
            carry(&mut rome, &mut milan, &virtio, &mut scratch, &mut batch, &mut replies);
            if implementation == strait_wg::Engine::Native {
                scratch.copy_from_slice(&frame);
                worker.carry(&mut rome, &mut milan, &virtio, &mut scratch);
            }
        }
        let nowhere = tell(&mut rome, &virtio, &mut scratch, &frame, &mut batch);
        assert_eq!(nowhere, Disposition::Reply);

        dhat::HeapStats::get().total_blocks - before
    });

    let fewest = allocations.min();

    dhat::assert_eq!(fewest, Some(0), "{implementation}");
    let account = milan.control.accounts().inbound.snapshot();
    dhat::assert!(account.packets_out > 100 * 45, "the frames did arrive: {account:?}");
    let is_left = implementation == strait_wg::Engine::Native;
    dhat::assert!(!is_left || worker.opened > 100, "nothing was left to others");
}

/// What a worker has: the frame is sealed and opened there.
struct Worker {
    batch: TransmitBatch,
    replies: TransmitBatch,
    buffer: Vec<u8>,
    run: OpenedRun,
    opened: u32,
}

impl Worker {
    fn new() -> Self {
        Self {
            batch: TransmitBatch::default(),
            replies: TransmitBatch::default(),
            buffer: vec![0; 1 << 16],
            run: OpenedRun::with_capacity(128),
            opened: 0,
        }
    }

    fn carry(
        &mut self,
        from: &mut Engine,
        to: &mut Engine,
        virtio: &VirtioHeader,
        frame: &mut [u8],
    ) {
        let Self { batch, replies, buffer, run, opened } = self;
        let mut job = None;
        let now = now();
        let disposition =
            from.outbound.handle_backlog(virtio, frame, now, batch, &mut job).disposition();
        assert_eq!(disposition, Disposition::Taken);
        job.unwrap().seal(frame, batch);

        for transmit in batch.transmits() {
            let received = received(batch, transmit);
            buffer[..received.bytes.len()].copy_from_slice(received.bytes);
            let job = to.inbound.handle_backlog(&received, now).unwrap();
            job.open(buffer, run);
            let mut sink = each_frame(|frame, _, accounts| {
                accounts.handle_frame(u64::try_from(frame.packet_count()).unwrap(), 0, true);
            });
            to.inbound.handle_opened(job, buffer, run, now, replies, &mut sink);
            *opened += 1;
        }
        batch.clear();
    }
}

/// One frame out of `from` and into `to`, as the threads would carry it.
fn carry(
    from: &mut Engine,
    to: &mut Engine,
    virtio: &VirtioHeader,
    frame: &mut [u8],
    batch: &mut TransmitBatch,
    replies: &mut TransmitBatch,
) {
    let now = now();
    let disposition = from.outbound.handle_frame(virtio, frame, now, batch).disposition();
    assert_eq!(disposition, Disposition::Taken);

    for transmit in batch.transmits() {
        to.inbound.handle_datagrams(received(batch, transmit), now, replies, |_, _| false);
    }
    to.inbound.drain(|frame, _, accounts| {
        accounts.handle_frame(u64::try_from(frame.packet_count()).unwrap(), 0, true);
    });
    batch.clear();
}

/// A send as it arrives.
fn received<'a>(batch: &'a TransmitBatch, transmit: &Transmit) -> Received<'a> {
    Received {
        bytes: batch.bytes(transmit),
        stride: transmit.segment_bytes,
        path: SocketAddr::from(([192, 0, 2, 1], 51840)).into(),
        ecn: Ecn::NotEct,
    }
}

/// One frame to an address without a peer.
fn tell(
    from: &mut Engine,
    virtio: &VirtioHeader,
    scratch: &mut [u8],
    frame: &[u8],
    batch: &mut TransmitBatch,
) -> Disposition {
    scratch.copy_from_slice(frame);
    scratch[16..20].copy_from_slice(&[10, 99, 0, 1]);

    from.outbound.handle_frame(virtio, scratch, now(), batch).disposition()
}

fn engines(implementation: strait_wg::Engine) -> [Engine; 2] {
    let environment = Environment::new(Epoch::new(now(), Duration::ZERO), 1340);
    let keys = [PrivateKey::generate(), PrivateKey::generate()];

    [(0, 1), (1, 0)].map(|(own, other)| {
        let mut engine = Engine::new(
            implementation.identity(&keys[own], &environment),
            strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now() },
        )
        .unwrap();
        let remote = "10.244.0.0/16".parse().unwrap();
        let rule = Rule::new(remote, "10.71.0.0/16".parse().unwrap()).unwrap();
        let peer = PeerConfig {
            name: "peer".into(),
            keys: PeerKeys { public_key: keys[other].public_key(), preshared_key: None },
            endpoints: vec![SocketAddr::from(([192, 0, 2, 1], 51840))],
            allowed_ips: [remote].into(),
            clamp_mtu: None,
            persistent_keepalive: None,
        };
        engine
            .control
            .apply(vec![peer], Table::build(1, &Cluster::default(), [(PeerId(0), rule)]).0);

        engine
    })
}

/// A handshake of three messages: initiation, response, keepalive.
fn establish(rome: &mut Engine, milan: &mut Engine) {
    let source = SocketAddr::from(([192, 0, 2, 1], 51840));
    let mut batch = TransmitBatch::default();
    rome.handshakes.handle_timeout(now()).fill(&mut batch);

    for to in [&mut *milan, &mut *rome] {
        let message = batch.bytes(&batch.transmits()[0]).to_vec();
        batch.clear();
        to.handshakes.handle_message(&message, source.into(), now(), &mut batch);
    }
    let keepalive = batch.bytes(&batch.transmits()[0]).to_vec();
    batch.clear();
    let received = Received {
        bytes: &keepalive,
        stride: keepalive.len(),
        path: source.into(),
        ecn: Ecn::NotEct,
    };
    milan.inbound.handle_datagrams(received, now(), &mut batch, |_, _| false);
}

/// A TCP frame of 47 segments, as TUN hands it over: the checksum holds the pseudo header only.
fn tcp_frame() -> (VirtioHeader, Vec<u8>) {
    let payload_len = 47 * usize::from(SEGMENT_BYTES);
    let total_len = u16::try_from(40 + payload_len).unwrap();
    let (source, destination) = ([10, 244, 1, 5], [10, 71, 2, 7]);

    let mut frame = vec![0x45, 0];
    frame.extend(total_len.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    let header_checksum = checksum::complete(checksum::sum(&frame));
    frame[10..12].copy_from_slice(&header_checksum.to_be_bytes());
    let pseudo =
        checksum::pseudo_header(source.into(), destination.into(), 6, u32::from(total_len) - 20);
    frame.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(40 + payload_len, 0x5a);

    let mut virtio = [0; VIRTIO_LEN];
    virtio[0] = 1; // NEEDS_CSUM
    virtio[1] = 1; // TCPV4
    virtio[2..4].copy_from_slice(&40u16.to_ne_bytes());
    virtio[4..6].copy_from_slice(&SEGMENT_BYTES.to_ne_bytes());
    virtio[6..8].copy_from_slice(&20u16.to_ne_bytes());
    virtio[8..10].copy_from_slice(&16u16.to_ne_bytes());

    (VirtioHeader::parse(&virtio).unwrap(), frame)
}

#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
fn now() -> Instant {
    Instant::now()
}
