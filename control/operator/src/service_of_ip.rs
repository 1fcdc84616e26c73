//! The service in front of an `IP`, for clients in this cluster: `spec.serviceTemplate`.
//!
//! A `Service` and an `EndpointSlice` with the name of the `IP`, which owns both. The slice has the address, `spec.ip`,
//! and the ports of the template.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Map, Value, json};
use strait_api::IP;
use strait_api::embedded::{EmbeddedMetadata, ServiceTemplate};

use super::apply::{Applied, api, apply, delete};
use super::context::Context;
use super::kind::MANAGED_BY;
use super::problem::Problem;

/// The label of our services: the cache selects them.
pub(super) const SERVICE_OF_IP: (&str, &str) = ("ipam.strait.io/front", "true");

/// The label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Reconciles `ip` and its service.
pub(super) async fn reconcile(ip: &Arc<IP>, context: &Context) -> Result<(), Problem> {
    if ip.metadata.deletion_timestamp.is_some() {
        // The objects that it owns are deleted with it.
        return Ok(());
    }
    match &ip.spec.service_template {
        Some(template) => make(ip, template, context).await,
        None => delete_service(ip, context).await,
    }
}

async fn make(ip: &IP, template: &ServiceTemplate, context: &Context) -> Result<(), Problem> {
    // Under another owner's service the slice would divert its traffic.
    let former_service = former::<Service>(ip, context).await?;
    let former_slice = former::<EndpointSlice>(ip, context).await?;
    // The slice is created first and deleted last: without one there is nothing to delete.
    put::<EndpointSlice>(ip, former_slice.as_ref(), slice(ip, template), context).await?;
    let wanted = service(ip, template);
    let applied = put::<Service>(ip, former_service.as_ref(), wanted, context).await?;
    if applied == Applied::Created {
        context.report(ip, "ServiceEnforced", format!("made service {}", ip.name_any())).await;
    }

    Ok(())
}

async fn delete_service(ip: &IP, context: &Context) -> Result<(), Problem> {
    let (namespace, name) = (ip.namespace(), ip.name_any());
    let slices = context.of::<EndpointSlice>();
    let found = slices.get(&name, namespace.as_deref()).await;
    let found = found.map_err(Problem::failed_to(format!("read EndpointSlice {name}")))?;
    let Some(slice) = found.filter(|slice| is_own(slice, ip)) else { return Ok(()) };
    let services = all::<Service>(ip, context);
    let doing = |verb: &str| Problem::failed_to(format!("{verb} Service {name}"));
    let service = services.get_opt(&name).await.map_err(doing("read"))?;
    if let Some(service) = service.filter(|service| is_own(service, ip)) {
        delete(&services, &service).await.map_err(doing("delete"))?;
    }
    let doing = Problem::failed_to(format!("delete EndpointSlice {name}"));

    delete(&slices.api(namespace.as_deref()), &slice).await.map_err(doing)
}

/// The object of a kind with the name of `ip`, if it exists. It must be owned by `ip`.
async fn former<K: Resource<DynamicType = ()>>(
    ip: &IP,
    context: &Context,
) -> Result<Option<DynamicObject>, Problem> {
    let (kind, name) = (K::kind(&()), ip.name_any());
    let doing = Problem::failed_to(format!("read {kind} {name}"));
    let found = all::<K>(ip, context).get_opt(&name).await.map_err(doing)?;
    if found.as_ref().is_some_and(|found| !is_own(found, ip)) {
        return Err(Problem::NameTaken { kind: kind.into_owned(), name });
    }

    Ok(found)
}

/// Applies `wanted` in place of the former object.
async fn put<K: Resource<DynamicType = ()>>(
    ip: &IP,
    former: Option<&DynamicObject>,
    wanted: Value,
    context: &Context,
) -> Result<Applied, Problem> {
    let (kind, name) = (K::kind(&()), ip.name_any());
    let doing = Problem::failed_to(format!("apply {kind} {name}"));

    apply(&all::<K>(ip, context), &name, former, wanted).await.map_err(doing)
}

/// The objects of a kind in the namespace of `ip`.
fn all<K: Resource<DynamicType = ()>>(ip: &IP, context: &Context) -> Api<DynamicObject> {
    api(&context.client, &ApiResource::erase::<K>(&()), ip.namespace().as_deref())
}

fn is_own(object: &DynamicObject, ip: &IP) -> bool {
    object.owner_references().iter().any(|owner| Some(&owner.uid) == ip.metadata.uid.as_ref())
}

fn service(ip: &IP, template: &ServiceTemplate) -> Value {
    let EmbeddedMetadata { mut labels, annotations, .. } =
        template.metadata.clone().unwrap_or_default();
    let (label, value) = SERVICE_OF_IP;
    labels.insert(label.to_owned(), value.to_owned());
    let mut metadata = metadata(ip);
    metadata.insert("labels".to_owned(), json!(labels));
    metadata.insert("annotations".to_owned(), json!(annotations));

    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": template.spec,
    })
}

fn slice(ip: &IP, template: &ServiceTemplate) -> Value {
    let (label, value) = MANAGED_BY;
    let mut metadata = metadata(ip);
    metadata.insert("labels".to_owned(), json!({label: value, SERVICE_NAME: ip.name_any()}));
    let ports = template.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports: Vec<_> = ports.map(port).collect();

    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip.spec.ip], "conditions": {"ready": true}}],
        "ports": ports,
    })
}

/// As in Liqo, the port of the service is that of the address.
fn port(port: &ServicePort) -> Value {
    json!({
        "name": port.name.clone().unwrap_or_default(), "port": port.port,
        "protocol": port.protocol.as_deref().unwrap_or("TCP"), "appProtocol": port.app_protocol,
    })
}

fn metadata(ip: &IP) -> Map<String, Value> {
    let owner = OwnerReference {
        api_version: IP::api_version(&()).into_owned(),
        kind: IP::kind(&()).into_owned(),
        name: ip.name_any(),
        uid: ip.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(ip.name_any()));
    metadata.insert("namespace".to_owned(), json!(ip.namespace()));
    metadata.insert("ownerReferences".to_owned(), json!([owner]));

    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_has_the_address_and_its_ports() {
        let ip: IP = serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": "1"},
            "spec": {"ip": "192.0.2.7", "serviceTemplate": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"ports": [{"port": 5432, "name": "sql"}, {"port": 53, "protocol": "UDP"}]},
            }},
        }))
        .unwrap();
        let template = ip.spec.service_template.clone().unwrap();

        let slice = slice(&ip, &template);
        let service = service(&ip, &template);

        // Both are valid for the API server.
        serde_json::from_value::<EndpointSlice>(slice.clone()).unwrap();
        serde_json::from_value::<Service>(service.clone()).unwrap();
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
        assert_eq!(slice["metadata"]["labels"][SERVICE_NAME], "db");
        assert_eq!(slice["ports"][0]["port"], 5432);
        assert_eq!(slice["ports"][0]["protocol"], "TCP");
        assert_eq!(slice["ports"][1]["name"], "");
        assert_eq!(
            service["metadata"]["labels"],
            json!({"a": "b", "ipam.strait.io/front": "true"})
        );
        assert_eq!(service["metadata"]["ownerReferences"][0]["kind"], "IP");
    }
}
