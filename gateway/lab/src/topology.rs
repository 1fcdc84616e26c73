//! Two pods, two gateways and an underlay, connected.
//!
//! ```text
//!   pod ── gateway ── underlay ── gateway ── pod
//!        rome      (link or router)       milan
//! ```
//!
//! Each pod, each gateway and the router is a namespace. The gateway is the only router of its pod. A gateway has routes
//! to the pod CIDR of its own cluster and to the underlay; `strait gateway` installs routes to the other cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use nix::unistd::Pid;
use strait_wg::PrivateKey;

use super::CleanUp;
use super::GatewayConfig;
use super::GatewayProcess;
use super::LabError;
use super::Layout;
use super::Metrics;
use super::Namespace;
use super::PeerSection;
use super::RemapSection;
use super::Scratch;
use super::Side;
use super::Underlay;
use super::layout;
use super::layout::{default_route, network_of, tunnel_net, underlay_addresses, with_len};
use super::netlink::{Via, connect};

/// The link of a pod towards its gateway.
pub const POD_LINK: &str = "gateway";

/// The link of a gateway towards its pod.
pub const CLUSTER_LINK: &str = "pod";

/// The link of a gateway towards the other gateway.
pub const UNDERLAY_LINK: &str = "underlay";

/// The UDP port of both gateways.
pub const LISTEN_PORT: u16 = 51840;

/// Addresses of the gateway for pods: the same in both clusters, and on no other link.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Persistent keepalive of the client in seconds, as in Liqo.
const PERSISTENT_KEEPALIVE: u16 = 25;

/// One of the two clusters.
#[derive(Debug)]
pub struct Cluster {
    /// Milan or Rome.
    pub name: &'static str,
    /// Its addresses.
    pub side: Side,
    /// The namespace of the pod.
    pub pod: Namespace,
    /// The namespace of the gateway.
    pub gateway: Arc<Namespace>,
    /// The gateway's address on the underlay.
    pub underlay: IpAddr,
    /// The gateway's key.
    pub private_key: PrivateKey,
    /// The configuration with which the gateway starts.
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

    /// Scrapes the metrics.
    ///
    /// # Errors
    ///
    /// See [`GatewayProcess::metrics`].
    pub fn metrics(&self) -> Result<Metrics, LabError> {
        self.process()?.metrics()
    }

    /// Scrapes the metrics when all packets are counted.
    ///
    /// # Errors
    ///
    /// See [`GatewayProcess::metrics_at_rest`].
    pub fn metrics_at_rest(&self) -> Result<Metrics, LabError> {
        self.process()?.metrics_at_rest()
    }
}

/// Both clusters and the underlay.
#[derive(Debug)]
pub struct TwoClusters {
    /// The provider. Its gateway is the server and learns the endpoint of the client.
    pub milan: Cluster,
    /// The consumer. Its gateway is the client.
    pub rome: Cluster,
    /// The router between the gateways, if the layout has one.
    pub router: Option<Namespace>,
    /// Keys, configuration files and logs.
    pub scratch: Scratch,
}

impl TwoClusters {
    /// Creates the namespaces with their links, and configurations for two gateways, which are not started.
    ///
    /// # Errors
    ///
    /// [`LabError`], for instance for lack of privileges.
    pub fn new(layout: &Layout) -> Result<Self, LabError> {
        let scratch = Scratch::new()?;
        let (at_milan, at_rome) = underlay_addresses(layout.underlay);
        let mut milan = cluster("milan", layout, &layout.milan, at_milan, 1, &scratch)?;
        let mut rome = cluster("rome", layout, &layout.rome, at_rome, 2, &scratch)?;
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

    /// A handle that ends the running gateways from another thread.
    #[must_use]
    pub fn clean_up(&self) -> CleanUp {
        let running = [&self.milan, &self.rome].into_iter().filter_map(|c| c.process.as_ref());
        let ids = running.filter_map(|gateway| i32::try_from(gateway.process().id()).ok());

        CleanUp::new(ids.map(Pid::from_raw).collect(), self.scratch.path().to_owned())
    }

    /// Ends both gateways with SIGTERM.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] if one does not exit with status 0. The other is ended too.
    pub fn stop(&mut self) -> Result<(), LabError> {
        let rome = self.rome.stop();

        self.milan.stop().and(rome)
    }
}

/// The pod and the gateway of one cluster, and the link between them.
fn cluster(
    name: &'static str,
    layout: &Layout,
    side: &Side,
    underlay: IpAddr,
    number: u8,
    scratch: &Scratch,
) -> Result<Cluster, LabError> {
    let pod = Namespace::new(format!("{name}-pod"))?;
    let gateway = Namespace::router(format!("{name}-gateway"))?;
    connect((&gateway, CLUSTER_LINK), (&pod, POD_LINK), layout.cluster_mtu_bytes)?;

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

/// The peer section of `own` for `other`: its pods, and its gateway, which sends ICMP errors.
fn peer(own: &Cluster, other: &Cluster, number: u8) -> PeerSection {
    let pods = other.side.realms.iter().map(|realm| realm.pods);
    let gateway = other.side.realms.iter().map(|realm| tunnel_net(realm.pods, number).addr());
    let remaps = own.side.realms.iter().zip(&other.side.realms);
    let allowed_ips = pods.chain(gateway.map(IpNet::from)).collect();

    PeerSection {
        remaps: remaps
            .map(|(realm, remote)| RemapSection { remote: remote.pods, local: realm.remapped })
            .filter(|remap| remap.remote != remap.local)
            .collect(),
        ..PeerSection::new(other.name, other.private_key.public_key(), allowed_ips)
    }
}

/// Builds the underlay: a link, or a router with a network for each gateway.
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
