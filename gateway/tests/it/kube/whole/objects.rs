//! What Liqo's controllers wrote for Rome, and what a newer release adds.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use k8s_openapi::api::core::v1::Namespace as KubeNamespace;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::route_configuration::HostCondition;
use strait_api::{FirewallConfiguration, RouteConfiguration};
use strait_control_lab::create;

use crate::kube::fed::NAMESPACE;

/// The gateway pod, and the two nodes.
pub(super) const POD: Ipv4Addr = Ipv4Addr::new(172, 16, 3, 2);
pub(super) const NODES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(172, 16, 3, 1), Ipv4Addr::new(172, 16, 3, 7)];

/// The identifiers of their tunnels; 0 is one too.
pub(super) const VNIS: [u32; 2] = [0, 7_001];

/// What the controllers gave them.
const DEVICES: [&str; 2] = ["liqo.j68rxlq62d", "liqo.jdrzqmnqm9"];
pub(super) const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 80, 0, 1), Ipv4Addr::new(10, 80, 0, 2)];

/// The address of the gateway in the overlay.
pub(super) const INNER_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 3);

/// What the controllers of a real run wrote, and the objects of its nodes.
pub(super) async fn create_all(client: &Client) {
    for namespace in ["liqo", "liqo-tenant-milan"] {
        let metadata = ObjectMeta { name: Some(namespace.to_owned()), ..ObjectMeta::default() };
        let namespace = KubeNamespace { metadata, ..KubeNamespace::default() };
        create(Api::all(client.clone()), &namespace).await;
    }
    let file = "../control/api/tests/genuine/v1.2.0-genuine-templates.rome.yaml";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let list: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let kinds = ["FirewallConfiguration", "RouteConfiguration"];
    let items = list["items"].as_array().unwrap().iter();
    let genuine: Vec<_> =
        items.filter(|item| kinds.contains(&item["kind"].as_str().unwrap())).cloned().collect();
    assert!(genuine.len() > 12, "{}", genuine.len());
    for mut object in genuine {
        let metadata = &object["metadata"];
        object["metadata"] = json!({
            "name": metadata["name"], "namespace": metadata["namespace"],
            "labels": metadata["labels"],
        });
        object.as_object_mut().unwrap().remove("status");
        put(client, &object).await;
    }
    let definition: DynamicObject = serde_json::from_value(binding_definition()).unwrap();
    let definitions = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
    ));
    let definitions = Api::<DynamicObject>::all_with(client.clone(), &definitions);
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let fabric = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "InternalFabric",
        "metadata": {"name": "milan", "namespace": NAMESPACE},
        "spec": {
            "gatewayIP": POD,
            "interface": {"gateway": {"ip": INNER_GATEWAY}, "node": {"name": "liqo.milan"}},
        },
    });
    put(client, &fabric).await;
    for (index, name) in ["rome-n1", "rome-n2"].into_iter().enumerate() {
        put_node(client, index, name).await;
    }
}

/// Writes the result of the check of the first node, as the node does.
pub(super) async fn put_check(client: &Client, value: &str, latency: &str) {
    let measured = json!({"value": latency, "timestamp": "2026-08-24T10:00:00Z"});
    let status = json!({"status": {"value": value, "latency": measured}});
    let tunnels = dynamic(client, "GeneveTunnel", NAMESPACE);

    let patch = Patch::Merge(&status);
    tunnels.patch_status("milan-rome-n1", &PatchParams::default(), &patch).await.unwrap();
}

async fn put_node(client: &Client, index: usize, name: &str) {
    let node = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "InternalNode",
        "metadata": {"name": name},
        "spec": {"interface": {
            "gateway": {"name": DEVICES[index]}, "node": {"ip": INNER[index]},
        }},
    });
    put(client, &node).await;
    // The gateway is on the first node: the other address is that of no node.
    let other = Ipv4Addr::new(192, 0, 2, 9);
    let [local, remote] = if index == 0 { [NODES[0], other] } else { [other, NODES[1]] };
    let status = json!({"status": {"nodeIP": {"local": local, "remote": remote}}});
    let nodes = ApiResource::from_gvk(&gvk("InternalNode"));
    let nodes = Api::<DynamicObject>::all_with(client.clone(), &nodes);
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    let tunnel = json!({
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "GeneveTunnel",
        "metadata": {"name": format!("milan-{name}"), "namespace": NAMESPACE},
        "spec": {
            "id": VNIS[index],
            "internalFabricRef": {"name": "milan", "namespace": NAMESPACE},
            "internalNodeRef": {"name": name},
        },
    });
    put(client, &tunnel).await;
}

pub(super) async fn put(client: &Client, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = object.types.as_ref().unwrap().kind.clone();
    let api = match object.namespace() {
        Some(namespace) => dynamic(client, &kind, &namespace),
        None => Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk(&kind))),
    };

    api.create(&PostParams::default(), &object).await.unwrap();
}

pub(super) fn dynamic(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk(kind)))
}

fn gvk(kind: &str) -> GroupVersionKind {
    GroupVersionKind::gvk("networking.liqo.io", "v1beta1", kind)
}

/// What a newer role has besides.
pub(super) fn bindings_rule() -> PolicyRule {
    let rule = json!({
        "apiGroups": ["networking.liqo.io"],
        "resources": ["firewallconfigurationbindings", "firewallconfigurationbindings/status"],
        "verbs": ["create", "get", "list", "patch", "update", "watch"],
    });

    serde_json::from_value(rule).unwrap()
}

/// The fields that Liqo's main branch has; it has none for routes yet.
fn binding_definition() -> Value {
    let reference = |fields: &[&str]| {
        let fields = fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"})));
        json!({"type": "object", "properties": fields.collect::<serde_json::Map<_, _>>()})
    };
    let condition = json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "message": {"type": "string", "maxLength": 32768},
            "observedGeneration": {"type": "integer", "format": "int64"},
            "reason": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": {"type": "string"},
        },
    });
    let schema = json!({"type": "object", "properties": {
        "spec": {
            "type": "object", "required": ["firewallConfigurationRef", "targetRef"],
            "properties": {
                "firewallConfigurationRef": reference(&["name"]),
                "targetRef": reference(&["apiVersion", "kind", "name", "namespace"]),
            },
        },
        "status": {"type": "object", "properties": {
            "conditions": {
                "type": "array", "items": condition,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            },
            "tableName": {"type": "string"},
        }},
    }});

    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "firewallconfigurationbindings.networking.liqo.io"},
        "spec": {
            "group": "networking.liqo.io", "scope": "Namespaced",
            "names": {
                "plural": "firewallconfigurationbindings", "singular": "firewallconfigurationbinding",
                "kind": "FirewallConfigurationBinding", "listKind": "FirewallConfigurationBindingList",
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
            }],
        },
    })
}

/// Both kinds.
pub(super) trait HasConditions:
    kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + serde::de::DeserializeOwned
{
    fn conditions(self) -> Vec<HostCondition>;
}

impl HasConditions for FirewallConfiguration {
    fn conditions(self) -> Vec<HostCondition> {
        self.status.unwrap_or_default().conditions
    }
}

impl HasConditions for RouteConfiguration {
    fn conditions(self) -> Vec<HostCondition> {
        self.status.unwrap_or_default().conditions
    }
}
