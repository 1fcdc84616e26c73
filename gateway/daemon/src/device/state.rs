//! A device and its configuration.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io;
use std::mem;
use std::sync::Arc;

use remap::Table;
use strait_io::{
    EdgeSettings, Gateway, Monitor, Offload, PeerConfig, Settings, StartError, Workers,
};
use strait_wg::tunnel::PeerKeys;
use strait_wg::uapi::{
    Changes, Configuration, Errno, Operation, Peer, PeerReport, Refusal, Report,
};
use strait_wg::{Engine, PrivateKey};
use tracing::info;

use super::learned_peers::LearnedPeers;
use crate::peer_paths::PathChange;
use crate::uapi::status;

/// Default MTU: what Ethernet leaves, as with wireguard-go.
const MTU_BYTES: u16 = 1420;

/// Nothing is masqueraded here, so no flow is ever created.
const MAX_FLOWS: u32 = 1024;

/// The packet threads and their configuration.
#[derive(Debug)]
pub(super) struct Device {
    gateway: Gateway,
    monitor: Monitor,
    engine: Engine,
    configuration: Configuration,
    learned_peers: LearnedPeers,
    is_up: bool,
}

impl Device {
    /// Creates the device, down, without a key and peers.
    ///
    /// # Errors
    ///
    /// [`StartError`], which names what failed and the remedy.
    pub(super) fn start(interface: &str, engine: Engine) -> Result<Self, StartError> {
        let settings = Settings {
            edge: EdgeSettings::Device(interface.to_owned()),
            listen_port: 0,
            mtu_bytes: MTU_BYTES,
            offload: Offload::default(),
            workers: Workers::default(),
            max_flows: MAX_FLOWS,
            engine,
        };
        let gateway = Gateway::start(&settings, &throwaway_key())?;
        let monitor = gateway.monitor();

        let (configuration, learned_peers) = (Configuration::default(), LearnedPeers::default());
        // The device starts down.
        gateway.stop_initiating();
        Ok(Self { gateway, monitor, engine, configuration, learned_peers, is_up: false })
    }

    /// Handles the state and the MTU (in bytes) of the link. While it is down no handshake is initiated.
    pub(super) fn handle_link(&mut self, is_up: bool, mtu_bytes: u16) {
        self.gateway.set_device_mtu(mtu_bytes);
        if mem::replace(&mut self.is_up, is_up) == is_up {
            return;
        }
        if is_up {
            self.gateway.resume_initiating();
            self.gateway.send_keepalives();
        } else {
            self.gateway.stop_initiating();
        }
    }

    /// Gives access to the status.
    pub(super) fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// The firewall mark of sent datagrams; 0 is none.
    pub(super) fn mark(&self) -> u32 {
        self.configuration.fwmark
    }

    /// Frees memory that no packet thread uses. Call it periodically.
    pub(super) fn handle_timeout(&mut self) {
        self.gateway.free_retired();
    }

    /// Replaces all sessions, of which another machine may have a copy.
    pub(super) fn renew_sessions(&mut self) {
        self.gateway.renew_sessions();
    }

    /// Applies a change of the path to a peer.
    pub(super) fn handle_path_change(&self, change: PathChange) {
        change.apply(&self.gateway);
    }

    /// Executes the operation of a client.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with the kernel's error number. Then nothing has changed.
    pub(super) fn answer(&mut self, operation: Operation) -> Result<Option<Report>, Refusal> {
        match operation {
            Operation::Get => Ok(Some(self.report())),
            Operation::Set(changes) => self.set(&changes).map(|()| None),
        }
    }

    fn set(&mut self, changes: &Changes) -> Result<(), Refusal> {
        let wanted = self.configuration.with(changes);
        self.listen(&wanted)?;
        let had_key = self.configuration.private_key.is_some();
        let has_key = wanted.private_key.is_some();
        if had_key && !has_key {
            self.learned_peers.take(&self.monitor.status().peers);
        }
        self.take_key(&wanted);
        let moved = self.configuration.endpoint_changes(changes);
        self.configuration = wanted;

        // Without a key the packet threads have no peers; peers and their endpoints are kept here.
        let renewed = self.configuration.recreated(changes);
        let peers = self.configuration.peers.iter().map(|peer| peer.public_key);
        self.learned_peers
            .retain(&peers.filter(|peer| !renewed.contains(peer)).collect::<HashSet<_>>());
        if !renewed.is_empty() {
            self.apply(|peer| has_key && !renewed.contains(&peer.public_key));
        }
        self.apply(|_| has_key);
        if has_key && !had_key {
            for peer in &self.configuration.peers {
                let learned = self.learned_peers.endpoint(peer.public_key);
                if let Some(endpoint) = learned.or(peer.endpoint) {
                    self.gateway.move_peer(peer.public_key, endpoint);
                }
            }
        }
        for (peer, endpoint) in moved {
            self.learned_peers.move_peer(peer, endpoint);
            self.gateway.move_peer(peer, endpoint);
        }
        self.gateway.run_timers();
        info!(peers = self.configuration.peers.len(), "configured");

        Ok(())
    }

    /// Applies the peers for which `is_wanted` holds.
    fn apply(&mut self, is_wanted: impl Fn(&Peer) -> bool) {
        let peers = self.configuration.peers.iter().filter(|peer| is_wanted(peer));

        self.gateway.apply(peers.map(peer_config).collect(), no_rules());
    }

    /// Applies mark and port, which the kernel may reject.
    fn listen(&mut self, wanted: &Configuration) -> Result<(), Refusal> {
        let Configuration { listen_port, fwmark, .. } = self.configuration;
        if wanted.fwmark != fwmark {
            self.gateway.set_mark(wanted.fwmark).map_err(refusal)?;
        }
        if wanted.listen_port != listen_port
            // The kernel chose this port for us: it is in use by us.
            && wanted.listen_port != self.monitor.status().listen_port
            && let Err(error) = self.gateway.listen(wanted.listen_port)
        {
            // The old mark was accepted before.
            let _ = self.gateway.set_mark(fwmark);
            return Err(refusal(error));
        }

        Ok(())
    }

    /// Applies the private key. As with the kernel, sessions of a replaced key send nothing more; a removed key is
    /// forgotten at once.
    fn take_key(&mut self, wanted: &Configuration) {
        let before = self.configuration.private_key.as_ref().map(PrivateKey::public_key);
        match (before, &wanted.private_key) {
            (Some(before), Some(key)) if before != key.public_key() => {
                self.gateway.supersede_private_key(key);
            }
            (None, Some(key)) => self.gateway.replace_private_key(key),
            (Some(_), None) => self.gateway.replace_private_key(&throwaway_key()),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn report(&self) -> Report {
        let found = self.monitor.status();
        let Configuration { private_key, fwmark, peers, .. } = &self.configuration;
        let mut device = status::of_device(&found);
        device.private_key.clone_from(private_key);
        device.fwmark = *fwmark;
        device.engine = Some(self.engine.to_string());
        let learned: HashMap<_, _> =
            found.peers.iter().map(|peer| (peer.public_key, peer)).collect();

        let peers = peers.iter().map(|peer| {
            let endpoint = || self.learned_peers.endpoint(peer.public_key).or(peer.endpoint);
            let mut learned = learned.get(&peer.public_key).map_or_else(
                || PeerReport {
                    endpoint: endpoint().map(Into::into),
                    ..PeerReport::new(peer.public_key)
                },
                |found| status::of_peer(found),
            );
            self.learned_peers.count_into(&mut learned);
            PeerReport {
                preshared_key: peer.preshared_key.clone(),
                persistent_keepalive: peer.persistent_keepalive,
                allowed_ips: peer.allowed_ips.iter().copied().map(Into::into).collect(),
                ..learned
            }
        });

        Report { device, peers: peers.collect() }
    }
}

/// A random key, for a device without a configured one.
fn throwaway_key() -> PrivateKey {
    PrivateKey::generate()
}

/// An empty table. Its generation stays that of an engine without peers, which makes the engine start no handshake by
/// itself: a device is silent until there is something to send.
fn no_rules() -> Table {
    Table::default()
}

/// Converts a peer for the engine. It has one endpoint, configured or learned, and so no candidates.
fn peer_config(peer: &Peer) -> PeerConfig {
    PeerConfig {
        name: peer.public_key.to_string(),
        keys: PeerKeys { public_key: peer.public_key, preshared_key: peer.preshared_key.clone() },
        endpoints: Vec::new(),
        allowed_ips: Arc::clone(&peer.allowed_ips),
        clamp_mtu: None,
        persistent_keepalive: peer.persistent_keepalive,
    }
}

/// Converts an error: the kernel's error number, and the whole chain of causes.
fn refusal(error: StartError) -> Refusal {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let errno = source.and_then(io::Error::raw_os_error).map_or(Errno::IO, Errno);

    Refusal::new(errno, format!("{:#}", anyhow::Error::from(error)))
}
