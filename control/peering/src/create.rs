//! One object of a peering by itself: `create` and `delete`.

use std::fmt::Debug;

use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strait_api::endpoint::Endpoint;
use strait_api::identity::Mode;
use strait_api::public_key::KEY_BYTES;
use strait_api::{Configuration, GatewayClient, GatewayServer, PublicKey};

use super::builders::{self, Exposure};
use super::connect::{
    Requested, is_server_ready, until_addressed, until_configured, until_rolled_out,
};
use super::context::{PeeringSide, check_id, tenant_namespace};
use super::preflight::{self, TypedTemplate};
use super::wait::{Progress, WaitTarget, named, until_of_gateway};
use super::write::{self, Place, apply, place_of, until_gone};
use super::{ClusterContext, CommandError, Format, Marks, Prefixes, Session, Side, TemplateType};

/// The object to create. Each has its own name and is about one remote cluster.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the documentation of a variant names its fields")]
pub enum Create {
    /// The `prefixes` of the remote cluster.
    Configuration { name: String, remote_cluster_id: String, prefixes: Prefixes },
    /// A gateway server, made from `template`: its type, its name and its namespace. `mtu` is in bytes.
    GatewayServer {
        name: String,
        remote_cluster_id: String,
        template: (TemplateType, String, Option<String>),
        exposure: Exposure,
        mtu: u16,
    },
    /// A gateway client that connects to `endpoint`, made from `template`.
    GatewayClient {
        name: String,
        remote_cluster_id: String,
        template: (TemplateType, String, Option<String>),
        endpoint: Endpoint,
        mtu: u16,
    },
    /// The `key` of the remote gateway.
    PublicKey { name: String, remote_cluster_id: String, key: [u8; KEY_BYTES] },
}

/// The longest name of a gateway: its Service, whose name has the prefix `gw-`, has at most 63 bytes.
pub(super) const GATEWAY_NAME_MAX: usize = 63 - "gw-".len();

/// The longest name of other objects.
const NAME_MAX: usize = 253;

impl Create {
    /// Whether dependent objects can be named after it.
    fn check_name(&self, side: Side) -> Result<(), CommandError> {
        let (kind, name, longest) = match self {
            Self::Configuration { name, .. } => ("Configuration", name, NAME_MAX),
            Self::GatewayServer { name, .. } => ("GatewayServer", name, GATEWAY_NAME_MAX),
            Self::GatewayClient { name, .. } => ("GatewayClient", name, GATEWAY_NAME_MAX),
            Self::PublicKey { name, .. } => ("PublicKey", name, NAME_MAX),
        };
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let ends = [label.bytes().next(), label.bytes().last()];
            label.bytes().all(|byte| is_plain(byte) || byte == b'-')
                && ends.iter().all(|byte| byte.is_some_and(is_plain))
        };
        // Names of Services have no dots.
        let is_one =
            if longest == NAME_MAX { name.split('.').all(is_label) } else { is_label(name) };

        if is_one && name.len() <= longest {
            Ok(())
        } else {
            Err(CommandError::Name { side, kind, name: name.clone(), longest })
        }
    }

    fn remote_cluster_id(&self) -> &str {
        match self {
            Self::Configuration { remote_cluster_id, .. }
            | Self::GatewayServer { remote_cluster_id, .. }
            | Self::GatewayClient { remote_cluster_id, .. }
            | Self::PublicKey { remote_cluster_id, .. } => remote_cluster_id,
        }
    }
}

/// A requested object.
enum Object {
    Configuration(Configuration),
    GatewayServer(GatewayServer),
    GatewayClient(GatewayClient),
    PublicKey(PublicKey),
}

impl Object {
    fn mark(&mut self, marks: &Marks) {
        match self {
            Self::Configuration(object) => marks.add_to(object),
            Self::GatewayServer(object) => marks.add_to(object),
            Self::GatewayClient(object) => marks.add_to(object),
            Self::PublicKey(object) => marks.add_to(object),
        }
    }

    fn text(&self, format: Format) -> Result<String, CommandError> {
        let text = match self {
            Self::Configuration(object) => write::text(object, format),
            Self::GatewayServer(object) => write::text(object, format),
            Self::GatewayClient(object) => write::text(object, format),
            Self::PublicKey(object) => write::text(object, format),
        };

        Ok(text?)
    }
}

/// How an object is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// Print it in this format instead of creating it.
    pub format: Option<Format>,
    /// Whether a differing object of the same name is overwritten.
    pub overwrites: bool,
    /// Whether the verb ends only when the object is in use.
    pub waits: bool,
}

/// Creates an object in the namespace of `context`; returns the text of one that is only printed.
///
/// The tenant namespace of the peering is created if needed.
///
/// # Errors
///
/// [`CommandError`]; if it is a usage error, nothing was written.
pub async fn create(
    context: &ClusterContext,
    wanted: &Create,
    options: CreateOptions,
    session: Session<'_>,
) -> Result<Option<String>, CommandError> {
    let other = wanted.remote_cluster_id();
    check_id(context.side, other)?;
    wanted.check_name(context.side)?;
    let tenant = tenant_namespace(other);
    let namespace = context.namespace.clone().unwrap_or_else(|| tenant.clone());
    let end = PeeringSide::alone(context, namespace.clone(), session).with(other);
    let mut object = forged(&end, wanted, options.format.is_none()).await?;
    if let Some(format) = options.format {
        object.mark(&end.marks);
        return object.text(format).map(Some);
    }
    if namespace != tenant && !end.has_namespace().await? {
        return Err(CommandError::NoNamespace { side: end.side, namespace, default: tenant });
    }
    put(&end, &object, options).await?;

    Ok(None)
}

/// The object; for a gateway also checks whether it can be created, if `is_checked`.
async fn forged(
    end: &PeeringSide<'_>,
    wanted: &Create,
    is_checked: bool,
) -> Result<Object, CommandError> {
    let namespace = Some(end.namespace.as_str());
    let typed = |mode, template| {
        let (type_, name, namespace): &(TemplateType, String, Option<String>) = template;
        TypedTemplate { mode, type_, name, namespace: namespace.as_deref() }
    };

    Ok(match wanted {
        Create::Configuration { name, remote_cluster_id, prefixes } => Object::Configuration(
            builders::configuration(name, namespace, remote_cluster_id, prefixes),
        ),
        Create::GatewayServer { name, remote_cluster_id, template, exposure, mtu } => {
            let typed = typed(Mode::Server, template);
            let (template, spec) = preflight::template(end, &typed, is_checked).await?;
            if let Some(spec) = spec {
                preflight::check_fields(end.side, &template.name, &spec, exposure)?;
                if !has_server(end, name, exposure).await? {
                    preflight::node_port(end, exposure).await?;
                }
            }
            Object::GatewayServer(builders::gateway_server(
                name,
                namespace,
                remote_cluster_id,
                &template,
                exposure,
                *mtu,
            ))
        }
        Create::GatewayClient { name, remote_cluster_id, template, endpoint, mtu } => {
            let typed = typed(Mode::Client, template);
            let (template, _) = preflight::template(end, &typed, is_checked).await?;
            let endpoint = endpoint.clone();
            Object::GatewayClient(builders::gateway_client(
                name,
                namespace,
                remote_cluster_id,
                &template,
                endpoint,
                *mtu,
            ))
        }
        Create::PublicKey { name, remote_cluster_id, key } => {
            Object::PublicKey(builders::public_key(name, namespace, remote_cluster_id, *key, None))
        }
    })
}

/// Whether the gateway has its node port already: then it is not free for another.
async fn has_server(
    end: &PeeringSide<'_>,
    name: &str,
    exposure: &Exposure,
) -> Result<bool, CommandError> {
    let service = super::connect::service(end, name).await?;

    Ok(service.is_some_and(|service| exposure.difference(&service).is_none()))
}

async fn put(
    end: &PeeringSide<'_>,
    object: &Object,
    options: CreateOptions,
) -> Result<(), CommandError> {
    match object {
        Object::Configuration(object) => {
            write(end, object, options).await?;
            if options.waits {
                until_configured(end, &object.name_any()).await?;
                end.done("Configuration is ready");
            }
        }
        Object::GatewayServer(object) => {
            write(end, object, options).await?;
            if options.waits {
                let server = until_ready(end, &object.name_any(), is_server_ready).await?;
                let requested = Requested::from(&server);
                until_rolled_out(end, &requested).await?;
                until_addressed(end, &requested).await?;
                end.done("GatewayServer is ready");
            }
        }
        Object::GatewayClient(object) => {
            write(end, object, options).await?;
            if options.waits {
                let client = until_ready(end, &object.name_any(), is_client_ready).await?;
                until_rolled_out(end, &Requested::from(&client)).await?;
                end.done("GatewayClient is ready");
            }
        }
        Object::PublicKey(object) => write(end, object, options).await?,
    }

    Ok(())
}

/// Writes `object`; an existing one is kept, or overwritten if the user permits that.
async fn write<K>(
    end: &PeeringSide<'_>,
    object: &K,
    options: CreateOptions,
) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let kind = K::kind(&());
    let done = match place_of(end, object).await? {
        Place::Free => "created",
        Place::Taken(differences) if differences.is_empty() => "unchanged",
        Place::Taken(_) if options.overwrites => "configured",
        Place::Taken(differences) => {
            let differences: Vec<_> = differences.iter().map(ToString::to_string).collect();
            return Err(CommandError::Exists {
                side: end.side,
                kind: kind.into_owned(),
                name: object.name_any(),
                namespace: end.namespace.clone(),
                differences: differences.join(", "),
            });
        }
    };
    if end.namespace == tenant_namespace(&end.other) {
        end.make_namespace().await?;
    }
    apply(end, object).await?;
    end.done(&format!("{kind} {done}"));

    Ok(())
}

/// Whether the child of a client was made.
fn is_client_ready(client: &GatewayClient) -> Progress<()> {
    match client.status.as_ref().and_then(|status| status.client_ref.as_ref()) {
        Some(_) => Progress::Done(()),
        None => Progress::NotYet("no status.clientRef in it".to_owned()),
    }
}

async fn until_ready<K>(
    end: &PeeringSide<'_>,
    name: &str,
    judge: impl Fn(&K) -> Progress<()>,
) -> Result<K, CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (kind, namespace) = (K::kind(&()), &end.namespace);
    let awaited = WaitTarget {
        what: format!("{kind} {name} to be ready"),
        look_at: format!("kubectl describe {} {name} -n {namespace}", kind.to_lowercase()),
    };

    until_of_gateway(end, name, (end.api::<K>(), named(name)), &awaited, |found| {
        let Some(found) = found.first() else {
            return Ok(Progress::NotYet(format!("no {kind} {name} in namespace {namespace}")));
        };
        Ok(match judge(found) {
            Progress::Done(()) => Progress::Done((*found).clone()),
            Progress::NotYet(found) => Progress::NotYet(found),
        })
    })
    .await
}

/// Deletes an object of the kind `K`, and waits until it is gone if `waits`.
///
/// # Errors
///
/// [`CommandError`], also if there is no such object.
pub async fn delete<K>(
    context: &ClusterContext,
    name: &str,
    waits: bool,
    session: Session<'_>,
) -> Result<(), CommandError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let namespace = context.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let end = PeeringSide::alone(context, namespace.clone(), session);
    if !write::delete::<K>(&end, name).await? {
        return Err(CommandError::NoObject {
            side: end.side,
            kind: K::kind(&()).into_owned(),
            name: name.to_owned(),
            namespace,
        });
    }
    if waits {
        until_gone::<K>(&end, named(name)).await?;
    }
    end.done(&format!("{} deleted", K::kind(&())));

    Ok(())
}
