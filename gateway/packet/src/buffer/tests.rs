use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::path::Local;

#[test]
fn equal_datagrams_share_a_send() {
    let batch = batch_of([100, 100, 60]);

    let [transmit] = batch.transmits() else { panic!("{:?}", batch.transmits()) };
    assert_eq!((transmit.range.clone(), transmit.segment_bytes), (0..260, 100));
    assert_eq!((transmit.datagrams(), transmit.packets), (3, 3));
}

#[test]
fn lost_datagrams_are_not_counted_as_sent() {
    let batch = batch_of([100, 100, 60]);
    let [transmit] = batch.transmits() else { panic!("{:?}", batch.transmits()) };

    let (sent, lost) = transmit.divide(2, 160);

    assert_eq!([sent.packets, lost.packets], [1, 2]);
    assert_eq!([sent.packet_bytes, lost.packet_bytes], [100, 160]);
}

#[test]
fn shorter_datagram_ends_a_send() {
    let batch = batch_of([100, 60, 60, 100]);

    let lens: Vec<_> = batch.transmits().iter().map(|t| t.range.len()).collect();
    assert_eq!(lens, [160, 60, 100]);
}

#[test]
fn destination_or_mark_change_starts_a_send() {
    let mut batch = TransmitBatch::with_capacity(4096);

    push(&mut batch, 100, outer(1));
    push(&mut batch, 100, outer(2));
    push(&mut batch, 100, Outer { ecn: Ecn::Ce, ..outer(2) });
    batch.push_message(&[1; 100], Outer::handshake(outer(2).path));

    assert_eq!(batch.transmits().len(), 4);
    let classes = batch.transmits().iter().map(|transmit| transmit.outer.traffic_class());
    assert_eq!(classes.collect::<Vec<_>>(), [0, 0, 0b11, 0x88]);
}

#[test]
fn local_address_change_starts_a_send() {
    let mut batch = TransmitBatch::with_capacity(4096);
    let from = |last| Local::new([198, 51, 100, last].into(), 0);

    for local in [None, from(1), from(1), from(2)] {
        let path = Path { local, ..outer(1).path };
        push(&mut batch, 100, Outer { path, ..outer(1) });
    }

    let sends = batch.transmits().iter().map(|send| (send.outer.path.local, send.packets));
    assert_eq!(sends.collect::<Vec<_>>(), [(None, 1), (from(1), 2), (from(2), 1)]);
}

#[test]
fn sends_stay_within_kernel_limits() {
    let mut batch = TransmitBatch::default();

    for _ in 0..47 {
        push(&mut batch, 1452, outer(1));
    }
    for _ in 0..70 {
        push(&mut batch, 80, outer(2));
    }

    let counts: Vec<_> = batch.transmits().iter().map(Transmit::datagrams).collect();
    assert_eq!(counts, [45, 2, 64, 6]);
}

#[test]
fn open_send_takes_the_next_datagrams() {
    let mut batch = TransmitBatch::default();
    for _ in 0..47 {
        push(&mut batch, 1452, outer(1));
    }

    assert_eq!(batch.complete(), 1);
    batch.forget(1);
    for _ in 0..44 {
        push(&mut batch, 1452, outer(1));
    }

    let counts: Vec<_> = batch.transmits().iter().map(Transmit::datagrams).collect();
    assert_eq!(counts, [45, 1]);
}

#[test]
fn send_with_short_last_datagram_is_complete() {
    let mut batch = TransmitBatch::default();

    push(&mut batch, 100, outer(1));
    assert_eq!(batch.complete(), 0);
    push(&mut batch, 60, outer(1));

    assert_eq!(batch.complete(), 1);
}

/// Otherwise a frame would be split at the end of the batch.
#[test]
fn open_send_leaves_room_for_a_frame() {
    let mut batch = TransmitBatch::default();

    for frame in 0..100 {
        for _ in 0..50 {
            push(&mut batch, 1372, outer(1));
        }
        let complete = batch.complete();
        batch.forget(complete);

        let room = GROWTH_BYTES - batch.unsent_bytes();
        assert!(batch.has_room(room), "after frame {frame}");
    }
}

proptest! {
    #[test]
    fn datagrams_are_sent_once_and_in_order(
        datagrams in vec((0..3_u16, select(&[60_usize, 100, 1452]), any::<bool>()), 0..300),
    ) {
        let mut batch = TransmitBatch::default();
        let mut sent = Vec::new();
        let mut pushed = Vec::new();

        for (number, (port, len, is_sent)) in (0_u16..).zip(datagrams) {
            if !batch.has_room(len) {
                let all = batch.transmits().len();
                take(&mut batch, all, &mut sent);
            }
            let datagram = number.to_be_bytes().repeat(len / 2);
            batch.push_message(&datagram, outer(port));
            pushed.push((outer(port), datagram));
            if is_sent {
                let complete = batch.complete();
                take(&mut batch, complete, &mut sent);
                prop_assert!(batch.transmits().len() <= 1);
            }
        }
        let all = batch.transmits().len();
        take(&mut batch, all, &mut sent);

        prop_assert!(sent == pushed);
        prop_assert!(batch.is_empty());
        prop_assert_eq!(batch.len(), 0);
    }
}

#[test]
fn full_batch_has_no_room() {
    let mut batch = TransmitBatch::with_capacity(100);

    push(&mut batch, 60, outer(1));

    assert!(batch.room(41).is_none());
    assert!(batch.room(40).is_some());
}

/// Appends the datagrams of the first `count` sends to `sent`.
fn take(batch: &mut TransmitBatch, count: usize, sent: &mut Vec<(Outer, Vec<u8>)>) {
    for transmit in batch.transmits().iter().take(count) {
        let datagrams = batch.bytes(transmit).chunks(transmit.segment_bytes);
        sent.extend(datagrams.map(|datagram| (transmit.outer, datagram.to_vec())));
    }
    batch.forget(count);
}

/// Datagrams of these lengths, all to one endpoint.
fn batch_of<const N: usize>(lens: [usize; N]) -> TransmitBatch {
    let mut batch = TransmitBatch::with_capacity(4096);
    for len in lens {
        push(&mut batch, len, outer(1));
    }

    batch
}

fn push(batch: &mut TransmitBatch, len: usize, outer: Outer) {
    batch.room(len).unwrap();
    batch.commit(len, outer, true);
}

fn outer(port: u16) -> Outer {
    Outer::data(SocketAddr::from(([192, 0, 2, 1], port)), Ecn::NotEct)
}
