//! Which objects concern a gateway, and on which of them it reports.
//!
//! A remote cluster may have several gateways here. Each has a `PublicKey` of its own, which its `GatewayServer` or
//! `GatewayClient` owns; all of them share the `Configuration`.

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

/// Whether this gateway writes the condition of the `Configuration` of a remote cluster. It has one place for all gateways to
/// that cluster: the first one writes it.
pub(crate) fn reports_on(scope: &Scope, objects: &Objects, configuration: &impl Resource) -> bool {
    let id = cluster_id(configuration);
    let keys = || objects.public_keys.iter().filter(|listed| cluster_id(&***listed) == id);
    let own = keys().filter(|listed| !is_of_another(scope, &***listed));
    // An invalid key has a number as well.
    let own = own.max_by_key(|listed| (is_owned(scope, &***listed), age(&***listed)));

    match own {
        Some(own) => gateway_index(&**own) == Ok(0),
        // Without a key of its own this is the first gateway or not. Only in the former case are there no others.
        None => keys().next().is_none(),
    }
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
