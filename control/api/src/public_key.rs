//! `PublicKey`: the WireGuard key of a remote cluster's gateway.

use k8s_openapi::ByteString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Length of a WireGuard key.
pub const KEY_BYTES: usize = 32;

/// Makes a public key of a private one; curves are not for the crates that need it.
pub type PublicOf = fn(&[u8; KEY_BYTES]) -> [u8; KEY_BYTES];

/// Belongs to the remote cluster that its label `liqo.io/remote-cluster-id` names.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "PublicKey",
    plural = "publickeies",
    singular = "publickey",
    shortname = "pk",
    shortname = "pkies",
    shortname = "pkey",
    category = "liqo",
    namespaced,
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PublicKeySpec {
    /// The 32 bytes of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::bytes")]
    pub public_key: Option<ByteString>,
}
