//! The kernel as an oracle: a namespace that forwards between two TUN devices, with nftables between.

use std::io::ErrorKind;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use strait_lab::LabError;
use strait_lab::Namespace;
use strait_lab::Realm;
use strait_lab::process::find;
use strait_lab::wait_until;
use tun_rs::{DeviceBuilder, SyncDevice};

/// The kernel forwards while we write. The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// The side of a gateway that a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The packet is outbound.
    Cluster,
    /// The packet is inbound.
    Tunnel,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Cluster => Self::Tunnel,
            Self::Tunnel => Self::Cluster,
        }
    }

    const fn link(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Tunnel => "tunnel",
        }
    }
}

/// How the kernel is to translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Packet by packet, by rewriting the address field.
    Stateless,
    /// Flow by flow, with NETMAP, which translates ICMP errors as well.
    Netmap,
}

/// A gateway made of the kernel alone.
pub(crate) struct Kernel {
    cluster: Arc<SyncDevice>,
    tunnel: Arc<SyncDevice>,
    namespace: Namespace,
}

impl Kernel {
    /// `remaps` are what the remote calls its pods and what we call them.
    pub(crate) fn new(method: Method, remaps: &[(IpNet, IpNet)]) -> Self {
        let namespace = Namespace::router("oracle").unwrap();
        let [cluster, tunnel] = [Side::Cluster, Side::Tunnel].map(|side| open(&namespace, side));
        for (side, table) in [(Side::Cluster, "100"), (Side::Tunnel, "101")] {
            let out = side.other().link();
            for family in ["-4", "-6"] {
                run(&namespace, "ip", &[family, "rule", "add", "iif", side.link(), "table", table]);
                let route = ["route", "add", "default", "dev", out, "table", table];
                run(&namespace, "ip", &[&[family][..], &route].concat());
            }
        }
        for (remote, local) in remaps {
            run(&namespace, "nft", &[&rules(method, *remote, *local)]);
        }

        Self { cluster, tunnel, namespace }
    }

    /// The same with NETMAP, and with one address of `shared` for all that `pods` do not hold.
    pub(crate) fn masquerading(remaps: &[(IpNet, IpNet)], pods: &[IpNet], shared: &[&str]) -> Self {
        let kernel = Self::new(Method::Netmap, remaps);
        for pods in pods {
            let family = if pods.addr().is_ipv4() { "ip" } else { "ip6" };
            let shared = shared.iter().find(|shared| shared.contains(':') == pods.addr().is_ipv6());
            let rules = format!(
                "table {family} nodes {{
                    chain outgoing {{
                        type nat hook postrouting priority 99;
                        oifname tunnel {family} saddr != {pods} snat to {}
                    }}
                }}",
                shared.unwrap()
            );
            run(&kernel.namespace, "nft", &[&rules]);
        }

        kernel
    }

    /// What comes out when all `packets` come in from `side`, as many as went in.
    pub(crate) fn pass_all(&self, side: Side, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for packet in packets {
            self.send(side, packet);
        }

        packets.iter().map_while(|_| self.next(side)).collect()
    }

    /// What comes out on the other side when `packet` comes in from `side`.
    pub(crate) fn pass(&self, side: Side, packet: &[u8]) -> Option<Vec<u8>> {
        self.send(side, packet);

        self.next(side)
    }

    fn send(&self, side: Side, packet: &[u8]) {
        let input = match side {
            Side::Cluster => &self.cluster,
            Side::Tunnel => &self.tunnel,
        };

        input.send(packet).unwrap();
    }

    /// The next packet that comes out of what came in from `side`.
    fn next(&self, side: Side) -> Option<Vec<u8>> {
        let output = match side {
            Side::Cluster => Arc::clone(&self.tunnel),
            Side::Tunnel => Arc::clone(&self.cluster),
        };
        let mut buffer = [0; 2048];
        let mut passed = None;
        let arrives = || match output.recv(&mut buffer) {
            Ok(len) if is_multicast(&buffer[..len]) => Ok(false),
            Ok(len) => {
                passed = Some(buffer[..len].to_vec());
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(LabError::io("read from a TUN device")(error)),
        };
        match wait_until("", PATIENCE, arrives) {
            Ok(()) | Err(LabError::TimedOut { .. }) => passed,
            Err(error) => panic!("{}: {error}", self.namespace.name()),
        }
    }
}

fn open(namespace: &Namespace, side: Side) -> Arc<SyncDevice> {
    let device = namespace
        .run(move || {
            DeviceBuilder::new()
                .name(side.link())
                .build_sync()
                .map_err(LabError::io("create a TUN device"))
        })
        .unwrap();
    device.set_nonblocking(true).unwrap();

    Arc::new(device)
}

/// The kernel itself speaks on its devices: listener reports and neighbour discovery.
fn is_multicast(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6 && packet[24] == 0xff
}

fn rules(method: Method, remote: IpNet, local: IpNet) -> String {
    let (family, ip) = match remote {
        IpNet::V4(_) => ("ip", "ip"),
        IpNet::V6(_) => ("ip6", "ip6"),
    };
    let host = remote.hostmask();
    let (to, from) = (remote.network(), local.network());

    match method {
        Method::Stateless => format!(
            "table {family} remap_{len} {{
                chain both {{
                    type filter hook prerouting priority -300;
                    iifname cluster {ip} daddr {local} {ip} daddr set {ip} daddr & {host} | {to}
                    iifname tunnel {ip} saddr {remote} {ip} saddr set {ip} saddr & {host} | {from}
                }}
            }}",
            len = remote.prefix_len()
        ),
        Method::Netmap => format!(
            "table {family} remap_{len} {{
                chain outgoing {{
                    type nat hook prerouting priority -100;
                    iifname cluster {ip} daddr {local} dnat prefix to {remote}
                }}
                chain incoming {{
                    type nat hook postrouting priority 100;
                    iifname tunnel {ip} saddr {remote} snat prefix to {local}
                }}
            }}",
            len = remote.prefix_len()
        ),
    }
}

/// How `one` sees the pods of `other`.
pub(crate) fn remaps(one: &[Realm], other: &[Realm]) -> Vec<(IpNet, IpNet)> {
    one.iter().zip(other).map(|(realm, remote)| (remote.pods, realm.remapped)).collect()
}

pub(crate) fn run(namespace: &Namespace, program: &str, arguments: &[&str]) {
    let mut command = Command::new(find(program).unwrap());
    command.args(arguments);

    let status = namespace.start(command).unwrap().wait().unwrap();

    assert!(status.success(), "{program} {arguments:?}");
}
