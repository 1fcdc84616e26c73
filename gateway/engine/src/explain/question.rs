//! What is asked: one packet, by its addresses and what it carries.

use std::net::IpAddr;

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the cluster to the tunnel. Addresses are those that the cluster knows.
    Outbound,
    /// From the tunnel to the cluster. Addresses are those on the wire between gateways: the real
    /// source, and the destination as the remote knows it.
    Inbound,
}

/// What the packet carries, as far as a translation looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "ports are ports")]
pub enum Content {
    /// A SYN that offers the largest segments there are.
    Tcp { source_port: u16, destination_port: u16 },
    /// A datagram.
    Udp { source_port: u16, destination_port: u16 },
    /// A UDP-Lite datagram whose checksum covers all of it.
    UdpLite { source_port: u16, destination_port: u16 },
    /// An echo request: ICMP or ICMPv6, as the addresses are.
    Echo { identifier: u16 },
    /// Any other protocol by its number, and eight bytes of zeroes.
    Other { protocol: u8 },
}

/// What is asked: one packet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// From where to where.
    pub direction: Direction,
    /// In its IP header.
    pub source: IpAddr,
    /// In its IP header.
    pub destination: IpAddr,
    /// Behind its IP header.
    pub content: Content,
    /// Its length in bytes, IP header included, if that matters. The packet must not be fragmented.
    pub size: Option<u16>,
    /// Inbound: the name of the peer that sends it. Not needed if only one can.
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
    /// What follows an IPv6 extension header would decide.
    #[error("protocol {protocol} is an IPv6 extension header: ask for what it carries")]
    Extension { protocol: u8 },
    /// No peer has this name.
    #[error("no peer is named {name:?}: there is {}", listed(known))]
    UnknownPeer { name: String, known: Vec<String> },
    /// More than one peer may send from the address.
    #[error("{origin} may come from {}: choose one with --peer", listed(peers))]
    AmbiguousPeer { origin: IpAddr, peers: Vec<String> },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
