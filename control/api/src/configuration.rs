//! `Configuration`: the prefixes of a remote cluster, and their local prefixes.

use std::ops::Deref;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{lenient, schema};

/// One per remote cluster; named after it by default.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networking.liqo.io",
    version = "v1beta1",
    kind = "Configuration",
    plural = "configurations",
    shortname = "conf",
    category = "liqo",
    namespaced,
    status = "ConfigurationStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Desired Pod CIDR ",
        type_ = "string",
        json_path = ".spec.remote.cidr.pod[*]"
    ),
    printcolumn(
        name = "Remapped Pod CIDR",
        type_ = "string",
        json_path = ".status.remote.cidr.pod[*]"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Desired External CIDR",
        type_ = "string",
        json_path = ".spec.remote.cidr.external[*]",
        priority = "1"
    ),
    printcolumn(
        name = "Remapped External CIDR",
        type_ = "string",
        json_path = ".status.remote.cidr.external[*]",
        priority = "1"
    ),
    printcolumn(
        name = "ClusterID",
        type_ = "string",
        json_path = ".metadata.labels.liqo\\.io/remote-cluster-id",
        priority = "1"
    )
)]
pub struct ConfigurationSpec {
    /// The prefixes of this cluster.
    #[serde(
        default,
        deserialize_with = "lenient::structure",
        skip_serializing_if = "Option::is_none"
    )]
    pub local: Option<Cluster>,
    /// The prefixes of the remote cluster, in its own addresses.
    #[serde(
        default,
        deserialize_with = "lenient::structure",
        skip_serializing_if = "Option::is_none"
    )]
    pub remote: Option<Cluster>,
}

/// The prefixes that are in force for a remote cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ConfigurationStatus {
    /// `NetworkCIDRsConfigured`: whether every prefix has a local prefix.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The local prefixes for those of the remote cluster; place by place those of the spec.
    #[serde(
        default,
        deserialize_with = "lenient::structure",
        skip_serializing_if = "Option::is_none"
    )]
    pub remote: Option<Cluster>,
}

/// The prefixes of one cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Cluster {
    /// By purpose.
    #[serde(
        default,
        deserialize_with = "lenient::structure",
        skip_serializing_if = "Option::is_none"
    )]
    pub cidr: Option<ClusterCidr>,
}

/// The prefixes of one cluster, by purpose. One that is not chosen yet is empty.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct ClusterCidr {
    /// Addresses for hosts that have none of the cluster's own: hosts, nodes, pods of others.
    #[serde(default, skip_serializing_if = "Cidrs::is_empty")]
    #[schemars(schema_with = "schema::cidrs")]
    pub external: Cidrs,
    /// The pods.
    #[serde(default, skip_serializing_if = "Cidrs::is_empty")]
    #[schemars(schema_with = "schema::cidrs")]
    pub pod: Cidrs,
}

/// Prefixes as texts, place by place. A string is read as a list of one, as in documents and releases before 1.0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Cidrs {
    texts: Vec<String>,
    #[serde(skip)]
    is_string: bool,
}

impl Cidrs {
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether the object has a string in place of the list.
    #[must_use]
    pub const fn is_string(&self) -> bool {
        self.is_string
    }
}

impl Deref for Cidrs {
    type Target = Vec<String>;

    fn deref(&self) -> &Self::Target {
        &self.texts
    }
}

impl From<Vec<String>> for Cidrs {
    fn from(texts: Vec<String>) -> Self {
        Self { texts, is_string: false }
    }
}

impl From<Cidrs> for Vec<String> {
    fn from(cidrs: Cidrs) -> Self {
        cidrs.texts
    }
}

impl<'de> Deserialize<'de> for Cidrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let is_string = value.is_string();
        let texts = lenient::strings(value).map_err(D::Error::custom)?;

        Ok(Self { texts, is_string })
    }
}
