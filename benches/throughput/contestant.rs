//! One contestant at work: the topology of the demo with its gateways in it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use strait_gateway::lab::topology::{CLUSTER_LINK, Cluster, LISTEN_PORT, UNDERLAY_LINK};
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::{Layout, Namespace, Process, TwoClusters, process, wait_until};

/// MTU of the tunnel device in bytes; Liqo's default.
const TUNNEL_MTU: u16 = 1340;

/// As each side sees the other's pods.
const REMAPPED: &str = "10.71.0.0/16";

/// As each side calls its own.
const PODS: &str = "10.244.0.0/16";

/// Routing table for packets that come from the pods: their destination is the other cluster.
const TABLE: &str = "77";

/// Who is measured, and where the program is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// No tunnel: routed and remapped by the kernel.
    Plain,
    Strait(PathBuf),
    WireguardGo(PathBuf),
    BoringtunCli(PathBuf),
}

impl Kind {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Strait(_) => "strait",
            Self::WireguardGo(_) => "wireguard-go",
            Self::BoringtunCli(_) => "boringtun-cli",
        }
    }

    /// What the program says of its version.
    pub(crate) fn version(&self) -> String {
        let (program, arguments): (&Path, &[&str]) = match self {
            Self::Plain => (Path::new("uname"), &["-r"]),
            Self::Strait(program) | Self::BoringtunCli(program) => (program, &["--version"]),
            Self::WireguardGo(program) => return go_version(program),
        };

        output(Command::new(program).args(arguments))
    }
}

/// Two gateways of one kind, joined, ready to carry traffic.
pub(crate) struct Contestant {
    clusters: TwoClusters,
    processes: Vec<Process>,
    sockets: Vec<PathBuf>,
}

impl Drop for Contestant {
    fn drop(&mut self) {
        self.processes.clear();
        for socket in &self.sockets {
            let _ = fs::remove_file(socket);
        }
    }
}

impl Contestant {
    pub(crate) fn start(kind: &Kind) -> anyhow::Result<Self> {
        let clusters = TwoClusters::new(&Layout::equal().without_ipv6())?;
        let mut contestant = Self { clusters, processes: Vec::new(), sockets: Vec::new() };

        match kind {
            Kind::Plain => contestant.start_plain()?,
            Kind::Strait(binary) => {
                contestant.clusters.milan.config.set_mtu(TUNNEL_MTU);
                contestant.clusters.rome.config.set_mtu(TUNNEL_MTU);
                contestant.clusters.start(binary)?;
            }
            Kind::WireguardGo(program) => contestant.start_wireguard(program, &["-f"])?,
            Kind::BoringtunCli(program) => {
                contestant
                    .start_wireguard(program, &["--foreground", "--disable-drop-privileges"])?;
            }
        }
        contestant.wait_until_connected()?;

        Ok(contestant)
    }

    /// Where traffic starts.
    pub(crate) const fn client(&self) -> &Namespace {
        &self.clusters.rome.pod
    }

    /// Where it goes.
    pub(crate) const fn server(&self) -> &Namespace {
        &self.clusters.milan.pod
    }

    /// The server's address as the client sees it.
    pub(crate) fn target(&self) -> anyhow::Result<std::net::IpAddr> {
        let (rome, milan) = (&self.clusters.rome.side, &self.clusters.milan.side);

        rome.sees(milan).next().context("the layout has no address")
    }

    /// CPU seconds that both gateway processes have used so far.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let strait = [&self.clusters.rome, &self.clusters.milan]
            .into_iter()
            .filter_map(|cluster| cluster.process().ok())
            .map(|gateway| gateway.process().id());

        strait.chain(self.processes.iter().map(Process::id)).filter_map(cpu_seconds).sum()
    }

    fn start_plain(&self) -> anyhow::Result<()> {
        for (own, other) in self.sides() {
            let via = other.underlay.to_string();
            remap(own, UNDERLAY_LINK, &["via", &via, "dev", UNDERLAY_LINK])?;
        }

        Ok(())
    }

    fn start_wireguard(&mut self, program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let TwoClusters { milan, rome, .. } = &self.clusters;
        for (own, other) in [(milan, rome), (rome, milan)] {
            let device = format!("wg-{}", own.name);
            let log = self.clusters.scratch.path().join(format!("{device}.log"));
            let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
            // One that was killed leaves its socket behind.
            let _ = fs::remove_file(&socket);
            let arguments = arguments.iter().copied().chain([device.as_str()]);
            let process = Process::start(&own.gateway, &device, program, arguments, log)?;
            self.processes.push(process);

            wait_until(format!("{} answers", socket.display()), Duration::from_secs(5), || {
                Ok(UnixStream::connect(&socket).is_ok())
            })?;
            self.sockets.push(socket);
            let key = own.private_key.to_base64();
            let key_file = self.clusters.scratch.write(&format!("{device}.key"), &key)?;
            configure(own, other, &device, &key_file)?;
            remap(own, &device, &["dev", &device])?;
        }
        Ok(())
    }

    fn sides(&self) -> [(&Cluster, &Cluster); 2] {
        let TwoClusters { milan, rome, .. } = &self.clusters;

        [(milan, rome), (rome, milan)]
    }

    fn wait_until_connected(&self) -> anyhow::Result<()> {
        let ping = Ping { timeout: Duration::from_millis(300), ..Ping::new(self.target()?, 1) };

        Ok(wait_until("the pods reach each other", Duration::from_secs(20), || {
            Ok(ping.run(self.client())?.received > 0)
        })?)
    }
}

/// Gives a WireGuard device its key, its peer, its MTU and its link.
fn configure(own: &Cluster, other: &Cluster, device: &str, key_file: &Path) -> anyhow::Result<()> {
    let (port, mtu) = (LISTEN_PORT.to_string(), TUNNEL_MTU.to_string());
    let public_key = other.private_key.public_key().to_string();
    let endpoint = format!("{}:{LISTEN_PORT}", other.underlay);

    let mut wg = Command::new(tool("wg")?);
    wg.args(["set", device, "listen-port", &port, "private-key"]).arg(key_file);
    wg.args(["peer", &public_key, "allowed-ips", "0.0.0.0/0", "endpoint", &endpoint]);
    run(&own.gateway, wg)?;

    let mut ip = Command::new(tool("ip")?);
    ip.args(["link", "set", device, "mtu", &mtu, "up"]);
    run(&own.gateway, ip)
}

/// Remaps with nftables as Liqo does: destinations on the way from the pods, sources on the way to
/// them; and routes what comes from the pods to `device`, whatever its destination is called.
fn remap(own: &Cluster, device: &str, route: &[&str]) -> anyhow::Result<()> {
    let rules = format!(
        "table ip remap {{
            chain outgoing {{
                type nat hook prerouting priority dstnat
                iifname \"{CLUSTER_LINK}\" ip daddr {REMAPPED} dnat ip prefix to ip daddr map {{ {REMAPPED} : {PODS} }}
            }}
            chain incoming {{
                type nat hook postrouting priority srcnat
                iifname \"{device}\" ip saddr {PODS} snat ip prefix to ip saddr map {{ {PODS} : {REMAPPED} }}
            }}
        }}"
    );
    let mut nft = Command::new(tool("nft")?);
    nft.arg(rules);
    run(&own.gateway, nft)?;

    let ip = tool("ip")?;
    let mut rule = Command::new(&ip);
    rule.args(["rule", "add", "iif", CLUSTER_LINK, "lookup", TABLE]);
    run(&own.gateway, rule)?;
    let mut add = Command::new(&ip);
    add.args(["route", "add", PODS]).args(route).args(["table", TABLE]);

    run(&own.gateway, add)
}

fn run(namespace: &Namespace, mut command: Command) -> anyhow::Result<()> {
    let text = format!("{command:?}");
    command.stdin(Stdio::null());
    let status = namespace.start(command)?.wait()?;
    if !status.success() {
        bail!("{text} ended with {status}");
    }

    Ok(())
}

pub(crate) fn tool(name: &str) -> anyhow::Result<PathBuf> {
    process::find(name).with_context(|| format!("{name} is missing: run `make bench` as root"))
}

/// User and system time of a process, of all its threads.
fn cpu_seconds(pid: u32) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;

    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces; what follows its closing bracket does not. proc(5): fields 14, 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();

    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

fn go_version(program: &Path) -> String {
    let Some(go) = process::find("go") else {
        return output(Command::new(program).arg("--version"));
    };
    let module = output(Command::new(go).args(["version", "-m"]).arg(program));

    module
        .lines()
        .find_map(|line| line.trim().strip_prefix("mod\t"))
        .map(|line| line.split('\t').take(2).collect::<Vec<_>>().join(" "))
        .unwrap_or_default()
}

fn output(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();

    String::from_utf8_lossy(&output).trim().to_owned()
}
