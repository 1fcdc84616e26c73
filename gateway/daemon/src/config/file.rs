//! The syntax of the configuration file: names, types and positions, before values are interpreted.

use std::path::Path;

use serde::Deserialize;
use strait_io::Offload;
use toml::Spanned;
use toml::de::DeTable;

use super::origin::KeyOrigins;

/// The whole file. Missing values stay missing, defaults are applied later. Positions are kept for the messages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) gateway: GatewaySection,
    #[serde(default)]
    pub(super) cluster: ClusterSection,
    pub(super) overlay: Option<OverlaySection>,
    #[serde(default)]
    pub(super) peer: Vec<Spanned<PeerSection>>,
}

/// `[gateway]`. Numbers have TOML's range, so that the check of the range is ours.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GatewaySection {
    pub(super) name: Option<Spanned<String>>,
    pub(super) interface: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) addresses: Vec<Spanned<String>>,
    pub(super) listen_port: Option<Spanned<i64>>,
    pub(super) mtu: Option<Spanned<i64>>,
    pub(super) private_key_file: Spanned<String>,
    pub(super) metrics_address: Option<Spanned<String>>,
    pub(super) admin_socket: Option<Spanned<String>>,
    pub(super) engine: Option<Spanned<String>>,
    pub(super) routes: Option<bool>,
    pub(super) mss_clamp: Option<bool>,
    pub(super) workers: Option<Spanned<toml::Value>>,
    #[serde(default)]
    pub(super) offload: OffloadSection,
}

/// `[gateway.offload]`: kill switches.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "seven independent kill switches")]
pub(super) struct OffloadSection {
    pub(super) tun_tso: bool,
    pub(super) tun_uso: bool,
    pub(super) tun_udp_tunnel: bool,
    pub(super) udp_gso: bool,
    pub(super) udp_gro: bool,
    pub(super) udp_steering: bool,
    pub(super) vector_aead: bool,
}

impl Default for OffloadSection {
    fn default() -> Self {
        let Offload {
            tun_tso,
            tun_uso,
            tun_udp_tunnel,
            udp_gso,
            udp_gro,
            udp_steering,
            vector_aead,
        } = Offload::default();

        Self { tun_tso, tun_uso, tun_udp_tunnel, udp_gso, udp_gro, udp_steering, vector_aead }
    }
}

impl From<OffloadSection> for Offload {
    fn from(section: OffloadSection) -> Self {
        let OffloadSection {
            tun_tso,
            tun_uso,
            tun_udp_tunnel,
            udp_gso,
            udp_gro,
            udp_steering,
            vector_aead,
        } = section;

        Self { tun_tso, tun_uso, tun_udp_tunnel, udp_gso, udp_gro, udp_steering, vector_aead }
    }
}

/// `[cluster]`: the settings of this cluster.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClusterSection {
    pub(super) pod_cidrs: Vec<Spanned<String>>,
    pub(super) external_cidrs: Vec<Spanned<String>>,
    pub(super) masquerade: Vec<Spanned<String>>,
    pub(super) max_flows: Option<Spanned<i64>>,
    pub(super) host_map: Vec<Spanned<HostMapSection>>,
}

/// `[[cluster.host_map]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostMapSection {
    pub(super) internal: Spanned<String>,
    pub(super) external: Spanned<String>,
}

/// `[overlay]`: nodes in place of a device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverlaySection {
    pub(super) encapsulation: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<i64>>,
    pub(super) vni: Option<Spanned<i64>>,
    pub(super) mac: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) node: Vec<Spanned<NodeSection>>,
}

/// `[[overlay.node]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeSection {
    pub(super) address: Spanned<String>,
    pub(super) vni: Option<Spanned<i64>>,
    pub(super) mac: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) pods: Vec<Spanned<String>>,
}

/// `[[peer]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeerSection {
    pub(super) name: Option<Spanned<String>>,
    pub(super) public_key: Spanned<String>,
    pub(super) preshared_key_file: Option<Spanned<String>>,
    pub(super) endpoint: Option<Spanned<String>>,
    pub(super) endpoints: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) persistent_keepalive: Option<Spanned<i64>>,
    pub(super) allowed_ips: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) remap: Vec<Spanned<RemapSection>>,
}

/// `[[peer.remap]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemapSection {
    pub(super) remote: Spanned<String>,
    pub(super) local: Spanned<String>,
    #[serde(default)]
    pub(super) checksum_neutral: bool,
}

/// A syntax error: its position and a message of one line.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) offset: Option<usize>,
    pub(super) message: String,
}

/// Parses the text of the configuration file at `path`. Also returns the origins of its keys.
pub(super) fn parse(text: &str, path: &Path) -> Result<(File, KeyOrigins), SyntaxError> {
    let table = DeTable::parse(text).map_err(SyntaxError::new)?;
    let key_origins = KeyOrigins::new(table.get_ref(), path);
    let file = File::deserialize(toml::Deserializer::from(table)).map_err(SyntaxError::new)?;

    Ok((file, key_origins))
}

impl SyntaxError {
    fn new(error: toml::de::Error) -> Self {
        Self {
            offset: error.span().map(|span| span.start),
            message: error
                .message()
                .replace('\n', ", ")
                .replace("unknown field", "unknown key")
                .replace("missing field", "missing key"),
        }
    }
}
