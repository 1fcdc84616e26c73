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

mod answer;
mod packet;
mod question;
mod remedy;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use remap::{Destination, PeerId, Source};

use crate::Forwarding;
use crate::notice;
use crate::translate::{self, Context, Outgoing};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp_error::{self, Cause, MAX_ERROR_BYTES};
use strait_packet::rewrite::Checksum;
use strait_wg::Peer;

pub use answer::{After, Explanation, Outcome, PeerFacts, Routing, Summary, Treatment};
pub use question::{Content, Direction, Question, QuestionError};

/// What a gateway is besides what it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// MTU of the device, in bytes.
    pub mtu_bytes: u16,
    /// Whether there is a gateway. One that is only planned has yet to learn endpoints.
    pub is_running: bool,
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
    let as_sent = packet.clone();
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
    let outcome = journey.outcome(context, situation, question, &as_sent);

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
    /// Whether it needs an endpoint.
    is_for_peer: bool,
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
        let outgoing = translate::route(context, packet, header);
        let is_for_peer = matches!(outgoing, Ok(Outgoing::Peer(_)));
        let result = outgoing.and_then(|outgoing| {
            translate::outbound(context, &outgoing, packet, header, Checksum::Complete)?;
            Ok(match outgoing {
                Outgoing::Peer(_) => End::Peer,
                Outgoing::Hairpin => End::Hairpin,
            })
        });

        Self { peer, may_send: Vec::new(), routing, is_for_peer, result }
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
            return Ok(Self { peer: None, may_send, routing: None, is_for_peer: false, result });
        };

        let routing = match forwarding.table().inbound_rule(id, source) {
            Some(rule) => Some(Routing::Rule(*rule)),
            None => allowed_prefix(forwarding, id, source),
        };
        let result = translate::inbound(context, (id, peer), packet, header);
        let result = result.map(|()| End::Cluster);

        Ok(Self { peer: Some(id), may_send, routing, is_for_peer: false, result })
    }

    fn outcome(
        &self,
        context: &Context<'_>,
        situation: Situation,
        question: &Question,
        as_sent: &[u8],
    ) -> Outcome {
        let has_endpoint = || {
            let peer = self.peer.and_then(|id| context.forwarding.peer(id));
            !situation.is_running || peer.is_some_and(|peer| peer.endpoint().is_some())
        };
        let dropped = |reason| Outcome::Dropped {
            reason,
            remedy: remedy::remedy(context.forwarding, question, self.peer, reason),
            told: told(question.direction, as_sent, reason),
        };
        if self.is_for_peer && !has_endpoint() {
            return dropped(DropReason::NoEndpoint);
        }

        let outcome = match self.result {
            Err(reason) => return dropped(reason),
            Ok(End::Cluster) => return Outcome::Delivered,
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
        let arrived = || match table.destination(before.destination) {
            Destination::Known | Destination::UnmappedReplies => Treatment::Unchanged,
            Destination::Mapped(_) | Destination::MappedReplies(_) => Treatment::HostMap,
            // There is no port to arrive at that nobody had left from.
            Destination::Shared => Treatment::Masquerade { is_new: false },
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
            Source::Mapped(_) | Source::MappedReplies(_) => Treatment::HostMap,
            Source::Known | Source::Shared => {
                let protocol = before.content.protocol(before.source.is_ipv6());
                let port = before.content.source_port().unwrap_or_default();
                let source = (before.source, port);
                let realm = match self.peer.and_then(|id| context.forwarding.peer(id)) {
                    Some(peer) => peer.realm,
                    None => {
                        let port = before.content.destination_port().unwrap_or_default();
                        context.hairpin_realm(protocol, source, (before.destination, port))
                    }
                };
                let is_known = context.remembers(realm, protocol, source);
                Treatment::Masquerade { is_new: !is_known }
            }
        }
    }
}

/// What the sender of `packet` is told of its drop. Only our own senders are told anything.
fn told(direction: Direction, packet: &[u8], reason: DropReason) -> Option<Cause> {
    let may_be =
        |cause: &Cause| icmp_error::write(packet, *cause, &mut [0; MAX_ERROR_BYTES]).is_some();

    match direction {
        Direction::Outbound => notice::cause(reason).filter(may_be),
        Direction::Inbound => None,
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
