//! The question: one packet, by its addresses and content.

use std::net::IpAddr;

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the cluster to the tunnel. Addresses are those that the cluster knows.
    Outbound,
    /// From the tunnel to the cluster. Addresses are those on the wire between gateways: the real
    /// source, and the destination as the remote knows it.
    Inbound,
}

/// The content of a packet, as far as translation depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "ports are ports")]
pub enum Content {
    /// A SYN with the largest possible MSS.
    Tcp { source_port: u16, destination_port: u16 },
    /// A datagram.
    Udp { source_port: u16, destination_port: u16 },
    /// A UDP-Lite datagram whose checksum covers all of it.
    UdpLite { source_port: u16, destination_port: u16 },
    /// An echo request: ICMP or ICMPv6, depending on the addresses.
    Echo { identifier: u16 },
    /// Any other protocol by its number, and eight bytes of zeroes.
    Other { protocol: u8 },
}

/// A question about one packet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its direction.
    pub direction: Direction,
    /// The source address in its IP header.
    pub source: IpAddr,
    /// The destination address in its IP header.
    pub destination: IpAddr,
    /// The content behind its IP header.
    pub content: Content,
    /// Its length in bytes with the IP header; `None` for the shortest. The packet has the "don't fragment" flag.
    pub size: Option<u16>,
    /// Inbound: the name of the sending peer. Not needed if only one peer may send it.
    pub peer: Option<String>,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum QuestionError {
    /// No packet has both addresses.
    #[error("{origin} and {destination} are not of the same IP version")]
    MixedVersions { origin: IpAddr, destination: IpAddr },
    /// The headers alone are longer. Both in bytes.
    #[error("a packet of {size} bytes has no room for its headers: ask for {least} or more")]
    TooSmall { size: u16, least: usize },
    /// The content of an IPv6 extension header would decide.
    #[error("protocol {protocol} is an IPv6 extension header: ask for what it carries")]
    Extension { protocol: u8 },
    /// No peer has this name.
    #[error("no peer is named {name:?}, only {}", listed(known))]
    UnknownPeer { name: String, known: Vec<String> },
    /// More than one peer may send from the address.
    #[error("{origin} may come from {}: choose one with --peer", listed(peers))]
    AmbiguousPeer { origin: IpAddr, peers: Vec<String> },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
