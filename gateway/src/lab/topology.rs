//! Pods, gateways and an underlay, joined.
//!
//! ```text
//!   pod ── gateway ── underlay ── gateway ── pod
//!        rome      (cable or router)      milan
//! ```
//!
//! Each box is a namespace. A pod knows its gateway as its only router. A gateway knows the pod CIDR
//! of its own cluster and the underlay; routes to the other cluster are for `strait gateway` to
//! install.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::netlink::{Via, connect};
use super::{
    GatewayConfig, GatewayProcess, LabError, Layout, Metrics, Namespace, PeerSection, RemapSection,
    Scratch, Side, Underlay, layout, wait_until,
};
use crate::wg::PrivateKey;

/// The link of a pod, towards its gateway.
pub const POD_LINK: &str = "gateway";

/// The link of a gateway towards its pod.
pub const CLUSTER_LINK: &str = "pod";

/// The link of a gateway towards the other gateway.
pub const UNDERLAY_LINK: &str = "underlay";

/// Where both gateways listen.
pub const LISTEN_PORT: u16 = 51840;

/// MTU between pod and gateway, in bytes.
const CLUSTER_MTU: u32 = 1500;

/// How pods know their gateway. The same in both clusters, and on no other link.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Seconds between keepalives of the client, as Liqo has it.
const PERSISTENT_KEEPALIVE: u16 = 25;

/// How long gateways may take to end when we are in a hurry.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(3);

/// One of the two clusters.
#[derive(Debug)]
pub struct Cluster {
    /// Milan or Rome.
    pub name: &'static str,
    /// Its addresses.
    pub side: Side,
    /// Where the pod is.
    pub pod: Namespace,
    /// Where the gateway is.
    pub gateway: Arc<Namespace>,
    /// The gateway's address on the underlay.
    pub underlay: IpAddr,
    /// The gateway's key.
    pub private_key: PrivateKey,
    /// What the gateway starts with.
    pub config: GatewayConfig,
    process: Option<GatewayProcess>,
}

impl Cluster {
    /// The running gateway.
    ///
    /// # Errors
    ///
    /// [`LabError::Protocol`] if it was not started.
    pub fn process(&self) -> Result<&GatewayProcess, LabError> {
        let absent = || LabError::Protocol(format!("gateway {} was not started", self.name));

        self.process.as_ref().ok_or_else(absent)
    }

    /// Starts the gateway and waits until it is ready.
    ///
    /// # Errors
    ///
    /// See [`GatewayProcess::start`].
    pub fn start(&mut self, binary: &Path, scratch: &Scratch) -> Result<(), LabError> {
        self.process = None;
        self.process = Some(GatewayProcess::start(&self.gateway, binary, &self.config, scratch)?);

        Ok(())
    }

    /// Ends the gateway with SIGTERM.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] if it does not exit with status 0.
    pub fn stop(&mut self) -> Result<(), LabError> {
        self.process.take().map_or(Ok(()), GatewayProcess::stop)
    }

    /// One scrape.
    ///
    /// # Errors
    ///
    /// See [`GatewayProcess::metrics`].
    pub fn metrics(&self) -> Result<Metrics, LabError> {
        self.process()?.metrics()
    }

    /// A scrape of a moment at which nothing is under way.
    ///
    /// # Errors
    ///
    /// See [`GatewayProcess::metrics_at_rest`].
    pub fn metrics_at_rest(&self) -> Result<Metrics, LabError> {
        self.process()?.metrics_at_rest()
    }
}

/// Both clusters and what lies between them.
#[derive(Debug)]
pub struct TwoClusters {
    /// The provider. Its gateway is the server and learns where the other one is.
    pub milan: Cluster,
    /// The consumer. Its gateway is the client.
    pub rome: Cluster,
    /// Between the gateways, if the layout wants one.
    pub router: Option<Namespace>,
    /// Keys, configuration files and logs.
    pub scratch: Scratch,
}

impl TwoClusters {
    /// Makes the namespaces and everything in them, and configurations for two gateways that are not
    /// started.
    ///
    /// # Errors
    ///
    /// [`LabError`], for instance for lack of privileges.
    pub fn new(layout: &Layout) -> Result<Self, LabError> {
        let scratch = Scratch::new()?;
        let (at_milan, at_rome) = underlay_addresses(layout.underlay);
        let mut milan = cluster("milan", &layout.milan, at_milan, 1, &scratch)?;
        let mut rome = cluster("rome", &layout.rome, at_rome, 2, &scratch)?;
        let router = join(&milan, &rome, layout.underlay)?;

        let to_rome = peer(&milan, &rome, 2);
        let to_milan = peer(&rome, &milan, 1);
        milan.config.peers = vec![to_rome];
        rome.config.peers = vec![PeerSection {
            endpoint: Some(SocketAddr::new(milan.underlay, LISTEN_PORT).to_string()),
            persistent_keepalive: Some(PERSISTENT_KEEPALIVE),
            ..to_milan
        }];

        Ok(Self { milan, rome, router, scratch })
    }

    /// Starts both gateways and waits until they have a session.
    ///
    /// # Errors
    ///
    /// [`LabError`], which names the gateway that fails.
    pub fn start(&mut self, binary: &Path) -> Result<(), LabError> {
        self.milan.start(binary, &self.scratch)?;
        self.rome.start(binary, &self.scratch)?;

        self.rome.process()?.wait_for_session()?;
        self.milan.process()?.wait_for_session()
    }

    /// How to end what runs by now from another thread.
    #[must_use]
    pub fn clean_up(&self) -> CleanUp {
        let running = [&self.milan, &self.rome].into_iter().filter_map(|c| c.process.as_ref());
        let ids = running.filter_map(|gateway| i32::try_from(gateway.process().id()).ok());

        CleanUp {
            processes: ids.map(Pid::from_raw).collect(),
            directory: self.scratch.path().to_owned(),
        }
    }

    /// Ends both gateways with SIGTERM.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] if one does not exit with status 0. The other is ended all the same.
    pub fn stop(&mut self) -> Result<(), LabError> {
        let rome = self.rome.stop();

        self.milan.stop().and(rome)
    }
}

/// How to leave nothing behind when there is no time to drop [`TwoClusters`].
#[derive(Clone, Debug)]
pub struct CleanUp {
    processes: Vec<Pid>,
    directory: PathBuf,
}

impl CleanUp {
    /// Ends the gateways with SIGTERM and removes the files. The namespaces end with the process.
    pub fn run(&self) {
        // Whoever is gone needs no signal, and whoever does not go is killed when we end.
        for process in &self.processes {
            let _ = kill(*process, Signal::SIGTERM);
        }
        let are_gone = || Ok(!self.processes.iter().any(|process| is_running(*process)));
        let _ = wait_until("", CLEAN_UP_TIMEOUT, are_gone);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Whether a child of ours runs. One that has ended is forgotten with this question.
fn is_running(child: Pid) -> bool {
    matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
}

/// The pod and the gateway of one cluster, and the link between them.
fn cluster(
    name: &'static str,
    side: &Side,
    underlay: IpAddr,
    number: u8,
    scratch: &Scratch,
) -> Result<Cluster, LabError> {
    let pod = Namespace::new(format!("{name}-pod"))?;
    let gateway = Namespace::router(format!("{name}-gateway"))?;
    connect((&gateway, CLUSTER_LINK), (&pod, POD_LINK), CLUSTER_MTU)?;

    for (realm, address) in side.realms.iter().zip(side.pod_addresses()) {
        let router = match address {
            IpAddr::V4(_) => IpAddr::V4(ROUTER_V4),
            IpAddr::V6(_) => IpAddr::V6(ROUTER_V6),
        };
        gateway.add_address(CLUSTER_LINK, router.into())?;
        gateway.add_route(realm.pods, CLUSTER_LINK, Via::Link)?;
        pod.add_address(POD_LINK, address.into())?;
        pod.add_route(default_route(address), POD_LINK, Via::Router(router))?;
    }

    let private_key = PrivateKey::generate();
    let key_file = scratch.write(&format!("{name}.key"), &private_key.to_base64())?;
    let on_device = side.realms.iter().map(|realm| tunnel_net(realm.pods, number)).collect();
    let config = GatewayConfig::new(name, on_device, LISTEN_PORT, key_file);

    Ok(Cluster {
        name,
        side: side.clone(),
        pod,
        gateway: Arc::new(gateway),
        underlay,
        private_key,
        config,
        process: None,
    })
}

/// What `own` must know of `other`: its pods, and its gateway, from which ICMP errors come.
fn peer(own: &Cluster, other: &Cluster, number: u8) -> PeerSection {
    let pods = other.side.realms.iter().map(|realm| realm.pods);
    let gateway = other.side.realms.iter().map(|realm| tunnel_net(realm.pods, number).addr());
    let remaps = own.side.realms.iter().zip(&other.side.realms);

    PeerSection {
        name: other.name.to_owned(),
        public_key: other.private_key.public_key().to_string(),
        preshared_key_file: None,
        endpoint: None,
        persistent_keepalive: None,
        allowed_ips: pods.chain(gateway.map(IpNet::from)).collect(),
        remaps: remaps
            .map(|(realm, remote)| RemapSection { remote: remote.pods, local: realm.remapped })
            .filter(|remap| remap.remote != remap.local)
            .collect(),
    }
}

/// The underlay: a cable, or a router with a network of its own for each gateway.
fn join(
    milan: &Cluster,
    rome: &Cluster,
    underlay: Underlay,
) -> Result<Option<Namespace>, LabError> {
    let mtu = underlay.mtu_bytes;
    let attach = |cluster: &Cluster| {
        let net = network_of(cluster.underlay);
        cluster.gateway.add_address(UNDERLAY_LINK, with_len(cluster.underlay, net.prefix_len()))
    };
    if !underlay.is_routed {
        connect((&rome.gateway, UNDERLAY_LINK), (&milan.gateway, UNDERLAY_LINK), mtu)?;
        attach(rome)?;
        attach(milan)?;
        return Ok(None);
    }

    let router = Namespace::router("router")?;
    for (cluster, other) in [(rome, milan), (milan, rome)] {
        connect((&cluster.gateway, UNDERLAY_LINK), (&router, cluster.name), mtu)?;
        attach(cluster)?;
        let net = network_of(cluster.underlay);
        let near = layout::host(net, 1);
        router.add_address(cluster.name, with_len(near, net.prefix_len()))?;
        let far = network_of(other.underlay);
        cluster.gateway.add_route(far, UNDERLAY_LINK, Via::Router(near))?;
    }

    Ok(Some(router))
}

/// Addresses of the gateways of Milan and Rome, from the ranges for documentation (RFC 5737,
/// RFC 3849): on one network if a cable joins them, else on two.
fn underlay_addresses(underlay: Underlay) -> (IpAddr, IpAddr) {
    let address = |network: u8, number: u8| match underlay.is_ipv6 {
        false if network == 0 => IpAddr::from([198, 51, 100, number]),
        false => IpAddr::from([203, 0, 113, number]),
        true => {
            let (network, number) = (network.into(), number.into());
            IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, number])
        }
    };

    (address(u8::from(underlay.is_routed), 3), address(0, 2))
}

/// The network of an address on the underlay.
fn network_of(address: IpAddr) -> IpNet {
    with_len(address, if address.is_ipv4() { 24 } else { 64 }).trunc()
}

/// The address of gateway `number` on its device: in the family of `pods`, on a network that only
/// the two gateways share.
fn tunnel_net(pods: IpNet, number: u8) -> IpNet {
    match pods {
        IpNet::V4(_) => IpNet::V4(Ipv4Net::new_assert([169, 254, 18, number].into(), 30)),
        IpNet::V6(_) => {
            let groups = [0xfd00, 0x169, 0x254, 0x18, 0, 0, 0, number.into()];
            IpNet::V6(Ipv6Net::new_assert(groups.into(), 126))
        }
    }
}

fn default_route(like: IpAddr) -> IpNet {
    match like {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    }
}

fn with_len(address: IpAddr, len: u8) -> IpNet {
    IpNet::new_assert(address, len)
}
