//! Sealing and opening in lanes has the same results as one by one.

use std::mem;

use proptest::collection::vec;

use super::super::datagram::{Sealer, admit, open_run};
use super::super::handshake::Session;
use super::super::keypair::Keypair;
use super::super::noise::{LEN, Secret};
use super::*;
use crate::opening::{OpenedRun, OpeningKeys as _};
use crate::tunnel::Sealed;

/// A session whose sending and receiving keys are the same.
fn keypair(lanes: Lanes) -> Keypair {
    let key = || Secret::new([7; LEN]);
    let session = Session { local_index: 1, remote_index: 1, sending: key(), receiving: key() };

    Keypair::new(&session, true, lanes, start())
}

/// The datagrams of a frame, sealed in batches of `room` bytes.
fn sealed(keypair: &Keypair, frame: (u16, usize), room: usize) -> Vec<Vec<u8>> {
    let (mut bytes, virtio) = tcp_frame(frame.0, frame.1);
    let header = Header::parse(&bytes).unwrap();
    let mut segments = Segments::new(&mut bytes, &virtio, &header).unwrap();
    let outer = Outer::data(SocketAddr::from(([192, 0, 2, 1], 1)), Ecn::NotEct);
    let mut all = Vec::new();
    while segments.next_len().is_some() {
        let (mut out, mut sealed) = (TransmitBatch::with_capacity(room), Sealed::default());
        let counter = keypair.reserve(as_u64(segments.remaining()));
        let sealer = Sealer { keypair, counter, outer, mtu: MTU };
        sealer.seal(&mut segments, &mut out, &mut sealed);
        assert_eq!(sealed.packets, as_u64(datagrams(&out).len()));
        all.extend(datagrams(&out));
    }

    all
}

fn opened(keypair: &Keypair, run: &[u8], stride: usize, room: usize) -> (Opened, Vec<Vec<u8>>) {
    let mut out = PacketBatch::with_capacity(room, 100);
    let opened = open_run(keypair, run, stride, &mut out);
    let packets = out.packets().iter().map(|range| out.bytes()[range.clone()].to_vec());

    (opened, packets.collect())
}

fn opened_in_place(keypair: &Keypair, run: &[u8], stride: usize) -> (Opened, Vec<Vec<u8>>) {
    let (mut bytes, mut out) = (run.to_vec(), OpenedRun::with_capacity(1));
    keypair.open_in_place(&mut bytes, stride, &mut out);
    let opened = admit(keypair, &mut out, &bytes);
    let packets = out.packets().iter().map(|range| bytes[range.clone()].to_vec());

    (opened, packets.collect())
}

/// A replay with a wrong tag may be counted as either.
fn refused((mut opened, packets): (Opened, Vec<Vec<u8>>)) -> (Opened, Vec<Vec<u8>>) {
    opened.unauthenticated += mem::take(&mut opened.replayed);

    (opened, packets)
}

/// A change of a datagram in a run.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip(usize),
    Repeat(usize),
    Exhaust,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        2 => any::<usize>().prop_map(Harm::Flip),
        2 => any::<usize>().prop_map(Harm::Repeat),
        1 => Just(Harm::Exhaust),
    ]
}

fn harm_done(datagrams: &mut [Vec<u8>], place: usize, harm: Harm) {
    let count = datagrams.len();
    let place = place % count;
    let len = datagrams[place].len();
    match harm {
        Harm::Flip(bit) => datagrams[place][8 + bit / 8 % (len - 8)] ^= 1 << (bit % 8),
        // Of the same length, so that the stride stays.
        Harm::Repeat(other) if datagrams[other % count].len() == len => {
            datagrams[place] = datagrams[other % count].clone();
        }
        Harm::Exhaust => datagrams[place][8..16].fill(0xff),
        Harm::Repeat(_) => {}
    }
}

proptest! {
    #[test]
    #[cfg_attr(not(has_lanes), ignore = "needs AVX-512 with IFMA and VBMI2, or NEON")]
    fn lanes_have_the_same_results(
        payload in 1..1380_u16,
        segments in 1..46_u16,
        last in 1..1380_u16,
        room in 1..40_usize,
        harm in vec((any::<usize>(), harm()), 0..6),
        cut in 0..40_usize,
    ) {
        let [wide, narrow] = [Lanes::detect(), Lanes::none()].map(keypair);
        let frame = (payload, usize::from(payload) * usize::from(segments - 1) + usize::from(last.min(payload)));

        let mut sent = sealed(&wide, frame, room * 1500);
        prop_assert_eq!(&sent, &sealed(&narrow, frame, room * 1500));

        for (place, harm) in harm {
            harm_done(&mut sent, place, harm);
        }
        let (stride, mut run) = (sent[0].len(), sent.concat());
        run.truncate(run.len() - cut.min(run.len() - 1));
        let [in_place, one_by_one] = [Lanes::detect(), Lanes::none()].map(keypair);
        for _ in 0..2 {
            let expected = refused(opened(&narrow, &run, stride, 1 << 17));
            prop_assert_eq!(refused(opened(&wide, &run, stride, 1 << 17)), expected.clone());
            prop_assert_eq!(refused(opened_in_place(&in_place, &run, stride)), expected.clone());
            prop_assert_eq!(refused(opened_in_place(&one_by_one, &run, stride)), expected);
        }
    }

    /// Datagrams without room are counted; the last one is shorter and may still fit.
    #[test]
    fn datagrams_without_room_are_counted(
        segments in 1..60_u16,
        last in 1..1000_u16,
        room in 0..60_000_usize,
    ) {
        for keypair in [Lanes::detect(), Lanes::none()].map(keypair) {
            let frame = (1000, 1000 * usize::from(segments) + usize::from(last));
            let sent = sealed(&keypair, frame, 1 << 17);

            let (opened, packets) = opened(&keypair, &sent.concat(), sent[0].len(), room);

            let content = |datagram: &Vec<u8>| datagram.len() - 32;
            let full = (room / content(&sent[0])).min(usize::from(segments));
            let has_last = content(&sent[usize::from(segments)]) <= room - full * content(&sent[0]);
            let fit = as_u64(full) + u64::from(has_last);
            prop_assert_eq!((as_u64(packets.len()), opened.packets), (fit, fit));
            prop_assert_eq!(opened.malformed, u64::from(segments) + 1 - fit);
        }
    }
}
