//! What is remembered of flows: who shares an external address, and who is answered under one.
//!
//! The memory itself is [`Masquerade`]; here it learns what it has to know from packets.

use std::net::IpAddr;
use std::time::Instant;

use remap::masquerade::{
    Datagram, Direction, Endpoint, Flow, Limits, LimitsError, Mapping, Masquerade, Pool, Protocol,
    Refused, Signal, Statistics, Tick, Timeouts,
};

use super::Settings;
use super::translate::Memory;
use strait_packet::DropReason;
use strait_packet::Fragment;
use strait_packet::Header;
use strait_packet::mss;
use strait_packet::ports::Ports;

/// The realm of flows to hosts of this cluster that have an external address of their own.
pub const OWN_REALM: u32 = 0;

/// The memory of flows. Shared by both directions, without a lock between them.
#[derive(Debug)]
pub struct Flows {
    start: Instant,
    masquerade: Masquerade,
}

/// A packet as it was before anything in it changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) packet: &'a [u8],
    pub(super) header: &'a Header,
}

impl Flows {
    pub(super) fn new(settings: Settings) -> Result<Self, LimitsError> {
        let max_mappings = settings.max_flows;
        let max_pins = (max_mappings / 16).max(1024);
        let limits = Limits {
            max_mappings,
            // One source may take much, but never so much of the memory that the others are left with nothing.
            // With what `max_flows` is by default it is more than a host of Linux has ports to call from; where
            // the ports of a shared address run out, the most idle flow makes room.
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

    /// `now` as the memory counts it.
    #[must_use]
    #[inline]
    pub fn tick(&self, now: Instant) -> Tick {
        Tick::from_secs(now.saturating_duration_since(self.start).as_secs())
    }

    /// Every masqueraded flow that lives.
    pub fn mappings(&self, now: Tick) -> impl Iterator<Item = Mapping> {
        self.masquerade.flows(now)
    }

    /// Counters and gauges.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.masquerade.statistics()
    }

    pub(super) fn handle_timeout(&self, now: Tick) {
        self.masquerade.handle_timeout(now);
    }

    /// The peer of `realm` is there no more.
    pub(super) fn forget(&self, realm: u32) {
        self.masquerade.purge_realm(realm);
    }

    /// Outbound: the shared address, and port if the packet has one, that a packet leaves with.
    /// `remote` is its destination as the remote calls it.
    pub(super) fn leave(
        &self,
        realm: u32,
        seen: Seen<'_>,
        remote: IpAddr,
        pool: &Pool,
        memory: Memory,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        let Seen { header, .. } = seen;
        if header.fragment() == Fragment::Later {
            return self.leave_later(realm, seen, pool, now);
        }
        let flow = outbound_flow(seen, remote).filter(|flow| has_ports(flow.protocol));
        let flow = flow.ok_or(DropReason::MasqueradeProtocol)?;

        let external = match memory {
            Memory::Updated => {
                self.masquerade.outbound(realm, &flow, signal(seen), pool, now).map_err(reason)?
            }
            Memory::Unchanged => self.masquerade.probe(realm, &flow, pool, now).map_err(reason)?,
        };
        self.remember(Direction::Outbound, realm, seen, external.address, memory, now);

        Ok((external.address, Some(external.port)))
    }

    fn leave_later(
        &self,
        realm: u32,
        seen: Seen<'_>,
        pool: &Pool,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        let remembered = datagram(realm, seen).and_then(|later| {
            self.masquerade.later_fragment(Direction::Outbound, &later, now).ok()
        });
        if let Some(address) = remembered {
            return Ok((address, None));
        }
        if !has_ports(protocol_of_fragments(seen.header.protocol())) {
            return Err(DropReason::MasqueradeProtocol);
        }
        // One source has one address, so even a fragment that overtook the first knows its own.
        let address = self.masquerade.paired(realm, seen.header.source(), pool);

        Ok((address.ok_or(DropReason::MasqueradeFull)?, None))
    }

    /// Inbound: who a packet for a shared address is for.
    pub(super) fn arrive(
        &self,
        realm: u32,
        seen: Seen<'_>,
        memory: Memory,
        now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        if seen.header.fragment() == Fragment::Later {
            let later = datagram(realm, seen).ok_or(DropReason::FragmentUnknown)?;
            let internal = self.masquerade.later_fragment(Direction::Inbound, &later, now);
            return Ok((internal.map_err(reason)?, None));
        }
        let flow = inbound_flow(seen, seen.header.destination()).ok_or(DropReason::NoMapping)?;

        let internal = match memory {
            Memory::Updated => self.masquerade.inbound(realm, &flow, signal(seen), now),
            Memory::Unchanged => {
                self.masquerade.peek_inbound(realm, flow.protocol, flow.destination, now)
            }
        };
        let internal = internal.ok_or(DropReason::NoMapping)?;
        self.remember(Direction::Inbound, realm, seen, internal.address, memory, now);

        Ok((internal.address, Some(internal.port)))
    }

    /// Inbound: a packet for the host map of `internal`, which has to answer under the same name.
    pub(super) fn pin(
        &self,
        realm: u32,
        seen: Seen<'_>,
        internal: IpAddr,
        memory: Memory,
        now: Tick,
    ) -> Result<(), DropReason> {
        if seen.header.fragment() == Fragment::Later {
            return Ok(());
        }
        let Some(flow) = inbound_flow(seen, internal) else {
            return Ok(());
        };

        let external = seen.header.destination();
        let pinned = match memory {
            Memory::Updated => self.masquerade.pin(realm, &flow, external, signal(seen), now),
            Memory::Unchanged => self.masquerade.probe_pin(realm, &flow, now),
        };

        pinned.map_err(reason)
    }

    /// Inbound: a packet for the own name of a host that has a host map too: it has to answer under
    /// that.
    pub(super) fn unpin(&self, realm: u32, seen: Seen<'_>, memory: Memory, now: Tick) {
        if memory == Memory::Unchanged || seen.header.fragment() == Fragment::Later {
            return;
        }
        if let Some(flow) = inbound_flow(seen, seen.header.destination()) {
            self.masquerade.unpin(realm, &flow, signal(seen), now);
        }
    }

    /// Outbound: whether a packet answers one that came for `external`. `remote` is its destination
    /// as the remote calls it.
    pub(super) fn is_answer(
        &self,
        realm: u32,
        seen: Seen<'_>,
        remote: IpAddr,
        external: IpAddr,
        memory: Memory,
        now: Tick,
    ) -> Result<bool, DropReason> {
        if seen.header.fragment() == Fragment::Later {
            let later = datagram(realm, seen).ok_or(DropReason::FragmentUnknown)?;
            let source = self.masquerade.later_fragment(Direction::Outbound, &later, now);
            return Ok(source.map_err(reason)? == external);
        }
        let Some(flow) = outbound_flow(seen, remote) else {
            return Ok(false);
        };

        let pinned = match memory {
            Memory::Updated => self.masquerade.pinned(realm, &flow, signal(seen), now),
            Memory::Unchanged => self.masquerade.peek_pinned(realm, &flow, now),
        };
        let is_answer = pinned == Some(external);
        let source = if is_answer { external } else { seen.header.source() };
        self.remember(Direction::Outbound, realm, seen, source, memory, now);

        Ok(is_answer)
    }

    /// Whether the packet from `internal` to `remote` would be an answer under `external`: for one
    /// that an error quotes the wrong way round.
    pub(super) fn would_answer(
        &self,
        realm: u32,
        protocol: u8,
        (internal, remote): (IpAddr, IpAddr),
        ports: Option<Ports>,
        external: IpAddr,
        now: Tick,
    ) -> bool {
        let protocol = protocol_of(protocol, ports.is_some());
        let (near, far) = match (protocol, ports) {
            (Protocol::Echo, Some(ports)) => (ports.source, 0),
            (_, Some(ports)) => (ports.source, ports.destination),
            (_, None) => (0, 0),
        };
        let flow = Flow {
            protocol,
            source: Endpoint::new(internal, near),
            destination: Endpoint::new(remote, far),
        };

        self.masquerade.peek_pinned(realm, &flow, now) == Some(external)
    }

    /// Who has a shared address and port.
    pub(super) fn internal_of(
        &self,
        realm: u32,
        protocol: u8,
        (address, port): (IpAddr, u16),
        now: Tick,
    ) -> Option<(IpAddr, u16)> {
        let protocol = protocol_of(protocol, true);
        let external = Endpoint::new(address, port);
        let internal = self.masquerade.peek_inbound(realm, protocol, external, now)?;

        Some((internal.address, internal.port))
    }

    /// The shared address and port of a source and its port.
    pub(super) fn external_of(
        &self,
        realm: u32,
        protocol: u8,
        (address, port): (IpAddr, u16),
        now: Tick,
    ) -> Option<(IpAddr, u16)> {
        let protocol = protocol_of(protocol, true);
        let internal = Endpoint::new(address, port);
        let external = self.masquerade.peek_outbound(realm, protocol, internal, now)?;

        Some((external.address, external.port))
    }

    /// The fragments behind a first one follow it.
    fn remember(
        &self,
        direction: Direction,
        realm: u32,
        seen: Seen<'_>,
        translated: IpAddr,
        memory: Memory,
        now: Tick,
    ) {
        if seen.header.fragment() == Fragment::First
            && memory == Memory::Updated
            && let Some(first) = datagram(realm, seen)
        {
            self.masquerade.remember_fragment(direction, &first, translated, now);
        }
    }
}

/// The flow of an outbound packet, which the remote calls `remote` at the far end. `None` if its
/// transport header is cut short.
fn outbound_flow(seen: Seen<'_>, remote: IpAddr) -> Option<Flow> {
    let (protocol, ports) = conversation(seen)?;

    Some(Flow {
        protocol,
        source: Endpoint::new(seen.header.source(), ports.source),
        destination: Endpoint::new(
            remote,
            if protocol == Protocol::Echo { 0 } else { ports.destination },
        ),
    })
}

/// The flow of an inbound packet to `destination`.
fn inbound_flow(seen: Seen<'_>, destination: IpAddr) -> Option<Flow> {
    let (protocol, ports) = conversation(seen)?;

    Some(Flow {
        protocol,
        source: Endpoint::new(
            seen.header.source(),
            if protocol == Protocol::Echo { 0 } else { ports.source },
        ),
        destination: Endpoint::new(destination, ports.destination),
    })
}

fn conversation(Seen { packet, header }: Seen<'_>) -> Option<(Protocol, Ports)> {
    let ports = Ports::read(packet, header);
    let protocol = protocol_of(header.protocol(), ports.is_some());

    match (ports, has_ports(protocol)) {
        (Some(ports), _) => Some((protocol, ports)),
        (None, false) => Some((protocol, Ports { source: 0, destination: 0 })),
        (None, true) => None,
    }
}

/// An ICMP message is a conversation of its own only if it is an echo.
const fn protocol_of(number: u8, has_ports: bool) -> Protocol {
    match number {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        136 => Protocol::UdpLite,
        1 | 58 if has_ports => Protocol::Echo,
        other => Protocol::Raw(other),
    }
}

/// A fragment without ports may still belong to a datagram that has some.
const fn protocol_of_fragments(number: u8) -> Protocol {
    protocol_of(number, true)
}

const fn has_ports(protocol: Protocol) -> bool {
    !matches!(protocol, Protocol::Raw(_))
}

fn signal(Seen { packet, header }: Seen<'_>) -> Signal {
    mss::flags(packet, header).map_or(Signal::Data, Signal::from_tcp_flags)
}

fn datagram(realm: u32, Seen { packet, header }: Seen<'_>) -> Option<Datagram> {
    Some(Datagram {
        realm,
        source: header.source(),
        destination: header.destination(),
        identification: header.identification(packet)?,
        // Behind the fragment header of IPv6 the first fragment may have further extension headers, and
        // the others name only the next one of them (RFC 8200 section 4.5).
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
