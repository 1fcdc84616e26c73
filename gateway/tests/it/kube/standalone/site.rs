//! One cluster without Liqo, and what its administrator does and sees.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use strait_api::{Configuration, Connection, PublicKey};
use strait_control_lab::ApiServer;
use strait_control_lab::kubelet;
use strait_lab::Cluster;
use strait_lab::Namespace;
use strait_lab::wait_until;

use super::garbage::uids;
use super::node::NodeOf;
use super::pods::PodNetwork;
use crate::kube::fed::{PATIENCE, shell, within};

const GATEWAY_NAME: &str = "networking.liqo.io/gateway-name";
const GATEWAY_RESOURCE: &str = "networking.liqo.io/gateway-resource";

/// Where a cluster is.
pub(super) struct Place<'a> {
    pub(super) name: &'static str,
    /// Its only node, with the API server on its loopback.
    pub(super) node: &'a Arc<Namespace>,
    /// Of the node.
    pub(super) address: IpAddr,
    /// Whether gateways are pods with networks of their own; else they are in that of the node.
    pub(super) has_pods: bool,
}

impl<'a> From<&'a Cluster> for Place<'a> {
    fn from(cluster: &'a Cluster) -> Self {
        let Cluster { name, gateway, underlay, .. } = cluster;

        Self { name, node: gateway, address: *underlay, has_pods: false }
    }
}

/// One cluster: an API server, an operator, and a node.
pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) namespace: Arc<Namespace>,
    server: ApiServer,
    folder: PathBuf,
    kubelet: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Site {
    /// `None` if there can be no API server here.
    pub(super) fn start(place: &Place<'_>, scratch: &Path) -> Option<Self> {
        let Place { name, node, address, has_pods } = *place;
        let server = within(node, ApiServer::start_audited())?;
        let folder = scratch.join(format!("site-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("admin");
        let server = within(node, async move {
            kubelet::node(&server.client().await, &address.to_string()).await;
            let admin = server.kubeconfig_of_admin();
            fs::write(path, serde_json::to_vec(&admin).unwrap()).unwrap();
            server
        });
        install(node, &server, &folder);

        let is_over = Arc::new(AtomicBool::new(false));
        let pods = has_pods.then(|| PodNetwork::new(Arc::clone(node), server.port()));
        let node_of = NodeOf::new(Arc::clone(node), folder.clone(), address, pods);
        let (client, over) = (server.client_later(), Arc::clone(&is_over));
        // On a thread of its own: jobs in a namespace wait for each other.
        let kubelet = node.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async move { node_of.run(client.await, &over).await });
        });

        Some(Self {
            name,
            namespace: Arc::clone(node),
            server,
            folder,
            kubelet: Some(kubelet.unwrap()),
            is_over,
        })
    }

    pub(super) fn ask<T: Send + 'static, F: Future<Output = T> + Send>(
        &self,
        job: impl FnOnce(Client) -> F + Send + 'static,
    ) -> T {
        let client = self.server.client_later();

        within(&self.namespace, async move { job(client.await).await })
    }

    /// How many there are of a kind, in all namespaces.
    pub(super) fn count<K>(&self) -> usize
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.ask(|client| async move {
            Api::<K>::all(client).list(&ListParams::default()).await.unwrap().items.len()
        })
    }

    pub(super) fn kubeconfig(&self) -> String {
        self.folder.join("admin").display().to_string()
    }

    pub(super) fn log(&self, deployment: &str) -> String {
        fs::read_to_string(self.folder.join(format!("{deployment}.log"))).unwrap_or_default()
    }

    /// The process of a gateway, by the name of the gateway.
    pub(super) fn process_of(&self, gateway: &str) -> Option<u32> {
        let folder = self.folder.display().to_string();
        let has_name = format!("--name={gateway}");
        let is_it = |process: &Path| {
            let words = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
            let variables = fs::read_to_string(process.join("environ")).unwrap_or_default();
            words.split('\0').any(|word| word == has_name) && variables.contains(&folder)
        };
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());

        processes
            .filter(|process| is_it(process))
            .find_map(|process| process.file_name()?.to_str()?.parse().ok())
    }

    pub(super) fn wait_for_operator(&self) {
        let leads = || Ok(self.log("strait-operator").contains("leader election"));
        wait_until("the operator works", PATIENCE, leads).unwrap();
    }

    /// What a command line of an administrator says, which must succeed. It finds `kubectl` and `strait`.
    pub(super) fn shell(&self, line: &str) -> String {
        shell(&self.namespace, self.server.assets(), &self.folder, line)
    }

    /// Has `text`, which is YAML or JSON, be in `namespace`.
    pub(super) fn apply(&self, namespace: &str, text: &str) {
        self.write("applied", text);
        self.shell(&format!("kubectl --namespace={namespace} apply --filename=$HOME/applied"));
    }

    /// Has a file of the administrator be there.
    pub(super) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.folder.join(name), bytes).unwrap();
    }

    /// Every call that was made to the API server.
    pub(super) fn audit(&self) -> String {
        self.server.audit()
    }

    pub(super) fn port(&self) -> u16 {
        self.server.port()
    }

    /// What the pods of the cluster `other` are called here.
    pub(super) fn names(&self, other: &'static str) -> Vec<String> {
        self.ask(move |client| async move {
            let tenant = format!("liqo-tenant-{other}");
            let all = Api::<Configuration>::namespaced(client, &tenant);
            let status = all.get(other).await.unwrap().status.unwrap_or_default();
            status.remote.and_then(|remote| remote.cidr).unwrap_or_default().pod.into()
        })
    }

    /// How many objects of gateways there are: deployments, services, rights, keys and connections.
    pub(super) fn remains(&self) -> [usize; 7] {
        self.ask(|client| async move {
            [
                labelled::<Deployment>(&client, GATEWAY_NAME).await,
                labelled::<Service>(&client, GATEWAY_NAME).await,
                labelled::<ClusterRoleBinding>(&client, GATEWAY_NAME).await,
                labelled::<RoleBinding>(&client, GATEWAY_NAME).await,
                labelled::<Secret>(&client, GATEWAY_RESOURCE).await,
                labelled::<PublicKey>(&client, GATEWAY_RESOURCE).await,
                uids::<Connection>(&client).await.len(),
            ]
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(kubelet) = self.kubelet.take() {
            let _ = kubelet.join();
        }
    }
}

/// As the README says: what is defined first can be made only when it is there.
fn install(namespace: &Namespace, server: &ApiServer, folder: &Path) {
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/standalone");
    wait_until("all of it is installed", PATIENCE, || {
        let mut kubectl = Command::new(server.assets().join("kubectl"));
        kubectl
            .args(["apply", "--server-side", "--kustomize", base])
            .env("KUBECONFIG", folder.join("admin"))
            .env("HOME", folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(namespace.start(kubectl)?.wait().is_ok_and(|status| status.success()))
    })
    .unwrap();
}

async fn labelled<K>(client: &Client, label: &str) -> usize
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let labelled = ListParams::default().labels(label);

    Api::<K>::all(client.clone()).list(&labelled).await.unwrap().items.len()
}
