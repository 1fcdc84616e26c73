mod contradictions;
mod gateways;

use k8s_openapi::api::apps::v1::Deployment;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::identity::Mode;

use super::read::{Facts, GatewayFacts, Visibility};
use super::*;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Kind and reason of each finding.
fn reasons(findings: &[Finding]) -> Vec<(&str, &str)> {
    findings.iter().map(|finding| (finding.object.as_str(), finding.reason)).collect()
}

fn deployment<K: DeserializeOwned>(name: &str, ready: u32) -> K {
    let args = ["operator", "--namespace=liqo"];
    let container = json!({"name": "operator", "args": args});
    let template =
        json!({"spec": {"serviceAccountName": "strait-operator", "containers": [container]}});

    object(json!({
        "metadata": {"name": name, "namespace": "liqo"},
        "spec": {"replicas": 2, "selector": {}, "template": template},
        "status": {"readyReplicas": ready},
    }))
}

fn network<K: DeserializeOwned>(name: &str, cidr: &str, is_shared: bool) -> K {
    let shared = if is_shared { "true" } else { "false" };

    object(json!({
        "metadata": {
            "name": name, "namespace": "liqo",
            "labels": {"ipam.liqo.io/network-type": name, "ipam.liqo.io/network-shared": shared},
        },
        "spec": {"cidr": cidr}, "status": {"cidr": cidr},
    }))
}

/// A cluster without problems, with two peerings.
fn sound() -> Facts {
    Facts {
        now: "2026-01-01T00:00:10Z".parse().unwrap(),
        namespace: "liqo".to_owned(),
        cluster_id: Some("rome".to_owned()),
        served: api::NEEDED.clone(),
        operators: Some(vec![deployment("strait-operator", 2)]),
        lease: Visibility::Found(object(json!({
            "metadata": {"name": "strait-operator"},
            "spec": {
                "holderIdentity": "one", "renewTime": "2026-01-01T00:00:00.000000Z",
                "leaseDurationSeconds": 15,
            },
        }))),
        networks: Some(vec![
            network("pod-cidr", "10.244.0.0/16", true),
            network("service-cidr", "10.96.0.0/12", true),
            network("external-cidr", "10.70.0.0/16", false),
            network("internal-cidr", "10.80.0.0/16", false),
        ]),
        ips: Some(Vec::new()),
        configurations: Some(vec![object(json!({
            "metadata": {
                "name": "milan", "namespace": "tenant", "generation": 1,
                "labels": {"liqo.io/remote-cluster-id": "milan"},
            },
            "spec": {"remote": {"cidr": {"pod": ["10.244.0.0/16"], "external": ["10.70.0.0/16"]}}},
            "status": {"conditions": [{
                "type": "NetworkCIDRsConfigured", "status": "True", "observedGeneration": 1,
                "reason": "NetworkCIDRsConfigured", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))]),
        public_keys: Some(vec![object(json!({
            "metadata": {
                "name": "milan", "namespace": "tenant",
                "labels": {"liqo.io/remote-cluster-id": "milan"},
            },
            "spec": {"publicKey": key(8)},
        }))]),
        connections: Some(vec![object(json!({
            "metadata": {"name": "gw-milan", "namespace": "tenant"},
            "spec": {"gatewayRef": {}, "type": "Client"}, "status": {"value": "Connected"},
        }))]),
        nodes: Some(vec![object(json!({
            "metadata": {"name": "one"},
            "spec": {"podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]},
        }))]),
        api_service: Visibility::Found(object(json!({
            "metadata": {"name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"},
        }))),
        gateways: vec![gateway(Mode::Client)],
        ..Facts::default()
    }
}

/// A list that may be read.
fn all<T>(list: &mut Option<Vec<T>>) -> &mut Vec<T> {
    list.as_mut().expect("it may be seen")
}

/// 32 bytes in base64.
fn key(byte: u8) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(vec![byte; 32])).unwrap()
}

fn gateway(mode: Mode) -> GatewayFacts {
    let endpoint = json!({"addresses": ["172.18.0.3"], "port": 51840});
    let spec = json!({"mtu": 1340, "endpoint": endpoint});
    let metadata = json!({"name": "milan", "namespace": "tenant", "uid": "1"});

    GatewayFacts {
        mode,
        object: json!({"metadata": metadata, "spec": spec, "status": {"endpoint": endpoint}}),
        namespace: "tenant".to_owned(),
        name: "milan".to_owned(),
        remote: Some("milan".to_owned()),
        index: Ok(0),
        template_ref: Some(["WgGatewayClientTemplate", "liqo", "client"].map(str::to_owned)),
        template: Visibility::Found(json!({
            "objectKind": {"apiVersion": "networking.liqo.io/v1beta1", "kind": "WgGatewayClient"},
            "template": {"metadata": {}, "spec": {"name": "{{ .Name }}"}},
        })),
        deployment: Visibility::Found(deployment("gw-milan", 1)),
        service: Visibility::Missing,
        active_pods: Some(vec!["pod".to_owned()]),
        secrets: Some(vec![object(json!({
            "metadata": {"name": "gw-milan"}, "data": {"privateKey": key(6), "publicKey": key(7)},
        }))]),
        cause: None,
    }
}

/// All findings without a request.
fn found(facts: &Facts) -> Vec<Finding> {
    let mut findings = api::findings(&facts.served);
    findings.extend(installation::findings(facts));
    findings.extend(peering::findings(facts));
    findings.extend(facts.gateways.iter().flat_map(|it| gateway::findings(it, public_of)));

    findings
}

/// Simpler than a curve.
fn public_of(private: &[u8; 32]) -> [u8; 32] {
    private.map(|byte| byte + 1)
}

#[test]
fn a_sound_cluster_has_no_findings() {
    assert_eq!(found(&sound()), []);
    let text = Findings::default().to_string();
    assert_eq!(text, "0 errors, 0 warnings\n");
}

#[test]
fn each_problem_is_found_alone() {
    type Change = fn(&mut Facts);
    let cases: [(Change, &str, &str); 31] = [
        (|it| all(&mut it.operators).clear(), "Namespace liqo", "OperatorMissing"),
        (
            |it| it.operators = Some(vec![deployment("strait-operator", 0)]),
            "Deployment liqo/strait-operator",
            "OperatorNotReady",
        ),
        (
            |it| it.liqo = Visibility::Found(deployment("liqo-controller-manager", 2)),
            "Deployment liqo/strait-operator",
            "TwoOperators",
        ),
        (|it| it.lease = Visibility::Missing, "Lease liqo/strait-operator", "NobodyLeads"),
        (
            // 15 s, and a minute between the clocks.
            |it| it.now = "2026-01-01T00:01:16Z".parse().unwrap(),
            "Lease liqo/strait-operator",
            "NobodyLeads",
        ),
        (
            |it| drop(all(&mut it.networks).remove(2)),
            "Network liqo/external-cidr",
            "NetworkMissing",
        ),
        (
            |it| drop(all(&mut it.networks).remove(3)),
            "Network liqo/internal-cidr",
            "NetworkMissing",
        ),
        (|it| all(&mut it.networks)[3].status = None, "Network liqo/internal-cidr", "NoPrefix"),
        (
            |it| all(&mut it.networks).push(network("other", "10.70.128.0/17", false)),
            "Network liqo/other",
            "PrefixOverlap",
        ),
        (
            |it| {
                all(&mut it.ips).push(object(json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"ip": "192.0.2.1"}})))
            },
            "IP b/a",
            "NoAddress",
        ),
        (
            |it| all(&mut it.networks).push(network("other", "172.18.0.0/16", false)),
            "Node one",
            "NodeInPrefix",
        ),
        (
            |it| all(&mut it.networks)[0] = network("pod-cidr", "10.243.0.0/16", true),
            "Node one",
            "PodCIDRUnknown",
        ),
        (
            |it| all(&mut it.networks)[1] = network("service-cidr", "10.112.0.0/12", true),
            "Service default/kubernetes",
            "ServiceCIDRUnknown",
        ),
        (
            |it| all(&mut it.configurations)[0].status = None,
            "Configuration tenant/milan",
            "NotConfigured",
        ),
        (
            |it| {
                let status = all(&mut it.configurations)[0].status.as_mut().unwrap();
                status.conditions.push(object(json!({
                    "type": "strait.io/InForce", "status": "False", "reason": "Overlap",
                    "message": "overlaps", "lastTransitionTime": "2026-01-01T00:00:00Z",
                })));
            },
            "Configuration tenant/milan",
            "NotInForce",
        ),
        (
            |it| {
                let status = all(&mut it.configurations)[0].status.as_mut().unwrap();
                status.conditions.push(object(json!({
                    "type": "strait.io/NodeRoutes", "status": "False", "reason": "NodeProblem",
                    "message": "one: masqueraded", "lastTransitionTime": "2026-01-01T00:00:00Z",
                })));
            },
            "Configuration tenant/milan",
            "NodeProblem",
        ),
        (
            |it| all(&mut it.public_keys)[0].spec.public_key = None,
            "PublicKey tenant/milan",
            "KeyMalformed",
        ),
        (|it| all(&mut it.public_keys).clear(), "GatewayClient tenant/milan", "PublicKeyMissing"),
        (
            |it| all(&mut it.configurations).clear(),
            "GatewayClient tenant/milan",
            "ConfigurationMissing",
        ),
        (|it| all(&mut it.connections).clear(), "Connection tenant/gw-milan", "ConnectionMissing"),
        (
            |it| all(&mut it.connections)[0].status = None,
            "Connection tenant/gw-milan",
            "NotConnected",
        ),
        (
            |it| it.gateways[0].template = Visibility::Missing,
            "GatewayClient tenant/milan",
            "TemplateMissing",
        ),
        (
            |it| {
                let Visibility::Found(template) = &mut it.gateways[0].template else {
                    panic!("none")
                };
                template["template"]["spec"]["name"] = json!("{{ .Moon }}");
            },
            "WgGatewayClientTemplate liqo/client",
            "TemplateUnusable",
        ),
        (
            |it| it.gateways[0].deployment = Visibility::Missing,
            "Deployment tenant/gw-milan",
            "GatewayMissing",
        ),
        (
            |it| it.gateways[0].deployment = Visibility::Found(deployment("gw-milan", 0)),
            "Deployment tenant/gw-milan",
            "GatewayNotReady",
        ),
        (
            |it| all(&mut it.gateways[0].active_pods).clear(),
            "Deployment tenant/gw-milan",
            "NoActivePod",
        ),
        (
            |it| all(&mut it.gateways[0].active_pods).push("other".to_owned()),
            "Deployment tenant/gw-milan",
            "SeveralActivePods",
        ),
        (|it| it.gateways[0].secrets = Some(Vec::new()), "GatewayClient tenant/milan", "NoKeys"),
        (
            |it| all(&mut it.gateways[0].secrets)[0].data = None,
            "Secret tenant/gw-milan",
            "KeysMalformed",
        ),
        (
            |it| {
                let secret = all(&mut it.gateways[0].secrets)[0].data.as_mut().unwrap();
                secret.insert("publicKey".to_owned(), k8s_openapi::ByteString(vec![8; 32]));
            },
            "Secret tenant/gw-milan",
            "KeysMalformed",
        ),
        (|it| it.gateways[0].remote = None, "GatewayClient tenant/milan", "Unassigned"),
    ];
    for (change, object, reason) in cases {
        let mut facts = sound();
        change(&mut facts);

        let found = found(&facts);

        assert_eq!(reasons(&found), [(object, reason)], "{found:#?}");
        assert!(!found[0].message.is_empty() && !found[0].remedy.is_empty());
    }
}

#[test]
fn an_operator_that_is_alone_needs_no_lease() {
    for (field, value) in [
        ("args", json!(["operator", "--leader-election=false"])),
        ("command", json!(["strait", "operator", "--leader-election=false"])),
        ("env", json!([{"name": "STRAIT_LEADER_ELECTION", "value": "false"}])),
    ] {
        let mut operator =
            serde_json::to_value(deployment::<Deployment>("strait-operator", 1)).unwrap();
        operator["spec"]["template"]["spec"]["containers"][0][field] = value;
        let mut facts = sound();
        facts.operators = Some(vec![object(operator)]);
        facts.lease = Visibility::Missing;

        assert_eq!(found(&facts), [], "{field}");
    }
}

#[test]
fn a_clock_error_below_a_minute_is_tolerated() {
    let facts = Facts { now: "2026-01-01T00:01:15Z".parse().unwrap(), ..sound() };

    assert_eq!(found(&facts), []);
}

#[test]
fn hidden_objects_are_not_reported_as_missing() {
    type Change = fn(&mut Facts);
    let cases: [Change; 15] = [
        |it| it.operators = None,
        |it| it.liqo = Visibility::Hidden,
        |it| {
            it.operators = Some(Vec::new());
            it.liqo = Visibility::Hidden;
        },
        |it| it.lease = Visibility::Hidden,
        |it| it.networks = None,
        |it| it.ips = None,
        |it| it.configurations = None,
        |it| it.public_keys = None,
        |it| it.connections = None,
        |it| it.nodes = None,
        |it| it.api_service = Visibility::Hidden,
        |it| it.gateways[0].template = Visibility::Hidden,
        |it| it.gateways[0].deployment = Visibility::Hidden,
        |it| it.gateways[0].active_pods = None,
        |it| it.gateways[0].secrets = None,
    ];
    for (place, change) in cases.into_iter().enumerate() {
        let mut facts = sound();
        change(&mut facts);

        assert_eq!(found(&facts), [], "{place}");
    }
    assert_eq!(found(&Facts { served: api::NEEDED.clone(), ..hidden() }), []);
}

/// A cluster of which nothing may be read.
fn hidden() -> Facts {
    Facts {
        liqo: Visibility::Hidden,
        lease: Visibility::Hidden,
        api_service: Visibility::Hidden,
        ..Facts::default()
    }
}

#[test]
fn missing_kinds_and_versions_are_reported() {
    let mut served = api::NEEDED.clone();
    served.get_mut("networking.liqo.io/v1beta1").unwrap().remove("publickeies");
    let found = api::findings(&served);
    assert_eq!(
        reasons(&found),
        [("CustomResourceDefinition publickeies.networking.liqo.io", "APIMissing")]
    );

    let plurals = served.remove("networking.liqo.io/v1beta1").unwrap();
    served.insert("networking.liqo.io/v1alpha1".to_owned(), plurals);
    let found = api::findings(&served);
    assert_eq!(
        found[0].message,
        "the API server knows networking.liqo.io as v1alpha1 and not networking.liqo.io/v1beta1"
    );
    assert!(!api::is_served(&served));
}

#[test]
fn mismatched_keys_are_reported_without_their_bytes() {
    let mut client = gateway(Mode::Client);
    let pair = json!({"privateKey": key(6), "publicKey": key(9)});
    let secret = json!({"metadata": {"name": "gw-milan"}, "data": pair});
    client.secrets = Some(vec![object(secret)]);

    let found = gateway::findings(&client, public_of);

    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(finding.message, "publicKey is not that of privateKey");
    assert!(finding.remedy.ends_with("what `strait key public` prints for its privateKey"));
}

#[test]
fn a_condition_without_its_gateway_is_ignored() {
    let mut facts = sound();
    let status = all(&mut facts.configurations)[0].status.as_mut().unwrap();
    status.conditions.push(object(json!({
        "type": "strait.io/InForce", "status": "False", "reason": "WaitingForPublicKey",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    })));
    status.conditions.push(object(json!({
        "type": "strait.io/NodeRoutes", "status": "False", "reason": "NodeProblem",
        "message": "one: masqueraded", "lastTransitionTime": "2026-01-01T00:00:00Z",
    })));
    let both = ["NotInForce", "NodeProblem"].map(|reason| ("Configuration tenant/milan", reason));
    assert_eq!(reasons(&found(&facts)), both);

    facts.gateways.clear();
    facts.connections = Some(Vec::new());
    assert_eq!(found(&facts), []);
}
