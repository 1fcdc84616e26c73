//! A running contestant: the topology of the demo with gateways of one implementation.

mod congestion;
mod node;
mod overlay;
mod usage;
mod version;
mod wireguard;

use std::fmt;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use strait_io::Offload;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Process;
use strait_lab::TwoClusters;
use strait_lab::process;
use strait_lab::topology::{Cluster, UNDERLAY_LINK};
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_wg::Engine;

pub(crate) use congestion::CongestionControl;
pub(crate) use node::Nodes;
pub(crate) use usage::Usage;

/// Number of devices created so far.
static DEVICES: AtomicU32 = AtomicU32::new(0);

/// An implementation, and the path of its program.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// No tunnel: the kernel routes and remaps.
    Plain,
    /// The program, its engine and its edge.
    Strait(PathBuf, Engine, Edge),
    /// The kernel's WireGuard.
    Wireguard,
    WireguardGo(PathBuf),
    BoringtunCli(PathBuf),
    GotatunCli(PathBuf),
}

/// Where strait gets the packets of pods from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Edge {
    /// A TUN device
    #[default]
    Device,
    /// UDP sockets; only behind a node
    Overlay,
}

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mtu {
    /// Of the underlay, and between pod and gateway.
    path: u16,
    /// Of the tunnel device.
    tunnel: u16,
}

impl Mtu {
    /// As large clouds have it. The tunnel leaves room for WireGuard over IPv6.
    pub(crate) const JUMBO: Self = Self { path: 9000, tunnel: 8920 };

    /// Of the tunnel device, in bytes.
    pub(crate) const fn tunnel(self) -> u16 {
        self.tunnel
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU {}, in the tunnel {}", self.path, self.tunnel)
    }
}

impl Default for Mtu {
    /// Of Ethernet, and Liqo's default.
    fn default() -> Self {
        Self { path: 1500, tunnel: 1340 }
    }
}

/// Differences from the default pair of gateways.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variation {
    /// Additional peers of each gateway, without traffic.
    pub(crate) idle_peers: u32,
    /// The kill switches of strait.
    pub(crate) offload: Offload,
    pub(crate) mtu: Mtu,
    /// The nodes between pods and gateways, joined with the gateways by VXLAN, if there are any.
    pub(crate) nodes: Option<Nodes>,
}

impl Kind {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Strait(_, _, Edge::Overlay) => "strait-overlay",
            Self::Strait(_, Engine::Native, _) => "strait",
            Self::Strait(_, Engine::Boringtun, _) => "strait-boringtun",
            Self::Wireguard => "wireguard",
            Self::WireguardGo(_) => "wireguard-go",
            Self::BoringtunCli(_) => "boringtun-cli",
            Self::GotatunCli(_) => "gotatun-cli",
        }
    }

    /// Whether a goal applies to it, or to others in comparison with it.
    pub(crate) const fn has_goal(&self) -> bool {
        matches!(self, Self::Strait(..) | Self::WireguardGo(_))
    }

    const fn edge(&self) -> Edge {
        match self {
            Self::Strait(_, _, edge) => *edge,
            Self::Plain
            | Self::Wireguard
            | Self::WireguardGo(_)
            | Self::BoringtunCli(_)
            | Self::GotatunCli(_) => Edge::Device,
        }
    }

    /// Whether it has gateways.
    pub(crate) const fn is_a_tunnel(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// The version that the program reports.
    pub(crate) fn version(&self) -> String {
        match self {
            Self::Plain | Self::Wireguard => version::of(Path::new("uname"), &["-r"]),
            Self::WireguardGo(program) => version::of_go(program),
            Self::Strait(program, ..) | Self::BoringtunCli(program) | Self::GotatunCli(program) => {
                version::of(program, &["--version"])
            }
        }
    }
}

/// Two connected gateways of one kind.
pub(crate) struct Contestant {
    clusters: TwoClusters,
    /// Between pods and gateways, if there are any.
    nodes: Vec<Namespace>,
    congestion_control: CongestionControl,
    /// Gateways of other implementations: milan's, then rome's.
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
    pub(crate) fn start(
        kind: &Kind,
        congestion_control: CongestionControl,
        variation: Variation,
    ) -> anyhow::Result<Self> {
        let layout = Layout::equal().without_ipv6().with_mtu(variation.mtu.path.into());
        let clusters = TwoClusters::new(&layout)?;
        let (nodes, processes, sockets) = (Vec::new(), Vec::new(), Vec::new());
        let mut contestant = Self { clusters, nodes, congestion_control, processes, sockets };
        if let Some(nodes) = variation.nodes {
            contestant.insert_nodes(kind.edge(), nodes, variation.mtu)?;
        }

        match kind {
            Kind::Plain => contestant.start_plain()?,
            Kind::Strait(binary, engine, _) => {
                contestant.start_strait(binary, *engine, variation)?;
            }
            Kind::Wireguard => contestant.start_wireguard(None, variation)?,
            Kind::WireguardGo(program) => {
                contestant.start_wireguard(Some((program, &["-f"])), variation)?;
            }
            Kind::BoringtunCli(program) | Kind::GotatunCli(program) => {
                let arguments = ["--foreground", "--disable-drop-privileges"];
                contestant.start_wireguard(Some((program, &arguments)), variation)?;
            }
        }
        contestant.wait_until_connected()?;

        Ok(contestant)
    }

    /// The namespace that initiates traffic.
    pub(crate) const fn client(&self) -> &Namespace {
        &self.clusters.rome.pod
    }

    /// The namespace that receives the connections.
    pub(crate) const fn server(&self) -> &Namespace {
        &self.clusters.milan.pod
    }

    /// The congestion control of TCP senders.
    pub(crate) const fn congestion_control(&self) -> CongestionControl {
        self.congestion_control
    }

    /// The address under which the client reaches the server.
    pub(crate) fn target(&self) -> anyhow::Result<std::net::IpAddr> {
        let (rome, milan) = (&self.clusters.rome.side, &self.clusters.milan.side);

        rome.sees(milan).next().context("the layout has no address")
    }

    /// Resources that the gateways have used: the server's, then the client's. Empty for `plain`.
    pub(crate) fn usage(&self) -> Vec<Usage> {
        self.gateways().into_iter().filter_map(|(_, pid)| Usage::of(pid)).collect()
    }

    /// Names and process ids of the gateways: the server's, then the client's. Empty for `plain`.
    pub(crate) fn gateways(&self) -> Vec<(&'static str, u32)> {
        let strait = [&self.clusters.milan, &self.clusters.rome]
            .into_iter()
            .filter_map(|cluster| cluster.process().ok())
            .map(|gateway| gateway.process().id());

        ["milan", "rome"]
            .into_iter()
            .zip(strait.chain(self.processes.iter().map(Process::id)))
            .collect()
    }

    /// CPU seconds that both gateways have used.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.usage().iter().map(|usage| usage.cpu_seconds).sum()
    }

    fn insert_nodes(&mut self, edge: Edge, nodes: Nodes, mtu: Mtu) -> anyhow::Result<()> {
        let TwoClusters { milan, rome, .. } = &mut self.clusters;
        for cluster in [milan, rome] {
            self.nodes.push(node::insert(cluster, edge, nodes, mtu.path)?);
        }

        Ok(())
    }

    fn start_plain(&self) -> anyhow::Result<()> {
        for (own, other) in self.sides() {
            let via = other.underlay.to_string();
            wireguard::remap(own, UNDERLAY_LINK, &["via", &via, "dev", UNDERLAY_LINK])?;
        }

        Ok(())
    }

    fn start_strait(
        &mut self,
        binary: &Path,
        engine: Engine,
        variation: Variation,
    ) -> anyhow::Result<()> {
        for cluster in [&mut self.clusters.milan, &mut self.clusters.rome] {
            cluster.config.set_mtu(variation.mtu.tunnel);
            cluster.config.set_engine(engine.name());
            cluster.config.set_offload(variation.offload);
            cluster.config.peers.extend((0..variation.idle_peers).map(wireguard::idle_peer));
        }

        Ok(self.clusters.start(binary)?)
    }

    /// Devices of the kernel, or of `program`, a program and its arguments.
    fn start_wireguard(
        &mut self,
        program: Option<(&Path, &[&str])>,
        variation: Variation,
    ) -> anyhow::Result<()> {
        let Self { clusters, processes, sockets, .. } = self;
        let TwoClusters { milan, rome, scratch, .. } = &*clusters;
        for (own, other) in [(milan, rome), (rome, milan)] {
            // Network namespaces share the folder of the sockets, so device names must be unique.
            let number = DEVICES.fetch_add(1, Ordering::Relaxed);
            let device = format!("wg{number}-{}", own.name);
            match program {
                None => wireguard::create(&own.gateway, &device)?,
                Some((program, arguments)) => {
                    let log = scratch.path().join(format!("{device}.log"));
                    let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
                    // A killed process leaves its socket behind.
                    let _ = fs::remove_file(&socket);
                    let arguments = arguments.iter().copied().chain([device.as_str()]);
                    processes.push(Process::start(&own.gateway, &device, program, arguments, log)?);

                    let name = format!("{} answers", socket.display());
                    wait_until(name, Duration::from_secs(5), || {
                        Ok(UnixStream::connect(&socket).is_ok())
                    })?;
                    sockets.push(socket);
                }
            }
            wireguard::configure(own, other, &device, scratch, variation)?;
            wireguard::remap(own, &device, &["dev", &device])?;
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

/// Whether this kernel has WireGuard.
pub(crate) fn kernel_has_wireguard() -> bool {
    Namespace::router("probe")
        .is_ok_and(|namespace| wireguard::create(&namespace, "wg-probe").is_ok())
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
