//! The journal, and the objects of an installation and of peers.

use std::net::IpAddr;

use kube::core::DeserializeGuard;
use kube::{Resource as _, ResourceExt as _};
use proptest::collection::btree_map;
use serde_json::json;
use strait_api::{IP, Network};

use super::*;
use crate::decision::{Permission, Problem, StatusAllocation, decide};
use crate::journal::BYTES_MAX;
use crate::names;
use crate::resources::{Objects, Resources};

fn any_entry() -> impl Strategy<Value = Entry> {
    let address = any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits)));
    let last = proptest::option::of(address.clone());
    let allocation = prop_oneof![
        (any_prefix(), any::<bool>(), last)
            .prop_map(|(prefix, is_shared, last)| Allocation::Prefix { prefix, is_shared, last }),
        address.prop_map(Allocation::Address),
        any::<u128>().prop_map(|bits| Allocation::Address(IpAddr::from(bits.to_be_bytes()))),
    ];

    ("[a-c]{1,2}", "[a-z0-9.-]{1,9}", allocation).prop_map(|(namespace, name, allocation)| Entry {
        namespace,
        name,
        allocation,
    })
}

proptest! {
    /// For any entries, in any order of changes.
    #[test]
    fn a_journal_reads_back_as_written(
        entries in btree_map(prop_oneof![uid(), "[a-z0-9-]{1,12}"], any_entry(), 0..30),
        removed in vec(any::<Index>(), 0..10),
    ) {
        let mut journal = Journal::default();
        for (uid, entry) in &entries {
            journal.put(uid.clone(), entry.clone());
            journal.put(uid.clone(), entry.clone());
        }
        let uids: Vec<_> = entries.keys().collect();
        for index in removed.iter().filter(|_| !uids.is_empty()) {
            journal.remove(uids[index.index(uids.len())]);
        }

        prop_assert_eq!(journal.bytes(), journal.text().len());
        prop_assert_eq!(Journal::read(&journal.text()), Ok(journal));
    }

    /// For any text, as after an edit by hand.
    #[test]
    fn an_invalid_journal_names_its_line(text in "[ -~\n]{0,80}") {
        if let Err(JournalError { line, text: wrong }) = Journal::read(&text) {
            prop_assert_eq!(text.lines().nth(line - 1), Some(wrong.as_str()));
        }
    }
}

fn uid() -> impl Strategy<Value = String> {
    "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
}

fn numbered(number: u32) -> String {
    format!("0b7ef1a4-6a4b-4d3d-8a6c-6f8b{number:08x}")
}

/// Five thousand peers with names of the usual length.
fn large(entries: u32) -> Journal {
    let mut journal = Journal::default();
    for number in 0..entries {
        let peer = number / 2;
        let list = ["pod-10-244-0-0-16", "external-10-70-0-0-16"][usize::from(number % 2 == 1)];
        let network = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + (number << 8)));
        let prefix = Prefix::new(network, 24).unwrap();
        let allocation = Allocation::Prefix { prefix, is_shared: false, last: None };
        let namespace = format!("liqo-tenant-cluster-{peer}");
        let entry = Entry { namespace, name: format!("cluster-{peer}-{list}"), allocation };
        journal.put(numbered(number), entry);
    }

    journal
}

#[test]
fn there_is_room_for_ten_thousand_allocations() {
    let journal = large(10_000);

    assert!(journal.text().len() <= BYTES_MAX, "{} bytes", journal.text().len());
    assert_eq!(Journal::read(&journal.text()), Ok(journal));
}

#[test]
fn a_full_journal_denies_and_keeps_entries() {
    let mut known = Journal::default();
    for (uid, entry) in large(20_000).iter() {
        if !known.put_if_it_fits(uid.clone(), entry.clone()) {
            break;
        }
    }
    let network: Network = serde_json::from_value(json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
        "metadata": {"namespace": "liqo-tenant-cluster-20000", "name": "one-too-many", "uid": numbered(20_000)},
        "spec": {"cidr": "172.16.0.0/16"},
    }))
    .unwrap();
    let networks = vec![std::sync::Arc::new(DeserializeGuard(Ok(network)))];
    let objects = Objects { networks, ..Objects::default() };
    let resources = Resources::read(&Settings::default(), &objects);

    let pools = Pools::default();
    let decision = decide(&pools, &known, &resources, &BTreeSet::new(), Permission::New);
    assert_eq!(decision.journal, known);
    let problem = decision.outcomes[&numbered(20_000)].clone().unwrap_err();
    assert_eq!(problem, Problem::JournalFull { entries: known.len() });
    assert!(problem.to_string().contains("delete Networks or IPs"), "{problem}");
}

#[test]
fn an_installation_has_the_networks_of_liqo() {
    let installation = Installation {
        namespace: "liqo".to_owned(),
        pod_cidrs: vec![prefix("10.244.0.0/16")],
        service_cidr: prefix("10.96.0.0/12"),
        external_cidr: None,
        internal_cidr: Some(prefix("10.90.0.0/16")),
        reserved: vec![prefix("192.168.0.0/24")],
    };
    let networks = installed_networks(&installation);
    let lines: Vec<_> = networks
        .iter()
        .map(|network| {
            assert_eq!(network.namespace().as_deref(), Some("liqo"));
            assert_eq!(network.annotations()["liqo.io/preinstalled"], "true");
            let has = |label: &str| network.labels().get(label).is_some_and(|text| text == "true");
            format!(
                "{} {} {}{}{}",
                network.name_any(),
                network.labels()["ipam.liqo.io/network-type"],
                network.spec.cidr,
                if has("ipam.liqo.io/network-not-remapped") { " immutable" } else { "" },
                if has("ipam.liqo.io/network-shared") { " shared" } else { "" },
            )
        })
        .collect();

    assert_eq!(
        lines,
        [
            "pod-cidr pod-cidr 10.244.0.0/16 immutable shared",
            "service-cidr service-cidr 10.96.0.0/12 immutable shared",
            "reserved-192-168-0-0-24 reserved 192.168.0.0/24 immutable shared",
            "external-cidr external-cidr 10.70.0.0/16",
            "internal-cidr internal-cidr 10.90.0.0/16 immutable",
        ]
    );
    let reserved: Vec<_> =
        networks.iter().filter_map(|network| network.spec.pre_allocated).collect();
    assert_eq!(reserved, [1]);

    let pod_cidrs = vec![prefix("10.244.0.0/16"), prefix("fd00:10::/56")];
    let names: Vec<_> = installed_networks(&Installation { pod_cidrs, ..installation })
        .iter()
        .map(|network| network.meta().name.clone().unwrap())
        .collect();
    assert_eq!(names[..2], ["pod-cidr-10-244-0-0-16", "pod-cidr-fd00-10---56"]);
}

/// As after an upgrade: the `Network` reserves one address, and `old` has one that is reserved by now.
#[test]
fn addresses_of_all_gateways_are_reserved() {
    let network: Network = serde_json::from_value(json!({
        "metadata": {
            "namespace": "liqo", "name": "external-cidr", "uid": numbered(0),
            "labels": {"ipam.liqo.io/network-type": "external-cidr"},
        },
        "spec": {"cidr": "10.70.0.0/16", "preAllocated": 1},
        "status": {"cidr": "10.70.0.0/16"},
    }))
    .unwrap();
    let ip = |number: u32, name: &str, status| {
        let ip: IP = serde_json::from_value(json!({
            "metadata": {"namespace": "tenant", "name": name, "uid": numbered(number)},
            "spec": {"ip": "192.0.2.7"}, "status": status,
        }))
        .unwrap();
        std::sync::Arc::new(DeserializeGuard(Ok(ip)))
    };
    let old = json!({"ip": "10.70.0.3", "cidr": "10.70.0.0/16"});
    let objects = Objects {
        networks: vec![std::sync::Arc::new(DeserializeGuard(Ok(network)))],
        ips: vec![ip(1, "old", old), ip(2, "new", json!(null))],
        ..Objects::default()
    };
    let resources = Resources::read(&Settings::default(), &objects);
    let mut known = Journal::default();
    let external = prefix("10.70.0.0/16");
    let last = Some("10.70.0.3".parse().unwrap());
    let allocation = Allocation::Prefix { prefix: external, is_shared: false, last };
    let entry = |name: &str, allocation| Entry {
        namespace: "liqo".to_owned(),
        name: name.to_owned(),
        allocation,
    };
    known.put(numbered(0), entry("external-cidr", allocation));
    known.put(numbered(1), entry("old", Allocation::Address("10.70.0.3".parse().unwrap())));

    for known in [known, Journal::default()] {
        let pools = Pools::default();
        let decision = decide(&pools, &known, &resources, &BTreeSet::new(), Permission::New);
        let address = |number| match decision.outcomes[&numbered(number)] {
            Ok(StatusAllocation::Address { address, .. }) => address.to_string(),
            ref other => panic!("{other:?}"),
        };
        assert_eq!((address(1).as_str(), address(2).as_str()), ("10.70.0.3", "10.70.0.8"));
    }
}

#[test]
fn names_of_networks_are_valid() {
    let name = |peer: &str, text| names::of_child(peer, "pod", prefix(text));

    assert_eq!(name("milan", "10.244.0.0/16").as_deref(), Some("milan-pod-10-244-0-0-16"));
    assert_eq!(name("milan", "FD00::/64").as_deref(), Some("milan-pod-fd00---64"));
    assert_ne!(name("milan", "fd00:1::/64"), name("milan", "fd00::1:0:0:0/80"));
    assert_eq!(name(&"m".repeat(240), "10.244.0.0/16"), None);
}
