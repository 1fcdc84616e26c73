//! The answer: where a packet goes, how it is translated, and why.

use std::net::{IpAddr, SocketAddr};

use remap::{Prefix, Rule};

use super::Content;
use strait_packet::DropReason;
use strait_packet::icmp_error::Cause;
use strait_wg::{PathMtu, PublicKey};

/// The answer.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The generation of the table that decided.
    pub generation: u64,
    /// The peer that it goes to or comes from; `None` if there is none, or if the packet stays in the cluster.
    pub peer: Option<PeerFacts>,
    /// Inbound: the names of all peers that may send from the source.
    pub may_send: Vec<String>,
    /// The rule or prefix that selects the peer.
    pub routing: Option<Routing>,
    /// The packet before translation.
    pub before: Summary,
    /// The packet after translation, unless it is dropped.
    pub after: Option<After>,
    /// Outbound: the largest packet, by the MTU of the device and the path to the peer. Inbound packets are written to
    /// the device regardless of their size.
    pub mtu: Option<PathMtu>,
    /// The result.
    pub outcome: Outcome,
}

/// A peer, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// The configured name.
    pub name: String,
    /// Its public key.
    pub public_key: PublicKey,
    /// Its endpoint, if known.
    pub endpoint: Option<SocketAddr>,
    /// Whether a session is established. Without one, a packet is staged for the handshake. `None` if the gateway does
    /// not run.
    pub has_session: Option<bool>,
}

/// The rule or prefix that selects a peer, or allows it to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// This remap rule.
    Rule(Rule),
    /// This prefix of its allowed IPs: no rule covers the remote's address.
    AllowedIps(Prefix),
}

/// The addresses and content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The source address in its IP header.
    pub source: IpAddr,
    /// The destination address in its IP header.
    pub destination: IpAddr,
    /// The content behind its IP header.
    pub content: Content,
}

/// A packet after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The packet.
    pub packet: Summary,
    /// How its source was translated.
    pub source: Treatment,
    /// How its destination was translated.
    pub destination: Treatment,
    /// Its TCP MSS, in bytes, if that was clamped.
    pub mss_bytes: Option<u16>,
}

/// How an address was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Not at all.
    Unchanged,
    /// By a remap rule.
    Rule,
    /// By a host map.
    HostMap,
    /// By masquerading: a port of a shared external address.
    Masquerade {
        /// Whether this packet would create the mapping, so that its port is not yet reserved.
        is_new: bool,
    },
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent to the peer, at once or after a handshake.
    Sent,
    /// It is delivered to the cluster.
    Delivered,
    /// It is returned to the cluster, with external addresses (hairpin).
    Returned,
    /// It exceeds the MTU of the device: the sender gets an ICMP error.
    TooBig,
    /// It is dropped.
    Dropped {
        /// The drop reason that counts it.
        reason: DropReason,
        /// The problem and its remedy, in one sentence.
        remedy: String,
        /// The ICMP error for its sender, unless the rate limit is reached.
        icmp_error: Option<Cause>,
    },
}
