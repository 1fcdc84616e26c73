// Which endpoint is used: roaming, and a peer with several endpoints, some of them unreachable.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use strait_wg::Engine;
use strait_wg::endpoints::MAX_CANDIDATES;
use strait_wg::message::Message;

use super::ENGINES;
use super::cases::SECOND;
use super::packets::udp_packet;
use super::world::{MILAN, Network, ROME, World};

const STEP: Duration = Duration::from_millis(100);

#[test]
fn endpoint_follows_only_authentic_datagrams() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    world.inject_from("203.0.113.9:9".parse().unwrap(), MILAN, &[4; 64]);
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);
    assert_eq!(world.received(ROME).len(), 1, "a forged datagram moved the endpoint");

    world.move_to(ROME, "198.51.100.77:4444".parse().unwrap());
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 1));
    world.run(SECOND);
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 2));
    world.run(SECOND);
    assert_eq!(world.received(ROME).len(), 2, "the answer went to the old endpoint");
}

/// The library does not report reordering.
#[test]
fn reordered_initiation_does_not_move_the_endpoint() {
    if ENGINES[MILAN] != Engine::Native {
        return;
    }
    let mut world = World::new(Network::PERFECT);
    world.run(121 * SECOND);
    let before = world.endpoint(MILAN).unwrap();

    // The session is old enough for a rekey, which the next packet starts.
    world.set_network(Network { delay: SECOND, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND / 5);
    let delayed = world.in_flight();
    assert!(delayed.iter().any(|d| Message::classify(d) == Some(Message::Initiation)));
    world.set_network(Network::PERFECT);
    world.move_to(ROME, "198.51.100.77:4444".parse().unwrap());
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 1));
    world.run(SECOND / 5);
    for datagram in delayed {
        world.inject_from(before, MILAN, &datagram);
    }

    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 2));
    world.run(SECOND);
    assert_eq!(world.received(ROME).len(), 1, "the answer went to the former endpoint");
}

/// It is authentic, but an attacker on the path can obtain one and send it from any address.
#[test]
fn cookie_reply_does_not_move_the_endpoint() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    let initiation = world.eavesdropped.last().unwrap().clone();
    for port in 1_000..3_000 {
        world.inject_from(SocketAddr::from(([203, 0, 113, 7], port)), MILAN, &initiation);
    }
    let is_cookie =
        |d: &&Vec<u8>| matches!(Message::classify(d), Some(Message::CookieReply { .. }));
    let reply = world.eavesdropped.iter().find(is_cookie).unwrap().clone();
    let before = world.endpoint(ROME);

    world.inject_from("203.0.113.9:9".parse().unwrap(), ROME, &reply);

    assert_eq!(world.inbound(ROME).protocol_messages, 1, "it was accepted");
    assert_eq!(world.endpoint(ROME), before);
}

#[test]
fn dead_first_endpoint_causes_no_delay() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(1)]);

    world.run(STEP);

    assert!(world.session(ROME).is_established);
    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
    world.assert_accounts_balance();
}

#[test]
fn fastest_response_selects_the_endpoint() {
    let mut world = reachable_at(&[1, 2, 3]);
    // The response arrives after the last copy was sent.
    world.set_network(Network { delay: STEP, ..Network::PERFECT });

    world.run(SECOND);

    assert_eq!(world.initiations_to(at(1)), 1);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    let repeats = world.inbound(MILAN).drops(strait_packet::DropReason::Replayed);
    assert_eq!(repeats, 2);
    world.assert_accounts_balance();
}

#[test]
fn packet_without_session_tries_all_endpoints() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(1), at(2)]);
    // Until the handshake is given up.
    world.run(200 * SECOND);
    let before = world.initiations_to(at(2));
    world.run(20 * SECOND);
    assert_eq!(world.initiations_to(at(2)), before);

    world.block(&[at(1)]);
    assert!(arrives(&mut world, 0));

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    world.assert_accounts_balance();
}

#[test]
fn unreachable_endpoints_are_tried_equally_often() {
    let mut world = reachable_at(&[1, 2, 3]);
    world.block(&[at(1), at(2), at(3)]);

    world.run(20 * SECOND);

    let asked = [1, 2, 3].map(|last| world.initiations_to(at(last)));
    assert!(asked.iter().all(|count| (3..=5).contains(count)), "{asked:?}");
}

/// Only the first copy to arrive is answered, and each time it is the same path.
#[test]
fn one_way_path_does_not_block_the_others() {
    let mut world = reachable_at(&[1, 2]);
    world.mute(&[at(1)]);

    world.run(11 * SECOND);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
    world.assert_accounts_balance();
}

#[test]
fn working_session_is_renewed_at_one_endpoint() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(1)]);
    world.run(SECOND);
    world.block(&[]);
    let before = [1, 2].map(|last| world.initiations_to(at(last)));

    for id in 0..4000 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));
        world.run(STEP);
    }

    assert_eq!(world.initiations_to(at(1)), before[0]);
    assert!(world.initiations_to(at(2)) >= before[1] + 3, "three rekeys in 400 s");
    assert_eq!(world.received(MILAN).len(), 4000);
}

/// Silence is noticed after 15 s (WireGuard whitepaper section 6.5), and no session has to end first.
#[test]
fn dead_endpoint_is_replaced() {
    let mut world = reachable_at(&[1, 2]);
    world.run(SECOND);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    world.block(&[at(1)]);

    let delivered = world.received(MILAN).len();
    for id in 0..170 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(world.received(MILAN).len() > delivered);
    assert!(arrives(&mut world, 200));
    world.assert_accounts_balance();
}

#[test]
fn requested_search_finds_the_peer_at_once() {
    let mut world = reachable_at(&[1, 2]);
    world.run(SECOND);
    world.block(&[at(1)]);

    world.seek(ROME);
    world.run(2 * STEP);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
}

#[test]
fn search_without_candidates_sends_nothing() {
    let mut world = reachable_at(&[1]);
    world.run(SECOND);
    let client = world.endpoint(MILAN).unwrap();

    world.seek(MILAN);
    world.run(SECOND);

    assert_eq!(world.initiations_to(client), 0);
}

#[test]
fn new_candidate_is_tried_without_delay() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(1)]);
    world.set_endpoints(ROME, &[at(1)]);
    world.run(2 * SECOND);
    assert!(!world.session(ROME).is_established);

    world.set_endpoints(ROME, &[at(1), at(2)]);
    world.run(2 * STEP);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
}

#[test]
fn session_moves_to_new_candidates_without_loss() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(2)]);
    world.run(SECOND);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    world.block(&[]);

    world.set_endpoints(ROME, &[at(2)]);
    for id in 0..20 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert_eq!(world.received(MILAN).len(), 20);
}

#[test]
fn working_endpoint_outlives_dead_candidates() {
    let mut world = reachable_at(&[1, 2]);
    world.block(&[at(2)]);
    world.run(SECOND);

    world.set_endpoints(ROME, &[at(2)]);
    for id in 0..2000 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.endpoint(ROME), Some(at(1)));
    assert_eq!(world.received(MILAN).len(), 2000);
}

#[test]
fn learned_endpoint_outlives_new_candidates() {
    let mut world = reachable_at(&[1, 2]);
    world.run(SECOND);
    world.set_addresses(MILAN, &[at(99)]);
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);
    assert_eq!(world.endpoint(ROME), Some(at(99)));

    world.set_endpoints(ROME, &[at(2), at(3)]);
    world.apply_again(ROME);
    world.run(SECOND);

    assert_eq!(world.endpoint(ROME), Some(at(99)));
    assert!(arrives(&mut world, 1));
}

#[test]
fn removed_local_address_is_replaced_at_once() {
    let mut world = reachable_at(&[1, 2]);
    world.run(SECOND);
    world.set_endpoint(ROME, at(2));
    assert!(arrives(&mut world, 0));
    world.set_addresses(MILAN, &[at(1)]);

    for id in 0..10 {
        world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));
        world.run(STEP);
    }

    assert_eq!(world.received(ROME).len(), 10);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
}

/// The kernel still sends from an address on a link without carrier.
#[test]
fn unanswered_local_address_is_replaced() {
    let [first, second] = ["198.51.100.1:40000", "198.51.100.2:40000"].map(|a| a.parse().unwrap());
    let mut world = reachable_at(&[1]);
    world.set_addresses(ROME, &[first, second]);
    world.run(SECOND);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    assert_eq!(world.last_source(ROME), Some(first));

    world.block(&[first]);
    world.set_addresses(ROME, &[second, first]);
    for id in 1..170 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.last_source(ROME), Some(second));
    assert!(arrives(&mut world, 200));
    world.assert_accounts_balance();
}

#[test]
fn candidates_beyond_the_limit_are_ignored() {
    let all: Vec<u8> = (1..=20).collect();
    let mut world = reachable_at(&all);
    let addresses: Vec<_> = all.iter().map(|last| at(*last)).collect();
    world.block(&addresses);

    world.run(SECOND);

    let asked = addresses.iter().filter(|address| world.initiations_to(**address) > 0).count();
    assert_eq!(asked, MAX_CANDIDATES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// For any endpoint and any source address.
    #[test]
    fn replies_leave_from_the_address_that_received(
        endpoints in prop::collection::vec((1u8..4, any::<bool>()), 1..12),
    ) {
        let mut world = reachable_at(&[1, 2, 3]);
        world.run(SECOND);

        for (id, (endpoint, moves)) in (0u16..).zip(endpoints) {
            if moves {
                world.move_to(ROME, SocketAddr::from(([198, 51, 100, 10], 1000 + id)));
            }
            world.set_endpoint(ROME, at(endpoint));
            prop_assert!(arrives(&mut world, id));
            world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));

            prop_assert_eq!(world.last_source(MILAN), Some(at(endpoint)));
            world.run(STEP);
            prop_assert_eq!(world.endpoint(ROME), Some(at(endpoint)));
            prop_assert_eq!(world.received(ROME).len(), usize::from(id) + 1);
        }
    }

    /// For any number of endpoints that do not answer.
    #[test]
    fn peer_is_found_at_its_only_working_endpoint(count in 2u8..=8, answers in 0u8..8) {
        let all: Vec<_> = (1..=count).collect();
        let mut world = reachable_at(&all);
        let answers = 1 + answers % count;
        world.mute(&all.into_iter().filter(|last| *last != answers).map(at).collect::<Vec<_>>());

        for id in 0..1200 {
            world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
            world.run(STEP);
        }

        prop_assert_eq!(world.endpoint(ROME), Some(at(answers)));
        prop_assert!(arrives(&mut world, 1200));
        world.assert_accounts_balance();
    }

    /// A peer that is reachable for half a minute has a session by then.
    #[test]
    fn reachable_peer_is_found_within_half_a_minute(
        phases in prop::collection::vec((1u8..8, 1u64..200), 1..5),
    ) {
        let mut world = reachable_at(&[1, 2, 3]);
        let mut id = 0;

        for (alive, quiet_s) in phases {
            let dead = (1u8..=3).filter(|last| alive & (1 << (last - 1)) == 0).map(at);
            world.block(&dead.collect::<Vec<_>>());
            world.run(u32::try_from(quiet_s).unwrap() * SECOND);
            for _ in 0..300 {
                world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
                world.run(STEP);
                id += 1;
            }

            prop_assert!(arrives(&mut world, id), "at {alive:03b} after {quiet_s} s");
            id += 1;
        }
        world.assert_accounts_balance();
    }
}

/// Milan has the addresses with these last octets, which are configured at Rome.
fn reachable_at(lasts: &[u8]) -> World {
    let mut world = World::new(Network::PERFECT);
    world.publish_addresses(MILAN, &lasts.iter().map(|last| at(*last)).collect::<Vec<_>>());

    world
}

/// Whether a packet from Rome arrives in Milan.
fn arrives(world: &mut World, id: u16) -> bool {
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
    world.run(STEP);

    world.received(MILAN).last() == Some(&udp_packet("10.71.1.5", "10.244.2.7", id))
}

fn at(last: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, last], 51840))
}
