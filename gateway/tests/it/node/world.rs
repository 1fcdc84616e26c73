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

mod network;
mod objects;
mod state_page;

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
use strait_control_lab::roles::node_role;
use strait_control_lab::{ApiServer, create};
use strait_lab::Namespace;
use strait_lab::Scratch;
use strait_lab::netlink::{Via, connect};
use strait_lab::process::Process;
use strait_lab::scrape::{self, Metrics};
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_plan::conditions::NODE_ROUTES;
use tokio::runtime::Runtime;

use crate::harness::STRAIT;
use crate::harness::require::{Need, Turn, require};
use network::{forward, pod, wire};
use objects::prepare;
pub(crate) use state_page::StatePage;

/// What a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A pod of the remote cluster, as this one calls it.
pub(crate) const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 71, 2, 7));

/// The same of the other version.
pub(crate) const REMOTE_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0x71, 0, 0, 0, 0, 0, 7));

/// Where each agent serves its pages, in the namespace of its node.
const ADMIN: &str = "127.0.0.1:9483";

/// The port of the probes of a gateway pod.
pub(crate) const STATE_PORT: u16 = 8085;

pub(crate) const TENANT: &str = "liqo-tenant-rome";

/// The namespace of the agents.
const AGENTS: &str = "liqo";

const CONFIGURATION: &str = "rome";

const MTU: u32 = 1500;

pub(crate) struct World {
    pub(crate) nodes: Vec<Arc<Namespace>>,
    pub(crate) pods: Vec<Namespace>,
    /// Of the gateway of each node.
    pub(crate) gateways: Vec<Namespace>,
    fabric: Namespace,
    agents: [Option<Process>; 3],
    /// Whose agents the kernel may refuse something, as a test has it do.
    may_be_refused: [bool; 3],
    scratch: Scratch,
    runtime: Runtime,
    admin: Client,
    _server: ApiServer,
    /// Dropped last.
    _turn: Turn,
}

/// An address of the remote that only the gateway on one node leads to.
pub(crate) fn only_behind(node: usize) -> IpAddr {
    IpAddr::from([10, 71, 9, byte(node)])
}

fn gateway_name(node: usize) -> String {
    format!("gw-rome-{node}")
}

/// The address of the gateway on a node.
pub(crate) fn gateway_address(node: usize) -> IpAddr {
    [10, 244, byte(node), 9].into()
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
    /// Every node has an agent, and there is a Configuration with these prefixes of the remote, but no gateway; `None` if
    /// the machine cannot have that.
    pub(crate) fn running(prefixes: &[&str]) -> Option<Self> {
        let mut world = Self::new(&[Need::Root])?;
        world.start_all(&[]);
        world.put_configuration(prefixes);

        Some(world)
    }

    /// No agent runs yet, and there is neither a gateway nor a Configuration; `None` if something is missing that is
    /// needed, or if there can be no API server here.
    pub(crate) fn new(needs: &[Need]) -> Option<Self> {
        let turn = require(needs)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(ApiServer::start_with_api())?;
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
            gateways,
            fabric,
            agents: [const { None }; 3],
            may_be_refused: [false; 3],
            scratch,
            runtime,
            admin,
            _server: server,
            _turn: turn,
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

    /// Takes the network of the gateway on a node away.
    pub(crate) fn cut_gateway(&self, node: usize) {
        self.nodes[node - 1].remove_link("gateway").unwrap();
    }

    /// Makes the fabric answer for the remote to all packets that reach it.
    pub(crate) fn set_trap(&self) {
        self.fabric.add_address("lo", net(REMOTE, 32)).unwrap();
    }

    /// Gives a node an interface that no agent made.
    pub(crate) fn make_link(&self, node: usize, name: &str) {
        connect((&self.pods[node - 1], "spare"), (&self.nodes[node - 1], name), MTU).unwrap();
    }

    /// Until a node knows by which MAC address the node of the gateway sends.
    pub(crate) fn wait_for_split_horizon(&self, node: usize) {
        let is_known = || {
            let log = self.log(node);
            let mut tables = log.lines().filter(|line| line.contains("wrote the nftables table"));
            Ok(tables.next_back().is_some_and(|table| table.contains("not back to")))
        };
        wait_until(format!("node-{node} knows the gateway's node"), PATIENCE, is_known)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log(node)));
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

    /// Until this many gateways have told a node that they forward.
    pub(crate) fn wait_for_gateways(&self, node: usize, number: u64) {
        wait_until(format!("node-{node} knows {number} gateways"), PATIENCE, || {
            let page = self.try_get(node, "/metrics");
            let metrics = page.map(|(_, page)| Metrics::parse(&page));
            let forwards = [("forwards", "true")];
            Ok(metrics.is_some_and(|it| it.sum("strait_node_gateways", &forwards) == number))
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
        self.nft(node, &rules);
    }

    /// Runs a script of nftables on a node.
    pub(crate) fn nft(&self, node: usize, script: &str) {
        let mut nft = Command::new("nft");
        nft.arg(script);
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
