//! Reads custom resources: every object in, the requested peers and the refusals out. Pure.
//!
//! # Invariants
//!
//! - The same objects in any order give the same peers in the same order.
//! - A wrong object or prefix is refused alone, with a remedy.
//! - A prefix without a local name yet is withheld: no packet goes there or comes from there.
//! - Of several gateways to one remote cluster, each has a peer of its own: a key that belongs to another gateway is no
//!   concern of this one. All of them share the `Configuration`.
//!
//! # Not here
//!
//! Contradictions between peers (see [`plan()`](crate::plan())).

mod configuration;
mod key;
mod local;
mod refusal;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};
use remap::{Cluster, Prefix};
use strait_api::labels::{REMOTE_CLUSTER_ID, gateway_index};
use strait_api::public_key::KEY_BYTES;
use strait_api::{Configuration, PublicKey};

use crate::endpoint::Endpoint;
use crate::origin::{Origin, Origins};
use crate::peer::Peer;

use configuration::Pair;

pub use configuration::{LISTS, Name, ParsedConfiguration, lists, parse};
pub use local::{masquerade_addresses, own_destinations};
pub use refusal::{Problem, Refusal};
pub(crate) use selection::{configurations_of, keys_of, reports_on};

/// The gateway that objects are read for: which of them concern it, and what no object defines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those of this remote cluster alone; `None`: of all remote clusters.
    pub remote_cluster_id: Option<String>,
    /// The `GatewayServer` or `GatewayClient` of this gateway, which owns the key of its peer; `None`: keys with any owner
    /// concern it.
    pub gateway: Option<ObjectName>,
    /// The address of the other gateway inside the tunnel, if there is only one peer.
    pub peer_address: Option<IpAddr>,
    /// Where remapping happens.
    pub remapping: Remapping,
    /// The public key of this gateway, which no peer can have.
    pub own_public_key: Option<[u8; KEY_BYTES]>,
    /// The address of this gateway inside the tunnel.
    pub own_address: Option<IpAddr>,
    /// Possible endpoints of the peer in order of preference, if there is only one peer.
    pub endpoints: Vec<Endpoint>,
    /// Where these endpoints come from.
    pub endpoint_origin: Origin,
}

/// Where remapping happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remapping {
    /// In this gateway, by the `Configuration`s.
    #[default]
    Configurations,
    /// In this gateway, by the `FirewallConfiguration`s and `RouteConfiguration`s (see [`crate::lowering`]).
    Rules,
    /// Outside of this process, on both sides of the device: any address may pass to and from the peer.
    External,
}

/// Identifies the object that something was read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// The kind, as the API spells it.
    pub kind: String,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl ObjectName {
    /// The name of `object`.
    #[must_use]
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The result of reading all objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requested {
    /// The peers, in the order of their names.
    pub peers: Vec<Peer>,
    /// The prefixes of this cluster, from the `Configuration`s of the peers.
    pub cluster: Cluster,
    /// The result of [`own_destinations`].
    pub own_destinations: Vec<Prefix>,
    /// The refusals, in the order of kinds and names.
    pub refused: Vec<Refusal>,
}

/// An object from the API server, or why it could not be read.
pub type Listed<K> = Arc<DeserializeGuard<K>>;

/// All objects of one namespace that may concern a gateway.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// The keys of remote gateways.
    pub public_keys: Vec<Listed<PublicKey>>,
    /// The `Configuration`s of remote clusters; empty where none is watched.
    pub configurations: Vec<Listed<Configuration>>,
}

/// Reads what all objects request.
#[must_use]
pub fn read(scope: &Scope, objects: &Objects) -> Requested {
    let mut refused = Vec::new();
    let keys = keys(scope, sound(keys_of(scope, objects), &mut refused), &mut refused);
    let configurations = sound(configurations_of(scope, objects), &mut refused);
    let configurations = configurations.into_iter().map(|object| (object, ())).collect();
    let configurations = one_a_cluster(configurations, |_| false, &mut refused);

    // Read without a key too, so that its problems are reported before the key arrives.
    let mut cluster = Cluster::default();
    let mut own_destinations = Vec::new();
    let mut prefixes = BTreeMap::new();
    for (id, (configuration, ())) in configurations {
        let parsed = parse(configuration);
        let index = keys.get(&id).map(|key| key.index);
        let of_own = local::add(&parsed, index.unwrap_or_default(), &mut cluster);
        // Without a key the number of this gateway is not known.
        own_destinations
            .extend(index.into_iter().flat_map(|index| local::own_destinations(&parsed, index)));
        let problems = parsed.problems.into_iter().chain(of_own);
        refused.extend(problems.map(|problem| Refusal::of(configuration, problem)));
        prefixes.insert(id, (parsed.pairs, ObjectName::of(configuration)));
    }

    let peers = keys.into_iter().map(|(id, key)| {
        let prefixes = prefixes.remove(&id);

        peer(scope, id, key, prefixes)
    });
    let peers = peers.collect();
    refused.sort_by(|a, b| a.object().cmp(&b.object()));

    Requested { peers, cluster, own_destinations, refused }
}

/// The objects that can be read.
fn sound<'a, K>(
    listed: impl Iterator<Item = &'a Listed<K>>,
    refused: &mut Vec<Refusal>,
) -> Vec<&'a K>
where
    K: Resource<DynamicType = ()> + 'a,
{
    let mut objects = Vec::new();
    for listed in listed {
        match &listed.0 {
            Ok(object) => objects.push(object),
            Err(invalid) => {
                let problem = Problem::Malformed { cause: invalid.error.clone() };
                refused.push(Refusal::of(&**listed, problem));
            }
        }
    }

    objects
}

/// The key of a remote gateway.
struct Key<'a> {
    object: &'a PublicKey,
    key: [u8; KEY_BYTES],
    /// The number of this gateway among those to the remote cluster.
    index: u8,
}

/// The key of each remote cluster.
fn keys<'a>(
    scope: &Scope,
    objects: Vec<&'a PublicKey>,
    refused: &mut Vec<Refusal>,
) -> BTreeMap<String, Key<'a>> {
    let mut valid = Vec::with_capacity(objects.len());
    for object in objects {
        match (key::read(object), gateway_index(object)) {
            // An invalid key does not replace a valid one.
            (Err(problem), _) => refused.push(Refusal::of(object, problem)),
            (Ok(_), Err(found)) => {
                let found = found.to_owned();
                refused.push(Refusal::of(object, Problem::GatewayIndex { found }));
            }
            (Ok(key), Ok(_)) if scope.own_public_key == Some(key) => {
                refused.push(Refusal::of(object, Problem::OwnKey));
            }
            (Ok(key), Ok(index)) => valid.push((object, (key, index))),
        }
    }

    let mut keys = BTreeMap::new();
    let mut owners = BTreeMap::<[u8; KEY_BYTES], String>::new();
    let is_owned = |object: &PublicKey| selection::is_owned(scope, object);
    for (cluster, (object, (key, index))) in one_a_cluster(valid, is_owned, refused) {
        match owners.entry(key) {
            Entry::Occupied(owner) => {
                let owner = owner.get().clone();
                refused.push(Refusal::of(object, Problem::SharedKey { owner }));
            }
            Entry::Vacant(place) => {
                place.insert(cluster.clone());
                keys.insert(cluster, Key { object, key, index });
            }
        }
    }

    keys
}

/// The object of each remote cluster and what was read from it. Of several it is the youngest of those that `is_owned`
/// prefers, or the youngest of all.
fn one_a_cluster<'a, K, T>(
    mut objects: Vec<(&'a K, T)>,
    is_owned: impl Fn(&K) -> bool,
    refused: &mut Vec<Refusal>,
) -> BTreeMap<String, (&'a K, T)>
where
    K: Resource<DynamicType = ()>,
{
    objects.sort_by_key(|(object, _)| (is_owned(object), age(*object)));

    let mut chosen = BTreeMap::<String, (&K, T)>::new();
    for (object, content) in objects {
        let Some(cluster) = cluster_id(object) else {
            refused.push(Refusal::of(object, Problem::NoCluster));
            continue;
        };
        if let Some((older, _)) = chosen.insert(cluster.to_owned(), (object, content)) {
            let by = object.name_any();
            let problem = match is_owned(object) && !is_owned(older) {
                true => Problem::Unowned { by },
                false => Problem::Superseded { by },
            };
            refused.push(Refusal::of(older, problem));
        }
    }

    chosen
}

/// The one of `objects` that counts for the remote cluster `id`: the youngest, if there are several.
pub fn of_cluster<'a, K>(objects: impl IntoIterator<Item = &'a K>, id: &str) -> Option<&'a K>
where
    K: Resource + 'a,
{
    let of_it = objects.into_iter().filter(|object| cluster_id(*object) == Some(id));

    of_it.max_by_key(|object| age(*object))
}

/// Objects of the same second are ordered by name, so that the order of arrival has no effect.
fn age<K: Resource>(object: &K) -> (Option<Time>, String) {
    (object.creation_timestamp(), object.name_any())
}

/// The id of the remote cluster that `object` belongs to.
#[must_use]
pub fn cluster_id<K: Resource>(object: &K) -> Option<&str> {
    object.labels().get(REMOTE_CLUSTER_ID).map(String::as_str).filter(|id| !id.is_empty())
}

/// The peer of a remote cluster, with the prefixes of its `Configuration`, if there is one. A prefix without a local name
/// yet is withheld.
fn peer(
    scope: &Scope,
    name: String,
    Key { object, key, .. }: Key<'_>,
    prefixes: Option<(Vec<Pair>, ObjectName)>,
) -> Peer {
    let mut allowed_ips: Vec<_> = match scope.remapping {
        Remapping::External => everything().collect(),
        Remapping::Configurations | Remapping::Rules => {
            scope.peer_address.map(Prefix::of_host).into_iter().collect()
        }
    };
    let mut remaps = Vec::new();
    let origin = Origin::from(ObjectName::of(object));
    let mut origins = Origins::default().with("name", origin.clone()).with("public_key", origin);
    if let Some((pairs, object)) = prefixes {
        for Pair { remote, name, .. } in pairs {
            match name {
                Name::None => continue,
                Name::Same => {}
                Name::Remapped(rule) => remaps.push(rule),
            }
            allowed_ips.push(remote);
        }
        let object = Origin::from(object);
        origins = origins.with("allowed_ips", object.clone()).with("remap", object);
    }

    Peer {
        name,
        keys: key,
        endpoints: Vec::new(),
        persistent_keepalive: None,
        allowed_ips: allowed_ips.into(),
        remaps,
        origins,
    }
}

/// Of both IP versions.
fn everything() -> impl Iterator<Item = Prefix> {
    ["0.0.0.0/0", "::/0"].into_iter().filter_map(|text| text.parse().ok())
}
