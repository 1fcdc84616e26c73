//! The rules that Liqo's controllers wrote (`control/api/tests/genuine`), as an oracle for our table.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use proptest::prelude::*;
use remap::{Cluster, PeerId, Table};
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
            Property::Source(addresses) => contains(addresses, self.source),
            Property::Destination(addresses) => contains(addresses, self.destination),
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
            let rule =
                chain.rules.iter().find(|rule| rule.conditions.iter().all(|it| self.has(it)));
            match rule.map(|rule| &rule.action) {
                Some(Action::TranslateSource(to)) => self.source = moved(self.source, *to),
                Some(Action::TranslateDestination(to)) => {
                    self.destination = moved(self.destination, *to);
                }
                None => {}
                Some(other) => panic!("{other:?} in a chain that remaps"),
            }
        }

        self
    }
}

fn contains(addresses: &Addresses, address: IpAddr) -> bool {
    match addresses {
        Addresses::Prefix(prefix) => prefix.contains(address),
        Addresses::Range(range) => range.contains(&address),
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

    let rules = objects.iter().flat_map(|(_, object)| chains(object).expect("it is understood"));
    let rules: Vec<_> = rules.flat_map(|chain| chain.rules).collect();

    let has = |wanted: fn(&Action) -> bool| rules.iter().any(|rule| wanted(&rule.action));
    assert!(has(|action| matches!(action, Action::TranslateSource(_))));
    assert!(has(|action| matches!(action, Action::TranslateDestination(_))));
    assert!(has(|action| *action == Action::ClampMss(None)));
    assert!(has(|action| *action == Action::MarkConnection(1)));
    assert!(has(|action| *action == Action::RestoreMark));
    assert!(rules.iter().all(|rule| !rule.conditions.is_empty()));
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
            "name": "c", "hook": hook, "policy": "accept", "priority": 0, "type": "nat",
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
        "10.0.0.1-10.0.0.9".parse(),
        Ok(Addresses::Range("10.0.0.1".parse().unwrap()..="10.0.0.9".parse().unwrap()))
    );
}
