//! The shapes of the objects that Liqo's controllers write, which become lookups in place of rules.
//!
//! | shape | chains | becomes |
//! |---|---|---|
//! | remapping | `ip daddr L iifname != tunnel dnat prefix to R`, `ip saddr R iifname tunnel snat prefix to L` | rule of the table |
//! | mapping of an IP | `ip daddr E dnat to I`, `ip saddr E snat to I` | host map |
//! | clamping | `oifname tunnel tcp … maxseg` | limit of the MSS |
//! | unknown sources | `ip saddr U iifname node ct mark set N`, `ip daddr U iifname tunnel meta mark set ct mark` | mark of a node |
//! | no tracking | `udp dport 6091 notrack` | nothing: the overlay is no flow here |

use std::collections::BTreeSet;
use std::net::IpAddr;

use remap::ruleset::{self, Action, Clamp, NodeId, Rule, Rules, Translation};
use remap::{Conflict, HostMap, Prefix};
use strait_api::FirewallConfiguration;

use super::devices::Nodes;
use super::program::{self, Resolved};
use super::selector::Selector;
use super::{Problem, rejected};
use crate::firewall::{self, Hook};

/// The number of the protocol.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The priorities at which destinations and sources are translated.
const TRANSLATE_DESTINATION: i32 = -100;
const TRANSLATE_SOURCE: i32 = 100;

/// What the chains of one object become.
#[derive(Debug)]
pub(super) enum Shape {
    Remap(Vec<remap::Rule>),
    HostMaps(Vec<HostMap>),
    Clamp(Clamp),
    UnknownSources(Vec<((IpAddr, NodeId), u32)>),
    /// No shape: the chains themselves.
    Program(Vec<ruleset::Chain>),
}

impl Shape {
    pub(super) fn remaps(&self) -> &[remap::Rule] {
        if let Self::Remap(rules) = self { rules } else { &[] }
    }

    pub(super) fn host_maps(&self) -> &[HostMap] {
        if let Self::HostMaps(maps) = self { maps } else { &[] }
    }

    pub(super) fn unknown_sources(&self) -> &[((IpAddr, NodeId), u32)] {
        if let Self::UnknownSources(sources) = self { sources } else { &[] }
    }

    /// Whether the rejected part of `conflict` is one of its own.
    pub(super) fn has_rejected(&self, conflict: &Conflict) -> bool {
        let (rule, map) = rejected(conflict);

        rule.is_some_and(|rule| self.remaps().contains(&rule))
            || map.is_some_and(|map| self.host_maps().contains(&map))
    }
}

/// What the chains of `object` become.
pub(super) fn lower(
    nodes: &Nodes,
    object: &FirewallConfiguration,
    chains: Vec<firewall::Chain>,
    tracks_flows: bool,
) -> Result<Shape, Problem> {
    let chains: Vec<Resolved> =
        chains.into_iter().map(|chain| program::resolve(nodes, chain)).collect();
    let family = object.spec.table.family.as_str();

    let pruned: Vec<Resolved> = chains.iter().map(Resolved::pruned).collect();
    match recognised(family, &pruned) {
        Some(shape) => Ok(shape),
        None => {
            if !tracks_flows {
                program::check_without_flows(&chains)?;
            }
            program::chains(family, chains).map(Shape::Program)
        }
    }
}

fn recognised(family: &str, chains: &[Resolved]) -> Option<Shape> {
    if family != "IPV4" || !chains.iter().all(|chain| chain.is_accepting) {
        return None;
    }
    if is_untracking(chains) {
        return Some(Shape::Program(Vec::new()));
    }

    remaps(chains)
        .or_else(|| host_maps(chains))
        .or_else(|| clamp(chains))
        .or_else(|| unknown_sources(chains))
}

/// The rules of one chain that translates, with the conditions of each.
fn translations(
    chains: &[Resolved],
    hook: Hook,
    priority: i32,
) -> Option<Vec<(Selector<'_>, Translation)>> {
    let is_it = |chain: &&Resolved| chain.hook == hook && chain.priority == priority;
    let Rules::Translate(rules) = &chains.iter().find(is_it)?.rules else {
        return None;
    };

    rules.iter().map(|rule| Some((Selector::of(&rule.conditions)?, rule.action))).collect()
}

/// Both directions of a translation, if `chains` are no more than that.
fn both_ways(chains: &[Resolved]) -> Option<[Vec<(Selector<'_>, Translation)>; 2]> {
    let outbound = translations(chains, Hook::Prerouting, TRANSLATE_DESTINATION)?;
    let inbound = translations(chains, Hook::Postrouting, TRANSLATE_SOURCE)?;

    (chains.len() == 2 && !outbound.is_empty()).then_some([outbound, inbound])
}

fn remaps(chains: &[Resolved]) -> Option<Shape> {
    let [outbound, inbound] = both_ways(chains)?;
    let outbound: Option<BTreeSet<(Prefix, Prefix)>> =
        outbound.iter().map(outbound_prefixes).collect();
    let inbound: Option<BTreeSet<(Prefix, Prefix)>> =
        inbound.iter().map(inbound_prefixes).collect();
    let (outbound, inbound) = (outbound?, inbound?);
    if outbound != inbound {
        return None;
    }
    let rules = outbound.into_iter().map(|(remote, local)| remap::Rule::new(remote, local).ok());

    rules.collect::<Option<_>>().map(Shape::Remap)
}

/// The remote and the local prefix of `ip daddr L iifname != tunnel dnat prefix to R`.
fn outbound_prefixes(rule: &(Selector<'_>, Translation)) -> Option<(Prefix, Prefix)> {
    match *rule {
        (
            Selector {
                destination: Some(local),
                input: Some((input, true)),
                source: None,
                output: None,
                protocol: None,
                has_ports: false,
            },
            Translation::Destination(remote),
        ) if input.is_tunnel() => Some((remote, local)),
        _ => None,
    }
}

/// The same of `ip saddr R iifname tunnel snat prefix to L`.
fn inbound_prefixes(rule: &(Selector<'_>, Translation)) -> Option<(Prefix, Prefix)> {
    match *rule {
        (
            Selector {
                source: Some(remote),
                input: Some((input, false)),
                destination: None,
                output: None,
                protocol: None,
                has_ports: false,
            },
            Translation::Source(local),
        ) if input.is_tunnel() => Some((remote, local)),
        _ => None,
    }
}

/// The rules of the second chain say the same as those of the first one, and meet no packet: a packet from the host has
/// its internal address, and replies are translated back without a rule.
fn host_maps(chains: &[Resolved]) -> Option<Shape> {
    let [outbound, inbound] = both_ways(chains)?;
    let outbound: Option<BTreeSet<(IpAddr, IpAddr)>> =
        outbound.iter().map(outbound_hosts).collect();
    let inbound: Option<BTreeSet<(IpAddr, IpAddr)>> = inbound.iter().map(inbound_hosts).collect();
    let (outbound, inbound) = (outbound?, inbound?);
    if outbound != inbound {
        return None;
    }
    let maps =
        outbound.into_iter().map(|(internal, external)| HostMap::new(internal, external).ok());

    maps.collect::<Option<_>>().map(Shape::HostMaps)
}

/// The internal and the external address of `ip daddr E dnat to I`.
fn outbound_hosts(rule: &(Selector<'_>, Translation)) -> Option<(IpAddr, IpAddr)> {
    match *rule {
        (
            Selector {
                destination: Some(external),
                source: None,
                input: None,
                output: None,
                protocol: None,
                has_ports: false,
            },
            Translation::Destination(internal),
        ) => host(internal).zip(host(external)),
        _ => None,
    }
}

/// The same of `ip saddr E snat to I`.
fn inbound_hosts(rule: &(Selector<'_>, Translation)) -> Option<(IpAddr, IpAddr)> {
    match *rule {
        (
            Selector {
                source: Some(external),
                destination: None,
                input: None,
                output: None,
                protocol: None,
                has_ports: false,
            },
            Translation::Source(internal),
        ) => host(internal).zip(host(external)),
        _ => None,
    }
}

fn host(prefix: Prefix) -> Option<IpAddr> {
    prefix.is_host().then(|| prefix.network())
}

/// The rules of all chains, if all of them filter at `hooks`.
fn filters<'a>(
    chains: &'a [Resolved],
    hooks: &[Hook],
) -> Option<Vec<(&'a Resolved, &'a Rule<Action>)>> {
    let mut filters = Vec::new();
    for chain in chains {
        match &chain.rules {
            Rules::Filter(rules) if hooks.contains(&chain.hook) => {
                filters.extend(rules.iter().map(|rule| (chain, rule)));
            }
            Rules::Filter(_) | Rules::Translate(_) => return None,
        }
    }

    Some(filters).filter(|filters| !filters.is_empty())
}

fn clamp(chains: &[Resolved]) -> Option<Shape> {
    let mut clamp = Clamp::default();
    for (_, rule) in filters(chains, &[Hook::Forward])? {
        match (Selector::of(&rule.conditions)?, rule.action) {
            (
                Selector {
                    output: Some(output),
                    protocol: None | Some(TCP),
                    source: None,
                    destination: None,
                    input: None,
                    has_ports: false,
                },
                Action::ClampMss(to),
            ) if output.is_tunnel() => clamp = clamp.and(Clamp::of_rule(to)),
            _ => return None,
        }
    }

    Some(Shape::Clamp(clamp))
}

fn unknown_sources(chains: &[Resolved]) -> Option<Shape> {
    let mut marks = Vec::new();
    let mut restored = BTreeSet::new();
    for (chain, rule) in filters(chains, &[Hook::Prerouting, Hook::Forward])? {
        match (chain.hook, Selector::of(&rule.conditions)?, rule.action) {
            (
                Hook::Forward,
                Selector {
                    source: Some(source),
                    input: Some((input, false)),
                    destination: None,
                    output: None,
                    protocol: None,
                    has_ports: false,
                },
                Action::MarkFlow(mark),
            ) => marks.push(((host(source)?, input.single_node()?), mark)),
            (
                Hook::Prerouting,
                Selector {
                    destination: Some(destination),
                    input: Some((input, false)),
                    source: None,
                    output: None,
                    protocol: None,
                    has_ports: false,
                },
                Action::RestoreMark,
            ) if input.is_tunnel() && chain.priority > TRANSLATE_DESTINATION => {
                restored.insert(host(destination)?);
            }
            _ => return None,
        }
    }
    let is_whole = marks.iter().all(|((source, _), _)| restored.contains(source));

    is_whole.then_some(Shape::UnknownSources(marks))
}

fn is_untracking(chains: &[Resolved]) -> bool {
    let Some(filters) = filters(chains, &[Hook::Prerouting, Hook::Output]) else {
        return false;
    };

    filters.iter().all(|(_, rule)| {
        let selector = Selector::of(&rule.conditions);
        let is_of_overlay = selector.is_some_and(|selector| {
            matches!(
                selector,
                Selector {
                    protocol: Some(UDP),
                    has_ports: true,
                    source: None,
                    destination: None,
                    input: None,
                    output: None,
                }
            )
        });
        rule.action == Action::Untrack && is_of_overlay
    })
}
