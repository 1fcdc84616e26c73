//! A cluster with IPAM.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, Client, Resource, ResourceExt as _};
use remap::Prefix;
use serde::de::DeserializeOwned;
use serde_json::json;
use strait_api::{Configuration, Network};
use strait_control_lab::{ApiServer, create};
use strait_ipam::{
    CONFIGURED_CONDITION, Installation, JOURNAL, Journal, Settings, installed_networks, run,
};
use tokio::task::JoinHandle;

/// The namespace of the installation.
pub(crate) const INSTALLED: &str = "liqo";

/// The namespace of one peer.
pub(crate) const TENANT: &str = "liqo-tenant-milan";

/// A cluster with the API and its namespaces.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
}

/// IPAM, which runs until dropped.
pub(crate) struct Operator(JoinHandle<Infallible>);

impl Drop for Operator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl World {
    /// `None` if no API server can run here.
    pub(crate) async fn new() -> Option<Self> {
        let server = ApiServer::start_with_api().await?;
        let admin = server.client().await;
        for name in [INSTALLED, TENANT] {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            create(Api::all(admin.clone()), &namespace).await;
        }

        Some(Self { server, admin })
    }

    /// A client with the rights of an operator.
    pub(crate) async fn operator_client(&self) -> Client {
        self.server.operator().await
    }

    pub(crate) async fn operator(&self) -> Operator {
        operate(&self.operator_client().await)
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.admin.clone(), namespace)
    }

    pub(crate) async fn install(&self, pods: &str, services: &str) {
        let installation = Installation {
            namespace: INSTALLED.to_owned(),
            pod_cidrs: vec![prefix(pods)],
            service_cidr: prefix(services),
            external_cidr: None,
            internal_cidr: None,
            reserved: Vec::new(),
        };
        for network in installed_networks(&installation) {
            create(self.api(INSTALLED), &network).await;
        }
    }

    pub(crate) async fn peer(&self, name: &str, pod: &[&str], external: &[&str]) {
        create(self.api(TENANT), &configuration(name, pod, external)).await;
    }

    /// The local prefixes of the remote cluster, once they are settled.
    pub(crate) async fn names(&self, name: &str) -> [Vec<String>; 2] {
        let api = self.api::<Configuration>(TENANT);
        until(async || is_configured(&api.get(name).await.expect("it"))).await;

        names(&api.get(name).await.expect("it"))
    }

    pub(crate) async fn network(&self, namespace: &str, name: &str) -> Option<String> {
        let network = self.api::<Network>(namespace).get_opt(name).await.expect("an answer");

        network.and_then(|network| network.status).and_then(|status| status.cidr)
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) async fn delete<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api = self.api::<K>(namespace);
        match api.delete(name, &DeleteParams::default()).await {
            // The operator collects orphans too.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            outcome => {
                let _ = outcome.expect("an answer");
            }
        }
        until(async || api.get_opt(name).await.expect("an answer").is_none()).await;
    }

    /// Deletes what a garbage collector would delete after `configuration`.
    pub(crate) async fn delete_peer(&self, configuration: &str) {
        let uid = self.api::<Configuration>(TENANT).get(configuration).await.expect("it").uid();
        self.delete::<Configuration>(TENANT, configuration).await;
        for network in self.api::<Network>(TENANT).list(&ListParams::default()).await.expect("all")
        {
            let owners = network.owner_references();
            if owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref()) {
                self.delete::<Network>(TENANT, &network.name_any()).await;
            }
        }
    }

    pub(crate) async fn journal(&self) -> Option<Journal> {
        let journal = self.api::<ConfigMap>(INSTALLED).get_opt(JOURNAL).await.expect("an answer");

        Journal::read(journal?.data?.get("allocations")?).ok()
    }

    /// Waits until the journal has that many entries.
    pub(crate) async fn entries(&self, count: usize) {
        until(async || self.journal().await.is_some_and(|journal| journal.len() == count)).await;
    }

    /// Reason and note of all Events about one object.
    pub(crate) async fn events(&self, kind: &str, name: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::all(self.admin.clone());
        let events = events.list(&ListParams::default()).await.expect("Events");
        let about = events.into_iter().filter(|event| {
            let object = event.regarding.clone().unwrap_or_default();
            (object.kind.as_deref(), object.name.as_deref()) == (Some(kind), Some(name))
        });

        about
            .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect()
    }
}

pub(crate) fn operate(client: &Client) -> Operator {
    Operator(tokio::spawn(run(client.clone(), Settings::default())))
}

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

pub(crate) fn configuration(name: &str, pod: &[&str], external: &[&str]) -> Configuration {
    let object = json!({
        "apiVersion": "networking.liqo.io/v1beta1",
        "kind": "Configuration",
        "metadata": {"name": name, "labels": {"liqo.io/remote-cluster-id": name}},
        "spec": {"remote": {"cidr": {"pod": pod, "external": external}}},
    });

    serde_json::from_value(object).expect("a Configuration")
}

/// Status, reason, message and whether it is of this generation.
pub(crate) fn condition(configuration: &Configuration) -> Option<(String, String, String, bool)> {
    let conditions = &configuration.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|other| other.type_ == CONFIGURED_CONDITION)?.clone();
    let is_current = condition.observed_generation == configuration.metadata.generation;

    Some((condition.status, condition.reason, condition.message, is_current))
}

/// As older and as newer readers see it.
pub(crate) fn is_configured(configuration: &Configuration) -> bool {
    let label = configuration.labels().get("configuration.liqo.io/configured");
    let expected = ["True", "NetworkCIDRsConfigured", "All network CIDRs are configured"];

    label.is_some_and(|value| value == "true")
        && condition(configuration).is_some_and(|(status, reason, message, is_current)| {
            [&*status, &*reason, &*message] == expected && is_current
        })
}

pub(crate) fn names(configuration: &Configuration) -> [Vec<String>; 2] {
    let remote = configuration.status.clone().and_then(|status| status.remote);
    let cidr = remote.and_then(|remote| remote.cidr).unwrap_or_default();

    [cidr.pod.into(), cidr.external.into()]
}

pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(60), holds).await.expect("it holds in time");
}

/// Checks that no two prefixes in statuses overlap.
pub(crate) fn assert_no_two_owners(networks: &[Network]) {
    let allocated = networks.iter().filter_map(|network| {
        let cidr = network.status.as_ref()?.cidr.as_deref()?;
        let is_shared = network.labels().contains_key("ipam.liqo.io/network-shared");
        Some((network.name_any(), prefix(cidr), is_shared))
    });
    let allocated: Vec<_> = allocated.collect();
    for (place, (name, one, is_shared)) in allocated.iter().enumerate() {
        for (other_name, other, is_other_shared) in &allocated[place + 1..] {
            let may_overlap = *is_shared && *is_other_shared;
            assert!(may_overlap || !one.overlaps(*other), "{name} {one} {other_name} {other}");
        }
    }
}
