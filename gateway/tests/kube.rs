//! Two clusters, each with an API server of its own, joined by what their objects say.
//!
//! Both API servers live on the loopback of their gateway's namespace, so nothing here is seen from
//! outside. The gateways have the rights that their role gives them and no others.
//!
//! Needs root, `/dev/net/tun`, and what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

#![cfg(feature = "daemon")]
#![expect(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

#[expect(dead_code, clippy::disallowed_methods, reason = "shared with the tests of control")]
#[path = "../../control/tests/harness/mod.rs"]
mod api_server;
#[expect(dead_code, reason = "no tools are needed")]
#[path = "harness/require.rs"]
mod require;
#[expect(dead_code, reason = "these gateways have no configuration files")]
#[path = "harness/world.rs"]
mod world;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api_server::{ApiServer, create, install_api, role};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::api::{Configuration, Connection, PublicKey};
use control::objects::REMOTE_CLUSTER_ID;
use k8s_openapi::api::core::v1::Namespace as KubeNamespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Resource};
use require::Need::{Root, Tun};
use require::require;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_gateway::lab::process::Process;
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::{Cluster, LabError, Layout, Namespace, TwoClusters, wait_until};
use strait_gateway::wg::PrivateKey;
use world::{STRAIT, assert_traffic};

const NAMESPACE: &str = "liqo-tenant";
const UID: &str = "0b7ef1a4-6a4b-4d3d-8a6c-6f8b7a5d1c11";

/// What a slow machine needs for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn clusters_with_one_pod_cidr_are_joined_and_stay_so_without_their_api_servers() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::start(rome, milan, Mode::Client, &clusters) else {
        return;
    };
    let Some(in_milan) = Fed::start(milan, rome, Mode::Server, &clusters) else {
        return;
    };

    in_rome.wait_for("Connected");
    in_milan.wait_for("Connected");
    for (from, to) in [(rome, milan), (milan, rome)] {
        for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
            assert_traffic(from, to, target, seen_as);
        }
    }

    // Nobody notices that the API server is away.
    in_rome.kill_api_server();
    let target = rome.side.sees(&milan.side).next().unwrap();
    let ping = Ping::new(target, 200).run(&rome.pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    in_rome.restart_api_server();

    // Another name for the remote's pods, while everything runs.
    in_rome.apply::<Configuration>(&json!({
        "status": {"remote": {"cidr": {"pod": ["10.99.0.0/16"]}}},
    }));
    let renamed = "10.99.2.7".parse().unwrap();
    wait_until("the new name is in force", PATIENCE, || {
        Ok(Ping::new(renamed, 1).run(&rome.pod).is_ok_and(|ping| ping.is_perfect()))
    })
    .unwrap();
    assert!(!Ping::new(target, 1).run(&rome.pod).unwrap().is_perfect(), "the old name is gone");

    in_rome.finish();
    in_milan.finish();
}

/// Each key changes by itself, and the other cluster's object follows a moment later, or went before.
#[test]
fn a_rotated_secret_is_taken_up_without_losing_a_packet() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(in_rome) = Fed::start(rome, milan, Mode::Client, &clusters) else {
        return;
    };
    let Some(in_milan) = Fed::start(milan, rome, Mode::Server, &clusters) else {
        return;
    };
    in_rome.wait_for("Connected");
    in_milan.wait_for("Connected");
    let target = rome.side.sees(&milan.side).next().unwrap();
    let [rome_key, milan_key] = [PrivateKey::generate(), PrivateKey::generate()];

    let ping = Ping { interval: Duration::from_millis(60), ..Ping::new(target, 200) };
    let pinging = rome.pod.spawn(move || ping.run_here()).unwrap();
    in_rome.rotate(&rome_key);
    in_milan.learn(&rome_key);
    in_rome.learn(&milan_key);
    in_milan.rotate(&milan_key);
    assert!(!pinging.is_finished(), "the changes took longer than the traffic");
    let report = pinging.join().unwrap().unwrap();

    assert!(report.is_perfect(), "{report:?}");
    for (from, to) in [(rome, milan), (milan, rome)] {
        for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
            assert_traffic(from, to, target, seen_as);
        }
    }
    in_rome.finish();
    in_milan.finish();
}

#[derive(Clone, Copy)]
enum Mode {
    Server,
    Client,
}

/// A gateway and the API server that feeds it.
struct Fed {
    namespace: Arc<Namespace>,
    /// Taken out while a job in the namespace has it.
    server: Option<ApiServer>,
    process: Option<Process>,
    peer: &'static str,
    folder: PathBuf,
}

impl Fed {
    /// `None` if there can be no API server here.
    fn start(own: &Cluster, other: &Cluster, mode: Mode, clusters: &TwoClusters) -> Option<Self> {
        let peer = other.name;
        let server = within(&own.gateway, ApiServer::start())?;
        let folder = clusters.scratch.path().join(format!("fed-{}", own.name));
        fs::create_dir_all(&folder).unwrap();
        let key = STANDARD.decode(own.private_key.to_base64().as_bytes()).unwrap();
        fs::write(folder.join("privateKey"), key).unwrap();
        let objects = objects(own, other);
        let kubeconfig = folder.join("kubeconfig");

        let path = kubeconfig.clone();
        let server = within(&own.gateway, async move {
            let admin = server.client().await;
            install_api(&admin).await;
            let metadata = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
            create(
                Api::all(admin.clone()),
                &KubeNamespace { metadata, ..KubeNamespace::default() },
            )
            .await;
            put::<PublicKey>(&admin, peer, &objects[0]).await;
            put::<Configuration>(&admin, peer, &objects[1]).await;
            let config = server.kubeconfig_with(NAMESPACE, &gateway_role()).await;
            fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();

            server
        });
        let process = gateway(own, other, mode, &folder, &kubeconfig);

        Some(Self {
            namespace: Arc::clone(&own.gateway),
            server: Some(server),
            process: Some(process),
            peer,
            folder,
        })
    }

    /// Until the `Connection` has this value.
    fn wait_for(&self, value: &'static str) {
        let name = format!("gw-{}", self.peer);
        wait_until(format!("{name} is {value}"), PATIENCE, || {
            let client = self.client();
            let name = name.clone();
            let connection = within(&self.namespace, async move {
                Api::<Connection>::namespaced(client.await, NAMESPACE).get_opt(&name).await
            });
            let status = connection.ok().flatten().and_then(|connection| connection.status);
            Ok(status.and_then(|status| status.value).as_deref() == Some(value))
        })
        .unwrap();
    }

    /// Replaces the key as a whole, as the kubelet does, and waits until it is taken up.
    fn rotate(&self, key: &PrivateKey) {
        let raw = STANDARD.decode(key.to_base64().as_bytes()).unwrap();
        fs::write(self.folder.join("next"), raw).unwrap();
        fs::rename(self.folder.join("next"), self.folder.join("privateKey")).unwrap();

        let news = format!("public_key={}", key.public_key());
        wait_until("the key was taken up", PATIENCE, || Ok(self.log().contains(&news))).unwrap();
    }

    /// The object of the peer has another key, and that is in force.
    fn learn(&self, key: &PrivateKey) {
        let text = key.public_key().to_string();
        let before = self.log().matches("configuration reloaded").count();
        self.apply::<PublicKey>(&json!({"spec": {"publicKey": text}}));

        wait_until("the key of the peer was in force", PATIENCE, || {
            Ok(self.log().matches("configuration reloaded").count() > before)
        })
        .unwrap();
    }

    fn log(&self) -> String {
        self.process.as_ref().unwrap().log()
    }

    fn apply<K>(&self, object: &Value)
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let (client, peer, object) = (self.client(), self.peer, object.clone());
        within(&self.namespace, async move {
            put::<K>(&client.await, peer, &object).await;
        });
    }

    fn client(&self) -> impl Future<Output = Client> + Send + use<> {
        self.server.as_ref().unwrap().client_later()
    }

    fn kill_api_server(&mut self) {
        self.server.as_mut().unwrap().kill();
    }

    fn restart_api_server(&mut self) {
        let mut server = self.server.take().unwrap();
        self.server = Some(within(&self.namespace, async move {
            server.restart().await;
            server
        }));
    }

    fn finish(mut self) {
        self.process.take().unwrap().stop().unwrap();
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            eprintln!("log of the gateway to {}:\n{}", self.peer, process.log());
        }
    }
}

fn gateway(
    own: &Cluster,
    other: &Cluster,
    mode: Mode,
    folder: &Path,
    kubeconfig: &Path,
) -> Process {
    let peer = other.name;
    let mut arguments = vec![
        format!("KUBECONFIG={}", kubeconfig.display()),
        STRAIT.to_owned(),
        "gateway".to_owned(),
        "--kube".to_owned(),
        format!("--name={peer}"),
        format!("--namespace={NAMESPACE}"),
        format!("--remote-cluster-id={peer}"),
        format!("--gateway-uid={UID}"),
        format!("--keys-dir={}", folder.display()),
        format!("--admin-socket={}", folder.join("admin.sock").display()),
        "--ping-interval=200ms".to_owned(),
        "--health-probe-bind-address=:8085".to_owned(),
        // Of no release of ours.
        "--enable-nft-monitor=true".to_owned(),
    ];
    match mode {
        Mode::Server => arguments.extend(["--mode=server".into(), "--listen-ports=51840".into()]),
        Mode::Client => arguments.extend([
            "--mode=client".to_owned(),
            format!("--endpoint-address={}", other.underlay),
            "--endpoint-port=51840".to_owned(),
        ]),
    }
    let log = folder.join("log");

    Process::start(&own.gateway, peer, Path::new("/usr/bin/env"), arguments, log).unwrap()
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

/// What a gateway may do that reads configurations.
fn gateway_role() -> ClusterRole {
    role(
        "strait-gateway",
        &[
            (&["publickeies", "configurations"], &["get", "list", "watch"]),
            (&["connections"], &["create", "get", "update"]),
            (&["connections/status"], &["update"]),
        ],
    )
}

/// Makes or changes the object of a peer, its status as well.
async fn put<K>(client: &Client, peer: &str, object: &Value)
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
fn within<T: Send + 'static>(
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
