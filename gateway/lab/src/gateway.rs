//! A `strait gateway` in a namespace: its configuration file, its process and its metrics.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use nix::sys::signal::Signal;
use serde::Serialize;
use strait_io::Offload;
use strait_wg::PublicKey;

use super::Direction;
use super::LabError;
use super::Metrics;
use super::Namespace;
use super::Process;
use super::Scratch;
use super::scrape;
use super::wait_until;

/// The metrics address of every gateway of the lab: each has a namespace of its own.
pub const METRICS_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// How long a gateway may take to start, and two gateways to establish a session.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// How long packets may take until all are counted.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration file of a gateway. Field names are its keys.
#[derive(Clone, Debug, Serialize)]
pub struct GatewayConfig {
    gateway: GatewaySection,
    /// Prefixes of the own cluster, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSection>,
    /// Nodes in place of a device, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlaySection>,
    /// In the order of the file.
    #[serde(rename = "peer")]
    pub peers: Vec<PeerSection>,
}

/// `[gateway]`
#[derive(Clone, Debug, Serialize)]
struct GatewaySection {
    name: String,
    interface: String,
    addresses: Vec<IpNet>,
    listen_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    private_key_file: PathBuf,
    metrics_address: SocketAddr,
    admin_socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u8>,
    routes: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    offload: BTreeMap<&'static str, bool>,
}

/// The switches that differ from their default. The others are left out: older binaries in a comparison may not know them.
fn changed(offload: Offload) -> BTreeMap<&'static str, bool> {
    let pairs = offload.named().into_iter().zip(Offload::default().named());

    pairs.filter(|(switch, default)| switch != default).map(|(switch, _)| switch).collect()
}

/// `[cluster]`
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClusterSection {
    /// Pod CIDRs, known to the remotes.
    pub pod_cidrs: Vec<IpNet>,
    /// Prefixes for host maps and masquerade.
    pub external_cidrs: Vec<IpNet>,
    /// External addresses shared by all other sources.
    pub masquerade: Vec<IpAddr>,
    /// Hosts with an external address of their own.
    #[serde(rename = "host_map")]
    pub host_maps: Vec<HostMapSection>,
}

/// `[overlay]`
#[derive(Clone, Debug, Serialize)]
pub struct OverlaySection {
    /// `vxlan` or `geneve`.
    pub encapsulation: &'static str,
    /// UDP port of the gateway and the nodes.
    pub port: u16,
    /// The identifier of the virtual network.
    pub vni: u32,
    /// The nodes.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeSection>,
}

/// `[[overlay.node]]`
#[derive(Clone, Debug, Serialize)]
pub struct NodeSection {
    /// Outer address.
    pub address: IpAddr,
    /// The station of its device; without it the gateway asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The prefixes of its pods.
    pub pods: Vec<IpNet>,
}

/// `[[cluster.host_map]]`
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HostMapSection {
    /// The address of the host in this cluster.
    pub internal: IpAddr,
    /// The address of the host for remotes.
    pub external: IpAddr,
}

/// `[[peer]]`
#[derive(Clone, Debug, Serialize)]
pub struct PeerSection {
    /// For logs and metrics.
    pub name: String,
    /// In base64.
    pub public_key: String,
    /// Preshared key, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preshared_key_file: Option<PathBuf>,
    /// Host or address, and port. A server has none: it learns the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Several endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_keepalive: Option<u16>,
    /// The remote's real prefixes.
    pub allowed_ips: Vec<IpNet>,
    /// Rules for the prefixes that are remapped.
    #[serde(rename = "remap", skip_serializing_if = "Vec::is_empty")]
    pub remaps: Vec<RemapSection>,
}

impl PeerSection {
    /// A peer without an endpoint and without remap rules.
    #[must_use]
    pub fn new(name: &str, public_key: PublicKey, allowed_ips: Vec<IpNet>) -> Self {
        Self {
            name: name.to_owned(),
            public_key: public_key.to_string(),
            preshared_key_file: None,
            endpoint: None,
            endpoints: Vec::new(),
            persistent_keepalive: None,
            allowed_ips,
            remaps: Vec::new(),
        }
    }
}

/// `[[peer.remap]]`
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RemapSection {
    /// The pod CIDR in the remote cluster.
    pub remote: IpNet,
    /// The prefix under which this cluster reaches it.
    pub local: IpNet,
}

impl GatewayConfig {
    /// A gateway without peers, with every offload on and the MTU derived from the underlay. Its admin socket is beside
    /// its key: network namespaces share the file system.
    #[must_use]
    pub fn new(
        name: &str,
        addresses: Vec<IpNet>,
        listen_port: u16,
        private_key_file: PathBuf,
    ) -> Self {
        Self {
            gateway: GatewaySection {
                name: name.to_owned(),
                interface: "strait0".to_owned(),
                addresses,
                listen_port,
                mtu: None,
                admin_socket: private_key_file.with_extension("sock"),
                private_key_file,
                metrics_address: METRICS_ADDRESS,
                engine: None,
                workers: None,
                routes: true,
                offload: changed(Offload::ON),
            },
            cluster: None,
            overlay: None,
            peers: Vec::new(),
        }
    }

    /// Ends an overlay in the process in place of a device, which has the addresses of the gateway.
    pub fn set_overlay(&mut self, overlay: OverlaySection) {
        self.gateway.addresses.clear();
        self.overlay = Some(overlay);
    }

    /// The path of the admin socket.
    #[must_use]
    pub fn admin_socket(&self) -> &Path {
        &self.gateway.admin_socket
    }

    /// Sets the switches of the offloads.
    pub fn set_offload(&mut self, offload: Offload) {
        self.gateway.offload = changed(offload);
    }

    /// Sets the engine by name.
    pub fn set_engine(&mut self, engine: &str) {
        self.gateway.engine = Some(engine.to_owned());
    }

    /// Sets the number of worker threads, independent of the cores.
    pub const fn set_workers(&mut self, workers: u8) {
        self.gateway.workers = Some(workers);
    }

    /// Sets whether the gateway installs routes; the default is that it does.
    pub const fn set_routes(&mut self, routes: bool) {
        self.gateway.routes = routes;
    }

    /// Sets the MTU of the device in bytes.
    pub const fn set_mtu(&mut self, mtu_bytes: u16) {
        self.gateway.mtu = Some(mtu_bytes);
    }

    /// The text of the file.
    ///
    /// # Errors
    ///
    /// [`LabError::Protocol`] if a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, LabError> {
        toml::to_string(self).map_err(|error| LabError::Protocol(error.to_string()))
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct GatewayProcess {
    namespace: Arc<Namespace>,
    process: Process,
    file: PathBuf,
}

impl GatewayProcess {
    /// Starts `binary gateway --config FILE` in `namespace` and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] with the last line of its log if it ends before.
    pub fn start(
        namespace: &Arc<Namespace>,
        binary: &Path,
        config: &GatewayConfig,
        scratch: &Scratch,
    ) -> Result<Self, LabError> {
        let name = &config.gateway.name;
        let file = scratch.write(&format!("{name}.toml"), &config.to_toml()?)?;
        let log = scratch.path().join(format!("{name}.log"));
        let arguments = ["gateway".as_ref(), "--config".as_ref(), file.as_os_str()];
        let process = Process::start(namespace, format!("gateway {name}"), binary, arguments, log)?;
        let mut gateway = Self { namespace: Arc::clone(namespace), process, file };

        let condition = format!("gateway {name} was ready");
        wait_until(condition, START_TIMEOUT, || {
            if let Some(status) = gateway.process.status()? {
                return Err(gateway.process.failed(format!("ended with {status}")));
            }
            Ok(gateway.is_ready())
        })?;

        Ok(gateway)
    }

    /// Writes a new configuration and makes the gateway read it (SIGHUP).
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if the file cannot be written or the process is gone.
    pub fn reload(&self, config: &GatewayConfig, scratch: &Scratch) -> Result<(), LabError> {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        scratch.write(&name, &config.to_toml()?)?;

        self.process.signal(Signal::SIGHUP)
    }

    /// Scrapes the metrics.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if no process listens.
    pub fn metrics(&self) -> Result<Metrics, LabError> {
        self.namespace.run(|| {
            let (_, text) = scrape::get(METRICS_ADDRESS, "/metrics")?;
            Ok(Metrics::parse(&text))
        })
    }

    /// Scrapes the metrics until the packet counts of both directions balance and no longer change.
    ///
    /// # Errors
    ///
    /// [`LabError::TimedOut`] with the counts that do not balance.
    pub fn metrics_at_rest(&self) -> Result<Metrics, LabError> {
        let mut last = self.metrics()?;
        let result = wait_until("", REST_TIMEOUT, || {
            let metrics = self.metrics()?;
            let is_at_rest = Direction::ALL.into_iter().all(|direction| {
                let account = metrics.account(direction);
                account.is_balanced() && account == last.account(direction)
            });
            last = metrics;
            Ok(is_at_rest)
        });

        match result {
            Ok(()) => Ok(last),
            Err(LabError::TimedOut { .. }) => {
                let [outbound, inbound] = Direction::ALL.map(|d| last.account(d).to_string());
                let name = self.namespace.name();
                let condition = format!(
                    "the packet counts of {name} balanced; outbound: {outbound}; inbound: {inbound}"
                );
                Err(LabError::TimedOut { condition })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until a session with a peer is established.
    ///
    /// # Errors
    ///
    /// [`LabError::TimedOut`].
    pub fn wait_for_session(&self) -> Result<(), LabError> {
        let condition = format!("{} had a session", self.namespace.name());

        wait_until(condition, START_TIMEOUT, || {
            let metrics = self.metrics()?;
            Ok(metrics.sum("strait_peer_has_session", &[]) > 0)
        })
    }

    /// The process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Ends the process with SIGTERM.
    ///
    /// # Errors
    ///
    /// [`LabError::Process`] if it does not exit with status 0.
    pub fn stop(self) -> Result<(), LabError> {
        self.process.stop()
    }

    fn is_ready(&self) -> bool {
        let answer = self.namespace.run(|| scrape::get(METRICS_ADDRESS, "/readyz"));

        answer.is_ok_and(|(status, _)| status == 200)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_documented_keys() {
        let mut config = GatewayConfig::new(
            "milan",
            vec!["169.254.18.1/30".parse().unwrap()],
            51840,
            "/k".into(),
        );
        config.peers.push(PeerSection {
            name: "rome".to_owned(),
            public_key: "key".to_owned(),
            preshared_key_file: None,
            endpoint: Some("198.51.100.2:51840".to_owned()),
            endpoints: Vec::new(),
            persistent_keepalive: Some(25),
            allowed_ips: vec!["10.244.0.0/16".parse().unwrap()],
            remaps: vec![RemapSection {
                remote: "10.244.0.0/16".parse().unwrap(),
                local: "10.71.0.0/16".parse().unwrap(),
            }],
        });

        config.set_offload(Offload { udp_gso: false, ..Offload::default() });

        let text = config.to_toml().unwrap();

        assert_eq!(
            text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>(),
            [
                "[gateway]",
                "name = \"milan\"",
                "interface = \"strait0\"",
                "addresses = [\"169.254.18.1/30\"]",
                "listen_port = 51840",
                "private_key_file = \"/k\"",
                "metrics_address = \"127.0.0.1:9090\"",
                "admin_socket = \"/k.sock\"",
                "routes = true",
                "[gateway.offload]",
                "udp_gso = false",
                "[[peer]]",
                "name = \"rome\"",
                "public_key = \"key\"",
                "endpoint = \"198.51.100.2:51840\"",
                "persistent_keepalive = 25",
                "allowed_ips = [\"10.244.0.0/16\"]",
                "[[peer.remap]]",
                "remote = \"10.244.0.0/16\"",
                "local = \"10.71.0.0/16\"",
            ]
        );
    }
}
