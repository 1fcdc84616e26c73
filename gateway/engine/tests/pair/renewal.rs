// All sessions are ended and replaced, because a copy of this process may use them.
//
// The protocol checker asserts that nothing more is sent in the former sessions.

use std::time::Duration;

use super::keys::Traffic;
use super::packets::udp_packet;
use super::world::{MILAN, Network, ROME, World};

const SECOND: Duration = Duration::from_secs(1);

const SIDES: [usize; 2] = [MILAN, ROME];

#[test]
fn session_renewal_loses_at_most_one_packet() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.run(SECOND);
        let endpoint = traffic.world.endpoint(side);
        let last_handshake = traffic.world.session(side).last_handshake;

        traffic.world.renew_sessions(side);
        let session = traffic.world.session(side);
        assert!(!session.is_established);
        assert_eq!(session.last_handshake, last_handshake);
        traffic.run(60 * SECOND);

        assert!(traffic.world.session(side).last_handshake > last_handshake);
        assert_eq!(traffic.world.received(1 - side).len(), usize::from(traffic.sent));
        let lost = usize::from(traffic.sent) - traffic.world.received(side).len();
        assert!(lost <= 1, "{lost} packets to {side}");
        assert_eq!(traffic.world.endpoint(side), endpoint);
        traffic.world.assert_accounts_balance();
    }
}

/// Otherwise it would notice after 15 s (WireGuard whitepaper, section 6.5) at the earliest.
#[test]
fn session_renewal_starts_a_handshake_at_once() {
    for side in SIDES {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);

        world.renew_sessions(side);
        world.run(SECOND);

        assert!(world.session(side).is_established);
        let packets = [("10.244.1.5", "10.71.2.7"), ("10.244.2.7", "10.71.1.5")];
        world.send(1 - side, &udp_packet(packets[side].0, packets[side].1, 0));
        world.run(SECOND);
        assert_eq!(world.received(side).len(), 1);
    }
}

/// A peer that answers a second initiation replaces the session that it offered in answer to the first, and drops what was
/// sealed with that.
#[test]
fn renewal_with_traffic_starts_one_handshake() {
    let packets = [("10.244.2.7", "10.71.1.5"), ("10.244.1.5", "10.71.2.7")];
    for side in SIDES {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);
        world.clear_records();

        world.renew_sessions(side);
        world.send(side, &udp_packet(packets[side].0, packets[side].1, 0));
        world.run(SECOND);

        assert_eq!(world.distinct_initiations(), 1);
        assert_eq!(world.received(1 - side).len(), 1);
    }
}

#[test]
fn staged_packets_survive_session_renewal() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    let addresses = [world.endpoint(MILAN).unwrap(), world.endpoint(ROME).unwrap()];
    world.block(&addresses);
    world.renew_sessions(ROME);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    assert_eq!(world.staged(ROME), 1);

    world.renew_sessions(ROME);
    world.block(&[]);
    world.run(SECOND);

    assert_eq!(world.received(MILAN).len(), 1);
    world.assert_accounts_balance();
}

#[test]
fn renewal_without_session_starts_no_handshake() {
    for side in SIDES {
        let mut world = World::new(Network::PERFECT);
        world.run(400 * SECOND);
        world.clear_records();
        assert!(!world.session(side).is_established);

        world.renew_sessions(side);
        world.run(100 * SECOND);

        assert_eq!(world.eavesdropped.len(), 0);
    }
}

/// The peer does not know the newest key yet, so the session of the former key is in use.
#[test]
fn former_key_gets_a_new_session_within_grace() {
    for side in SIDES {
        let mut traffic = Traffic::start(Network::PERFECT);
        traffic.world.change_key(side);
        traffic.run(SECOND);

        traffic.world.renew_sessions(side);
        traffic.run(20 * SECOND);

        assert!(!traffic.has_newest_session(side));
        assert_eq!(traffic.world.received(1 - side).len(), usize::from(traffic.sent));
        let lost = usize::from(traffic.sent) - traffic.world.received(side).len();
        assert!(lost <= 1, "{lost} packets to {side}");
        traffic.world.learn_key(1 - side);
        traffic.run(6 * SECOND);
        assert!(traffic.has_newest_session(MILAN) && traffic.has_newest_session(ROME));
    }
}
