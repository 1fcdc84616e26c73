//! Opened by whoever has the keys, admitted in order.

use proptest::collection::vec;

use super::*;
use crate::OpenedRun;
use crate::Opening;

/// A run that waits to be opened.
struct Run {
    opening: Opening,
    bytes: Vec<u8>,
    stride: usize,
    opened: OpenedRun,
}

impl Run {
    fn of(tunnel: &dyn Tunnel, datagrams: &[Vec<u8>], now: Instant) -> Option<Self> {
        let (bytes, stride) = (datagrams.concat(), datagrams[0].len());
        let opening = tunnel.opening(&bytes, stride, now)?;

        Some(Self { opening, bytes, stride, opened: OpenedRun::with_capacity(1) })
    }

    fn open(&mut self) {
        self.opening.open(&mut self.bytes, self.stride, &mut self.opened);
    }

    fn admit(&mut self, tunnel: &dyn Tunnel, now: Instant) -> Opened {
        tunnel.admit(&self.opening, &mut self.opened, &self.bytes, now)
    }

    fn packets(&self) -> Vec<Vec<u8>> {
        self.opened.packets().iter().map(|range| self.bytes[range.clone()].to_vec()).collect()
    }
}

proptest! {
    /// Others may open in any order, and what was received twice as well.
    #[test]
    fn each_packet_counts_once_whatever_was_opened_first(
        order in vec((0..60_usize, 1..12_usize), 1..12),
        priorities in vec(any::<u8>(), 12),
    ) {
        let pair = Pair::established([Native, Native]);
        let receiver = &*pair.ends[1].tunnel;
        let sent: Vec<_> = (0..60).flat_map(|number| pair.send(0, &packet(number))).collect();
        let mut runs: Vec<_> = order
            .iter()
            .map(|&(first, count)| {
                let datagrams = &sent[first..(first + count).min(60)];
                Run::of(receiver, datagrams, pair.now).unwrap()
            })
            .collect();

        let mut by_priority: Vec<_> = runs.iter_mut().zip(&priorities).collect();
        by_priority.sort_by_key(|(_, priority)| **priority);
        for (run, _) in by_priority {
            run.open();
        }
        let opened: Vec<_> = runs.iter_mut().map(|run| run.admit(receiver, pair.now)).collect();

        let mut seen = Vec::new();
        for ((run, opened), &(first, count)) in runs.iter().zip(&opened).zip(&order) {
            let received = first..(first + count).min(60);
            let new: Vec<_> = received.clone().filter(|number| !seen.contains(number)).collect();
            let replayed = received.len() - new.len();
            prop_assert_eq!((opened.packets, opened.replayed), (as_u64(new.len()), as_u64(replayed)));
            prop_assert_eq!(opened.bytes, as_u64(new.len() * run.stride));
            let is_late = new.iter().max() <= seen.iter().max();
            prop_assert!(opened.is_late == is_late || new.is_empty());
            let expected = new.iter().map(|&number| packet(u16::try_from(number).unwrap()));
            prop_assert_eq!(run.packets(), expected.collect::<Vec<_>>());
            seen.extend(new);
        }
    }
}

#[test]
fn a_forged_datagram_is_none_and_leaves_its_counter_to_the_true_one() {
    let pair = Pair::established([Native, Native]);
    let receiver = &*pair.ends[1].tunnel;
    let sent = pair.send(0, &packet(1)).remove(0);
    let mut forged = sent.clone();
    forged[20] ^= 1;
    let short = sent[..31].to_vec();
    let mut impossible = sent.clone();
    impossible[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let datagrams = [forged, impossible, sent.clone(), sent, short];

    let mut run = Run::of(receiver, &datagrams, pair.now).unwrap();
    run.open();
    let opened = run.admit(receiver, pair.now);

    assert_eq!(run.packets(), [packet(1)]);
    let dropped = (opened.unauthenticated, opened.replayed, opened.malformed);
    assert_eq!((opened.authentic, dropped), (1, (1, 2, 1)));
}

/// Keys tell nobody anything of the peer before it is known what it has said.
#[test]
fn a_session_is_used_when_its_first_datagram_is_admitted() {
    let pair = Pair::new([Native, Native], None);
    let (_, response) = pair.deliver(0, &pair.send(0, &packet(7))[0]);
    let (_, sent) = pair.deliver(1, &response[0]);
    let receiver = &*pair.ends[1].tunnel;

    let mut run = Run::of(receiver, &sent, pair.now).unwrap();
    run.open();
    assert!(!receiver.session().is_established);
    let opened = run.admit(receiver, pair.now);

    assert!(receiver.session().is_established);
    assert_eq!((opened.packets, run.packets()), (1, vec![packet(7)]));
}

#[test]
fn nothing_is_admitted_once_the_keys_are_wiped() {
    let pair = Pair::established([Native, Native]);
    let receiver = &*pair.ends[1].tunnel;
    let sent = pair.send(0, &packet(1));

    let mut run = Run::of(receiver, &sent, pair.now).unwrap();
    run.open();
    receiver.close();
    let opened = run.admit(receiver, pair.now);

    assert_eq!(opened, Opened { no_session: 1, ..Opened::default() });
    assert!(run.packets().is_empty());
    assert!(Run::of(receiver, &sent, pair.now).is_none());
}

#[test]
fn a_session_that_has_expired_opens_nothing() {
    let mut pair = Pair::established([Native, Native]);
    let sent = pair.send(0, &packet(1));

    pair.tick(Duration::from_secs(180));

    assert!(Run::of(&*pair.ends[1].tunnel, &sent, pair.now).is_none());
}

/// It has one lock around everything.
#[test]
fn boringtun_gives_no_keys_away() {
    let pair = Pair::established([Native, Boringtun]);
    let sent = pair.send(0, &packet(1));

    assert!(Run::of(&*pair.ends[1].tunnel, &sent, pair.now).is_none());
    assert_eq!(pair.exchange(0, sent), [packet(1)]);
}
