//! Rules that have none of the shapes which become lookups: chains for a [`Ruleset`](remap::ruleset::Ruleset).

use remap::ruleset::{self, Condition, Devices, Property, Rule, Rules, Versions};

use super::Problem;
use super::devices::Nodes;
use crate::firewall::{self, Hook};

/// A chain with the devices of this gateway in place of names.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) name: String,
    pub(super) hook: Hook,
    pub(super) priority: i32,
    pub(super) is_accepting: bool,
    pub(super) rules: Rules,
}

/// Resolves names. Rules that no packet meets are left out, and so are conditions that every packet meets: both come
/// from devices of Liqo's pod that this gateway does not forward from or to.
pub(super) fn resolve(nodes: &Nodes, chain: firewall::Chain) -> Resolved {
    let firewall::Chain { name, hook, priority, is_accepting, rules } = chain;
    let rules = match rules {
        Rules::Filter(rules) => Rules::Filter(resolved(nodes, rules)),
        Rules::Translate(rules) => Rules::Translate(resolved(nodes, rules)),
    };

    Resolved { name, hook, priority, is_accepting, rules }
}

fn resolved<A>(nodes: &Nodes, rules: Vec<Rule<A, String>>) -> Vec<Rule<A>> {
    let rules = rules.into_iter().map(|rule| rule.map_devices(|name| nodes.named(&name)));
    let mut rules: Vec<Rule<A>> = rules.collect();
    let is_of_none = |condition: &Condition| {
        matches!(&condition.property,
            Property::InputDevice(devices) | Property::OutputDevice(devices) if devices.is_empty())
    };
    rules.retain(|rule| !rule.conditions.iter().any(|it| is_of_none(it) && !it.is_negated));
    for rule in &mut rules {
        rule.conditions.retain(|condition| !is_of_none(condition));
    }

    rules
}

/// The chains as a program.
pub(super) fn chains(family: &str, chains: Vec<Resolved>) -> Result<Vec<ruleset::Chain>, Problem> {
    let versions = match family {
        "IPV4" => Versions::Ipv4,
        "IPV6" => Versions::Ipv6,
        "INET" => Versions::Both,
        other => return Err(Problem::Family { family: other.to_owned() }),
    };

    let chains = chains.into_iter().filter(|chain| !chain.has_no_effect());
    chains.map(|chain| of_chain(versions, chain)).collect()
}

fn of_chain(versions: Versions, chain: Resolved) -> Result<ruleset::Chain, Problem> {
    let Resolved { name, hook, priority, is_accepting, rules } = chain;
    let hook = match hook {
        Hook::Prerouting => ruleset::Hook::Prerouting,
        Hook::Forward => ruleset::Hook::Forward,
        Hook::Postrouting => ruleset::Hook::Postrouting,
        Hook::Input => return Err(Problem::Hook { chain: name, hook: "input" }),
        Hook::Output => return Err(Problem::Hook { chain: name, hook: "output" }),
        Hook::Ingress => return Err(Problem::Hook { chain: name, hook: "ingress" }),
    };

    ruleset::Chain::new(hook, priority, versions, is_accepting, rules)
        .map_err(|cause| Problem::Chain { chain: name, cause })
}

impl Resolved {
    /// Whether it accepts every packet as it is.
    pub(super) fn has_no_effect(&self) -> bool {
        let is_empty = match &self.rules {
            Rules::Filter(rules) => rules.is_empty(),
            Rules::Translate(rules) => rules.is_empty(),
        };

        is_empty && self.is_accepting
    }
}

/// The conditions of a rule, if there is at most one of each property and none is negated but that on the input
/// device.
#[derive(Debug, Default)]
pub(super) struct Selector<'a> {
    pub(super) source: Option<remap::Prefix>,
    pub(super) destination: Option<remap::Prefix>,
    pub(super) input: Option<(&'a Devices, IsNegated)>,
    pub(super) output: Option<&'a Devices>,
    pub(super) protocol: Option<u8>,
    pub(super) has_ports: bool,
}

pub(super) type IsNegated = bool;

impl<'a> Selector<'a> {
    pub(super) fn of(conditions: &'a [Condition]) -> Option<Self> {
        let mut selector = Self::default();
        for Condition { is_negated, property } in conditions {
            let former = match (property, *is_negated) {
                (Property::InputDevice(devices), is_negated) => {
                    selector.input.replace((devices, is_negated)).is_some()
                }
                (Property::Source(addresses), false) => {
                    selector.source.replace(addresses.prefix()?).is_some()
                }
                (Property::Destination(addresses), false) => {
                    selector.destination.replace(addresses.prefix()?).is_some()
                }
                (Property::OutputDevice(devices), false) => {
                    selector.output.replace(devices).is_some()
                }
                (Property::Protocol(number), false) => selector.protocol.replace(*number).is_some(),
                (Property::SourcePort(_) | Property::DestinationPort(_), false) => {
                    selector.has_ports = true;
                    false
                }
                (_, true) => return None,
            };
            if former {
                return None;
            }
        }

        Some(selector)
    }
}
