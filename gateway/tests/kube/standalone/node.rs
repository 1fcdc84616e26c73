//! The only node of a cluster: what deployments ask for runs there, in one network namespace.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Container, Pod, PodTemplateSpec, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_gateway::lab::process::Process;
use strait_gateway::lab::{Namespace, scrape};

use super::garbage::collect_garbage;
use crate::api_server::kubelet::NODE;
use crate::world::STRAIT;

/// A stand-in for the kubelet, and for the controller of deployments, whose strategy is Recreate.
pub(super) struct NodeOf {
    namespace: Arc<Namespace>,
    folder: PathBuf,
    address: IpAddr,
    /// By the UID of their deployments.
    running: BTreeMap<String, Running>,
}

/// The only pod of a deployment.
struct Running {
    process: Process,
    template: PodTemplateSpec,
    pod: String,
}

impl NodeOf {
    pub(super) const fn new(namespace: Arc<Namespace>, folder: PathBuf, address: IpAddr) -> Self {
        Self { namespace, folder, address, running: BTreeMap::new() }
    }

    /// Has what deployments ask for run, and collects what has lost its owner.
    pub(super) async fn run(mut self, client: Client, is_over: &AtomicBool) {
        let deployments: Api<Deployment> = Api::all(client.clone());
        while !is_over.load(Ordering::Acquire) {
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
            collect_garbage(&client).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the pod in order, as there is to be another one.
    async fn stop(&mut self, client: &Client, deployment: &Deployment) {
        let Running { process, pod, .. } = self.running.remove(&deployment.uid().unwrap()).unwrap();
        process.stop().unwrap();
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

        let start = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(),
            format!("STRAIT_KEYS_DIR={}", keys.display()),
            format!("STRAIT_ADMIN_SOCKET={}", self.folder.join(format!("{uid}.sock")).display()),
            "STRAIT_PING_INTERVAL=200ms".to_owned(),
            STRAIT.to_owned(),
        ];
        let args = container(&template).args.clone().unwrap();
        let args = args
            .iter()
            .map(|arg| arg.replace("$(POD_NAME)", &pod).replace("$(POD_NAMESPACE)", &tenant));
        let log = self.folder.join(format!("{}.log", deployment.name_any()));
        let env = Path::new("/usr/bin/env");
        let process =
            Process::start(&self.namespace, "pod", env, start.into_iter().chain(args), log)
                .unwrap();

        self.make_pod(client, deployment, &pod).await;
        self.running.insert(uid, Running { process, template, pod });
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

    async fn make_pod(&self, client: &Client, deployment: &Deployment, name: &str) {
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
        let address = self.address.to_string();
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        }});

        let pods: Api<Pod> = Api::namespaced(client.clone(), &deployment.namespace().unwrap());
        pods.create(&Default::default(), &pod).await.unwrap();
        let status = Patch::Merge(&status);
        pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    /// Whether the probe of the container is answered.
    async fn tell_of(&self, client: &Client, deployment: &Deployment) {
        let ports = container(&deployment.spec.template).ports.clone().unwrap();
        let port = ports.iter().find(|port| port.name.as_deref() == Some("healthz")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.container_port.try_into().unwrap()));
        let is_ready = scrape::get(address, "/readyz").is_ok_and(|(status, _)| status == 200);
        let ready = i32::from(is_ready);

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

fn container(template: &PodTemplateSpec) -> &Container {
    &template.spec.as_ref().unwrap().containers[0]
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
