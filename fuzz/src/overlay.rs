//! Datagrams of an overlay that ends in the gateway.

use strait_packet::overlay::{
    Content, Encapsulation, Ethernet, HEADER_LEN, Limits, Mac, Merged, Message, describe, ethernet,
    merged, neighbor,
};
use strait_packet::segment::Segments;
use strait_packet::virtio::Gso;
use strait_packet::{Header, Transport};

use crate::oracle::{Layout, checksums, sum, word};

/// The longest header that segments can have: see `segment/template.rs`.
const MAX_HEADER_LEN: usize = 448;

/// The bytes of the datagram come after the choice of the encapsulation and three limits.
const CHOICES_LEN: usize = 7;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// The header of the overlay is read as the oracle reads it. An answer is a valid message that announces what was asked. A
/// packet is changed only if its checksum is that of its pseudo-header; then every packet that it is cut into has a right one.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn overlay(bytes: &[u8]) {
    let Some((choices, datagram)) = bytes.split_at_checked(CHOICES_LEN) else {
        return;
    };
    let encapsulation = if choices.first().is_some_and(|choice| choice & 1 == 0) {
        Encapsulation::Vxlan
    } else {
        Encapsulation::Geneve
    };
    let limit = |at| word(choices, at).unwrap_or_default();
    let limits = Limits {
        packet_len: limit(1).into(),
        mss: (limit(3) > 0).then_some(limit(3)),
        datagram_len: (limit(5) > 0).then_some(limit(5)),
    };

    let parsed = encapsulation.parse(datagram).ok();
    let found = parsed.map(|(vni, offset)| (vni.to_number(), offset));
    assert_eq!(found, header(encapsulation, datagram));
    assert_merged(encapsulation, datagram, limit(5));
    if let Some((vni, offset)) = parsed {
        let frame = datagram.get(offset..).unwrap_or_default();
        assert_frame(frame, limits);
        if offset == HEADER_LEN {
            assert_eq!(encapsulation.parse(&encapsulation.header(vni)), Ok((vni, offset)));
        }
    }
}

/// The identifier and the offset of the frame, from RFC 7348 section 5, and RFC 8926 sections 3.4 and 3.5.
fn header(encapsulation: Encapsulation, datagram: &[u8]) -> Option<(u32, usize)> {
    let byte = |at: usize| datagram.get(at).copied();
    let number = u32::from_be_bytes([0, byte(4)?, byte(5)?, byte(6)?]);
    byte(7)?;
    let (start, flags) = (byte(0)?, byte(1)?);
    if encapsulation == Encapsulation::Vxlan {
        return (start >> 3 & 1 == 1).then_some((number, 8));
    }

    let end = 8 + usize::from(start % 64) * 4;
    let mut at = 8;
    let mut is_critical = flags >> 6 & 1 == 1;
    while at < end {
        is_critical |= byte(at + 2)? >> 7 == 1;
        at += 4 + usize::from(byte(at + 3)? % 32) * 4;
    }
    let is_control = flags >> 7 == 1;
    let is_ethernet = word(datagram, 2)? == 0x6558;
    let is_forwarded = start >> 6 == 0 && !is_control && !is_critical && is_ethernet;

    (is_forwarded && at == end && end <= datagram.len()).then_some((number, end))
}

/// A frame contains a packet that is longer than the reported size, and datagrams do not.
fn assert_merged(encapsulation: Encapsulation, datagram: &[u8], size: u16) {
    let packet = header(encapsulation, datagram).and_then(|(_, offset)| {
        let kind = word(datagram, offset + 12)?;
        let is_ip = kind == 0x0800 || kind == 0x86dd;
        let is_station = datagram.get(offset + 6)? & 1 == 0;
        let at = offset + ethernet::HEADER_LEN;
        (is_ip && is_station).then_some(at + Layout::of(datagram.get(at..)?)?.len)
    });
    let is_frame = packet.is_some_and(|end| end > size.into());

    let expected = if is_frame { Merged::Frame(size) } else { Merged::Datagrams(size) };
    assert_eq!(merged(encapsulation, datagram, size), expected);
}

fn assert_frame(frame: &[u8], limits: Limits) {
    let Ok(ethernet) = Ethernet::parse(frame) else {
        return;
    };
    assert_eq!(frame.get(..ethernet::HEADER_LEN), Some(&ethernet.to_bytes()[..]));

    if let Ok(Some(message)) = Message::parse(frame, &ethernet) {
        assert!(message.announced.is_none_or(|binding| binding.mac.is_station()));
        assert_answer(&message);
    }
    let packet = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
    let Ok(header) = ethernet.packet(frame) else {
        return;
    };
    assert_eq!(header.is_ipv6(), ethernet.content == Content::Ipv6);
    assert_packets(packet, &header, limits);
}

fn assert_answer(message: &Message) {
    let Some(question) = message.question else {
        return;
    };
    let mut buffer = [0; neighbor::MAX_FRAME_LEN];
    let answer = question.answer(OWN, &mut buffer);
    let ethernet = Ethernet::parse(answer);
    let Ok(ethernet) = ethernet else { panic!("{ethernet:?}") };
    let parsed = Message::parse(answer, &ethernet);
    let Ok(Some(Message { announced, question: None })) = parsed else { panic!("{parsed:?}") };

    assert_eq!(ethernet.source, OWN);
    let binding = neighbor::Binding { address: question.target(), mac: OWN };
    // ARP can ask for addresses that no host has.
    assert!(announced == Some(binding) || (announced.is_none() && question.target().is_ipv4()));
}

fn assert_packets(packet: &[u8], header: &Header, limits: Limits) {
    let whole = packet.get(..header.packet_len()).unwrap_or_default();
    let mut bytes = whole.to_vec();
    let virtio = describe(packet, header, || limits);
    let Ok(mut segments) = Segments::new(&mut bytes, &virtio, header) else {
        assert!(usize::from(virtio.header_len) > MAX_HEADER_LEN, "{virtio:?}");
        return;
    };
    assert_eq!(virtio.needs_checksum, is_incomplete(whole, header));
    let is_cut = virtio.gso != Gso::None;
    let mut payload_len = 0;
    while let Some(segment) = segments.next_segment() {
        if !virtio.needs_checksum {
            assert_eq!(segment, whole);
        }
        let known = checksums(segment).into_iter().filter(|checksum| is_cut || checksum.at != 10);
        for checksum in known.filter(|_| virtio.needs_checksum) {
            assert_eq!(checksum.residue(segment), 0, "{checksum:?}");
        }
        if is_cut && virtio.gso != Gso::UdpL4 {
            assert!(segment.len() <= limits.packet_len);
        }
        payload_len += segment.len() - usize::from(virtio.header_len);
    }

    assert_eq!(payload_len, whole.len() - usize::from(virtio.header_len));
}

/// Whether the checksum field contains the sum of the pseudo-header.
fn is_incomplete(packet: &[u8], header: &Header) -> bool {
    let Some(layout) = Layout::of(packet) else {
        return false;
    };
    let is_known = matches!(header.transport(), Transport::Tcp | Transport::Udp)
        && layout.fragment == strait_packet::Fragment::None
        && !layout.is_routed;
    let [source_at, _] = layout.addresses_at();
    let end = if layout.is_ipv6() { 40 } else { 20 };
    let len = u32::try_from(layout.len - layout.transport_at).unwrap_or_default();
    let addresses = packet.get(source_at..end).unwrap_or_default();
    let pseudo = [addresses, &len.to_be_bytes(), &[0, 0, 0, layout.protocol]].concat();

    is_known && layout.checksum_at.is_some_and(|at| word(packet, at) == Some(sum(&pseudo)))
}
