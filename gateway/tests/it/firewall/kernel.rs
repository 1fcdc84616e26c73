//! A gateway of the kernel with its tunnel and two nodes as TUN devices.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use remap::ruleset::{Device, NodeId};
use strait_lab::process::find;
use strait_lab::{LabError, Namespace, wait_until};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::probe::Probe;
use crate::harness::kernel::run;

/// The kernel forwards while we write. The rest is for a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// The MTU of all devices, in bytes.
pub(crate) const MTU: u16 = 1340;

/// Fewer than the queue of a device holds.
const BATCH: usize = 200;

/// The address of the gateway on its devices.
pub(crate) const TUNNEL_ADDRESS: &str = "169.254.18.2";
pub(crate) const FABRIC_ADDRESS: &str = "10.80.0.200";

/// What became of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// What came out, and where.
    pub(crate) sent: Option<(Device, Vec<u8>)>,
    /// Whether the source was told that the network is unreachable.
    pub(crate) is_rejected: bool,
}

/// The devices in the order of [`Kernel::devices`].
const TUNNEL: usize = 0;

pub(crate) struct Kernel {
    /// The tunnel, then the nodes.
    devices: Vec<SyncDevice>,
    /// Whether it sends an error for each packet it rejects. An older kernel limits those of all namespaces together.
    pub(crate) tells_every_source: bool,
    namespace: Namespace,
}

impl Kernel {
    /// `nodes` are the names of the devices of nodes.
    pub(crate) fn new(nodes: &[&str]) -> Self {
        let namespace = Namespace::router("firewall").unwrap();
        namespace
            .set(&[("ipv4/icmp_msgs_per_sec", "1000000"), ("ipv4/icmp_msgs_burst", "1000000")])
            .unwrap();
        let limit = "/proc/sys/net/ipv4/icmp_msgs_burst";
        let tells_every_source = namespace.run(|| Ok(Path::new(limit).exists())).unwrap();
        let names = [&["liqo-tunnel"][..], nodes].concat();
        let devices = names.iter().map(|name| open(&namespace, name)).collect();
        let kernel = Self { devices, tells_every_source, namespace };

        let address = |name: &str, address: &str| {
            kernel.ip(&format!("address add {address} dev {name}"));
        };
        address("liqo-tunnel", "169.254.18.2/30");
        for name in nodes {
            address(name, &format!("{FABRIC_ADDRESS}/32"));
        }
        // For the errors of the gateway itself; forwarded packets have the routes of objects alone.
        kernel.ip(&format!("route add default dev {} table 200", nodes.first().unwrap()));
        kernel.ip("rule add iif lo table 200 priority 32767");

        kernel
    }

    /// Calls `ip` with arguments that have no spaces.
    pub(crate) fn ip(&self, arguments: &str) {
        run(&self.namespace, "ip", &arguments.split_whitespace().collect::<Vec<_>>());
    }

    /// Calls `ip` for all routes: first those on links, which the next hops of others are on.
    pub(crate) fn route(&self, mut calls: Vec<String>) {
        calls.sort_by_key(|call| (!call.contains("scope link"), !call.starts_with("rule")));
        for call in &calls {
            self.ip(call);
        }
    }

    /// Installs `rules` in place of all others; `false` if the kernel or nft refuses them.
    pub(crate) fn install(&self, rules: &str) -> bool {
        let mut command = Command::new(find("nft").unwrap());
        command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = self.namespace.start(command).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(format!("flush ruleset\n{rules}").as_bytes()).unwrap();
        drop(input);

        child.wait().unwrap().success()
    }

    /// What becomes of each packet. Their identifications differ, and no packet is a fragment. If something is expected
    /// of a packet, it is waited for.
    pub(crate) fn pass(&self, packets: &[(Probe, bool)]) -> Vec<Passed> {
        let mut passed = Vec::with_capacity(packets.len());
        for batch in packets.chunks(BATCH) {
            for (probe, _) in batch {
                self.device(probe.input).send(&probe.to_bytes()).unwrap();
            }
            let mut of_batch = vec![Passed::default(); batch.len()];
            let arrives = || {
                self.collect(batch, &mut of_batch);
                let is_there = |passed: &Passed| passed.sent.is_some() || passed.is_rejected;
                let mut both = batch.iter().zip(&of_batch);
                Ok(both.all(|((_, is_expected), passed)| !is_expected || is_there(passed)))
            };
            match wait_until("", PATIENCE, arrives) {
                Ok(()) | Err(LabError::TimedOut { .. }) => passed.append(&mut of_batch),
                Err(error) => panic!("{}: {error}", self.namespace.name()),
            }
        }

        passed
    }

    /// All that the kernel made of `batch` so far.
    fn collect(&self, batch: &[(Probe, bool)], passed: &mut [Passed]) {
        let place = |id: u16| batch.iter().position(|(probe, _)| probe.id == id);
        let mut buffer = [0; 2048];
        for (index, device) in self.devices.iter().enumerate() {
            loop {
                let bytes = match device.recv(&mut buffer) {
                    Ok(len) => buffer[..len].to_vec(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("read from a TUN device: {error}"),
                };
                // Of IPv6 the kernel itself speaks.
                if bytes[0] >> 4 != 4 {
                    continue;
                }
                if let Some(quoted) = net_unreachable(&bytes) {
                    passed[place(identification(quoted)).unwrap()].is_rejected = true;
                } else {
                    let place = place(identification(&bytes)).unwrap();
                    passed[place].sent = Some((named(index), bytes));
                }
            }
        }
    }

    fn device(&self, device: Device) -> &SyncDevice {
        let index = match device {
            Device::Tunnel => TUNNEL,
            Device::Node(NodeId(node)) => 1 + usize::try_from(node).unwrap(),
        };

        &self.devices[index]
    }
}

fn named(index: usize) -> Device {
    match index {
        TUNNEL => Device::Tunnel,
        node => Device::Node(NodeId(u32::try_from(node - 1).unwrap())),
    }
}

fn open(namespace: &Namespace, name: &str) -> SyncDevice {
    let name = name.to_owned();
    let device = namespace
        .run(move || {
            DeviceBuilder::new()
                .name(name)
                .mtu(MTU)
                .build_sync()
                .map_err(LabError::io("create a TUN device"))
        })
        .unwrap();
    device.set_nonblocking(true).unwrap();

    device
}

/// Where the identification is in the IPv4 header.
fn identification(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[4], packet[5]])
}

/// The packet that an error of type 3 and code 0 quotes.
fn net_unreachable(packet: &[u8]) -> Option<&[u8]> {
    let is_error = packet[9] == 1 && packet[20] == 3;

    is_error.then(|| {
        assert_eq!(packet[21], 0, "net unreachable");
        &packet[28..]
    })
}
