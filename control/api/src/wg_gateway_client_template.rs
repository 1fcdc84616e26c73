//! `WgGatewayClientTemplate`: the template of a `WgGatewayClient`.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::embedded::ObjectKind;
use super::schema;

/// A `GatewayClient` refers to it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "WgGatewayClientTemplate",
    plural = "wggatewayclienttemplates",
    shortname = "wggct",
    shortname = "wgct",
    category = "liqo",
    namespaced,
    label("networking.liqo.io/gatewaytemplate", "true"),
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WgGatewayClientTemplateSpec {
    /// The kind of object that is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_kind: Option<ObjectKind>,
    /// The object, with expressions for the values of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::anything")]
    pub template: Option<Value>,
}
