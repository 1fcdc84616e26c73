// What two engines do for packets, whatever is between them.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use strait_packet::DropReason;
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_wg::Engine;
use strait_wg::PresharedKey;
use strait_wg::message::Message;

use super::ENGINES;
use super::world::{MILAN, Network, ROME, World, udp_packet};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_packet_arrives_under_the_name_the_other_cluster_gave_to_its_sender() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    // Both call their own pods 10.244.0.0/16 and the other's 10.71.0.0/16.
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);

    assert_eq!(world.received(MILAN), [udp_packet("10.71.1.5", "10.244.2.7", 0)]);
}

#[test]
fn an_answer_comes_back_from_the_address_that_was_asked() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);

    assert_eq!(world.received(ROME), [udp_packet("10.71.2.7", "10.244.1.5", 0)]);
}

#[test]
fn only_real_addresses_cross_the_wire_and_nothing_else_can_be_read_there() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);

    let payload = b"payload";
    assert!(!world.eavesdropped.iter().any(|d| d.windows(payload.len()).any(|w| w == payload)));
}

#[test]
fn packets_staged_for_the_first_handshake_go_out_in_order() {
    let mut world = World::new(Network::PERFECT);

    for id in 0..20 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
    }
    assert_eq!(world.staged(ROME), 20);
    world.run(SECOND);

    let expected: Vec<_> = (0..20).map(|id| udp_packet("10.71.1.5", "10.244.2.7", id)).collect();
    assert_eq!(world.received(MILAN), expected);
    world.assert_accounts_balance();
}

#[test]
fn staged_packets_are_bounded_and_the_rest_is_counted() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });

    for id in 0..300 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
    }

    assert_eq!(world.staged(ROME), 256);
    assert_eq!(world.outbound(ROME).drops(DropReason::StagingFull), 44);
    world.assert_accounts_balance();
}

#[test]
fn staged_packets_are_given_up_and_counted_when_nobody_answers() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));

    world.run(100 * SECOND);

    assert_eq!(world.outbound(ROME).drops(DropReason::HandshakeTimeout), 1);
    assert_eq!(world.staged(ROME), 0);
    world.assert_accounts_balance();
}

/// WireGuard whitepaper, section 6.2: `REKEY_AFTER_TIME` is 120 s.
#[test]
fn a_session_is_renewed_after_120_seconds_without_losing_a_packet() {
    let mut world = World::new(Network::PERFECT);
    let mut sent = 0;
    world.run(SECOND);

    for _ in 0..4000 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", sent));
        world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", sent));
        sent += 1;
        world.run(Duration::from_millis(100));
    }
    world.run(SECOND);

    assert_eq!(world.received(MILAN).len(), usize::from(sent));
    assert_eq!(world.received(ROME).len(), usize::from(sent));
    let initiations = world.count(|m| m == Message::Initiation);
    assert!((4..=8).contains(&initiations), "{initiations} initiations in 400 s");
    world.assert_accounts_balance();
}

#[test]
fn a_replayed_datagram_is_dropped_and_counted() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    let datagram = world.last_data_datagram();

    for _ in 0..1000 {
        world.inject(ROME, MILAN, &datagram);
    }

    assert_eq!(world.received(MILAN).len(), 1);
    assert_eq!(world.inbound(MILAN).drops(DropReason::Replayed), 1000);
    world.assert_accounts_balance();
}

#[test]
fn every_flipped_byte_of_a_datagram_makes_it_worthless() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    let datagram = world.in_flight().pop().unwrap();
    let before = world.inbound(MILAN).packets_out;

    for position in 0..datagram.len() {
        let mut forged = datagram.clone();
        forged[position] ^= 0x01;
        world.inject(ROME, MILAN, &forged);
    }

    assert_eq!(world.inbound(MILAN).packets_out, before);
    world.inject(ROME, MILAN, &datagram);
    assert_eq!(world.inbound(MILAN).packets_out, before + 1, "the true one still counts");
    world.assert_accounts_balance();
}

#[test]
fn garbage_in_the_middle_of_a_merged_message_costs_only_itself() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    for id in 0..3 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
    }
    let mut datagrams = world.in_flight();
    datagrams[1].fill(0xff);

    world.inject_merged(ROME, MILAN, &datagrams);

    let ids = [0, 2].map(|id| udp_packet("10.71.1.5", "10.244.2.7", id));
    assert_eq!(world.received(MILAN), ids);
    assert_eq!(world.inbound(MILAN).drops(DropReason::Malformed), 1);
    world.assert_accounts_balance();
}

#[test]
fn a_source_outside_the_allowed_ips_is_dropped() {
    let mut world = World::new(Network::PERFECT);
    world.allow(MILAN, "10.244.0.0/17");
    world.run(SECOND);

    world.send(ROME, &udp_packet("10.244.200.1", "10.71.2.7", 0));
    world.send(ROME, &udp_packet("10.244.100.1", "10.71.2.7", 1));
    world.run(SECOND);

    assert_eq!(world.received(MILAN), [udp_packet("10.71.100.1", "10.244.2.7", 1)]);
    assert_eq!(world.inbound(MILAN).drops(DropReason::SourceNotAllowed), 1);
    world.assert_accounts_balance();
}

#[test]
fn a_destination_without_a_rule_never_leaves() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    let before = world.eavesdropped.len();

    let lost = ["10.72.0.1", "192.0.2.1", "10.244.2.7"]
        .map(|destination| udp_packet("10.244.1.5", destination, 0));
    for packet in &lost {
        world.send(ROME, packet);
    }

    assert_eq!(world.outbound(ROME).drops(DropReason::NoRoute), 3);
    assert_eq!(world.eavesdropped.len(), before);
    assert_told(&world, ROME, &lost);
    world.assert_accounts_balance();
}

/// The server learns where the client is. Until then, nothing is translated or remembered.
#[test]
fn a_packet_to_a_peer_without_an_endpoint_is_quoted_as_it_was_sent() {
    let mut world = World::new(Network::PERFECT);
    let lost = [udp_packet("10.244.2.7", "10.71.1.5", 0)];

    world.send(MILAN, &lost[0]);

    assert_eq!(world.outbound(MILAN).drops(DropReason::NoEndpoint), 1);
    assert_told(&world, MILAN, &lost);
    world.assert_accounts_balance();
}

/// A frame that is to be segmented counts as what would have been sent, whatever it is dropped for.
#[test]
fn a_frame_that_is_dropped_counts_as_the_packets_it_stands_for() {
    for (side, destination, reason) in [
        (ROME, "203.0.113.1", DropReason::NoRoute),
        (MILAN, "10.71.1.5", DropReason::NoEndpoint),
    ] {
        let mut world = World::new(Network::PERFECT);
        let frame = udp_packet("10.244.2.7", destination, 0);
        let virtio = VirtioHeader {
            needs_checksum: true,
            gso: Gso::UdpL4,
            header_len: 28,
            gso_size: 8,
            checksum_start: 20,
            checksum_offset: 6,
        };

        world.send_frame(side, &virtio, &frame);

        // 23 bytes of payload.
        assert_eq!(world.outbound(side).drops(reason), 3);
        assert_eq!(world.outbound(side).packets_in, 3);
        assert_eq!(world.outbound(side).bytes_in, 3 * 28 + 23);
        world.assert_accounts_balance();
    }
}

/// As the replica that takes over does, on a node whose clock is behind.
#[test]
fn a_successor_whose_clock_is_behind_has_a_session_if_it_is_told_what_was_said_before() {
    // The library dates by the clock of the machine.
    if ENGINES[ROME] != Engine::Native {
        return;
    }
    for is_told in [true, false] {
        let mut world = World::new(Network::PERFECT);
        world.run(SECOND);
        assert_eq!(world.received(MILAN).len(), 0);

        world.restart_behind(ROME, 600 * SECOND, is_told);
        world.run(10 * SECOND);
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
        world.run(SECOND);

        assert_eq!(world.received(MILAN).len(), usize::from(is_told));
    }
}

/// What waits for a handshake that never comes is given up in silence, as the kernel does.
#[test]
fn nobody_is_told_of_packets_that_a_handshake_never_came_for() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(Duration::from_secs(120));

    assert_eq!(world.outbound(ROME).drops(DropReason::HandshakeTimeout), 1);
    assert_told(&world, ROME, &[]);
}

#[test]
fn the_endpoint_follows_an_authentic_peer_and_nobody_else() {
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

/// The library does not tell what was overtaken.
#[test]
fn an_initiation_that_was_overtaken_leads_nobody_back() {
    if ENGINES[MILAN] != Engine::Native {
        return;
    }
    let mut world = World::new(Network::PERFECT);
    world.run(121 * SECOND);
    let before = world.endpoint(MILAN).unwrap();

    // The session is old enough for another one, which the next packet asks for.
    world.set_network(Network { delay: SECOND, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND / 5);
    let overtaken = world.in_flight();
    assert!(overtaken.iter().any(|d| Message::classify(d) == Some(Message::Initiation)));
    world.set_network(Network::PERFECT);
    world.move_to(ROME, "198.51.100.77:4444".parse().unwrap());
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 1));
    world.run(SECOND / 5);
    for datagram in overtaken {
        world.inject_from(before, MILAN, &datagram);
    }

    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 2));
    world.run(SECOND);
    assert_eq!(world.received(ROME).len(), 1, "the answer went to where the peer was");
}

/// It is authentic, but anybody on the way can have one made and send it from anywhere.
#[test]
fn a_cookie_reply_moves_nobody() {
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

    assert_eq!(world.inbound(ROME).protocol_messages, 1, "it was believed");
    assert_eq!(world.endpoint(ROME), before);
}

#[test]
fn applying_a_configuration_again_keeps_session_and_learned_endpoint() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    world.move_to(ROME, "198.51.100.77:4444".parse().unwrap());
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    let handshakes = world.count(|m| m == Message::Initiation);

    world.apply_again(MILAN);
    world.apply_again(ROME);
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 1));
    world.run(SECOND);

    assert_eq!(world.received(ROME).len(), 1);
    assert_eq!(world.count(|m| m == Message::Initiation), handshakes);
}

#[test]
fn a_new_name_is_no_new_session() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);
    let handshakes = world.count(|m| m == Message::Initiation);

    world.reconfigure(ROME, |peer| peer.name = "renamed".into());
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);

    assert_eq!(world.received(MILAN).len(), 1);
    assert_eq!(world.count(|m| m == Message::Initiation), handshakes);
}

#[test]
fn new_keys_begin_a_new_session_with_the_endpoint_that_was_learned() {
    let key = PresharedKey::from_file_content(&[7; 32]).unwrap();
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    for side in [MILAN, ROME] {
        let key = key.clone();
        world.reconfigure(side, |peer| peer.keys.preshared_key = Some(key));
    }
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);

    assert_eq!(world.received(ROME).len(), 1, "the server had learned where the client is");
    world.assert_accounts_balance();
}

#[test]
fn what_is_staged_for_a_peer_that_is_removed_is_counted() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));

    world.remove_peer(ROME);

    assert_eq!(world.outbound(ROME).drops(DropReason::PeerRemoved), 1);
    assert_eq!(world.outbound(ROME).balance(), 0);
}

#[test]
fn the_round_trip_of_the_handshake_is_measured_on_both_sides() {
    let delay = Duration::from_millis(15);
    let mut world = World::new(Network { delay, ..Network::PERFECT });

    world.run(SECOND);

    assert_eq!(world.session(ROME).rtt, Some(2 * delay));
    assert_eq!(world.session(MILAN).rtt, Some(2 * delay));
}

#[test]
fn the_round_trip_of_a_rekey_is_not_mistaken_for_the_gap_between_two_packets() {
    let delay = Duration::from_millis(15);
    let mut world = World::new(Network { delay, ..Network::PERFECT });

    for id in 0..13_000 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
        world.run(Duration::from_millis(10));
    }

    assert!(world.count(|m| m == Message::Initiation) >= 2, "there was a rekey");
    assert_eq!(world.session(MILAN).rtt, Some(2 * delay));
}

/// RFC 6040: a mark that the underlay sets reaches the receiver if the sender speaks ECN.
#[test]
fn congestion_on_the_underlay_is_seen_inside() {
    let mut world = World::new(Network { marks_congestion: true, ..Network::PERFECT });
    world.run(SECOND);
    let mut capable = udp_packet("10.244.1.5", "10.71.2.7", 0);
    super::world::set_ecn_bits(&mut capable, 0b10);

    world.send(ROME, &capable);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 1));
    world.run(SECOND);

    let received = world.received(MILAN);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0][1] & 0b11, 0b11);
    assert_eq!(world.inbound(MILAN).drops(DropReason::CongestionUnmarkable), 1);
    world.assert_accounts_balance();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the network does: what arrives is what was sent, at most once, and every packet is
    /// accounted for on both sides.
    #[test]
    fn a_bad_network_loses_packets_but_never_the_account(
        seed: u64,
        loss_percent in 0u32..40,
        repeat_percent in 0u32..20,
        jitter_ms in 0u64..50,
        count in 1u16..200,
    ) {
        let mut world = World::new(Network {
            seed,
            loss_percent,
            repeat_percent,
            jitter: Duration::from_millis(jitter_ms),
            ..Network::PERFECT
        });

        for id in 0..count {
            world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
            world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", id));
            world.run(Duration::from_millis(20));
        }
        world.run(200 * SECOND);

        world.assert_accounts_balance();
        let mut ids: Vec<u16> = world.received(MILAN).iter().map(|p| super::world::packet_id(p)).collect();
        let delivered = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), delivered, "a packet arrived twice");
        for packet in world.received(MILAN) {
            let id = super::world::packet_id(&packet);
            prop_assert_eq!(packet, udp_packet("10.71.1.5", "10.244.2.7", id));
        }
    }
}

/// Host unreachable about each of `lost`, which it quotes, and nothing else.
#[track_caller]
fn assert_told(world: &World, side: usize, lost: &[Vec<u8>]) {
    let quoted: Vec<_> = world.told(side).iter().map(|error| &error[28..]).collect();

    assert_eq!(quoted, lost);
    for error in world.told(side) {
        assert_eq!((error[9], &error[20..22]), (1, &[3, 1][..]));
    }
}
