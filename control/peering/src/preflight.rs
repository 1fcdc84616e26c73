//! The checks before the first write: templates that do not exist or would drop a requested field, ports that are
//! taken.

use std::fmt;
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort, ServiceSpec};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, PostParams};
use kube::core::GroupVersion;
use serde_json::Value;
use strait_api::identity::Mode;

use super::builders::{Exposure, ServiceType, TemplateRef};
use super::context::PeeringSide;
use super::{CommandError, NodePort, Side};

/// The kinds of Liqo's templates, by their plurals in paths.
const KNOWN: [(&str, &str); 2] = [
    ("wggatewayservertemplates", "WgGatewayServerTemplate"),
    ("wggatewayclienttemplates", "WgGatewayClientTemplate"),
];

/// The group and the version of those.
const KNOWN_VERSION: &str = "networking.liqo.io/v1beta1";

/// The path of the Service in a template, and its name in errors.
const SERVICE: (&str, &str) = ("/template/spec/service/spec", "spec.template.spec.service.spec");
const FIRST_PORT: (&str, &str) =
    ("/template/spec/service/spec/ports/0", "spec.template.spec.service.spec.ports[0]");

/// The node ports, unless an API server was configured otherwise.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// A kind of templates, by its path in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateType {
    /// `GROUP/VERSION`.
    pub api_version: String,
    /// In lower case.
    pub plural: String,
}

impl TemplateType {
    /// The kind for gateway servers, as in Liqo.
    pub const SERVER: &str = "networking.liqo.io/v1beta1/wggatewayservertemplates";
    /// The kind for gateway clients.
    pub const CLIENT: &str = "networking.liqo.io/v1beta1/wggatewayclienttemplates";

    /// [`Self::SERVER`].
    pub(super) fn server() -> Self {
        Self { api_version: KNOWN_VERSION.to_owned(), plural: KNOWN[0].0.to_owned() }
    }

    /// [`Self::CLIENT`].
    pub(super) fn client() -> Self {
        Self { api_version: KNOWN_VERSION.to_owned(), plural: KNOWN[1].0.to_owned() }
    }

    /// The kind of a template which a gateway refers to. A reference has no plural: the usual one is assumed.
    pub(super) fn of_reference(reference: &ObjectReference) -> Option<Self> {
        let (api_version, kind) = (reference.api_version.clone()?, reference.kind.as_ref()?);

        Some(Self { api_version, plural: format!("{}s", kind.to_lowercase()) })
    }

    /// Reads `GROUP/VERSION/PLURAL`.
    ///
    /// # Errors
    ///
    /// How to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("write GROUP/VERSION/PLURAL, as in {}", Self::SERVER);
        let (api_version, plural) = text.rsplit_once('/').ok_or_else(wrong)?;
        let is_whole = api_version
            .split_once('/')
            .is_some_and(|(group, version)| ![group, version, plural].contains(&""));

        if is_whole && !plural.is_empty() && api_version.matches('/').count() == 1 {
            Ok(Self { api_version: api_version.to_owned(), plural: plural.to_owned() })
        } else {
            Err(wrong())
        }
    }

    /// Its kind, if it is one of Liqo's.
    pub(super) fn known_kind(&self) -> Option<&'static str> {
        let (_, kind) = KNOWN.iter().find(|(plural, _)| *plural == self.plural)?;

        (self.api_version == KNOWN_VERSION).then_some(kind)
    }
}

impl fmt::Display for TemplateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.plural)
    }
}

/// A template as it was typed.
#[derive(Clone, Debug)]
pub(super) struct TypedTemplate<'a> {
    pub(super) mode: Mode,
    pub(super) type_: &'a TemplateType,
    pub(super) name: &'a str,
    /// Default: the namespace of the installation.
    pub(super) namespace: Option<&'a str>,
}

/// Its kind, and the spec of the template; `None` if it is not to be checked.
pub(super) async fn template(
    end: &PeeringSide<'_>,
    typed: &TypedTemplate<'_>,
    is_checked: bool,
) -> Result<(TemplateRef, Option<Value>), CommandError> {
    let TypedTemplate { type_, name, .. } = typed;
    let resource = resource(end, typed).await?;
    let namespace = typed.namespace.unwrap_or(&end.liqo_namespace);
    let template = TemplateRef {
        api_version: type_.api_version.clone(),
        kind: resource.kind.clone(),
        name: (*name).to_owned(),
        namespace: namespace.to_owned(),
    };
    if !is_checked {
        return Ok((template, None));
    }
    let api: Api<DynamicObject> = Api::namespaced_with(end.client.clone(), namespace, &resource);
    let doing = format!("reading {} {name} in namespace {namespace}", resource.kind);
    let found = end.call(&doing, async || api.get_opt(name).await).await?;
    let Some(found) = found else {
        return Err(CommandError::NoTemplate {
            side: end.side,
            kind: resource.kind,
            name: (*name).to_owned(),
            namespace: namespace.to_owned(),
            flag: flag(end.side, typed.mode),
        });
    };

    Ok((template, found.data.get("spec").cloned()))
}

/// The prefix of flags about templates: where there is only one gateway they do not name it.
const fn flag(side: Side, mode: Mode) -> &'static str {
    match (side, mode) {
        (Side::Only, _) => "",
        (Side::Local | Side::Remote, Mode::Server) => "gw-server-",
        (Side::Local | Side::Remote, Mode::Client) => "gw-client-",
    }
}

/// The API resource of the kind.
async fn resource(
    end: &PeeringSide<'_>,
    typed: &TypedTemplate<'_>,
) -> Result<ApiResource, CommandError> {
    let TypedTemplate { mode, type_, .. } = typed;
    let unknown = || CommandError::NoTemplateType {
        side: end.side,
        typed: type_.to_string(),
        example: match mode {
            Mode::Server => TemplateType::SERVER,
            Mode::Client => TemplateType::CLIENT,
        },
    };
    let version: GroupVersion = type_.api_version.parse().map_err(|_| unknown())?;
    if let Some(kind) = type_.known_kind() {
        return Ok(ApiResource::from_gvk_with_plural(&version.with_kind(kind), &type_.plural));
    }
    let doing = format!("asking what {} is", type_.api_version);
    let group = end
        .call(&doing, async || match kube::discovery::pinned_group(&end.client, &version).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            group => group.map(Some),
        })
        .await?;
    let resources = group.map(|group| group.versioned_resources(&version.version));

    resources
        .into_iter()
        .flatten()
        .map(|(resource, _)| resource)
        .find(|resource| resource.plural == type_.plural)
        .ok_or_else(unknown)
}

/// Whether a template with this `spec` passes on the requested fields.
pub(super) fn check_fields(
    side: Side,
    name: &str,
    spec: &Value,
    exposure: &Exposure,
) -> Result<(), CommandError> {
    let has = |(pointer, _): (&str, &str), field: &str| {
        let place = spec.pointer(pointer);
        place.is_some_and(|place| {
            place.get(field).is_some() || place.get(format!("?{field}")).is_some()
        })
    };
    let lacks = |(_, place), field, expression, flags: [&'static str; 2]| {
        let [of_one, of_two] = flags;
        let name = name.to_owned();
        let flag = if side == Side::Only { of_one } else { of_two };
        Err(CommandError::TemplateField { side, name, field, place, expression, flag })
    };

    if exposure.node_port != NodePort::Any && !has(FIRST_PORT, "nodePort") {
        let flags = ["node-port", "gw-server-service-nodeport"];
        return lacks(FIRST_PORT, "nodePort", ".Spec.Endpoint.NodePort", flags);
    }
    if exposure.load_balancer_ip.is_some() && !has(SERVICE, "loadBalancerIP") {
        let flags = ["load-balancer-ip", "gw-server-service-loadbalancerip"];
        return lacks(SERVICE, "loadBalancerIP", ".Spec.Endpoint.LoadBalancerIP", flags);
    }

    Ok(())
}

/// Whether the requested node port is free. A dry run asks the API server; a port outside of its range
/// is rejected only on a real creation.
pub(super) async fn node_port(
    end: &PeeringSide<'_>,
    exposure: &Exposure,
) -> Result<(), CommandError> {
    let NodePort::Exactly(port) = exposure.node_port else { return Ok(()) };
    if exposure.service_type == ServiceType::ClusterIp {
        return Ok(());
    }
    let flag = match end.side {
        Side::Only => "node-port",
        Side::Local | Side::Remote => "gw-server-service-nodeport",
    };
    if !NODE_PORTS.contains(&port) {
        let way_out = match end.side {
            Side::Only => "apply what -o yaml prints",
            Side::Local | Side::Remote => "pass --skip-validation",
        };
        return Err(CommandError::NodePortRange { side: end.side, port, flag, way_out });
    }
    // Any namespace will do: that of the gateway may not exist yet, and ports belong to the cluster.
    let api = Api::<Service>::namespaced(end.client.clone(), &end.liqo_namespace);
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let request = service(exposure);
    let tried = end
        .ask("asking for a port on the nodes", async || {
            match api.create(&parameters, &request).await {
                Err(kube::Error::Api(status)) if status.is_invalid() => Ok(Some(status.message)),
                made => made.map(|_| None),
            }
        })
        .await?;

    match tried {
        // A user who may not create Services may still create gateways; the operator detects it then.
        None | Some(None) => Ok(()),
        Some(Some(message)) => {
            let message =
                message.rsplit_once("nodePort: ").map_or(message.as_str(), |(_, message)| message);
            Err(CommandError::NodePort {
                side: end.side,
                port,
                error_text: message.to_owned(),
                flag,
            })
        }
    }
}

/// A Service like that of the gateway; it is never created.
fn service(exposure: &Exposure) -> Service {
    let port = ServicePort {
        port: exposure.port.into(),
        node_port: exposure.node_port.number().map(i32::from),
        protocol: Some("UDP".to_owned()),
        ..ServicePort::default()
    };

    Service {
        metadata: ObjectMeta {
            generate_name: Some("strait-asks-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(exposure.service_type.to_string()),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
