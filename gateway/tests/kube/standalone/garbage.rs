//! What every cluster does with objects that have lost their owners.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use strait_api::{
    Configuration, Connection, GatewayClient, GatewayServer, Network, PublicKey, WgGatewayClient,
    WgGatewayServer,
};

/// Deletes what has lost all of its owners, as every cluster does.
pub(super) async fn collect_garbage(client: &Client) {
    let mut owned = Vec::new();
    macro_rules! see {
        ($($kind:ty),*) => {$(
            owned.extend(owned_of::<$kind>(client).await);
        )*};
    }
    see!(WgGatewayServer, WgGatewayClient, Deployment, Service, ServiceAccount, Pod);
    see!(RoleBinding, Secret, PublicKey, Connection, Network);
    // Only now: whose owner is missing here has lost it, as owners come first.
    let mut alive = Vec::new();
    macro_rules! ask {
        ($($kind:ty),*) => {$(
            alive.extend(uids::<$kind>(client).await);
        )*};
    }
    ask!(GatewayServer, GatewayClient, WgGatewayServer, WgGatewayClient, Deployment, Configuration);

    for Owned { api, name, uid, owners } in owned {
        if !owners.iter().any(|owner| alive.contains(owner)) {
            let only_it = Preconditions { uid, resource_version: None };
            let now = DeleteParams::default().grace_period(0).preconditions(only_it);
            let _ = api.delete(&name, &now).await;
        }
    }
}

/// An object that goes with its owners.
struct Owned {
    api: Api<DynamicObject>,
    name: String,
    uid: Option<String>,
    owners: Vec<String>,
}

async fn owned_of<K>(client: &Client) -> Vec<Owned>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let owned = all.items.iter().filter(|object| !object.owner_references().is_empty());
    let resource = ApiResource::erase::<K>(&());

    owned
        .map(|object| {
            let namespace = object.namespace().unwrap();
            Owned {
                api: Api::namespaced_with(client.clone(), &namespace, &resource),
                name: object.name_any(),
                uid: object.uid(),
                owners: object.owner_references().iter().map(|owner| owner.uid.clone()).collect(),
            }
        })
        .collect()
}

pub(super) async fn uids<K>(client: &Client) -> Vec<String>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();

    all.items.iter().filter_map(ResourceExt::uid).collect()
}
