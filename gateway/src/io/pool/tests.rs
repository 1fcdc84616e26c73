//! The lane with real threads against sealing as ever: the same datagrams, byte for byte, in the same order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use remap::{Cluster, Table};

use super::*;
use crate::engine::inbound::Received;
use crate::engine::{self, Engine, PeerConfig};
use crate::packet::ecn::Ecn;
use crate::packet::fixtures::noise;
use crate::packet::virtio::VirtioHeader;
use crate::wg::native::{Epoch, Surroundings};
use crate::wg::tunnel::PeerKeys;
use crate::wg::{self, PrivateKey};

/// A batch is sent when it holds this much.
const FLUSH_AT_BYTES: usize = 60 * 1024;

#[derive(Clone, Debug)]
enum Event {
    /// The device has a frame with so much payload, in segments of so much.
    Frame { payload: usize, segment: u16, seed: u64 },
    /// It has none.
    Pause,
}

/// The shortest segments are as long as `shortest`.
fn event(shortest: u16) -> impl Strategy<Value = Event> {
    let frame = |payload, segment| {
        (payload, segment, any::<u64>()).prop_map(|(payload, segment, seed)| Event::Frame {
            payload,
            segment,
            seed,
        })
    };

    prop_oneof![
        8 => frame(60_000..=65_000_usize, 1200..=1360_u16),
        // More datagrams than the kernel takes in one send.
        1 => frame(20_000..=65_000_usize, shortest..=600_u16),
        3 => frame(1..=1300_usize, 1360..=1360_u16),
        1 => Just(Event::Pause),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn workers_change_nothing_that_is_sent(
        events in vec(event(250), 1..60),
        workers in 1..=3_usize,
    ) {
        let (inline, _) = run(&events, 0);
        let (pooled, account) = run(&events, workers);

        prop_assert!(pooled.sent == inline.sent, "not the same datagrams in the same order");
        prop_assert_eq!(pooled.counters, inline.counters);
        prop_assert_eq!(pooled.peer, inline.peer);
        prop_assert!(account.worker_frames.get() <= u64::try_from(events.len()).unwrap());
    }

    /// Where a batch has no room for a frame the counters of what is left belong to nobody, and which those
    /// are depends on what else is in the batch.
    #[test]
    fn order_and_lengths_stay_where_a_frame_fills_a_batch(
        events in vec(event(16), 1..30),
        workers in 1..=3_usize,
    ) {
        let (inline, _) = run(&events, 0);
        let (pooled, _) = run(&events, workers);

        prop_assert_eq!(pooled.lengths(), inline.lengths());
        prop_assert!(pooled.sent.is_sorted_by_key(|(datagram, _)| counter(datagram)));
        prop_assert_eq!(pooled.counters, inline.counters);
        prop_assert_eq!(pooled.peer, inline.peer);
    }
}

#[test]
fn workers_do_their_part_of_a_backlog() {
    let event = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };

    let (_, account) = run(&vec![event; 400], 2);

    assert!(account.worker_frames.get() > 0);
}

#[test]
fn nobody_is_started_without_backlog() {
    let frame = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };
    let events: Vec<_> =
        (0..40).map(|n| if n % 5 == 4 { Event::Pause } else { frame.clone() }).collect();
    let start: Start<'_> = &|_| panic!("there is no backlog");

    run_with(&events, 4, start, &Arc::default());
}

#[test]
fn where_no_thread_is_to_be_had_everything_is_sealed_as_ever() {
    let frame = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };
    let events = vec![frame; 20];
    let start: Start<'_> = &|_| Err(io::ErrorKind::WouldBlock.into());

    let without = run_with(&events, 2, start, &Arc::default());

    assert_eq!(without.sent, run(&events, 0).0.sent);
}

#[test]
fn slots_keep_no_keys() {
    let mut slot = Slot::new();
    let [mut rome, _] = engines();
    let (virtio, len) = fill(&mut slot.frame, 64_000, 1340, 1);
    let mut job = None;
    let packet = &mut slot.frame.packet_mut()[..len];
    let mut out = TransmitBatch::default();
    let _ = rome.outbound.handle_backlog(&virtio, packet, now(), (&mut out, &mut job), |_| {});
    assert!(out.is_empty());
    slot.job = job;

    seal(&mut slot);

    assert!(slot.job.is_none() && slot.is_by_worker);
    assert_eq!(slot.batch.transmits().iter().map(|send| send.packets).sum::<u64>(), 48);
}

#[test]
fn workers_need_cores_to_spare() {
    let counts = [1, 2, 3, 4, 5, 6, 7, 8, 64].map(Workers::fitting);

    assert_eq!(counts, [0, 0, 0, 1, 1, 2, 2, 2, 2]);
    assert_eq!(Workers::Exactly(3).count(), 3);
}

/// What an outsider and the account see.
struct Outcome {
    sent: Vec<(Vec<u8>, SocketAddr)>,
    counters: crate::counters::Snapshot,
    peer: (u64, u64),
}

impl Outcome {
    fn lengths(&self) -> Vec<usize> {
        self.sent.iter().map(|(datagram, _)| datagram.len()).collect()
    }
}

fn counter(datagram: &[u8]) -> u64 {
    u64::from_le_bytes(datagram[8..16].try_into().unwrap())
}

fn run(events: &[Event], workers: usize) -> (Outcome, Arc<Counters>) {
    let account = Arc::default();
    let start: Start<'_> =
        &|mut worker| thread::Builder::new().spawn(move || while worker.work(seal) {});

    (run_with(events, workers, start, &account), account)
}

/// The loop of the outbound thread, with a device that has what `events` say.
fn run_with(
    events: &[Event],
    workers: usize,
    start: Start<'_>,
    account: &Arc<Counters>,
) -> Outcome {
    let [mut rome, _] = engines();
    let sent = std::cell::RefCell::new(Vec::new());
    let send = |batch: &mut TransmitBatch| {
        for transmit in batch.transmits() {
            let datagrams = batch.bytes(transmit).chunks(transmit.segment_bytes);
            sent.borrow_mut().extend(datagrams.map(|d| (d.to_vec(), transmit.outer.path.remote)));
            rome.control.accounts().handle_transmit(transmit, true);
        }
        batch.clear();
    };
    let mut sealers = Sealers::new(workers, Arc::clone(account), start);
    let (mut frame, mut batch) = (FrameBuffer::new(), TransmitBatch::default());

    for event in events {
        let Event::Frame { payload, segment, seed } = *event else {
            sealers.finish(send);
            sealers.rest();
            send(&mut batch);
            continue;
        };
        let (virtio, len) = fill(&mut frame, payload, segment, seed);
        let packet = &mut frame.packet_mut()[..len];
        let mut job = None;
        let disposition = if sealers.is_engaged() {
            let out = (&mut batch, &mut job);
            rome.outbound.handle_backlog(&virtio, packet, now(), out, |batch| {
                sealers.finish(send);
                send(batch);
            })
        } else {
            rome.outbound.handle_frame(&virtio, packet, now(), &mut batch, send)
        };
        assert_eq!(disposition, engine::outbound::Disposition::Taken);
        if let Some(job) = job {
            sealers.push(job, &mut frame, &mut batch, send);
        } else if batch.len() >= FLUSH_AT_BYTES {
            sealers.place(&mut batch, send);
        }
    }
    sealers.finish(send);
    send(&mut batch);
    drop(sealers);

    let current = rome.control.current();
    let peer = &current.peers()[0];
    Outcome {
        counters: rome.control.accounts().outbound.snapshot(),
        peer: (peer.transmit.packets.get(), peer.transmit.bytes.get()),
        sent: sent.into_inner(),
    }
}

/// Two engines with a session whose keys are the same every time.
fn engines() -> [Engine; 2] {
    let keys = [[1; 32], [2; 32]].map(|key| PrivateKey::from_bytes(&key).unwrap());
    let source = SocketAddr::from(([192, 0, 2, 1], 51840));
    let [mut rome, mut milan] = [(0, 1), (1, 0)].map(|(own, other)| {
        let next = AtomicU8::new(0);
        let surroundings = Surroundings {
            randomness: Arc::new(move |bytes| {
                bytes.fill_with(|| next.fetch_add(1, Ordering::Relaxed));
            }),
            epoch: Epoch::new(now(), Duration::from_secs(1)),
            mtu: 1400,
        };
        let identity = wg::Engine::Native.identity(&keys[own], &surroundings);
        let settings = engine::Settings { max_flows: 1024, seed: 7, start: now() };
        let mut engine = engine::new(identity, settings).unwrap();
        let peer = PeerConfig {
            name: "peer".into(),
            keys: PeerKeys {
                public_key: keys[other].public_key(),
                preshared_key: None,
                persistent_keepalive: None,
            },
            endpoints: vec![source],
            allowed_ips: ["10.244.0.0/16".parse().unwrap()].into(),
            clamp_mtu: None,
        };
        engine.control.apply(vec![peer], Table::build(1, &Cluster::default(), []).0);

        engine
    });

    let mut out = TransmitBatch::default();
    rome.control.current().peers()[0].tunnel.initiate(source.into(), &mut out, now());
    for to in [&mut milan, &mut rome] {
        let message = out.bytes(&out.transmits()[0]).to_vec();
        out.clear();
        to.handshakes.handle_message(&message, source.into(), now(), &mut out);
    }
    let keepalive = out.bytes(&out.transmits()[0]).to_vec();
    out.clear();
    let received = Received {
        bytes: &keepalive,
        stride: keepalive.len(),
        path: source.into(),
        ecn: Ecn::NotEct,
    };
    milan.inbound.handle_datagrams(received, now(), &mut out, |_, _| false);

    [rome, milan]
}

/// A TCP frame as TUN hands it over: the checksum holds the pseudo-header only. Gives its length.
fn fill(frame: &mut FrameBuffer, payload: usize, segment: u16, seed: u64) -> (VirtioHeader, usize) {
    let (source, destination) = ([10, 245, 1, 5], [10, 244, 2, 7]);
    let total_len = u16::try_from(40 + payload).unwrap();
    let mut bytes = vec![0x45, 0];
    bytes.extend(total_len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(source);
    bytes.extend(destination);
    let header_checksum = remap::checksum::complete(remap::checksum::sum(&bytes));
    bytes[10..12].copy_from_slice(&header_checksum.to_be_bytes());
    let pseudo = remap::checksum::pseudo_header(
        source.into(),
        destination.into(),
        6,
        u32::from(total_len) - 20,
    );
    bytes.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(noise(payload, seed));
    frame.packet_mut()[..bytes.len()].copy_from_slice(&bytes);

    let is_large = payload > usize::from(segment);
    let mut virtio = [0; 10];
    virtio[0] = 1; // NEEDS_CSUM
    virtio[1] = u8::from(is_large); // TCPV4
    virtio[2..4].copy_from_slice(&40u16.to_ne_bytes());
    virtio[4..6].copy_from_slice(&(if is_large { segment } else { 0 }).to_ne_bytes());
    virtio[6..8].copy_from_slice(&20u16.to_ne_bytes());
    virtio[8..10].copy_from_slice(&16u16.to_ne_bytes());

    (VirtioHeader::parse(&virtio).unwrap(), bytes.len())
}

/// Always the same.
#[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning of time")]
fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    *START.get_or_init(Instant::now)
}
