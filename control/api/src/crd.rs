//! The `CustomResourceDefinition`s of the API, generated from its types.
//!
//! They accept more than Liqo's in two places, so that manifests of any release can be applied: [`FORMER_VERSION`], and
//! one prefix in place of a list.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
    JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde_json::Value;

use super::{
    Configuration, Connection, FirewallConfiguration, ForeignCluster, GatewayClient, GatewayServer,
    GeneveTunnel, IP, InternalFabric, InternalNode, Network, PublicKey, RouteConfiguration,
    WgGatewayClient, WgGatewayClientTemplate, WgGatewayServer, WgGatewayServerTemplate,
};

/// The version in which releases before 1.0 had the kinds that users write. It is served as well; objects are stored as
/// `v1beta1`, which has the same fields.
pub const FORMER_VERSION: &str = "v1alpha1";

/// The definitions of all kinds, sorted by name.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        // These two require a spec; for the others the API permits an object without one.
        IP::crd(),
        Network::crd(),
        also_former(begins_empty(accept_single_prefixes(Configuration::crd()))),
        also_former(begins_empty(Connection::crd())),
        begins_empty(FirewallConfiguration::crd()),
        begins_empty(ForeignCluster::crd()),
        also_former(begins_empty(GatewayClient::crd())),
        also_former(begins_empty(GatewayServer::crd())),
        begins_empty(GeneveTunnel::crd()),
        begins_empty(InternalFabric::crd()),
        begins_empty(InternalNode::crd()),
        also_former(begins_empty(PublicKey::crd())),
        begins_empty(RouteConfiguration::crd()),
        begins_empty(WgGatewayClient::crd()),
        also_former(begins_empty(WgGatewayClientTemplate::crd())),
        begins_empty(WgGatewayServer::crd()),
        also_former(begins_empty(WgGatewayServerTemplate::crd())),
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

/// A definition as a YAML document, for `kubectl`.
///
/// # Errors
///
/// No definition of [`all`] is known to cause one.
pub fn manifest(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser_error::Error> {
    serde_saphyr::to_string(crd).map(|text| format!("---\n{text}"))
}

/// The usual name of the file of a definition: `GROUP_PLURAL.yaml`.
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

/// Serves [`FORMER_VERSION`] beside the version that is stored.
fn also_former(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let former = crd.spec.versions.first().map(|stored| CustomResourceDefinitionVersion {
        name: FORMER_VERSION.to_owned(),
        storage: false,
        // The API server warns users of it, and names the version to use.
        deprecated: Some(true),
        ..stored.clone()
    });
    crd.spec.versions.extend(former);

    crd
}

/// Permits a string in place of every list of prefixes in the spec, which is read as a list of one, as before 1.0 and
/// in documents.
///
/// A structural schema cannot name two types. One with a format and no type accepts strings, and lists whose elements
/// it checks, and nothing else.
fn accept_single_prefixes(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    fn relax(schema: &mut JSONSchemaProps) {
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items
            && items.format.as_deref() == Some("cidr")
        {
            schema.type_ = None;
            schema.format.clone_from(&items.format);
            schema.x_kubernetes_preserve_unknown_fields = Some(true);
        }
        schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(relax);
    }

    for root in roots(&mut crd) {
        root.properties.iter_mut().filter_map(|fields| fields.get_mut("spec")).for_each(relax);
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
