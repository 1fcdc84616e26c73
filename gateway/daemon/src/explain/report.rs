//! The output of `strait explain`. The JSON form is public interface.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use strait_engine::explain::{
    After, Content, Direction, Explanation, Outcome, PeerFacts, Question, Routing, Summary,
    Treatment,
};
use strait_packet::icmp_error::Cause;

use super::protocol;

/// How a packet is handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    direction: Direction,
    verdict: Verdict,
    /// The drop reason, if it is dropped.
    reason: Option<String>,
    /// The remedy.
    remedy: Option<String>,
    /// The ICMP error to the sender, if there is one.
    icmp_error: Option<String>,
    peer: Option<PeerReport>,
    /// Inbound: the peers that may send from the source.
    may_send: Vec<String>,
    rule: Option<RuleReport>,
    /// The allowed prefix that selects the peer, if no rule does.
    allowed_ip: Option<String>,
    before: PacketReport,
    after: Option<PacketReport>,
    /// How the source and the destination of `after` were rewritten.
    source_by: Option<RewrittenBy>,
    destination_by: Option<RewrittenBy>,
    /// The largest packet in bytes; `None` for inbound packets, which have no limit.
    mtu: Option<u16>,
    /// What limits it: the device, the route to the peer or probes of the path.
    mtu_source: Option<Cow<'static, str>>,
    /// The size in the question, in bytes.
    size: Option<u16>,
    /// The clamped MSS in bytes, if it was lowered.
    mss: Option<u16>,
    /// The generation of the table.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Sent,
    Delivered,
    Returned,
    TooBig,
    Dropped,
    /// The gateway would forward it, but the host does not route it: the device is down, or a route is missing.
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RewrittenBy {
    Unchanged,
    Rule,
    HostMap,
    /// An existing flow.
    Masquerade,
    /// A flow that this packet would create.
    MasqueradeNew,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PeerReport {
    name: String,
    public_key: String,
    endpoint: Option<SocketAddr>,
    /// `None` if no gateway was asked.
    has_session: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RuleReport {
    remote: String,
    local: String,
    checksum_neutral: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PacketReport {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    protocol_name: String,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    /// The identifier of an ICMP echo.
    identifier: Option<u16>,
}

impl Report {
    /// The report of `explanation` for `question`.
    pub(crate) fn new(question: &Question, explanation: &Explanation) -> Self {
        let Explanation { peer, may_send, routing, before, after, mtu, .. } = explanation;
        let (verdict, reason, remedy, icmp_error) = match &explanation.outcome {
            Outcome::Sent => (Verdict::Sent, None, None, None),
            Outcome::Delivered => (Verdict::Delivered, None, None, None),
            Outcome::Returned => (Verdict::Returned, None, None, None),
            Outcome::TooBig => (Verdict::TooBig, None, None, None),
            Outcome::Dropped { reason, remedy, icmp_error } => {
                let reason = reason.label().to_owned();
                (Verdict::Dropped, Some(reason), Some(remedy.clone()), *icmp_error)
            }
        };
        let (rule, allowed_ip) = match routing {
            Some(Routing::Rule(rule)) => {
                let rule = RuleReport {
                    remote: rule.remote().to_string(),
                    local: rule.local().to_string(),
                    checksum_neutral: rule.is_checksum_neutral(),
                };
                (Some(rule), None)
            }
            Some(Routing::AllowedIps(prefix)) => (None, Some(prefix.to_string())),
            None => (None, None),
        };

        Self {
            direction: question.direction,
            verdict,
            reason,
            remedy,
            icmp_error: icmp_error
                .map(|cause| error_name(cause, before.source.is_ipv6()).to_owned()),
            peer: peer.as_ref().map(PeerReport::new),
            may_send: may_send.clone(),
            rule,
            allowed_ip,
            before: PacketReport::new(before),
            after: after.map(|After { packet, .. }| PacketReport::new(&packet)),
            source_by: after.map(|After { source, .. }| RewrittenBy::new(source)),
            destination_by: after.map(|After { destination, .. }| RewrittenBy::new(destination)),
            mtu: mtu.map(|mtu| mtu.bytes),
            mtu_source: mtu.map(|mtu| mtu.source.name().into()),
            size: question.size,
            mss: after.and_then(|After { mss_bytes, .. }| mss_bytes),
            generation: explanation.generation,
        }
    }

    /// Marks the packet as blocked by the host, with the remedy, if there is an obstacle.
    #[must_use]
    pub(crate) fn blocked_by(mut self, obstacle: Option<String>) -> Self {
        if let (Some(obstacle), true) = (obstacle, self.is_forwarded()) {
            self.verdict = Verdict::Blocked;
            self.remedy = Some(obstacle);
        }

        self
    }

    /// Whether the packet would be forwarded.
    pub(crate) const fn is_forwarded(&self) -> bool {
        match self.verdict {
            Verdict::Sent | Verdict::Delivered | Verdict::Returned => true,
            Verdict::TooBig | Verdict::Dropped | Verdict::Blocked => false,
        }
    }

    fn mtu_text(&self) -> Option<String> {
        let is_ipv6 = self.before.source.is_ipv6();
        let error = if is_ipv6 { "packet too big" } else { "fragmentation needed" };
        let source = self.mtu_source.as_deref().unwrap_or_default();
        let fit = match (self.mtu, self.size) {
            (None, _) => None,
            (Some(mtu), None) => Some(format!("{mtu} ({source})")),
            (Some(mtu), Some(size)) if size <= mtu => {
                Some(format!("{mtu} ({source}): {size} bytes fit"))
            }
            (Some(mtu), Some(size)) => Some(format!(
                "{mtu} ({source}): {size} bytes do not fit, the sender gets {error:?}"
            )),
        };
        let clamp = self.mss.map(|mss| format!("MSS is clamped to {mss}"));

        match (fit, clamp) {
            (Some(fit), Some(clamp)) if self.size.is_none() => Some(format!("{fit}: {clamp}")),
            (Some(fit), Some(clamp)) => Some(format!("{fit}; {clamp}")),
            (fit, clamp) => fit.or(clamp),
        }
    }
}

/// The name of an ICMP error as in RFC 1812 section 5.2.7.1, RFC 4443 section 3.1 and Wireshark.
const fn error_name(cause: Cause, is_ipv6: bool) -> &'static str {
    match (cause, is_ipv6) {
        (Cause::Unreachable, false) => "host unreachable",
        (Cause::Unreachable, true) => "address unreachable",
        (Cause::Prohibited, _) => "communication administratively prohibited",
        (Cause::Rejected, false) => "net unreachable",
        (Cause::Rejected, true) => "no route to destination",
        (Cause::TooBig(_), false) => "fragmentation needed",
        (Cause::TooBig(_), true) => "packet too big",
    }
}

impl RewrittenBy {
    const fn new(treatment: Treatment) -> Self {
        match treatment {
            Treatment::Unchanged => Self::Unchanged,
            Treatment::Rule => Self::Rule,
            Treatment::HostMap => Self::HostMap,
            Treatment::Masquerade { is_new: false } => Self::Masquerade,
            Treatment::Masquerade { is_new: true } => Self::MasqueradeNew,
        }
    }

    /// The text, unless the line of the rule has it already.
    const fn text(self) -> Option<&'static str> {
        match self {
            Self::Unchanged | Self::Rule => None,
            Self::HostMap => Some("host map"),
            Self::Masquerade => Some("masquerade, an existing flow"),
            Self::MasqueradeNew => Some("masquerade, a new flow: the port may differ"),
        }
    }
}

impl PeerReport {
    fn new(facts: &PeerFacts) -> Self {
        Self {
            name: facts.name.clone(),
            public_key: facts.public_key.to_string(),
            endpoint: facts.endpoint,
            has_session: facts.has_session,
        }
    }
}

impl PacketReport {
    fn new(packet: &Summary) -> Self {
        let Summary { source, destination, content } = *packet;
        let protocol = content.protocol(source.is_ipv6());
        let is_echo = matches!(content, Content::Echo { .. });
        let (ports, identifier) = if is_echo {
            ((None, None), content.source_port())
        } else {
            ((content.source_port(), content.destination_port()), None)
        };

        Self {
            source,
            destination,
            protocol,
            protocol_name: protocol::name(protocol),
            source_port: ports.0,
            destination_port: ports.1,
            identifier,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PacketReport { source, destination, protocol_name, destination_port, .. } =
            &self.before;
        let port = destination_port.map_or_else(String::new, |port| format!("/{port}"));
        let direction = match self.direction {
            Direction::Outbound => "outbound",
            Direction::Inbound => "inbound",
        };
        writeln!(f, "{source} → {destination} {protocol_name}{port}   {direction}")?;

        match &self.peer {
            Some(peer) => line(f, "peer", &peer.to_string())?,
            None if self.verdict == Verdict::Returned => {
                line(f, "peer", "none: returned to the cluster")?
            }
            None => {}
        }
        if self.direction == Direction::Inbound && self.may_send.len() > 1 {
            line(f, "may send", &self.may_send.join(", "))?;
        }
        match (&self.rule, &self.allowed_ip) {
            (Some(rule), _) => line(f, "rule", &rule.to_string())?,
            (None, Some(prefix)) => line(f, "rule", &format!("none; allowed IPs {prefix}"))?,
            (None, None) => {}
        }
        if let Some(rewritten_by) = self.source_by.and_then(RewrittenBy::text) {
            line(f, "source", rewritten_by)?;
        }
        if let Some(rewritten_by) = self.destination_by.and_then(RewrittenBy::text) {
            line(f, "target", rewritten_by)?;
        }
        line(f, "before", &self.before.to_string())?;
        if let Some(after) = &self.after {
            line(f, "after", &after.to_string())?;
        }
        if let Some(mtu) = self.mtu_text() {
            line(f, "mtu", &mtu)?;
        }

        let reason = self.reason.as_deref().unwrap_or_default();
        let is_waiting = self.peer.as_ref().is_some_and(|peer| peer.has_session == Some(false));
        match self.verdict {
            Verdict::Sent if is_waiting => line(f, "verdict", "sent, after a handshake")?,
            Verdict::Sent => line(f, "verdict", "sent")?,
            Verdict::Delivered => line(f, "verdict", "delivered")?,
            Verdict::Returned => line(f, "verdict", "returned to the cluster")?,
            Verdict::TooBig => line(f, "verdict", "too big")?,
            Verdict::Dropped => line(f, "verdict", &format!("dropped: {reason}"))?,
            Verdict::Blocked => line(f, "verdict", "blocked by the host")?,
        }
        if let Some(error) = &self.icmp_error {
            line(f, "sender", &format!("gets {error:?}"))?;
        }
        match &self.remedy {
            Some(remedy) => line(f, "remedy", remedy),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint {
            Some(endpoint) => write!(f, "{} ({endpoint})", self.name),
            None => write!(f, "{} (endpoint not known)", self.name),
        }
    }
}

impl fmt::Display for RuleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.remote, self.local)?;

        if self.checksum_neutral { f.write_str(" (checksum-neutral)") } else { Ok(()) }
    }
}

impl fmt::Display for PacketReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, .. } = self;
        if let (Some(from), Some(to)) = (self.source_port, self.destination_port) {
            let (source, destination) =
                (SocketAddr::new(*source, from), SocketAddr::new(*destination, to));
            return write!(f, "{source} → {destination}");
        }
        write!(f, "{source} → {destination}")?;

        match self.identifier {
            Some(identifier) => write!(f, ", identifier {identifier}"),
            None => Ok(()),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, key: &str, value: &str) -> fmt::Result {
    writeln!(f, "  {key:<8} {value}")
}
