use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Secret, Service};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::{Configuration, Network};
use strait_kube::within::fixtures::{parts, value};

use super::builders::{Exposure, NodePort, ServiceType};
use super::context::check_id;
use super::preflight::check_fields;
use super::wait::Progress;
use super::{
    CommandError, Deadline, PrefixesError, Side, TemplateType, connect, keys, prefixes, select,
};

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
fn prefixes_of_a_cluster_are_those_in_force() {
    let networks = [
        network("pod-cidr-10", "pod-cidr", "10.3.0.0/16", None),
        network("pod-cidr-2", "pod-cidr", "fd00:2::/48", Some("")),
        network("external-cidr", "external-cidr", "10.70.0.0/16", Some("10.71.0.0/16")),
        network("pod-cidr", "pod-cidr", "10.1.0.0/16", Some("10.1.0.0/16")),
        network("service-cidr", "service-cidr", "none", None),
    ];

    let found = prefixes::of_cluster(&networks, "liqo").unwrap();

    let texts: Vec<_> = found.pod.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.1.0.0/16", "fd00:2::/48", "10.3.0.0/16"]);
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
fn a_service_is_kept_unless_it_differs() {
    let service = |spec: Value| object::<Service>(json!({"spec": spec}));
    let found = service(json!({
        "type": "NodePort", "ports": [{"port": 51840, "nodePort": 30742}],
    }));
    let wanted = Exposure {
        service_type: ServiceType::NodePort,
        port: 51840,
        node_port: NodePort::Any,
        load_balancer_ip: None,
    };
    let differs = |wanted: &Exposure| wanted.difference(&found).unwrap_or_default();

    assert_eq!(wanted.difference(&found), None);
    let same = Exposure { node_port: NodePort::Exactly(30742), ..wanted.clone() };
    assert_eq!(same.difference(&found), None);
    let other = Exposure { node_port: NodePort::Exactly(30743), ..wanted.clone() };
    assert_eq!(differs(&other), "another port on the nodes");
    assert_eq!(differs(&Exposure { port: 51820, ..wanted.clone() }), "another port");
    let other = Exposure { service_type: ServiceType::ClusterIp, ..wanted.clone() };
    assert_eq!(differs(&other), "type NodePort");
    let other = Exposure { load_balancer_ip: Some("198.51.100.7".to_owned()), ..wanted };
    assert_eq!(differs(&other), "another address of the load balancer");
}

#[test]
fn the_shipped_template_passes_every_field_on() {
    let text = include_str!("../../../deploy/liqo/server.yaml");
    let template: Value = serde_saphyr::from_str(text).unwrap();
    let everything = Exposure {
        service_type: ServiceType::LoadBalancer,
        port: 51840,
        node_port: NodePort::Exactly(30742),
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
fn a_configuration_is_ready_in_every_release() {
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
    assert!(found(labelled, condition("True", 1)).contains("of a former generation"));
    assert!(found(json!({}), condition("True", 1)).contains("of a former generation"));
    assert_eq!(
        found(json!({}), condition("False", 2)),
        "NetworkCIDRsConfigured False, WaitingForNetworks: Waiting for all networks to be ready"
    );
}

#[test]
fn the_named_keys_or_the_only_ones_count() {
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
         that are not in use"
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
fn a_template_type_is_an_api_path() {
    let type_ = TemplateType::parse("networking.liqo.io/v1beta1/wggatewayclienttemplates").unwrap();
    assert_eq!(type_.known_kind(), Some("WgGatewayClientTemplate"));
    let type_ = TemplateType::parse("example.com/v1/wggatewayclienttemplates").unwrap();
    assert_eq!((type_.api_version.as_str(), type_.known_kind()), ("example.com/v1", None));

    for wrong in ["", "a", "a/b", "/a/b", "a//b", "a/b/", "a/b/c/d"] {
        assert!(TemplateType::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_timeout_may_be_unlimited() {
    assert!(Deadline::after(Duration::MAX).at > Deadline::after(Duration::from_secs(60)).at);
}

proptest! {
    #[test]
    fn every_part_has_a_path_in_any_case(value in value()) {
        let mut found = Vec::new();
        parts(&value, "", &mut found);

        for (path, part) in found {
            let path = path.replace('/', ".");
            prop_assert_eq!(select(&value, &path), Some(&part));
            prop_assert_eq!(select(&value, &path.to_uppercase()), Some(&part));
        }
    }

    #[test]
    fn a_cluster_id_fits_into_names(id in "[a-zA-Z0-9.-]{0,54}") {
        // RFC 1123, as Kubernetes reads it, for the name of the tenant namespace.
        let is_label = |text: &str| {
            let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            text.len() <= 63
                && text.chars().all(|c| is_good(c) || c == '-')
                && text.starts_with(is_good)
                && text.ends_with(is_good)
        };
        let is_one = is_label(&id) && is_label(&super::context::tenant_namespace(&id));

        prop_assert_eq!(check_id(Side::Local, &id).is_ok(), is_one);
    }
}
