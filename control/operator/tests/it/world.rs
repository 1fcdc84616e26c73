//! A cluster with an operator, pods, and requests for gateways.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::GatewayServer;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_control_lab::roles::stock_role;
use strait_control_lab::tenant::NAMESPACE;
use strait_control_lab::{ApiServer, create, kubelet};
use strait_operator::{KeyPair, ReconcileCounts, Settings};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The time that a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const NETWORKING: &str = "networking.liqo.io/v1beta1";

/// A cluster with an operator and pods.
pub(crate) struct World {
    pub(crate) admin: Client,
    pub(crate) operator: Client,
    pub(crate) tasks: Vec<JoinHandle<()>>,
    pub(crate) server: ApiServer,
}

impl World {
    /// `None` if no API server can run here. The operator is not started yet.
    pub(crate) async fn new() -> Option<Self> {
        let server = ApiServer::start_with_api().await?;
        let admin = server.client().await;
        for name in [NAMESPACE, "liqo"] {
            create(
                Api::all(admin.clone()),
                &object::<Namespace>(json!({"metadata": {"name": name}})),
            )
            .await;
        }
        create(Api::all(admin.clone()), &stock_role()).await;
        let operator = server.operator().await;
        kubelet::node(&admin, "172.18.0.3").await;
        let tasks = vec![tokio::spawn(kubelet::run(admin.clone()))];

        Some(Self { admin, operator, tasks, server })
    }

    pub(crate) fn start_operator(&mut self) {
        self.start_operator_with(settings());
    }

    pub(crate) fn start_operator_with(&mut self, settings: Settings) {
        self.tasks.push(tokio::spawn(strait_operator::run(self.operator.clone(), settings)));
    }

    /// The names of the bindings of gateways in all namespaces, and in that of the gateway.
    pub(crate) async fn bindings(&self) -> [Vec<String>; 2] {
        let labelled = ListParams::default().labels("networking.liqo.io/gateway-name");
        let all = Api::<ClusterRoleBinding>::all(self.admin.clone());
        let all = all.list(&labelled).await.expect("a list");
        let own = self.api::<RoleBinding>().list(&labelled).await.expect("a list");

        [
            all.iter().map(ClusterRoleBinding::name_any).collect(),
            own.iter().map(RoleBinding::name_any).collect(),
        ]
    }

    pub(crate) async fn until_bound(&self, [all, own]: [&[String]; 2]) {
        let start = Instant::now();
        loop {
            let found = self.bindings().await;
            if found == [all, own] {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "there are {found:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn of_kind(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
    ) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').expect("a group");
        let kind = GroupVersionKind::gvk(group, version, kind);

        Api::namespaced_with(self.admin.clone(), namespace, &ApiResource::from_gvk(&kind))
    }

    /// Applies a document of YAML.
    pub(crate) async fn apply(&self, yaml: &str) {
        let wanted: Value = serde_saphyr::from_str(yaml).expect("YAML");
        let text = |pointer: &str| wanted.pointer(pointer).and_then(Value::as_str).expect(yaml);
        let api = self.of_kind(text("/apiVersion"), text("/kind"), text("/metadata/namespace"));

        api.patch(
            text("/metadata/name"),
            &PatchParams::apply("user").force(),
            &Patch::Apply(&wanted),
        )
        .await
        .expect(yaml);
    }

    pub(crate) async fn ask_for_server(&self) {
        self.apply(include_str!("../../../../deploy/liqo/server.yaml")).await;
        create(self.api(), &server("strait-server")).await;
    }

    /// The object called `name` as soon as it satisfies `is_right`.
    pub(crate) async fn until<K>(&self, name: &str, is_right: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api = self.api::<K>();
        let start = Instant::now();
        let mut found = None;
        while start.elapsed() < PATIENCE {
            found = api.get_opt(name).await.expect("an answer");
            match found {
                Some(object) if is_right(&object) => return object,
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
        let events: Api<Event> = self.api();
        for event in events.list(&ListParams::default()).await.expect("Events") {
            eprintln!("{:?}: {:?}", event.reason, event.note);
        }
        panic!("{} {name} is {found:#?}", K::kind(&()));
    }

    /// Waits for an Event, and returns its note.
    pub(crate) async fn event_note(&self, reason: &str) -> String {
        self.event_note_containing(reason, "").await
    }

    /// Waits for an Event of the object called `milan` of a kind, and returns its note.
    pub(crate) async fn event_note_of(&self, kind: &str, reason: &str) -> String {
        let events: Api<Event> = self.api();
        let is_it = |event: &Event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some(reason)
                && regarding.kind.as_deref() == Some(kind)
                && regarding.name.as_deref() == Some("milan")
        };
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let found = events.list(&ListParams::default()).await.expect("Events").items;
            if let Some(event) = found.into_iter().find(is_it) {
                return event.note.unwrap_or_default();
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("no Event {reason} of {kind}");
    }

    /// Waits for an Event that contains `words`, and returns its note.
    pub(crate) async fn event_note_containing(&self, reason: &str, words: &str) -> String {
        let events: Api<Event> = self.api();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let found = events.list(&ListParams::default()).await.expect("Events").items;
            let found = found.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
            let mut notes = found.filter_map(|event| event.note);
            if let Some(note) = notes.find(|note| note.contains(words)) {
                return note;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("there is no Event {reason}");
    }

    /// The version of everything that the operator writes.
    pub(crate) async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let mut versions = BTreeMap::new();
        for (group, kind) in [
            (NETWORKING, "GatewayServer"),
            (NETWORKING, "WgGatewayServer"),
            ("apps/v1", "Deployment"),
        ] {
            let all = self.of_kind(group, kind, NAMESPACE).list(&ListParams::default()).await;
            for object in all.expect("a list") {
                versions.insert(format!("{kind} {}", object.name_any()), object.resource_version());
            }
        }
        macro_rules! of {
            ($($kind:ty),*) => {$(
                for object in self.api::<$kind>().list(&ListParams::default()).await.expect("a list") {
                    let kind = <$kind as Resource>::kind(&());
                    versions.insert(format!("{kind} {}", object.name_any()), object.resource_version());
                }
            )*};
        }
        of!(Secret, Service, ServiceAccount);

        versions
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        holder: "strait-operator-1".to_owned(),
        server_role: "liqo-gateway".to_owned(),
        client_role: "liqo-gateway".to_owned(),
        generate_keys: || KeyPair { private: [b'p'; 32], public: [b'q'; 32] },
        // Simpler than a curve.
        public_of: |private| private.map(|byte| byte + 1),
        counts: ReconcileCounts::default(),
    }
}

pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

pub(crate) fn server(template: &str) -> GatewayServer {
    object(json!({
        "metadata": {"name": "milan", "labels": {REMOTE_CLUSTER_ID: "milan"}},
        "spec": {
            "mtu": 1340,
            "endpoint": {"port": 51840, "serviceType": "NodePort", "nodePort": 30742},
            "serverTemplateRef": {
                "apiVersion": NETWORKING, "kind": "WgGatewayServerTemplate",
                "name": template, "namespace": "liqo",
            },
        },
    }))
}

pub(crate) fn addresses(server: &GatewayServer) -> Vec<String> {
    let endpoint = server.status.as_ref().and_then(|status| status.endpoint.clone());

    endpoint.map(|endpoint| endpoint.addresses).unwrap_or_default()
}
