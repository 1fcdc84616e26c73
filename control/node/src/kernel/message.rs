//! Netlink messages of routes, rules and neighbours. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags,
    RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use strait_host::netlink::{ROUTE_PROTOCOL, destination, output_interface};

use super::super::flags::Place;
use super::super::state::{Mac, NextHop, RouteKey, Target, Version};

/// `RT_TABLE_COMPAT` of the kernel: the number of the table is in an attribute, as it does not fit here.
const TABLE_COMPAT: u8 = 252;

/// A route in `table`.
pub(super) fn route_message(table: u32, key: RouteKey, target: &Target) -> RouteMessage {
    let RouteKey { prefix, metric } = key;
    let mut route = match prefix {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .build(),
    };
    route.header.table = table_byte(table);
    route.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    route.header.scope = RouteScope::Universe;
    route.attributes.push(RouteAttribute::Table(table));
    route.attributes.push(RouteAttribute::Priority(metric));
    match target {
        Target::Unreachable => route.header.kind = RouteType::Unreachable,
        Target::Via { hops, source } => {
            let mut all = hops.iter();
            if let (Some(NextHop { gateway, device }), None) = (all.next(), all.next()) {
                // The next hop needs no network of its own on the interface.
                route.header.flags |= RouteFlags::Onlink;
                route.attributes.push(RouteAttribute::Gateway((*gateway).into()));
                route.attributes.push(RouteAttribute::Oif(*device));
            } else {
                let several = hops.iter().map(next_hop_message).collect();
                route.attributes.push(RouteAttribute::MultiPath(several));
            }
            route.attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
        }
    }

    route
}

/// One of several next hops, all with the same weight.
fn next_hop_message(hop: &NextHop) -> RouteNextHop {
    let mut next_hop = RouteNextHop::default();
    next_hop.flags = RouteNextHopFlags::Onlink;
    next_hop.interface_index = hop.device;
    next_hop.attributes.push(RouteAttribute::Gateway(hop.gateway.into()));

    next_hop
}

/// Key and target of a route of ours; `None` for one that this program does not create.
pub(super) fn read_route(route: &RouteMessage) -> Option<(RouteKey, Target)> {
    let mut key = RouteKey { prefix: destination(route)?, metric: 0 };
    let (mut via, mut from, mut several) = (None, None, None);
    for attribute in &route.attributes {
        if let RouteAttribute::Priority(priority) = attribute {
            key.metric = *priority;
        } else if let RouteAttribute::Gateway(address) = attribute {
            via = ip(address);
        } else if let RouteAttribute::PrefSource(address) = attribute {
            from = ip(address);
        } else if let RouteAttribute::MultiPath(next_hops) = attribute {
            several = Some(next_hops);
        }
    }
    if route.header.kind == RouteType::Unreachable {
        return Some((key, Target::Unreachable));
    }
    let hops = match several {
        Some(several) => several.iter().map(read_next_hop).collect::<Option<_>>()?,
        None => [NextHop { gateway: via?, device: output_interface(route)? }].into(),
    };

    Some((key, Target::Via { hops, source: from }))
}

fn read_next_hop(hop: &RouteNextHop) -> Option<NextHop> {
    let gateway = hop.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Gateway(address) = attribute { ip(address) } else { None }
    });

    Some(NextHop { gateway: gateway?, device: hop.interface_index })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(ip) = address {
        Some(IpAddr::V4(*ip))
    } else if let RouteAddress::Inet6(ip) = address {
        Some(IpAddr::V6(*ip))
    } else {
        None
    }
}

pub(super) fn table_of_route(route: &RouteMessage) -> u32 {
    let attribute = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Table(table) = attribute { Some(*table) } else { None }
    });

    attribute.unwrap_or_else(|| u32::from(route.header.table))
}

fn table_byte(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(TABLE_COMPAT)
}

/// The rule for all packets of a version to our table.
pub(super) fn rule_message(place: Place, version: Version) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = match version {
        Version::V4 => AddressFamily::Inet,
        Version::V6 => AddressFamily::Inet6,
    };
    rule.header.table = table_byte(place.table);
    rule.header.action = RuleAction::ToTable;
    rule.attributes.push(RuleAttribute::Table(place.table));
    rule.attributes.push(RuleAttribute::Priority(place.priority));
    rule.attributes.push(RuleAttribute::Protocol(RouteProtocol::Other(ROUTE_PROTOCOL)));

    rule
}

pub(super) fn is_our_rule(rule: &RuleMessage) -> bool {
    rule.attributes.iter().any(|attribute| {
        matches!(attribute, RuleAttribute::Protocol(protocol) if u8::from(*protocol) == ROUTE_PROTOCOL)
    })
}

pub(super) fn table_of_rule(rule: &RuleMessage) -> u32 {
    let attribute = rule.attributes.iter().find_map(|attribute| {
        if let RuleAttribute::Table(table) = attribute { Some(*table) } else { None }
    });

    attribute.unwrap_or_else(|| u32::from(rule.header.table))
}

pub(super) fn priority_of_rule(rule: &RuleMessage) -> Option<u32> {
    rule.attributes.iter().find_map(|attribute| {
        if let RuleAttribute::Priority(priority) = attribute { Some(*priority) } else { None }
    })
}

/// The MAC address of a neighbour.
pub(super) fn neighbour_message(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut neighbour = NeighbourMessage::default();
    neighbour.header.ifindex = index;
    neighbour.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    neighbour.attributes.push(NeighbourAttribute::Destination(to_neighbour(address)));

    neighbour
}

/// Sends frames for `mac` to `address`; without one it only identifies the entry.
pub(super) fn forwarding_message(
    index: u32,
    mac: Mac,
    address: Option<IpAddr>,
) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = AddressFamily::Bridge;
    entry.header.ifindex = index;
    entry.header.state = NeighbourState::Permanent;
    // In the device itself, not in a bridge that it may be a port of.
    entry.header.flags = NeighbourFlags::Own;
    entry.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    entry
        .attributes
        .extend(address.map(|address| NeighbourAttribute::Destination(to_neighbour(address))));

    entry
}

fn to_neighbour(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }
}

/// Has the kernel resolve a neighbour, as for a packet to it (`NTF_USE`).
pub(super) fn resolution_message(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut neighbour = neighbour_message(index, address);
    neighbour.header.flags = NeighbourFlags::Use;

    neighbour
}

/// A permanent neighbour or forwarding entry; `None` for one that the kernel has learned.
pub(super) fn read_permanent_neighbour(neighbour: &NeighbourMessage) -> Option<(Mac, IpAddr)> {
    let is_permanent = neighbour.header.state == NeighbourState::Permanent;

    is_permanent.then(|| read_neighbour(neighbour)).flatten()
}

/// A neighbour or forwarding entry; `None` while the MAC address is not known.
pub(super) fn read_neighbour(neighbour: &NeighbourMessage) -> Option<(Mac, IpAddr)> {
    use NeighbourState::{Failed, Incomplete, Noarp};

    if matches!(neighbour.header.state, Failed | Incomplete | Noarp) {
        return None;
    }
    let (mut mac, mut address) = (None, None);
    for attribute in &neighbour.attributes {
        if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
            mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac);
        } else if let NeighbourAttribute::Destination(found) = attribute {
            address = from_neighbour(found);
        }
    }

    Some((mac?, address?))
}

/// A forwarding entry has the address as bytes.
fn from_neighbour(address: &NeighbourAddress) -> Option<IpAddr> {
    if let NeighbourAddress::Inet(ip) = address {
        return Some(IpAddr::V4(*ip));
    }
    if let NeighbourAddress::Inet6(ip) = address {
        return Some(IpAddr::V6(*ip));
    }
    let NeighbourAddress::Other(bytes) = address else { return None };
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);

    v4.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from)).ok()
}
