//! The only node of a cluster: what deployments ask for runs there, gateways in networks of their own where
//! there is one for pods, everything else in that of the node.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    Container, Pod, PodTemplateSpec, Secret, Service, ServiceAccount, ServicePort,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::labels::OVERLAY_EDGE;
use strait_control_lab::kubelet::NODE;
use strait_control_lab::revision;
use strait_lab::Namespace;
use strait_lab::process::Process;
use strait_lab::scrape;

use super::garbage::collect_garbage;
use super::pods::{self, Exposed, PodNetwork};
use crate::harness::STRAIT;

/// Of the active pod of a gateway.
const ACTIVE: &str = "networking.liqo.io/active";
/// Of pods that are gateways.
const COMPONENT: &str = "networking.liqo.io/component";

/// Runs a program with `capabilities: drop: [ALL]`.
const UNPRIVILEGED: [&str; 4] =
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

/// A stand-in for the kubelet, and for the controller of deployments, whose strategy is Recreate.
pub(super) struct NodeOf {
    namespace: Arc<Namespace>,
    folder: PathBuf,
    address: IpAddr,
    /// Without one gateways are in the network of the node, and no agent is needed there.
    pods: Option<PodNetwork>,
    /// By the UID of their deployments.
    running: BTreeMap<String, Running>,
    agent: Option<Process>,
}

/// The only pod of a deployment.
struct Running {
    process: Process,
    template: PodTemplateSpec,
    tenant: String,
    pod: String,
    network: Option<pods::Pod>,
}

impl NodeOf {
    pub(super) const fn new(
        namespace: Arc<Namespace>,
        folder: PathBuf,
        address: IpAddr,
        pods: Option<PodNetwork>,
    ) -> Self {
        Self { namespace, folder, address, pods, running: BTreeMap::new(), agent: None }
    }

    /// Has what deployments ask for run, and collects what has lost its owner.
    pub(super) async fn run(mut self, client: Client, is_over: &AtomicBool) {
        let deployments: Api<Deployment> = Api::all(client.clone());
        let mut complete = None;
        while !is_over.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let state = (revision(&client).await.unwrap(), self.readiness());
            if complete.as_ref() == Some(&state) {
                continue;
            }
            let wanted = deployments.list(&Default::default()).await.unwrap().items;
            let uid = |deployment: &Deployment| deployment.uid().unwrap();
            self.running.retain(|running, _| wanted.iter().any(|one| uid(one) == *running));
            for deployment in &wanted {
                let running = self.running.get(&uid(deployment));
                if running.is_some_and(|running| running.template != deployment.spec.template) {
                    self.stop(&client, deployment).await;
                }
                if !self.running.contains_key(&uid(deployment)) {
                    self.start(&client, deployment).await;
                }
                self.tell_of(&client, deployment).await;
            }
            if self.pods.is_some() {
                self.expose(&client).await;
                self.start_agent(&client).await;
            }
            collect_garbage(&client).await;
            complete = Some(state);
        }
    }

    /// Which containers are ready.
    fn readiness(&self) -> Vec<(String, bool)> {
        self.running.iter().map(|(uid, running)| (uid.clone(), running.is_ready())).collect()
    }

    /// Ends the pod in order, as there is to be another one.
    async fn stop(&mut self, client: &Client, deployment: &Deployment) {
        let Running { process, pod, network, .. } =
            self.running.remove(&deployment.uid().unwrap()).unwrap();
        process.stop().unwrap();
        drop(network);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &deployment.namespace().unwrap());
        let _ = pods.delete(&pod, &DeleteParams::default().grace_period(0)).await;
    }

    /// Starts the container as it is asked for, with its account and its keys.
    async fn start(&mut self, client: &Client, deployment: &Deployment) {
        let (tenant, uid) = (deployment.namespace().unwrap(), deployment.uid().unwrap());
        let template = deployment.spec.template.clone();
        let generation = deployment.metadata.generation.unwrap();
        let pod = format!("{}-{}-{generation}", deployment.name_any(), &uid[..5]);
        let keys = self.folder.join(format!("keys-{uid}"));
        let kubeconfig = self.folder.join(format!("kubeconfig-{uid}"));
        // What is not there yet is looked for again in a moment.
        let Some(()) = mount_keys(client, &tenant, &template, &keys).await else { return };
        let Some(()) = self.mount_token(client, &tenant, &template, &kubeconfig).await else {
            return;
        };

        let args = container(&template).args.clone().unwrap();
        let address = self.address.to_string();
        let args = args.iter().map(|arg| {
            arg.replace("$(POD_NAME)", &pod)
                .replace("$(POD_NAMESPACE)", &tenant)
                .replace("$(NODE_ADDRESS)", &address)
        });
        let words = [
            format!("STRAIT_KEYS_DIR={}", keys.display()),
            format!("STRAIT_ADMIN_SOCKET={}", self.folder.join(format!("{uid}.sock")).display()),
            "STRAIT_PING_INTERVAL=200ms".to_owned(),
        ];
        let unprivileged = UNPRIVILEGED.map(str::to_owned).into_iter();
        let unprivileged = unprivileged.filter(|_| has_overlay(&template));
        let words = words.into_iter().chain(unprivileged).chain([STRAIT.to_owned()]);
        let network = self.pods.as_mut().filter(|_| is_gateway(&template)).map(PodNetwork::add);
        let namespace = network.as_ref().map_or(&self.namespace, |network| &network.namespace);
        // The kubelet makes it the name of the host.
        let name = is_gateway(&template).then(|| format!("--pod-name={pod}"));
        let words = words.chain(args).chain(name);
        let process = self.run_in(namespace, &deployment.name_any(), &kubeconfig, words);

        let address = network.as_ref().map_or(self.address, |network| network.address);
        make_pod(client, deployment, &pod, address).await;
        self.running.insert(uid, Running { process, template, tenant, pod, network });
    }

    /// Starts `words`, variables first, with the rights of the kubeconfig.
    fn run_in(
        &self,
        namespace: &Namespace,
        name: &str,
        kubeconfig: &Path,
        words: impl IntoIterator<Item = String>,
    ) -> Process {
        let start = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(),
        ];
        let words = start.into_iter().chain(words);
        let log = self.folder.join(format!("{name}.log"));

        Process::start(namespace, "pod", Path::new("/usr/bin/env"), words, log).unwrap()
    }

    /// Starts the agent of the node once it is asked for.
    async fn start_agent(&mut self, client: &Client) {
        if self.agent.is_some() {
            return;
        }
        let sets: Api<DaemonSet> = Api::all(client.clone());
        let Some(set) = sets.list(&Default::default()).await.unwrap().items.pop() else { return };
        let template = set.spec.template.clone();
        let kubeconfig = self.folder.join("kubeconfig-of-agent");
        let tenant = set.namespace().unwrap();
        let Some(()) = self.mount_token(client, &tenant, &template, &kubeconfig).await else {
            return;
        };
        let args = container(&template).args.clone().unwrap();
        let args = args.iter().map(|arg| arg.replace("$(NODE_NAME)", NODE));
        let words = [STRAIT.to_owned()].into_iter().chain(args);

        self.agent = Some(self.run_in(&self.namespace, &set.name_any(), &kubeconfig, words));
    }

    /// Has the ports that Services have on nodes lead to the pods that they select.
    async fn expose(&mut self, client: &Client) {
        let services: Api<Service> = Api::all(client.clone());
        let mut exposed = Vec::new();
        for service in services.list(&Default::default()).await.unwrap() {
            let Some(pod) = self.running.values().find(|running| running.is_behind(&service))
            else {
                continue;
            };
            let pod = pod.network.as_ref().unwrap().address;
            for port in service.spec.unwrap().ports.unwrap_or_default() {
                let ServicePort { node_port, target_port, .. } = port;
                if let (Some(node_port), Some(IntOrString::Int(port))) = (node_port, target_port) {
                    exposed.push(Exposed { node_port, pod, port });
                }
            }
        }

        self.pods.as_mut().unwrap().expose(exposed);
    }

    async fn mount_token(
        &self,
        client: &Client,
        tenant: &str,
        template: &PodTemplateSpec,
        kubeconfig: &Path,
    ) -> Option<()> {
        let account = template.spec.clone()?.service_account_name?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), tenant);
        let request = TokenRequest::default();
        let token = accounts.create_token_request(&account, &Default::default(), &request).await;
        let token = token.ok()?.status?.token;

        let admin = fs::read_to_string(self.folder.join("admin")).unwrap();
        let mut config: Value = serde_json::from_str(&admin).unwrap();
        config["users"][0]["user"] = json!({"token": token});
        fs::write(kubeconfig, config.to_string()).unwrap();

        Some(())
    }

    /// Whether the probe of the container is answered.
    async fn tell_of(&self, client: &Client, deployment: &Deployment) {
        let running = self.running.get(&deployment.uid().unwrap());
        let ready = i32::from(running.is_some_and(Running::is_ready));

        let was = deployment.status.clone().unwrap_or_default();
        let generation = deployment.metadata.generation;
        if (was.ready_replicas, was.observed_generation) == (Some(ready), generation) {
            return;
        }
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
            "readyReplicas": ready, "availableReplicas": ready,
        }});
        let tenant = deployment.namespace().unwrap();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &tenant);
        let (name, status) = (deployment.name_any(), Patch::Merge(&status));
        let _ = deployments.patch_status(&name, &PatchParams::default(), &status).await;
    }
}

impl Running {
    /// Whether `service` selects it.
    fn is_behind(&self, service: &Service) -> bool {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let labels = labels(&self.template);
        let is_selected = selector.is_some_and(|selector| {
            // The only pod is the active one.
            selector
                .iter()
                .filter(|(key, _)| *key != ACTIVE)
                .all(|(key, value)| labels.and_then(|all| all.get(key)) == Some(value))
        });

        is_selected && self.network.is_some() && service.namespace().as_ref() == Some(&self.tenant)
    }

    /// What its readiness probe finds.
    fn is_ready(&self) -> bool {
        let ports = container(&self.template).ports.clone().unwrap();
        let port = ports.iter().find(|port| port.name.as_deref() == Some("healthz")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.container_port.try_into().unwrap()));
        let ask = move || scrape::get(address, "/readyz");
        let answer = match &self.network {
            Some(network) => network.namespace.run(ask),
            None => ask(),
        };

        answer.is_ok_and(|(status, _)| status == 200)
    }
}

async fn make_pod(client: &Client, deployment: &Deployment, name: &str, address: IpAddr) {
    let template = &deployment.spec.template;
    let mut container = container(template).clone();
    container.volume_mounts = None;
    let pod: Pod = object(json!({
        "metadata": {
            "name": name,
            "labels": template.metadata.as_ref().map(|metadata| metadata.labels.clone()),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "controller": true,
                "name": deployment.name_any(), "uid": deployment.uid(),
            }],
        },
        "spec": {"nodeName": NODE, "containers": [container]},
    }));
    let address = address.to_string();
    let status = json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
    }});

    let pods: Api<Pod> = Api::namespaced(client.clone(), &deployment.namespace().unwrap());
    pods.create(&Default::default(), &pod).await.unwrap();
    let status = Patch::Merge(&status);
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}

/// The keys that the pod asks for, if it asks for any.
async fn mount_keys(
    client: &Client,
    tenant: &str,
    template: &PodTemplateSpec,
    keys: &Path,
) -> Option<()> {
    let volumes = template.spec.clone()?.volumes.unwrap_or_default();
    let Some(secret) = volumes.into_iter().find_map(|volume| volume.secret) else {
        return Some(());
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), tenant);
    let secret = secrets.get(&secret.secret_name?).await.ok()?;
    fs::create_dir_all(keys).unwrap();
    fs::write(keys.join("privateKey"), &secret.data?["privateKey"].0).unwrap();

    Some(())
}

fn is_gateway(template: &PodTemplateSpec) -> bool {
    labels(template).and_then(|labels| labels.get(COMPONENT)).is_some_and(|it| it == "gateway")
}

/// Whether it is a gateway that needs no capability.
fn has_overlay(template: &PodTemplateSpec) -> bool {
    let (label, value) = OVERLAY_EDGE;

    labels(template).and_then(|labels| labels.get(label)).is_some_and(|it| it == value)
}

fn labels(template: &PodTemplateSpec) -> Option<&BTreeMap<String, String>> {
    template.metadata.as_ref()?.labels.as_ref()
}

fn container(template: &PodTemplateSpec) -> &Container {
    &template.spec.as_ref().unwrap().containers[0]
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
