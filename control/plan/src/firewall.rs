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
//! Executing them (see [`crate::lowering`]).

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::RangeInclusive;

use remap::ruleset::{self, Action, Addresses, Rule, Translation};
use strait_api::FirewallConfiguration;
use strait_api::firewall_configuration::{self as api, FilterRule, Match, MatchEnd, NatRule};

/// The rules that packets pass at one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// The hook, as nftables calls it.
    pub hook: Hook,
    /// Chains of one hook apply in the order of their priorities, the lowest first.
    pub priority: i32,
    /// Whether a packet that no rule decides on is accepted.
    pub is_accepting: bool,
    /// The first rule that decides on a packet ends the chain.
    pub rules: Rules,
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

/// The name of a device. An asterisk at the end stands for any rest of the name.
pub type DeviceName = String;
/// The rules of a chain, with the names of devices.
pub type Rules = ruleset::Rules<DeviceName>;
/// A condition, with the names of devices.
pub type Condition = ruleset::Condition<DeviceName>;
/// A property, with the names of devices.
pub type Property = ruleset::Property<DeviceName>;

/// The protocols that rules can name, with their numbers.
const PROTOCOLS: [(&str, u8); 2] = [("tcp", 6), ("udp", 17)];

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
    let api::Rules { filter_rules, nat_rules, route_rules } = &chain.rules;
    if let Some(rule) = route_rules.first() {
        let name = rule.name.clone().unwrap_or_default();
        return Err(about(name)(unknown("routeRules", "a rule without content")));
    }

    let named =
        |place: usize, name: &Option<String>| name.clone().unwrap_or_else(|| place.to_string());
    let filter = filter_rules.iter().enumerate().map(|(place, rule)| {
        read(&rule.r#match, action(rule)).map_err(about(named(place, &rule.name)))
    });
    let translate = nat_rules.iter().enumerate().map(|(place, rule)| {
        read(&rule.r#match, translation(rule)).map_err(about(named(place, &rule.name)))
    });
    // Liqo ignores rules of another kind than the type of their chain, which have no effect.
    let rules = match chain.type_.as_str() {
        "filter" if nat_rules.is_empty() => Rules::Filter(filter.collect::<Result<_, _>>()?),
        "nat" if filter_rules.is_empty() => Rules::Translate(translate.collect::<Result<_, _>>()?),
        other => return Err(about(String::new())(unknown("type", other))),
    };

    Ok(Chain { name: chain.name.clone(), hook, priority: chain.priority, is_accepting, rules })
}

/// A field and its value.
struct Field(&'static str, String);

fn unknown(field: &'static str, value: &str) -> Field {
    Field(field, value.to_owned())
}

fn read<A>(matches: &[Match], action: Result<A, Field>) -> Result<Rule<A, DeviceName>, Field> {
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
        let known = PROTOCOLS.iter().find(|(name, _)| *name == protocol.value);
        let (_, number) = known.ok_or_else(|| unknown("match.proto.value", &protocol.value))?;
        conditions.push(Condition { is_negated: false, property: Property::Protocol(*number) });
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
        let addresses = addresses(value).ok_or_else(|| unknown("match.ip.value", value))?;
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

/// Reads `10.0.0.1`, `10.0.0.0/24` or `10.0.0.1-10.0.0.9`.
fn addresses(text: &str) -> Option<Addresses> {
    let Some((first, last)) = text.split_once('-') else {
        return text.parse().map(Addresses::Prefix).ok();
    };
    let [first, last] = [first, last].map(|text| text.trim().parse::<IpAddr>());
    let (first, last) = (first.ok()?, last.ok()?);

    (first.is_ipv4() == last.is_ipv4()).then_some(Addresses::Range(first..=last))
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));

    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Liqo decides by `to` whether a rule masquerades: without it, every rule does.
fn translation(rule: &NatRule) -> Result<Translation, Field> {
    let to = rule.to.as_deref().filter(|to| !to.is_empty());
    let to = to.map(|to| to.parse().map_err(|_| unknown("to", to))).transpose()?;
    match (rule.nat_type.as_str(), to) {
        ("snat" | "masquerade", Some(to)) => Ok(Translation::Source(to)),
        ("dnat", Some(to)) => Ok(Translation::Destination(to)),
        ("snat" | "dnat" | "masquerade", None) => Ok(Translation::Masquerade),
        (other, _) => Err(unknown("natType", other)),
    }
}

fn action(rule: &FilterRule) -> Result<Action, Field> {
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
            mark.parse().map(Action::MarkFlow).map_err(|_| unknown("value", mark))
        }
        "metamarkfromctmark" => Ok(Action::RestoreMark),
        "notrack" => Ok(Action::Untrack),
        other => Err(unknown("action", other)),
    }
}
