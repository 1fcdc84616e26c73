//! The configuration of a gateway with what objects desire.

use strait_io::overlay;
use strait_plan::Desired;
use strait_wg::PublicKey;
use strait_wg::tunnel::PeerKeys;

use crate::config::Config;

/// Returns `config` with the desired peers, the prefixes of this cluster, and `nodes` if there are new ones.
pub(crate) fn within(
    desired: Desired,
    nodes: Option<Vec<overlay::Node>>,
    config: &Config,
) -> Config {
    let Desired { peers, cluster, table, .. } = desired;
    let object = peers.first().map(|peer| peer.origins.of("allowed_ips")).unwrap_or_default();
    let origins = ["pod_cidrs", "masquerade"]
        .into_iter()
        .fold(config.origins.clone(), |origins, key| origins.with(key, object.clone()));
    let peers = peers.into_iter().map(|peer| peer.map_keys(keys)).collect();

    let overlay = config.overlay.clone().map(|overlay| match nodes {
        Some(nodes) => overlay::Settings { nodes, ..overlay },
        None => overlay,
    });

    Config { overlay, peers, cluster, table, origins, ..config.clone() }
}

/// Objects have no preshared keys.
fn keys(public_key: [u8; 32]) -> PeerKeys {
    PeerKeys { public_key: PublicKey::from_bytes(public_key), preshared_key: None }
}
