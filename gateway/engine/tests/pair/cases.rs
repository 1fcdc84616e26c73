// Forwarding, accounting, roaming and reconfiguration between two engines.

use std::time::Duration;

use proptest::prelude::*;
use strait_packet::DropReason;
use strait_packet::buffer::TransmitBatch;
use strait_packet::virtio::{Gso, VirtioHeader};
use strait_wg::{Engine, PresharedKey};
use strait_wg::message::Message;

use super::ENGINES;
use super::packets::udp_packet;
use super::world::{MILAN, Network, ROME, World};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

#[test]
fn packet_arrives_with_remapped_source() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    // Both clusters have the pod CIDR 10.244.0.0/16, and remap the other's to 10.71.0.0/16.
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);

    assert_eq!(world.received(MILAN), [udp_packet("10.71.1.5", "10.244.2.7", 0)]);
}

#[test]
fn answer_comes_from_the_requested_address() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);

    assert_eq!(world.received(ROME), [udp_packet("10.71.2.7", "10.244.1.5", 0)]);
}

#[test]
fn probes_of_the_path_are_answered() {
    let mut world = World::new(Network::PERFECT);
    world.probe_path(ROME, &[576]);
    world.run(SECOND);
    assert_eq!(world.peer(ROME).take_answered_probes(), [0; 0], "there was no session");

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);
    for side in [MILAN, ROME] {
        world.probe_path(side, &[576, 1000, 1400, 1400]);
        world.run(SECOND);

        let are_ours = ENGINES == [Engine::Native; 2];
        let expected: &[u16] = if are_ours { &[576, 1000, 1400, 1400] } else { &[] };
        assert_eq!(world.peer(side).take_answered_probes(), expected);
    }
    assert_eq!(world.received(MILAN).len(), 1);
    world.assert_accounts_balance();
}

#[test]
fn payload_is_not_readable_on_the_wire() {
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(SECOND);

    let payload = b"payload";
    assert!(!world.eavesdropped.iter().any(|d| d.windows(payload.len()).any(|w| w == payload)));
}

#[test]
fn staged_packets_are_sent_in_order() {
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
fn staged_packets_are_bounded() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });

    for id in 0..300 {
        world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", id));
    }

    assert_eq!(world.staged(ROME), 256);
    assert_eq!(world.outbound(ROME).drops(DropReason::StagingFull), 44);
    world.assert_accounts_balance();
}

#[test]
fn staged_packets_time_out_without_response() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));

    world.run(100 * SECOND);

    assert_eq!(world.outbound(ROME).drops(DropReason::HandshakeTimeout), 1);
    assert_eq!(world.staged(ROME), 0);
    world.assert_accounts_balance();
}

/// WireGuard whitepaper, section 6.2: `REKEY_AFTER_TIME` is 120 s.
#[test]
fn rekey_after_120_seconds_loses_no_packet() {
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
fn replayed_datagram_is_dropped() {
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
fn datagram_with_any_flipped_bit_is_dropped() {
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
    assert_eq!(world.inbound(MILAN).packets_out, before + 1, "the original is accepted");
    world.assert_accounts_balance();
}

#[test]
fn garbage_in_merged_message_drops_only_itself() {
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
fn source_outside_allowed_ips_is_dropped() {
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
fn destination_without_rule_is_dropped() {
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
    assert_icmp_errors(&world, ROME, &lost);
    world.assert_accounts_balance();
}

/// The server learns the endpoint of the client. Until then, packets are not translated, and no flow is recorded.
#[test]
fn drop_without_endpoint_quotes_the_original_packet() {
    let mut world = World::new(Network::PERFECT);
    let lost = [udp_packet("10.244.2.7", "10.71.1.5", 0)];

    world.send(MILAN, &lost[0]);

    assert_eq!(world.outbound(MILAN).drops(DropReason::NoEndpoint), 1);
    assert_icmp_errors(&world, MILAN, &lost);
    world.assert_accounts_balance();
}

/// A dropped frame counts the packets into which it would have been segmented, for every drop reason.
#[test]
fn dropped_frame_counts_its_segments() {
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
            overlay: None,
        };

        world.send_frame(side, &virtio, &frame);

        // 23 bytes of payload.
        assert_eq!(world.outbound(side).drops(reason), 3);
        assert_eq!(world.outbound(side).packets_in, 3);
        assert_eq!(world.outbound(side).bytes_in, 3 * 28 + 23);
        world.assert_accounts_balance();
    }
}

/// The caller drains the batch each time that it is full.
#[test]
fn frame_larger_than_the_batch_arrives() {
    let mut world = World::new(Network::PERFECT);
    let packet = udp_packet("10.244.1.5", "10.71.2.7", 0);
    world.send(ROME, &packet);
    world.run(SECOND);
    assert_eq!(world.received(MILAN).len(), 1);
    let virtio = VirtioHeader {
        needs_checksum: true,
        gso: Gso::UdpL4,
        header_len: 28,
        gso_size: 8,
        checksum_start: 20,
        checksum_offset: 6,
        overlay: None,
    };

    // Three packets of at most 36 bytes, each of which is sealed into 80. The library wants more room than it uses.
    let full = world.send_frame_in(|| TransmitBatch::with_capacity(200), ROME, &virtio, &packet);
    world.run(SECOND);

    assert!(full >= 1, "{full}");
    assert_eq!(world.received(MILAN).len(), 1 + 3);
    world.assert_accounts_balance();
}

/// As with the kernel.
#[test]
fn handshake_timeout_sends_no_icmp_error() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });

    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));
    world.run(Duration::from_secs(120));

    assert_eq!(world.outbound(ROME).drops(DropReason::HandshakeTimeout), 1);
    assert_icmp_errors(&world, ROME, &[]);
}

#[test]
fn reapplied_configuration_keeps_session_and_endpoint() {
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
fn renamed_peer_keeps_its_session() {
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
fn new_keys_keep_the_learned_endpoint() {
    let key = PresharedKey::from_file_content(&[7; 32]).unwrap();
    let mut world = World::new(Network::PERFECT);
    world.run(SECOND);

    for side in [MILAN, ROME] {
        let key = key.clone();
        world.reconfigure(side, |peer| peer.keys.preshared_key = Some(key));
    }
    world.send(MILAN, &udp_packet("10.244.2.7", "10.71.1.5", 0));
    world.run(SECOND);

    assert_eq!(world.received(ROME).len(), 1, "the server had learned the endpoint");
    world.assert_accounts_balance();
}

#[test]
fn staged_packets_of_removed_peer_are_counted() {
    let mut world = World::new(Network { loss_percent: 100, ..Network::PERFECT });
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 0));

    world.remove_peer(ROME);

    assert_eq!(world.outbound(ROME).drops(DropReason::PeerRemoved), 1);
    assert_eq!(world.outbound(ROME).balance(), 0);
}

#[test]
fn both_sides_measure_the_handshake_round_trip() {
    let delay = Duration::from_millis(15);
    let mut world = World::new(Network { delay, ..Network::PERFECT });

    world.run(SECOND);

    assert_eq!(world.session(ROME).rtt, Some(2 * delay));
    assert_eq!(world.session(MILAN).rtt, Some(2 * delay));
}

#[test]
fn rekey_round_trip_excludes_packet_gaps() {
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
fn underlay_congestion_marks_the_inner_packet() {
    let mut world = World::new(Network { marks_congestion: true, ..Network::PERFECT });
    world.run(SECOND);
    let mut capable = udp_packet("10.244.1.5", "10.71.2.7", 0);
    super::packets::set_ecn_bits(&mut capable, 0b10);

    world.send(ROME, &capable);
    world.send(ROME, &udp_packet("10.244.1.5", "10.71.2.7", 1));
    world.run(SECOND);

    let received = world.received(MILAN);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0][1] & 0b11, 0b11);
    assert_eq!(world.inbound(MILAN).drops(DropReason::CongestionUnmarkable), 1);
    world.assert_accounts_balance();
}

/// Senders of UDP without ECN would not send less.
#[test]
fn a_long_queue_marks_tcp_and_ecn_only() {
    let mut world = World::new(Network { queues_are_long: true, ..Network::PERFECT });
    world.run(SECOND);
    let udp = udp_packet("10.244.1.5", "10.71.2.7", 0);
    let mut tcp = udp_packet("10.244.1.5", "10.71.2.7", 1);
    tcp[9] = 6;
    // The length of its header, in words.
    tcp[32] = 5 << 4;
    let [mut capable_udp, mut capable_tcp] = [udp.clone(), tcp.clone()];
    // This rewrites the checksum of the header as well.
    super::packets::set_ecn_bits(&mut tcp, 0);
    super::packets::set_ecn_bits(&mut capable_udp, 0b10);
    super::packets::set_ecn_bits(&mut capable_tcp, 0b01);

    for packet in [&udp, &tcp, &capable_udp, &capable_tcp] {
        world.send(ROME, packet);
    }
    world.run(SECOND);

    let marks: Vec<_> = world.received(MILAN).iter().map(|packet| packet[1] & 0b11).collect();
    assert_eq!(marks, [0, 0b11, 0b11]);
    assert_eq!(world.inbound(MILAN).drops(DropReason::CongestionUnmarkable), 1);
    world.assert_accounts_balance();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any network: what arrives was sent, at most once, and every packet is counted on both sides.
    #[test]
    fn counters_balance_on_a_bad_network(
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
        let mut ids: Vec<u16> = world.received(MILAN).iter().map(|p| super::packets::packet_id(p)).collect();
        let delivered = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), delivered, "a packet arrived twice");
        for packet in world.received(MILAN) {
            let id = super::packets::packet_id(&packet);
            prop_assert_eq!(packet, udp_packet("10.71.1.5", "10.244.2.7", id));
        }
    }
}

/// Asserts that the ICMP errors are a host unreachable error about each of `lost`, which it quotes, and no others.
#[track_caller]
fn assert_icmp_errors(world: &World, side: usize, lost: &[Vec<u8>]) {
    let quoted: Vec<_> = world.icmp_errors(side).iter().map(|error| &error[28..]).collect();

    assert_eq!(quoted, lost);
    for error in world.icmp_errors(side) {
        assert_eq!((error[9], &error[20..22]), (1, &[3, 1][..]));
    }
}
