//! The origins of the keys of a file.

use std::path::Path;

use strait_plan::origin::{Origin, Origins};
use toml::de::DeTable;

use super::Config;

/// The keys of each section. They are distinct, except for `name`, which peers have too.
const GATEWAY: [&str; 12] = [
    "name",
    "interface",
    "addresses",
    "listen_port",
    "mtu",
    "private_key_file",
    "metrics_address",
    "admin_socket",
    "engine",
    "routes",
    "mss_clamp",
    "workers",
];
pub(crate) const OFFLOAD: [&str; 7] =
    ["tun_tso", "tun_uso", "tun_udp_tunnel", "udp_gso", "udp_gro", "udp_steering", "vector_aead"];
const CLUSTER: [&str; 5] = ["pod_cidrs", "external_cidrs", "masquerade", "max_flows", "host_map"];
pub(crate) const OVERLAY: [&str; 5] = ["encapsulation", "port", "vni", "mac", "node"];
const PEER: [&str; 8] = [
    "name",
    "public_key",
    "preshared_key_file",
    "endpoint",
    "endpoints",
    "persistent_keepalive",
    "allowed_ips",
    "remap",
];

/// The origins of all keys of a file, collected before the file is deserialized.
pub(super) struct KeyOrigins {
    config: Origins,
    /// The origins of each peer, in order.
    peers: Vec<Origins>,
}

impl KeyOrigins {
    /// Collects the origins of `file`, which is at `path`.
    pub(super) fn new(file: &DeTable<'_>, path: &Path) -> Self {
        let gateway = section(file, "gateway");
        let offload = gateway.and_then(|gateway| section(gateway, "offload"));
        let cluster = section(file, "cluster");
        let overlay = section(file, "overlay");
        let sections = [
            (&GATEWAY[..], gateway),
            (&OFFLOAD[..], offload),
            (&CLUSTER[..], cluster),
            (&OVERLAY[..], overlay),
        ];
        let origins = sections.map(|(keys, section)| of_section(keys, section, path));
        let all = origins.iter().flat_map(Origins::iter);
        let config = all.map(|(key, origin)| (key, origin.clone())).collect();

        let sections = file.get("peer").and_then(|peers| peers.get_ref().as_array());
        let mut peers: Vec<Origins> = Vec::new();
        for section in sections.into_iter().flat_map(|sections| sections.iter()) {
            let origins = of_section(&PEER, section.get_ref().as_table(), path);
            // Neighbouring peers mostly have the same keys, so they share the value.
            let is_alike = |before: &&Origins| **before == origins;
            let origins = peers.last().filter(is_alike).cloned().unwrap_or(origins);
            peers.push(origins);
        }

        Self { config, peers }
    }

    /// Sets the origins in `config`, which was parsed from the same file.
    pub(super) fn fill(self, config: &mut Config) {
        config.origins = self.config;
        for (peer, origins) in config.peers.iter_mut().zip(self.peers) {
            peer.origins = origins;
        }
    }
}

/// The origins of the keys that `section` of the file at `path` has.
fn of_section(keys: &[&'static str], section: Option<&DeTable<'_>>, path: &Path) -> Origins {
    let origin = Origin::File { path: path.display().to_string() };
    let present = keys.iter().filter(|key| section.is_some_and(|s| s.contains_key(**key)));

    present.map(|key| (*key, origin.clone())).collect()
}

/// The subtable at `key`.
fn section<'a, 'text>(table: &'a DeTable<'text>, key: &str) -> Option<&'a DeTable<'text>> {
    table.get(key)?.get_ref().as_table()
}
