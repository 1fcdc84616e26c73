//! Why a gateway, or a service in front of an address, cannot be as it was asked for.

use super::child::ChildError;
use super::keys::KeysError;
use super::workload::WorkloadError;

/// What hinders the operator. Nothing that was made before is taken away for it.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Nobody could say whose gateway it is.
    #[error(
        "label liqo.io/remote-cluster-id is missing: set it to the identifier of the remote cluster"
    )]
    NoCluster,
    /// Nothing says what a gateway is made from.
    #[error("{field} needs a name: name a gateway template")]
    NoTemplate {
        /// Where it is missing.
        field: &'static str,
    },
    /// No such kind, or it is none.
    #[error(
        "{kind} of {api_version} is no kind of gateway template: label its CustomResourceDefinition with networking.liqo.io/gatewaytemplate=true"
    )]
    NotATemplate {
        /// As the reference has it.
        api_version: String,
        /// As the reference has it.
        kind: String,
    },
    /// It is not there.
    #[error("{kind} {namespace}/{name} is not there: make it, or name another")]
    TemplateMissing {
        /// As the reference has it.
        kind: String,
        /// Where it should be.
        namespace: String,
        /// As the reference has it.
        name: String,
    },
    /// It comes to nothing.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The API server does not know what the template makes.
    #[error(
        "{kind} of {api_version}, which template {template} makes, is no kind that the API server knows"
    )]
    ChildKindUnknown {
        /// Which template.
        template: String,
        /// As the template has it.
        api_version: String,
        /// As the template has it.
        kind: String,
    },
    /// A part is missing.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Nobody has made it from a template, so nobody knows whose it is.
    #[error("no GatewayServer or GatewayClient owns it: the operator makes it from one of these")]
    NoOwner,
    /// It has no keys.
    #[error(transparent)]
    Keys(KeysError),
    /// Nobody would read it.
    #[error(
        "spec.metrics asks for a ServiceMonitor, which the API server does not know: install the Prometheus operator, or ask for none"
    )]
    NoMonitors,
    /// Somebody else has one of this name.
    #[error(
        "{kind} {name} is there and belongs to somebody else: delete it, or name the IP otherwise"
    )]
    NameTaken {
        /// What would be made.
        kind: String,
        /// What it would be called.
        name: String,
    },
    /// The API server refuses what was to be written.
    #[error("cannot {what}: {}", words(source))]
    Kube {
        /// What was to be done.
        what: String,
        /// What it says.
        source: kube::Error,
    },
}

/// Of HTTP: too many requests, unavailable, not in time. What else a server fails at has a cause that
/// somebody must mend, as a webhook that does not answer.
const LATER: [u16; 3] = [429, 503, 504];

/// What it says, without the frame that kube shows with it.
fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error
        && !status.message.is_empty()
    {
        return status.message.clone();
    }

    error.to_string()
}

impl Problem {
    /// For `map_err`: what was to be done.
    pub(super) fn doing<S: Into<String>>(what: S) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kube { what: what.into(), source }
    }

    /// The reason of the Event that tells of it.
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
            Self::Keys(_) => "KeysSecretCheckFailed",
            Self::Kube { .. } => "Refused",
        }
    }

    /// Whether the API server itself could not be asked, or has too much to do: that concerns every object
    /// alike.
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
