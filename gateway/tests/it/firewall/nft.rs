//! Objects as commands of nft and ip: statement by statement what `pkg/firewall/utils` and `pkg/route` of Liqo install.

use std::fmt::Write;

use strait_api::firewall_configuration::{Chain, FilterRule, Match, MatchEnd, NatRule};
use strait_api::{FirewallConfiguration, RouteConfiguration};

/// The table of an object.
pub(crate) fn table(object: &FirewallConfiguration) -> String {
    let table = &object.spec.table;
    let family = match table.family.as_str() {
        "IPV4" => "ip",
        "IPV6" => "ip6",
        "INET" => "inet",
        other => panic!("no test has tables of {other}"),
    };
    let chains: String = table.chains.iter().map(chain).collect();

    format!("table {family} {} {{\n{chains}}}\n", identifier(&table.name))
}

/// The syntax of nft has no hyphens in names; the kernel does.
fn identifier(name: &str) -> String {
    name.replace('-', "_")
}

fn chain(chain: &Chain) -> String {
    let Chain { name, hook, policy, priority, type_, rules } = chain;
    let filter: String = rules.filter_rules.iter().map(filter_rule).collect();
    let nat: String = rules.nat_rules.iter().map(nat_rule).collect();

    let name = identifier(name);

    format!(
        "chain {name} {{\ntype {type_} hook {hook} priority {priority}; policy {policy};\n{filter}{nat}}}\n"
    )
}

fn filter_rule(rule: &FilterRule) -> String {
    let matches: String = rule.r#match.iter().map(one_match).collect();
    let value = rule.value.as_deref().unwrap_or_default();
    let counter = if rule.counter { "counter " } else { "" };
    let action = match rule.action.as_str() {
        "accept" => "accept".to_owned(),
        "drop" => "drop".to_owned(),
        // The zero values of the expression: ICMP unreachable, code 0.
        "reject" => "reject with icmp type net-unreachable".to_owned(),
        "ctmark" => format!("ct mark set {value}"),
        "metamarkfromctmark" => "meta mark set ct mark".to_owned(),
        // The syntax of nft has no options of TCP in UDP. The kernel finds none either.
        "tcpmssclamp" if matches.contains("l4proto udp") && value == "0" => {
            "rt mtu != 0 counter".to_owned()
        }
        "tcpmssclamp" if matches.contains("l4proto udp") => "counter".to_owned(),
        "tcpmssclamp" => {
            let size = if value == "0" { "rt mtu" } else { value };
            format!("tcp flags & syn != 0 tcp option maxseg size set {size}")
        }
        "notrack" => "notrack".to_owned(),
        other => panic!("no test has the action {other}"),
    };

    format!("{matches}{counter}{action}\n")
}

fn nat_rule(rule: &NatRule) -> String {
    let matches: String = rule.r#match.iter().map(one_match).collect();
    let kind = if rule.nat_type == "dnat" { "dnat" } else { "snat" };
    let action = match rule.to.as_deref().unwrap_or_default() {
        "" => "masquerade".to_owned(),
        prefix if prefix.contains('/') => format!("{kind} prefix to {prefix}"),
        address => format!("{kind} to {address}"),
    };

    format!("{matches}{action}\n")
}

/// A protocol is never negated, nor is a range of ports; ports are read of any protocol.
///
/// What a single value must differ from is a set with a value that no packet has: nft 1.0.6 merges two inequalities of
/// adjacent fields into one of both, which is true if either differs.
fn one_match(one: &Match) -> String {
    let is_negated = one.op == "neq";
    let op = if is_negated { "!= " } else { "" };
    let compared = |value: &str, never: &str| match is_negated {
        true if !value.contains(['-', '/']) => format!("!= {{ {value}, {never} }}"),
        _ => format!("{op}{value}"),
    };
    let mut text = String::new();
    if let Some(protocol) = &one.proto {
        write!(text, "meta l4proto {} ", protocol.value).unwrap();
    }
    if let Some(device) = &one.dev {
        let key = if device.position == "in" { "iifname" } else { "oifname" };
        write!(text, "{key} {op}\"{}\" ", device.value).unwrap();
    }
    if let Some(MatchEnd { position, value }) = &one.ip {
        let key = if position == "src" { "saddr" } else { "daddr" };
        write!(text, "ip {key} {} ", compared(value, "255.255.255.254")).unwrap();
    }
    if let Some(MatchEnd { position, value }) = &one.port {
        let key = if position == "src" { "@th,0,16" } else { "@th,16,16" };
        match value.split_once('-') {
            Some((first, last)) => write!(text, "{key} >= {first} {key} <= {last} ").unwrap(),
            None => write!(text, "{key} {} ", compared(value, "65535")).unwrap(),
        }
    }

    text
}

/// The arguments of the calls of `ip` that install an object with the number of its table.
pub(crate) fn routes(object: &RouteConfiguration, number: usize) -> Vec<String> {
    let table = object.spec.table.as_ref().unwrap();
    let mut calls = Vec::new();
    for rule in &table.rules {
        let mut selector = String::new();
        for (key, value) in [("to", &rule.dst), ("from", &rule.src), ("iif", &rule.iif)] {
            if let Some(value) = value {
                write!(selector, "{key} {value} ").unwrap();
            }
        }
        if let Some(mark) = rule.fwmark {
            write!(selector, "fwmark {mark} ").unwrap();
        }
        calls.push(format!("rule add {selector}table {number}"));
        for route in &rule.routes {
            let mut target = String::new();
            for (key, value) in [("via", &route.gw), ("dev", &route.dev), ("scope", &route.scope)] {
                if let Some(value) = value {
                    write!(target, "{key} {value} ").unwrap();
                }
            }
            calls.push(format!("route replace {} {target}table {number}", route.dst));
        }
    }

    calls
}
