//! What the control loop does with the results of the connection check, and of probes in sessions.

use strait_io::PeerStatus;
use tracing::{info, warn};

use super::{Service, now};
use crate::cluster::ConnectivityEvent;
use crate::config::Config;
use crate::mtu;
use crate::path_probes::PathProbing;

impl Service {
    /// Handles the results of probes. If some are missed, the peer may have moved.
    pub(super) async fn handle_connectivity(&mut self, event: ConnectivityEvent) {
        match event {
            ConnectivityEvent::MissedProbe => self.resolver.look_up_now(now()),
            ConnectivityEvent::Silence => self.gateway.try_all_endpoints(),
            ConnectivityEvent::GsoHarm(is_harmful) => {
                if is_harmful {
                    warn!(
                        "datagrams that the kernel segments arrive damaged: sending one by one, which is slower; \
                         upgrade the kernel or the driver of the network card, or keep udp_gso off"
                    );
                } else {
                    info!(
                        "the kernel segments datagrams again: they arrived damaged one by one too, or the check has started again"
                    );
                }
                self.gateway.set_gso(!is_harmful);
            }
            ConnectivityEvent::PathMtu { bytes, is_strait } => {
                // Before the device grows: senders of longer packets get an ICMP error until a probe of that length was
                // answered.
                self.paths.set_probed(bytes);
                if self.source.grows_mtu() {
                    self.fit_device_mtu(is_strait && bytes.is_some()).await;
                }
            }
        }
    }

    /// Probes the paths to `peers` in their sessions, unless the connection check does.
    pub(super) fn follow_probed_paths(&mut self, peers: &[PeerStatus]) {
        if self.source.checks_path_mtu() {
            return;
        }
        self.path_probes.handle_status(peers, self.mtu_bytes, now());
        for PeerStatus { public_key, .. } in peers {
            let found = self.path_probes.found(*public_key);
            self.paths.set_probed_in_session(*public_key, found);
        }
    }

    /// Sends the probes of paths that are due, and handles the answers to former ones.
    pub(super) fn probe_paths(&mut self) {
        let Self { gateway, path_probes, paths, mtu_bytes, .. } = self;
        let answers = |peer| gateway.take_answered_probes(peer);
        for PathProbing { peer, lengths, found } in
            path_probes.handle_timeout(*mtu_bytes, now(), answers)
        {
            if !lengths.is_empty() {
                gateway.probe_path(peer, &lengths);
            }
            paths.set_probed_in_session(peer, found);
        }
    }

    /// Gives the device the MTU that the underlay has room for if it `may_grow`, and otherwise the configured one
    /// again. An MTU that the host has set stays.
    async fn fit_device_mtu(&mut self, may_grow: bool) {
        let Some(configured) = self.config.mtu_bytes else { return };
        let wanted = if may_grow && self.mtu_bytes == configured {
            self.underlay_mtu().await.max(configured)
        } else if !may_grow && self.grown_mtu == Some(self.mtu_bytes) {
            configured
        } else {
            return;
        };
        if let Err(error) = self.edge.set_mtu(wanted).await {
            return warn!(%error, mtu = wanted, "cannot change the MTU of the device");
        }
        self.grown_mtu = Some(wanted);
        self.sync_edge().await;
    }

    /// The MTU of a device for the path to the peer; 0 if there is no path.
    async fn underlay_mtu(&self) -> u16 {
        let peers = self.monitor.peers_with_endpoint();
        let Some(endpoint) = peers.iter().find_map(|peer| peer.endpoint) else { return 0 };
        let automatic = Config { mtu_bytes: None, ..Config::clone(&self.config) };
        match self.netlink.interface_towards(endpoint.ip()).await {
            Some((_, underlay)) => mtu::of_device(&automatic, Some(underlay)).bytes,
            None => 0,
        }
    }
}
