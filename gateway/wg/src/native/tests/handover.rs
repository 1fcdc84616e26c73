//! A successor goes on with the sessions of its predecessor.

use std::collections::{HashMap, HashSet};

use proptest::collection::vec;

use super::*;
use crate::handover::{HandoverError, Reader, TunnelState, Writer, open, seal};

/// A change of the world.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An end sends a packet.
    Send(usize),
    /// A datagram arrives, of those in the network.
    Deliver(usize),
    /// A datagram arrives, and stays in the network.
    Duplicate(usize),
    /// An end is replaced by its successor.
    HandOver(usize),
    /// All datagrams arrive, and so many seconds pass.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize).prop_map(Step::Send),
        6 => any::<usize>().prop_map(Step::Deliver),
        2 => any::<usize>().prop_map(Step::Duplicate),
        3 => (0..2_usize).prop_map(Step::HandOver),
        1 => (1..70_u64).prop_map(Step::Wait),
    ]
}

/// Two ends and a network that reorders and repeats datagrams, but loses none.
struct World {
    pair: Pair,
    /// Sender and content.
    network: Vec<(usize, Vec<u8>)>,
    sent: u16,
    /// How often each packet arrived at the other end.
    arrived: HashMap<(usize, u16), u32>,
    /// Receiver and first bytes, with index and counter, of all data ever sent.
    counters: HashSet<(usize, Vec<u8>)>,
    answered: HashSet<Vec<u8>>,
    seed: u64,
}

impl World {
    fn new() -> Self {
        Self {
            pair: Pair::new([Native; 2], Some([9; 32])),
            network: Vec::new(),
            sent: 0,
            arrived: HashMap::new(),
            counters: HashSet::new(),
            answered: HashSet::new(),
            seed: 100,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send(from) => {
                self.sent += 1;
                let datagrams = self.pair.send(from, &packet(self.sent));
                self.arrived.insert((1 - from, self.sent), 0);
                self.put(from, datagrams);
            }
            Step::Deliver(place) | Step::Duplicate(place) => {
                let Some(place) = place.checked_rem(self.network.len()) else { return };
                let (from, datagram) = self.network[place].clone();
                if matches!(step, Step::Deliver(_)) {
                    self.network.remove(place);
                }
                self.deliver(from, &datagram);
            }
            Step::HandOver(number) => {
                self.seed += 1;
                self.pair.hand_over(number, self.seed);
            }
            Step::Wait(seconds) => self.wait(seconds),
        }
    }

    fn put(&mut self, from: usize, datagrams: Vec<Vec<u8>>) {
        for datagram in datagrams {
            if let Some(Message::Data { .. }) = Message::classify(&datagram) {
                let is_new = self.counters.insert((from, datagram[..16].to_vec()));
                assert!(is_new, "end {from} used a counter twice");
            }
            self.network.push((from, datagram));
        }
    }

    fn deliver(&mut self, from: usize, datagram: &[u8]) {
        let (packets, answers) = self.pair.deliver(from, datagram);
        for packet in packets {
            let number = u16::from_be_bytes([packet[4], packet[5]]);
            *self.arrived.get_mut(&(1 - from, number)).unwrap() += 1;
        }
        let is_response =
            |answer: &Vec<u8>| matches!(Message::classify(answer), Some(Message::Response { .. }));
        if answers.iter().any(is_response) {
            assert!(self.answered.insert(datagram.to_vec()), "an initiation was answered twice");
        }
        self.put(1 - from, answers);
    }

    /// All datagrams arrive in each tenth of a second.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            while !self.network.is_empty() {
                let (from, datagram) = self.network.remove(0);
                self.deliver(from, &datagram);
            }
            self.pair.tick(Duration::from_millis(100));
            for number in 0..2 {
                let datagrams = self.pair.timers(number);
                self.put(number, datagrams);
            }
        }
    }
}

impl Pair {
    /// Replaces an end by a successor with the same private key, which gets the state as bytes.
    fn hand_over(&mut self, number: usize, seed: u64) {
        let end = &mut self.ends[number];
        let bytes = exported(&end.tunnel, self.start);
        let state = TunnelState::read(&mut Reader::new(&bytes, self.start)).unwrap();
        let identity = Native.identity(&end.private_key, &environment(self.start, seed));
        identity.handle_timeout(self.now);
        let slot = IndexSlot::from(u16::try_from(number + 1).unwrap());
        end.tunnel = identity.tunnel(&end.peer, slot);
        end.tunnel.import(state);
        end.identity = identity;
    }
}

fn exported(tunnel: &Arc<dyn Tunnel>, base: Instant) -> Vec<u8> {
    let mut out = Writer::new(base);
    tunnel.export().unwrap().write(&mut out);

    out.finish().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Each counter is used once, each datagram is accepted once, and every packet arrives.
    #[test]
    fn any_number_of_hand_overs_changes_nothing(steps in vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.wait(20);

        let wrong: Vec<_> = world.arrived.iter().filter(|(_, count)| **count != 1).collect();
        prop_assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// An incomplete or changed state is refused, or is another state; it never panics.
    #[test]
    fn a_damaged_state_is_refused(place: usize, value: u8, len: usize) {
        let pair = Pair::established([Native; 2]);
        let bytes = exported(&pair.ends[0].tunnel, pair.start);
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes, pair.start);
            let state = TunnelState::read(&mut reader)?;
            reader.finish().map(|()| state)
        };

        let mut again = Writer::new(pair.start);
        read(&bytes).unwrap().write(&mut again);
        prop_assert_eq!(&**again.finish(), &*bytes);
        prop_assert!(read(&bytes[..len % bytes.len()]).is_err());
        let mut changed = bytes;
        let place = place % changed.len();
        changed[place] = value;
        let _ = read(&changed);
        changed.push(0);
        prop_assert!(read(&changed).is_err());
    }

    #[test]
    fn a_sealed_hand_over_is_whole_or_refused(content: Vec<u8>, place: usize, bit in 0..8_u8) {
        let key = [7; 32];
        let mut sealed = Zeroizing::new(content.clone());
        let tag = seal(&key, &mut sealed).unwrap();
        sealed.extend_from_slice(&tag);
        let mut changed = sealed.clone();
        let place = place % changed.len();
        changed[place] ^= 1 << bit;

        prop_assert_eq!(open(&key, changed), Err(HandoverError::NotAuthentic));
        prop_assert_eq!(open(&[8; 32], sealed.clone()), Err(HandoverError::NotAuthentic));
        prop_assert_eq!(&**open(&key, sealed).unwrap(), &*content);
    }
}

#[test]
fn a_successor_keeps_timers_and_times() {
    let mut pair = Pair::established([Native; 2]);
    pair.run(Duration::from_secs(3));
    pair.exchange(0, pair.send(0, &packet(1)));
    let before = [0, 1].map(|number| pair.ends[number].tunnel.session());
    pair.hand_over(0, 50);
    pair.hand_over(1, 51);

    assert_eq!([0, 1].map(|number| pair.ends[number].tunnel.session()), before);
    // The other end owes a keepalive ten seconds after the packet, and nothing else is due.
    let sent = pair.run(Duration::from_secs(11));
    let kinds: Vec<_> = sent.iter().map(|(from, datagram)| (*from, datagram.len())).collect();
    assert_eq!(kinds, [(1, 32)]);
}

#[test]
fn a_closed_tunnel_has_nothing_to_hand_over() {
    let pair = Pair::established([Native; 2]);

    pair.ends[0].tunnel.close();

    assert!(pair.ends[0].tunnel.export().is_none());
}
