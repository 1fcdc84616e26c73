use k8s_openapi::api::core::v1::{Node, Pod, Service};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::crd::spec_schema;
use strait_api::identity::{Identity, Mode};
use strait_api::{GatewayServer, WgGatewayServer};

use super::endpoint::active_pod;
use super::*;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str, phase: &str, change: Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": name,
            "labels": {
                "networking.liqo.io/active": "true",
                "networking.liqo.io/component": "gateway",
            },
        },
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"phase": phase, "podIP": "10.244.0.9"},
    });
    json_patch(&mut pod, change);

    object(pod)
}

/// A merge patch (RFC 7396), as far as it is needed here.
fn json_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    for (key, value) in patch {
        json_patch(&mut target[key], value);
    }
}

fn node(ready: &str, addresses: &[(&str, &str)]) -> Node {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(type_, address)| json!({"type": type_, "address": address}))
        .collect();

    object(json!({
        "metadata": {"name": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "addresses": addresses},
    }))
}

fn service(kind: &str, rest: Value) -> Service {
    let mut service = json!({
        "metadata": {"name": "gw-milan"},
        "spec": {
            "type": kind,
            "clusterIPs": ["10.96.0.7", "fd00::7"],
            "ports": [{"port": 51840, "nodePort": 30742, "protocol": "UDP"}],
        },
    });
    json_patch(&mut service, rest);

    object(service)
}

#[test]
fn the_active_pod_runs_and_has_the_label() {
    let good = pod("gw-1", "Running", json!({}));
    let pods = [
        pod("pending", "Pending", json!({})),
        pod("going", "Running", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        pod(
            "standby",
            "Running",
            json!({"metadata": {"labels": {"networking.liqo.io/active": "false"}}}),
        ),
        pod(
            "other",
            "Running",
            json!({"metadata": {"labels": {"networking.liqo.io/component": "fabric"}}}),
        ),
    ];

    assert_eq!(active_pod(&pods), Err(EndpointError::NoActivePod));
    let with = [&pods[..], std::slice::from_ref(&good)].concat();
    assert_eq!(active_pod(&with), Ok(&good));
    let internal = internal_endpoint(&with).unwrap();
    assert_eq!(internal.ip.as_deref(), Some("10.244.0.9"));
    assert_eq!(internal.node.as_deref(), Some("node-1"));
    let two = [good.clone(), good];
    let error = active_pod(&two).unwrap_err().to_string();
    assert!(error.starts_with("multiple (2) active gateway pods found"), "{error}");
    let unscheduled = pod("gw-1", "Running", json!({"spec": {"nodeName": null}}));
    assert!(matches!(internal_endpoint(&[unscheduled]), Err(EndpointError::PodNotPlaced { .. })));
}

#[test]
fn an_endpoint_follows_the_type_of_the_service() {
    let pods = [pod("gw-1", "Running", json!({}))];
    let all = [
        ("Hostname", "node-1"),
        ("InternalIP", "172.18.0.3"),
        ("ExternalIP", "203.0.113.3"),
        ("InternalDNS", "node-1.local"),
    ];
    let nodes = [node("True", &all)];
    let found = |service: &Service| {
        let endpoint = endpoint(service, &pods, &nodes)?;
        assert_eq!(endpoint.protocol.as_deref(), Some("UDP"));
        Ok::<_, EndpointError>((endpoint.addresses.join(" "), endpoint.port.unwrap()))
    };
    let at = |addresses: &str, port| Ok((addresses.to_owned(), port));

    assert_eq!(found(&service("ClusterIP", json!({}))), at("10.96.0.7 fd00::7", 51840));
    let of_node = "203.0.113.3 172.18.0.3 node-1.local";
    assert_eq!(found(&service("NodePort", json!({}))), at(of_node, 30742));
    let ingress = json!({"status": {"loadBalancer": {"ingress": [
        {"hostname": "lb.example"}, {"ip": "198.51.100.7"},
    ]}}});
    assert_eq!(found(&service("LoadBalancer", ingress)), at("198.51.100.7 lb.example", 51840));

    let error = |service: &Service| found(service).unwrap_err().to_string();
    assert!(error(&service("LoadBalancer", json!({}))).contains("has no address yet"));
    assert!(error(&service("ExternalName", json!({}))).contains("use ClusterIP, NodePort"));
    let headless = service("ClusterIP", json!({"spec": {"clusterIPs": ["None"]}}));
    assert!(error(&headless).contains("has no address yet"));
    let early = service("NodePort", json!({"spec": {"ports": [{"port": 51840}]}}));
    assert!(error(&early).contains("has no port yet"));
}

#[test]
fn a_node_port_has_addresses_of_its_families() {
    let pods = [pod("gw-1", "Running", json!({}))];
    let found = |families: Value, addresses: &[(&str, &str)]| {
        let service = service("NodePort", json!({"spec": {"ipFamilies": families}}));
        endpoint(&service, &pods, &[node("True", addresses)]).map(|found| found.addresses.join(" "))
    };
    let dual = [
        ("InternalDNS", "node-1.local"),
        ("InternalIP", "172.18.0.3"),
        ("InternalIP", "fd00:18::3"),
        ("ExternalDNS", "node-1.example"),
        ("ExternalIP", "203.0.113.3"),
        ("ExternalIP", "2001:db8::3"),
        ("ExternalIP", "203.0.113.3"),
        ("Hostname", "node-1"),
    ];

    let of_ipv4 = "203.0.113.3 node-1.example 172.18.0.3 node-1.local";
    assert_eq!(found(json!(["IPv4"]), &dual).unwrap(), of_ipv4);
    let of_ipv6 = "2001:db8::3 node-1.example fd00:18::3 node-1.local";
    assert_eq!(found(json!(["IPv6"]), &dual).unwrap(), of_ipv6);
    let of_both = "203.0.113.3 2001:db8::3 node-1.example 172.18.0.3 fd00:18::3 node-1.local";
    for families in [json!(["IPv4", "IPv6"]), json!(["IPv6", "IPv4"]), json!(null)] {
        assert_eq!(found(families, &dual).unwrap(), of_both);
    }

    // As on nodes of kind: only Docker resolves the name.
    let of_kind = [("InternalIP", "172.19.0.9"), ("Hostname", "cl01-control-plane")];
    assert_eq!(found(json!(["IPv4"]), &of_kind).unwrap(), "172.19.0.9");
    assert_eq!(found(json!(["IPv6"]), &of_kind).unwrap(), "cl01-control-plane");
    let error = found(json!(["IPv6"]), &of_kind[..1]).unwrap_err().to_string();
    assert_eq!(error, "node node-1 has no address of the IP families of the service (IPv6)");
    let many: Vec<_> = (1..=9).map(|host| ("InternalIP", format!("192.0.2.{host}"))).collect();
    let many: Vec<_> = many.iter().map(|(type_, address)| (*type_, address.as_str())).collect();
    assert_eq!(found(json!(["IPv4"]), &many).unwrap().split(' ').count(), 8);
}

#[test]
fn an_unreachable_node_is_no_endpoint() {
    let pods = [pod("gw-1", "Running", json!({}))];
    let service = service("NodePort", json!({}));
    let error = |nodes: &[Node]| endpoint(&service, &pods, nodes).unwrap_err().to_string();

    assert!(error(&[]).contains("node node-1 of the active gateway pod is not there"));
    assert!(error(&[node("False", &[("InternalIP", "172.18.0.3")])]).contains("or not ready"));
    assert!(error(&[node("True", &[])]).contains("has no address"));
    let error = endpoint(&service, &[], &[]).unwrap_err();
    assert_eq!(error, EndpointError::NoActivePod);
}

fn parent() -> Parent {
    Parent {
        identity: Identity {
            name: "server".to_owned(),
            namespace: "liqo-tenant-milan".to_owned(),
            remote_cluster_id: "milan".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Server,
        },
        spec: json!({
            "mtu": 1340,
            "endpoint": {"port": 51840, "serviceType": "NodePort", "nodePort": 30742},
            "serviceLabels": {"team": "net"},
            "serviceAnnotations": {"lb.example/internal": "true"},
        }),
        schema: spec_schema::<GatewayServer>(),
        secret: "gw-server".to_owned(),
    }
}

fn shipped() -> Value {
    let text = include_str!("../../../deploy/liqo/server.yaml");
    let object: Value = serde_saphyr::from_str(text).unwrap();

    object["spec"].clone()
}

#[test]
fn the_shipped_template_makes_an_owned_gateway() {
    let child = child(&parent(), "strait-server", &shipped()).unwrap();

    assert_eq!((child.kind.as_str(), child.name.as_str()), ("WgGatewayServer", "server"));
    let metadata = &child.object["metadata"];
    assert_eq!(metadata["namespace"], "liqo-tenant-milan");
    assert_eq!(metadata["labels"]["liqo.io/remote-cluster-id"], "milan");
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(
        *owner,
        json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer", "name": "server",
            "uid": "5b8e", "controller": true, "blockOwnerDeletion": true,
        })
    );
    let service = &child.object["spec"]["service"];
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 30742);
    assert_eq!(service["metadata"]["labels"]["team"], "net");
    assert_eq!(service["metadata"]["annotations"]["lb.example/internal"], "true");
    // As the type reads it, without losing a field.
    let typed: WgGatewayServer = object(child.object.clone());
    let deployment = typed.spec.deployment.spec.unwrap();
    assert_eq!(deployment.template.spec.unwrap().containers.len(), 3);
}

#[test]
fn missing_parts_of_a_template_are_reported() {
    let error = |change: Value| {
        let mut template = shipped();
        json_patch(&mut template, change);
        child(&parent(), "strait-server", &template).unwrap_err().to_string()
    };

    assert_eq!(
        error(json!({"objectKind": null})),
        "strait-server: spec.objectKind needs apiVersion and kind"
    );
    assert!(error(json!({"template": {"spec": null}})).contains("needs metadata and spec"));
    let other_namespace = error(json!({"template": {"metadata": {"namespace": "{{ .Name }}"}}}));
    assert!(
        other_namespace.contains("comes to \"server\": it must be \"liqo-tenant-milan\""),
        "{other_namespace}"
    );
    assert_eq!(
        error(json!({"template": {"spec": {"service": {"spec": {"type": "{{ .Spce }}"}}}}})),
        "strait-server: spec.template.spec.service.spec.type: \"{{ .Spce }}\": there is no \"Spce\"; \
         there is Name, Namespace, GatewayUID, ClusterID, SecretName, Spec"
    );
}

#[test]
fn outages_give_no_event_and_other_errors_do() {
    let problem = |code: u16| {
        let status = object::<kube::core::Status>(json!({"code": code, "message": "why"}));
        Problem::Kube {
            what: "apply Deployment gw-milan".to_owned(),
            source: kube::Error::Api(status.into()),
        }
    };

    for code in [429, 503, 504] {
        assert!(problem(code).is_outage(), "{code}");
    }
    for code in [403, 404, 409, 422, 500] {
        assert!(!problem(code).is_outage(), "{code}");
    }
    assert_eq!(problem(422).to_string(), "cannot apply Deployment gw-milan: why");
}
