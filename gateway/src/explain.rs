//! What becomes of a packet, and why: the answer to a question, from the code that carries packets.
//!
//! A [`Question`] becomes a real packet, the packet goes through [`translate`], and what it has
//! become is read from its bytes. The flow memory is looked at and not changed, so asking costs the
//! gateway nothing and two answers in a row are the same.
//!
//! # Invariants
//!
//! - The outcome is the one the packet path gives to the same packet, reason for reason.
//! - What only explains (which prefix, whose peer, which remedy) is looked up afterwards, in the
//!   generation that decided.
//!
//! # Not here
//!
//! How questions are typed and answers are printed: the daemon does that.

mod packet;
mod remedy;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use remap::{Arrival, PeerId, Prefix, Rule, Source};

use crate::DropReason;
use crate::engine::Forwarding;
use crate::engine::flows::OWN_REALM;
use crate::engine::translate::{self, Context, Outgoing};
use crate::packet::Header;
use crate::packet::rewrite::Checksum;
use crate::wg::{Peer, PublicKey};

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "daemon", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "daemon", serde(rename_all = "snake_case"))]
pub enum Direction {
    /// From the cluster to the tunnel. Addresses are those that the cluster knows.
    Outbound,
    /// From the tunnel to the cluster. Addresses are those on the wire between gateways: the real
    /// source, and the destination as the remote knows it.
    Inbound,
}

/// What the packet carries, as far as a translation looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "daemon", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "daemon", serde(rename_all = "snake_case", deny_unknown_fields))]
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "daemon", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "daemon", serde(deny_unknown_fields))]
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

/// What a gateway is besides what it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// MTU of the device, in bytes.
    pub mtu_bytes: u16,
    /// Whether there is a gateway. One that is only planned has yet to learn endpoints.
    pub is_running: bool,
}

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

/// Explains what becomes of the packet that `question` describes.
///
/// # Errors
///
/// [`QuestionError`] if there is no such packet, or no telling who sends it.
pub fn explain(
    context: &Context<'_>,
    situation: Situation,
    question: &Question,
) -> Result<Explanation, QuestionError> {
    let mut packet = question.packet()?;
    let mut header = packet::parse(&packet, question)?;
    let was_right = packet::is_checksum_right(&packet, &header);
    let before = Summary::read(&packet, &header);

    let journey = match question.direction {
        Direction::Outbound => Journey::outbound(context, &mut packet, &mut header),
        Direction::Inbound => Journey::inbound(context, question, &mut packet, &mut header)?,
    };
    debug_assert!(
        journey.result.is_err() || packet::is_checksum_right(&packet, &header) == was_right,
        "a right checksum stays right"
    );

    let after = journey.result.ok().map(|_| {
        let packet = (Summary::read(&packet, &header), packet::mss(&packet, &header));
        journey.after(context, &before, packet)
    });
    let outcome = journey.outcome(context, situation, question);

    Ok(Explanation {
        generation: context.forwarding.table().generation(),
        peer: journey.peer.and_then(|id| facts(context.forwarding, situation, id)),
        routing: journey.routing,
        may_send: journey.may_send,
        before,
        after,
        mtu_bytes: (question.direction == Direction::Outbound).then_some(situation.mtu_bytes),
        outcome,
    })
}

/// What the packet path said of a packet, and what can be looked up of it.
struct Journey {
    peer: Option<PeerId>,
    may_send: Vec<String>,
    routing: Option<Routing>,
    result: Result<End, DropReason>,
}

/// Where a packet comes out.
#[derive(Clone, Copy)]
enum End {
    Peer,
    Hairpin,
    Cluster,
}

impl Journey {
    fn outbound(context: &Context<'_>, packet: &mut [u8], header: &mut Header) -> Self {
        let Context { forwarding, .. } = context;
        let destination = header.destination();
        let rule = forwarding.table().outbound_rule(destination);
        let owner = forwarding.allowed_ips().owner(destination);

        let (peer, routing) = match (rule, owner) {
            (Some((id, rule)), _) => (Some(id), Some(Routing::Rule(*rule))),
            (None, Some(id)) => (Some(id), allowed_prefix(forwarding, id, destination)),
            (None, None) => (None, None),
        };
        let result = translate::outbound(context, packet, header, Checksum::Complete);

        Self {
            peer,
            may_send: Vec::new(),
            routing,
            result: result.map(|outgoing| match outgoing {
                Outgoing::Peer(_) => End::Peer,
                Outgoing::Hairpin => End::Hairpin,
            }),
        }
    }

    fn inbound(
        context: &Context<'_>,
        question: &Question,
        packet: &mut [u8],
        header: &mut Header,
    ) -> Result<Self, QuestionError> {
        let Context { forwarding, .. } = context;
        let source = header.source();
        let (sender, may_send) = sender(forwarding, question)?;
        let Some((id, peer)) = sender else {
            let result = Err(DropReason::SourceNotAllowed);
            return Ok(Self { peer: None, may_send, routing: None, result });
        };

        let routing = match forwarding.table().inbound_rule(id, source) {
            Some(rule) => Some(Routing::Rule(*rule)),
            None => allowed_prefix(forwarding, id, source),
        };
        let result = translate::inbound(context, (id, peer), packet, header);

        Ok(Self { peer: Some(id), may_send, routing, result: result.map(|()| End::Cluster) })
    }

    fn outcome(&self, context: &Context<'_>, situation: Situation, question: &Question) -> Outcome {
        let has_endpoint = || {
            let peer = self.peer.and_then(|id| context.forwarding.peer(id));
            !situation.is_running || peer.is_some_and(|peer| peer.endpoint().is_some())
        };
        let dropped = |reason| Outcome::Dropped {
            reason,
            remedy: remedy::remedy(context.forwarding, question, self.peer, reason),
        };

        let outcome = match self.result {
            Err(reason) => return dropped(reason),
            Ok(End::Cluster) => return Outcome::Delivered,
            Ok(End::Peer) if !has_endpoint() => return dropped(DropReason::NoEndpoint),
            Ok(End::Peer) => Outcome::Sent,
            Ok(End::Hairpin) => Outcome::Returned,
        };
        let is_too_big = question.size.is_some_and(|size| size > situation.mtu_bytes);

        if is_too_big { Outcome::TooBig } else { outcome }
    }

    /// Tells how the packet came to be what it is.
    fn after(
        &self,
        context: &Context<'_>,
        before: &Summary,
        (packet, mss): (Summary, Option<u16>),
    ) -> After {
        let table = context.forwarding.table();
        let rule = match self.routing {
            Some(Routing::Rule(_)) => Treatment::Rule,
            Some(Routing::AllowedIps(_)) | None => Treatment::Unchanged,
        };
        let arrived = || match table.arrival(before.destination) {
            Arrival::Known => Treatment::Unchanged,
            Arrival::Mapped(_) | Arrival::Answered(_) => Treatment::HostMap,
            // There is no port to arrive at that nobody had left from.
            Arrival::Shared => Treatment::Masquerade { is_new: false },
        };

        let (source, destination) = match self.result {
            Ok(End::Cluster) => (rule, arrived()),
            Ok(End::Hairpin) => (self.left(context, before, &packet), arrived()),
            Ok(End::Peer) | Err(_) => (self.left(context, before, &packet), rule),
        };

        After { packet, source, destination, mss_bytes: mss.filter(|mss| *mss < packet::MSS) }
    }

    /// How a source of ours came about.
    fn left(&self, context: &Context<'_>, before: &Summary, after: &Summary) -> Treatment {
        let is_same = before.source == after.source
            && before.content.source_port() == after.content.source_port();
        if is_same {
            return Treatment::Unchanged;
        }

        match context.forwarding.table().source(before.source) {
            Source::Mapped(_) | Source::Answering(_) => Treatment::HostMap,
            Source::Known | Source::Unknown => {
                let peer = self.peer.and_then(|id| context.forwarding.peer(id));
                let realm = peer.map_or(OWN_REALM, |peer| peer.realm);
                let protocol = before.content.protocol(before.source.is_ipv6());
                let port = before.content.source_port().unwrap_or_default();
                let is_known = context.remembers(realm, protocol, (before.source, port));
                Treatment::Masquerade { is_new: !is_known }
            }
        }
    }
}

/// Who sends an inbound packet, as far as that can be told, and the names of all who may.
#[expect(clippy::type_complexity, reason = "a pair of the two things that are found together")]
fn sender<'a>(
    forwarding: &'a Forwarding,
    question: &Question,
) -> Result<(Option<(PeerId, &'a Peer)>, Vec<String>), QuestionError> {
    let origin = question.source;
    let peers: Vec<(PeerId, &str, &Peer)> = (0..)
        .map(PeerId)
        .zip(forwarding.named_peers())
        .map(|(id, (name, peer))| (id, name, peer))
        .collect();
    let may_send: Vec<&(PeerId, &str, &Peer)> =
        peers.iter().filter(|(id, ..)| forwarding.allowed_ips().allows(*id, origin)).collect();
    let names: Vec<String> = may_send.iter().map(|(_, name, _)| (*name).to_owned()).collect();

    let sender = match (&question.peer, may_send.as_slice(), peers.as_slice()) {
        (Some(wanted), ..) => match peers.iter().find(|(_, name, _)| name == wanted) {
            Some(peer) => Some(peer),
            None => {
                let known = peers.iter().map(|(_, name, _)| (*name).to_owned()).collect();
                return Err(QuestionError::UnknownPeer { name: wanted.clone(), known });
            }
        },
        (None, [only], _) => Some(*only),
        (None, [], [only]) => Some(only),
        (None, [], _) => None,
        (None, ..) => return Err(QuestionError::AmbiguousPeer { origin, peers: names }),
    };

    Ok((sender.map(|(id, _, peer)| (*id, *peer)), names))
}

fn allowed_prefix(forwarding: &Forwarding, id: PeerId, address: IpAddr) -> Option<Routing> {
    forwarding.allowed_ips().covering(id, address).map(Routing::AllowedIps)
}

fn facts(forwarding: &Forwarding, situation: Situation, id: PeerId) -> Option<PeerFacts> {
    let peer = forwarding.peer(id)?;

    Some(PeerFacts {
        name: forwarding.name(id)?.to_owned(),
        public_key: peer.keys.public_key,
        endpoint: peer.endpoint(),
        has_session: situation.is_running.then(|| peer.tunnel.session().is_established),
    })
}
