//! Compares the explanation with what the packet path does.

use proptest::prelude::*;

use super::*;
use crate::outbound::Disposition;
use strait_packet::buffer::TransmitBatch;
use strait_packet::icmp_error::{self, MAX_ERROR_BYTES};
use strait_packet::virtio::VirtioHeader;

proptest! {
    /// For any question: the packet path does to the same packet what the explanation says, and its checksums are
    /// correct.
    #[test]
    fn packet_path_agrees_with_the_explanation(
        source in address(),
        destination in address(),
        content in content(),
        is_masquerading: bool,
    ) {
        let question = Question {
            direction: Direction::Outbound, source, destination, content, size: None, peer: None,
        };
        let mut world = if is_masquerading { World::masquerading() } else { World::new() };
        let Ok(explanation) = world.ask_in(RUNNING, &question) else {
            prop_assert!(source.is_ipv4() != destination.is_ipv4());
            return Ok(());
        };
        let as_sent = question.packet().unwrap();
        let mut frame = as_sent.clone();

        let mut out = TransmitBatch::default();
        let disposition = world.engine.outbound.handle_frame(
            &VirtioHeader::default(), &mut frame, world.start, &mut out,
        ).disposition();

        let account = world.engine.control.accounts().outbound.snapshot();
        let reason = DropReason::ALL.into_iter().find(|reason| account.drops(*reason) > 0);
        match &explanation.outcome {
            Outcome::Dropped { reason: expected, icmp_error, .. } => {
                prop_assert_eq!(reason, Some(*expected));
                prop_assert_eq!(disposition == Disposition::Reply, icmp_error.is_some());
                if let Some(cause) = icmp_error {
                    let mut buffer = [0; MAX_ERROR_BYTES];
                    let expected = icmp_error::write(&as_sent, *cause, &mut buffer).unwrap();
                    prop_assert_eq!(world.engine.outbound.reply(), expected);
                }
            }
            Outcome::Returned => {
                prop_assert_eq!((disposition, reason), (Disposition::Hairpin, None));
            }
            outcome @ (Outcome::Sent | Outcome::Delivered | Outcome::TooBig) => {
                prop_assert_eq!(outcome, &Outcome::Sent);
                prop_assert_eq!((disposition, reason), (Disposition::Taken, None));
            }
        }
        if let (None, Some(after)) = (reason, explanation.after) {
            let header = Header::parse(&frame).unwrap();
            prop_assert_eq!(Summary::read(&frame, &header), after.packet);
            prop_assert!(packet::is_checksum_correct(&frame, &header));
        }
    }
}

/// Addresses of every kind that [`World`] has, and unknown ones.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = prop::sample::select(vec![
        "10.1.0.0",
        "10.70.0.0",
        "10.71.2.0",
        "10.72.0.0",
        "10.244.2.0",
        "172.16.0.0",
        "192.0.2.0",
        "198.18.5.0",
        "203.0.113.0",
    ]);
    let v6 = prop::sample::select(vec![
        "fd00:1::",
        "fd00:10:71:1::",
        "fd00:10:71:ffff::",
        "fd00:10:73::",
        "fd00:10:244::",
    ]);
    let with_host = |network: &str, host: u8| match ip(network) {
        IpAddr::V4(network) => IpAddr::V4((network.to_bits() | u32::from(host)).into()),
        IpAddr::V6(network) => IpAddr::V6((network.to_bits() | u128::from(host)).into()),
    };

    (prop_oneof![2 => v4, 1 => v6], 0_u8..12).prop_map(move |(n, host)| with_host(n, host))
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        any::<[u16; 2]>().prop_map(|[source_port, destination_port]| Content::Tcp {
            source_port,
            destination_port
        }),
        any::<[u16; 2]>().prop_map(|[source_port, destination_port]| Content::Udp {
            source_port,
            destination_port
        }),
        any::<u16>().prop_map(|identifier| Content::Echo { identifier }),
        prop::sample::select(vec![47, 50, 51, 132, 200])
            .prop_map(|protocol| Content::Other { protocol }),
    ]
}
