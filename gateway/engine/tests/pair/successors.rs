// Processes that take over the key of another one, such as a replica, and start without its sessions: the peer accepts
// only initiations that are dated after those of the former process.

use std::time::Duration;

use strait_wg::Engine;

use super::ENGINES;
use super::cases::SECOND;
use super::packets::udp_packet;
use super::world::{MILAN, Network, ROME, World};

/// A replica that takes over on a node whose clock is behind must date its initiations after the former ones.
#[test]
fn successor_with_slow_clock_needs_the_former_timestamp() {
    // The library takes timestamps from the clock of the machine.
    if ENGINES[ROME] != Engine::Native {
        return;
    }
    for continues in [true, false] {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);
        assert_eq!(world.received(MILAN).len(), 0);

        world.restart_behind(ROME, 600 * SECOND, continues);
        world.run(10 * SECOND);
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
        world.run(SECOND);

        assert_eq!(world.received(MILAN).len(), usize::from(continues));
    }
}

/// The initiations of the former process were dated ahead of the clock after the peer had not answered for a while.
#[test]
fn successor_after_an_outage_is_answered_at_once() {
    // The library takes timestamps from the clock of the machine.
    if ENGINES[ROME] != Engine::Native {
        return;
    }
    for continues in [true, false] {
        let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
        world.run(12 * SECOND);
        world.set_network(Network::PERFECT);
        world.run(6 * SECOND);
        assert!(world.session(ROME).is_established);

        for _ in 0..3 {
            world.restart_behind(ROME, Duration::ZERO, continues);
            world.run(2 * SECOND);
            assert_eq!(world.session(ROME).is_established, continues);
        }
    }
}

/// A packet starts the handshake before the first timeout, which finds the request for one.
#[test]
fn successor_with_traffic_starts_one_handshake() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    world.clear_records();

    world.restart(ROME);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(10 * SECOND);

    assert_eq!(world.distinct_initiations(), 1);
    assert_eq!(world.received(MILAN).len(), 1);
}

/// The first successor sends a second initiation before the answer to its first one can arrive. If that were dated ahead
/// of the clock, the peer would drop the initiations of the second successor as replayed.
#[test]
fn successor_of_a_successor_gets_a_session() {
    // The library takes timestamps from the clock of the machine.
    if ENGINES[ROME] != Engine::Native {
        return;
    }
    let delay = Duration::from_millis(150);
    let mut world = World::new(Network { delay, ..Network::PERFECT });
    world.run(SECOND);
    world.restart(ROME);
    world.run(delay);
    world.seek(ROME);
    world.run(SECOND);

    world.restart(ROME);
    world.run(SECOND);

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    assert_eq!(world.received(MILAN).len(), 1);
}
