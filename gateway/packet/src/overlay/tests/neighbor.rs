//! Questions and answers about stations.

use std::net::{IpAddr, Ipv6Addr};

use crate::fixtures::{Packet, any_address, any_packet};

use super::super::neighbor::{Binding, MAX_FRAME_LEN, Message, ask};
use super::*;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn question_and_answer_exchange_both_bindings(
        (asker, target) in any_hosts(),
        macs in (any_station(), any_station()),
    ) {
        let asker = Binding { address: asker, mac: macs.0 };
        let target = Binding { address: target, mac: macs.1 };
        let (mut asked, mut answered) = ([0; MAX_FRAME_LEN], [0; MAX_FRAME_LEN]);

        let asked = parse(ask(asker, target.address, &mut asked).unwrap()).unwrap();
        let question = asked.question.unwrap();
        let frame = question.answer(target.mac, &mut answered);

        prop_assert_eq!(asked.announced, Some(asker));
        prop_assert_eq!(question.target(), target.address);
        prop_assert_eq!(Ethernet::parse(frame).unwrap().destination, asker.mac);
        let answer = parse(frame).unwrap();
        prop_assert_eq!(answer, Message { announced: Some(target), question: None });
    }

    #[test]
    fn addresses_of_two_versions_are_not_asked(mac in any_station(), v4: u32, v6: u128) {
        let addresses = [IpAddr::V4(v4.into()), IpAddr::V6(v6.into())];
        for (own, target) in [(addresses[0], addresses[1]), (addresses[1], addresses[0])] {
            let own = Binding { address: own, mac };
            let mut buffer = [0; MAX_FRAME_LEN];
            prop_assert_eq!(ask(own, target, &mut buffer), None);
        }
    }

    #[test]
    fn changed_messages_are_refused_or_still_valid(
        (asker, target) in any_hosts(),
        mac in any_station(),
        at: prop::sample::Index,
        value: u8,
        len: prop::sample::Index,
    ) {
        let mut buffer = [0; MAX_FRAME_LEN];
        let mut frame =
            ask(Binding { address: asker, mac }, target, &mut buffer).unwrap().to_vec();
        let at = at.index(frame.len());
        frame[at] = value;
        frame.truncate(len.index(frame.len()) + 1);

        if let Ok(ethernet) = Ethernet::parse(&frame)
            && let Ok(Some(Message { question: Some(question), .. })) = Message::parse(&frame, &ethernet)
        {
            prop_assert!(!question.answer(mac, &mut buffer).is_empty());
        }
    }

    /// Any other packet is left to the packet path.
    #[test]
    fn other_packets_are_no_messages(packet in any_packet()) {
        let kind = packet.transport.first().copied().unwrap_or_default();
        let is_message = packet.protocol == 58 && matches!(kind, SOLICITATION | ADVERTISEMENT);
        prop_assume!(!is_message);
        let content = if packet.source.is_ipv6() { Content::Ipv6 } else { Content::Ipv4 };
        let frame = frame(content, &packet.build());

        prop_assert_eq!(Message::parse(&frame, &Ethernet::parse(&frame).unwrap()), Ok(None));
    }
}

/// RFC 4861 section 7.1.1.
#[test]
fn invalid_solicitations_are_refused() {
    let [source, target] = ["fd00::1", "fd00::2"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    let refused = |change: fn(&mut Discovery)| {
        let mut message =
            Discovery::new(SOLICITATION, source, target, vec![1, 1, 2, 0, 0, 0, 0, 9]);
        change(&mut message);
        parse(&message.frame()) == Err(DropReason::Malformed)
    };

    assert!(!refused(|_| {}));
    assert!(!refused(|message| message.options.clear()));
    assert!(!refused(
        |message| message.options = vec![14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    ));
    assert!(refused(|message| message.hop_limit = 254));
    assert!(refused(|message| message.code = 1));
    assert!(refused(|message| message.target = "ff02::1".parse().unwrap()));
    assert!(refused(|message| message.source = "ff02::1".parse().unwrap()));
    assert!(refused(|message| message.options[1] = 0));
    assert!(refused(|message| message.options[1] = 2));
    assert!(refused(|message| message.options.push(0)));
    // Without address: to the group of the target, and without the option.
    assert!(refused(|message| message.source = Ipv6Addr::UNSPECIFIED));
    assert!(refused(|message| {
        message.source = Ipv6Addr::UNSPECIFIED;
        message.options.clear();
    }));
    assert!(!refused(|message| {
        message.source = Ipv6Addr::UNSPECIFIED;
        message.destination = "ff02::1:ff00:2".parse().unwrap();
        message.options.clear();
    }));
}

#[test]
fn solicitations_with_wrong_checksum_are_refused() {
    let mut buffer = [0; MAX_FRAME_LEN];
    let own = Binding { address: "fd00::1".parse().unwrap(), mac: Mac([2, 0, 0, 0, 0, 1]) };
    let mut frame = ask(own, "fd00::2".parse().unwrap(), &mut buffer).unwrap().to_vec();
    frame[14 + 40 + 2] ^= 1;

    assert_eq!(parse(&frame), Err(DropReason::Malformed));
}

/// RFC 4861 section 7.1.2.
#[test]
fn invalid_advertisements_are_refused() {
    let [source, target] = ["fd00::1", "fd00::2"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    let refused = |change: fn(&mut Discovery)| {
        let option = vec![2, 1, 2, 0, 0, 0, 0, 9];
        let mut message = Discovery::new(ADVERTISEMENT, source, target, option);
        message.flags = 0x40;
        change(&mut message);
        parse(&message.frame()) == Err(DropReason::Malformed)
    };

    assert!(!refused(|_| {}));
    assert!(refused(|message| message.hop_limit = 254));
    assert!(refused(|message| message.code = 1));
    assert!(refused(|message| message.target = "ff02::1".parse().unwrap()));
    assert!(refused(|message| message.options[1] = 0));
    // To a group, it answers no question.
    assert!(refused(|message| message.destination = "ff02::1".parse().unwrap()));
    assert!(!refused(|message| {
        message.destination = "ff02::1".parse().unwrap();
        message.flags = 0;
    }));
}

#[test]
fn groups_are_never_announced_as_stations() {
    let [source, target] = ["fd00::1", "fd00::2"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    for (kind, option) in [(SOLICITATION, 1), (ADVERTISEMENT, 2)] {
        for mac in [Mac::BROADCAST, Mac([0x33, 0x33, 0, 0, 0, 1]), Mac([0; 6])] {
            let option = [&[option, 1][..], &mac.0].concat();
            let message = Discovery::new(kind, source, target, option);

            assert_eq!(parse(&message.frame()).unwrap().announced, None);
        }
    }
}

/// RFC 4861 section 7.2.4.
#[test]
fn probes_are_answered_to_all_nodes() {
    let target: Ipv6Addr = "fd00::2".parse().unwrap();
    let mut probe = Discovery::new(SOLICITATION, Ipv6Addr::UNSPECIFIED, target, Vec::new());
    probe.destination = "ff02::1:ff00:2".parse().unwrap();
    let message = parse(&probe.frame()).unwrap();
    let mut buffer = [0; MAX_FRAME_LEN];

    let frame = message.question.unwrap().answer(Mac([2, 0, 0, 0, 0, 1]), &mut buffer);

    assert_eq!(message.announced, None);
    assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(frame[14 + 24..14 + 40], "ff02::1".parse::<Ipv6Addr>().unwrap().octets());
    let solicited = frame[14 + 40 + 4] & 0x40;
    assert_eq!(solicited, 0);
}

/// Without address, it is a probe (RFC 5227 section 2.1.1).
#[test]
fn arp_of_no_host_announces_nothing() {
    for address in [[0; 4], [224, 0, 0, 1], [255; 4]] {
        let mut buffer = [0; MAX_FRAME_LEN];
        let own = Binding { address: address.into(), mac: Mac([2, 0, 0, 0, 0, 1]) };

        let message = parse(ask(own, [10, 0, 0, 1].into(), &mut buffer).unwrap()).unwrap();

        assert_eq!(message.announced, None);
        assert_eq!(message.question.map(|question| question.target()), Some([10, 0, 0, 1].into()));
    }
}

#[test]
fn arp_of_other_kinds_is_refused() {
    let mut buffer = [0; MAX_FRAME_LEN];
    let own = Binding { address: [10, 0, 0, 2].into(), mac: Mac([2, 0, 0, 0, 0, 1]) };
    let frame = ask(own, [10, 0, 0, 1].into(), &mut buffer).unwrap().to_vec();

    assert!(parse(&frame).is_ok());
    // Hardware, protocol, their lengths, operation, and a group as the sender.
    for (at, value) in [(1, 6), (2, 0x86), (3, 1), (4, 8), (5, 16), (6, 1), (7, 3), (8, 3)] {
        let mut frame = frame.clone();
        frame[14 + at] = value;
        assert_eq!(parse(&frame), Err(DropReason::Malformed), "byte {at}");
    }
    assert_eq!(parse(&frame[..14 + 27]), Err(DropReason::Malformed));
}

/// A solicitation or an advertisement.
struct Discovery {
    kind: u8,
    code: u8,
    flags: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    hop_limit: u8,
    options: Vec<u8>,
}

impl Discovery {
    fn new(kind: u8, source: Ipv6Addr, target: Ipv6Addr, options: Vec<u8>) -> Self {
        let (code, flags, hop_limit) = (0, 0, 255);

        Self { kind, code, flags, source, destination: target, target, hop_limit, options }
    }

    fn frame(&self) -> Vec<u8> {
        let header = [self.kind, self.code, 0, 0, self.flags, 0, 0, 0];
        let message = [&header[..], &self.target.octets(), &self.options].concat();
        let mut packet = Packet::new(self.source.into(), self.destination.into(), 58, message);
        packet.hop_limit = self.hop_limit;

        frame(Content::Ipv6, &packet.build())
    }
}

fn frame(content: Content, payload: &[u8]) -> Vec<u8> {
    let ethernet =
        Ethernet { destination: Mac([2, 0, 0, 0, 0, 1]), source: Mac([2, 0, 0, 0, 0, 2]), content };

    [&ethernet.to_bytes()[..], payload].concat()
}

/// The message in `frame`, which holds one.
fn parse(frame: &[u8]) -> Result<Message, DropReason> {
    let ethernet = Ethernet::parse(frame).unwrap();

    Message::parse(frame, &ethernet).map(Option::unwrap)
}

/// Two addresses of hosts, of one version.
fn any_hosts() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    any::<bool>()
        .prop_flat_map(|is_ipv6| (any_address(is_ipv6), any_address(is_ipv6)))
        .prop_filter("hosts", |(a, b)| [a, b].iter().all(|address| is_host(**address)))
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());

    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}
