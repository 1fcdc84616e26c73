//! Predicts `network connect`.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::api::ListParams;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde_json::Value;
use strait_api::public_key::KEY_BYTES;
use strait_api::{GatewayClient, GatewayServer, PublicKey};
use strait_ipam::Pools;

use super::super::connect::{
    Connect, GatewayPair, Surplus, client_of, configuration_name, endpoint, numbered, read,
    server_of, to_object,
};
use super::super::context::{PeeringSide, PeeringSides};
use super::super::report::WarningsOnly;
use super::super::{CommandError, FormatError, Pair, Session, builders, keys};
use super::Plan;
use super::change::{Action, Change, Field};
use super::copy::ClusterCopy;

/// The effects of [`super::super::connect()`] on both clusters, without the objects that the operators make for the
/// gateways.
///
/// # Errors
///
/// [`CommandError`], as with the verb itself; and if a part cannot be read.
pub async fn plan_connect(
    pair: &Pair,
    wanted: &Connect,
    pools: Option<&Pools>,
    session: Session<'_>,
) -> Result<Plan, CommandError> {
    let quiet = WarningsOnly(session.report);
    let session = Session { report: &quiet, ..session };
    let ends = PeeringSides::connect_both(pair, session).await?;
    let PeeringSides { local, remote } = &ends;
    let found = read(&ends, wanted).await?;
    let mut of_local = ClusterCopy::read(local, pools).await?;
    let mut of_remote = ClusterCopy::read(remote, pools).await?;
    for (end, copied, prefixes) in
        [(local, &mut of_local, &found.remote), (remote, &mut of_remote, &found.local)]
    {
        if !end.has_namespace().await? {
            copied.others.push(namespace(end));
        }
        let name = configuration_name(end).await?;
        let configuration =
            builders::configuration(&name, Some(&end.namespace), &end.other, prefixes);
        copied.put(end, &value(&configuration)?)?;
    }

    if found.is_reversed {
        let note = "the clusters are joined already, with the server here: no gateway would change";
        of_local.notes.push(note.to_owned());
    } else {
        for pair in &found.pairs {
            let server = server(remote, pair)?;
            let has_new_server = is_new(server.change.as_ref());
            of_remote.others.extend(server.change);
            let client = client(local, wanted, pair, server.known.as_ref())?;
            let has_new_client = is_new(client.as_ref());
            of_local.others.extend(client);
            if !wanted.hides_keys {
                let server = pair.former_server.as_ref().filter(|_| !has_new_server);
                let key = key_of(remote, server).await?;
                add_key(local, &mut of_local, pair.index, key).await?;
                let client = pair.former_client.as_ref().filter(|_| !has_new_client);
                let key = key_of(local, client).await?;
                add_key(remote, &mut of_remote, pair.index, key).await?;
            }
        }
        let Surplus { servers, clients } = &found.surplus;
        of_local.others.extend(clients.iter().map(|name| deletion(local, "GatewayClient", name)));
        of_remote.others.extend(servers.iter().map(|name| deletion(remote, "GatewayServer", name)));
    }

    let clusters = vec![
        of_local.compare(local, remote.other.clone()).await?,
        of_remote.compare(remote, local.other.clone()).await?,
    ];
    Ok(Plan { clusters })
}

/// The namespace of the peering, which does not exist.
fn namespace(end: &PeeringSide<'_>) -> Change {
    Change {
        action: Action::Create,
        kind: "Namespace".to_owned(),
        namespace: None,
        name: end.namespace.clone(),
        fields: Vec::new(),
    }
}

/// The deletion of a gateway that is not wanted any more.
fn deletion(end: &PeeringSide<'_>, kind: &str, name: &str) -> Change {
    Change {
        action: Action::Delete,
        kind: kind.to_owned(),
        namespace: Some(end.namespace.clone()),
        name: name.to_owned(),
        fields: Vec::new(),
    }
}

/// The planned gateway server.
struct Server {
    change: Option<Change>,
    /// The one whose address clients know; `None` if that is yet to come.
    known: Option<GatewayServer>,
}

fn server(end: &PeeringSide<'_>, pair: &GatewayPair) -> Result<Server, CommandError> {
    let former = pair.former_server.as_ref();
    let is_other = pair.replaced.is_some();
    let forged = server_of(end, pair);
    let mut change = changed(former, &forged, is_other)?;
    if let Some(change) = change.as_mut().filter(|change| is_new(Some(change))) {
        later(change, "status.endpoint.addresses");
        later(change, "status.endpoint.port");
    }
    let known = former.filter(|_| !is_other).cloned();

    Ok(Server { change, known })
}

/// The change of the gateway client, which connects to the server if that is `known`.
fn client(
    end: &PeeringSide<'_>,
    wanted: &Connect,
    pair: &GatewayPair,
    known: Option<&GatewayServer>,
) -> Result<Option<Change>, CommandError> {
    let status = known.and_then(|server| server.status.clone());
    let at = pair.kept_endpoint.clone().or_else(|| status?.endpoint);
    let is_known = at.as_ref().is_some_and(|at| !at.addresses.is_empty());
    let endpoint = endpoint(wanted, pair.index, at.unwrap_or_default());
    let forged = client_of(end, pair, endpoint);
    let change = changed(pair.former_client.as_ref(), &forged, false)?;
    if is_known {
        return Ok(change);
    }

    let mut change = change.unwrap_or_else(|| Change {
        action: Action::Update,
        kind: "GatewayClient".to_owned(),
        namespace: Some(end.namespace.clone()),
        name: pair.client_name.clone(),
        fields: Vec::new(),
    });
    if wanted.client_address.is_none() {
        later(&mut change, "spec.endpoint.addresses");
    }
    if wanted.client_port.is_none() {
        later(&mut change, "spec.endpoint.port");
    }
    Ok(Some(change).filter(|change| is_new(Some(change)) || !change.fields.is_empty()))
}

/// The public key of a gateway.
enum Key {
    /// This one.
    Known([u8; KEY_BYTES]),
    /// It has none yet, or is replaced.
    Later,
    /// The user may not read Secrets.
    Hidden,
}

/// The key of the `gateway` of `end`, if that exists and stays.
async fn key_of<K: Gateway>(
    end: &PeeringSide<'_>,
    gateway: Option<&K>,
) -> Result<Key, CommandError> {
    let Some(gateway) = gateway else { return Ok(Key::Later) };
    let api = end.api::<Secret>();
    let parameters = ListParams::default().labels(&keys::selector(&end.label_selector()));
    let doing = format!("listing secrets in namespace {}", end.namespace);
    let found =
        end.ask(&doing, async || api.list(&parameters).await.map(|list| list.items)).await?;
    let Some(found) = found else { return Ok(Key::Hidden) };
    let found: Vec<_> = found.iter().collect();
    let (name, uid) = (gateway.name_any(), gateway.meta().uid.as_ref());
    let secret = keys::of_gateway(end.side, &name, uid, &found, gateway.secret_ref().as_ref())?;

    Ok(match secret {
        Some(secret) => Key::Known(keys::public(end.side, secret)?),
        None => Key::Later,
    })
}

/// Gives the gateway of `end` the `key` of the other one.
async fn add_key(
    end: &PeeringSide<'_>,
    copied: &mut ClusterCopy,
    index: u8,
    key: Key,
) -> Result<(), CommandError> {
    let name = numbered(&end.other, index);
    let existing = end.list::<PublicKey>().await?;
    let former = existing.iter().find(|key| key.name_any() == name);
    let change = match key {
        Key::Known(key) => {
            let namespace = Some(end.namespace.as_str());
            let forged = builders::public_key(&name, namespace, &end.other, key, None);
            changed(former, &builders::with_index(forged, index), false)?
        }
        Key::Hidden if former.is_some() => {
            copied.notes.push(format!(
                "the Secrets of cluster {} may not be listed: it was not checked whether its gateway has the key of PublicKey {}/{}, which would be replaced otherwise",
                end.other, end.namespace, name
            ));
            None
        }
        Key::Later | Key::Hidden => {
            let mut change = Change {
                action: if former.is_some() { Action::Update } else { Action::Create },
                kind: "PublicKey".to_owned(),
                namespace: Some(end.namespace.clone()),
                name,
                fields: Vec::new(),
            };
            later(&mut change, "spec.publicKey");
            Some(change)
        }
    };
    copied.others.extend(change);

    Ok(())
}

/// One end of a peering.
trait Gateway: Resource {
    /// The reference to the Secret with its keys, in its status, else in its spec.
    fn secret_ref(&self) -> Option<ObjectReference>;
}

impl Gateway for GatewayServer {
    fn secret_ref(&self) -> Option<ObjectReference> {
        let named = self.spec.secret_ref.as_ref().map(to_object);

        self.status.as_ref().and_then(|status| status.secret_ref.clone()).or(named)
    }
}

impl Gateway for GatewayClient {
    fn secret_ref(&self) -> Option<ObjectReference> {
        let named = self.spec.secret_ref.as_ref().map(to_object);

        self.status.as_ref().and_then(|status| status.secret_ref.clone()).or(named)
    }
}

/// The change from `before` to `after`; to another object if it `is_other`.
fn changed<K: Serialize>(
    former: Option<&K>,
    forged: &K,
    is_other: bool,
) -> Result<Option<Change>, CommandError> {
    let before = former.map(value).transpose()?;
    let forged = value(forged)?;
    let after = match &before {
        Some(before) if !is_other => {
            let mut after = before.clone();
            json_patch::merge(&mut after, &forged);
            after
        }
        Some(_) | None => forged,
    };

    Ok(Change::between(before.as_ref(), Some(&after)))
}

fn is_new(change: Option<&Change>) -> bool {
    change.is_some_and(|change| matches!(change.action, Action::Create | Action::Replace))
}

/// Records that `path` will have a value that is not known yet.
fn later(change: &mut Change, path: &str) {
    let element = format!("{path}[");
    let is_of = |field: &Field| field.path == path || field.path.starts_with(&element);
    let before = change.fields.iter().find(|field| is_of(field)).and_then(|it| it.before.clone());
    change.fields.retain(|field| !is_of(field));
    change.fields.push(Field { path: path.to_owned(), before, after: None, known_later: true });
    change.fields.sort_by(|a, b| a.path.cmp(&b.path));
}

fn value(object: &impl Serialize) -> Result<Value, CommandError> {
    Ok(serde_json::to_value(object).map_err(FormatError::Json)?)
}
