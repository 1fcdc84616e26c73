//! Sealing with worker threads against sealing inline: the same datagrams, byte for byte, in the same order.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::outbound::Direction;
use crate::pool::fixtures::{engines, fill, now};
use crate::pool::work;
use crate::worker::Sink;
use strait_engine::Accounts;
use strait_engine::outbound::{Disposition, Unread};
use strait_packet::DropReason;

#[derive(Clone, Debug)]
enum Event {
    /// The device has a frame with `payload` bytes in segments of `segment` bytes.
    Frame { payload: usize, segment: u16, seed: u64 },
    /// The device has a frame that is no packet.
    Unreadable,
    /// The device has no frame.
    Pause,
}

/// Events whose segments have at least `shortest` bytes.
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
        1 => Just(Event::Unreadable),
        1 => Just(Event::Pause),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn workers_send_what_inline_sealing_sends(
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

    /// A batch that has no room for a whole frame leaves some reserved counters unused. Which ones depends on the
    /// other contents of the batch.
    #[test]
    fn workers_keep_order_in_full_batches(
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
fn workers_seal_part_of_a_backlog() {
    let event = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };

    let (_, account) = run(&vec![event; 400], 2);

    assert!(account.worker_frames.get() > 0);
}

#[test]
fn no_worker_starts_without_backlog() {
    let frame = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };
    let events: Vec<_> =
        (0..40).map(|n| if n % 5 == 4 { Event::Pause } else { frame.clone() }).collect();
    let start: Start<'_, SealSlot> = &|_| panic!("there is no backlog");

    run_with(&events, 4, start, &Arc::default());
}

#[test]
fn without_threads_all_is_sealed_inline() {
    let frame = Event::Frame { payload: 64_000, segment: 1340, seed: 1 };
    let events = vec![frame; 20];
    let start: Start<'_, SealSlot> = &|_| Err(io::ErrorKind::WouldBlock.into());

    let without = run_with(&events, 2, start, &Arc::default());

    assert_eq!(without.sent, run(&events, 0).0.sent);
}

/// A local sender can keep the device busy with such frames.
#[test]
fn undeliverable_frames_do_not_delay_sealed_ones() {
    for (payload, segment) in [(1000, 1360), (64_000, 1340)] {
        for workers in [0, 2] {
            let frame = Event::Frame { payload, segment, seed: 1 };
            let mut events = vec![frame; 40];
            events.extend(vec![Event::Unreadable; 16]);

            let (outcome, _) = run(&events, workers);

            assert_eq!(outcome.before_idle, outcome.sent.len(), "{payload}, {workers}");
        }
    }
}

#[test]
fn a_sealed_slot_keeps_no_keys() {
    let mut slot = SealSlot::new();
    let [mut rome, _] = engines();
    let (virtio, len) = fill(&mut slot.frame, 64_000, 1340, 1);
    let mut job = None;
    let packet = &mut slot.frame.packet_mut()[..len];
    let mut out = TransmitBatch::default();
    let _ = rome.outbound.handle_backlog(&virtio, packet, now(), &mut out, &mut job);
    assert!(out.is_empty());
    slot.job = job;

    slot.work();

    assert!(slot.job.is_none());
    assert_eq!(slot.batch.transmits().iter().map(|send| send.packets).sum::<u64>(), 48);
}

/// What is sent, and the counters.
struct Outcome {
    sent: Vec<(Vec<u8>, SocketAddr)>,
    /// How many of them were sent before the device had no frame.
    before_idle: usize,
    counters: strait_packet::counters::Snapshot,
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
    let start: Start<'_, SealSlot> =
        &|mut worker| thread::Builder::new().spawn(move || while worker.work(work) {});

    (run_with(events, workers, start, &account), account)
}

/// Records what is sent.
struct Wire {
    sent: RefCell<Vec<(Vec<u8>, SocketAddr)>>,
    accounts: Accounts,
}

impl Sink for Wire {
    fn send_first(&self, count: usize, batch: &mut TransmitBatch) {
        for transmit in batch.transmits().iter().take(count) {
            let datagrams = batch.bytes(transmit).chunks(transmit.segment_bytes);
            let sent = datagrams.map(|d| (d.to_vec(), transmit.outer.path.remote));
            self.sent.borrow_mut().extend(sent);
            self.accounts.handle_transmit(transmit, true);
        }
        batch.forget(count);
    }
}

/// The loop of the outbound thread, with a device that returns the frames of `events`.
fn run_with(
    events: &[Event],
    workers: usize,
    start: Start<'_, SealSlot>,
    account: &Arc<Counters>,
) -> Outcome {
    let [rome, _] = engines();
    let wire = Wire { sent: RefCell::default(), accounts: rome.control.accounts().clone() };
    let sealers = Sealers::new(workers, Arc::clone(account), start);
    let mut frame = FrameBuffer::new();
    let mut direction = Direction::new(rome.outbound, sealers, &wire);

    for event in events {
        match *event {
            Event::Frame { payload, segment, seed } => {
                let (virtio, len) = fill(&mut frame, payload, segment, seed);
                let disposition = direction.handle_frame(&virtio, &mut frame, len, now());
                assert_eq!(disposition, Disposition::Taken);
            }
            Event::Unreadable => direction.handle_unread(Unread::dropped(DropReason::Malformed, 0)),
            Event::Pause => {
                while direction.advance() {}
                direction.handle_idle();
            }
        }
    }
    let before_idle = wire.sent.borrow().len();
    direction.handle_idle();
    drop(direction);

    let current = rome.control.current();
    let peer = &current.peers()[0];
    Outcome {
        before_idle,
        counters: rome.control.accounts().outbound.snapshot(),
        peer: (peer.transmit.packets.get(), peer.transmit.bytes.get()),
        sent: wire.sent.into_inner(),
    }
}
