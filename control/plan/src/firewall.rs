//! The rules of a `FirewallConfiguration`, read. Pure.
//!
//! Liqo's controllers write remapping, host maps and marks as rules of nftables, which the container `gateway` of its
//! pod installs. A gateway without that container takes them from the same objects.
//!
//! # Invariants
//!
//! - An object is read whole or not at all: a rule that was left out would let packets pass unchanged.
//! - Values mean what the release that wrote them means, also where its rules ignore a field: a protocol is never
//!   negated, nor is a range of ports.
//!
//! # Not here
//!
//! Applying them, and the priority among chains of several objects.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use remap::Prefix;
use strait_api::FirewallConfiguration;
use strait_api::firewall_configuration::{self as api, FilterRule, Match, MatchEnd, NatRule};

/// The rules that packets pass at one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The hook, as nftables calls it.
    pub hook: Hook,
    /// Chains of one hook apply in the order of their priorities, the lowest first.
    pub priority: i32,
    /// Whether a packet that no rule decides on is accepted.
    pub is_accepting: bool,
    /// The first rule that decides on a packet ends the chain.
    pub rules: Vec<Rule>,
}

/// A hook of nftables on the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as nftables calls them")]
pub enum Hook {
    Ingress,
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// What happens to packets that meet all conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// All of them have to hold.
    pub conditions: Vec<Condition>,
    /// The action.
    pub action: Action,
}

/// A property that a packet has to have, or must not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether it must not have it.
    pub is_negated: bool,
    /// The property.
    pub property: Property,
}

/// A property of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants name what they hold")]
pub enum Property {
    Source(Addresses),
    Destination(Addresses),
    SourcePort(RangeInclusive<u16>),
    DestinationPort(RangeInclusive<u16>),
    /// An asterisk at the end stands for any rest of the name.
    InputDevice(String),
    /// The same.
    OutputDevice(String),
    Protocol(Protocol),
}

/// A protocol that rules can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "protocols of IP")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of a prefix; one address is a prefix of full length.
    Prefix(Prefix),
    /// Those between two addresses, both included.
    Range(RangeInclusive<IpAddr>),
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replaces the prefix of the source; the host bits are kept.
    TranslateSource(Prefix),
    /// Replaces the prefix of the destination; the host bits are kept.
    TranslateDestination(Prefix),
    /// Replaces the source by the address of the output device.
    Masquerade,
    /// Ends the chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Drops the packet, and tells its source.
    Reject,
    /// Lowers the MSS of a SYN to this many bytes; `None`: to that of the route.
    ClampMss(Option<u16>),
    /// Sets the mark of the connection.
    MarkConnection(u32),
    /// Gives the packet the mark of its connection.
    RestoreMark,
    /// Exempts the packet from connection tracking.
    Untrack,
}

/// A value that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chain {chain}, rule {rule}: {field} is {value:?}, which this release does not know")]
pub struct Unknown {
    /// The name of the chain.
    pub chain: String,
    /// The name of the rule, or its number; empty if it is about the chain.
    pub rule: String,
    /// The path of the field in the rule.
    pub field: &'static str,
    /// The value.
    pub value: String,
}

/// The chains of `object`, in its order.
///
/// # Errors
///
/// The first value that is not understood.
pub fn chains(object: &FirewallConfiguration) -> Result<Vec<Chain>, Unknown> {
    object.spec.table.chains.iter().map(chain).collect()
}

fn chain(chain: &api::Chain) -> Result<Chain, Unknown> {
    let about = |rule: String| {
        move |Field(field, value)| Unknown { chain: chain.name.clone(), rule, field, value }
    };
    let hook = match chain.hook.as_str() {
        "ingress" => Hook::Ingress,
        "prerouting" => Hook::Prerouting,
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        "output" => Hook::Output,
        "postrouting" => Hook::Postrouting,
        other => return Err(about(String::new())(unknown("hook", other))),
    };
    let is_accepting = match chain.policy.as_str() {
        "accept" => true,
        "drop" => false,
        other => return Err(about(String::new())(unknown("policy", other))),
    };
    if let Some(rule) = chain.rules.route_rules.first() {
        let name = rule.name.clone().unwrap_or_default();
        return Err(about(name)(unknown("routeRules", "a rule without content")));
    }

    let named =
        |place: usize, name: &Option<String>| name.clone().unwrap_or_else(|| place.to_string());
    let filter = chain.rules.filter_rules.iter().enumerate().map(|(place, rule)| {
        let action = filter_action(rule);
        read(&rule.r#match, action).map_err(about(named(place, &rule.name)))
    });
    let nat = chain.rules.nat_rules.iter().enumerate().map(|(place, rule)| {
        let action = translation(rule);
        read(&rule.r#match, action).map_err(about(named(place, &rule.name)))
    });

    Ok(Chain {
        hook,
        priority: chain.priority,
        is_accepting,
        rules: filter.chain(nat).collect::<Result<_, _>>()?,
    })
}

/// A field and its value.
struct Field(&'static str, String);

fn unknown(field: &'static str, value: &str) -> Field {
    Field(field, value.to_owned())
}

fn read(matches: &[Match], action: Result<Action, Field>) -> Result<Rule, Field> {
    let mut conditions = Vec::new();
    for one in matches {
        conditions.extend(self::conditions(one)?);
    }

    Ok(Rule { conditions, action: action? })
}

/// The conditions of one match: every field that is set is one.
fn conditions(one: &Match) -> Result<Vec<Condition>, Field> {
    let is_negated = match one.op.as_str() {
        "eq" => false,
        "neq" => true,
        other => return Err(unknown("match.op", other)),
    };
    let mut conditions = Vec::new();
    if let Some(protocol) = &one.proto {
        let protocol = match protocol.value.as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(unknown("match.proto.value", other)),
        };
        conditions.push(Condition { is_negated: false, property: Property::Protocol(protocol) });
    }
    if let Some(device) = &one.dev {
        let name = device.value.clone();
        let property = match device.position.as_str() {
            "in" => Property::InputDevice(name),
            "out" => Property::OutputDevice(name),
            other => return Err(unknown("match.dev.position", other)),
        };
        conditions.push(Condition { is_negated, property });
    }
    if let Some(MatchEnd { position, value }) = &one.ip {
        let addresses = value.parse().map_err(|()| unknown("match.ip.value", value))?;
        let property = match position.as_str() {
            "src" => Property::Source(addresses),
            "dst" => Property::Destination(addresses),
            other => return Err(unknown("match.ip.position", other)),
        };
        conditions.push(Condition { is_negated, property });
    }
    if let Some(MatchEnd { position, value }) = &one.port {
        let ports = ports(value).ok_or_else(|| unknown("match.port.value", value))?;
        let is_negated = is_negated && !value.contains('-');
        let property = match position.as_str() {
            "src" => Property::SourcePort(ports),
            "dst" => Property::DestinationPort(ports),
            other => return Err(unknown("match.port.position", other)),
        };
        conditions.push(Condition { is_negated, property });
    }

    Ok(conditions)
}

impl FromStr for Addresses {
    type Err = ();

    /// Reads `10.0.0.1`, `10.0.0.0/24` or `10.0.0.1-10.0.0.9`.
    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once('-') {
            Some((first, last)) => {
                let address = |text: &str| text.parse::<IpAddr>().map_err(drop);
                Ok(Self::Range(address(first)?..=address(last)?))
            }
            None => text.parse().map(Self::Prefix).map_err(drop),
        }
    }
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));

    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn translation(rule: &NatRule) -> Result<Action, Field> {
    let to = || {
        let to = rule.to.as_deref().unwrap_or_default();
        to.parse().map_err(|_| unknown("to", to))
    };
    match rule.nat_type.as_str() {
        "snat" => to().map(Action::TranslateSource),
        "dnat" => to().map(Action::TranslateDestination),
        "masquerade" => Ok(Action::Masquerade),
        other => Err(unknown("natType", other)),
    }
}

fn filter_action(rule: &FilterRule) -> Result<Action, Field> {
    let value = rule.value.as_deref();
    match rule.action.as_str() {
        "accept" => Ok(Action::Accept),
        "drop" => Ok(Action::Drop),
        "reject" => Ok(Action::Reject),
        "tcpmssclamp" => {
            let size = value.unwrap_or("0");
            let size = size.parse().map_err(|_| unknown("value", size))?;
            Ok(Action::ClampMss(Some(size).filter(|size| *size > 0)))
        }
        "ctmark" => {
            let mark = value.unwrap_or_default();
            mark.parse().map(Action::MarkConnection).map_err(|_| unknown("value", mark))
        }
        "metamarkfromctmark" => Ok(Action::RestoreMark),
        "notrack" => Ok(Action::Untrack),
        other => Err(unknown("action", other)),
    }
}
