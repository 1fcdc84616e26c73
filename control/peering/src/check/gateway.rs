//! Checks one gateway, and its objects. Pure.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::ResourceExt as _;
use serde_json::Value;
use strait_api::crd::spec_schema;
use strait_api::identity::{Identity, Mode};
use strait_api::labels::{GATEWAY_INDEX, GATEWAYS_MAX, REMOTE_CLUSTER_ID};
use strait_api::public_key::{KEY_BYTES, PublicOf};
use strait_api::{GatewayClient, GatewayServer};
use strait_operator::{Parent, Unsound, child, unsound};

use super::super::cause::Cause;
use super::super::connect::ready;
use super::super::wait::Progress;
use super::super::{Side, keys};
use super::fold::{GatewayName, WARNING_EVENT};
use super::read::{GatewayFacts, Visibility};
use super::{Finding, named};

impl GatewayFacts {
    /// Its name in findings.
    pub(super) fn display_name(&self) -> String {
        named(&format!("Gateway{}", self.mode), Some(&self.namespace), &self.name)
    }

    /// Its name in comparisons.
    pub(super) fn id(&self) -> GatewayName {
        GatewayName { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// The UID of the object.
    pub(super) fn uid(&self) -> Option<String> {
        self.object.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned)
    }

    /// The MTU of the tunnel, in bytes: the requested one, or the default of the API.
    pub(super) fn mtu(&self) -> i64 {
        /// The default of the schema.
        const DEFAULT: i64 = 1340;
        let requested = self.object.pointer("/spec/mtu").and_then(Value::as_i64);

        requested.unwrap_or(DEFAULT)
    }

    /// The addresses of the server: from the status of a server, the spec of a client.
    pub(super) fn addresses(&self) -> Vec<String> {
        let place = match self.mode {
            Mode::Server => "/status/endpoint/addresses",
            Mode::Client => "/spec/endpoint/addresses",
        };
        let addresses = self.object.pointer(place).and_then(Value::as_array).into_iter().flatten();

        addresses.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// The Secret with its keys, if it may be read.
    pub(super) fn secret(&self) -> Option<&Secret> {
        let secrets: Vec<_> = self.secrets.as_ref()?.iter().collect();
        let reference: Option<ObjectReference> = self
            .object
            .pointer("/status/secretRef")
            .and_then(|reference| serde_json::from_value(reference.clone()).ok());
        let uid = self.uid();
        let found =
            keys::of_gateway(Side::Only, &self.name, uid.as_ref(), &secrets, reference.as_ref());

        found.ok().flatten()
    }
}

/// The problems of one gateway.
pub(super) fn findings(gateway: &GatewayFacts, public_of: PublicOf) -> Vec<Finding> {
    let mut findings = Vec::new();
    if gateway.remote.is_none() {
        let message = format!("it has no label {REMOTE_CLUSTER_ID}");
        let remedy = "set it to the id of the cluster at the other end".to_owned();
        findings.push(Finding::error(gateway.display_name(), "Unassigned", message, remedy));
    }
    if let Err(found) = &gateway.index {
        let message = format!("its label {GATEWAY_INDEX} is {found:?}");
        let remedy = format!(
            "write its number among the gateways of the peering, 0 to {}, or remove the label of the first one",
            GATEWAYS_MAX - 1
        );
        findings.push(Finding::error(gateway.display_name(), "IndexInvalid", message, remedy));
    }
    findings.extend(template(gateway));
    findings.extend(workload(gateway));
    findings.extend(address(gateway));
    findings.extend(secret(gateway, public_of));
    findings.extend(warning_event(gateway, &findings));

    findings.into_iter().map(|finding| finding.of(gateway)).collect()
}

/// The Event that explains other findings. Alone it is history.
fn warning_event(gateway: &GatewayFacts, found: &[Finding]) -> Option<Finding> {
    let is_known = |finding: &Finding| {
        ["Unassigned", "IndexInvalid", "TemplateMissing", "TemplateUnusable"]
            .contains(&finding.reason)
    };
    let cause = gateway.cause.as_ref()?;
    if found.is_empty() || found.iter().any(is_known) {
        return None;
    }
    let Cause { kind, name, reason, message } = cause;
    let namespace = gateway.namespace.as_str();
    let object = named(kind, Some(namespace), name);
    let remedy = format!(
        "correct that; `kubectl describe {} {name} -n {namespace}` shows the Event",
        kind.to_lowercase()
    );

    Some(Finding::error(object, WARNING_EVENT, format!("{reason}: {message}"), remedy))
}

fn template(gateway: &GatewayFacts) -> Option<Finding> {
    let Some([kind, namespace, name]) = &gateway.template_ref else {
        let message = "its spec names no template".to_owned();
        let remedy = "write the name into the template reference of its spec".to_owned();
        return Some(Finding::error(gateway.display_name(), "TemplateMissing", message, remedy));
    };
    let template = match &gateway.template {
        Visibility::Found(template) => template,
        Visibility::Hidden => return None,
        Visibility::Missing => {
            let message = format!("its template {kind} {namespace}/{name} is not there");
            let remedy = "make it, or name another one".to_owned();
            return Some(Finding::error(
                gateway.display_name(),
                "TemplateMissing",
                message,
                remedy,
            ));
        }
    };
    let schema = match gateway.mode {
        Mode::Server => spec_schema::<GatewayServer>(),
        Mode::Client => spec_schema::<GatewayClient>(),
    };
    let identity = Identity {
        name: gateway.name.clone(),
        namespace: gateway.namespace.clone(),
        remote_cluster_id: gateway.remote.clone().unwrap_or_default(),
        uid: gateway.uid().unwrap_or_default(),
        mode: gateway.mode,
    };
    let spec = gateway.object.get("spec").cloned().unwrap_or_default();
    // Any name will do: only the rendering is checked.
    let secret = format!("gw-{}", gateway.name);
    let error = child(&Parent { identity, spec, schema, secret }, name, template).err()?;
    let object = named(kind, Some(namespace), name);
    let message = format!("it cannot be rendered for {}: {error}", gateway.display_name());
    let remedy = "correct the template at the place that the message names".to_owned();

    Some(Finding::error(object, "TemplateUnusable", message, remedy))
}

fn workload(gateway: &GatewayFacts) -> Option<Finding> {
    let (namespace, name) = (gateway.namespace.as_str(), format!("gw-{}", gateway.name));
    let object = named("Deployment", Some(namespace), &name);
    let describe = format!("look at `kubectl describe deployment {name} -n {namespace}`");
    match &gateway.deployment {
        Visibility::Found(deployment) => {
            if let Progress::NotYet(found) = ready(deployment) {
                return Some(Finding::error(object, "GatewayNotReady", found, describe));
            }
        }
        Visibility::Missing => {
            let message = format!("it is not there, so {} does not run", gateway.display_name());
            let remedy = format!(
                "is the operator running? Look at the Events of {}",
                gateway.display_name()
            );
            return Some(Finding::error(object, "GatewayMissing", message, remedy));
        }
        Visibility::Hidden => return None,
    }
    match gateway.active_pods.as_ref()?.as_slice() {
        [_] => None,
        [] => {
            let message =
                format!("none of its pods has the label {}=true", strait_api::labels::ACTIVE);
            let remedy = format!("look at `kubectl logs deployment/{name} -n {namespace}`");
            Some(Finding::error(object, "NoActivePod", message, remedy))
        }
        several => {
            let message = format!(
                "{} have the label {}=true, and the Service sends to all of them",
                several.join(" and "),
                strait_api::labels::ACTIVE
            );
            let remedy =
                "take it from all but one: `kubectl label pod NAME networking.liqo.io/active-`";
            Some(Finding::error(object, "SeveralActivePods", message, remedy.to_owned()))
        }
    }
}

/// Whether clients have an address of a server.
fn address(gateway: &GatewayFacts) -> Option<Finding> {
    if !gateway.addresses().is_empty() {
        return None;
    }
    let Some(service) = gateway.service.seen() else {
        let message = match (gateway.mode, &gateway.service) {
            (Mode::Server, Visibility::Hidden) => "it has no status.endpoint.addresses",
            (Mode::Server, Visibility::Found(_) | Visibility::Missing) => {
                "it has no Service and no status.endpoint.addresses"
            }
            (Mode::Client, _) => "spec.endpoint.addresses names no server",
        };
        let remedy = match gateway.mode {
            Mode::Server => "is the operator running? Look at its Events",
            Mode::Client => "write the address of the server there",
        };
        let (message, remedy) = (message.to_owned(), remedy.to_owned());
        return Some(Finding::error(gateway.display_name(), "NoEndpoint", message, remedy));
    };
    let object = named("Service", Some(&gateway.namespace), &service.name_any());
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let is_pending = balancer.and_then(|it| it.ingress.as_ref()).is_none_or(Vec::is_empty);

    Some(if type_ == "LoadBalancer" && is_pending {
        Finding::error(
            object,
            "LoadBalancerPending",
            "it has no address yet".to_owned(),
            "install a load balancer, or make the gateway with --gw-server-service-type NodePort"
                .to_owned(),
        )
    } else {
        Finding::error(
            gateway.display_name(),
            "NoEndpoint",
            format!(
                "its Service is there, of type {type_}, but status.endpoint.addresses is empty"
            ),
            "look at its Events".to_owned(),
        )
    })
}

fn secret(gateway: &GatewayFacts, public_of: PublicOf) -> Option<Finding> {
    gateway.secrets.as_ref()?;
    let Some(secret) = gateway.secret() else {
        let message = "it has no Secret with keys, or several".to_owned();
        let remedy = "is the operator running? Delete the unused ones".to_owned();
        return Some(Finding::error(gateway.display_name(), "NoKeys", message, remedy));
    };
    let (message, write) = match unsound(secret, public_of)? {
        Unsound::NoKey { entry, found } => (
            format!("{entry} needs the {KEY_BYTES} raw bytes of a key, has {found}"),
            "the key there",
        ),
        Unsound::NotAPair => (
            "publicKey is not that of privateKey".to_owned(),
            "into data.publicKey what `strait key public` prints for its privateKey",
        ),
    };
    let object = named("Secret", Some(&gateway.namespace), &secret.name_any());
    let remedy = format!("delete it, and the gateway gets another one, or write {write}");

    Some(Finding::error(object, "KeysMalformed", message, remedy))
}
