// Keys change on either side, in any order, and no packet is lost.
//
// A change is two events: a side has another private key, and the other side learns of it. In between
// lie seconds or minutes, with rekeys in them.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use strait_packet::DropReason;
use strait_wg::message::Message;
use strait_wg::Engine;
use strait_wg::PrivateKey;
use strait_wg::succession::{GRACE, MAX_OLDER};

use super::ENGINES;
use super::world::{MILAN, Network, ROME, World, packet_id, udp_packet};

const SECOND: Duration = Duration::from_secs(1);

const SIDES: [usize; 2] = [MILAN, ROME];

/// What each side sends: source and destination.
const PACKETS: [(&str, &str); 2] = [("10.244.2.7", "10.71.1.5"), ("10.244.1.5", "10.71.2.7")];

#[test]
fn a_changed_key_is_in_force_as_soon_as_the_peer_knows_it() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);

        talk.world.change_key(side);
        talk.go_on(30 * SECOND);
        assert!(!talk.has_newest_session(side), "nobody knows the key yet");
        talk.world.learn_key(1 - side);
        talk.go_on(SECOND);

        assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
        let is_initiation = |message| message == Message::Initiation;
        let initiations = talk.world.count(is_initiation);
        talk.go_on(110 * SECOND);
        assert_eq!(talk.world.count(is_initiation), initiations, "no rekey is due yet");
        talk.assert_nothing_was_lost();
    }
}

#[test]
fn a_peer_that_knows_the_key_before_we_have_it_loses_nothing() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        let next = PrivateKey::generate();

        talk.world.announce_key(1 - side, &next);
        talk.go_on(30 * SECOND);
        assert!(!talk.has_newest_session(1 - side), "nobody has the key yet");
        talk.world.take_key(side, &next);
        talk.go_on(5 * SECOND);

        assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
        talk.assert_nothing_was_lost();
    }
}

/// The whitepaper's `REKEY_AFTER_TIME` is 120 s: the session is renewed while the keys differ.
#[test]
fn a_rekey_falls_back_to_the_key_that_the_peer_knows() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        talk.go_on(60 * SECOND);
        let handshake = talk.world.session(side).last_handshake;

        talk.world.change_key(side);
        talk.go_on(100 * SECOND);

        assert!(talk.world.session(side).last_handshake > handshake, "there was a rekey");
        talk.world.learn_key(1 - side);
        talk.go_on(400 * SECOND);
        assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
        talk.assert_nothing_was_lost();
    }
}

#[test]
fn both_keys_change_before_either_side_learns_of_it() {
    for first in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);

        talk.world.change_key(MILAN);
        talk.world.change_key(ROME);
        talk.go_on(10 * SECOND);
        talk.world.learn_key(first);
        talk.go_on(10 * SECOND);
        talk.world.learn_key(1 - first);
        talk.go_on(SECOND);

        assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
        talk.go_on(400 * SECOND);
        talk.assert_nothing_was_lost();
    }
}

#[test]
fn after_the_grace_period_the_key_before_is_gone_for_good() {
    let mut talk = Talk::begin(Network::PERFECT);
    let before = talk.world.identity(MILAN);
    let strand = talk.world.peer(MILAN).tunnel.current().clone();

    talk.world.change_key(MILAN);
    talk.go_on(GRACE - SECOND);
    assert!(before.upgrade().is_some());
    assert!(strand.tunnel.session().is_established, "the peer knows no other key");
    talk.assert_nothing_was_lost();
    let last_handshake = strand.tunnel.session().last_handshake;
    talk.world.run(2 * SECOND);

    assert!(before.upgrade().is_none(), "somebody still has the key");
    assert_eq!(talk.world.peer(MILAN).tunnel.slots().count(), 1);
    assert_eq!(talk.world.session(MILAN).last_handshake, last_handshake);
    assert!(!strand.tunnel.session().is_established);
    talk.world.forget();
    let unauthenticated = talk.world.inbound(MILAN).drops(DropReason::Unauthenticated);
    // Whoever has nothing to say need not try.
    talk.world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    talk.world.run(200 * SECOND);
    assert_eq!(talk.world.count(|m| matches!(m, Message::Response { .. })), 0);
    assert!(
        talk.world.inbound(MILAN).drops(DropReason::Unauthenticated) > unauthenticated,
        "the peer did try"
    );
    talk.world.run(400 * SECOND);
    talk.world.forget();
    talk.world.run(200 * SECOND);
    assert_eq!(talk.world.eavesdropped.len(), 0, "somebody does not give up");
}

#[test]
fn the_key_before_is_not_answered_any_more_once_the_peer_knows_better() {
    let mut talk = Talk::begin(Network::PERFECT);
    let before = talk.world.key(MILAN);
    talk.world.change_key(MILAN);
    talk.world.learn_key(ROME);
    talk.go_on(SECOND);
    assert!(talk.has_newest_session(MILAN));

    talk.world.remove_peer(ROME);
    talk.world.announce_key(ROME, &before);
    let unauthenticated = talk.world.inbound(MILAN).drops(DropReason::Unauthenticated);
    talk.world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", talk.sent));
    talk.world.run(11 * SECOND);

    assert!(!talk.world.session(ROME).is_established);
    let refused = talk.world.inbound(MILAN).drops(DropReason::Unauthenticated) - unauthenticated;
    assert!(refused >= 2, "{refused} initiations were refused");
}

#[test]
fn packets_that_wait_go_out_with_whichever_key_the_peer_knows() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        // Long enough for the session to end, and not for the endpoint to be forgotten.
        talk.world.run(200 * SECOND);
        assert!(!talk.world.session(side).is_established);

        talk.world.change_key(side);
        talk.senders[1 - side] = false;
        talk.go_on(60 * SECOND);

        assert_eq!(talk.world.received(1 - side).len(), usize::from(talk.sent), "to {}", 1 - side);
    }
}

/// As one that replaces its peers as a whole: what it cannot decrypt is lost until it has greeted.
#[test]
fn a_peer_that_forgets_its_session_costs_what_is_sent_before_it_speaks() {
    let mut talk = Talk::begin(Network::PERFECT);
    talk.world.change_key(MILAN);
    talk.go_on(10 * SECOND);

    talk.world.remove_peer(ROME);
    talk.world.learn_key(ROME);
    talk.go_on(20 * SECOND);

    let lost = usize::from(talk.sent) - talk.world.received(ROME).len();
    assert!(lost <= 1, "{lost} packets at a pace of {:?}", talk.pace);
    assert_eq!(talk.world.received(MILAN).len(), usize::from(talk.sent));
    assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
}

/// The same, and it does not know where we are: only our next handshake tells it, five seconds after
/// the last (the whitepaper's `REKEY_TIMEOUT`, and a third of a second of jitter).
#[test]
fn a_peer_that_forgets_its_session_and_our_address_hears_from_us_in_five_seconds() {
    let mut talk = Talk::begin(Network::PERFECT);
    talk.world.change_key(ROME);
    talk.go_on(11 * SECOND);

    talk.world.remove_peer(MILAN);
    talk.world.learn_key(MILAN);
    talk.go_on(6 * SECOND);
    let lost = usize::from(talk.sent) - talk.world.received(MILAN).len();
    let homeless = talk.world.outbound(MILAN).drops(DropReason::NoEndpoint);
    talk.go_on(20 * SECOND);

    assert!(lost > 0 && lost <= 27, "{lost} packets at a pace of {:?}", talk.pace);
    for (side, lost) in [(MILAN, lost), (ROME, usize::try_from(homeless).unwrap())] {
        assert_eq!(talk.world.received(side).len(), usize::from(talk.sent) - lost, "to {side}");
    }
    assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
}

#[test]
fn a_key_that_comes_back_finds_its_session() {
    let mut talk = Talk::begin(Network::PERFECT);
    let first = talk.world.key(MILAN);
    let slot = talk.world.peer(MILAN).tunnel.current().slot;

    talk.world.change_key(MILAN);
    talk.go_on(10 * SECOND);
    talk.world.take_key(MILAN, &first);
    talk.go_on(SECOND);

    assert_eq!(talk.world.peer(MILAN).tunnel.current().slot, slot);
    assert!(talk.has_newest_session(MILAN));
    talk.go_on(400 * SECOND);
    talk.assert_nothing_was_lost();
}

#[test]
fn initiations_to_the_key_before_are_rate_limited_as_any_other() {
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

/// As with the kernel, whose sessions end for sending when a device gets another key.
#[test]
fn a_superseded_key_receives_and_sends_nothing() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        talk.go_on(SECOND);
        talk.world.forget();

        talk.world.supersede_key(side, &PrivateKey::generate());
        assert!(!talk.world.session(side).is_established);
        talk.send(1 - side, 1);
        talk.world.run(SECOND);
        let is_opened = talk.world.received(side).len() == 1;
        talk.world.forget();
        let before = talk.world.watcher.initiations(side).len();
        talk.send(side, 2);
        talk.world.run(Duration::from_millis(100));

        // The library cannot end one direction.
        assert_eq!(is_opened, ENGINES[side] == Engine::Native);
        assert_eq!(talk.world.count(|message| matches!(message, Message::Data { .. })), 0);
        assert_eq!(talk.world.watcher.initiations(side).len() - before, 1);
        talk.world.learn_key(1 - side);
        talk.world.run(6 * SECOND);
        let ids: Vec<_> = talk.world.received(1 - side).iter().map(|p| packet_id(p)).collect();
        assert_eq!(ids, [2]);
        talk.world.assert_accounts_balance();
    }
}

#[test]
fn a_peer_that_knows_the_next_key_hears_it_at_once() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        talk.go_on(SECOND);
        talk.world.forget();
        let key = PrivateKey::generate();

        talk.world.announce_key(1 - side, &key);
        talk.world.supersede_key(side, &key);
        talk.send(side, 1);
        talk.world.run(Duration::from_millis(50));

        assert_eq!(talk.world.received(1 - side).len(), 1);
        assert!(talk.has_newest_session(side));
    }
}

/// A key that was superseded may come back, with other sessions than it had.
#[test]
fn a_superseded_key_that_comes_back_sends_again() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        let first = talk.world.key(side);
        talk.world.supersede_key(side, &PrivateKey::generate());
        talk.world.run(SECOND);
        talk.world.forget();

        talk.world.supersede_key(side, &first);
        talk.send(side, 1);
        talk.world.run(6 * SECOND);

        assert_eq!(talk.world.received(1 - side).len(), 1);
        talk.world.run(400 * SECOND);
        talk.world.assert_accounts_balance();
    }
}

/// Rome renews the session with its former key just when Milan begins one with the next.
#[test]
fn a_reload_after_crossing_handshakes_loses_nothing() {
    let delay = Duration::from_millis(1);
    let mut talk = Talk::begin(Network { delay, ..Network::PERFECT });
    (talk.pace, talk.senders) = (20 * SECOND, [false, true]);
    talk.go_on(41 * SECOND);
    talk.world.change_key(ROME);
    talk.go_on(60 * SECOND);

    talk.world.learn_key(MILAN);
    talk.go_on(20 * SECOND);
    talk.world.apply_again(MILAN);
    talk.go_on(200 * SECOND);

    assert_eq!(talk.world.received(MILAN).len(), usize::from(talk.sent));
    talk.world.assert_accounts_balance();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Both keys change, both sides learn of it, in any order and at any time around a rekey, while
    /// the network loses handshake messages: all packets arrive, once each.
    #[test]
    fn no_packet_is_lost_whatever_the_order(
        seed: u64,
        handshake_loss_percent in 0u32..20,
        delay_ms in 0u64..40,
        begin in 0u64..180,
        pace_ms in prop::sample::select(vec![200, 1000, 7000, 20_000]),
        senders in prop::sample::select(vec![[true, true], [true, false], [false, true]]),
        mut events in prop::collection::vec((0u64..100_000, 0usize..4), 0..6),
    ) {
        let delay = Duration::from_millis(delay_ms);
        let mut talk =
            Talk::begin(Network { seed, handshake_loss_percent, delay, ..Network::PERFECT });
        (talk.pace, talk.senders) = (Duration::from_millis(pace_ms), senders);
        talk.go_on(Duration::from_secs(begin));

        // Each side learns in the end; the events before may come in any order, or again.
        events.sort_unstable();
        let began = talk.world.elapsed();
        let mut changes = [0; 2];
        for (at, event) in events {
            talk.go_on((began + Duration::from_millis(at)).saturating_sub(talk.world.elapsed()));
            match event {
                0 | 1 if changes[event] < MAX_OLDER => {
                    talk.world.change_key(event);
                    changes[event] += 1;
                }
                0 | 1 => {}
                _ => talk.world.learn_key(event - 2),
            }
        }
        talk.world.learn_key(MILAN);
        talk.world.learn_key(ROME);
        talk.go_on(400 * SECOND);

        let Talk { world, senders, sent, .. } = &talk;
        for side in SIDES {
            let sent = if senders[1 - side] { *sent } else { 0 };
            let ids: Vec<u16> = world.received(side).iter().map(|p| packet_id(p)).collect();
            let arrived: BTreeSet<_> = ids.iter().copied().collect();
            let lost: Vec<_> = (0..sent).filter(|id| !arrived.contains(id)).collect();
            prop_assert_eq!(lost, [], "to {}", side);
            prop_assert_eq!(ids.len(), usize::from(sent), "a packet arrived twice");
            prop_assert!(talk.has_newest_session(side));
            prop_assert!(world.peer(side).tunnel.older().iter().all(|older| {
                !older.strand.tunnel.session().is_established
            }), "a key before is still in use");
        }
        world.assert_accounts_balance();
    }
}

/// Two sides that talk all the time.
pub(crate) struct Talk {
    pub(crate) world: World,
    senders: [bool; 2],
    /// Between two packets of one direction.
    pace: Duration,
    /// By each sender.
    pub(crate) sent: u16,
}

impl Talk {
    /// After the handshake.
    pub(crate) fn begin(network: Network) -> Self {
        let mut world = World::new(network);
        while !(world.session(MILAN).is_established && world.session(ROME).is_established) {
            world.run(SECOND);
            assert!(world.elapsed() < 120 * SECOND, "no session");
        }
        world.forget();

        Self { world, senders: [true; 2], pace: Duration::from_millis(200), sent: 0 }
    }

    /// One packet more, from `side`.
    pub(crate) fn send(&mut self, side: usize, id: u16) {
        let (source, destination) = PACKETS[side];

        self.world.send(side, &udp_packet(source, destination, id));
    }

    pub(crate) fn go_on(&mut self, duration: Duration) {
        let until = self.world.elapsed() + duration;
        while self.world.elapsed() < until {
            for (side, (source, destination)) in PACKETS.into_iter().enumerate() {
                if self.senders[side] {
                    let session = self.world.session(side);
                    self.world.send(side, &udp_packet(source, destination, self.sent));
                    let staged = self.world.staged(side);
                    assert!(!session.is_established || staged == 0, "{side} has a session");
                }
            }
            self.sent += 1;
            self.world.run(self.pace);
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
