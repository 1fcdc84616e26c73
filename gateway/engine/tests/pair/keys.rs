// Key rotation on both sides, in any order, without packet loss.
//
// A rotation is two events: a side gets a new private key, and the other side is configured with the public key.
// Seconds or minutes may pass between them, with rekeys.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use strait_packet::DropReason;
use strait_wg::message::Message;
use strait_wg::{Engine, PrivateKey};
use strait_wg::key_rotation::{GRACE, MAX_OLDER_KEYS};

use super::ENGINES;
use super::packets::{packet_id, udp_packet};
use super::world::{MILAN, Network, ROME, World};

const SECOND: Duration = Duration::from_secs(1);

const SIDES: [usize; 2] = [MILAN, ROME];

/// What each side sends: source and destination.
const PACKETS: [(&str, &str); 2] = [("10.244.2.7", "10.71.1.5"), ("10.244.1.5", "10.71.2.7")];

#[test]
fn new_key_is_used_once_peer_knows() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);

        traffic.world.change_key(side);
        traffic.run(30 * SECOND);
        assert!(!traffic.has_newest_session(side), "the peer does not know the key yet");
        traffic.world.learn_key(1 - side);
        traffic.run(SECOND);

        assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
        let is_initiation = |message| message == Message::Initiation;
        let initiations = traffic.world.count(is_initiation);
        traffic.run(110 * SECOND);
        assert_eq!(traffic.world.count(is_initiation), initiations, "no rekey is due yet");
        traffic.assert_nothing_was_lost();
    }
}

#[test]
fn peer_may_know_the_new_key_first() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        let next = PrivateKey::generate();

        traffic.world.announce_key(1 - side, &next);
        traffic.run(30 * SECOND);
        assert!(!traffic.has_newest_session(1 - side), "the key is not in use yet");
        traffic.world.set_key(side, &next);
        traffic.run(5 * SECOND);

        assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
        traffic.assert_nothing_was_lost();
    }
}

/// `REKEY_AFTER_TIME` is 120 s: the session is renewed while the peer does not know the new key.
#[test]
fn rekey_uses_the_key_peer_knows() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(60 * SECOND);
        let handshake = traffic.world.session(side).last_handshake;

        traffic.world.change_key(side);
        traffic.run(100 * SECOND);

        assert!(traffic.world.session(side).last_handshake > handshake, "there was a rekey");
        traffic.world.learn_key(1 - side);
        traffic.run(400 * SECOND);
        assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
        traffic.assert_nothing_was_lost();
    }
}

#[test]
fn both_keys_may_change_at_once() {
    for first in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);

        traffic.world.change_key(MILAN);
        traffic.world.change_key(ROME);
        traffic.run(10 * SECOND);
        traffic.world.learn_key(first);
        traffic.run(10 * SECOND);
        traffic.world.learn_key(1 - first);
        traffic.run(SECOND);

        assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
        traffic.run(400 * SECOND);
        traffic.assert_nothing_was_lost();
    }
}

#[test]
fn former_key_is_dropped_after_the_grace_period() {
    let mut traffic = Traffic::start(Network::PERFECT);
    let before = traffic.world.identity(MILAN);
    let keyed = traffic.world.peer(MILAN).tunnel.current().clone();

    traffic.world.change_key(MILAN);
    traffic.run(GRACE - SECOND);
    assert!(before.upgrade().is_some());
    assert!(keyed.tunnel.session().is_established, "the peer knows no other key");
    traffic.assert_nothing_was_lost();
    let last_handshake = keyed.tunnel.session().last_handshake;
    traffic.world.run(2 * SECOND);

    assert!(before.upgrade().is_none(), "the key is still held");
    assert_eq!(traffic.world.peer(MILAN).tunnel.slots().count(), 1);
    assert_eq!(traffic.world.session(MILAN).last_handshake, last_handshake);
    assert!(!keyed.tunnel.session().is_established);
    traffic.world.clear_records();
    let unauthenticated = traffic.world.inbound(MILAN).drops(DropReason::Unauthenticated);
    // Without a packet there is no handshake.
    traffic.world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    traffic.world.run(200 * SECOND);
    assert_eq!(traffic.world.count(|m| matches!(m, Message::Response { .. })), 0);
    assert!(
        traffic.world.inbound(MILAN).drops(DropReason::Unauthenticated) > unauthenticated,
        "the peer did try"
    );
    traffic.world.run(400 * SECOND);
    traffic.world.clear_records();
    traffic.world.run(200 * SECOND);
    assert_eq!(traffic.world.eavesdropped.len(), 0, "a handshake is still retried");
}

#[test]
fn former_key_is_refused_after_rotation() {
    let mut traffic = Traffic::start(Network::PERFECT);
    let before = traffic.world.key(MILAN);
    traffic.world.change_key(MILAN);
    traffic.world.learn_key(ROME);
    traffic.run(SECOND);
    assert!(traffic.has_newest_session(MILAN));

    traffic.world.remove_peer(ROME);
    traffic.world.announce_key(ROME, &before);
    let unauthenticated = traffic.world.inbound(MILAN).drops(DropReason::Unauthenticated);
    traffic.world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", traffic.sent));
    traffic.world.run(11 * SECOND);

    assert!(!traffic.world.session(ROME).is_established);
    let refused = traffic.world.inbound(MILAN).drops(DropReason::Unauthenticated) - unauthenticated;
    assert!(refused >= 2, "{refused} initiations were refused");
}

#[test]
fn staged_packets_use_the_key_peer_knows() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        // Long enough for the session to end, but not for the endpoint to expire.
        traffic.world.run(200 * SECOND);
        assert!(!traffic.world.session(side).is_established);

        traffic.world.change_key(side);
        traffic.senders[1 - side] = false;
        traffic.run(60 * SECOND);

        assert_eq!(traffic.world.received(1 - side).len(), usize::from(traffic.sent), "to {}", 1 - side);
    }
}

/// As a peer that replaces its whole configuration: it cannot decrypt until its first handshake.
#[test]
fn dropped_session_loses_at_most_one_packet() {
    let mut traffic = Traffic::start(Network::PERFECT);
    traffic.world.change_key(MILAN);
    traffic.run(10 * SECOND);

    traffic.world.remove_peer(ROME);
    traffic.world.learn_key(ROME);
    traffic.run(20 * SECOND);

    let lost = usize::from(traffic.sent) - traffic.world.received(ROME).len();
    assert!(lost <= 1, "{lost} packets at an interval of {:?}", traffic.interval);
    assert_eq!(traffic.world.received(MILAN).len(), usize::from(traffic.sent));
    assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
}

/// The same, and it does not know our endpoint, which it learns from our next handshake, five seconds after the last
/// (`REKEY_TIMEOUT` of the whitepaper, and a third of a second of jitter).
#[test]
fn peer_without_our_endpoint_recovers_in_six_seconds() {
    let mut traffic = Traffic::start(Network::PERFECT);
    traffic.world.change_key(ROME);
    traffic.run(11 * SECOND);

    traffic.world.remove_peer(MILAN);
    traffic.world.learn_key(MILAN);
    traffic.run(6 * SECOND);
    let lost = usize::from(traffic.sent) - traffic.world.received(MILAN).len();
    let without_endpoint = traffic.world.outbound(MILAN).drops(DropReason::NoEndpoint);
    traffic.run(20 * SECOND);

    assert!(lost > 0 && lost <= 27, "{lost} packets at an interval of {:?}", traffic.interval);
    for (side, lost) in [(MILAN, lost), (ROME, usize::try_from(without_endpoint).unwrap())] {
        assert_eq!(traffic.world.received(side).len(), usize::from(traffic.sent) - lost, "to {side}");
    }
    assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
}

#[test]
fn restored_key_keeps_its_session() {
    let mut traffic = Traffic::start(Network::PERFECT);
    let first = traffic.world.key(MILAN);
    let slot = traffic.world.peer(MILAN).tunnel.current().slot;

    traffic.world.change_key(MILAN);
    traffic.run(10 * SECOND);
    traffic.world.set_key(MILAN, &first);
    traffic.run(SECOND);

    assert_eq!(traffic.world.peer(MILAN).tunnel.current().slot, slot);
    assert!(traffic.has_newest_session(MILAN));
    traffic.run(400 * SECOND);
    traffic.assert_nothing_was_lost();
}

#[test]
fn initiations_to_former_key_are_rate_limited() {
    let cookies = [false, true].map(|is_changed| {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);
        let is_initiation = |d: &&Vec<u8>| Message::classify(d) == Some(Message::Initiation);
        let initiation = world.eavesdropped.iter().find(is_initiation).unwrap().clone();
        if is_changed {
            world.change_key(MILAN);
        }
        for _ in 0..400 {
            world.inject(ROME, MILAN, &initiation);
        }

        world.count(|message| matches!(message, Message::CookieReply { .. }))
    });

    assert!(cookies[0] > 50, "{} cookie replies", cookies[0]);
    assert_eq!(cookies[0], cookies[1]);
}

/// As with the kernel: sessions end for sending when the device gets a new key.
#[test]
fn superseded_key_only_receives() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(SECOND);
        traffic.world.clear_records();

        traffic.world.supersede_key(side, &PrivateKey::generate());
        assert!(!traffic.world.session(side).is_established);
        traffic.send(1 - side, 1);
        traffic.world.run(SECOND);
        let is_opened = traffic.world.received(side).len() == 1;
        traffic.world.clear_records();
        let before = traffic.world.checker.initiations(side).len();
        traffic.send(side, 2);
        traffic.world.run(Duration::from_millis(100));

        // The library cannot end one direction.
        assert_eq!(is_opened, ENGINES[side] == Engine::Native);
        assert_eq!(traffic.world.count(|message| matches!(message, Message::Data { .. })), 0);
        assert_eq!(traffic.world.checker.initiations(side).len() - before, 1);
        traffic.world.learn_key(1 - side);
        traffic.world.run(6 * SECOND);
        let ids: Vec<_> = traffic.world.received(1 - side).iter().map(|p| packet_id(p)).collect();
        assert_eq!(ids, [2]);
        traffic.world.assert_accounts_balance();
    }
}

#[test]
fn superseding_known_key_takes_effect_at_once() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(SECOND);
        traffic.world.clear_records();
        let key = PrivateKey::generate();

        traffic.world.announce_key(1 - side, &key);
        traffic.world.supersede_key(side, &key);
        traffic.send(side, 1);
        traffic.world.run(Duration::from_millis(50));

        assert_eq!(traffic.world.received(1 - side).len(), 1);
        assert!(traffic.has_newest_session(side));
    }
}

/// A superseded key may be restored, with new sessions.
#[test]
fn restored_superseded_key_sends_again() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        let first = traffic.world.key(side);
        traffic.world.supersede_key(side, &PrivateKey::generate());
        traffic.world.run(SECOND);
        traffic.world.clear_records();

        traffic.world.supersede_key(side, &first);
        traffic.send(side, 1);
        traffic.world.run(6 * SECOND);

        assert_eq!(traffic.world.received(1 - side).len(), 1);
        traffic.world.run(400 * SECOND);
        traffic.world.assert_accounts_balance();
    }
}

/// Rome renews the session with its former key while Milan initiates one with the new key.
#[test]
fn reload_after_crossing_handshakes_loses_nothing() {
    let delay = Duration::from_millis(1);
    let mut traffic = Traffic::start(Network { delay, ..Network::PERFECT });
    (traffic.interval, traffic.senders) = (20 * SECOND, [false, true]);
    traffic.run(41 * SECOND);
    traffic.world.change_key(ROME);
    traffic.run(60 * SECOND);

    traffic.world.learn_key(MILAN);
    traffic.run(20 * SECOND);
    traffic.world.apply_again(MILAN);
    traffic.run(200 * SECOND);

    assert_eq!(traffic.world.received(MILAN).len(), usize::from(traffic.sent));
    traffic.world.assert_accounts_balance();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Both keys change and both sides are reconfigured, in any order and at any time around a rekey, while the network
    /// loses handshake messages: all packets arrive, once each.
    #[test]
    fn key_changes_in_any_order_lose_nothing(
        seed: u64,
        handshake_loss_percent in 0u32..20,
        delay_ms in 0u64..40,
        begin in 0u64..180,
        interval_ms in prop::sample::select(vec![200, 1000, 7000, 20_000]),
        senders in prop::sample::select(vec![[true, true], [true, false], [false, true]]),
        mut events in prop::collection::vec((0u64..100_000, 0usize..4), 0..6),
    ) {
        let delay = Duration::from_millis(delay_ms);
        let mut traffic =
            Traffic::start(Network { seed, handshake_loss_percent, delay, ..Network::PERFECT });
        (traffic.interval, traffic.senders) = (Duration::from_millis(interval_ms), senders);
        traffic.run(Duration::from_secs(begin));

        // Each side is configured at the end; the events before may come in any order and repeat.
        events.sort_unstable();
        let began = traffic.world.elapsed();
        let mut changes = [0; 2];
        for (at, event) in events {
            traffic.run((began + Duration::from_millis(at)).saturating_sub(traffic.world.elapsed()));
            match event {
                0 | 1 if changes[event] < MAX_OLDER_KEYS => {
                    traffic.world.change_key(event);
                    changes[event] += 1;
                }
                0 | 1 => {}
                _ => traffic.world.learn_key(event - 2),
            }
        }
        traffic.world.learn_key(MILAN);
        traffic.world.learn_key(ROME);
        traffic.run(400 * SECOND);

        let Traffic { world, senders, sent, .. } = &traffic;
        for side in SIDES {
            let sent = if senders[1 - side] { *sent } else { 0 };
            let ids: Vec<u16> = world.received(side).iter().map(|p| packet_id(p)).collect();
            let arrived: BTreeSet<_> = ids.iter().copied().collect();
            let lost: Vec<_> = (0..sent).filter(|id| !arrived.contains(id)).collect();
            prop_assert_eq!(lost, [], "to {}", side);
            prop_assert_eq!(ids.len(), usize::from(sent), "a packet arrived twice");
            prop_assert!(traffic.has_newest_session(side));
            prop_assert!(world.peer(side).tunnel.older().iter().all(|older| {
                !older.keyed.tunnel.session().is_established
            }), "a former key is still in use");
        }
        world.assert_accounts_balance();
    }
}

/// Continuous traffic in both directions.
pub(crate) struct Traffic {
    pub(crate) world: World,
    senders: [bool; 2],
    /// Time between two packets of one direction.
    interval: Duration,
    /// Packets sent by each sender.
    pub(crate) sent: u16,
}

impl Traffic {
    /// Starts after the handshake.
    pub(crate) fn start(network: Network) -> Self {
        let mut world = World::new(network);
        while !(world.session(MILAN).is_established && world.session(ROME).is_established) {
            world.run(SECOND);
            assert!(world.elapsed() < 120 * SECOND, "no session");
        }
        world.clear_records();

        Self { world, senders: [true; 2], interval: Duration::from_millis(200), sent: 0 }
    }

    /// Sends one more packet from `side`.
    pub(crate) fn send(&mut self, side: usize, id: u16) {
        let (source, destination) = PACKETS[side];

        self.world.send(side, &udp_packet(source, destination, id));
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let until = self.world.elapsed() + duration;
        while self.world.elapsed() < until {
            for (side, (source, destination)) in PACKETS.into_iter().enumerate() {
                if self.senders[side] {
                    let session = self.world.session(side);
                    self.world.send(side, &udp_packet(source, destination, self.sent));
                    let staged = self.world.staged(side);
                    assert!(!session.is_established || staged == 0, "packets of {side} are staged despite a session");
                }
            }
            self.sent += 1;
            self.world.run(self.interval);
        }
    }

    pub(crate) fn has_newest_session(&self, side: usize) -> bool {
        self.world.peer(side).tunnel.current().tunnel.session().is_established
    }

    pub(crate) fn assert_nothing_was_lost(&self) {
        for side in SIDES {
            assert_eq!(self.world.received(side).len(), usize::from(self.sent), "to {side}");
        }
        self.world.assert_accounts_balance();
    }
}
