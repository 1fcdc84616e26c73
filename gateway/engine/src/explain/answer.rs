//! What is answered: where a packet goes, as what, and why.

use std::net::{IpAddr, SocketAddr};

use remap::{Prefix, Rule};

use super::Content;
use strait_packet::DropReason;
use strait_packet::icmp_error::Cause;
use strait_wg::PublicKey;

/// The answer.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The generation of the table that decided.
    pub generation: u64,
    /// Who it is for, or from; `None` if nobody, or for a packet that stays in the cluster.
    pub peer: Option<PeerFacts>,
    /// Inbound: the names of all peers that may send from the source.
    pub may_send: Vec<String>,
    /// Why this peer.
    pub routing: Option<Routing>,
    /// The packet as it comes.
    pub before: Summary,
    /// The packet as it goes on, unless the translation drops it.
    pub after: Option<After>,
    /// Outbound: the largest packet that the device takes whole, in bytes. What comes out of the
    /// tunnel is written to the device whatever its size.
    pub mtu_bytes: Option<u16>,
    /// The end.
    pub outcome: Outcome,
}

/// One peer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// As configured.
    pub name: String,
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Where datagrams to it go, if anybody knows.
    pub endpoint: Option<SocketAddr>,
    /// Whether a session is established. Without one, a packet waits for the handshake. `None` if
    /// there is no gateway to have one.
    pub has_session: Option<bool>,
}

/// What leads to a peer, or lets it send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// This remap rule.
    Rule(Rule),
    /// This prefix of its allowed IPs: no rule covers the remote's address.
    AllowedIps(Prefix),
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// In its IP header.
    pub source: IpAddr,
    /// In its IP header.
    pub destination: IpAddr,
    /// Behind its IP header.
    pub content: Content,
}

/// What a packet has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// The packet.
    pub packet: Summary,
    /// How its source came about.
    pub source: Treatment,
    /// How its destination came about.
    pub destination: Treatment,
    /// The largest TCP segment it offers, in bytes, if that was lowered.
    pub mss_bytes: Option<u16>,
}

/// How an address came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is what it was.
    Unchanged,
    /// A remap rule.
    Rule,
    /// A host map.
    HostMap,
    /// It shares, or shared, an external address and has a port of its own there.
    Masquerade {
        /// Whether the port would be taken by this very packet, so that another one may get it.
        is_new: bool,
    },
}

/// The end of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to the peer, at once or after a handshake.
    Sent,
    /// It goes into the cluster.
    Delivered,
    /// It goes back into the cluster, under external addresses.
    Returned,
    /// The device does not take it: the sender is told of the MTU.
    TooBig,
    /// It goes nowhere.
    Dropped {
        /// The counter it is counted under.
        reason: DropReason,
        /// What is the matter, and what to do about it: one sentence.
        remedy: String,
        /// What its sender is told of it by an ICMP error, unless too many had to be told already.
        told: Option<Cause>,
    },
}

impl Outcome {
    /// Whether the packet would go.
    #[must_use]
    pub const fn goes(&self) -> bool {
        match self {
            Self::Sent | Self::Delivered | Self::Returned => true,
            Self::TooBig | Self::Dropped { .. } => false,
        }
    }
}
