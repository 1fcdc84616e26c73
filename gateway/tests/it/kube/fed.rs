//! A cluster with an API server of its own, and the gateways that it feeds.
//!
//! The API server lives on the loopback of the gateway's namespace, so nothing here is seen from
//! outside. Gateways have the rights that their role gives them and no others.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Namespace as KubeNamespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Resource};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, PublicKey};
use strait_control_lab::{ApiServer, create};
use strait_lab::Cluster;
use strait_lab::LabError;
use strait_lab::Namespace;
use strait_lab::TwoClusters;
use strait_lab::process::Process;
use strait_lab::scrape::{self, Metrics};
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_plan::conditions::IN_FORCE;
use strait_wg::PrivateKey;

use crate::harness::STRAIT;

/// Of all objects of a peer.
pub(crate) const NAMESPACE: &str = "liqo-tenant";

pub(crate) const UID: &str = "0b7ef1a4-6a4b-4d3d-8a6c-6f8b7a5d1c11";

/// `--health-probe-bind-address` of a gateway that is alone, from within its namespace.
pub(crate) const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8085);

/// What a slow machine needs for what takes a moment.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Server,
    Client,
}

/// A cluster with its API server and gateways.
pub(crate) struct Fed {
    namespace: Arc<Namespace>,
    /// Taken out while a job in the namespace has it.
    server: Option<ApiServer>,
    pub(crate) peer: &'static str,
    folder: PathBuf,
    /// By the names that tests give them.
    gateways: BTreeMap<&'static str, Process>,
}

impl Fed {
    /// An API server with the key of the other gateway and what its pods are called here; `None` if
    /// there can be none on this machine.
    pub(crate) fn new(
        own: &Cluster,
        other: &Cluster,
        role: ClusterRole,
        clusters: &TwoClusters,
    ) -> Option<Self> {
        let peer = other.name;
        let server = within(&own.gateway, ApiServer::start_with_api())?;
        let folder = clusters.scratch.path().join(format!("fed-{}", own.name));
        fs::create_dir_all(&folder).unwrap();
        let key = STANDARD.decode(own.private_key.to_base64().as_bytes()).unwrap();
        fs::write(folder.join("privateKey"), key).unwrap();
        let objects = objects(own, other);
        let path = folder.join("kubeconfig");

        let server = within(&own.gateway, async move {
            let admin = server.client().await;
            let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
            let namespace = KubeNamespace { metadata, ..KubeNamespace::default() };
            create(Api::all(admin.clone()), &namespace).await;
            put::<PublicKey>(&admin, peer, &objects[0]).await;
            put::<Configuration>(&admin, peer, &objects[1]).await;
            let config = server.kubeconfig_with(NAMESPACE, &role).await;
            fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();

            server
        });

        Some(Self {
            namespace: Arc::clone(&own.gateway),
            server: Some(server),
            peer,
            folder,
            gateways: BTreeMap::new(),
        })
    }

    /// Starts a gateway with `arguments` as they are, in what looks like a pod.
    pub(crate) fn start(&mut self, name: &'static str, arguments: &[String]) {
        let namespace = Arc::clone(&self.namespace);

        self.start_in(&namespace, name, arguments);
    }

    /// The same in another namespace, where the API server is reached as well.
    pub(crate) fn start_in(
        &mut self,
        namespace: &Namespace,
        name: &'static str,
        arguments: &[String],
    ) {
        self.start_as(namespace, name, &[STRAIT], arguments);
    }

    /// The same with these words in place of the program, for another user or with other rights.
    pub(crate) fn start_as(
        &mut self,
        namespace: &Namespace,
        name: &'static str,
        program: &[&str],
        arguments: &[String],
    ) {
        let start = [
            format!("KUBECONFIG={}", self.folder.join("kubeconfig").display()),
            "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(),
            "STRAIT_PING_INTERVAL=200ms".to_owned(),
            format!("STRAIT_KEYS_DIR={}", self.folder.display()),
            format!("STRAIT_ADMIN_SOCKET={}", self.folder.join(format!("{name}.sock")).display()),
        ];
        let program = program.iter().map(|&word| word.to_owned());
        let arguments: Vec<_> =
            start.into_iter().chain(program).chain(arguments.iter().cloned()).collect();
        let log = self.folder.join(name);
        let program = Path::new("/usr/bin/env");
        let process = Process::start(namespace, name, program, arguments, log).unwrap();

        self.gateways.insert(name, process);
    }

    /// Kills a gateway, which has no time for last words.
    pub(crate) fn kill(&mut self, name: &str) {
        drop(self.take(name));
    }

    /// Ends a gateway in order.
    pub(crate) fn stop(&mut self, name: &str) {
        self.take(name).stop().unwrap();
    }

    /// Hands over a gateway, for the caller to stop. Dropping it kills it.
    pub(crate) fn take(&mut self, name: &str) -> Process {
        self.gateways.remove(name).unwrap()
    }

    /// Where its API server is reached on the loopback of its namespace.
    pub(crate) fn api_port(&self) -> u16 {
        self.server.as_ref().unwrap().port()
    }

    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        self.gateways[name].signal(signal).unwrap();
    }

    /// The id of the process.
    pub(crate) fn id(&self, name: &str) -> u32 {
        self.gateways[name].id()
    }

    pub(crate) fn log(&self, name: &str) -> String {
        self.gateways[name].log()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Until the `Connection` has this value.
    pub(crate) fn wait_for(&self, value: &'static str) {
        let name = format!("gw-{}", self.peer);
        wait_until(format!("{name} is {value}"), PATIENCE, || {
            let status = self.connection().and_then(|connection| connection.status);
            Ok(status.and_then(|status| status.value).as_deref() == Some(value))
        })
        .unwrap();
    }

    /// Until the gateway says this reason of the `Configuration`.
    pub(crate) fn wait_for_condition(&self, reason: &'static str) {
        let peer = self.peer;
        wait_until(format!("{peer} is {reason}"), PATIENCE, || {
            let found = self.ask(move |client| async move {
                Api::<Configuration>::namespaced(client, NAMESPACE)
                    .get_opt(peer)
                    .await
                    .ok()
                    .flatten()
            });
            let conditions = found.and_then(|found| found.status).unwrap_or_default().conditions;
            Ok(conditions.iter().any(|ours| ours.type_ == IN_FORCE && ours.reason == reason))
        })
        .unwrap();
    }

    pub(crate) fn connection(&self) -> Option<Connection> {
        let name = format!("gw-{}", self.peer);

        self.ask(move |client| async move {
            Api::<Connection>::namespaced(client, NAMESPACE).get_opt(&name).await.ok().flatten()
        })
    }

    /// Makes or changes the object of the peer.
    pub(crate) fn apply<K>(&self, object: &Value)
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let (peer, object) = (self.peer, object.clone());
        self.ask(move |client| async move { put::<K>(&client, peer, &object).await });
    }

    /// Replaces our own key as a whole, as the kubelet does, and waits until it is taken up.
    pub(crate) fn rotate(&self, key: &PrivateKey) {
        let raw = STANDARD.decode(key.to_base64().as_bytes()).unwrap();
        fs::write(self.folder.join("next"), raw).unwrap();
        fs::rename(self.folder.join("next"), self.folder.join("privateKey")).unwrap();

        let news = key.public_key().to_string();
        let is_known = || self.log("gateway").contains(&news);
        wait_until("the key is taken up", PATIENCE, || Ok(is_known())).unwrap();
    }

    /// The object of the peer has another key, and that is in force.
    pub(crate) fn learn(&self, key: &PrivateKey) {
        let text = key.public_key().to_string();
        let reloads = || self.log("gateway").matches("configuration reloaded").count();
        let before = reloads();
        self.apply::<PublicKey>(&json!({"spec": {"publicKey": text}}));

        wait_until("the key of the peer is in force", PATIENCE, || Ok(reloads() > before)).unwrap();
    }

    /// What `job` gives, an administrator of the cluster.
    pub(crate) fn ask<T, F>(&self, job: impl FnOnce(Client) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let client = self.server.as_ref().unwrap().client_later();

        within(&self.namespace, async move { job(client.await).await })
    }

    /// What a command line of an administrator says, which must succeed. It finds `kubectl` and `strait`.
    pub(crate) fn shell(&self, line: &str) -> String {
        let server = self.server.as_ref().unwrap();
        let admin = serde_json::to_vec(&server.kubeconfig_of_admin()).unwrap();
        fs::write(self.folder.join("admin"), admin).unwrap();

        shell(&self.namespace, server.assets(), &self.folder, line)
    }

    /// The page of the gateway that listens on [`HEALTH`].
    pub(crate) fn get(&self, path: &'static str) -> String {
        let (status, body) = self.namespace.run(move || scrape::get(HEALTH, path)).unwrap();
        assert_eq!(status, 200, "{path}: {body}");

        body
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.namespace.run(|| scrape::get(HEALTH, "/readyz")).is_ok_and(|(status, _)| status == 200)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&self.get("/metrics"))
    }

    pub(crate) fn config(&self) -> Value {
        serde_json::from_str(&self.get("/config")).unwrap()
    }

    /// What `kubectl get --output wide` shows: the heads of the columns, then a row an object.
    pub(crate) fn table(&self, plural: &'static str) -> Vec<Vec<String>> {
        let table: Value = self.ask(move |client| async move {
            let path = format!("/apis/networking.liqo.io/v1beta1/namespaces/{NAMESPACE}/{plural}");
            let request = http::Request::get(path)
                .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
                .body(Vec::new())
                .unwrap();
            client.request(request).await.unwrap()
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let columns = table["columnDefinitions"].as_array().unwrap();
        let head = columns.iter().map(|column| text(&column["name"])).collect();
        let rows = table["rows"].as_array().unwrap().iter();
        let rows = rows.map(|row| row["cells"].as_array().unwrap().iter().map(text).collect());

        [head].into_iter().chain(rows).collect()
    }

    /// Forgets what was before now.
    pub(crate) fn compact(&mut self) {
        let server = self.server.take().unwrap();
        self.server = Some(within(&self.namespace, async move {
            server.compact();
            server
        }));
    }

    pub(crate) fn kill_api_server(&mut self) {
        self.server.as_mut().unwrap().kill();
    }

    pub(crate) fn restart_api_server(&mut self) {
        let mut server = self.server.take().unwrap();
        self.server = Some(within(&self.namespace, async move {
            server.restart().await;
            server
        }));
    }

    pub(crate) fn finish(mut self) {
        for process in std::mem::take(&mut self.gateways).into_values() {
            process.stop().unwrap();
        }
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        for (name, process) in &self.gateways {
            eprintln!("log of gateway {name} to {}:\n{}", self.peer, process.log());
        }
    }
}

/// What a command line says in `namespace`, which must succeed. It finds `kubectl` among the `assets` and
/// `strait`; `folder` is its home, with the kubeconfig `admin` in it.
pub(crate) fn shell(namespace: &Namespace, assets: &Path, folder: &Path, line: &str) -> String {
    let strait = Path::new(STRAIT).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", assets.display(), strait.display());
    let mut command = Command::new("sh");
    command.args(["-euc", line]).env("PATH", path).env("KUBECONFIG", folder.join("admin"));
    command.env("HOME", folder).stdout(Stdio::piped()).stderr(Stdio::piped());

    let output = namespace.start(command).unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}\n{said}{error}", output.status);

    said
}

/// The flags of a gateway that takes the place of all containers.
pub(crate) fn whole(other: &Cluster, mode: Mode) -> Vec<String> {
    let peer = other.name;
    let mut arguments = vec![
        "gateway".to_owned(),
        format!("--name={peer}"),
        format!("--namespace={NAMESPACE}"),
        format!("--remote-cluster-id={peer}"),
        format!("--gateway-uid={UID}"),
        // Of no release of ours.
        "--enable-nft-monitor=true".to_owned(),
    ];
    match mode {
        Mode::Server => arguments.extend(["--mode=server".into(), "--listen-ports=51840".into()]),
        Mode::Client => arguments.extend([
            "--mode=client".to_owned(),
            // The first does not answer.
            format!("--endpoint-address=198.51.100.9,{}", other.underlay),
            "--dns-check-interval=1m".to_owned(),
            "--endpoint-port=51840".to_owned(),
        ]),
    }

    arguments
}

/// Until a ping arrives, and how long that took.
pub(crate) fn wait_for_ping(from: &Namespace, target: IpAddr) -> Duration {
    let start = strait_lab::now();
    wait_until(format!("{target} answers"), PATIENCE, || {
        Ok(Ping::new(target, 1).run(from).is_ok_and(|ping| ping.is_perfect()))
    })
    .unwrap();

    start.elapsed()
}

/// The key of the other gateway, and what its pods are called here.
fn objects(own: &Cluster, other: &Cluster) -> [Value; 2] {
    let [realm] = own.side.realms[..] else { panic!("one family") };
    let remote = other.side.realms[0].pods;

    [
        json!({"spec": {"publicKey": other.private_key.public_key().to_string()}}),
        json!({
            "spec": {"remote": {"cidr": {"pod": [remote]}}},
            "status": {"remote": {"cidr": {"pod": [realm.remapped]}}},
        }),
    ]
}

/// Makes or changes the object of a peer, its status as well.
pub(crate) async fn put<K>(client: &Client, peer: &str, object: &Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let api = Api::<K>::namespaced(client.clone(), NAMESPACE);
    let mut object = object.clone();
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"] = json!({"name": peer, "labels": {REMOTE_CLUSTER_ID: peer}});
    let parameters = PatchParams::apply("test");

    if object.get("spec").is_some() {
        api.patch(peer, &parameters, &Patch::Apply(&object)).await.unwrap();
    }
    if object.get("status").is_some() {
        api.patch_status(peer, &parameters, &Patch::Apply(&object)).await.unwrap();
    }
}

/// The result of `job`, run in the namespace.
pub(crate) fn within<T: Send + 'static>(
    namespace: &Namespace,
    job: impl Future<Output = T> + Send + 'static,
) -> T {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(LabError::io("start a runtime"))?;

        Ok(runtime.block_on(job))
    };

    namespace.run(run).unwrap()
}
