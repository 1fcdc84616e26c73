//! Which objects concern a gateway, and on which of them it reports.
//!
//! A remote cluster may have several gateways here. Each has a `PublicKey` of its own, which its `GatewayServer` or
//! `GatewayClient` owns; all of them share the `Configuration`.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};
use strait_api::identity::is_of_another_gateway;
use strait_api::labels::gateway_index;
use strait_api::{Configuration, PublicKey};

use super::{Listed, ObjectName, Objects, Scope, age, cluster_id};

/// The keys that concern this gateway: those of its remote cluster that belong to no other gateway.
pub(crate) fn keys_of<'a>(
    scope: &'a Scope,
    objects: &'a Objects,
) -> impl Iterator<Item = &'a Listed<PublicKey>> {
    let keys = objects.public_keys.iter().filter(|listed| concerns(scope, &***listed));

    keys.filter(|listed| !is_of_another(scope, &***listed))
}

/// The `Configuration`s that concern this gateway.
pub(crate) fn configurations_of<'a>(
    scope: &'a Scope,
    objects: &'a Objects,
) -> impl Iterator<Item = &'a Listed<Configuration>> {
    objects.configurations.iter().filter(|listed| concerns(scope, &***listed))
}

/// The remote clusters whose `Configuration` gets its condition from another gateway. It has one condition for all gateways to
/// the cluster: the first one writes it.
pub(crate) fn reported_by_another<'a>(scope: &Scope, objects: &'a Objects) -> BTreeSet<&'a str> {
    // The youngest of the keys that concern this gateway; an invalid key has a number as well.
    let mut own_keys = BTreeMap::<_, Option<&DeserializeGuard<PublicKey>>>::new();
    for key in objects.public_keys.iter().map(AsRef::as_ref) {
        let Some(id) = cluster_id(key) else { continue };
        let own_key = own_keys.entry(id).or_default();
        let rank = |key: &DeserializeGuard<PublicKey>| (is_owned(scope, key), age(key));
        if !is_of_another(scope, key) && own_key.is_none_or(|known| rank(known) < rank(key)) {
            *own_key = Some(key);
        }
    }
    // Without a key of its own this gateway may be any of them, if there are others.
    let is_of_first = |key: &Option<&DeserializeGuard<PublicKey>>| {
        key.is_some_and(|key| gateway_index(key) == Ok(0))
    };

    own_keys.into_iter().filter(|(_, key)| !is_of_first(key)).map(|(id, _)| id).collect()
}

/// Whether the gateway of `scope` owns `key`.
pub(super) fn is_owned(scope: &Scope, key: &impl Resource) -> bool {
    let Some(ObjectName { kind, name, .. }) = &scope.gateway else { return false };

    key.owner_references().iter().any(|owner| owner.kind == *kind && owner.name == *name)
}

/// Whether `key` belongs to another gateway than that of `scope`.
fn is_of_another(scope: &Scope, key: &impl Resource) -> bool {
    let Some(ObjectName { kind, name, .. }) = &scope.gateway else { return false };

    is_of_another_gateway(key.owner_references(), kind, name)
}

/// Whether an object is of a remote cluster of this gateway.
fn concerns(scope: &Scope, object: &impl Resource) -> bool {
    // Without a label it concerns every gateway: otherwise none would report it.
    scope.remote_cluster_id.as_deref().is_none_or(|id| cluster_id(object) == Some(id))
}
