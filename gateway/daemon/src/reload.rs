//! Compares a changed configuration with the running one. Pure.

use std::fmt;

use strait_engine::peer_matcher::PeerMatcher;
use strait_io::overlay;

use super::config::{Config, OFFLOAD, OVERLAY, Peer, or_else, overlay_text};

/// The outcome of a reload.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    /// The new configuration: as in the file, except for values that need a restart.
    pub(crate) config: Config,
    /// Values that change only with a restart.
    pub(crate) needs_restart: Vec<NeedsRestart>,
    /// Changes of peers.
    pub(crate) peers: PeerChanges,
    /// Whether our private key changes.
    pub(crate) has_new_key: bool,
    has_new_routes: bool,
    has_new_cluster: bool,
    has_new_nodes: bool,
}

/// A value that cannot change while the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeedsRestart {
    /// The key in the file.
    pub(crate) key: &'static str,
    /// The running value.
    pub(crate) running: String,
    /// The value in the file.
    pub(crate) wanted: String,
}

impl NeedsRestart {
    /// The keys of the file that this entry stands for.
    fn keys(&self) -> Vec<&'static str> {
        match self.key {
            "offload" => OFFLOAD.to_vec(),
            "overlay" => OVERLAY.to_vec(),
            key => vec![key],
        }
    }
}

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, running, wanted } = self;

        write!(f, "{key} needs a restart to become {wanted}; {running} stays in force")
    }
}

/// Names of changed peers. A peer is identified by its public key, or else by its name if no peer has its old key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerChanges {
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) changed: Vec<String>,
    /// Positions are peer ids, so another order is another table.
    is_reordered: bool,
}

impl PeerChanges {
    fn between(running: &[Peer], wanted: &[Peer]) -> Self {
        let mut changes = Self::default();
        let (before, after) = (peer_matcher(wanted, running), peer_matcher(running, wanted));
        for peer in wanted {
            match before.find(peer.keys.public_key, &peer.name) {
                None => changes.added.push(peer.name.clone()),
                Some(before) if before != peer => changes.changed.push(peer.name.clone()),
                Some(_) => {}
            }
        }
        for peer in running {
            if after.find(peer.keys.public_key, &peer.name).is_none() {
                changes.removed.push(peer.name.clone());
            }
        }
        let order =
            |peers: &[Peer]| peers.iter().map(|peer| peer.keys.public_key).collect::<Vec<_>>();
        changes.is_reordered = order(running) != order(wanted);

        changes
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Matches `peers` against `others`.
fn peer_matcher<'a>(peers: &[Peer], others: &'a [Peer]) -> PeerMatcher<'a, &'a Peer> {
    let keys = peers.iter().map(|peer| peer.keys.public_key).collect();

    PeerMatcher::new(&keys, others.iter().map(|other| (other.keys.public_key, &*other.name, other)))
}

impl Reload {
    /// Compares the running configuration with the file.
    pub(crate) fn between(running: &Config, wanted: Config) -> Self {
        let needs_restart = needs_restart(running, &wanted);
        let peers = PeerChanges::between(&running.peers, &wanted.peers);
        let has_new_key = running.private_key.public_key() != wanted.private_key.public_key();
        let has_new_routes = running.routes != wanted.routes;
        let has_new_cluster = running.cluster != wanted.cluster
            || running.mss_clamp != wanted.mss_clamp
            || running.table.policy() != wanted.table.policy();
        // The rest of an overlay is fixed.
        let overlay = running.overlay.clone().map(|running| match &wanted.overlay {
            Some(wanted) => overlay::Settings { nodes: wanted.nodes.clone(), ..running },
            None => running,
        });
        let has_new_nodes = overlay.as_ref().map(|overlay| &overlay.nodes)
            != running.overlay.as_ref().map(|overlay| &overlay.nodes);
        let origins = needs_restart
            .iter()
            .flat_map(NeedsRestart::keys)
            .fold(wanted.origins, |origins, key| origins.with_that_of(key, &running.origins));
        let config = Config {
            name: wanted.name,
            overlay,
            private_key: wanted.private_key,
            routes: wanted.routes,
            mss_clamp: wanted.mss_clamp,
            cluster: wanted.cluster,
            peers: wanted.peers,
            table: wanted.table,
            origins,
            ..running.clone()
        };

        Self {
            config,
            needs_restart,
            peers,
            has_new_key,
            has_new_routes,
            has_new_cluster,
            has_new_nodes,
        }
    }

    /// Whether nothing must be applied.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.peers.is_empty()
            && !self.has_new_key
            && !self.has_new_routes
            && !self.has_new_cluster
            && !self.has_new_nodes
    }
}

/// Formats one value of a configuration.
type Show = fn(&Config) -> String;

/// Values that are fixed at the start of the packet engine.
const FIXED: [(&str, Show); 11] = [
    ("interface", |config| config.interface.clone()),
    ("addresses", |config| {
        let texts: Vec<String> = config.addresses.iter().map(ToString::to_string).collect();
        format!("[{}]", texts.join(", "))
    }),
    ("overlay", |config| config.overlay.as_ref().map_or_else(|| "off".to_owned(), overlay_text)),
    ("listen_port", |config| config.listen_port.to_string()),
    ("mtu", |config| or_else(config.mtu_bytes, "automatic")),
    ("metrics_address", |config| or_else(config.metrics_address, "off")),
    ("admin_socket", |config| {
        or_else(config.admin_socket_path().map(|path| path.display().to_string()), "off")
    }),
    ("engine", |config| config.engine.to_string()),
    ("workers", |config| config.workers.to_string()),
    ("max_flows", |config| config.max_flows.to_string()),
    ("offload", |config| {
        config.offload.named().map(|(name, is_on)| format!("{name}={is_on}")).join(" ")
    }),
];

fn needs_restart(running: &Config, wanted: &Config) -> Vec<NeedsRestart> {
    FIXED
        .into_iter()
        .map(|(key, show)| NeedsRestart { key, running: show(running), wanted: show(wanted) })
        .filter(|setting| setting.running != setting.wanted)
        .collect()
}

#[cfg(test)]
mod tests {
    use strait_wg::tunnel::PeerKeys;
    use strait_wg::{PrivateKey, PublicKey};

    use super::super::config::{AdminSocket, Origin, Origins, example};
    use super::*;

    #[test]
    fn the_same_file_changes_nothing() {
        let running = example::config();

        let reload = Reload::between(&running, running.clone());

        assert!(reload.is_unchanged());
        assert_eq!(reload.needs_restart, []);
    }

    #[test]
    fn peers_are_matched_by_their_key() {
        let running = example::config();
        let mut wanted = running.clone();
        wanted.peers[0].name = "roma".to_owned();
        wanted.peers.push(peer("oslo", 9));

        let reload = Reload::between(&running, wanted);

        assert_eq!(reload.peers.added, ["oslo"]);
        assert_eq!(reload.peers.removed, <[String; 0]>::default());
        assert_eq!(reload.peers.changed, ["roma"]);
        assert_eq!(reload.config.peers.len(), 2);
    }

    #[test]
    fn a_new_key_keeps_the_peer() {
        let running = example::config();
        let mut wanted = running.clone();
        wanted.peers[0].keys.public_key = PublicKey::from_bytes([9; 32]);

        let reload = Reload::between(&running, wanted);

        assert_eq!(reload.peers.changed, ["rome"]);
        assert_eq!((reload.peers.added, reload.peers.removed), (vec![], vec![]));
    }

    #[test]
    fn a_reused_name_is_another_peer() {
        let running = example::config();
        let mut wanted = running.clone();
        wanted.peers[0].name = "roma".to_owned();
        wanted.peers.push(peer("rome", 9));

        let reload = Reload::between(&running, wanted);

        assert_eq!(reload.peers.added, ["rome"]);
        assert_eq!(reload.peers.changed, ["roma"]);
        assert_eq!(reload.peers.removed, <[String; 0]>::default());
    }

    #[test]
    fn our_key_can_change_at_run_time() {
        let running = example::config();
        let private_key = PrivateKey::generate();
        let wanted = Config { private_key: private_key.clone(), ..running.clone() };

        let reload = Reload::between(&running, wanted);

        assert!(reload.has_new_key && !reload.is_unchanged());
        assert_eq!(reload.needs_restart, []);
        assert_eq!(reload.config.private_key.public_key(), private_key.public_key());
    }

    #[test]
    fn reordered_peers_are_a_change() {
        let mut running = example::config();
        running.peers.push(peer("oslo", 9));
        let mut wanted = running.clone();
        wanted.peers.reverse();

        assert!(!Reload::between(&running, wanted).is_unchanged());
    }

    #[test]
    fn routes_can_be_switched_at_run_time() {
        let running = example::config();
        let wanted = Config { routes: !running.routes, ..running.clone() };

        let reload = Reload::between(&running, wanted);

        assert!(!reload.is_unchanged());
        assert_eq!(reload.needs_restart, []);
        assert_ne!(reload.config.routes, running.routes);
    }

    #[test]
    fn the_cluster_can_change_at_run_time() {
        let running = example::config();
        let mut wanted = running.clone();
        wanted.cluster.prefixes.push("10.244.0.0/16".parse().unwrap());

        let reload = Reload::between(&running, wanted.clone());

        assert!(!reload.is_unchanged());
        assert_eq!(reload.needs_restart, []);
        assert_eq!(reload.config.cluster, wanted.cluster);
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let running = example::config();
        let mut wanted = Config {
            interface: "wg9".to_owned(),
            listen_port: 1,
            addresses: vec![],
            mtu_bytes: None,
            metrics_address: None,
            admin_socket: AdminSocket::Off,
            ..running.clone()
        };
        wanted.offload.udp_gro = false;
        wanted.peers.push(peer("oslo", 9));

        let reload = Reload::between(&running, wanted);

        let keys: Vec<_> = reload.needs_restart.iter().map(|setting| setting.key).collect();
        let expected = [
            "interface",
            "addresses",
            "listen_port",
            "mtu",
            "metrics_address",
            "admin_socket",
            "offload",
        ];
        assert_eq!(keys, expected);
        assert_eq!(reload.config.listen_port, running.listen_port);
        assert_eq!(reload.config.interface, running.interface);
        assert_eq!(reload.peers.added, ["oslo"]);
        let text = reload.needs_restart[2].to_string();
        assert_eq!(text, "listen_port needs a restart to become 1; 51840 stays in force");
    }

    #[test]
    fn values_that_stay_keep_their_origin() {
        let flag = |flag: &str| Origin::Flag { flag: flag.to_owned() };
        let mut running = example::config();
        running.origins = Origins::default().with("mtu", flag("--old")).with("name", flag("--old"));
        let mut wanted = Config { listen_port: 1, mtu_bytes: None, ..running.clone() };
        wanted.offload.udp_gro = false;
        wanted.origins = ["mtu", "name", "listen_port", "udp_gro", "engine"]
            .into_iter()
            .fold(Origins::default(), |origins, key| origins.with(key, flag("--new")));

        let origins = Reload::between(&running, wanted).config.origins;

        // The running value differs from the new one.
        assert_eq!(origins.of("mtu"), flag("--old"));
        assert_eq!(origins.of("listen_port"), Origin::Default);
        assert_eq!(origins.of("udp_gro"), Origin::Default);
        // The running value is the new one.
        assert_eq!(origins.of("name"), flag("--new"));
        assert_eq!(origins.of("engine"), flag("--new"));
    }

    fn peer(name: &str, key: u8) -> Peer {
        let public_key = PublicKey::from_bytes([key; 32]);

        Peer {
            name: name.to_owned(),
            keys: PeerKeys { public_key, preshared_key: None },
            ..example::config().peers[0].clone()
        }
    }
}
