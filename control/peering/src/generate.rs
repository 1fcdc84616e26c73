//! `generate`: prints objects of this cluster to be applied in the other one.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::api::ListParams;
use strait_api::identity::Mode;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::public_key::KEY_BYTES;
use strait_api::{GatewayClient, GatewayServer};

use super::connect::{index_of, numbered, to_object};

use super::context::{PeeringSide, own_id};
use super::{ClusterContext, CommandError, Format, Session, builders, keys, write};

/// The object to print.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the documentation of a variant names its fields")]
pub enum Generate {
    /// The prefixes.
    Configuration,
    /// The key of the gateway `name` that is the end `mode`.
    PublicKey { mode: Mode, name: String },
}

/// Prints the object for the other cluster; writes nothing to this one.
///
/// The object has no namespace: the user who applies it chooses one.
///
/// # Errors
///
/// [`CommandError`] if a part is not known yet.
pub async fn generate(
    context: &ClusterContext,
    wanted: &Generate,
    format: Format,
    session: Session<'_>,
) -> Result<String, CommandError> {
    let id = own_id(context, session).await?;
    let namespace = context.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let end = PeeringSide::alone(context, namespace, session);

    let text = match wanted {
        Generate::Configuration => {
            let prefixes = end.prefixes().await?;
            write::text(&builders::configuration(&id, None, &id, &prefixes), format)
        }
        Generate::PublicKey { mode, name } => {
            let (key, index) = key(end, *mode, name).await?;
            let object = builders::public_key(&numbered(&id, index), None, &id, key, None);
            write::text(&builders::with_index(object, index), format)
        }
    };

    Ok(text?)
}

/// The public key of a gateway of this cluster, and its number among those of the peering.
async fn key(
    end: PeeringSide<'_>,
    mode: Mode,
    name: &str,
) -> Result<([u8; KEY_BYTES], u8), CommandError> {
    let Gateway { other, uid, index, reference } = gateway(&end, mode, name).await?;
    let end = end.with(&other);
    let api = end.api::<Secret>();
    let parameters = ListParams::default().labels(&keys::selector(&end.label_selector()));
    let doing = format!("listing secrets in namespace {}", end.namespace);
    let secrets = end.call(&doing, async || api.list(&parameters).await).await?.items;
    let secrets: Vec<_> = secrets.iter().collect();

    let secret = keys::of_gateway(end.side, name, uid.as_ref(), &secrets, reference.as_ref())?;
    match secret {
        Some(secret) => Ok((keys::public(end.side, secret)?, index)),
        None => Err(CommandError::NoSecret {
            side: end.side,
            kind: mode.kind(),
            name: name.to_owned(),
            namespace: end.namespace,
        }),
    }
}

/// A gateway of this cluster.
struct Gateway {
    /// The cluster that it is for.
    other: String,
    uid: Option<String>,
    /// Its number among those of the peering.
    index: u8,
    /// The reference to its Secret in its status, else in its spec.
    reference: Option<ObjectReference>,
}

async fn gateway(end: &PeeringSide<'_>, mode: Mode, name: &str) -> Result<Gateway, CommandError> {
    let doing = format!("reading {} {name} in namespace {}", mode.kind(), end.namespace);
    let found = match mode {
        Mode::Server => {
            let api = end.api::<GatewayServer>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            found.map(|server| {
                let index = index_of(end.side, &server);
                let named = server.spec.secret_ref.as_ref().map(to_object);
                let reference = server.status.and_then(|status| status.secret_ref).or(named);
                (server.metadata, index, reference)
            })
        }
        Mode::Client => {
            let api = end.api::<GatewayClient>();
            let found = end.call(&doing, async || api.get_opt(name).await).await?;
            found.map(|client| {
                let index = index_of(end.side, &client);
                let named = client.spec.secret_ref.as_ref().map(to_object);
                let reference = client.status.and_then(|status| status.secret_ref).or(named);
                (client.metadata, index, reference)
            })
        }
    };
    let Some((metadata, index, reference)) = found else {
        return Err(CommandError::NoObject {
            side: end.side,
            kind: mode.kind().to_owned(),
            name: name.to_owned(),
            namespace: end.namespace.clone(),
        });
    };
    let other = metadata.labels.and_then(|mut labels| labels.remove(REMOTE_CLUSTER_ID));

    Ok(Gateway { other: other.unwrap_or_default(), uid: metadata.uid, index: index?, reference })
}
