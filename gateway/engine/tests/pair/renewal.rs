// Somebody may go on with a copy of us, so all sessions are ended and others begun.
//
// That nothing is sent in those before is what the watcher looks for.

use std::time::Duration;

use super::keys::Talk;
use super::world::{MILAN, Network, ROME, World, udp_packet};

const SECOND: Duration = Duration::from_secs(1);

const SIDES: [usize; 2] = [MILAN, ROME];

#[test]
fn who_renews_its_sessions_loses_what_the_peer_sends_before_it_hears_of_it() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        talk.go_on(SECOND);
        let endpoint = talk.world.endpoint(side);
        let last_handshake = talk.world.session(side).last_handshake;

        talk.world.renew(side);
        let session = talk.world.session(side);
        assert!(!session.is_established);
        assert_eq!(session.last_handshake, last_handshake);
        talk.go_on(60 * SECOND);

        assert!(talk.world.session(side).last_handshake > last_handshake);
        assert_eq!(talk.world.received(1 - side).len(), usize::from(talk.sent));
        let lost = usize::from(talk.sent) - talk.world.received(side).len();
        assert!(lost <= 1, "{lost} packets to {side}");
        assert_eq!(talk.world.endpoint(side), endpoint);
        talk.world.assert_accounts_balance();
    }
}

/// Otherwise it would find out after 15 s (WireGuard whitepaper, section 6.5) at the earliest.
#[test]
fn a_peer_that_only_listens_hears_of_it_at_once() {
    for side in SIDES {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);

        world.renew(side);
        world.run(SECOND);

        assert!(world.session(side).is_established);
        let packets = [("10.244.1.5", "10.71.2.7"), ("10.244.2.7", "10.71.1.5")];
        world.send(1 - side, &udp_packet(packets[side].0, packets[side].1, 0));
        world.run(SECOND);
        assert_eq!(world.received(side).len(), 1);
    }
}

#[test]
fn what_waited_for_a_session_waits_for_the_next() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    let addresses = [world.endpoint(MILAN).unwrap(), world.endpoint(ROME).unwrap()];
    world.cut(&addresses);
    world.renew(ROME);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    assert_eq!(world.staged(ROME), 1);

    world.renew(ROME);
    world.cut(&[]);
    world.run(SECOND);

    assert_eq!(world.received(MILAN).len(), 1);
    world.assert_accounts_balance();
}

#[test]
fn nobody_is_asked_who_had_no_session() {
    for side in SIDES {
        let mut world = World::new(Network::PERFECT);
        world.run(400 * SECOND);
        world.forget();
        assert!(!world.session(side).is_established);

        world.renew(side);
        world.run(100 * SECOND);

        assert_eq!(world.eavesdropped.len(), 0);
    }
}

/// Nobody knows the newest key yet: what goes on is the session of the key before.
#[test]
fn a_key_that_ends_soon_is_good_for_another_session_until_then() {
    for side in SIDES {
        let mut talk = Talk::begin(Network::PERFECT);
        talk.world.change_key(side);
        talk.go_on(SECOND);

        talk.world.renew(side);
        talk.go_on(20 * SECOND);

        assert!(!talk.has_newest_session(side));
        assert_eq!(talk.world.received(1 - side).len(), usize::from(talk.sent));
        let lost = usize::from(talk.sent) - talk.world.received(side).len();
        assert!(lost <= 1, "{lost} packets to {side}");
        talk.world.learn_key(1 - side);
        talk.go_on(6 * SECOND);
        assert!(talk.has_newest_session(MILAN) && talk.has_newest_session(ROME));
    }
}
