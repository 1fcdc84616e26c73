//! Rules: what a packet has to be like, and what happens to it then.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::{Devices, Packet};
use crate::Prefix;

/// What happens to packets that meet all conditions. `D` is a set of devices: names as objects have them, or the
/// devices of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule<A, D = Devices> {
    /// All of them have to hold.
    pub conditions: Vec<Condition<D>>,
    /// The action.
    pub action: A,
}

/// A property that a packet has to have, or must not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition<D = Devices> {
    /// Whether it must not have it.
    pub is_negated: bool,
    /// The property.
    pub property: Property<D>,
}

/// A property of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants name what they hold")]
pub enum Property<D = Devices> {
    Source(Addresses),
    Destination(Addresses),
    /// The first word of the transport header of any protocol.
    SourcePort(RangeInclusive<u16>),
    /// The second word of the transport header of any protocol.
    DestinationPort(RangeInclusive<u16>),
    InputDevice(D),
    OutputDevice(D),
    /// The number of the upper-layer protocol.
    Protocol(u8),
}

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of a prefix; one address is a prefix of full length.
    Prefix(Prefix),
    /// Those between two addresses, both included.
    Range(RangeInclusive<IpAddr>),
}

/// What a rule of a chain that filters does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ends the chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Drops the packet, and sends its source an ICMP error.
    Reject,
    /// Lowers the MSS of a SYN to this many bytes; `None`: to that of the route.
    ClampMss(Option<u16>),
    /// Sets the mark of the flow.
    MarkFlow(u32),
    /// Gives the packet the mark of its flow.
    RestoreMark,
    /// Exempts the packet from the tracking of flows.
    Untrack,
}

/// How a rule translates the first packet of a flow. It ends the chain, and no other chain of the hook translates
/// the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Replaces the prefix of the source; the host bits are kept.
    Source(Prefix),
    /// Replaces the prefix of the destination; the host bits are kept.
    Destination(Prefix),
    /// Replaces the source by the address of the output device.
    Masquerade,
}

impl<A, D> Rule<A, D> {
    /// The same rule with sets of another type for devices.
    #[must_use]
    pub fn map_devices<E>(self, mut convert: impl FnMut(D) -> E) -> Rule<A, E> {
        let conditions = self.conditions.into_iter().map(|Condition { is_negated, property }| {
            let property = match property {
                Property::Source(addresses) => Property::Source(addresses),
                Property::Destination(addresses) => Property::Destination(addresses),
                Property::SourcePort(ports) => Property::SourcePort(ports),
                Property::DestinationPort(ports) => Property::DestinationPort(ports),
                Property::InputDevice(devices) => Property::InputDevice(convert(devices)),
                Property::OutputDevice(devices) => Property::OutputDevice(convert(devices)),
                Property::Protocol(number) => Property::Protocol(number),
            };
            Condition { is_negated, property }
        });

        Rule { conditions: conditions.collect(), action: self.action }
    }
}

impl<A> Rule<A> {
    /// Whether `packet` meets all conditions.
    #[inline]
    pub(super) fn matches(&self, packet: &Packet) -> bool {
        self.conditions.iter().all(|condition| condition.holds(packet))
    }
}

impl Condition {
    /// A packet without ports meets no condition on them, negated or not: the rule of nftables ends where it
    /// cannot read. A device that is not selected yet has no name, which differs from all names.
    #[inline]
    fn holds(&self, packet: &Packet) -> bool {
        let port = |ports: &RangeInclusive<u16>, side: usize| {
            let port = packet.ports.and_then(|ports| ports.get(side).copied());
            port.map(|port| ports.contains(&port))
        };
        let has = match &self.property {
            Property::Source(addresses) => Some(addresses.contains(packet.source)),
            Property::Destination(addresses) => Some(addresses.contains(packet.destination)),
            Property::SourcePort(ports) => port(ports, 0),
            Property::DestinationPort(ports) => port(ports, 1),
            Property::InputDevice(devices) => Some(devices.contains(packet.input)),
            Property::OutputDevice(devices) => {
                Some(packet.output.is_some_and(|output| devices.contains(output)))
            }
            Property::Protocol(number) => Some(*number == packet.protocol),
        };

        has.is_some_and(|has| has != self.is_negated)
    }
}

impl Addresses {
    /// Whether `address` is one of them.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match self {
            Self::Prefix(prefix) => prefix.contains(address),
            Self::Range(range) => range.contains(&address),
        }
    }

    /// The prefix, if they are one.
    #[must_use]
    pub const fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::Prefix(prefix) => Some(*prefix),
            Self::Range(_) => None,
        }
    }
}
