//! Two clusters without Liqo: operators make the gateways, and the steps of its documentation join them.
//!
//! A stand-in for the kubelet starts the real gateway with what the operator has rendered, in the
//! namespace that is its pod. IPAM is the operator's.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use control::api::{
    Configuration, Connection, GatewayClient, GatewayServer, Network, PublicKey, WgGatewayClient,
    WgGatewayServer,
};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions,
};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_gateway::lab::process::Process;
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::{Cluster, Layout, Namespace, TwoClusters, now, scrape, wait_until};

use crate::api_server::ApiServer;
use crate::api_server::kubelet::{self, NODE};
use crate::fed::{PATIENCE, wait_for_ping, within};
use crate::require::Need::{Root, Tun};
use crate::require::require;
use crate::world::{STRAIT, assert_traffic};

/// One cluster: an API server, an operator, and a node.
struct Site {
    name: &'static str,
    namespace: Arc<Namespace>,
    server: Option<ApiServer>,
    folder: PathBuf,
    kubelet: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Site {
    /// `None` if there can be no API server here.
    fn start(cluster: &Cluster, scratch: &Path) -> Option<Self> {
        let server = within(&cluster.gateway, ApiServer::start())?;
        let folder = scratch.join(format!("site-{}", cluster.name));
        fs::create_dir_all(&folder).unwrap();
        let (path, address) = (folder.join("admin"), cluster.underlay);
        let server = within(&cluster.gateway, async move {
            kubelet::node(&server.client().await, &address.to_string()).await;
            let admin = server.kubeconfig_of_admin();
            fs::write(path, serde_json::to_vec(&admin).unwrap()).unwrap();
            server
        });
        install(&cluster.gateway, &server, &folder);

        let is_over = Arc::new(AtomicBool::new(false));
        let node = NodeOf {
            namespace: Arc::clone(&cluster.gateway),
            folder: folder.clone(),
            address,
            gateways: BTreeMap::new(),
        };
        let (client, over) = (server.client_later(), Arc::clone(&is_over));
        // On a thread of its own: jobs in a namespace wait for each other.
        let kubelet = cluster.gateway.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async move { node.run(client.await, &over).await });
        });

        Some(Self {
            name: cluster.name,
            namespace: Arc::clone(&cluster.gateway),
            server: Some(server),
            folder,
            kubelet: Some(kubelet.unwrap()),
            is_over,
        })
    }

    fn ask<T: Send + 'static, F: Future<Output = T> + Send>(
        &self,
        job: impl FnOnce(Client) -> F + Send + 'static,
    ) -> T {
        let client = self.server.as_ref().unwrap().client_later();

        within(&self.namespace, async move { job(client.await).await })
    }

    /// How many there are of a kind, in all namespaces.
    fn count<K>(&self) -> usize
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.ask(|client| async move {
            Api::<K>::all(client).list(&ListParams::default()).await.unwrap().items.len()
        })
    }

    fn kubeconfig(&self) -> String {
        self.folder.join("admin").display().to_string()
    }

    fn log(&self, deployment: &str) -> String {
        fs::read_to_string(self.folder.join(format!("{deployment}.log"))).unwrap_or_default()
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

/// The only node of a cluster, whose pods are all in one network namespace.
struct NodeOf {
    namespace: Arc<Namespace>,
    folder: PathBuf,
    address: IpAddr,
    /// By the UID of their deployments.
    gateways: BTreeMap<String, Process>,
}

impl NodeOf {
    /// Has what deployments ask for run, and collects what has lost its owner.
    async fn run(mut self, client: Client, is_over: &AtomicBool) {
        let deployments: Api<Deployment> = Api::all(client.clone());
        while !is_over.load(Ordering::Acquire) {
            let wanted = deployments.list(&ListParams::default()).await.unwrap().items;
            let uid = |deployment: &Deployment| deployment.uid().unwrap();
            self.gateways.retain(|running, _| wanted.iter().any(|one| uid(one) == *running));
            for deployment in &wanted {
                if !self.gateways.contains_key(&uid(deployment)) {
                    self.start(&client, deployment).await;
                }
                self.tell_of(&client, deployment).await;
            }
            collect_garbage(&client).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts the container as it is asked for, with its account and its keys.
    async fn start(&mut self, client: &Client, deployment: &Deployment) {
        let (tenant, uid) = (deployment.namespace().unwrap(), deployment.uid().unwrap());
        let template = deployment.spec.template.clone();
        let spec = template.spec.unwrap();
        let volumes = spec.volumes.clone().unwrap_or_default();
        let keys = self.folder.join(format!("keys-{uid}"));
        if let Some(secret) = volumes.iter().find_map(|volume| volume.secret.clone()) {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), &tenant);
            let Ok(secret) = secrets.get(&secret.secret_name.unwrap()).await else { return };
            fs::create_dir_all(&keys).unwrap();
            fs::write(keys.join("privateKey"), &secret.data.unwrap()["privateKey"].0).unwrap();
        }
        let account = spec.service_account_name.clone().unwrap();
        let kubeconfig = self.folder.join(format!("kubeconfig-{uid}"));
        let admin = fs::read_to_string(self.folder.join("admin")).unwrap();
        let mut config: Value = serde_json::from_str(&admin).unwrap();
        let Some(token) = token(client, &tenant, &account).await else { return };
        config["users"][0]["user"] = json!({"token": token});
        fs::write(&kubeconfig, config.to_string()).unwrap();

        let start = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(),
            format!("STRAIT_KEYS_DIR={}", keys.display()),
            format!("STRAIT_ADMIN_SOCKET={}", self.folder.join(format!("{uid}.sock")).display()),
            "STRAIT_PING_INTERVAL=200ms".to_owned(),
            STRAIT.to_owned(),
        ];
        let name = format!("{}-{}", deployment.name_any(), &uid[..5]);
        let args = spec.containers[0].args.clone().unwrap();
        let args = args
            .iter()
            .map(|arg| arg.replace("$(POD_NAME)", &name).replace("$(POD_NAMESPACE)", &tenant));
        let log = self.folder.join(format!("{}.log", deployment.name_any()));
        let env = Path::new("/usr/bin/env");
        let gateway =
            Process::start(&self.namespace, "pod", env, start.into_iter().chain(args), log)
                .unwrap();
        self.gateways.insert(uid.clone(), gateway);

        let mut pod: Pod = object(json!({
            "metadata": {
                "name": name,
                "labels": template.metadata.and_then(|metadata| metadata.labels),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "Deployment", "controller": true,
                    "name": deployment.name_any(), "uid": uid,
                }],
            },
            "spec": {"nodeName": NODE, "containers": []},
        }));
        let mut container = spec.containers[0].clone();
        container.volume_mounts = None;
        pod.spec.as_mut().unwrap().containers = vec![container];
        let pods: Api<Pod> = Api::namespaced(client.clone(), &tenant);
        let pod = pods.create(&Default::default(), &pod).await.unwrap();
        let address = self.address.to_string();
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        }});
        let status = Patch::Merge(&status);
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await.unwrap();
    }

    /// Whether the probe of the container is answered.
    async fn tell_of(&self, client: &Client, deployment: &Deployment) {
        let container = &deployment.spec.template.spec.as_ref().unwrap().containers[0];
        let ports = container.ports.clone().unwrap();
        let port = ports.iter().find(|port| port.name.as_deref() == Some("healthz")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.container_port.try_into().unwrap()));
        let is_ready = scrape::get(address, "/readyz").is_ok_and(|(status, _)| status == 200);
        let ready = i32::from(is_ready);
        let was = deployment.status.as_ref().and_then(|status| status.ready_replicas);
        if was.unwrap_or_default() != ready {
            let status = json!({"status": {"replicas": 1, "readyReplicas": ready}});
            let tenant = deployment.namespace().unwrap();
            let deployments: Api<Deployment> = Api::namespaced(client.clone(), &tenant);
            let name = deployment.name_any();
            let status = Patch::Merge(&status);
            let _ = deployments.patch_status(&name, &PatchParams::default(), &status).await;
        }
    }
}

async fn token(client: &Client, namespace: &str, account: &str) -> Option<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = k8s_openapi::api::authentication::v1::TokenRequest::default();
    let token = accounts.create_token_request(account, &Default::default(), &request).await.ok()?;

    token.status.and_then(|status| status.token)
}

/// Deletes what has lost all of its owners, as every cluster does.
async fn collect_garbage(client: &Client) {
    let mut owned = Vec::new();
    macro_rules! see {
        ($($kind:ty),*) => {$(
            owned.extend(owned_of::<$kind>(client).await);
        )*};
    }
    see!(WgGatewayServer, WgGatewayClient, Deployment, Service, ServiceAccount, Pod);
    see!(Secret, PublicKey, Connection, Network);
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

async fn uids<K>(client: &Client) -> Vec<String>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();

    all.items.iter().filter_map(ResourceExt::uid).collect()
}

/// Whoever is in `from` reaches the API server of `to` there as if it were its own.
fn forward(from: &Arc<Namespace>, to: &Site) {
    let port = to.server.as_ref().unwrap().port();
    let listener = from.run(move || Ok(TcpListener::bind(("127.0.0.1", port)).unwrap())).unwrap();
    let there = Arc::clone(&to.namespace);
    // Ends with the test.
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = there.run(move || Ok(TcpStream::connect(("127.0.0.1", port)).unwrap()))
            else {
                return;
            };
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far.try_clone().unwrap(), near.try_clone().unwrap()),
            ] {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Both clusters, and a place from which commands reach both.
struct Two {
    rome: Site,
    milan: Site,
    clusters: TwoClusters,
}

impl Two {
    fn start(layout: &Layout) -> Option<Self> {
        let clusters = TwoClusters::new(&layout.clone().without_ipv6()).unwrap();
        let scratch = clusters.scratch.path();
        let rome = Site::start(&clusters.rome, scratch)?;
        let milan = Site::start(&clusters.milan, scratch)?;
        forward(&rome.namespace, &milan);

        Some(Self { rome, milan, clusters })
    }

    /// `strait network VERB` with both kubeconfigs.
    fn network(&self, verb: &str, more: &[&str]) -> Output {
        let mut command = Command::new(STRAIT);
        command
            .args(["network", verb])
            .args(["--kubeconfig", &self.rome.kubeconfig()])
            .args(["--remote-kubeconfig", &self.milan.kubeconfig()])
            .args(["--cluster-id=rome", "--remote-cluster-id=milan"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = self.rome.namespace.start(command).unwrap().wait_with_output().unwrap();
        let _ = writeln!(
            io::stderr(),
            "$ strait network {verb}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );

        output
    }

    fn logs(&self) -> String {
        let logs = |site: &Site| {
            ["strait-operator", "gw-rome", "gw-milan"].map(|pod| site.log(pod)).concat()
        };
        [&self.rome, &self.milan].map(|site| format!("{}:\n{}", site.name, logs(site))).concat()
    }
}

const GATEWAY_NAME: &str = "networking.liqo.io/gateway-name";
const GATEWAY_RESOURCE: &str = "networking.liqo.io/gateway-resource";

/// The server listens at the port of its node: there is no kube-proxy.
const CONNECT: [&str; 5] = [
    "--wait",
    "--timeout=60s",
    "--gw-server-service-type=NodePort",
    "--gw-server-service-port=30742",
    "--gw-server-service-nodeport=30742",
];

#[test]
fn two_clusters_are_joined_by_one_command_and_parted_without_a_trace() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(two) = Two::start(&Layout::equal()) else {
        return;
    };
    for site in [&two.rome, &two.milan] {
        let leads = || Ok(site.log("strait-operator").contains("leader election"));
        wait_until("the operator works", PATIENCE, leads).unwrap();
    }

    let start = now();
    let joined = two.network("connect", &CONNECT);
    let elapsed = start.elapsed();
    eprintln!("joined in {elapsed:?}");
    assert!(joined.status.success(), "{}", two.logs());
    let said = String::from_utf8_lossy(&joined.stdout).into_owned();
    let mut rest = said.as_str();
    for line in [
        "Network correctly initialized",
        "Gateway server correctly set up",
        "Gateway pod gw-rome is ready",
        "Gateway server Service created successfully",
        "Gateway client correctly set up",
        "Public key correctly created",
        "Connection is established",
    ] {
        let place =
            rest.find(line).unwrap_or_else(|| panic!("{line:?} is not said in its turn:\n{said}"));
        rest = &rest[place..];
    }
    // The figure is 5 s; neighbours of a test machine can take longer than that.
    let limit = if std::env::var_os("STRAIT_FIGURES").is_some() { 5 } else { 60 };
    assert!(elapsed < Duration::from_secs(limit), "{elapsed:?}");
    let (rome, milan) = (&two.clusters.rome, &two.clusters.milan);
    let target = rome.side.sees(&milan.side).next().unwrap();
    for site in [&two.rome, &two.milan] {
        assert_eq!(site.names(), ["10.71.0.0/16"], "{}", two.logs());
    }
    wait_for_ping(&rome.pod, target);
    for (from, to) in [(rome, milan), (milan, rome)] {
        for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
            assert_traffic(from, to, target, seen_as);
        }
    }

    // Again, and nothing is another one.
    let before = two.rome.ask(uids_of_gateways);
    assert!(two.network("connect", &CONNECT).status.success(), "{}", two.logs());
    assert_eq!(two.rome.ask(uids_of_gateways), before);

    let start = now();
    assert!(two.network("disconnect", &["--yes"]).status.success());
    for site in [&two.rome, &two.milan] {
        wait_until("nothing of the gateway is left", PATIENCE, || Ok(site.remains() == [0; 6]))
            .unwrap_or_else(|_| panic!("{:?}", site.remains()));
    }
    eprintln!("parted in {:?}", start.elapsed());
    let ping = Ping { count: 1, ..Ping::new(target, 1) };
    assert_eq!(ping.run(&rome.pod).map_or(0, |report| report.received), 0);

    assert!(two.network("reset", &["--yes"]).status.success());
    for site in [&two.rome, &two.milan] {
        wait_until("no prefix is taken any more", PATIENCE, || {
            // Those of the installation stay.
            Ok(site.count::<Configuration>() == 0 && site.count::<Network>() == 4)
        })
        .unwrap();
    }

    assert!(two.network("connect", &CONNECT).status.success(), "{}", two.logs());
    wait_for_ping(&rome.pod, target);
}

async fn uids_of_gateways(client: Client) -> [Vec<String>; 2] {
    [uids::<GatewayClient>(&client).await, uids::<Deployment>(&client).await]
}

impl Site {
    /// What the pods of the other cluster are called here.
    fn names(&self) -> Vec<String> {
        self.ask(|client| async move {
            let all = Api::<Configuration>::all(client).list(&ListParams::default()).await.unwrap();
            let status = all.items[0].status.clone().unwrap_or_default();
            status.remote.and_then(|remote| remote.cidr).unwrap_or_default().pod
        })
    }

    /// How many objects of gateways there are: deployments, services, rights, keys and connections.
    fn remains(&self) -> [usize; 6] {
        self.ask(|client| async move {
            [
                labelled::<Deployment>(&client, GATEWAY_NAME).await,
                labelled::<Service>(&client, GATEWAY_NAME).await,
                labelled::<ClusterRoleBinding>(&client, GATEWAY_NAME).await,
                labelled::<Secret>(&client, GATEWAY_RESOURCE).await,
                labelled::<PublicKey>(&client, GATEWAY_RESOURCE).await,
                uids::<Connection>(&client).await.len(),
            ]
        })
    }
}

async fn labelled<K>(client: &Client, label: &str) -> usize
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let labelled = ListParams::default().labels(label);

    Api::<K>::all(client.clone()).list(&labelled).await.unwrap().items.len()
}
