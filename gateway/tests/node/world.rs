//! The three nodes, their pods, and stand-ins for gateways.
//!
//! ```text
//!   pod ─ node-1 ─┐                     10.244.N.5 has each pod, 10.244.N.9 the gateway of node N
//!                 ├─ fabric ─ node-3 ─ pod     172.18.0.N are node-1 and node-2, one network
//!   pod ─ node-2 ─┘                            172.18.3.3 is node-3, behind a router
//! ```
//!
//! The fabric routes pods as a CNI without an overlay has it do, and knows nothing of remote clusters.
//! A stand-in for a gateway has the addresses of the remote itself.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strait_api::Configuration;
use strait_lab::Namespace;
use strait_lab::Scratch;
use strait_lab::netlink::{Via, connect};
use strait_lab::process::Process;
use strait_lab::scrape::{self, Metrics};
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_node::condition::NODE_ROUTES;
use tokio::runtime::Runtime;

use strait_control_lab::roles::node_role;
use strait_control_lab::{ApiServer, create, install_api};

/// The program under test.
pub(crate) const STRAIT: &str = env!("CARGO_BIN_EXE_strait");

/// What a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A pod of the remote cluster, as this one calls it.
pub(crate) const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 71, 2, 7));

/// The same of the other version.
pub(crate) const REMOTE_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0x71, 0, 0, 0, 0, 0, 7));

/// Where each agent serves its pages, in the namespace of its node.
const ADMIN: &str = "127.0.0.1:9483";

pub(crate) const TENANT: &str = "liqo-tenant-rome";

/// The namespace of the agents.
const AGENTS: &str = "liqo";

const CONFIGURATION: &str = "rome";

const MTU: u32 = 1500;

pub(crate) struct World {
    pub(crate) nodes: Vec<Arc<Namespace>>,
    pub(crate) pods: Vec<Namespace>,
    _gateways: Vec<Namespace>,
    fabric: Namespace,
    agents: [Option<Process>; 3],
    /// Whose agents the kernel may refuse something, as a test has it do.
    may_be_refused: [bool; 3],
    scratch: Scratch,
    runtime: Runtime,
    admin: Client,
    _server: ApiServer,
}

/// An address of the remote that only the gateway on one node leads to.
pub(crate) fn only_behind(node: usize) -> IpAddr {
    IpAddr::from([10, 71, 9, byte(node)])
}

fn gateway_name(node: usize) -> String {
    format!("gw-rome-{node}")
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap()
}

pub(crate) fn node_address(node: usize) -> IpAddr {
    if node == 3 { [172, 18, 3, 3].into() } else { [172, 18, 0, byte(node)].into() }
}

fn node_address_ipv6(node: usize) -> IpAddr {
    let network = if node == 3 { 3 } else { 0 };

    [0xfd00, 0x18, network, 0, 0, 0, 0, u16::from(byte(node))].into()
}

/// The `host`th address of the pods of a node.
fn pod_address_ipv6(node: usize, host: u8) -> IpAddr {
    [0xfd00, 0x244, 0, u16::from(byte(node)), 0, 0, 0, u16::from(host)].into()
}

fn net(address: impl Into<IpAddr>, len: u8) -> IpNet {
    IpNet::new(address.into(), len).unwrap()
}

impl World {
    /// No agent runs yet, and there is neither a gateway nor a Configuration; `None` if there can be no
    /// API server here.
    pub(crate) fn new() -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(ApiServer::start())?;
        let scratch = Scratch::new().unwrap();
        let admin = runtime.block_on(prepare(&server, scratch.path()));

        let fabric = Namespace::router("fabric").unwrap();
        let mut nodes = Vec::new();
        let (mut pods, mut gateways) = (Vec::new(), Vec::new());
        for number in 1..=3 {
            let node = Namespace::router(format!("node-{number}")).unwrap();
            connect((&node, "uplink"), (&fabric, &format!("port{number}")), MTU).unwrap();
            pods.push(pod(&node, number, "pod", 5));
            let gateway = pod(&node, number, "gateway", 9);
            gateway.add_address("lo", net(REMOTE, 32)).unwrap();
            gateway.add_address("lo", net(REMOTE_IPV6, 128)).unwrap();
            gateway.add_address("lo", net(only_behind(number), 32)).unwrap();
            gateways.push(gateway);
            forward(&node, server.port());
            nodes.push(Arc::new(node));
        }
        wire(&fabric, &nodes);

        Some(Self {
            nodes,
            pods,
            _gateways: gateways,
            fabric,
            agents: [const { None }; 3],
            may_be_refused: [false; 3],
            scratch,
            runtime,
            admin,
            _server: server,
        })
    }

    pub(crate) fn start_all(&mut self, flags: &[&str]) {
        for node in 1..=3 {
            self.start(node, flags);
        }
    }

    /// Starts the agent of a node as its pod would.
    pub(crate) fn start(&mut self, node: usize, flags: &[&str]) {
        let name = format!("node-{node}");
        let kubeconfig = self.scratch.path().join("kubeconfig");
        let start = [
            format!("KUBECONFIG={}", kubeconfig.display()),
            "KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned(),
            STRAIT.to_owned(),
            "node".to_owned(),
            format!("--node-name={name}"),
            format!("--metrics-address={ADMIN}"),
        ];
        let words = start.into_iter().chain(flags.iter().map(|&flag| flag.to_owned()));
        let log = self.scratch.path().join(format!("{name}.log"));
        let env = Path::new("/usr/bin/env");
        let agent = Process::start(&self.nodes[node - 1], name, env, words, log).unwrap();

        self.agents[node - 1] = Some(agent);
        wait_until("the agent serves its pages", PATIENCE, || {
            Ok(self.try_get(node, "/healthz").is_some())
        })
        .unwrap();
    }

    /// Ends the agent of a node in order. Nothing was refused to it.
    pub(crate) fn stop(&mut self, node: usize) {
        let refused = [("result", "error")];
        let refused = self.metrics(node).sum("strait_node_changes_total", &refused);
        assert!(refused == 0 || self.may_be_refused[node - 1], "{}", self.log(node));

        self.agents[node - 1].take().unwrap().stop().unwrap();
    }

    /// From now on the kernel may refuse something to the agent of a node.
    pub(crate) fn expect_refusals(&mut self, node: usize) {
        self.may_be_refused[node - 1] = true;
    }

    /// What `strait node --clean-up` says on a node.
    pub(crate) fn clean_up(&self, node: usize) -> String {
        let mut command = Command::new(STRAIT);
        command.args(["node", "--clean-up"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.nodes[node - 1].start(command).unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn log(&self, node: usize) -> String {
        let log = self.scratch.path().join(format!("node-{node}.log"));

        fs::read_to_string(log).unwrap_or_default()
    }

    /// Makes the gateway on a node the active one, in place of any other.
    pub(crate) fn put_gateway(&self, node: usize) {
        self.runtime.block_on(remove_pods(&self.admin));
        self.add_gateway(node, "true");
    }

    /// Has a replica of the gateway run on a node, which is not the active one.
    pub(crate) fn stand_by(&self, node: usize) {
        self.add_gateway(node, "false");
    }

    /// A replica becomes the active one, as the one before is no more.
    pub(crate) fn take_over(&self, node: usize) {
        self.label(node, Some("true"));
    }

    /// The active one is that no more, and runs on.
    pub(crate) fn step_down(&self, node: usize) {
        self.label(node, None);
    }

    fn label(&self, node: usize, is_active: Option<&str>) {
        let name = gateway_name(node);
        let label = json!({"metadata": {"labels": {"networking.liqo.io/active": is_active}}});
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), TENANT);
        self.runtime.block_on(async {
            pods.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        });
    }

    fn add_gateway(&self, node: usize, is_active: &str) {
        let address = format!("10.244.{node}.9");
        let pod = json!({
            "metadata": {
                "name": gateway_name(node),
                "labels": {
                    "networking.liqo.io/component": "gateway", "networking.liqo.io/active": is_active,
                },
            },
            "spec": {
                "nodeName": format!("node-{node}"), "containers": [{"name": "strait", "image": "strait:dev"}],
            },
            "status": {"phase": "Running", "podIP": address, "podIPs": [
                {"ip": address}, {"ip": pod_address_ipv6(node, 9).to_string()},
            ]},
        });
        let admin = self.admin.clone();
        self.runtime.block_on(put::<Pod>(Api::namespaced(admin, TENANT), &pod));
    }

    /// There is a pod for the agent of a node, which is ready or not.
    pub(crate) fn put_agent(&self, node: usize, is_ready: bool) {
        self.put_agent_in(AGENTS, node, is_ready);
    }

    /// The same, wherever somebody made it.
    pub(crate) fn put_agent_in(&self, namespace: &str, node: usize, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {
                "name": format!("strait-node-{node}"),
                "labels": {"app.kubernetes.io/name": "strait-node"},
            },
            "spec": {
                "nodeName": format!("node-{node}"), "containers": [{"name": "node", "image": "strait:dev"}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
        });
        let admin = self.admin.clone();
        self.runtime.block_on(put::<Pod>(Api::namespaced(admin, namespace), &pod));
    }

    /// No pod of a gateway is there any more, as far as the API server knows; what carried packets goes on.
    pub(crate) fn remove_gateway(&self) {
        self.runtime.block_on(remove_pods(&self.admin));
    }

    /// Takes the network of the gateway on a node away.
    pub(crate) fn cut_gateway(&self, node: usize) {
        self.nodes[node - 1].remove_link("gateway").unwrap();
    }

    pub(crate) fn put_configuration(&self, names: &[&str]) {
        let remote = names.iter().enumerate().map(|(number, name)| match name.split_once("::") {
            Some((_, len)) => format!("fd01:{number}::{len}"),
            None => format!("10.{number}.0.0/16"),
        });
        let remote: Vec<_> = remote.collect();
        let configuration = json!({
            "metadata": {
                "name": CONFIGURATION, "labels": {"liqo.io/remote-cluster-id": CONFIGURATION},
            },
            "spec": {
                "local": {"cidr": {"pod": ["10.244.0.0/16"]}}, "remote": {"cidr": {"pod": remote}},
            },
            "status": {"remote": {"cidr": {"pod": names}}},
        });
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);

        self.runtime.block_on(put(api, &configuration));
    }

    /// What nodes are to have said already.
    pub(crate) fn say(&self, message: &str) {
        let condition = json!({
            "type": NODE_ROUTES, "status": "False", "reason": "NodeProblem", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);
        let patch =
            async { api.patch_status(CONFIGURATION, &PatchParams::default(), &status).await };

        self.runtime.block_on(patch).unwrap();
    }

    /// Has the Node of a node have these addresses.
    pub(crate) fn set_addresses(&self, node: usize, addresses: &[IpAddr]) {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address.to_string()}))
            .collect();
        let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
        let api: Api<Node> = Api::all(self.admin.clone());
        let patch = async {
            api.patch_status(&format!("node-{node}"), &PatchParams::default(), &status).await
        };

        self.runtime.block_on(patch).unwrap();
    }

    pub(crate) fn remove_configuration(&self) {
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);

        self.runtime.block_on(api.delete(CONFIGURATION, &DeleteParams::default())).unwrap();
    }

    /// Has the fabric itself answer for the remote to whatever reaches it.
    pub(crate) fn set_trap(&self) {
        self.fabric.add_address("lo", net(REMOTE, 32)).unwrap();
    }

    /// Gives a node an interface that is nobody's.
    pub(crate) fn make_link(&self, node: usize, name: &str) {
        connect((&self.pods[node - 1], "spare"), (&self.nodes[node - 1], name), MTU).unwrap();
    }

    /// Until packets for the first prefix go this way from a node.
    pub(crate) fn wait_for_way(&self, node: usize, way: &'static str) {
        wait_until(format!("node-{node} goes by {way}"), PATIENCE, || {
            let page = self.try_get(node, "/metrics");
            let metrics = page.map(|(_, page)| Metrics::parse(&page));
            Ok(metrics
                .is_some_and(|metrics| metrics.sum("strait_node_prefixes", &[("way", way)]) > 0))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.log(node)));
    }

    /// Until packets go to the gateway on another node, or on this one.
    pub(crate) fn wait_for_way_to(&self, node: usize, gateway: usize) {
        let is_far = (node == 3) != (gateway == 3);
        let way = if node == gateway {
            "pod"
        } else if is_far {
            "vxlan"
        } else {
            "direct"
        };

        self.wait_for_way(node, way);
    }

    /// Until the pod of a node has an answer.
    pub(crate) fn wait_for_ping(&self, node: usize, target: IpAddr) {
        wait_until(format!("{target} answers the pod of node-{node}"), PATIENCE, || {
            let ping = Ping::new(target, 1).run(&self.pods[node - 1]);
            Ok(ping.is_ok_and(|ping| ping.is_perfect()))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.log(node)));
    }

    /// What nodes say of the Configuration: status and message.
    pub(crate) fn condition(&self) -> Option<(String, String)> {
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);
        let found = self.runtime.block_on(api.get(CONFIGURATION)).unwrap();
        let conditions = found.status.unwrap_or_default().conditions;
        let ours = conditions.into_iter().find(|condition| condition.type_ == NODE_ROUTES)?;

        Some((ours.status, ours.message))
    }

    /// Until that is said.
    pub(crate) fn wait_for_condition(&self, status: &str, parts: &[&str]) {
        let is_said = |(said, message): &(String, String)| {
            said == status && parts.iter().all(|part| message.contains(part))
        };
        let waited = wait_until(format!("it is {status}, {parts:?}"), PATIENCE, || {
            Ok(self.condition().as_ref().is_some_and(is_said))
        });
        waited.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", self.condition(), self.log(1)));
    }

    /// Has a node do what CNIs do that know nothing of remote clusters.
    pub(crate) fn masquerade(&self, node: usize) {
        let rules = format!(
            "table ip cni {{\nchain postrouting {{\ntype nat hook postrouting priority srcnat;\n\
             ip saddr 10.244.{node}.0/24 ip daddr != 10.244.0.0/16 masquerade\n}}\n}}\n"
        );
        let mut nft = Command::new("nft");
        nft.arg(rules);
        assert!(self.nodes[node - 1].start(nft).unwrap().wait().unwrap().success());
    }

    /// A page of the agent of a node.
    pub(crate) fn get(&self, node: usize, path: &'static str) -> (u16, String) {
        self.try_get(node, path).unwrap_or_else(|| panic!("no answer:\n{}", self.log(node)))
    }

    fn try_get(&self, node: usize, path: &'static str) -> Option<(u16, String)> {
        let address: SocketAddr = ADMIN.parse().unwrap();

        self.nodes[node - 1].run(move || scrape::get(address, path)).ok()
    }

    pub(crate) fn metrics(&self, node: usize) -> Metrics {
        Metrics::parse(&self.get(node, "/metrics").1)
    }

    /// Every agent still runs, ends in order, and was never refused anything by the kernel.
    pub(crate) fn finish(mut self) {
        for node in 1..=3 {
            if self.agents[node - 1].is_some() {
                self.stop(node);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            for node in 1..=3 {
                let _ = writeln!(io::stderr(), "log of node-{node}:\n{}", self.log(node));
            }
        }
    }
}

/// Objects that are always there, and a kubeconfig with the rights of an agent.
async fn prepare(server: &ApiServer, folder: &Path) -> Client {
    let admin = server.client().await;
    install_api(&admin).await;
    for name in [TENANT, AGENTS] {
        let namespace: KubeNamespace = object(json!({"metadata": {"name": name}}));
        create(Api::all(admin.clone()), &namespace).await;
    }
    for number in 1..=3 {
        let node = json!({
            "metadata": {"name": format!("node-{number}")},
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
            "status": {"addresses": [
                {"type": "InternalIP", "address": node_address(number).to_string()},
                {"type": "InternalIP", "address": node_address_ipv6(number).to_string()},
            ]},
        });
        put::<Node>(Api::all(admin.clone()), &node).await;
    }
    let mut kubeconfig = server.kubeconfig_with(AGENTS, &node_role()).await;
    for context in kubeconfig.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        context.namespace = Some(AGENTS.to_owned());
    }
    fs::write(folder.join("kubeconfig"), serde_json::to_vec(&kubeconfig).unwrap()).unwrap();

    admin
}

async fn remove_pods(admin: &Client) {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), TENANT);
    let now = DeleteParams::default().grace_period(0);
    for pod in pods.list(&Default::default()).await.unwrap() {
        pods.delete(pod.metadata.name.as_deref().unwrap(), &now).await.unwrap();
    }
}

/// Makes or changes an object and its status.
async fn put<K>(api: Api<K>, value: &Value)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let wanted: K = object(value.clone());
    let name = wanted.meta().name.clone().unwrap();
    if api.get_opt(&name).await.unwrap().is_none() {
        api.create(&PostParams::default(), &wanted).await.unwrap();
    } else {
        let spec = Patch::Merge(json!({"spec": value["spec"]}));
        api.patch(&name, &PatchParams::default(), &spec).await.unwrap();
    }
    let status = Patch::Merge(json!({"status": value["status"]}));
    api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A pod on a node: its address is on no network, and the node has a route to it.
fn pod(node: &Namespace, number: usize, link: &str, host: u8) -> Namespace {
    // Gateways forward; others are not asked to.
    let pod = Namespace::router(format!("{link} of {}", node.name())).unwrap();
    let address = IpAddr::from([10, 244, byte(number), host]);
    connect((node, link), (&pod, "eth0"), MTU).unwrap();
    pod.add_address("eth0", net(address, 32)).unwrap();
    node.add_route(net(address, 32), link, Via::Link).unwrap();
    // What a node has for its pods in every CNI that gives them a link each.
    node.add_address(link, net([169, 254, byte(number), host], 32)).unwrap();
    let router = IpAddr::from([169, 254, byte(number), host]);
    pod.add_route(net([0, 0, 0, 0], 0), "eth0", Via::Router(router)).unwrap();

    let address = pod_address_ipv6(number, host);
    pod.add_address("eth0", net(address, 128)).unwrap();
    node.add_route(net(address, 128), link, Via::Link).unwrap();
    let router: IpAddr =
        [0xfd00, 0x169, 0, u16::from(byte(number)), 0, 0, 0, u16::from(host)].into();
    node.add_address(link, net(router, 128)).unwrap();
    pod.add_route(net(Ipv6Addr::UNSPECIFIED, 0), "eth0", Via::Router(router)).unwrap();

    pod
}

/// Node 1 and 2 on one network, node 3 on another one; pods are routed by the fabric.
fn wire(fabric: &Namespace, nodes: &[Arc<Namespace>]) {
    fabric.bridge("bridge", &["port1", "port2"]).unwrap();
    fabric.add_address("bridge", net([172, 18, 0, 254], 24)).unwrap();
    fabric.add_address("port3", net([172, 18, 3, 254], 24)).unwrap();
    let routers = [0, 3].map(|network| IpAddr::from([0xfd00, 0x18, network, 0, 0, 0, 0, 0xfe]));
    fabric.add_address("bridge", net(routers[0], 64)).unwrap();
    fabric.add_address("port3", net(routers[1], 64)).unwrap();
    for (node, number) in nodes.iter().zip(1..) {
        let (address, router) = (node_address_ipv6(number), routers[usize::from(number == 3)]);
        let port = if number == 3 { "port3" } else { "bridge" };
        node.add_address("uplink", net(address, 64)).unwrap();
        let default = net(Ipv6Addr::UNSPECIFIED, 0);
        node.add_route(default, "uplink", Via::Router(router)).unwrap();
        let pods = net(pod_address_ipv6(number, 0), 64);
        fabric.add_route(pods, port, Via::Router(address)).unwrap();

        let address = node_address(number);
        node.add_address("uplink", net(address, 24)).unwrap();
        let (router, port) = match number {
            3 => (IpAddr::from([172, 18, 3, 254]), "port3"),
            _ => (IpAddr::from([172, 18, 0, 254]), "bridge"),
        };
        node.add_route(net([0, 0, 0, 0], 0), "uplink", Via::Router(router)).unwrap();
        let pods = net([10, 244, byte(number), 0], 24);
        fabric.add_route(pods, port, Via::Router(address)).unwrap();
    }
}

/// Whoever is in `node` reaches the API server there as if it were its own.
fn forward(node: &Namespace, port: u16) {
    let listener = node.run(move || Ok(TcpListener::bind(("127.0.0.1", port)).unwrap())).unwrap();
    // Ends with the test.
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { return };
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
