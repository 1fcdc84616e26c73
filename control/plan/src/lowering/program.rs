//! Rules that have none of the shapes which become lookups: chains for a [`Ruleset`](remap::ruleset::Ruleset).

use remap::ruleset::{self, Action, Condition, Device, Property, Rule, Rules, Versions};

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

/// Resolves the names of devices.
pub(super) fn resolve(nodes: &Nodes, chain: firewall::Chain) -> Resolved {
    let firewall::Chain { name, hook, priority, is_accepting, rules } = chain;
    let rules = match rules {
        Rules::Filter(rules) => Rules::Filter(resolved(nodes, rules)),
        Rules::Translate(rules) => Rules::Translate(resolved(nodes, rules)),
    };

    Resolved { name, hook, priority, is_accepting, rules }
}

fn resolved<A>(nodes: &Nodes, rules: Vec<Rule<A, String>>) -> Vec<Rule<A>> {
    rules.into_iter().map(|rule| rule.map_devices(|name| nodes.named(&name))).collect()
}

/// The chains of an object, without those that accept every packet as it is.
pub(super) fn chains(family: &str, chains: Vec<Resolved>) -> Result<Vec<ruleset::Chain>, Problem> {
    let versions = match family {
        "IPV4" => Versions::Ipv4,
        "IPV6" => Versions::Ipv6,
        "INET" => Versions::Both,
        other => return Err(Problem::Family { family: other.to_owned() }),
    };

    let mut program = Vec::new();
    for chain in chains {
        let Some(hook) = chain.forwarding_hook()? else {
            continue;
        };
        // Rules that no packet meets are checked too: the object is refused on any pod.
        let of = |Resolved { name, priority, is_accepting, rules, .. }: Resolved| {
            ruleset::Chain::new(hook, priority, versions, is_accepting, rules)
                .map_err(|cause| Problem::Chain { chain: name, cause })
        };
        let pruned = chain.pruned();
        of(chain)?;
        if !pruned.has_no_effect() {
            program.push(of(pruned)?);
        }
    }

    Ok(program)
}

/// Checks that `chains` can be executed without tracking flows, and without sending errors into the tunnel. Rules that no
/// packet meets are not executed.
pub(super) fn check_without_flows(chains: &[Resolved]) -> Result<(), Problem> {
    for chain in chains {
        let name = || chain.name.clone();
        let rules = match &chain.rules {
            Rules::Filter(rules) => rules,
            Rules::Translate(rules) => {
                let (rule, action) = match rules.iter().position(can_be_met) {
                    Some(rule) => {
                        (rule, "translates addresses in none of the forms of Liqo's controllers")
                    }
                    None if chain.is_accepting => continue,
                    None => {
                        (0, "drops the first packet of each connection by the policy of its chain")
                    }
                };
                return Err(Problem::NeedsFlows { chain: name(), rule, action });
            }
        };
        for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| can_be_met(rule)) {
            let action = match rule.action {
                Action::MarkFlow(_) => "sets the mark of a connection",
                Action::RestoreMark => "reads the mark of a connection",
                Action::Untrack => "exempts packets from connection tracking",
                Action::Reject if !is_of_nodes(&rule.conditions) => {
                    return Err(Problem::RejectsInbound { chain: name(), rule: number });
                }
                Action::Accept | Action::Drop | Action::Reject | Action::ClampMss(_) => continue,
            };
            return Err(Problem::NeedsFlows { chain: name(), rule: number, action });
        }
    }

    Ok(())
}

/// Whether only packets from nodes meet `conditions`.
fn is_of_nodes(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| match (&condition.property, condition.is_negated) {
        (Property::InputDevice(devices), is_negated) => {
            devices.contains(Device::Tunnel) == is_negated
        }
        (Property::OutputDevice(devices), false) => devices.is_tunnel(),
        _ => false,
    })
}

impl Resolved {
    /// The hook of forwarded packets that it is at; `None` if it is at another one and has no effect there.
    fn forwarding_hook(&self) -> Result<Option<ruleset::Hook>, Problem> {
        let hook = match self.hook {
            Hook::Prerouting => return Ok(Some(ruleset::Hook::Prerouting)),
            Hook::Forward => return Ok(Some(ruleset::Hook::Forward)),
            Hook::Postrouting => return Ok(Some(ruleset::Hook::Postrouting)),
            Hook::Input => "input",
            Hook::Output => "output",
            Hook::Ingress => "ingress",
        };
        if self.has_no_effect() {
            return Ok(None);
        }

        Err(Problem::Hook { chain: self.name.clone(), hook })
    }

    /// The chain without rules that no forwarded packet meets, and without conditions that every one meets: both name
    /// devices of Liqo's pod that this gateway does not forward from or to.
    pub(super) fn pruned(&self) -> Self {
        let rules = match &self.rules {
            Rules::Filter(rules) => Rules::Filter(pruned(rules)),
            Rules::Translate(rules) => Rules::Translate(pruned(rules)),
        };

        Self { rules, name: self.name.clone(), ..*self }
    }

    /// Whether it accepts every packet as it is.
    fn has_no_effect(&self) -> bool {
        let is_empty = match &self.rules {
            Rules::Filter(rules) => rules.is_empty(),
            Rules::Translate(rules) => rules.is_empty(),
        };

        is_empty && self.is_accepting
    }
}

fn pruned<A: Copy>(rules: &[Rule<A>]) -> Vec<Rule<A>> {
    let met = rules.iter().filter(|rule| can_be_met(rule)).map(|rule| Rule {
        conditions: rule.conditions.iter().filter(|it| !is_of_none(it)).cloned().collect(),
        action: rule.action,
    });
    met.collect()
}

/// Whether a forwarded packet can meet `rule`.
fn can_be_met<A>(rule: &Rule<A>) -> bool {
    !rule.conditions.iter().any(|condition| is_of_none(condition) && !condition.is_negated)
}

/// Whether `condition` names devices that this gateway does not forward from or to.
fn is_of_none(condition: &Condition) -> bool {
    matches!(&condition.property,
        Property::InputDevice(devices) | Property::OutputDevice(devices) if devices.is_empty())
}
