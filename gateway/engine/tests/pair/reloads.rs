// Reconfiguration under traffic: changes of neither keys nor prefixes lose no packet and start no handshake.

use std::num::NonZeroU16;
use std::time::Duration;

use proptest::prelude::*;
use strait_engine::PeerConfig;
use strait_wg::message::Message;
use strait_wg::{Engine, PresharedKey};

use super::ENGINES;
use super::keys::Traffic;
use super::packets::udp_packet;
use super::world::{MILAN, Network, ROME, World};

const SECOND: Duration = Duration::from_secs(1);

/// One edit of a peer.
#[derive(Clone, Debug)]
enum Edit {
    Nothing,
    Name(u8),
    Keepalive(u16),
    /// Additional unreachable endpoints, before or after the working one.
    Endpoints(Vec<u8>, bool),
    ClampMtu(Option<u16>),
}

impl Edit {
    fn apply(&self, side: usize, peer: &mut PeerConfig) {
        match self {
            Self::Nothing => {}
            Self::Name(number) => peer.name = format!("peer-{number}"),
            Self::Keepalive(seconds) => peer.persistent_keepalive = NonZeroU16::new(*seconds),
            Self::Endpoints(hosts, is_first) => {
                let mut endpoints: Vec<_> =
                    hosts.iter().map(|host| ([203, 0, 113, *host], 51840).into()).collect();
                let working = ["198.51.100.1:40000", "192.0.2.1:51840"][side].parse().unwrap();
                endpoints.insert(if *is_first { 0 } else { endpoints.len() }, working);
                peer.endpoints = endpoints;
            }
            Self::ClampMtu(mtu) => peer.clamp_mtu = *mtu,
        }
    }
}

fn edits() -> impl Strategy<Value = Vec<(usize, u64, Edit)>> {
    let edit = prop_oneof![
        Just(Edit::Nothing),
        any::<u8>().prop_map(Edit::Name),
        prop_oneof![Just(0), 1u16..30, any::<u16>()].prop_map(Edit::Keepalive),
        (prop::collection::vec(any::<u8>(), 0..4), any::<bool>())
            .prop_map(|(hosts, is_first)| Edit::Endpoints(hosts, is_first)),
        prop::option::of(1280u16..1500).prop_map(Edit::ClampMtu),
    ];
    let pause_ms = prop::sample::select(vec![0, 50, 150, 1_000, 7_000, 40_000]);

    prop::collection::vec((0..2usize, pause_ms, edit), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// In any order and at any interval, on both sides, also during a rekey.
    #[test]
    fn reloads_under_traffic_lose_nothing(
        seed: u64,
        delay_ms in 0u64..40,
        begin in 0u64..130,
        edits in edits(),
    ) {
        let delay = Duration::from_millis(delay_ms);
        let mut traffic = Traffic::start(Network { seed, delay, ..Network::PERFECT });
        traffic.run(Duration::from_secs(begin));

        for (side, pause_ms, edit) in &edits {
            traffic.world.reconfigure(*side, |peer| edit.apply(*side, peer));
            traffic.run(Duration::from_millis(*pause_ms));
        }
        traffic.run(40 * SECOND);
        traffic.world.run(SECOND);

        traffic.assert_nothing_was_lost();
    }
}

#[test]
fn keepalive_changes_start_no_handshake() {
    for side in [MILAN, ROME] {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(SECOND);

        for seconds in [20, 0, 21, 0, 22, 22, 0] {
            traffic.world.reconfigure(side, |peer| {
                peer.persistent_keepalive = NonZeroU16::new(seconds);
            });
            traffic.run(Duration::from_millis(150));
        }
        traffic.run(60 * SECOND);

        assert_eq!(traffic.world.count(|message| message == Message::Initiation), 0);
        traffic.assert_nothing_was_lost();
    }
}

#[test]
fn new_persistent_keepalive_is_sent_at_once() {
    for side in [MILAN, ROME] {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(SECOND);
        traffic.world.clear_records();

        traffic.world.reconfigure(side, |peer| peer.persistent_keepalive = NonZeroU16::new(600));
        traffic.world.run(SECOND);

        let lengths: Vec<_> = traffic.world.eavesdropped.iter().map(Vec::len).collect();
        assert_eq!(lengths, [32], "one keepalive only");
    }
}

#[test]
fn persistent_keepalive_counts_from_last_message() {
    for side in [MILAN, ROME] {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.world.reconfigure(side, |peer| peer.persistent_keepalive = NonZeroU16::new(2));
        traffic.run(30 * SECOND);
        let keepalives = |world: &World| world.eavesdropped.iter().filter(|d| d.len() == 32).count();
        let before = keepalives(&traffic.world);

        // Short enough that no passive keepalive of the peer is due.
        traffic.world.run(9 * SECOND);

        assert!(before <= 1, "{before} keepalives beside packets");
        assert_eq!(keepalives(&traffic.world) - before, 4);
    }
}

/// Each change is made at both ends. The session of the first key has ended before that key is restored.
#[test]
fn restored_preshared_key_loses_nothing() {
    let mut traffic = Traffic::start(Network::PERFECT);
    for byte in [1, 2, 3, 0, 1, 0, 4] {
        let key = PresharedKey::from_bytes(&[byte; 32]).ok();
        for side in [MILAN, ROME] {
            traffic.world.reconfigure(side, |peer| peer.keys.preshared_key.clone_from(&key));
        }
        traffic.run(6 * SECOND);
    }
    traffic.run(200 * SECOND);

    traffic.assert_nothing_was_lost();
    assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
}

#[test]
fn only_one_handshake_is_in_progress() {
    let mut world = World::new(Network::PERFECT);
    world.run(400 * SECOND);
    world.change_key(ROME);
    world.run(SECOND);
    world.change_key(ROME);
    world.run(10 * SECOND);
    world.clear_records();

    // The peer is unreachable.
    let milan = world.endpoint(ROME).unwrap();
    world.block(&[milan]);
    let began = world.elapsed();
    let before = world.checker.initiations(ROME).len();
    world.reconfigure(ROME, |peer| peer.persistent_keepalive = NonZeroU16::new(1));
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(30 * SECOND);

    let begun = &world.checker.initiations(ROME)[before..];
    let gaps: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(begun[0] - began < SECOND);
    assert!((5..=7).contains(&begun.len()), "{begun:?}");
    assert!(gaps.iter().all(|gap| *gap >= 5 * SECOND), "{gaps:?}");
    // The library starts handshakes on its own schedule, which may replace some of these.
    assert!(ENGINES[ROME] != Engine::Native || begun.len() >= 5, "{begun:?}");
}
