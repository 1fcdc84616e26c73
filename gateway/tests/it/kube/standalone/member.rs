//! A cluster of one node, with a pod, on a network in common with others.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use strait_lab::Namespace;
use strait_lab::layout::host;
use strait_lab::netlink::connect;
use strait_lab::traffic::{Amount, Ping, tcp};

use super::pods::{Pod, UPLINK};
use super::site::{Place, Site};

/// Between nodes, in bytes.
const MTU: u32 = 1500;

const BYTES: u64 = 5_000_000;

/// A cluster and a pod in it.
pub(super) struct Member {
    pub(super) site: Site,
    pub(super) pod: Pod,
    /// The pod's address, from the start of the pod CIDR.
    number: u32,
}

impl Member {
    /// A cluster whose node is number `number` of `fabric`, with a pod whose address ends with `pod`. `None` if there can be
    /// no API server here.
    pub(super) fn start(
        name: &'static str,
        number: u8,
        pod: [u8; 2],
        fabric: &Namespace,
        scratch: &Path,
    ) -> Option<Self> {
        let node = Arc::new(Namespace::router(name).unwrap());
        connect((&*node, UPLINK), (fabric, name), MTU).unwrap();
        let address = IpAddr::from([198, 51, 100, number]);
        node.add_address(UPLINK, IpNet::new(address, 24).unwrap()).unwrap();
        let place = Place { name, node: &node, address, has_pods: true };
        let site = Site::start(&place, scratch)?;
        let [third, fourth] = pod;
        let number = u32::from(third) << 8 | u32::from(fourth);

        Some(Self { site, pod: Pod::new(&node, "pod".to_owned(), third, fourth), number })
    }

    /// What its pods call the pod of `other`.
    pub(super) fn calls(&self, other: &Self) -> IpAddr {
        self.calls_through(other, 0, other)
    }

    /// What its pods call the pod of `other`, by the name of the prefix at `place` of those that `via` has.
    pub(super) fn calls_through(&self, via: &Self, place: usize, other: &Self) -> IpAddr {
        host(self.prefix_at(via, place).parse().unwrap(), other.number)
    }

    pub(super) fn prefix_at(&self, via: &Self, place: usize) -> String {
        self.site.names(via.site.name)[place].clone()
    }

    /// The source that its pods see for packets from behind `hub` that the hub does not know.
    pub(super) fn calls_strangers_of(&self, hub: &Self) -> IpAddr {
        let (id, path) = (hub.site.name, "{.status.remote.cidr.external[0]}");
        let get = format!("kubectl -n liqo-tenant-{id} get configuration {id} -o jsonpath={path}");
        let external: IpNet = self.site.shell(&get).parse().unwrap();

        external.network()
    }

    /// Adds `prefix` to the prefixes of pods of the Configuration for `other`, on one of its two sides.
    pub(super) fn adds(&self, other: &Self, side: &str, prefix: &str) {
        let (id, path) = (other.site.name, format!("/spec/{side}/cidr/pod/-"));
        let patch = format!(r#"[{{"op":"add","path":"{path}","value":"{prefix}"}}]"#);
        self.site.shell(&format!(
            "kubectl -n liqo-tenant-{id} patch configuration {id} --type=json --patch='{patch}'"
        ));
    }

    /// As the chart does with `gateways.edge=overlay`.
    pub(super) fn gives_gateways_an_overlay(&self) {
        let pod = "/spec/template/spec/deployment/spec/template";
        let args = format!("{pod}/spec/containers/0/args/-");
        let patch = serde_json::json!([
            {"op": "add", "path": format!("{pod}/metadata/labels/strait.io~1edge"), "value": "overlay"},
            {"op": "add", "path": args, "value": "--edge=overlay"},
            {"op": "add", "path": args, "value": "--node-address=$(NODE_ADDRESS)"},
        ]);
        self.site.write("overlay", patch.to_string());
        for template in [
            "wggatewayservertemplates/wireguard-server",
            "wggatewayclienttemplates/wireguard-client",
        ] {
            self.site.shell(&format!(
                "kubectl -n liqo patch {template} --type=json --patch-file=$HOME/overlay"
            ));
        }
    }

    /// How many of three requests are answered.
    pub(super) fn answers(&self, target: IpAddr) -> u64 {
        Ping::new(target, 3).run(&self.pod.namespace).map_or(0, |report| report.received)
    }
}

pub(super) fn assert_tcp(from: &Member, to: &Member, target: IpAddr, seen_as: IpAddr) {
    let (here, there) = (&from.pod.namespace, &to.pod.namespace);
    let report = tcp(here, there, target, Amount::Bytes(BYTES)).unwrap();

    let way = format!("{} to {target}", from.site.name);
    assert!(report.is_intact && report.received_bytes == BYTES, "{way}: {report:?}");
    assert_eq!(report.client_seen_as.ip(), seen_as, "{way}");
}
