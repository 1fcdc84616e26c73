//! Flow state: masqueraded flows, and the external address under which a host map answers.
//!
//! The state itself is [`Masquerade`]; this module extracts from packets what it needs.

use std::net::IpAddr;
use std::time::Instant;

use remap::masquerade::{
    Datagram, Direction, Endpoint, Flow, FlowRecord, Limits, LimitsError, Mapping, Masquerade,
    Pool, Protocol, Refused, Signal, Statistics, Tick, Timeouts,
};

use super::Settings;
use strait_packet::DropReason;
use strait_packet::ports::Ports;
use strait_packet::{Fragment, Header, mss};

/// The realm of flows to hosts of this cluster that have an external address of their own.
pub const OWN_REALM: u32 = 0;

/// What a translation may do to the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowAccess {
    /// Add flows and refresh them: for packets that are forwarded.
    Update,
    /// Read only: for packets that are explained.
    ReadOnly,
}

/// Flow state. Shared by both directions, without a lock between them.
#[derive(Debug)]
pub struct Flows {
    start: Instant,
    masquerade: Masquerade,
}

/// A packet before translation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginalPacket<'a> {
    pub(super) packet: &'a [u8],
    pub(super) header: &'a Header,
}

/// A possible answer of one of our hosts to a remote.
pub(super) struct Answer {
    pub(super) protocol: u8,
    pub(super) internal: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) ports: Option<Ports>,
}

impl Flows {
    pub(super) fn new(settings: Settings) -> Result<Self, LimitsError> {
        let max_mappings = settings.max_flows;
        let max_pins = (max_mappings / 16).max(1024);
        let limits = Limits {
            max_mappings,
            // One source must not exhaust the table for the others. At the default of `max_flows` this is more than
            // the ephemeral ports of a Linux host; when the ports of a shared address run out, the most idle flow
            // is evicted.
            max_per_source: (max_mappings / 8).max(1),
            max_sources: (max_mappings / 32).max(1024),
            max_pins,
            // All hosts of a remote may share one address.
            max_pins_per_source: max_pins / 2,
            ..Limits::DEFAULT
        };

        Ok(Self {
            start: settings.start,
            masquerade: Masquerade::new(limits, Timeouts::DEFAULT, settings.seed)?,
        })
    }

    /// `now` in the unit of the flow state.
    #[must_use]
    #[inline]
    pub fn tick(&self, now: Instant) -> Tick {
        Tick::from_secs(now.saturating_duration_since(self.start).as_secs())
    }

    /// Every live masqueraded flow.
    pub fn mappings(&self, now: Tick) -> impl Iterator<Item = Mapping> {
        self.masquerade.flows(now)
    }

    /// Counters and gauges.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.masquerade.statistics()
    }

    /// All flows, for a successor of this process with the same settings.
    pub(super) fn export(&self, now: Tick) -> Vec<FlowRecord> {
        self.masquerade.export(now).collect()
    }

    /// Adds the flows of the predecessor of this process. Returns how many there was no room for.
    pub(super) fn import(&self, flows: &[FlowRecord], now: Tick) -> usize {
        flows.iter().filter(|flow| !self.masquerade.import(flow, now)).count()
    }

    pub(super) fn handle_timeout(&self, now: Tick) {
        self.masquerade.handle_timeout(now);
    }

    /// Removes the flows of a peer that was removed.
    pub(super) fn remove_realm(&self, realm: u32) {
        self.masquerade.purge_realm(realm);
    }

    /// Outbound: the shared source address of a packet, and its source port unless it is a later fragment.
    /// `remote` is its destination as the remote knows it.
    pub(super) fn map_outbound(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        remote: IpAddr,
        pool: &Pool,
        flow_access: FlowAccess,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        let OriginalPacket { header, .. } = original;
        if header.fragment() == Fragment::Later {
            return self.map_later_fragment(realm, original, pool, now);
        }
        let flow = outbound_flow(original, remote).filter(|flow| has_ports(flow.protocol));
        let flow = flow.ok_or(DropReason::MasqueradeProtocol)?;

        let external = match flow_access {
            FlowAccess::Update => self
                .masquerade
                .outbound(realm, &flow, signal(original), pool, now)
                .map_err(reason)?,
            FlowAccess::ReadOnly => {
                self.masquerade.probe(realm, &flow, pool, now).map_err(reason)?
            }
        };
        self.record_fragment(
            Direction::Outbound,
            realm,
            original,
            external.address,
            flow_access,
            now,
        );

        Ok((external.address, Some(external.port)))
    }

    fn map_later_fragment(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        pool: &Pool,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        let recorded = datagram(realm, original).and_then(|later| {
            self.masquerade.later_fragment(Direction::Outbound, &later, now).ok()
        });
        if let Some(address) = recorded {
            return Ok((address, None));
        }
        if !has_ports(protocol_of_fragments(original.header.protocol())) {
            return Err(DropReason::MasqueradeProtocol);
        }
        // One source has one address, so this also holds for a fragment that overtook the first.
        let address = self.masquerade.paired(realm, original.header.source(), pool);

        Ok((address.ok_or(DropReason::MasqueradeFull)?, None))
    }

    /// Inbound: the internal address and port that a packet for a shared address belongs to.
    pub(super) fn map_inbound(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        flow_access: FlowAccess,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        if original.header.fragment() == Fragment::Later {
            let later = datagram(realm, original).ok_or(DropReason::FragmentUnknown)?;
            let internal = self.masquerade.later_fragment(Direction::Inbound, &later, now);
            return Ok((internal.map_err(reason)?, None));
        }
        let flow =
            inbound_flow(original, original.header.destination()).ok_or(DropReason::NoMapping)?;

        let internal = match flow_access {
            FlowAccess::Update => self.masquerade.inbound(realm, &flow, signal(original), now),
            FlowAccess::ReadOnly => {
                self.masquerade.peek_inbound(realm, flow.protocol, flow.destination, now)
            }
        };
        let internal = internal.ok_or(DropReason::NoMapping)?;
        self.record_fragment(
            Direction::Inbound,
            realm,
            original,
            internal.address,
            flow_access,
            now,
        );

        Ok((internal.address, Some(internal.port)))
    }

    /// Inbound: a packet to the host map of `internal`. The answers must have that external source too.
    pub(super) fn pin(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        internal: IpAddr,
        flow_access: FlowAccess,
        now: Tick,
    ) -> Result<(), DropReason> {
        if original.header.fragment() == Fragment::Later {
            return Ok(());
        }
        let Some(flow) = inbound_flow(original, internal) else {
            return Ok(());
        };

        let external = original.header.destination();
        let pinned = match flow_access {
            FlowAccess::Update => {
                self.masquerade.pin(realm, &flow, external, signal(original), now)
            }
            FlowAccess::ReadOnly => self.masquerade.probe_pin(realm, &flow, now),
        };

        pinned.map_err(reason)
    }

    /// Inbound: a packet to the own address of a host that also has a host map. The answers must have the own address
    /// as source.
    pub(super) fn unpin(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        flow_access: FlowAccess,
        now: Tick,
    ) {
        if flow_access == FlowAccess::ReadOnly || original.header.fragment() == Fragment::Later {
            return;
        }
        if let Some(flow) = inbound_flow(original, original.header.destination()) {
            self.masquerade.unpin(realm, &flow, signal(original), now);
        }
    }

    /// Outbound: whether a packet answers one that was sent to `external`. `remote` is its destination as the remote
    /// knows it.
    pub(super) fn is_answer(
        &self,
        realm: u32,
        original: OriginalPacket<'_>,
        remote: IpAddr,
        external: IpAddr,
        flow_access: FlowAccess,
        now: Tick,
    ) -> Result<bool, DropReason> {
        if original.header.fragment() == Fragment::Later {
            let later = datagram(realm, original).ok_or(DropReason::FragmentUnknown)?;
            let source = self.masquerade.later_fragment(Direction::Outbound, &later, now);
            return Ok(source.map_err(reason)? == external);
        }
        let Some(flow) = outbound_flow(original, remote) else {
            return Ok(false);
        };

        let pinned = match flow_access {
            FlowAccess::Update => self.masquerade.pinned(realm, &flow, signal(original), now),
            FlowAccess::ReadOnly => self.masquerade.peek_pinned(realm, &flow, now),
        };
        let is_answer = pinned == Some(external);
        let source = if is_answer { external } else { original.header.source() };
        self.record_fragment(Direction::Outbound, realm, original, source, flow_access, now);

        Ok(is_answer)
    }

    /// Whether a packet from `internal` to `remote` would be an answer with the source `external`. An ICMP error
    /// quotes the packet of the other direction, so the caller passes its addresses and ports swapped.
    pub(super) fn would_answer(
        &self,
        realm: u32,
        answer: &Answer,
        external: IpAddr,
        now: Tick,
    ) -> bool {
        let Answer { protocol, internal, remote, ports } = *answer;
        let protocol = protocol_of(protocol, ports.is_some());
        let (source_port, destination_port) = match (protocol, ports) {
            (Protocol::Echo, Some(ports)) => (ports.source, 0),
            (_, Some(ports)) => (ports.source, ports.destination),
            (_, None) => (0, 0),
        };
        let flow = Flow {
            protocol,
            source: Endpoint::new(internal, source_port),
            destination: Endpoint::new(remote, destination_port),
        };

        self.masquerade.peek_pinned(realm, &flow, now) == Some(external)
    }

    /// The internal address and port behind a shared address and port.
    pub(super) fn internal_of(
        &self,
        realm: u32,
        protocol: u8,
        external: (IpAddr, u16),
        now: Tick,
    ) -> Option<(IpAddr, u16)> {
        let protocol = protocol_of(protocol, true);
        let external = Endpoint::new(external.0, external.1);
        let internal = self.masquerade.peek_inbound(realm, protocol, external, now)?;

        Some((internal.address, internal.port))
    }

    /// The shared address and port of an internal address and port.
    pub(super) fn external_of(
        &self,
        realm: u32,
        protocol: u8,
        internal: (IpAddr, u16),
        now: Tick,
    ) -> Option<(IpAddr, u16)> {
        let protocol = protocol_of(protocol, true);
        let internal = Endpoint::new(internal.0, internal.1);
        let external = self.masquerade.peek_outbound(realm, protocol, internal, now)?;

        Some((external.address, external.port))
    }

    /// Records the translated address of a first fragment for the later ones.
    fn record_fragment(
        &self,
        direction: Direction,
        realm: u32,
        original: OriginalPacket<'_>,
        translated: IpAddr,
        flow_access: FlowAccess,
        now: Tick,
    ) {
        if original.header.fragment() == Fragment::First
            && flow_access == FlowAccess::Update
            && let Some(first) = datagram(realm, original)
        {
            self.masquerade.remember_fragment(direction, &first, translated, now);
        }
    }
}

/// The flow of an outbound packet to `remote`, its destination as the remote knows it. `None` if its transport header
/// is truncated.
fn outbound_flow(original: OriginalPacket<'_>, remote: IpAddr) -> Option<Flow> {
    let (protocol, ports) = protocol_and_ports(original)?;

    Some(Flow {
        protocol,
        source: Endpoint::new(original.header.source(), ports.source),
        destination: Endpoint::new(
            remote,
            if protocol == Protocol::Echo { 0 } else { ports.destination },
        ),
    })
}

/// The flow of an inbound packet to `destination`.
fn inbound_flow(original: OriginalPacket<'_>, destination: IpAddr) -> Option<Flow> {
    let (protocol, ports) = protocol_and_ports(original)?;

    Some(Flow {
        protocol,
        source: Endpoint::new(
            original.header.source(),
            if protocol == Protocol::Echo { 0 } else { ports.source },
        ),
        destination: Endpoint::new(destination, ports.destination),
    })
}

fn protocol_and_ports(original: OriginalPacket<'_>) -> Option<(Protocol, Ports)> {
    let OriginalPacket { packet, header } = original;
    let ports = Ports::read(packet, header);
    let protocol = protocol_of(header.protocol(), ports.is_some());

    match (ports, has_ports(protocol)) {
        (Some(ports), _) => Some((protocol, ports)),
        (None, false) => Some((protocol, Ports { source: 0, destination: 0 })),
        (None, true) => None,
    }
}

/// Of ICMP messages only echo requests and replies form a flow.
const fn protocol_of(number: u8, has_ports: bool) -> Protocol {
    match number {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        136 => Protocol::UdpLite,
        1 | 58 if has_ports => Protocol::Echo,
        other => Protocol::Raw(other),
    }
}

/// A later fragment has no ports, but its datagram may have.
const fn protocol_of_fragments(number: u8) -> Protocol {
    protocol_of(number, true)
}

const fn has_ports(protocol: Protocol) -> bool {
    !matches!(protocol, Protocol::Raw(_))
}

fn signal(original: OriginalPacket<'_>) -> Signal {
    mss::flags(original.packet, original.header).map_or(Signal::Data, Signal::from_tcp_flags)
}

fn datagram(realm: u32, original: OriginalPacket<'_>) -> Option<Datagram> {
    let OriginalPacket { packet, header } = original;

    Some(Datagram {
        realm,
        source: header.source(),
        destination: header.destination(),
        identification: header.identification(packet)?,
        // In IPv6, the first fragment may have more extension headers behind the fragment header, and the later ones
        // name only the first of these (RFC 8200 section 4.5).
        protocol: if header.is_ipv6() { 0 } else { header.protocol() },
    })
}

const fn reason(refused: Refused) -> DropReason {
    match refused {
        Refused::Protocol => DropReason::MasqueradeProtocol,
        Refused::SourceShare => DropReason::MasqueradeShare,
        Refused::Fragment => DropReason::FragmentUnknown,
        Refused::NoAddress | Refused::Ports | Refused::Full | Refused::Sources | _ => {
            DropReason::MasqueradeFull
        }
    }
}
