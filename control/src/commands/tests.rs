use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Secret, Service};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::contact::check_id;
use super::forge::{Exposure, PortWanted, ServiceType};
use super::preflight::check_fields;
use super::wait::Progress;
use super::write::has;
use super::{
    CommandError, Deadline, PrefixesError, Side, TemplateType, connect, keys, parse_prefix,
    prefixes, select,
};
use crate::api::{Configuration, Network};

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn network(name: &str, type_: &str, spec: &str, status: Option<&str>) -> Network {
    object(json!({
        "apiVersion": "ipam.liqo.io/v1alpha1", "kind": "Network",
        "metadata": {"name": name, "labels": {"ipam.liqo.io/network-type": type_}},
        "spec": {"cidr": spec}, "status": {"cidr": status},
    }))
}

#[test]
fn the_prefixes_of_a_cluster_are_those_that_its_networks_have_in_force() {
    let networks = [
        network("pod-cidr-10", "pod-cidr", "10.3.0.0/16", None),
        network("pod-cidr-2", "pod-cidr", "10.2.0.0/16", Some("")),
        network("external-cidr", "external-cidr", "10.70.0.0/16", Some("10.71.0.0/16")),
        network("pod-cidr", "pod-cidr", "10.1.0.0/16", Some("10.1.0.0/16")),
        network("service-cidr", "service-cidr", "none", None),
    ];

    let found = prefixes::of_cluster(&networks, "liqo").unwrap();

    let texts: Vec<_> = found.pod.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]);
    assert_eq!(found.external[0].to_string(), "10.71.0.0/16");
    assert_eq!(
        prefixes::of_cluster(&networks[..1], "liqo"),
        Err(PrefixesError::Missing { wanted: "external-cidr", namespace: "liqo".to_owned() })
    );
    let wrong = [network("pod-cidr", "pod-cidr", "10.1.0.0/8", None)];
    let error = prefixes::of_cluster(&wrong, "liqo").unwrap_err().to_string();
    assert!(error.starts_with("Network \"pod-cidr\" has the prefix \"10.1.0.0/8\": "), "{error}");
}

#[test]
fn a_prefix_is_one_of_ipv4() {
    assert_eq!(
        parse_prefix("10.244.0.0/16").map(|prefix| prefix.to_string()).unwrap(),
        "10.244.0.0/16"
    );
    assert!(parse_prefix("fd00::/64").unwrap_err().contains("IPv4 alone"));
    assert!(parse_prefix("10.244.0.1/16").unwrap_err().contains("10.244.0.0/16"));
    assert!(parse_prefix("pods").is_err());
}

#[test]
fn a_service_is_left_where_it_is_unless_something_else_is_wanted() {
    let service = |spec: Value| object::<Service>(json!({"spec": spec}));
    let found = service(json!({
        "type": "NodePort", "ports": [{"port": 51840, "nodePort": 30742}],
    }));
    let wanted = Exposure {
        service_type: ServiceType::NodePort,
        port: 51840,
        node_port: PortWanted::Any,
        load_balancer_ip: None,
    };
    let differs = |wanted: &Exposure| wanted.difference(&found).unwrap_or_default();

    assert_eq!(wanted.difference(&found), None);
    let same = Exposure { node_port: PortWanted::Exactly(30742), ..wanted.clone() };
    assert_eq!(same.difference(&found), None);
    let other = Exposure { node_port: PortWanted::Exactly(30743), ..wanted.clone() };
    assert_eq!(differs(&other), "another port on the nodes");
    assert_eq!(differs(&Exposure { port: 51820, ..wanted.clone() }), "another port");
    let other = Exposure { service_type: ServiceType::ClusterIp, ..wanted.clone() };
    assert_eq!(differs(&other), "type NodePort");
    let other = Exposure { load_balancer_ip: Some("198.51.100.7".to_owned()), ..wanted };
    assert_eq!(differs(&other), "another address of the load balancer");
}

#[test]
fn the_shipped_template_passes_everything_on() {
    let text = include_str!("../../../deploy/liqo/server.yaml");
    let template: Value = serde_saphyr::from_str(text).unwrap();
    let everything = Exposure {
        service_type: ServiceType::LoadBalancer,
        port: 51840,
        node_port: PortWanted::Exactly(30742),
        load_balancer_ip: Some("198.51.100.7".to_owned()),
    };
    let check = |spec: &Value| check_fields(Side::Only, "t", spec, &everything);

    check(&template["spec"]).unwrap();
    let mut without = template["spec"].clone();
    let service = &mut without["template"]["spec"]["service"]["spec"];
    service.as_object_mut().unwrap().remove("?loadBalancerIP");
    let error = check(&without).unwrap_err().to_string();
    assert!(error.ends_with("or leave --load-balancer-ip out"), "{error}");
}

#[test]
fn a_configuration_is_ready_as_every_release_says_it() {
    let configuration = |labels: Value, condition: Option<Value>| {
        object::<Configuration>(json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "Configuration",
            "metadata": {"name": "milan", "generation": 2, "labels": labels},
            "spec": {}, "status": {"conditions": condition.into_iter().collect::<Vec<_>>()},
        }))
    };
    let condition = |status: &str, generation: u32| {
        Some(json!({
            "type": "NetworkCIDRsConfigured", "status": status, "observedGeneration": generation,
            "reason": "WaitingForNetworks", "message": "Waiting for all networks to be ready",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
    };
    let found = |labels, condition| match connect::configured(&configuration(labels, condition)) {
        Progress::Done(()) => "ready".to_owned(),
        Progress::NotYet(found) => found,
    };

    assert_eq!(found(json!({}), condition("True", 2)), "ready");
    assert_eq!(found(json!({"configuration.liqo.io/configured": "true"}), None), "ready");
    assert!(found(json!({}), None).contains("no condition NetworkCIDRsConfigured"));
    let labelled = json!({"configuration.liqo.io/configured": "true"});
    assert!(found(labelled, condition("True", 1)).contains("of what it was before"));
    assert!(found(json!({}), condition("True", 1)).contains("of what it was before"));
    assert_eq!(
        found(json!({}), condition("False", 2)),
        "NetworkCIDRsConfigured False, WaitingForNetworks: Waiting for all networks to be ready"
    );
}

#[test]
fn the_keys_are_those_that_the_gateway_names_or_the_only_ones() {
    let secret = |name: &str, key: &str| {
        object::<Secret>(json!({"metadata": {"name": name}, "data": {"publicKey": key}}))
    };
    let key = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    let (old, new) = (secret("old", "BwcH"), secret("new", key));
    let of = |secrets: &[&Secret], named: Option<&str>| {
        let name = named.map(str::to_owned);
        let reference = name.map(|name| ObjectReference { name: Some(name), ..Default::default() });
        let uid = "0b7e".to_owned();
        let found = keys::of_gateway(Side::Only, "milan", Some(&uid), secrets, reference.as_ref())?;
        Ok::<_, CommandError>(found.and_then(|secret| secret.metadata.name.clone()))
    };

    assert_eq!(of(&[], None).unwrap(), None);
    assert_eq!(of(&[&old], None).unwrap().as_deref(), Some("old"));
    assert_eq!(of(&[&old, &new], Some("new")).unwrap().as_deref(), Some("new"));
    assert_eq!(of(&[&old], Some("new")).unwrap(), None);
    let error = of(&[&old, &new], None).unwrap_err().to_string();
    assert_eq!(
        error,
        "found multiple secrets associated to WireGuard gateway \"milan\": old, new; delete those \
         that nobody uses"
    );
    let owned = |uids: &[&str]| {
        let owner =
            |uid| json!({"apiVersion": "v1", "kind": "GatewayClient", "name": "g", "uid": uid});
        let owners: Vec<_> = uids.iter().map(owner).collect();
        object::<Secret>(json!({"metadata": {"name": "owned", "ownerReferences": owners}}))
    };
    assert_eq!(of(&[&owned(&["9a41"]), &new], None).unwrap().as_deref(), Some("new"));
    assert_eq!(of(&[&owned(&["9a41"])], Some("owned")).unwrap(), None);
    assert_eq!(of(&[&owned(&["9a41", "0b7e"])], None).unwrap().as_deref(), Some("owned"));
    assert_eq!(keys::public(Side::Only, &new).unwrap(), [7; 32]);
    assert!(matches!(keys::public(Side::Only, &old), Err(CommandError::NoKey { .. })));
}

#[test]
fn the_type_of_a_template_is_a_path_of_the_api() {
    let type_ = TemplateType::parse("networking.liqo.io/v1beta1/wggatewayclienttemplates").unwrap();
    assert_eq!(type_.known_kind(), Some("WgGatewayClientTemplate"));
    let type_ = TemplateType::parse("example.com/v1/wggatewayclienttemplates").unwrap();
    assert_eq!((type_.api_version.as_str(), type_.known_kind()), ("example.com/v1", None));

    for wrong in ["", "a", "a/b", "/a/b", "a//b", "a/b/", "a/b/c/d"] {
        assert!(TemplateType::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_belongs_to_others_is_no_difference() {
    let found = json!({
        "metadata": {"uid": "1", "ownerReferences": [{"uid": "a"}, {"uid": "b", "controller": true}]},
        "spec": {"mtu": 1340, "list": [1, 2]},
    });

    assert!(has(&found, &json!({"spec": {"mtu": 1340}})));
    assert!(has(&found, &json!({"metadata": {"ownerReferences": [{"uid": "b"}]}})));
    assert!(has(&found, &json!({"status": null})));
    assert!(!has(&found, &json!({"metadata": {"ownerReferences": [{"uid": "c"}]}})));
    assert!(!has(&found, &json!({"spec": {"list": [1]}})));
    assert!(!has(&found, &json!({"spec": {"port": 1}})));
}

#[test]
fn a_verb_may_take_for_ever() {
    assert!(Deadline::after(Duration::MAX).at > Deadline::after(Duration::from_secs(60)).at);
}

/// Any JSON of some depth.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ];

    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// RFC 7396, as the slow definition of what is written when `wanted` is applied to `found`.
fn merged(found: &Value, wanted: &Value) -> Value {
    let Value::Object(wanted) = wanted else { return wanted.clone() };
    let mut map = found.as_object().cloned().unwrap_or_default();
    for (key, value) in wanted {
        let former = map.get(key).cloned().unwrap_or_default();
        map.insert(key.clone(), merged(&former, value));
    }

    Value::Object(map)
}

/// Every way to a part of `value`, with that part.
fn parts(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let below =
        |step: &str| if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") };
    found.push((path.to_owned(), value.clone()));
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| parts(value, &below(key), found)),
        Value::Array(list) => {
            for (place, value) in list.iter().enumerate() {
                parts(value, &below(&place.to_string()), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

proptest! {
    #[test]
    fn what_was_written_is_not_written_again(found in value(), wanted in value()) {
        let (found, wanted) = (json!({"spec": found}), json!({"spec": wanted}));

        let written = merged(&found, &wanted);

        prop_assert!(has(&written, &wanted));
    }

    #[test]
    fn what_changes_nothing_is_there_already(found in value(), wanted in value()) {
        let (found, wanted) = (json!({"spec": found}), json!({"spec": wanted}));

        if has(&found, &wanted) {
            prop_assert!(has(&merged(&found, &wanted), &found));
        }
    }

    #[test]
    fn every_part_has_a_path_in_any_case(value in value()) {
        let mut found = Vec::new();
        parts(&value, "", &mut found);

        for (path, part) in found {
            prop_assert_eq!(select(&value, &path), Some(&part));
            prop_assert_eq!(select(&value, &path.to_uppercase()), Some(&part));
        }
    }

    #[test]
    fn a_cluster_id_can_be_part_of_a_name(id in "[a-zA-Z0-9.-]{0,54}") {
        // RFC 1123, as Kubernetes reads it, for the name of the tenant namespace.
        let is_label = |text: &str| {
            let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            text.len() <= 63
                && text.chars().all(|c| is_good(c) || c == '-')
                && text.starts_with(is_good)
                && text.ends_with(is_good)
        };
        let is_one = is_label(&id) && is_label(&super::tenant_namespace(&id));

        prop_assert_eq!(check_id(Side::Local, &id).is_ok(), is_one);
    }
}
