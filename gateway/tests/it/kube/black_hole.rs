//! A path that loses large packets, with another implementation of WireGuard and Liqo's connection check at its end.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use strait_control_lab::roles::shipped_role;
use strait_lab::traffic::{Amount, tcp};
use strait_lab::wait_until;
use strait_lab::{Layout, Namespace, TwoClusters, Underlay};
use strait_plan::conncheck::{MESSAGE_BYTES_MAX, PORT};

use crate::harness::kernel::run;
use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::interop::partner::{self, Installed, Partner};
use crate::kube::fed::{Fed, Mode, PATIENCE, wait_for_ping};
use crate::kube::peering::alone;

/// Liqo's default, in bytes.
const STOCK_MTU: u32 = 1340;

/// The MTU of the path, in bytes: in its black hole datagrams for [`STOCK_MTU`] are too long.
const NARROW: u32 = 1300;

/// What the path carries then: multiples of 16 bytes, and 60 less than [`NARROW`].
const NARROW_PATH_MTU: &str = "1232";

/// Routers with narrow links report no ICMP error, and fragments are lost behind them.
pub(crate) fn filter_errors_and_fragments(clusters: &TwoClusters) {
    let router = clusters.router.as_ref().unwrap();
    let errors = "table inet lost { chain leaving { type filter hook output priority 0; \
        icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }";
    run(router, "nft", &[errors]);
    let fragments = "table ip lost { chain arriving { type filter hook prerouting priority -500; \
        ip frag-off & 0x3fff != 0 drop; }; }";
    for cluster in [&clusters.rome, &clusters.milan] {
        run(&cluster.gateway, "nft", &[fragments]);
    }
}

#[test]
fn a_black_hole_to_a_stock_gateway_heals() {
    let needs = [Root, Tun, Tool("wg"), Tool("nft"), Tool("ip")];
    let Some(_turn) = require(&needs) else {
        return;
    };
    let Some(wireguard_go) = Installed::find(Partner::WireguardGo) else {
        return;
    };
    let underlay = Underlay { is_ipv6: false, is_routed: true, mtu_bytes: 1500 };
    let layout = Layout::equal().without_ipv6().with_underlay(underlay);
    let clusters = TwoClusters::new(&layout).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::new(rome, milan, shipped_role(), &clusters) else {
        return;
    };
    let stock = start_stock_gateway(&wireguard_go, &clusters);
    in_rome.start("gateway", &alone(milan, Mode::Client));
    in_rome.wait_for("Connected");
    wait_for_path_mtu(&in_rome, "device", "1340", PATIENCE);
    let targets = [(rome, milan), (milan, rome)]
        .map(|(from, to)| (from, to, from.side.sees(&to.side).next().unwrap()));
    for (from, _, target) in targets {
        wait_for_ping(&from.pod, target);
    }

    filter_errors_and_fragments(&clusters);
    for cluster in [rome, milan] {
        clusters.router.as_ref().unwrap().set_mtu(cluster.name, NARROW).unwrap();
    }
    wait_for_path_mtu(&in_rome, "probe", NARROW_PATH_MTU, Duration::from_secs(3));
    for (from, to, target) in targets {
        let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(5_000_000)).unwrap();
        assert!(bulk.is_intact, "{bulk:?}");
    }

    in_rome.finish();
    drop(stock);
}

fn wait_for_path_mtu(fed: &Fed, source: &'static str, bytes: &str, most: Duration) {
    let labels = [("peer", fed.peer), ("source", source)];
    wait_until(format!("the path carries {bytes} bytes"), most, || {
        Ok(fed.metrics().value("strait_peer_path_mtu_bytes", &labels) == Some(bytes))
    })
    .unwrap();
}

/// Milan's gateway as Liqo's three containers make it.
struct StockGateway {
    _tunnel: strait_lab::Process,
    is_over: Arc<AtomicBool>,
}

impl Drop for StockGateway {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn start_stock_gateway(installed: &Installed, clusters: &TwoClusters) -> StockGateway {
    let TwoClusters { rome, milan, scratch, .. } = clusters;
    let interface = partner::interface_name();
    let tunnel = partner::start(installed, clusters, &interface);
    milan.gateway.set_mtu(&interface, STOCK_MTU).unwrap();
    let key = scratch.write("stock.key", &milan.private_key.to_base64()).unwrap();
    let rome_key = rome.private_key.public_key().to_string();
    let settings = ["private-key", key.to_str().unwrap(), "listen-port", "51840"];
    let peer = ["peer", &rome_key, "allowed-ips", "0.0.0.0/0"];
    let arguments: Vec<_> = ["set", &interface].into_iter().chain(settings).chain(peer).collect();
    run(&milan.gateway, "wg", &arguments);
    partner::remap_with_nftables(milan, rome, &interface);
    let is_over = Arc::new(AtomicBool::new(false));
    answer_pings(&milan.gateway, Arc::clone(&is_over));

    StockGateway { _tunnel: tunnel, is_over }
}

/// As Liqo's `conncheck` does: it reads the first bytes of a datagram, and repeats the fields that it knows.
fn answer_pings(gateway: &Namespace, is_over: Arc<AtomicBool>) {
    let answer = move || -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        while !is_over.load(Ordering::Relaxed) {
            let Ok((len, source)) = socket.recv_from(&mut buffer) else { continue };
            let ping: Value = serde_json::from_slice(&buffer[..len])?;
            let pong = json!({
                "clusterID": ping["clusterID"],
                "msgType": "PONG",
                "timeStamp": ping["timeStamp"],
            });
            socket.send_to(pong.to_string().as_bytes(), source)?;
        }

        Ok(())
    };

    gateway.spawn(move || answer().unwrap()).unwrap();
}
