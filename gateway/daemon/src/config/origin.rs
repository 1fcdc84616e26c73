//! Who said what a setting is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use toml::de::DeTable;

use super::Config;

/// Whose word a value is. Its JSON form is public interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are those of the JSON form")]
pub enum Origin {
    /// Nobody's.
    #[default]
    Default,
    /// Of the configuration file.
    File { path: String },
    /// Of the command line.
    Flag { flag: String },
    /// Of an environment variable in place of a flag.
    Environment { variable: String },
    /// Of an object of the API server.
    Object { kind: String, namespace: String, name: String },
    /// Of whoever asked for it at run time.
    Request,
}

/// The origins of some keys. A key that is not there has its default. Shared, because thousands of peers
/// have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins(Arc<BTreeMap<&'static str, Origin>>);

impl Origins {
    /// Of `key`, as it is spelled in the file.
    pub(crate) fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// With `key` from `origin`.
    #[must_use]
    pub(crate) fn with(mut self, key: &'static str, origin: Origin) -> Self {
        Arc::make_mut(&mut self.0).insert(key, origin);

        self
    }

    /// With `key` from where `other` has it from.
    #[must_use]
    pub(crate) fn with_that_of(mut self, key: &'static str, other: &Self) -> Self {
        let origins = Arc::make_mut(&mut self.0);
        match other.0.get(key) {
            Some(origin) => origins.insert(key, origin.clone()),
            None => origins.remove(key),
        };

        self
    }

    /// From the file at `path`, as far as `section` has the keys.
    fn of_section(keys: &[&'static str], section: Option<&DeTable<'_>>, path: &Path) -> Self {
        let origin = Origin::File { path: path.display().to_string() };
        let present = keys.iter().filter(|key| section.is_some_and(|s| s.contains_key(**key)));

        Self(Arc::new(present.map(|key| (*key, origin.clone())).collect()))
    }
}

/// The keys of each section; no key is in two, except for `name`, which peers have of their own.
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

/// The origins of all that a file says, gathered before the file is taken apart.
pub(super) struct KeyOrigins {
    config: Origins,
    /// One for each section, in their order.
    peers: Vec<Origins>,
}

impl KeyOrigins {
    /// Of `file`, which is at `path`.
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
            // Neighbours are mostly written alike.
            let is_alike = |before: &&Origins| **before == origins;
            let origins = peers.last().filter(is_alike).cloned().unwrap_or(origins);
            peers.push(origins);
        }

        Self { config, peers }
    }

    /// Sets them in the `config` that the file became.
    pub(super) fn fill(self, config: &mut Config) {
        config.origins = self.config;
        for (peer, origins) in config.peers.iter_mut().zip(self.peers) {
            peer.origins = origins;
        }
    }
}

/// The table at `key` of another one.
fn section<'a, 'text>(table: &'a DeTable<'text>, key: &str) -> Option<&'a DeTable<'text>> {
    table.get(key)?.get_ref().as_table()
}
