//! `strait operator` as a process: replicas, the end of one, and many gateways at once.
//!
//! Needs what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};
use strait_api::GatewayServer;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_control_lab::kubelet;
use strait_control_lab::roles::shipped_role;
use strait_control_lab::{ApiServer, create};
use strait_lab::now;
use strait_lab::scrape::{self, Metrics};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::harness::STRAIT;

/// What a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Peerings of a large hub.
const PEERINGS: usize = 200;

/// A cluster, and what operators need to reach it.
struct World {
    admin: Client,
    folder: TempDir,
    kubelet: JoinHandle<()>,
    _server: ApiServer,
}

impl World {
    /// `None` if there can be no API server here.
    async fn new() -> Option<Self> {
        let server = ApiServer::start_with_api().await?;
        let admin = server.client().await;
        namespace(&admin, "liqo").await;
        create(Api::all(admin.clone()), &shipped_role()).await;
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig_of_operator().await;
        fs::write(folder.path().join("kubeconfig"), serde_json::to_vec(&kubeconfig).unwrap())
            .unwrap();
        kubelet::node(&admin, "172.18.0.3").await;
        let kubelet = tokio::spawn(kubelet::run(admin.clone()));
        template(&admin).await;

        Some(Self { admin, folder, kubelet, _server: server })
    }

    fn start(&self, name: &str, more: &[&str]) -> Operator {
        let log = self.folder.path().join(name);
        let child = Command::new(STRAIT)
            .args(["operator", "--metrics-address=127.0.0.1:0", "--log-format=json"])
            .arg(format!("--pod-name={name}"))
            .args(more)
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();

        Operator { child, log }
    }

    /// Asks for a gateway to a cluster, in a namespace of its own.
    async fn ask_for(&self, cluster: &str) {
        let tenant = format!("liqo-tenant-{cluster}");
        namespace(&self.admin, &tenant).await;
        let server: GatewayServer = object(json!({
            "metadata": {"name": cluster, "labels": {REMOTE_CLUSTER_ID: cluster}},
            "spec": {
                "mtu": 1340,
                "endpoint": {"port": 51840, "serviceType": "NodePort"},
                "serverTemplateRef": {
                    "kind": "WgGatewayServerTemplate", "name": "strait-server", "namespace": "liqo",
                },
            },
        }));
        create(Api::namespaced(self.admin.clone(), &tenant), &server).await;
    }

    /// Waits until so many gateways are where clients can find them.
    async fn until_found(&self, count: usize) {
        let all: Api<GatewayServer> = Api::all(self.admin.clone());
        let start = now();
        loop {
            let servers = all.list(&ListParams::default()).await.unwrap();
            let is_found = |server: &&GatewayServer| {
                let status = server.status.as_ref();
                status
                    .is_some_and(|status| status.endpoint.is_some() && status.secret_ref.is_some())
            };
            let found = servers.items.iter().filter(is_found).count();
            if found >= count {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{found} of {count}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

/// A process, gone with the test.
struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// One of its pages; `None` before it serves any.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("metrics are served"))?;
        let line: Value = serde_json::from_str(line).unwrap();
        let address = line["address"].as_str().or(line["fields"]["address"].as_str()).unwrap();

        scrape::get(address.parse().unwrap(), path).ok()
    }

    fn leads(&self) -> bool {
        let page = self.get("/metrics").map(|(_, page)| Metrics::parse(&page));

        page.is_some_and(|metrics| metrics.sum("strait_operator_is_leader", &[]) == 1)
    }

    async fn until_it_leads(&self) {
        let start = now();
        while !self.leads() {
            assert!(start.elapsed() < PATIENCE, "{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Ends it in order.
    fn end(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.child.wait().unwrap()
    }

    /// The most memory it ever had, in MiB.
    fn peak_memory(&self) -> f64 {
        self.memory("VmHWM")
    }

    /// The pages of its program in memory.
    fn program_memory(&self) -> f64 {
        self.memory("RssFile")
    }

    /// A line of `/proc/PID/status`, in MiB.
    fn memory(&self, name: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();

        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn namespace(admin: &Client, name: &str) {
    let namespace: Namespace = object(json!({"metadata": {"name": name}}));
    create(Api::all(admin.clone()), &namespace).await;
}

async fn template(admin: &Client) {
    let text = include_str!("../../../deploy/liqo/server.yaml");
    let template: Value = serde_saphyr::from_str(text).unwrap();
    let kind = GroupVersionKind::gvk("networking.liqo.io", "v1beta1", "WgGatewayServerTemplate");
    let resource = ApiResource::from_gvk(&kind);
    let templates: Api<DynamicObject> = Api::namespaced_with(admin.clone(), "liqo", &resource);
    let parameters = PatchParams::apply("user");
    templates.patch("strait-server", &parameters, &Patch::Apply(&template)).await.unwrap();
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn one_replica_works_and_another_one_takes_over() {
    let Some(world) = World::new().await else { return };
    let quick = [
        "--leader-election-lease-duration=2s",
        "--leader-election-renew-deadline=1s",
        "--leader-election-retry-period=100ms",
    ];
    let first = world.start("operator-1", &quick);
    first.until_it_leads().await;
    let second = world.start("operator-2", &quick);
    world.ask_for("milan").await;
    world.until_found(1).await;
    assert_eq!(
        second.get("/readyz").unwrap(),
        (200, "ready: another replica is active\n".to_owned())
    );
    assert!(!second.leads());

    // One that has no time for last words.
    drop(first);
    second.until_it_leads().await;
    world.ask_for("oslo").await;
    world.until_found(2).await;
    let page = second.get("/metrics").unwrap().1;
    let rounds = [("kind", "GatewayServer"), ("result", "success")];
    assert!(Metrics::parse(&page).sum("strait_operator_reconciles_total", &rounds) >= 2, "{page}");

    // An operator that exits in order releases the Lease.
    assert!(second.end().success());
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), "liqo");
    let lease = leases.get("strait-operator").await.unwrap();
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.unwrap_or_default(), "");
}

#[tokio::test]
async fn two_operators_create_two_hundred_gateways() {
    let Some(world) = World::new().await else { return };
    let alone = ["--leader-election=false"];
    let operators = ["operator-1", "operator-2"].map(|name| world.start(name, &alone));
    let gateways = if is_strict() { PEERINGS } else { 20 };

    let start = now();
    for number in 0..gateways {
        world.ask_for(&format!("cluster-{number}")).await;
    }
    let asked = start.elapsed();
    world.until_found(gateways).await;
    let settled = start.elapsed();
    let memory = operators.each_ref().map(Operator::peak_memory);
    let program = operators.each_ref().map(Operator::program_memory);
    eprintln!(
        "{gateways} gateways asked for in {asked:?}, there after {settled:?}, with {memory:.1?} MiB, of the program {program:.1?}"
    );

    let limit = Duration::from_secs(if is_strict() { 30 } else { 60 });
    assert!(settled < limit, "{settled:?}");
    // Without the release profile the program is four times as large: 50 of 64 MiB were its own pages.
    for (memory, program) in memory.into_iter().zip(program) {
        let (used, most) = if is_strict() { (memory, 64.0) } else { (memory - program, 24.0) };
        assert!(used <= most, "{used} MiB of {memory}");
    }
    for operator in operators {
        let log = operator.log();
        assert!(!log.contains("cannot make it"), "{log}");
    }
}

#[test]
fn errors_are_reported_before_any_change() {
    for (words, problem) in [
        (&["--leader-election-lease-duration=1s"][..], "must be longer than -renew-deadline"),
        (&["--metrics-address=here"], "write ADDRESS:PORT, :PORT or 0 for off"),
        (&["--pools=10.0.0.0/8,10.1.0.0/16"], "pool 10.1.0.0/16 overlaps pool 10.0.0.0/8"),
        (&["--pools=10.0.0.1/8"], "10.0.0.0/8"),
        (&[], "nothing says where the API server is"),
    ] {
        let output = Command::new(STRAIT)
            .arg("operator")
            .args(words)
            .env_remove("KUBECONFIG")
            .env("HOME", "/nowhere")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {said}");
        assert!(said.contains(problem), "{words:?}: {said}");
    }
}

fn is_strict() -> bool {
    std::env::var_os("STRAIT_FIGURES").is_some()
}
