//! The content of datagrams: padding, batches, replays, and invalid messages.

use super::*;

#[test]
fn contents_are_padded_up_to_the_mtu() {
    let pair = Pair::established([Native, Native]);

    for (len, content) in [(20, 32), (32, 32), (33, 48), (1408, 1408), (1409, 1420), (1420, 1420)] {
        let sent = pair.send(0, &sized_packet(1, len));
        assert_eq!(sent[0].len(), content + 32, "{len}");
        assert_eq!(pair.exchange(0, sent), [sized_packet(1, len)]);
    }
}

#[test]
fn a_probe_is_read_with_its_length() {
    for engines in [[Native, Native], [Native, Boringtun]] {
        let pair = Pair::established(engines);
        let path = pair.ends[1].address.into();
        for (bytes, padded) in [(576, 576), (1000, 1008), (1420, 1420)] {
            let mut out = TransmitBatch::default();
            let probe = PathProbe::Probe(bytes);
            let sent = pair.ends[0].tunnel.seal_probe(probe, path, &mut out, pair.now);
            let datagram = datagrams(&out).remove(0);
            assert_eq!((sent, datagram.len()), (as_u64(datagram.len()), padded + 32));

            let mut packets = PacketBatch::with_capacity(1 << 17, 64);
            let opened = pair.ends[1].tunnel.open(&datagram, 2_000, &mut packets, pair.now);
            let is_read = engines[1] == Native;
            assert_eq!((opened.packets, opened.keepalives), (0, u64::from(is_read)));
            assert_eq!(opened.malformed, u64::from(!is_read), "every datagram counts once");
            assert_eq!(opened.probes.probe, is_read.then_some(bytes));
        }
        assert_eq!(pair.exchange(0, pair.send(0, &packet(1))), [packet(1)]);
    }
}

#[test]
fn no_datagram_is_opened_twice() {
    for engines in [[Native, Native], [Boringtun, Native]] {
        let pair = Pair::established(engines);
        let mut sent: Vec<_> = (0..500).flat_map(|number| pair.send(0, &packet(number))).collect();
        sent.reverse();

        assert_eq!(pair.exchange(0, sent.clone()).len(), 500);
        assert_eq!(pair.exchange(0, sent), Vec::<Vec<u8>>::new(), "{engines:?}");
    }
}

proptest! {
    #[test]
    fn no_datagram_causes_a_panic(
        kind in 1..=4_u8,
        bytes in prop::collection::vec(any::<u8>(), 200),
        len in 32..200_usize,
    ) {
        let pair = Pair::established([Native, Native]);
        let live = pair.send(0, &packet(1)).remove(0);
        let mut datagram = bytes;
        datagram.truncate([148, 92, 64, len][usize::from(kind) - 1]);
        datagram[..4].copy_from_slice(&[kind, 0, 0, 0]);
        // For an existing session, and with a valid mac1, so that it is not dropped before.
        let index = if kind == 2 { 8..12 } else { 4..8 };
        datagram[index].copy_from_slice(&live[4..8]);
        if kind <= 2 {
            MacKeys::new(pair.ends[1].identity.public_key()).stamp(&mut datagram, None);
        }
        let (packets, answers) = pair.deliver(0, &datagram);

        prop_assert!(packets.is_empty() && answers.is_empty());
        prop_assert_eq!(pair.exchange(0, vec![live]), [packet(1)]);
    }

    #[test]
    fn a_sealed_batch_is_opened_as_a_batch(
        payload in 1..1380_u16,
        segments in 1..40_u16,
        last in 1..1380_u16,
        room in 1..40_usize,
    ) {
        let pair = Pair::established([Native, Native]);
        let whole = usize::from(payload) * usize::from(segments - 1);
        let (mut frame, virtio) = tcp_frame(payload, whole + usize::from(last.min(payload)));
        let header = Header::parse(&frame).unwrap();
        let mut frame_segments = Segments::new(&mut frame, &virtio, &header).unwrap();
        let outer = Outer::data(pair.ends[1].address, Ecn::NotEct);
        let mut sent = Vec::new();
        // Segments without room are sealed with the next call.
        while frame_segments.next_len().is_some() {
            let mut out = TransmitBatch::with_capacity(room * 1500);
            let sealed = pair.ends[0].tunnel.seal(&mut frame_segments, outer, &mut out, pair.now);
            prop_assert_eq!(as_u64(datagrams(&out).len()), sealed.packets);
            sent.extend(datagrams(&out));
        }
        prop_assert_eq!(sent.len(), usize::from(segments));
        let stride = sent[0].len();
        let run: Vec<u8> = sent.concat();
        let mut out = PacketBatch::with_capacity(1 << 17, 64);

        let Opened { packets, authentic, .. } =
            pair.ends[1].tunnel.open(&run, stride, &mut out, pair.now);

        let expected = u64::from(segments);
        prop_assert_eq!((packets, authentic), (expected, expected));
    }
}
