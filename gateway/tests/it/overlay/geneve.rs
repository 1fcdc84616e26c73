//! A node with Geneve of a genuine kernel, which runs as a program because few kernels have Geneve.
//!
//! ```text
//!   pod and node (User Mode Linux) ══ Geneve ══ gateway ── underlay ── gateway ── pod
//! ```
//!
//! Its Geneve sends without outer UDP checksums, as that of Liqo's nodes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strait_lab::topology::CLUSTER_LINK;
use strait_lab::traffic::Ping;
use strait_lab::{
    Cluster, LabError, Layout, NodeSection, OverlaySection, Process, TwoClusters, wait_until,
};

use super::NEEDS;
use super::world::without_capabilities;
use crate::harness::STRAIT;
use crate::harness::require::Need::{Tool, Tun, UserModeLinux};
use crate::harness::require::{require, user_mode_linux};
use crate::harness::tools::ip;

/// Liqo's port, and any identifier.
const PORT: u16 = 6091;
const VNI: u32 = 7;

/// The link of the gateway to its node.
const FABRIC_LINK: &str = "fabric";

const NODE: [u8; 4] = [172, 16, 3, 1];

/// How long the node may take to boot, and to transfer everything.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_node_with_its_kernels_geneve_talks() {
    let [root, ip, setpriv] = NEEDS;
    let needs = [root, ip, setpriv, Tun, Tool("insmod"), UserModeLinux];
    let (Some(_turn), Some(kernel)) = (require(&needs), user_mode_linux()) else { return };
    let mut clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
    prepare_gateway(&mut clusters.rome);
    let program = without_capabilities(&clusters);
    let TwoClusters { milan, rome, scratch, .. } = &mut clusters;
    milan.start(Path::new(STRAIT), scratch).unwrap();
    rome.start(&program, scratch).unwrap();
    rome.process().unwrap().wait_for_session().unwrap();
    let target = rome.side.sees(&milan.side).next().unwrap();
    let seen_as = milan.side.sees(&rome.side).next().unwrap();
    let pod = rome.side.pod_addresses().next().unwrap();

    let bind = || TcpListener::bind("0.0.0.0:0").map_err(LabError::io("listen"));
    let listener = milan.pod.run(bind).unwrap();
    let port = listener.local_addr().unwrap().port();
    let copy = scratch.path().join("copy");
    let script = script(&kernel, pod, target, port, &copy);
    let init = scratch.write("init", &script).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o700)).unwrap();
    let mut node = boot(&kernel, rome, &init, scratch.path().join("node.log"));

    let content = content();
    let (mut download, client) = accept(&listener);
    assert_eq!(client, seen_as);
    download.write_all(&content).unwrap();
    drop(download);
    let mut received = Vec::new();
    accept(&listener).0.read_to_end(&mut received).unwrap();
    let ping = Ping::new(seen_as, 5).run(&milan.pod).unwrap();
    drop(accept(&listener));
    wait_until("the node is off".to_owned(), PATIENCE, || Ok(node.status()?.is_some())).unwrap();

    let log = node.log();
    assert!(received == content, "{} bytes:\n{log}", received.len());
    assert!(ping.is_perfect(), "{ping:?}\n{log}");
    assert!(log.contains("5 received"), "{log}");
    for cluster in [&clusters.milan, &clusters.rome] {
        cluster.metrics_at_rest().unwrap();
    }
    clusters.stop().unwrap();
}

/// Gives the gateway a link to the node in place of that to its pod.
fn prepare_gateway(cluster: &mut Cluster) {
    let gateway = &cluster.gateway;
    gateway.remove_link(CLUSTER_LINK).unwrap();
    gateway.set(&[("ipv4/ip_forward", "0")]).unwrap();
    ip(gateway, &format!("tuntap add {FABRIC_LINK} mode tap vnet_hdr"));
    ip(gateway, &format!("address add 172.16.3.2/24 dev {FABRIC_LINK}"));
    ip(gateway, &format!("link set {FABRIC_LINK} up"));
    let pods = cluster.side.realms.iter().map(|realm| realm.pods).collect();
    cluster.config.set_overlay(OverlaySection {
        encapsulation: "geneve",
        port: PORT,
        vni: VNI,
        nodes: vec![NodeSection { address: NODE.into(), mac: None, pods }],
    });
}

/// What the kernel executes: the node gets Geneve and the address of a pod, gets a file from `target` and sends it back.
fn script(kernel: &Path, pod: IpAddr, target: IpAddr, port: u16, copy: &Path) -> String {
    let modules = kernel.join("usr/lib/uml/modules");
    let (modules, copy) = (modules.display(), copy.display());

    format!(
        r"#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
cd {modules}/*
# A module needs those behind it.
dependencies=$(sed -n 's#^\(kernel/drivers/net/geneve.ko\): #\1 #p' modules.dep)
for module in $(printf '%s\n' $dependencies | tac); do insmod $module; done
ip link set lo up
ip address add {pod}/32 dev lo
ip link set vec0 up
ip address add 172.16.3.1/24 dev vec0
ip link add g0 type geneve id {VNI} remote 172.16.3.2 dstport {PORT}
ip address add 169.254.83.83/32 dev g0
ip link set g0 up
ip route add {target} via 169.254.83.1 dev g0 onlink src {pod}
ping -c 5 -i 0.2 {target}
cat < /dev/tcp/{target}/{port} > {copy}
cat {copy} > /dev/tcp/{target}/{port}
cat < /dev/tcp/{target}/{port}
poweroff -f
"
    )
}

/// Starts the kernel of a node, whose network card is the other end of the gateway's link.
fn boot(kernel: &Path, cluster: &Cluster, init: &Path, log: PathBuf) -> Process {
    let arguments = [
        "mem=128M".to_owned(),
        "rootfstype=hostfs".to_owned(),
        "rw".to_owned(),
        format!("init={}", init.display()),
        "con=null".to_owned(),
        "con0=fd:0,fd:1".to_owned(),
        "quiet".to_owned(),
        format!("vec0:transport=tap,ifname={FABRIC_LINK}"),
    ];

    Process::start(&cluster.gateway, "node", &kernel.join("usr/bin/linux.uml"), arguments, log)
        .unwrap()
}

/// The next connection, and the address that it comes from.
fn accept(listener: &TcpListener) -> (std::net::TcpStream, IpAddr) {
    listener.set_nonblocking(true).unwrap();
    let mut accepted = None;
    wait_until("the node connects".to_owned(), PATIENCE, || {
        accepted = listener.accept().ok();
        Ok(accepted.is_some())
    })
    .unwrap();
    let (stream, client) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();

    (stream, client.ip())
}

/// Five megabytes that repeat nowhere near.
fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state.to_be_bytes()[0]
    });

    bytes.take(5_000_000).collect()
}
