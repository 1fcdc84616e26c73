//! Explains what happens to a packet, and why, with the code of the packet path.
//!
//! A [`Question`] becomes a real packet, the packet goes through [`translate`], and the result is read from its bytes.
//! Flow state is read and not changed, so a question has no side effect, and two answers in a row are equal.
//!
//! # Invariants
//!
//! - The outcome and the drop reason are those of the packet path for the same packet.
//! - The explanation (which prefix, which peer, which remedy) is looked up afterwards, in the generation that decided.
//!
//! # Not here
//!
//! Parsing questions and printing answers: the daemon does that.

mod answer;
mod packet;
mod question;
mod remedy;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use remap::{Destination, PeerId, Source};

use crate::Forwarding;
use crate::icmp_errors;
use crate::outbound::MIN_MTU_V6;
use crate::translate::{self, Context, Outgoing};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::icmp_error::{self, Cause, MAX_ERROR_BYTES};
use strait_packet::rewrite::Checksum;
use strait_wg::{PathMtu, PathMtuSource, Peer};

pub use answer::{After, Explanation, Outcome, PeerFacts, Routing, Summary, Treatment};
pub use question::{Content, Direction, Question, QuestionError};

/// The state of a gateway that is not part of [`Forwarding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// MTU of the device, in bytes.
    pub mtu_bytes: u16,
    /// Whether the gateway runs. One that does not has learned no endpoints.
    pub is_running: bool,
}

/// Explains what happens to the packet that `question` describes.
///
/// # Errors
///
/// [`QuestionError`] if there is no such packet, or if its sender is ambiguous.
pub fn explain(
    context: &Context<'_>,
    situation: Situation,
    question: &Question,
) -> Result<Explanation, QuestionError> {
    let mut packet = question.packet()?;
    let mut header = packet::parse(&packet, question)?;
    let as_sent = packet.clone();
    let was_correct = packet::is_checksum_correct(&packet, &header);
    let before = Summary::read(&packet, &header);

    let trace = match question.direction {
        Direction::Outbound => Trace::outbound(context, &mut packet, &mut header),
        Direction::Inbound => Trace::inbound(context, question, &mut packet, &mut header)?,
    };
    debug_assert!(
        trace.result.is_err() || packet::is_checksum_correct(&packet, &header) == was_correct,
        "a correct checksum stays correct"
    );

    let after = trace.result.ok().map(|_| {
        let mss = packet::mss(&packet, &header);
        trace.after(context, &before, Summary::read(&packet, &header), mss)
    });
    let peer = trace.peer.and_then(|id| context.forwarding.peer(id));
    let mtu = mtu_towards(peer, situation, header.is_ipv6());
    let outcome = trace.outcome(context, situation, question, &as_sent, mtu.bytes);

    Ok(Explanation {
        generation: context.forwarding.table().generation(),
        peer: trace.peer.and_then(|id| facts(context.forwarding, situation, id)),
        routing: trace.routing,
        may_send: trace.may_send,
        before,
        after,
        mtu: (question.direction == Direction::Outbound).then_some(mtu),
        outcome,
    })
}

/// The result of the packet path for a packet, and the peer and route that led to it.
struct Trace {
    peer: Option<PeerId>,
    may_send: Vec<String>,
    routing: Option<Routing>,
    /// Whether the packet needs an endpoint.
    is_for_peer: bool,
    result: Result<Exit, DropReason>,
}

/// Where a packet leaves the gateway.
#[derive(Clone, Copy)]
enum Exit {
    Peer,
    Hairpin,
    Cluster,
}

impl Trace {
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
                Outgoing::Peer(_) => Exit::Peer,
                Outgoing::Hairpin => Exit::Hairpin,
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
        let result = translate::inbound(context, id, peer, packet, header);
        let result = result.map(|()| Exit::Cluster);

        Ok(Self { peer: Some(id), may_send, routing, is_for_peer: false, result })
    }

    fn outcome(
        &self,
        context: &Context<'_>,
        situation: Situation,
        question: &Question,
        as_sent: &[u8],
        mtu_bytes: u16,
    ) -> Outcome {
        let has_endpoint = || {
            let peer = self.peer.and_then(|id| context.forwarding.peer(id));
            !situation.is_running || peer.is_some_and(|peer| peer.endpoint().is_some())
        };
        let dropped = |reason| Outcome::Dropped {
            reason,
            remedy: remedy::remedy(context.forwarding, question, self.peer, reason),
            icmp_error: icmp_error(question.direction, as_sent, reason),
        };
        if self.is_for_peer && !has_endpoint() {
            return dropped(DropReason::NoEndpoint);
        }

        let outcome = match self.result {
            Err(reason) => return dropped(reason),
            Ok(Exit::Cluster) => return Outcome::Delivered,
            Ok(Exit::Peer) => Outcome::Sent,
            Ok(Exit::Hairpin) => Outcome::Returned,
        };
        let is_too_big = question.size.is_some_and(|size| size > mtu_bytes);

        if is_too_big { Outcome::TooBig } else { outcome }
    }

    /// Describes the translated packet, and how each address was translated.
    fn after(
        &self,
        context: &Context<'_>,
        before: &Summary,
        packet: Summary,
        mss: Option<u16>,
    ) -> After {
        let table = context.forwarding.table();
        let rule = match self.routing {
            Some(Routing::Rule(_)) => Treatment::Rule,
            Some(Routing::AllowedIps(_)) | None => Treatment::Unchanged,
        };
        let destination = || match table.destination(before.destination) {
            Destination::Known | Destination::UnmappedReplies => Treatment::Unchanged,
            Destination::Mapped(_) | Destination::MappedReplies(_) => Treatment::HostMap,
            // The mapping exists: without one the packet is dropped.
            Destination::Shared => Treatment::Masquerade { is_new: false },
        };

        let (source, destination) = match self.result {
            Ok(Exit::Cluster) => (rule, destination()),
            Ok(Exit::Hairpin) => (self.source_treatment(context, before, &packet), destination()),
            Ok(Exit::Peer) | Err(_) => (self.source_treatment(context, before, &packet), rule),
        };

        After { packet, source, destination, mss_bytes: mss.filter(|mss| *mss < packet::MSS) }
    }

    /// How a source of ours was translated.
    fn source_treatment(
        &self,
        context: &Context<'_>,
        before: &Summary,
        after: &Summary,
    ) -> Treatment {
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
                let is_known = context.has_mapping(realm, protocol, source);
                Treatment::Masquerade { is_new: !is_known }
            }
        }
    }
}

/// The ICMP error about a drop of `packet`. Only senders in this cluster get one.
fn icmp_error(direction: Direction, packet: &[u8], reason: DropReason) -> Option<Cause> {
    let is_possible =
        |cause: &Cause| icmp_error::write(packet, *cause, &mut [0; MAX_ERROR_BYTES]).is_some();

    match direction {
        Direction::Outbound => icmp_errors::cause(reason).filter(is_possible),
        Direction::Inbound => None,
    }
}

/// The sender of an inbound packet if it is unambiguous, and the names of all peers that may send it.
#[expect(clippy::type_complexity, reason = "a pair of results of one search")]
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

/// The largest packet that is sent to `peer` without an ICMP error.
fn mtu_towards(peer: Option<&Peer>, situation: Situation, is_ipv6: bool) -> PathMtu {
    let device = PathMtu { bytes: situation.mtu_bytes, source: PathMtuSource::Device };
    let path = peer.and_then(Peer::path_mtu).map(|path| match is_ipv6 {
        true => PathMtu { bytes: path.bytes.max(MIN_MTU_V6), ..path },
        false => path,
    });

    path.filter(|path| path.bytes < device.bytes).unwrap_or(device)
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
