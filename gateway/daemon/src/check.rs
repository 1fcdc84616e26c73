//! `strait check --config`: shows what a configuration means before a gateway runs with it.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;
use strait_host::netlink::{Netlink, Underlay};
use strait_io::overlay;
use strait_packet::overlay::ethernet::Mac;

use super::config::{Config, Findings, Peer, or_else};
use super::mtu::{self, DeviceMtu};
use super::routes::Routes;

/// Reports what a gateway with the configuration in `file` would do. Reads the routes and addresses of the host and
/// changes nothing.
///
/// # Errors
///
/// [`Findings`] if the configuration is wrong.
pub fn examine(file: &Path) -> Result<Report, Findings> {
    let config = Config::load(file)?;
    let host = Host::look(&config);

    Ok(Report::new(&config, host))
}

/// The state of the host that the report depends on. Unknown where the kernel gives no answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    underlay: Option<Underlay>,
    towards_nodes: Option<Underlay>,
    addresses: Vec<IpAddr>,
}

impl Host {
    /// Reads it from the kernel.
    pub(super) fn look(config: &Config) -> Self {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return Self::default();
        };

        runtime.block_on(async {
            let Ok(netlink) = Netlink::connect() else {
                return Self::default();
            };
            // If the gateway runs already, the addresses of its device are no conflict.
            let device = netlink.interface_index(&config.interface).await.ok();
            Self {
                towards_nodes: netlink.underlay(config.first_node()).await,
                underlay: netlink.underlay(config.endpoint_addresses().next()).await,
                addresses: netlink.addresses(device).await.unwrap_or_default(),
            }
        })
    }
}

impl Host {
    /// The MTU of the cluster side.
    pub(super) fn mtu(&self, config: &Config) -> DeviceMtu {
        mtu::of_edge(config, self.underlay.clone(), self.towards_nodes.clone())
    }
}

/// The report. Its JSON form is public interface.
#[derive(Debug, Serialize)]
pub struct Report {
    name: String,
    public_key: String,
    engine: String,
    interface: String,
    overlay: Option<OverlayReport>,
    addresses: Vec<String>,
    mtu: u16,
    mtu_reason: String,
    listen_port: u16,
    metrics_address: Option<String>,
    admin_socket: Option<String>,
    mss_clamp: bool,
    cluster: ClusterReport,
    peers: Vec<PeerReport>,
    routes: Vec<RouteReport>,
    warnings: Vec<String>,
}

/// The overlay in place of a device.
#[derive(Debug, Serialize)]
struct OverlayReport {
    encapsulation: String,
    port: u16,
    mac: Option<String>,
    nodes: Vec<NodeReport>,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    address: String,
    vni: u32,
    mac: Option<String>,
    pods: Vec<String>,
}

/// The settings of this cluster.
#[derive(Debug, Serialize)]
struct ClusterReport {
    prefixes: Vec<String>,
    masquerade: Vec<String>,
    max_flows: u32,
    host_maps: Vec<HostMapReport>,
}

#[derive(Debug, Serialize)]
struct HostMapReport {
    internal: String,
    external: String,
}

#[derive(Debug, Serialize)]
struct PeerReport {
    name: String,
    public_key: String,
    has_preshared_key: bool,
    endpoints: Vec<String>,
    persistent_keepalive: Option<u16>,
    allowed_ips: Vec<String>,
    remap: Vec<RemapReport>,
}

#[derive(Debug, Serialize)]
struct RemapReport {
    remote: String,
    local: String,
    checksum_neutral: bool,
}

#[derive(Debug, Serialize)]
struct RouteReport {
    prefix: String,
    peer: String,
}

impl Report {
    fn new(config: &Config, host: Host) -> Self {
        let routes = Routes::new(config, &[], &host.addresses);
        let DeviceMtu { bytes, reason } = host.mtu(config);

        Self {
            name: config.name.clone(),
            public_key: config.private_key.public_key().to_string(),
            engine: config.engine.to_string(),
            interface: config.interface.clone(),
            overlay: config.overlay.as_ref().map(OverlayReport::new),
            addresses: texts(&config.addresses),
            mtu: bytes,
            mtu_reason: reason.to_string(),
            listen_port: config.listen_port,
            metrics_address: config.metrics_address.map(|address| address.to_string()),
            admin_socket: config.admin_socket_path().map(|path| path.display().to_string()),
            mss_clamp: config.mss_clamp,
            cluster: ClusterReport::new(config),
            peers: config.peers.iter().map(PeerReport::new).collect(),
            routes: routes
                .wanted
                .iter()
                .map(|(prefix, peer)| RouteReport {
                    prefix: prefix.to_string(),
                    peer: peer.clone(),
                })
                .collect(),
            warnings: texts(&routes.skipped),
        }
    }
}

impl OverlayReport {
    fn new(overlay: &overlay::Settings) -> Self {
        let overlay::Settings { encapsulation, port, mac, nodes, host: _ } = overlay;
        let text = |mac: Option<Mac>| mac.map(|mac| mac.to_string());
        let nodes = nodes.iter().map(|node| NodeReport {
            address: node.address.to_string(),
            vni: node.vni.to_number(),
            mac: text(node.mac),
            pods: texts(&node.pods),
        });

        Self {
            encapsulation: encapsulation.to_string(),
            port: *port,
            mac: text(*mac),
            nodes: nodes.collect(),
        }
    }
}

impl ClusterReport {
    fn new(config: &Config) -> Self {
        let cluster = &config.cluster;

        Self {
            prefixes: texts(&cluster.prefixes),
            masquerade: texts(&cluster.masquerade),
            max_flows: config.max_flows,
            host_maps: cluster
                .host_maps
                .iter()
                .map(|map| HostMapReport {
                    internal: map.internal().to_string(),
                    external: map.external().to_string(),
                })
                .collect(),
        }
    }
}

impl PeerReport {
    fn new(peer: &Peer) -> Self {
        Self {
            name: peer.name.clone(),
            public_key: peer.keys.public_key.to_string(),
            has_preshared_key: peer.keys.preshared_key.is_some(),
            endpoints: texts(&peer.endpoints),
            persistent_keepalive: peer.persistent_keepalive.map(|seconds| seconds.get()),
            allowed_ips: texts(&peer.allowed_ips),
            remap: peer
                .remaps
                .iter()
                .map(|rule| RemapReport {
                    remote: rule.remote().to_string(),
                    local: rule.local().to_string(),
                    checksum_neutral: rule.is_checksum_neutral(),
                })
                .collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "gateway", &format!("{}, public key {}", self.name, self.public_key))?;
        line(f, "engine", &self.engine)?;
        let mtu = format!("MTU {} ({})", self.mtu, self.mtu_reason);
        match &self.overlay {
            None => {
                line(f, "device", &format!("{}, {mtu}", self.interface))?;
                line(f, "addresses", &joined(&self.addresses))?;
            }
            Some(OverlayReport { encapsulation, port, mac, nodes }) => {
                let station = or_else(mac.as_ref(), "derived from its address");
                let overlay =
                    format!("{encapsulation} on UDP port {port}, {mtu}, station {station}");
                line(f, "overlay", &overlay)?;
                for NodeReport { address, vni, mac, pods } in nodes {
                    let station = or_else(mac.as_ref(), "learned");
                    let pods = joined(pods);
                    line(
                        f,
                        "  node",
                        &format!("{address}, VNI {vni}, station {station}, pods {pods}"),
                    )?;
                }
            }
        }
        let port = match self.listen_port {
            0 => "chosen by the kernel".to_owned(),
            port => port.to_string(),
        };
        line(f, "UDP port", &port)?;
        line(f, "metrics", &or_else(self.metrics_address.as_ref(), "off"))?;
        line(f, "admin socket", &or_else(self.admin_socket.as_ref(), "off"))?;
        line(f, "MSS clamp", if self.mss_clamp { "on" } else { "off" })?;
        self.cluster.fmt(f)?;
        for peer in &self.peers {
            peer.fmt(f)?;
        }

        f.write_str("\nroutes\n")?;
        if self.routes.is_empty() {
            line(f, "  none", "")?;
        }
        for RouteReport { prefix, peer } in &self.routes {
            writeln!(f, "  {prefix} to {}, peer {peer}", self.interface)?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }

        Ok(())
    }
}

/// Empty if the configuration has no cluster section.
impl fmt::Display for ClusterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefixes, masquerade, max_flows, host_maps } = self;
        if prefixes.is_empty() && masquerade.is_empty() && host_maps.is_empty() {
            return Ok(());
        }

        f.write_str("\ncluster\n")?;
        line(f, "  ours", &joined(prefixes))?;
        let shared = match masquerade.as_slice() {
            [] => "off".to_owned(),
            shared => format!("all others as {}, at most {max_flows} flows", joined(shared)),
        };
        line(f, "  masquerade", &shared)?;
        for HostMapReport { internal, external } in host_maps {
            line(f, "  host map", &format!("{internal} as {external}"))?;
        }

        Ok(())
    }
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keepalive = self.persistent_keepalive.map(|seconds| format!("every {seconds} s"));
        let preshared_key = if self.has_preshared_key { "set" } else { "none" };
        write!(f, "\npeer {}\n", self.name)?;
        line(f, "  public key", &self.public_key)?;
        line(f, "  preshared key", preshared_key)?;
        let endpoints = self.endpoints.join(", ");
        let endpoints = Some(endpoints).filter(|text| !text.is_empty());
        line(f, "  endpoint", &or_else(endpoints, "learned from the peer"))?;
        line(f, "  persistent keepalive", &or_else(keepalive, "off"))?;
        line(f, "  allowed IPs", &joined(&self.allowed_ips))?;
        if self.remap.is_empty() {
            return Ok(());
        }

        let width = self.remap.iter().map(|rule| rule.remote.len()).max().unwrap_or(0);
        writeln!(f, "  {:<width$}    local", "remote")?;
        for RemapReport { remote, local, checksum_neutral } in &self.remap {
            let kind = if *checksum_neutral { " (checksum-neutral)" } else { "" };
            writeln!(f, "  {remote:<width$} -> {local}{kind}")?;
        }

        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, key: &str, value: &str) -> fmt::Result {
    let mut text = String::new();
    write!(text, "{key:<22} {value}")?;

    writeln!(f, "{}", text.trim_end())
}

fn joined(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn texts<T: fmt::Display>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::super::config::example;
    use super::*;

    #[test]
    fn the_report_shows_what_the_gateway_would_do() {
        let text = Report::new(&example::config(), Host::default()).to_string();

        for expected in [
            "milan, public key ",
            "strait0, MTU 1340 (configured)",
            "169.254.18.1/30",
            "51840",
            "127.0.0.1:9090",
            "/run/strait/strait0.sock",
            "peer rome",
            "192.0.2.1:51840",
            "every 25 s",
            "10.244.0.0/16 -> 10.71.0.0/16",
            "10.71.0.0/16 to strait0, peer rome",
        ] {
            assert!(text.contains(expected), "no {expected:?} in:\n{text}");
        }
    }

    #[test]
    fn the_report_shows_own_prefixes() {
        let mut config = example::config();
        config.cluster.prefixes.push("10.99.0.0/16".parse().unwrap());
        config.cluster.masquerade.push("10.70.0.1".parse().unwrap());
        let map = remap::HostMap::new("192.0.2.9".parse().unwrap(), "10.70.0.9".parse().unwrap());
        config.cluster.host_maps.push(map.unwrap());

        let report = Report::new(&config, Host::default());

        let text = report.to_string();
        for expected in ["10.99.0.0/16", "all others as 10.70.0.1", "192.0.2.9 as 10.70.0.9"] {
            assert!(text.contains(expected), "no {expected:?} in:\n{text}");
        }
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["cluster"]["host_maps"][0]["external"], "10.70.0.9");
        assert_eq!(json["mss_clamp"], true);
    }

    #[test]
    fn the_report_shows_an_overlay_without_routes() {
        let config =
            Config { overlay: Some(example::overlay()), addresses: vec![], ..example::config() };

        let report = Report::new(&config, Host::default());

        let text = report.to_string();
        for expected in [
            "vxlan on UDP port 8483, MTU 1340 (configured)",
            "172.18.3.1, VNI 83, station learned, pods 10.244.0.0/16",
        ] {
            assert!(text.contains(expected), "no {expected:?} in:\n{text}");
        }
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["overlay"]["nodes"][0]["vni"], 83);
        assert_eq!(json["routes"].as_array().map(Vec::len), Some(0));
    }

    #[test]
    fn the_report_names_skipped_routes() {
        let host = Host { addresses: vec!["10.71.0.9".parse().unwrap()], ..Host::default() };

        let text = Report::new(&example::config(), host).to_string();

        assert!(text.contains("warning: no route for 10.71.0.0/16"), "{text}");
    }

    #[test]
    fn the_json_form_shows_no_secret() {
        let config = example::config();

        let json = serde_json::to_value(Report::new(&config, Host::default())).unwrap();

        assert_eq!(json["interface"], "strait0");
        assert_eq!(json["peers"][0]["remap"][0]["local"], "10.71.0.0/16");
        assert_eq!(json["peers"][0]["has_preshared_key"], true);
        assert_eq!(json["routes"][0]["prefix"], "10.71.0.0/16");
        assert!(!json.to_string().contains(config.private_key.to_base64().as_str()));
    }
}
