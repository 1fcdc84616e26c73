// A peer with several addresses, of which some are dead.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use strait_wg::endpoints::MAX_CANDIDATES;

use super::cases::SECOND;
use super::world::{MILAN, Network, ROME, World, udp_packet};

const STEP: Duration = Duration::from_millis(100);

#[test]
fn a_dead_first_address_costs_no_time() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(1)]);

    world.run(STEP);

    assert!(world.session(ROME).is_established);
    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
    world.assert_accounts_balance();
}

#[test]
fn the_quickest_answer_counts_and_the_other_copies_are_repeats() {
    let mut world = called_at(&[1, 2, 3]);

    world.run(SECOND);

    assert_eq!(world.initiations_to(at(1)), 1);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    let repeats = world.inbound(MILAN).drops(strait_packet::DropReason::Replayed);
    assert_eq!(repeats, 2);
    world.assert_accounts_balance();
}

#[test]
fn a_packet_without_a_session_looks_for_its_peer_at_all_addresses() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(1), at(2)]);
    // Until nobody asks for a session any more.
    world.run(200 * SECOND);
    let before = world.initiations_to(at(2));
    world.run(20 * SECOND);
    assert_eq!(world.initiations_to(at(2)), before);

    world.cut(&[at(1)]);
    assert!(arrives(&mut world, 0));

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    world.assert_accounts_balance();
}

#[test]
fn nobody_is_asked_more_often_than_the_others_while_nobody_answers() {
    let mut world = called_at(&[1, 2, 3]);
    world.cut(&[at(1), at(2), at(3)]);

    world.run(20 * SECOND);

    let asked = [1, 2, 3].map(|last| world.initiations_to(at(last)));
    assert!(asked.iter().all(|count| (3..=5).contains(count)), "{asked:?}");
}

/// The first copy to arrive is answered, always by the same way, and the others are repeats.
#[test]
fn a_way_that_leads_in_one_direction_only_does_not_win_for_ever() {
    let mut world = called_at(&[1, 2]);
    world.mute(&[at(1)]);

    world.run(11 * SECOND);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
    world.assert_accounts_balance();
}

#[test]
fn a_session_that_works_is_renewed_at_one_address_only() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(1)]);
    world.run(SECOND);
    world.cut(&[]);
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
fn another_address_takes_over_from_one_that_dies() {
    let mut world = called_at(&[1, 2]);
    world.run(SECOND);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    world.cut(&[at(1)]);

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
fn a_peer_that_is_looked_for_is_found_at_once() {
    let mut world = called_at(&[1, 2]);
    world.run(SECOND);
    world.cut(&[at(1)]);

    world.seek(ROME);
    world.run(2 * STEP);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert!(arrives(&mut world, 0));
}

#[test]
fn a_server_that_knows_no_address_looks_for_nobody() {
    let mut world = called_at(&[1]);
    world.run(SECOND);
    let client = world.endpoint(MILAN).unwrap();

    world.seek(MILAN);
    world.run(SECOND);

    assert_eq!(world.initiations_to(client), 0);
}

#[test]
fn an_address_that_appears_while_nobody_answers_is_tried_at_once() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(1)]);
    world.set_endpoints(ROME, &[at(1)]);
    world.run(2 * SECOND);
    assert!(!world.session(ROME).is_established);

    world.set_endpoints(ROME, &[at(1), at(2)]);
    world.run(2 * STEP);

    assert_eq!(world.endpoint(ROME), Some(at(2)));
}

#[test]
fn a_session_follows_a_list_without_its_address_and_loses_nothing() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(2)]);
    world.run(SECOND);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
    world.cut(&[]);

    world.set_endpoints(ROME, &[at(2)]);
    for id in 0..20 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.endpoint(ROME), Some(at(2)));
    assert_eq!(world.received(MILAN).len(), 20);
}

#[test]
fn an_address_that_works_is_kept_if_its_successors_are_dead() {
    let mut world = called_at(&[1, 2]);
    world.cut(&[at(2)]);
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
fn a_learned_address_outlives_another_list() {
    let mut world = called_at(&[1, 2]);
    world.run(SECOND);
    world.have(MILAN, &[at(99)]);
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
fn an_address_of_ours_that_is_gone_is_replaced_at_once() {
    let mut world = called_at(&[1, 2]);
    world.run(SECOND);
    world.call(ROME, at(2));
    assert!(arrives(&mut world, 0));
    world.have(MILAN, &[at(1)]);

    for id in 0..10 {
        world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));
        world.run(STEP);
    }

    assert_eq!(world.received(ROME).len(), 10);
    assert_eq!(world.endpoint(ROME), Some(at(1)));
}

/// The kernel sends from an address that is on a link without a carrier all the same.
#[test]
fn an_address_of_ours_that_nothing_comes_back_to_is_left() {
    let [first, second] = ["198.51.100.1:40000", "198.51.100.2:40000"].map(|a| a.parse().unwrap());
    let mut world = called_at(&[1]);
    world.have(ROME, &[first, second]);
    world.run(SECOND);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    assert_eq!(world.last_source(ROME), Some(first));

    world.cut(&[first]);
    world.have(ROME, &[second, first]);
    for id in 1..170 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(STEP);
    }

    assert_eq!(world.last_source(ROME), Some(second));
    assert!(arrives(&mut world, 200));
    world.assert_accounts_balance();
}

#[test]
fn candidates_beyond_the_limit_are_left_out() {
    let all: Vec<u8> = (1..=20).collect();
    let mut world = called_at(&all);
    let addresses: Vec<_> = all.iter().map(|last| at(*last)).collect();
    world.cut(&addresses);

    world.run(SECOND);

    let asked = addresses.iter().filter(|address| world.initiations_to(**address) > 0).count();
    assert_eq!(asked, MAX_CANDIDATES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Whichever address is called, and from wherever.
    #[test]
    fn what_follows_an_authentic_datagram_leaves_from_where_that_came_to(
        calls in prop::collection::vec((1u8..4, any::<bool>()), 1..12),
    ) {
        let mut world = called_at(&[1, 2, 3]);
        world.run(SECOND);

        for (id, (called, moves)) in (0u16..).zip(calls) {
            if moves {
                world.move_to(ROME, SocketAddr::from(([198, 51, 100, 10], 1000 + id)));
            }
            world.call(ROME, at(called));
            prop_assert!(arrives(&mut world, id));
            world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));

            prop_assert_eq!(world.last_source(MILAN), Some(at(called)));
            world.run(STEP);
            prop_assert_eq!(world.endpoint(ROME), Some(at(called)));
            prop_assert_eq!(world.received(ROME).len(), usize::from(id) + 1);
        }
    }

    /// However many of its addresses cannot answer.
    #[test]
    fn a_peer_is_found_at_the_one_address_that_answers(count in 2u8..=8, answers in 0u8..8) {
        let all: Vec<_> = (1..=count).collect();
        let mut world = called_at(&all);
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

    /// Wherever the peer can be reached for half a minute, it is reached by the end of it.
    #[test]
    fn a_peer_is_found_wherever_it_is(
        phases in prop::collection::vec((1u8..8, 1u64..200), 1..5),
    ) {
        let mut world = called_at(&[1, 2, 3]);
        let mut id = 0;

        for (alive, quiet_s) in phases {
            let dead = (1u8..=3).filter(|last| alive & (1 << (last - 1)) == 0).map(at);
            world.cut(&dead.collect::<Vec<_>>());
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

/// Milan can be called at the addresses with these last numbers, and Rome knows.
fn called_at(lasts: &[u8]) -> World {
    let mut world = World::new(Network::PERFECT);
    world.call_at(MILAN, &lasts.iter().map(|last| at(*last)).collect::<Vec<_>>());

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
