//! Objects that are written, and the calls that write them. Pure.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use serde_json::Value;
use strait_api::{Configuration, IP, Network};

/// A kind of objects that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Network,
    Ip,
    Configuration,
}

impl Kind {
    /// The kind with this name in the API.
    pub(super) fn named(kind: &str) -> Option<Self> {
        [Self::Network, Self::Ip, Self::Configuration]
            .into_iter()
            .find(|known| known.to_string() == kind)
    }

    /// The kind with this name in the group and version `api_version`.
    pub(super) fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::named(kind).filter(|known| known.api_version() == api_version)
    }

    fn api_version(self) -> Cow<'static, str> {
        match self {
            Self::Network => Network::api_version(&()),
            Self::Ip => IP::api_version(&()),
            Self::Configuration => Configuration::api_version(&()),
        }
    }
}

/// An object in the version that a decision is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    Create(Box<Network>),
    Delete(Target),
    /// Merges this into the object, if it has not changed since.
    Main(Target, Value),
    /// Merges this into the status, if the object has not changed since.
    Status(Target, Value),
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, namespace, name, what) = match self {
            Self::Create(network) => {
                let Target { kind, namespace, name, .. } = target(Kind::Network, &**network);
                return write!(f, "{kind} {namespace}/{name} cannot be made");
            }
            Self::Delete(Target { kind, namespace, name, .. }) => {
                (kind, namespace, name, "be deleted")
            }
            Self::Main(Target { kind, namespace, name, .. }, _) => {
                (kind, namespace, name, "be changed")
            }
            Self::Status(Target { kind, namespace, name, .. }, _) => {
                (kind, namespace, name, "be given its allocation")
            }
        };

        write!(f, "{kind} {namespace}/{name} cannot {what}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "Network",
            Self::Ip => "IP",
            Self::Configuration => "Configuration",
        })
    }
}

/// Why a resource gets no allocation or loses it, for its users.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Denial {
    pub(super) object: ObjectReference,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether the conditions of the object report it already.
    pub(super) is_reported: bool,
}

pub(super) fn target<K: Resource>(kind: Kind, object: &K) -> Target {
    let meta = object.meta();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();

    Target {
        kind,
        namespace: text(&meta.namespace),
        name: text(&meta.name),
        uid: text(&meta.uid),
        version: text(&meta.resource_version),
    }
}
