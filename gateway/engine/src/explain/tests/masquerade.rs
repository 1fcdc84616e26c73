//! Sources that the remote does not know share an address.

use super::*;
use strait_packet::buffer::TransmitBatch;
use strait_packet::virtio::VirtioHeader;

#[test]
fn explaining_creates_no_mapping() {
    let world = World::masquerading();
    let question = outbound("203.0.113.77", "10.71.2.7", UDP);

    let first = world.ask(&question);
    let second = world.ask(&question);

    assert_eq!(first.outcome, second.outcome);
    assert_eq!(first.after, second.after);
    let after = first.after.unwrap();
    assert_eq!(after.packet.source, ip("10.70.0.1"));
    assert_eq!(after.source, Treatment::Masquerade { is_new: true });
}

#[test]
fn exhausted_source_share_is_reported() {
    let mut world = World::masquerading();
    let content = |source_port| Content::Udp { source_port, destination_port: 53 };
    let question = |port| outbound("203.0.113.77", "10.71.2.7", content(port));

    // An eighth of `max_flows`.
    for port in 2_000..2_128 {
        assert_eq!(world.ask(&question(port)).outcome, Outcome::Sent);
        world.send(&question(port));
    }

    let (reason, remedy) = dropped(&world.ask(&question(3_000)));
    assert_eq!(reason, DropReason::MasqueradeShare);
    assert!(
        remedy.starts_with("203.0.113.77 has reached the limit of masqueraded flows"),
        "{remedy}"
    );
    assert_eq!(world.send(&question(3_000)), Some(DropReason::MasqueradeShare));
    assert_eq!(world.ask(&question(2_000)).outcome, Outcome::Sent, "that flow exists");
}

#[test]
fn port_of_another_source_is_not_offered() {
    let mut world = World::masquerading();
    let question = |source| outbound(source, "10.71.2.7", UDP);
    world.send(&question("203.0.113.77"));

    let after = world.ask(&question("203.0.113.78")).after.unwrap();

    assert_eq!(after.source, Treatment::Masquerade { is_new: true });
    assert_ne!(after.packet.content, UDP, "port 40000 is taken");
}

#[test]
fn unmapped_shared_address_is_named_with_its_port() {
    let question = inbound("10.244.2.7", "10.70.0.1", UDP, Some("milan"));

    let (reason, remedy) = dropped(&World::masquerading().ask(&question));

    assert_eq!(reason, DropReason::NoMapping);
    assert!(remedy.contains("to milan uses 10.70.0.1 port 53"), "{remedy}");
}

impl World {
    /// Sends the packet of `question`, and returns the reason if it was dropped.
    fn send(&mut self, question: &Question) -> Option<DropReason> {
        let mut frame = question.packet().unwrap();
        let mut out = TransmitBatch::default();
        let drops = |world: &Self| {
            let account = world.engine.control.accounts().outbound.snapshot();
            DropReason::ALL.map(|reason| account.drops(reason))
        };
        let before = drops(self);

        let outbound = &mut self.engine.outbound;
        let virtio = VirtioHeader::default();
        let _disposition = outbound.handle_frame(&virtio, &mut frame, self.start, &mut out);

        let after = drops(self);
        DropReason::ALL
            .into_iter()
            .zip(before.into_iter().zip(after))
            .find_map(|(reason, (before, after))| (after > before).then_some(reason))
    }
}
