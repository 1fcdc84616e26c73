//! The same as text for people.

use std::fmt;

use super::peer::{CidrPair, GatewayInfo, PeerGateway, PeerNetwork};
use super::{Info, NetworkInfo, PeerInfo};

/// The width of the names of values.
const WIDTH: usize = 16;

impl Info {
    /// Text for people: what the other cluster of a peering has to know, and the rest if `is_verbose`.
    #[must_use]
    pub fn text(&self, is_verbose: bool) -> String {
        Words { info: self, is_verbose }.to_string()
    }
}

struct Words<'a> {
    info: &'a Info,
    is_verbose: bool,
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Info { cluster_id, namespace, network } = self.info;
        writeln!(f, "Cluster {cluster_id}")?;
        line(f, 1, "Namespace", namespace)?;
        writeln!(f, "  Network")?;
        let NetworkInfo { pod, service, external, internal } = network;
        for (name, prefixes, is_for_others) in [
            ("Pod CIDRs", pod, true),
            ("Service CIDR", service, false),
            ("External CIDR", external, true),
            ("Internal CIDR", internal, false),
        ] {
            if is_for_others || self.is_verbose {
                line(f, 2, name, &listed(prefixes))?;
            }
        }

        Ok(())
    }
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster_id, network } = self;
        let PeerNetwork { status, alerts, cidr, gateway, latency, gateways } = network;
        writeln!(f, "Peer {cluster_id}")?;
        writeln!(f, "  Network")?;
        line(f, 2, "Status", status.label())?;
        for alert in alerts {
            line(f, 2, "Alert", alert)?;
        }
        if let Some(latency) = latency.as_ref().filter(|_| gateways.is_empty()) {
            line(f, 2, "Latency", latency)?;
        }
        writeln!(f, "    CIDR\n      Remote")?;
        let (CidrPair { pod, external }, named) = (&cidr.remote, &cidr.remapped);
        line(f, 4, "Pod CIDR", &remapped(pod, &named.pod))?;
        line(f, 4, "External CIDR", &remapped(external, &named.external))?;
        if let Some(gateway) = gateway.as_ref().filter(|_| gateways.is_empty()) {
            writeln!(f, "    Gateway")?;
            write_gateway(f, gateway)?;
        }
        for GatewayInfo { name, status, alerts, gateway, latency } in gateways {
            writeln!(f, "    Gateway {name}")?;
            line(f, 3, "Status", status.label())?;
            for alert in alerts {
                line(f, 3, "Alert", alert)?;
            }
            if let Some(latency) = latency {
                line(f, 3, "Latency", latency)?;
            }
            write_gateway(f, gateway)?;
        }

        Ok(())
    }
}

fn write_gateway(f: &mut fmt::Formatter<'_>, gateway: &PeerGateway) -> fmt::Result {
    let PeerGateway { role, address, port } = gateway;
    line(f, 3, "Role", role)?;
    line(f, 3, "Address", &listed(address))?;

    line(f, 3, "Port", &port.map_or_else(|| "none".to_owned(), |port| port.to_string()))
}

fn line(f: &mut fmt::Formatter<'_>, depth: usize, name: &str, value: &str) -> fmt::Result {
    let indent = depth * 2;

    writeln!(f, "{:indent$}{name:<WIDTH$}{value}", "")
}

fn listed(values: &[String]) -> String {
    if values.is_empty() { "none".to_owned() } else { values.join(", ") }
}

/// Each prefix, and its local prefix.
fn remapped(remote: &[String], named: &[String]) -> String {
    let pairs: Vec<_> = remote
        .iter()
        .enumerate()
        .map(|(place, remote)| match named.get(place).map(String::as_str) {
            None | Some("") => format!("{remote} → not remapped yet"),
            Some(named) if named == remote => remote.clone(),
            Some(named) => format!("{remote} → Remapped to {named}"),
        })
        .collect();

    listed(&pairs)
}
