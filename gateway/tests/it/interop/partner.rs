//! Strait in Rome, another WireGuard implementation in Milan.
//!
//! The others do not remap, so nftables does it beside the other implementation, with the rules that Liqo
//! installs in its gateways: destinations from the pod to the tunnel, sources the other way.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Process;
use strait_lab::TwoClusters;
use strait_lab::layout::Underlay;
use strait_lab::netlink::Via;
use strait_lab::process::find;
use strait_lab::topology::LISTEN_PORT;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_wg::Engine;
use strait_wg::PrivateKey;

use crate::harness::STRAIT;
use crate::harness::require::{self, Need::Tool};

/// As ours derives it from an underlay of 1500: room for an outer header of IPv6.
const MTU: u32 = 1420;

/// Who sends the first handshake initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initiator {
    Strait,
    Partner,
}

/// Another implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partner {
    WireguardGo,
    BoringtunCli,
    GotatunCli,
}

impl Partner {
    pub(crate) const ALL: [Self; 3] = [Self::WireguardGo, Self::BoringtunCli, Self::GotatunCli];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::BoringtunCli => "boringtun-cli",
            Self::GotatunCli => "gotatun-cli",
        }
    }

    /// Its file.
    const fn program(self) -> &'static str {
        match self {
            Self::WireguardGo | Self::BoringtunCli => self.name(),
            Self::GotatunCli => "gotatun",
        }
    }

    /// What makes it stay, and stay root.
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::WireguardGo => &["--foreground"],
            Self::BoringtunCli | Self::GotatunCli => &["--foreground", "--disable-drop-privileges"],
        }
    }
}

/// An implementation that this machine has.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) partner: Partner,
    program: PathBuf,
}

impl Installed {
    /// The newest one: built for the purpose, or else the distribution's. Says what is missing.
    pub(crate) fn find(partner: Partner) -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers/bin");
        let built = folder.join(partner.program());
        let program = if built.is_file() {
            Some(built)
        } else if partner == Partner::WireguardGo {
            require::check(&[Tool("wireguard-go")]).then(|| find("wireguard-go")).flatten()
        } else {
            find(partner.program())
        };

        program.map(|program| Self { partner, program })
    }

    /// What it says of its version.
    pub(crate) fn version(&self) -> String {
        let output = Command::new(&self.program).arg("--version").output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let is_version = |word: &&str| word.trim_start_matches('v').starts_with(char::is_numeric);

        text.split_whitespace().find(is_version).unwrap_or("of unknown version").to_owned()
    }
}

/// How both are joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Ours.
    pub(crate) engine: Engine,
    pub(crate) initiator: Initiator,
    pub(crate) has_preshared_key: bool,
    pub(crate) has_ipv6_underlay: bool,
}

impl Terms {
    pub(crate) const fn usual(engine: Engine, initiator: Initiator) -> Self {
        Self { engine, initiator, has_preshared_key: false, has_ipv6_underlay: false }
    }
}

/// Both ends, with a session between them.
pub(crate) struct Pair {
    pub(crate) clusters: TwoClusters,
    partner: Partner,
    process: Process,
    interface: String,
    initiator: Initiator,
    preshared_key: Option<String>,
}

impl Pair {
    pub(crate) fn start(installed: &Installed, terms: Terms) -> Self {
        let layout = Layout::equal().without_ipv6();
        let underlay = Underlay { is_ipv6: terms.has_ipv6_underlay, ..layout.underlay };
        let mut clusters = TwoClusters::new(&layout.with_underlay(underlay)).unwrap();
        clusters.rome.config.set_engine(terms.engine.name());
        let interface = interface_name();
        let peer = &mut clusters.rome.config.peers[0];
        if terms.initiator == Initiator::Partner {
            peer.endpoint = None;
            peer.persistent_keepalive = None;
        }
        // 32 random bytes, as a private key is.
        let preshared_key =
            terms.has_preshared_key.then(|| PrivateKey::generate().to_base64().to_string());
        if let Some(key) = &preshared_key {
            peer.preshared_key_file = Some(clusters.scratch.write("preshared.key", key).unwrap());
        }

        let process = start(installed, &clusters, &interface);
        let partner = installed.partner;
        let initiator = terms.initiator;
        let mut pair = Self { clusters, partner, process, interface, initiator, preshared_key };
        // The responder starts first, so that the first initiation is answered.
        if initiator == Initiator::Strait {
            pair.configure();
        }
        let TwoClusters { rome, scratch, .. } = &mut pair.clusters;
        rome.start(Path::new(STRAIT), scratch).unwrap();
        if initiator == Initiator::Partner {
            pair.configure();
        }
        remap_with_nftables(&pair.clusters.milan, &pair.clusters.rome, &pair.interface);
        if initiator == Initiator::Partner {
            // Some begin only when there is something to send. Whether it arrives does not matter yet.
            let TwoClusters { rome, milan, .. } = &pair.clusters;
            let target = milan.side.sees(&rome.side).next().unwrap();
            Ping { timeout: Duration::from_millis(100), ..Ping::new(target, 1) }
                .run(&milan.pod)
                .unwrap();
        }
        pair.clusters.rome.process().unwrap().wait_for_session().unwrap();

        pair
    }

    pub(crate) fn target(&self) -> IpAddr {
        self.clusters.rome.side.sees(&self.clusters.milan.side).next().unwrap()
    }

    pub(crate) fn change_our_key(&mut self, key: &PrivateKey) {
        let TwoClusters { rome, scratch, .. } = &mut self.clusters;
        scratch.write("rome.key", &key.to_base64()).unwrap();
        rome.private_key = key.clone();
        rome.process().unwrap().reload(&rome.config, scratch).unwrap();

        let log = || rome.process().unwrap().process().log();
        wait_until("the key was taken up", Duration::from_secs(5), || {
            Ok(log().contains("our key changed"))
        })
        .unwrap();
    }

    pub(crate) fn tell_our_key(&self) {
        self.configure();
    }

    pub(crate) fn change_its_key(&mut self, key: PrivateKey) {
        let TwoClusters { rome, milan, scratch, .. } = &mut self.clusters;
        rome.config.peers[0].public_key = key.public_key().to_string();
        rome.process().unwrap().reload(&rome.config, scratch).unwrap();
        let log = || rome.process().unwrap().process().log();
        wait_until("its key was known", Duration::from_secs(5), || {
            Ok(log().contains("changed=[\"milan\"]"))
        })
        .unwrap();

        let file = scratch.write("partner.key", &key.to_base64()).unwrap();
        let arguments = ["set", &self.interface, "private-key", file.to_str().unwrap()];
        run(&milan.gateway, "wg", &arguments);
        milan.private_key = key;
    }

    /// The account of our side holds, and both programs end.
    pub(crate) fn finish(mut self) {
        self.clusters.rome.metrics_at_rest().unwrap();

        self.clusters.rome.stop().unwrap();
        let socket = socket_of(&self.interface);
        if self.partner == Partner::WireguardGo {
            self.process.stop().unwrap();
            assert!(!socket.exists(), "wireguard-go removes its socket");
        } else {
            // The others know no end but to be killed, and leave it behind.
            drop(self.process);
            let _ = fs::remove_file(socket);
        }
    }

    /// Tells the partner about us.
    fn configure(&self) {
        let TwoClusters { rome, milan, scratch, .. } = &self.clusters;
        let endpoint = match self.initiator {
            Initiator::Strait => String::new(),
            Initiator::Partner => {
                let address = SocketAddr::new(rome.underlay, LISTEN_PORT);
                format!("Endpoint = {address}\nPersistentKeepalive = 25\n")
            }
        };
        let preshared_key = self.preshared_key.as_ref();
        let preshared_key =
            preshared_key.map_or_else(String::new, |key| format!("PresharedKey = {key}\n"));
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {LISTEN_PORT}\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = {}, 169.254.18.2/32\n{endpoint}{preshared_key}",
            *milan.private_key.to_base64(),
            rome.private_key.public_key(),
            rome.side.realms[0].pods,
        );
        let file = scratch.write("partner.conf", &text).unwrap();

        run(&milan.gateway, "wg", &["setconf", &self.interface, file.to_str().unwrap()]);
    }
}

pub(crate) fn last_handshake(cluster: &Cluster) -> String {
    let metrics = cluster.metrics().unwrap();

    metrics.value("strait_peer_last_handshake_timestamp_seconds", &[]).unwrap().to_owned()
}

/// The program, with its device up in the gateway of Milan and its socket open.
pub(crate) fn start(installed: &Installed, clusters: &TwoClusters, interface: &str) -> Process {
    let Installed { partner, program } = installed;
    let gateway = &clusters.milan.gateway;
    let log = clusters.scratch.path().join("partner.log");
    let arguments = partner.arguments().iter().copied().chain([interface]);
    let process = Process::start(gateway, partner.name(), program, arguments, log).unwrap();
    let socket = socket_of(interface);
    wait_until(format!("{} was ready", partner.name()), Duration::from_secs(5), || {
        Ok(UnixStream::connect(&socket).is_ok())
    })
    .unwrap();

    gateway.set_mtu(interface, MTU).unwrap();
    gateway.add_address(interface, "169.254.18.1/30".parse().unwrap()).unwrap();
    gateway.set_up_link(interface).unwrap();

    process
}

/// Milan's gateway as Liqo would set it up: incoming interface first, then addresses.
pub(crate) fn remap_with_nftables(milan: &Cluster, rome: &Cluster, interface: &str) {
    let gateway = &milan.gateway;
    let (real, remapped) = (rome.side.realms[0].pods, milan.side.realms[0].remapped);
    let rules = format!(
        "table ip remap {{
            chain outgoing {{
                type nat hook prerouting priority -100;
                iifname != \"{interface}\" ip daddr {remapped} dnat prefix to {real}
            }}
            chain incoming {{
                type nat hook postrouting priority 100;
                iifname \"{interface}\" ip saddr {real} snat prefix to {remapped}
            }}
        }}"
    );

    run(gateway, "nft", &[&rules]);
    run(gateway, "ip", &["rule", "add", "iif", "pod", "to", &real.to_string(), "table", "100"]);
    run(gateway, "ip", &["route", "add", &real.to_string(), "dev", interface, "table", "100"]);
    // So that the destination has a route before it is translated.
    gateway.add_route(remapped, interface, Via::Link).unwrap();
}

fn run(namespace: &Namespace, program: &str, arguments: &[&str]) {
    let mut command = Command::new(find(program).unwrap());
    command.args(arguments);

    let status = namespace.start(command).unwrap().wait().unwrap();

    assert!(status.success(), "{program} {arguments:?}");
}

/// Where the partner takes commands: a place in the file system, so the name must be ours alone.
fn socket_of(interface: &str) -> PathBuf {
    fs::canonicalize("/var/run").unwrap().join("wireguard").join(format!("{interface}.sock"))
}

/// Of no other device on this machine.
pub(crate) fn interface_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);

    format!("st{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
