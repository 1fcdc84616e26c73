//! The configuration of a gateway: read from a file, checked as a whole, printable without secrets.
//!
//! A [`Config`] is always valid: [`Config::load`] reports all errors of a file at once, before anything is changed.

#[cfg(test)]
pub(crate) mod example;
mod file;
pub mod keyfile;
mod origin;
mod parse;
mod problem;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use remap::{Cluster, Table};
use strait_io::{EdgeSettings, Offload, PeerConfig, Settings, Workers, overlay};
use strait_wg::PrivateKey;
use strait_wg::tunnel::PeerKeys;

pub use keyfile::KeyFileError;
pub(crate) use origin::{OFFLOAD, OVERLAY};
pub use parse::DEFAULT_INTERFACE;
pub(crate) use parse::{DEFAULT_MAX_FLOWS, MTU_MIN};
pub use problem::Findings;
pub(crate) use problem::{Finding, Problem};
pub use strait_plan::endpoint::{Endpoint, EndpointError, HostPort, address_of_one_host};
pub use strait_plan::origin::Origin;
pub(crate) use strait_plan::origin::Origins;
pub(crate) use strait_wg::Engine;

/// How many peers are logged. `/config` has all of them.
const SHOWN_PEERS: usize = 64;

/// Three times what 65,536 peers take.
const SIZE_LIMIT_BYTES: u64 = 64 << 20;

/// The whole configuration of one gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the gateway, for logs.
    pub(crate) name: String,
    /// The TUN device to create; with an overlay only a name for the sockets of this gateway.
    pub interface: String,
    /// The overlay in place of a device.
    pub overlay: Option<overlay::Settings>,
    /// Addresses of the device.
    pub(crate) addresses: Vec<IpNet>,
    /// UDP port; 0 lets the kernel choose.
    pub(crate) listen_port: u16,
    /// MTU of the device in bytes; `None` derives it from the underlay.
    pub(crate) mtu_bytes: Option<u16>,
    /// Our private key.
    pub private_key: PrivateKey,
    /// Where to serve metrics; `None` is off.
    pub metrics_address: Option<SocketAddr>,
    /// The admin socket.
    pub(crate) admin_socket: AdminSocket,
    /// The implementation of the WireGuard protocol.
    pub(crate) engine: Engine,
    /// Whether to install routes to the device.
    pub(crate) routes: bool,
    /// Whether the MSS of TCP connections is clamped to the path.
    pub(crate) mss_clamp: bool,
    /// Maximum number of masqueraded flows.
    pub(crate) max_flows: u32,
    /// Which offloads may be used.
    pub(crate) offload: Offload,
    /// How many worker threads help with backlog.
    pub(crate) workers: Workers,
    /// Longest interval between lookups of a DNS name.
    pub dns_check_interval: Duration,
    /// The settings of this cluster.
    pub(crate) cluster: Cluster,
    /// The peers, in the order of the file.
    pub(crate) peers: Vec<Peer>,
    /// The table of these peers and this cluster.
    pub(crate) table: Table,
    /// Origins of the values, without the peers.
    pub(crate) origins: Origins,
}

/// The admin socket of a gateway, a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum AdminSocket {
    /// At [`Self::default_path`]; a failure to bind it is only logged.
    #[default]
    Default,
    /// At this path; a failure to bind it is an error.
    At(PathBuf),
    /// No socket.
    Off,
}

impl AdminSocket {
    /// The default path for a gateway with this device.
    pub(crate) fn default_path(interface: &str) -> PathBuf {
        Path::new("/run/strait").join(format!("{interface}.sock"))
    }

    /// The path for a gateway with this device, if there is a socket.
    pub(crate) fn path(&self, interface: &str) -> Option<PathBuf> {
        match self {
            Self::Default => Some(Self::default_path(interface)),
            Self::At(path) => Some(path.clone()),
            Self::Off => None,
        }
    }
}

/// A peer of a gateway.
pub(crate) type Peer = strait_plan::Peer<PeerKeys>;

impl Config {
    /// Reads and checks the file at `path` and the key files it names.
    ///
    /// # Errors
    ///
    /// [`Findings`]: all errors, one line each.
    pub fn load(path: &Path) -> Result<Self, Findings> {
        let text = read(path).map_err(|cause| {
            let problem = Problem::Unreadable { cause };
            Findings::new(path.to_owned(), vec![Finding { line: None, problem }])
        })?;

        parse::config(&text, path, &host_name())
            .map_err(|findings| Findings::new(path.to_owned(), findings))
    }

    /// The settings with which the packet engine starts.
    pub fn settings(&self, mtu_bytes: u16) -> Settings {
        Settings {
            edge: match &self.overlay {
                Some(overlay) => EdgeSettings::Overlay(overlay.clone()),
                None => EdgeSettings::Device(self.interface.clone()),
            },
            listen_port: self.listen_port,
            mtu_bytes,
            offload: self.offload,
            workers: self.workers,
            max_flows: self.max_flows,
            engine: self.engine,
        }
    }

    /// The path of the admin socket, if there is one.
    pub(crate) fn admin_socket_path(&self) -> Option<PathBuf> {
        self.admin_socket.path(&self.interface)
    }

    /// The first IPv6 prefix or address of the configuration, if there is any.
    pub(crate) fn first_ipv6(&self) -> Option<String> {
        let is_ipv6 = |net: &IpNet| matches!(net, IpNet::V6(_));
        let peers = self.peers.iter().flat_map(|peer| {
            let remapped = peer.remaps.iter().map(|rule| rule.local().to_net());
            peer.allowed_ips.iter().map(|prefix| prefix.to_net()).chain(remapped)
        });

        self.addresses.iter().copied().chain(peers).find(is_ipv6).map(|net| net.to_string())
    }

    /// The address of the first node, with an overlay.
    pub fn first_node(&self) -> Option<IpAddr> {
        self.overlay.as_ref()?.nodes.first().map(|node| node.address)
    }

    /// The configured and learned addresses of all peers, without those of DNS names.
    pub fn endpoint_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.peers.iter().flat_map(Peer::endpoint_addresses).map(|address| address.ip())
    }
}

/// Converts `peer` for the packet engine, with the endpoints that are known now.
///
/// The MSS of TCP is clamped to `clamp_mtu` bytes, if set.
pub(crate) fn peer_config(
    peer: &Peer,
    endpoints: Vec<SocketAddr>,
    clamp_mtu: Option<u16>,
) -> PeerConfig {
    PeerConfig {
        name: peer.name.clone(),
        keys: peer.keys.clone(),
        endpoints,
        allowed_ips: Arc::clone(&peer.allowed_ips),
        clamp_mtu,
        persistent_keepalive: peer.persistent_keepalive,
    }
}

/// One line, secrets shown as present or absent only.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={} interface={} addresses=", self.name, self.interface)?;
        list(f, &self.addresses)?;
        if let Some(overlay) = &self.overlay {
            write!(f, " overlay={{{} nodes=", overlay_text(overlay))?;
            list(f, &overlay.nodes.iter().map(node_text).collect::<Vec<_>>())?;
            f.write_str("}")?;
        }
        write!(f, " listen_port={}", self.listen_port)?;
        write!(f, " mtu={}", or_else(self.mtu_bytes, "auto"))?;
        write!(f, " public_key={}", self.private_key.public_key())?;
        write!(f, " metrics_address={}", or_else(self.metrics_address, "off"))?;
        let socket = self.admin_socket_path().map(|path| path.display().to_string());
        write!(f, " admin_socket={}", or_else(socket, "off"))?;
        write!(f, " engine={} routes={}", self.engine, self.routes)?;
        for (name, is_on) in self.offload.named() {
            write!(f, " {name}={is_on}")?;
        }
        write!(f, " workers={} mss_clamp={}", self.workers, self.mss_clamp)?;
        write!(f, " max_flows={}", self.max_flows)?;
        f.write_str(" cluster={own=")?;
        list(f, &self.cluster.prefixes)?;
        f.write_str(" masquerade=")?;
        list(f, &self.cluster.masquerade)?;
        f.write_str(" host_maps=")?;
        list(f, &self.cluster.host_maps)?;
        f.write_str("} peers=")?;
        let shown = self.peers.get(..SHOWN_PEERS).unwrap_or(&self.peers);
        list(f, &shown.iter().map(PeerLine).collect::<Vec<_>>())?;

        match self.peers.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The settings of an overlay without its nodes.
pub(crate) fn overlay_text(overlay: &overlay::Settings) -> String {
    let overlay::Settings { encapsulation, port, mac, nodes: _, host: _ } = overlay;

    format!("encapsulation={encapsulation} port={port} mac={}", or_else(*mac, "auto"))
}

fn node_text(node: &overlay::Node) -> String {
    let overlay::Node { address, vni, mac, pods, sources, inner, gateway, shared_source } = node;
    let pods: Vec<_> = pods.iter().map(ToString::to_string).collect();
    let sources: String = sources.iter().map(|source| format!(" source={source}")).collect();
    let inner = inner.map_or_else(String::new, |inner| format!(" inner={inner}"));
    let gateway = gateway.map_or_else(String::new, |gateway| format!(" gateway={gateway}"));
    let shared = shared_source
        .map_or_else(String::new, |source| format!(" shared_source={}", source.shared));

    format!(
        "{{address={address} vni={vni} mac={}{sources}{inner}{gateway}{shared} pods=[{}]}}",
        or_else(*mac, "auto"),
        pods.join(", ")
    )
}

/// A peer as text, secrets shown as present or absent only.
struct PeerLine<'a>(&'a Peer);

impl fmt::Display for PeerLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(peer) = self;
        let preshared_key = if peer.keys.preshared_key.is_some() { "set" } else { "none" };
        write!(f, "{{name={} public_key={}", peer.name, peer.keys.public_key)?;
        write!(f, " preshared_key={preshared_key}")?;
        f.write_str(" endpoints=")?;
        list(f, &peer.endpoints)?;
        write!(f, " persistent_keepalive={}", or_else(peer.persistent_keepalive, "off"))?;
        f.write_str(" allowed_ips=")?;
        list(f, &peer.allowed_ips)?;
        f.write_str(" remap=[")?;
        for (index, rule) in peer.remaps.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{} -> {}", rule.remote(), rule.local())?;
        }

        f.write_str("]}")
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    f.write_str("[")?;
    for (index, item) in items.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{item}")?;
    }

    f.write_str("]")
}

/// `value` as text, or `absent`.
pub(crate) fn or_else<T: fmt::Display>(value: Option<T>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |value| value.to_string())
}

/// Reads the file at `path`, up to the size limit.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SIZE_LIMIT_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|len| len > SIZE_LIMIT_BYTES) {
        let mib = SIZE_LIMIT_BYTES >> 20;
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {mib} MiB"),
        ));
    }

    Ok(text)
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "strait".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
