//! The `CustomResourceDefinition`s of the API, made from its types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde_json::Value;

use super::{
    Configuration, Connection, FirewallConfiguration, GatewayClient, GatewayServer, GeneveTunnel,
    IP, InternalFabric, InternalNode, Network, PublicKey, RouteConfiguration, WgGatewayClient,
    WgGatewayClientTemplate, WgGatewayServer, WgGatewayServerTemplate,
};

/// Of every kind, sorted by name.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        // These two make no sense without a spec; the API lets the others begin empty.
        IP::crd(),
        Network::crd(),
        begins_empty(Configuration::crd()),
        begins_empty(Connection::crd()),
        begins_empty(FirewallConfiguration::crd()),
        begins_empty(GatewayClient::crd()),
        begins_empty(GatewayServer::crd()),
        begins_empty(GeneveTunnel::crd()),
        begins_empty(InternalFabric::crd()),
        begins_empty(InternalNode::crd()),
        begins_empty(PublicKey::crd()),
        begins_empty(RouteConfiguration::crd()),
        begins_empty(WgGatewayClient::crd()),
        begins_empty(WgGatewayClientTemplate::crd()),
        begins_empty(WgGatewayServer::crd()),
        begins_empty(WgGatewayServerTemplate::crd()),
    ];
    for root in crds.iter_mut().flat_map(roots) {
        strict(root);
    }
    crds.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));

    crds
}

/// The OpenAPI schema of the `spec` of a kind.
#[must_use]
pub fn spec_schema<K: CustomResourceExt>() -> Value {
    let version = K::crd().spec.versions.into_iter().next();
    let schema = version.and_then(|version| version.schema?.open_api_v3_schema);
    let spec = schema.and_then(|schema| schema.properties?.remove("spec"));

    serde_json::to_value(spec).unwrap_or_default()
}

/// A definition as a document of YAML, for `kubectl`.
///
/// # Errors
///
/// None that a definition of [`all`] is known to cause.
pub fn manifest(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser_error::Error> {
    serde_saphyr::to_string(crd).map(|text| format!("---\n{text}"))
}

/// The name of the file for a definition, as everybody calls it: `GROUP_PLURAL.yaml`.
#[must_use]
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

fn begins_empty(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for root in roots(&mut crd) {
        root.required = None;
    }

    crd
}

fn roots(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let versions = crd.spec.versions.iter_mut();

    versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// An optional field may be missing here, but not `null`.
fn strict(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        strict(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        strict(items);
    }
}

#[cfg(test)]
mod tests;
