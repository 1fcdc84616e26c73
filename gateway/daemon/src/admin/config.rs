//! `/config`: the applied configuration, every key with its origin, without secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use strait_host::logging::Log;
use strait_io::{Offload, overlay};
use strait_packet::overlay::ethernet::Mac;
use strait_wg::tunnel::PeerKeys;

use crate::config::{Config, Origin, Origins, Peer};
use crate::flag_values::{FlagValues, Setting, is_allowed_with_file};

/// The configuration that the control loop applied last.
#[derive(Clone, Debug)]
pub(crate) struct AppliedConfig {
    /// Shared with the control loop, because it may have thousands of peers.
    pub(crate) config: Arc<Config>,
    /// The MTU of the device.
    pub(crate) mtu_bytes: u16,
    /// The generation of the table.
    pub(crate) generation: u64,
}

/// The page. Its JSON form is public interface.
#[derive(Debug, Serialize)]
pub(super) struct ConfigPage {
    generation: u64,
    settings: Settings,
    peers: Vec<Settings>,
}

/// Settings by their name in the file, or the name of their flag.
type Settings = BTreeMap<String, Setting>;

impl ConfigPage {
    /// The page for the configuration `in_force`; `flag_values` has the settings that are not part of a [`Config`].
    pub(super) fn new(in_force: &AppliedConfig, flag_values: &FlagValues, log: &Log) -> Self {
        let has_file = flag_values.origin("config") != Origin::Default;
        let flags = flag_values.settings().filter(|(name, _)| {
            if has_file { is_allowed_with_file(name) } else { *name != "config" }
        });

        // The value in the configuration replaces the value of the flag.
        let mut settings: Settings =
            flags.map(|(name, setting)| (name.to_owned(), setting.clone())).collect();
        settings.extend(gateway(in_force));
        let format = Setting {
            value: log.format().label().into(),
            origin: flag_values.origin("log_format"),
        };
        let origin =
            if log.is_changed() { Origin::Request } else { flag_values.origin("log_level") };
        let level = Setting { value: log.filter().into(), origin };
        settings.extend([("log_format".to_owned(), format), ("log_level".to_owned(), level)]);

        Self {
            generation: in_force.generation,
            settings,
            peers: in_force.config.peers.iter().map(peer).collect(),
        }
    }
}

fn gateway(in_force: &AppliedConfig) -> Settings {
    let AppliedConfig { config, mtu_bytes, .. } = in_force;
    let Config {
        name,
        interface,
        overlay,
        addresses,
        listen_port,
        mtu_bytes: _,
        private_key,
        metrics_address,
        admin_socket: _,
        engine,
        routes,
        mss_clamp,
        max_flows,
        offload,
        workers,
        cluster,
        peers: _,
        table: _,
        // Not a key of the file; the flag is shown among the others.
        dns_check_interval: _,
        origins,
    } = &**config;
    let Offload { tun_tso, tun_uso, tun_udp_tunnel, udp_gso, udp_gro, udp_steering, vector_aead } =
        *offload;
    let own =
        if origins.of("pod_cidrs") == Origin::Default { "external_cidrs" } else { "pod_cidrs" };
    let host_maps: Vec<_> = cluster
        .host_maps
        .iter()
        .map(|map| json!({"internal": map.internal(), "external": map.external()}))
        .collect();

    let mut settings = settings(
        origins,
        [
            ("name", "name", json!(name)),
            ("interface", "interface", json!(interface)),
            ("addresses", "addresses", json!(addresses)),
            ("listen_port", "listen_port", json!(listen_port)),
            ("mtu", "mtu", json!(mtu_bytes)),
            ("public_key", "private_key_file", text(private_key.public_key())),
            ("metrics_address", "metrics_address", json!(metrics_address)),
            ("admin_socket", "admin_socket", json!(config.admin_socket_path())),
            ("engine", "engine", text(engine)),
            ("routes", "routes", json!(routes)),
            ("mss_clamp", "mss_clamp", json!(mss_clamp)),
            ("tun_tso", "tun_tso", json!(tun_tso)),
            ("tun_uso", "tun_uso", json!(tun_uso)),
            ("tun_udp_tunnel", "tun_udp_tunnel", json!(tun_udp_tunnel)),
            ("udp_gso", "udp_gso", json!(udp_gso)),
            ("udp_gro", "udp_gro", json!(udp_gro)),
            ("udp_steering", "udp_steering", json!(udp_steering)),
            ("vector_aead", "vector_aead", json!(vector_aead)),
            ("workers", "workers", text(workers)),
            ("own_prefixes", own, texts(&cluster.prefixes)),
            ("masquerade", "masquerade", json!(cluster.masquerade)),
            ("max_flows", "max_flows", json!(max_flows)),
            ("host_map", "host_map", json!(host_maps)),
        ],
    );
    settings.extend(overlay.iter().flat_map(|overlay| of_overlay(origins, overlay)));

    settings
}

fn of_overlay(origins: &Origins, overlay: &overlay::Settings) -> Settings {
    let overlay::Settings { encapsulation, port, mac, nodes, host: _ } = overlay;
    let optional = |mac: Option<Mac>| mac.map(text);
    let nodes: Vec<_> = nodes
        .iter()
        .map(|overlay::Node { address, vni, mac, pods, sources, inner, gateway, shared_source }| {
            json!({
                "address": address,
                "vni": vni.to_number(),
                "mac": optional(*mac),
                "pods": texts(pods),
                "sources": sources,
                "inner": inner,
                "gateway": gateway,
                "shared_source": shared_source.map(|source| source.shared),
            })
        })
        .collect();

    settings(
        origins,
        [
            ("encapsulation", "encapsulation", text(encapsulation)),
            ("overlay_port", "port", json!(port)),
            ("mac", "mac", json!(optional(*mac))),
            ("node", "node", json!(nodes)),
        ],
    )
}

fn peer(peer: &Peer) -> Settings {
    let Peer {
        name,
        keys: PeerKeys { public_key, preshared_key },
        endpoints,
        persistent_keepalive,
        allowed_ips,
        remaps,
        origins,
    } = peer;
    let of_endpoints =
        if origins.of("endpoints") == Origin::Default { "endpoint" } else { "endpoints" };
    let remaps: Vec<_> = remaps
        .iter()
        .map(|rule| {
            json!({
                "remote": text(rule.remote()),
                "local": text(rule.local()),
                "checksum_neutral": rule.is_checksum_neutral(),
            })
        })
        .collect();

    settings(
        origins,
        [
            ("name", "name", json!(name)),
            ("public_key", "public_key", text(public_key)),
            ("has_preshared_key", "preshared_key_file", json!(preshared_key.is_some())),
            ("endpoints", of_endpoints, texts(endpoints)),
            ("persistent_keepalive", "persistent_keepalive", json!(persistent_keepalive)),
            ("allowed_ips", "allowed_ips", texts(allowed_ips)),
            ("remap", "remap", json!(remaps)),
        ],
    )
}

/// Builds settings from their name on the page, the key whose origin they have, and the value.
fn settings<const N: usize>(
    origins: &Origins,
    all: [(&'static str, &'static str, Value); N],
) -> Settings {
    let setting = |key, value| Setting { value, origin: origins.of(key) };

    all.into_iter().map(|(name, key, value)| (name.to_owned(), setting(key, value))).collect()
}

fn text(value: impl ToString) -> Value {
    value.to_string().into()
}

fn texts<T: ToString>(values: &[T]) -> Value {
    values.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
