//! The origins of settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use toml::de::DeTable;

use super::Config;

/// Where a value comes from. Its JSON form is public interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are those of the JSON form")]
pub enum Origin {
    /// The built-in default.
    #[default]
    Default,
    /// The configuration file.
    File { path: String },
    /// The command line.
    Flag { flag: String },
    /// An environment variable in place of a flag.
    Environment { variable: String },
    /// An object of the API server.
    Object { kind: String, namespace: String, name: String },
    /// A request at run time.
    Request,
}

/// The origins of keys. A missing key has its default. Shared, because thousands of peers have equal origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins(Arc<BTreeMap<&'static str, Origin>>);

impl Origins {
    /// The origin of `key`, as it is spelled in the file.
    pub(crate) fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Returns the origins with `origin` for `key`.
    #[must_use]
    pub(crate) fn with(mut self, key: &'static str, origin: Origin) -> Self {
        Arc::make_mut(&mut self.0).insert(key, origin);

        self
    }

    /// Returns the origins with the origin of `key` in `other`.
    #[must_use]
    pub(crate) fn with_that_of(mut self, key: &'static str, other: &Self) -> Self {
        let origins = Arc::make_mut(&mut self.0);
        match other.0.get(key) {
            Some(origin) => origins.insert(key, origin.clone()),
            None => origins.remove(key),
        };

        self
    }

    /// The origins of the keys that `section` of the file at `path` has.
    fn of_section(keys: &[&'static str], section: Option<&DeTable<'_>>, path: &Path) -> Self {
        let origin = Origin::File { path: path.display().to_string() };
        let present = keys.iter().filter(|key| section.is_some_and(|s| s.contains_key(**key)));

        Self(Arc::new(present.map(|key| (*key, origin.clone())).collect()))
    }
}

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
pub(crate) const OFFLOAD: [&str; 6] =
    ["tun_tso", "tun_uso", "udp_gso", "udp_gro", "udp_steering", "vector_aead"];
const CLUSTER: [&str; 5] = ["pod_cidrs", "external_cidrs", "masquerade", "max_flows", "host_map"];
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
        let sections = [(&GATEWAY[..], gateway), (&OFFLOAD[..], offload), (&CLUSTER[..], cluster)];
        let origins = sections.map(|(keys, section)| Origins::of_section(keys, section, path));
        let all = origins.iter().flat_map(|origins| origins.0.iter());
        let config = Origins(Arc::new(all.map(|(key, origin)| (*key, origin.clone())).collect()));

        let sections = file.get("peer").and_then(|peers| peers.get_ref().as_array());
        let mut peers: Vec<Origins> = Vec::new();
        for section in sections.into_iter().flat_map(|sections| sections.iter()) {
            let origins = Origins::of_section(&PEER, section.get_ref().as_table(), path);
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

/// The subtable at `key`.
fn section<'a, 'text>(table: &'a DeTable<'text>, key: &str) -> Option<&'a DeTable<'text>> {
    table.get(key)?.get_ref().as_table()
}
