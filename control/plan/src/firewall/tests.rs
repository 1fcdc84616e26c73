//! The rules that Liqo's controllers wrote (`control/api/tests/genuine`), as an oracle for our table.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use proptest::prelude::*;
use remap::{Cluster, PeerId, Prefix, Table};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::Configuration;

use super::*;

const TUNNEL: &str = "liqo-tunnel";
const FABRIC: &str = "liqo.abcdefghij";
const UNDERLAY: &str = "eth0";

/// A packet on its way through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    source: IpAddr,
    destination: IpAddr,
    input: &'static str,
    output: &'static str,
}

impl Packet {
    fn has(&self, Condition { is_negated, property }: &Condition) -> bool {
        let has = match property {
            Property::Source(addresses) => addresses.contains(self.source),
            Property::Destination(addresses) => addresses.contains(self.destination),
            Property::InputDevice(name) => name == self.input,
            Property::OutputDevice(name) => name == self.output,
            // The packets here are of ICMP.
            Property::SourcePort(_) | Property::DestinationPort(_) | Property::Protocol(_) => false,
        };

        has != *is_negated
    }

    /// The packet after all chains of one hook, each of which translates it once at most.
    fn pass(mut self, chains: &[Chain], hook: Hook) -> Self {
        for chain in chains.iter().filter(|chain| chain.hook == hook) {
            let Rules::Translate(rules) = &chain.rules else {
                panic!("{chain:?} remaps nothing");
            };
            let rule = rules.iter().find(|rule| rule.conditions.iter().all(|it| self.has(it)));
            match rule.map(|rule| rule.action) {
                Some(Translation::Source(to)) => self.source = moved(self.source, to),
                Some(Translation::Destination(to)) => {
                    self.destination = moved(self.destination, to);
                }
                None => {}
                Some(Translation::Masquerade) => panic!("{rule:?} in a chain that remaps"),
            }
        }

        self
    }
}

/// The address in `prefix` with the host bits of `address`.
fn moved(address: IpAddr, prefix: Prefix) -> IpAddr {
    let (IpAddr::V4(address), IpAddr::V4(network)) = (address, prefix.network()) else {
        panic!("{address} and {prefix}");
    };
    let mask = u32::MAX.checked_shr(u32::from(prefix.len_bits())).unwrap_or(0);

    Ipv4Addr::from_bits(network.to_bits() | (address.to_bits() & mask)).into()
}

/// All objects of a kind that were kept, by the name of the file.
fn genuine<K: DeserializeOwned>(kind: &str) -> Vec<(String, K)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/genuine");
    let mut found = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let list: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for object in list["items"].as_array().expect("a list").iter() {
            if object["kind"] == kind {
                let object = serde_json::from_value(object.clone()).expect("an object");
                found.push((path.display().to_string(), object));
            }
        }
    }

    found
}

#[test]
fn every_rule_that_liqo_wrote_is_read() {
    let objects = genuine::<FirewallConfiguration>("FirewallConfiguration");
    assert!(objects.len() > 20, "{}", objects.len());

    let chains = objects.iter().flat_map(|(_, object)| chains(object).expect("it is understood"));
    let (mut actions, mut translations) = (Vec::new(), Vec::new());
    for chain in chains {
        match chain.rules {
            Rules::Filter(rules) => actions.extend(rules),
            Rules::Translate(rules) => translations.extend(rules),
        }
    }

    let acts = |wanted| actions.iter().any(|rule| rule.action == wanted);
    assert!(acts(Action::ClampMss(None)));
    assert!(acts(Action::MarkFlow(1)));
    assert!(acts(Action::RestoreMark));
    let translates =
        |wanted: fn(&Translation) -> bool| translations.iter().any(|rule| wanted(&rule.action));
    assert!(translates(|translation| matches!(translation, Translation::Source(_))));
    assert!(translates(|translation| matches!(translation, Translation::Destination(_))));
    assert!(actions.iter().all(|rule| !rule.conditions.is_empty()));
    assert!(translations.iter().all(|rule| !rule.conditions.is_empty()));
}

/// The table of a `Configuration`, and the chains that Liqo made of it.
fn both(file: &str, configuration: &Configuration) -> (Table, Vec<Chain>) {
    let cidr = |cluster: &Option<strait_api::configuration::Cluster>| {
        let cidr = cluster.as_ref().and_then(|cluster| cluster.cidr.clone()).expect("prefixes");
        let read = |list: &[String]| -> Vec<Prefix> {
            list.iter().map(|text| text.parse().unwrap()).collect()
        };
        [read(&cidr.pod), read(&cidr.external)].concat()
    };
    let remote = cidr(&configuration.spec.remote);
    let local = cidr(&configuration.status.as_ref().expect("a status").remote);
    let rules = remote.into_iter().zip(local);
    let rules = rules.map(|(remote, local)| (PeerId(0), remap::Rule::new(remote, local).unwrap()));
    let (table, conflicts) = Table::build(0, &Cluster::default(), rules);
    assert_eq!(conflicts, []);

    let all = genuine::<FirewallConfiguration>("FirewallConfiguration");
    let namespace = &configuration.metadata.namespace;
    let remaps = all.iter().filter(|(from, object)| {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        from == file
            && object.metadata.namespace == *namespace
            && (name.ends_with("-remap-podcidr") || name.ends_with("-remap-externalcidr"))
    });
    let chains: Vec<_> = remaps.flat_map(|(_, object)| chains(object).unwrap()).collect();
    assert!(chains.len() >= 2, "{file}");

    (table, chains)
}

#[test]
fn liqo_and_our_table_translate_alike() {
    let configurations = genuine::<Configuration>("Configuration");
    assert!(!configurations.is_empty());
    let worlds: Vec<_> = configurations.iter().map(|(file, object)| both(file, object)).collect();

    // Half of the addresses are in the prefixes of these clusters.
    let address = prop_oneof![
        any::<u32>(),
        (prop_oneof![Just(244_u32), Just(68), Just(70), Just(71), Just(72)], any::<u16>())
            .prop_map(|(second, host)| 10 << 24 | second << 16 | u32::from(host)),
    ];
    let address = address.prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))).boxed();
    proptest!(|(source in address.clone(), destination in address)| {
        for (table, chains) in &worlds {
            let outbound = Packet { source, destination, input: FABRIC, output: TUNNEL };
            let sent = outbound
                .pass(chains, Hook::Prerouting)
                .pass(chains, Hook::Postrouting);
            let ours = table.outbound(destination).map_or(destination, |found| found.destination);
            prop_assert_eq!(sent, Packet { destination: ours, ..outbound });

            let inbound = Packet { source, destination, input: TUNNEL, output: FABRIC };
            let received = inbound
                .pass(chains, Hook::Prerouting)
                .pass(chains, Hook::Postrouting);
            let ours = table.inbound(PeerId(0), source).unwrap_or(source);
            prop_assert_eq!(received, Packet { source: ours, ..inbound });

            // What the tunnel itself sends and receives is not remapped.
            let outer = Packet { source, destination, input: UNDERLAY, output: UNDERLAY };
            prop_assert_eq!(
                outer.pass(chains, Hook::Prerouting).pass(chains, Hook::Postrouting), outer
            );
        }
    });
}

#[test]
fn an_unknown_value_refuses_the_object() {
    let object = |chain: Value| -> FirewallConfiguration {
        serde_json::from_value(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "FirewallConfiguration",
            "metadata": {"name": "a"},
            "spec": {"table": {"name": "t", "family": "IPV4", "chains": [chain]}},
        }))
        .unwrap()
    };
    let chain = |hook: &str, rules: Value| {
        json!({
            "name": "c", "hook": hook, "policy": "accept", "priority": 0,
            "type": if rules.get("filterRules").is_some() { "filter" } else { "nat" },
            "rules": rules,
        })
    };
    let nat = |one: Value, type_: &str, to: &str| json!({"natRules": [{"name": "r", "match": [one], "natType": type_, "to": to}]});
    let source =
        |op: &str, value: &str| json!({"op": op, "ip": {"position": "src", "value": value}});
    let filter = |action: &str, value: &str| json!({"filterRules": [{"action": action, "counter": true, "match": [], "value": value}]});

    for (hook, rules, field) in [
        ("egress", json!({}), "hook"),
        ("forward", json!({"routeRules": [{"name": "r"}]}), "routeRules"),
        ("forward", nat(source("gt", "10.0.0.1"), "snat", "10.0.0.2"), "match.op"),
        ("forward", nat(source("eq", "@hosts"), "snat", "10.0.0.2"), "match.ip.value"),
        ("forward", nat(source("eq", "10.0.0.1"), "redirect", ""), "natType"),
        ("forward", nat(source("eq", "10.0.0.1"), "dnat", "10.0.0.1-10.0.0.9"), "to"),
        (
            "forward",
            nat(json!({"op": "eq", "proto": {"value": "sctp"}}), "masquerade", ""),
            "match.proto.value",
        ),
        ("forward", filter("queue", "0"), "action"),
        ("forward", filter("ctmark", "red"), "value"),
    ] {
        let found = chains(&object(chain(hook, rules))).unwrap_err();
        assert_eq!(found.field, field, "{found}");
        assert!(found.to_string().starts_with("chain c, rule"), "{found}");
    }
}

#[test]
fn ranges_and_ports_are_read() {
    let read = |value: Value| conditions(&serde_json::from_value(value).unwrap()).ok().unwrap();
    let port =
        |op: &str, value: &str| json!({"op": op, "port": {"position": "dst", "value": value}});

    let [condition] = &*read(port("neq", "80")) else { panic!() };
    assert_eq!(
        *condition,
        Condition { is_negated: true, property: Property::DestinationPort(80..=80) }
    );
    let [condition] = &*read(port("neq", "30000-32767")) else { panic!() };
    assert!(!condition.is_negated, "the rules of Liqo ignore op for a range of ports");
    let both = read(json!({
        "op": "neq", "proto": {"value": "udp"}, "dev": {"position": "out", "value": "liqo.*"},
    }));
    assert_eq!(both.iter().map(|it| it.is_negated).collect::<Vec<_>>(), [false, true]);
    assert_eq!(
        addresses("10.0.0.1-10.0.0.9"),
        Some(Addresses::Range("10.0.0.1".parse().unwrap()..="10.0.0.9".parse().unwrap()))
    );
    assert_eq!(addresses("10.0.0.1-fd00::1"), None);
}

#[test]
fn the_type_of_a_chain_decides_its_rules() {
    let read = |type_: &str, rules: Value| {
        let object = json!({
            "name": "c", "hook": "forward", "policy": "accept", "priority": 0, "type": type_,
            "rules": rules,
        });
        chain(&serde_json::from_value(object).unwrap())
    };
    let filter = json!({"filterRules": [{"action": "drop", "counter": true, "match": []}]});

    assert!(matches!(read("filter", filter.clone()).unwrap().rules, Rules::Filter(_)));
    assert_eq!(read("nat", filter).unwrap_err().field, "type");
    assert_eq!(read("route", json!({})).unwrap_err().field, "type");
}

#[test]
fn translations_without_address_masquerade() {
    let read = |type_: &str, to: Option<&str>| {
        let rule = json!({"match": [], "natType": type_, "to": to});
        translation(&serde_json::from_value(rule).unwrap()).ok()
    };
    let address = Some("10.0.0.1".parse().unwrap());

    for type_ in ["snat", "dnat", "masquerade"] {
        assert_eq!(read(type_, None), Some(Translation::Masquerade));
        assert_eq!(read(type_, Some("")), Some(Translation::Masquerade));
    }
    assert_eq!(read("masquerade", Some("10.0.0.1")), address.map(Translation::Source));
    assert_eq!(read("dnat", Some("10.0.0.1")), address.map(Translation::Destination));
}
