//! Compares the header parser with the oracle.

use std::net::IpAddr;

use strait_packet::{Fragment, Header, Transport, icmp};

use crate::oracle::{Layout, word};

/// Maximum length of a packet that is quoted: an error about a longer one would not fit into a packet.
const MAX_QUOTED: usize = 60_000;

/// The parser agrees with the oracle, about a packet and about the same packet quoted by an ICMP error.
/// Bytes behind the packet make no difference, and a truncated packet is rejected.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn parse(bytes: &[u8]) {
    let parsed = Header::parse(bytes).ok();
    let layout = Layout::of(bytes);
    assert_eq!(parsed.is_some(), layout.is_some(), "{parsed:?}, not {layout:?}");
    if let (Some(header), Some(layout)) = (parsed, layout) {
        assert_agrees(&header, &layout, bytes);
        assert_ends_where_it_says(&header, bytes);
    }

    assert_quoted(bytes);
}

fn assert_agrees(header: &Header, layout: &Layout, bytes: &[u8]) {
    assert_eq!(header.source(), layout.source);
    assert_eq!(header.destination(), layout.destination);
    assert_eq!(header.packet_len(), layout.len);
    assert_eq!(header.transport_offset(), layout.transport_at);
    assert_eq!(header.protocol(), layout.protocol);
    assert_eq!(header.fragment(), layout.fragment);
    assert_eq!(header.is_routed(), layout.is_routed);
    assert_eq!(header.is_ipv6(), layout.is_ipv6());
    assert_eq!(header.transport(), transport(layout));

    let first = word(bytes, 0).unwrap_or_default();
    let class = if header.is_ipv6() { (first >> 4) & 0xff } else { first & 0xff };
    assert_eq!(u16::from(header.traffic_class()), class);
    let flags = word(bytes, 6).unwrap_or_default();
    assert_eq!(header.dont_fragment(), header.is_ipv6() || flags & 0x4000 != 0);

    assert!(header.transport_offset() <= header.packet_len());
    assert!(header.packet_len() <= bytes.len());
}

fn transport(layout: &Layout) -> Transport {
    let named = match layout.protocol {
        6 => Transport::Tcp,
        17 => Transport::Udp,
        136 => Transport::UdpLite,
        1 if !layout.is_ipv6() => Transport::Icmp,
        58 if layout.is_ipv6() => Transport::Icmpv6,
        51 => Transport::AuthenticationHeader,
        other => Transport::Other(other),
    };
    let has_checksum = !matches!(named, Transport::AuthenticationHeader | Transport::Other(_));

    if layout.fragment == Fragment::Later || (has_checksum && layout.checksum_at.is_none()) {
        Transport::None
    } else {
        named
    }
}

fn assert_ends_where_it_says(header: &Header, bytes: &[u8]) {
    let exact = bytes.get(..header.packet_len()).unwrap_or_default();
    let shorter = exact.get(..exact.len().saturating_sub(1)).unwrap_or_default();
    let mut longer = exact.to_vec();
    longer.push(0xa5);

    assert_eq!(Header::parse(exact), Ok(*header));
    assert_eq!(Header::parse(&longer), Ok(*header));
    assert!(Header::parse(shorter).is_err());
}

fn assert_quoted(bytes: &[u8]) {
    let Some(error) = error_about(bytes.get(..bytes.len().min(MAX_QUOTED)).unwrap_or_default())
    else {
        return;
    };
    let header = Header::parse(&error);
    let embedded = header.ok().and_then(|header| icmp::embedded(&error, &header));

    let addresses = embedded.map(|embedded| (embedded.source(), embedded.destination()));
    let expected: Option<(IpAddr, IpAddr)> =
        Layout::of_quoted(bytes).map(|layout| (layout.source, layout.destination));
    assert!(header.is_ok());
    assert_eq!(addresses, expected);
}

/// "Destination unreachable", from a router to the sender.
fn error_about(quoted: &[u8]) -> Option<Vec<u8>> {
    let icmp_len = u16::try_from(8 + quoted.len()).ok()?;
    let mut packet = if quoted.first()? >> 4 == 6 {
        let [high, low] = icmp_len.to_be_bytes();
        let mut packet = vec![0x60, 0, 0, 0, high, low, 58, 64];
        packet.extend([0xfd; 32]);
        packet.push(1);
        packet
    } else {
        let [high, low] = (20 + icmp_len).to_be_bytes();
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let mut packet = vec![0x45, 0, high, low, 0, 0, 0, 0, 64, 1, 0, 0];
        packet.extend(addresses);
        packet.push(3);
        packet
    };
    packet.extend([0; 7]);
    packet.extend(quoted);

    Some(packet)
}
