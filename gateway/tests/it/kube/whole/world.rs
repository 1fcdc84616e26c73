//! Both gateways, and what is around them.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use kube::api::Api;
use serde_json::{Value, json};
use strait_api::FirewallConfiguration;
use strait_control_lab::roles::stock_role;
use strait_lab::netlink::connect;
use strait_lab::process::find;
use strait_lab::topology::CLUSTER_LINK;
use strait_lab::{Cluster, LabError, Layout, Namespace, RemapSection, TwoClusters, wait_until};

use super::node::Node;
use super::objects::{self, HasConditions, INNER, INNER_GATEWAY, NODES, POD, VNIS};
use crate::harness::STRAIT;
use crate::kube::fed::{Fed, Mode, NAMESPACE, PATIENCE, whole};

/// The gateway in the run of the controllers.
const GATEWAY: &str = "milan";

/// The link between nodes and gateway.
const FABRIC_LINK: &str = "fabric";

/// Of Milan's pod.
pub(super) const PORT: u16 = 4711;

pub(super) struct World {
    pub(super) rome: Fed,
    pub(super) nodes: [Node; 2],
    pub(super) milan_pod: UdpSocket,
    clusters: TwoClusters,
    _fabric: Namespace,
}

impl World {
    /// `None` if there can be no API server here.
    pub(super) fn start() -> Option<Self> {
        let mut clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
        let mut role = stock_role();
        // A newer role has this as well.
        role.rules.as_mut().unwrap().push(objects::bindings_rule());
        let mut rome = Fed::new(&clusters.rome, &clusters.milan, role, &clusters)?;
        rome.ask(|client| async move { objects::create_all(&client).await });

        let fabric = fabric(&clusters.rome);
        let nodes =
            [0, 1].map(|node| Node::new(&fabric, [NODES[node], POD], VNIS[node], INNER[node]));
        start_milan(&mut clusters);
        start_rome(&mut rome, &clusters);
        let address = clusters.milan.side.pod_addresses().next().unwrap();
        let bind = move || UdpSocket::bind((address, PORT)).map_err(LabError::io("bind"));
        let milan_pod = clusters.milan.pod.run(bind).unwrap();
        milan_pod.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut world = Self { rome, nodes, milan_pod, clusters, _fabric: fabric };
        wait_until("the gateway is ready", PATIENCE, || Ok(world.rome.is_ready())).unwrap();
        for node in &mut world.nodes {
            node.resolve(INNER_GATEWAY);
        }
        world.rome.wait_for("Connected");
        world.assert_without_capabilities();

        Some(world)
    }

    fn assert_without_capabilities(&self) {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.rome.id("gateway"))).unwrap();
        let sets = status.lines().filter(|line| line.starts_with("Cap"));
        assert!(sets.clone().count() >= 5);
        assert!(sets.into_iter().all(|line| line.ends_with("\t0000000000000000")), "{status}");
    }

    /// What Milan's pod received last, and from where.
    pub(super) fn receive_at_milan(&self) -> (SocketAddr, Vec<u8>) {
        let mut buffer = [0; 2048];
        let (len, from) = self.milan_pod.recv_from(&mut buffer).unwrap();

        (from, buffer[..len].to_vec())
    }

    pub(super) fn assert_at_milan(&self, from: (&str, u16), payload: &[u8]) -> SocketAddr {
        let (source, received) = self.receive_at_milan();
        let expected = SocketAddr::new(from.0.parse().unwrap(), from.1);
        assert_eq!((source, &received[..]), (expected, payload));

        source
    }

    /// The time of the last handshake with Milan.
    pub(super) fn handshakes(&self) -> String {
        let metrics = self.rome.get("/metrics");
        let sample =
            metrics.lines().find(|line| line.contains("handshake") && line.contains("milan"));

        sample.expect("a sample").to_owned()
    }

    /// What was received and sent through the Geneve tunnel with these labels, in bytes.
    pub(super) fn tunnel_bytes(&self, labels: &str) -> [u64; 2] {
        let metrics = self.rome.get("/metrics");
        ["receive", "transmit"].map(|direction| {
            let sample = format!("liqo_geneve_{direction}_bytes_total{labels} ");
            let value = metrics.lines().find_map(|line| line.strip_prefix(&sample));
            value.unwrap_or_else(|| panic!("no {sample}: {metrics}")).parse().unwrap()
        })
    }

    /// Makes a `FirewallConfiguration` of one chain for this gateway.
    pub(super) fn apply_firewall(&self, name: &'static str, chain: Value) {
        self.rome.ask(move |client| async move {
            let object = json!({
                "apiVersion": "networking.liqo.io/v1beta1", "kind": "FirewallConfiguration",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": {
                    "networking.liqo.io/firewall-category": "gateway",
                    "networking.liqo.io/firewall-unique": GATEWAY,
                }},
                "spec": {"table": {"name": name, "family": "IPV4", "chains": [chain]}},
            });
            objects::put(&client, &object).await;
        });
    }

    pub(super) fn wait_for_condition(&self, name: &'static str, status: &'static str) {
        self.wait_for_condition_in::<FirewallConfiguration>(NAMESPACE, name, status);
    }

    pub(super) fn wait_for_condition_in<K: HasConditions>(
        &self,
        namespace: &'static str,
        name: &'static str,
        status: &'static str,
    ) {
        wait_until(format!("{name} is {status}"), PATIENCE, || {
            let found = self.rome.ask(move |client| async move {
                Api::<K>::namespaced(client, namespace).get(name).await.unwrap().conditions()
            });
            let ours = found.iter().find(|condition| condition.host == GATEWAY);
            Ok(ours.is_some_and(|ours| ours.type_ == "Applied" && ours.status == status))
        })
        .unwrap();
    }

    /// The binding of a `FirewallConfiguration` to this gateway.
    pub(super) fn binding(&self, of: &str) -> Option<Value> {
        let name = format!("{of}-gw-milan-0");

        self.rome.ask(move |client| async move {
            let api = objects::dynamic(&client, "FirewallConfigurationBinding", NAMESPACE);
            let found = api.get_opt(&name).await.unwrap();
            found.map(|found| serde_json::to_value(found).unwrap())
        })
    }

    pub(super) fn finish(self) {
        let Self { rome, mut clusters, .. } = self;
        rome.finish();
        clusters.milan.stop().unwrap();
    }
}

/// Nodes in place of the pod of Rome, with both addresses.
fn fabric(rome: &Cluster) -> Namespace {
    let fabric = Namespace::new("rome-nodes").unwrap();
    rome.gateway.remove_link(CLUSTER_LINK).unwrap();
    rome.gateway.set(&[("ipv4/ip_forward", "0")]).unwrap();
    connect((&fabric, FABRIC_LINK), (&rome.gateway, FABRIC_LINK), 1500).unwrap();
    for node in NODES {
        fabric.add_address(FABRIC_LINK, format!("{node}/24").parse().unwrap()).unwrap();
    }
    rome.gateway.add_address(FABRIC_LINK, format!("{POD}/24").parse().unwrap()).unwrap();

    fabric
}

/// From a file, with a device. It also reaches the external CIDR of Rome.
fn start_milan(clusters: &mut TwoClusters) {
    let TwoClusters { milan, scratch, .. } = clusters;
    let [peer] = &mut milan.config.peers[..] else { panic!("one peer") };
    let [remote, local] = ["10.70.0.0/16", "10.68.0.0/16"].map(|prefix| prefix.parse().unwrap());
    peer.allowed_ips.push(remote);
    peer.remaps.push(RemapSection { remote, local });

    milan.start(Path::new(STRAIT), scratch).unwrap();
}

/// As the template starts it, without any capability.
fn start_rome(rome: &mut Fed, clusters: &TwoClusters) {
    let mut arguments = whole(&clusters.milan, Mode::Client);
    arguments.extend(
        [
            "--edge=geneve",
            "--geneve-port=6091",
            "--node-name=rome-n1",
            "--pod-name=gw-milan-0",
            "--ping-enabled=false",
            "--metrics-address=127.0.0.1:8085",
            "--health-probe-bind-address=127.0.0.1:8085",
        ]
        .map(str::to_owned),
    );
    let setpriv = find("setpriv").unwrap().display().to_string();
    let program = [
        &*setpriv,
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--no-new-privs",
        "--",
        STRAIT,
    ];

    rome.start_as(&clusters.rome.gateway, "gateway", &program, &arguments);
}
