//! Why a gateway, or a service in front of an address, cannot be created as specified.

use std::net::IpAddr;

use strait_api::labels::{GATEWAY_INDEX, GATEWAYS_MAX};

use super::child::ChildError;
use super::keys::KeysError;
use super::workload::WorkloadError;

/// Why an object cannot be reconciled. The objects that exist are kept.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The remote cluster of the gateway is not known.
    #[error(
        "label liqo.io/remote-cluster-id is missing: set it to the identifier of the remote cluster"
    )]
    NoCluster,
    /// There is no template.
    #[error("{field} needs a name: name a gateway template")]
    NoTemplate {
        /// The field where it is missing.
        field: &'static str,
    },
    /// There is no such kind, or it is no kind of templates.
    #[error(
        "{kind} of {api_version} is no kind of gateway template: label its CustomResourceDefinition with networking.liqo.io/gatewaytemplate=true"
    )]
    NotATemplate {
        /// The API version of the reference.
        api_version: String,
        /// The kind of the reference.
        kind: String,
    },
    /// The template does not exist.
    #[error("{kind} {namespace}/{name} is not there: make it, or name another")]
    TemplateMissing {
        /// The kind of the reference.
        kind: String,
        /// The namespace of the template.
        namespace: String,
        /// The name of the reference.
        name: String,
    },
    /// The template cannot be rendered.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The API server does not know the kind that the template makes.
    #[error(
        "{kind} of {api_version}, which template {template} makes, is no kind that the API server knows"
    )]
    ChildKindUnknown {
        /// The name of the template.
        template: String,
        /// The API version in the template.
        api_version: String,
        /// The kind in the template.
        kind: String,
    },
    /// A part is missing.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// It was not made from a template, so its parent is not known.
    #[error("no GatewayServer or GatewayClient owns it: the operator makes it from one of these")]
    NoOwner,
    /// The Secret has no key.
    #[error(transparent)]
    Keys(KeysError),
    /// Its number has no meaning.
    #[error(
        "label {GATEWAY_INDEX}={found}: write the number of the gateway, from 0 to {}, or remove it",
        GATEWAYS_MAX - 1
    )]
    GatewayIndex {
        /// The value of the label.
        found: String,
    },
    /// Remote clusters reach a host under the address with which it would masquerade.
    #[error(
        "gateway {index} would masquerade nodes with {address}, which is status.ip of IP {ip}: delete that IP and make it again, or use fewer gateways"
    )]
    MasqueradeAddressTaken {
        /// The number of the gateway.
        index: u8,
        /// The address.
        address: IpAddr,
        /// The namespace and name of the `IP`.
        ip: String,
    },
    /// Without the Prometheus operator it has no reader.
    #[error(
        "spec.metrics asks for a ServiceMonitor, which the API server does not know: install the Prometheus operator, or ask for none"
    )]
    NoMonitors,
    /// The name is taken by an object of another owner.
    #[error(
        "{kind} {name} exists and belongs to another owner: delete it, or name the IP otherwise"
    )]
    NameTaken {
        /// The kind of the object.
        kind: String,
        /// The name of the object.
        name: String,
    },
    /// The API server rejects a write.
    #[error("cannot {what}: {}", message(source))]
    Kube {
        /// What was to be done.
        what: String,
        /// The error of the API server.
        source: kube::Error,
    },
}

/// HTTP status codes: too many requests, unavailable, timeout. Other errors of a server have a cause that an operator
/// must correct, such as a webhook that does not answer.
const LATER: [u16; 3] = [429, 503, 504];

/// The message of the error, without the frame that kube adds.
fn message(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error
        && !status.message.is_empty()
    {
        return status.message.clone();
    }

    error.to_string()
}

impl Problem {
    /// For `map_err`: what was to be done.
    pub(super) fn failed_to<S: Into<String>>(what: S) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kube { what: what.into(), source }
    }

    /// The reason of the Event that reports it.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::NoCluster | Self::NoOwner => "Unassigned",
            Self::NoTemplate { .. } | Self::NotATemplate { .. } | Self::TemplateMissing { .. } => {
                "TemplateMissing"
            }
            Self::Child(_) | Self::ChildKindUnknown { .. } | Self::Workload(_) => {
                "TemplateUnusable"
            }
            Self::Keys(KeysError::Missing(_)) => "MissingSecretRef",
            Self::NoMonitors => "MetricsEnforced",
            Self::NameTaken { .. } => "NameTaken",
            Self::GatewayIndex { .. } => "GatewayIndexInvalid",
            Self::MasqueradeAddressTaken { .. } => "MasqueradeAddressTaken",
            Self::Keys(_) => "KeysSecretCheckFailed",
            Self::Kube { .. } => "Refused",
        }
    }

    /// Whether the API server itself was unreachable or overloaded: that concerns every object alike.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Kube { source, .. } | Self::Keys(KeysError::Kube(source)) => {
                let code =
                    if let kube::Error::Api(status) = source { Some(status.code) } else { None };
                code.is_none_or(|code| LATER.contains(&code))
            }
            Self::NoCluster
            | Self::NoTemplate { .. }
            | Self::NotATemplate { .. }
            | Self::TemplateMissing { .. }
            | Self::Child(_)
            | Self::ChildKindUnknown { .. }
            | Self::Workload(_)
            | Self::NoOwner
            | Self::NoMonitors
            | Self::NameTaken { .. }
            | Self::GatewayIndex { .. }
            | Self::MasqueradeAddressTaken { .. }
            | Self::Keys(_) => false,
        }
    }
}

impl From<KeysError> for Problem {
    fn from(error: KeysError) -> Self {
        match error {
            KeysError::Kube(source) => {
                Self::Kube { what: "ask for the secret with the keys".to_owned(), source }
            }
            KeysError::Several(_)
            | KeysError::Missing(_)
            | KeysError::NoKey { .. }
            | KeysError::NotAPair { .. }
            | KeysError::Taken { .. } => Self::Keys(error),
        }
    }
}
