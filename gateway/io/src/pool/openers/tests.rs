//! Opening with worker threads against opening inline: the same packets in the same order, and the same counters.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::edge::FrameBuffer;
use crate::pool::fixtures::{engines, fill, now};
use crate::pool::work;
use strait_engine::inbound::{MAX_MESSAGES, Received, each_frame};
use strait_engine::{Accounts, Inbound};
use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::coalesce::Frame;
use strait_packet::counters::Snapshot;
use strait_packet::ecn::Ecn;
use strait_packet::path::Path;

#[derive(Clone, Debug)]
enum Event {
    /// The socket has a message with `payload` bytes of inner payload in segments of `segment` bytes.
    Message { payload: usize, segment: u16, seed: u64, fate: Fate },
    /// The socket has no message.
    Pause,
}

/// What the network does to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Twice,
    /// One datagram was changed.
    Forged(usize),
    /// Two neighbouring datagrams are swapped.
    Swapped(usize),
    /// A datagram that is no WireGuard message comes with it.
    Accompanied,
    /// It comes after the next one.
    Overtaken,
    /// The peer sends from another endpoint from now on.
    Moved,
}

fn event() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        8 => Just(Fate::Arrives),
        1 => Just(Fate::Twice),
        1 => (0..50_usize).prop_map(Fate::Forged),
        1 => (0..50_usize).prop_map(Fate::Swapped),
        1 => Just(Fate::Accompanied),
        1 => Just(Fate::Overtaken),
        1 => Just(Fate::Moved),
    ];
    let sizes = prop_oneof![
        6 => (50_000..=60_000_usize, 1200..=1360_u16),
        1 => (17_000..=40_000_usize, 600..=1360_u16),
        3 => (1..=1300_usize, 1360..=1360_u16),
    ];

    prop_oneof![
        9 => (sizes, any::<u64>(), fate).prop_map(|((payload, segment), seed, fate)| {
            Event::Message { payload, segment, seed, fate }
        }),
        1 => Just(Event::Pause),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn workers_write_what_inline_opening_writes(
        events in vec(event(), 1..60),
        workers in 1..=3_usize,
    ) {
        let (inline, _) = run(&events, 0);
        let (pooled, account) = run(&events, workers);

        prop_assert!(pooled.written == inline.written, "not the same packets in the same order");
        prop_assert_eq!(pooled.counters, inline.counters);
        prop_assert_eq!(pooled.peer, inline.peer);
        prop_assert_eq!(pooled.path, inline.path);
        prop_assert!(account.worker_frames.get() <= u64::try_from(2 * events.len()).unwrap());
    }
}

#[test]
fn workers_open_part_of_a_backlog() {
    let (outcome, account) = run(&vec![large(Fate::Arrives); 400], 2);

    assert!(account.worker_frames.get() > 0);
    assert_eq!(outcome.written.len(), 400 * 45);
}

#[test]
fn workers_drop_replayed_and_forged_datagrams() {
    let mut events = vec![large(Fate::Arrives); 20];
    events.push(large(Fate::Twice));
    events.push(large(Fate::Forged(3)));
    events.extend(vec![large(Fate::Arrives); 20]);

    let (outcome, _) = run(&events, 2);

    assert_eq!(outcome.written.len(), 42 * 45 - 1);
    assert_eq!(outcome.counters.drops(DropReason::Replayed), 45);
    assert_eq!(outcome.counters.drops(DropReason::Unauthenticated), 1);
}

#[test]
fn no_worker_starts_without_backlog() {
    let events: Vec<_> =
        (0..40).map(|n| if n % 5 == 4 { Event::Pause } else { large(Fate::Arrives) }).collect();
    let start: Start<'_, OpenSlot> = &|_| panic!("there is no backlog");

    run_with(&events, 4, start, &Arc::default());
}

#[test]
fn without_threads_all_is_opened_inline() {
    let events = vec![large(Fate::Arrives); 20];
    let start: Start<'_, OpenSlot> = &|_| Err(io::ErrorKind::WouldBlock.into());

    let without = run_with(&events, 2, start, &Arc::default());

    assert_eq!(without.written, run(&events, 0).0.written);
}

/// A peer may be removed while workers open its messages.
#[test]
fn opened_packets_of_removed_peers_are_dropped() {
    let [mut rome, mut milan] = engines();
    let message = &messages(&mut rome.outbound, &[large(Fate::Arrives)])[0].0[0];
    let mut slot = OpenSlot::new();
    slot.buffer[..message.bytes.len()].copy_from_slice(&message.bytes);
    let job = milan.inbound.handle_backlog(&message.received(), now()).unwrap();
    slot.job = Some(job);

    slot.work();
    milan.control.apply(Vec::new(), remap::Table::default());
    let mut written = 0;
    let (job, buffer, opened) = slot.take().unwrap();
    let mut out = TransmitBatch::default();
    let mut sink = each_frame(|_, _, _| written += 1);
    milan.inbound.handle_opened(job, buffer, opened, now(), &mut out, &mut sink);

    let counters = milan.control.accounts().inbound.snapshot();
    assert_eq!((written, counters.drops(DropReason::UnknownIndex)), (0, 45));
    assert!(slot.take().is_none(), "the slot keeps the keys");
}

fn large(fate: Fate) -> Event {
    Event::Message { payload: 60_000, segment: 1340, seed: 1, fate }
}

/// What the pods get, and the counters.
struct Outcome {
    written: Vec<Vec<u8>>,
    counters: Snapshot,
    peer: (u64, u64),
    path: Option<Path>,
}

fn run(events: &[Event], workers: usize) -> (Outcome, Arc<Counters>) {
    let account = Arc::default();
    let start: Start<'_, OpenSlot> =
        &|mut worker| thread::Builder::new().spawn(move || while worker.work(work) {});

    (run_with(events, workers, start, &account), account)
}

/// The loop of the inbound thread, with a socket that returns one message of `events` a call.
fn run_with(
    events: &[Event],
    workers: usize,
    start: Start<'_, OpenSlot>,
    account: &Arc<Counters>,
) -> Outcome {
    let [mut rome, milan] = engines();
    let messages = messages(&mut rome.outbound, events);
    let control = milan.control;
    let mut thread = Thread { inbound: milan.inbound, waiting: 0, written: Vec::new() };
    let mut openers = Openers::new(workers, Arc::clone(account), start);
    let mut part = vec![0; MAX_MESSAGE_BYTES].into_boxed_slice();

    for (messages, is_pause) in &messages {
        for message in messages {
            let received = message.received();
            let job = if openers.has_backlog(1) {
                thread.inbound.handle_backlog(&received, now())
            } else {
                None
            };
            part[..message.bytes.len()].copy_from_slice(&message.bytes);
            let is_pushed = job
                .is_some_and(|job| openers.push(job, &mut part, |slot| thread.handle_opened(slot)));
            if !is_pushed {
                openers.finish(|slot| thread.handle_opened(slot));
                thread.handle(received, now());
            }
        }
        if *is_pause {
            openers.finish(|slot| thread.handle_opened(slot));
            openers.end_backlog();
        }
    }
    openers.finish(|slot| thread.handle_opened(slot));
    drop(openers);
    thread.drain();

    let current = control.current();
    let peer = &current.peers()[0];
    Outcome {
        counters: control.accounts().inbound.snapshot(),
        peer: (peer.receive.packets.get(), peer.receive.bytes.get()),
        path: peer.path(),
        written: thread.written,
    }
}

struct Thread {
    inbound: Inbound,
    /// Messages since the batch was last written, at most.
    waiting: usize,
    written: Vec<Vec<u8>>,
}

impl Thread {
    fn handle(&mut self, received: Received<'_>, now: Instant) {
        let mut out = TransmitBatch::default();
        self.inbound.handle_datagrams(received, now, &mut out, |_, _| false);
        self.waiting += 1;
        // As if the system call ended at an arbitrary message. It never returns more than the batch takes.
        if received.bytes.len().is_multiple_of(3) || self.waiting == MAX_MESSAGES {
            self.drain();
        }
    }

    fn handle_opened(&mut self, slot: &mut OpenSlot) {
        let Self { inbound, written, .. } = self;
        let (job, buffer, opened) = slot.take().unwrap();
        let mut out = TransmitBatch::default();
        let mut sink = each_frame(|frame, bytes, accounts| write(written, frame, bytes, accounts));
        inbound.handle_opened(job, buffer, opened, now(), &mut out, &mut sink);
    }

    fn drain(&mut self) {
        let Self { inbound, written, waiting } = self;
        *waiting = 0;
        inbound.drain(|frame, bytes, accounts| write(written, frame, bytes, accounts));
    }
}

/// Keeps the packets, independent of how they are merged.
fn write(written: &mut Vec<Vec<u8>>, frame: &Frame<'_>, bytes: &[u8], accounts: &Accounts) {
    written.extend(frame.members().map(|range| bytes[range].to_vec()));
    accounts.handle_frame(
        u64::try_from(frame.packet_count()).unwrap(),
        u64::try_from(frame.byte_count()).unwrap(),
        true,
    );
}

/// One received message.
#[derive(Clone)]
struct Message {
    bytes: Vec<u8>,
    stride: usize,
    from: SocketAddr,
}

impl Message {
    fn received(&self) -> Received<'_> {
        Received {
            bytes: &self.bytes,
            stride: self.stride,
            path: self.from.into(),
            ecn: Ecn::NotEct,
        }
    }
}

/// The messages that each event brings, and whether it is a pause.
fn messages(outbound: &mut strait_engine::Outbound, events: &[Event]) -> Vec<(Vec<Message>, bool)> {
    let mut frame = FrameBuffer::new();
    let mut from = SocketAddr::from(([192, 0, 2, 1], 51840));
    let mut held_back = None;
    let mut arriving = |event: &Event| {
        let Event::Message { payload, segment, seed, fate } = *event else {
            return (held_back.take().into_iter().collect(), true);
        };
        if fate == Fate::Moved {
            from.set_port(from.port() + 1);
        }
        let (virtio, len) = fill(&mut frame, payload, segment, seed);
        let mut out = TransmitBatch::default();
        let packet = &mut frame.packet_mut()[..len];
        let _ = outbound.handle_frame(&virtio, packet, now(), &mut out);

        let mut messages: Vec<_> = out
            .transmits()
            .iter()
            .map(|transmit| Message {
                bytes: out.bytes(transmit).to_vec(),
                stride: transmit.segment_bytes,
                from,
            })
            .collect();
        for message in &mut messages {
            mangle(message, fate);
        }
        if fate == Fate::Twice {
            messages.extend(messages.clone());
        }
        if fate == Fate::Overtaken && held_back.is_none() {
            held_back = messages.pop();
        } else {
            messages.extend(held_back.take());
        }

        (messages, false)
    };

    events.iter().map(&mut arriving).collect()
}

fn mangle(message: &mut Message, fate: Fate) {
    let Message { bytes, stride, .. } = message;
    let whole = bytes.len() / *stride;
    match fate {
        Fate::Forged(number) => {
            let at = number % whole * *stride + *stride - 1;
            bytes[at] ^= 1;
        }
        Fate::Swapped(number) if whole > 1 => {
            let first = number % (whole - 1) * *stride;
            let (one, other) = bytes[first..first + 2 * *stride].split_at_mut(*stride);
            one.swap_with_slice(other);
        }
        Fate::Accompanied => {
            bytes.splice(0..0, vec![9; *stride]).for_each(drop);
            // The kernel never merges more than that: the last datagrams are cut.
            if bytes.len() > MAX_MESSAGE_BYTES {
                bytes.truncate((bytes.len() - 1) / *stride * *stride);
            }
        }
        Fate::Arrives | Fate::Twice | Fate::Swapped(_) | Fate::Overtaken | Fate::Moved => {}
    }
}
