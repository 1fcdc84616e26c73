//! Where configuration changes come from: a file or an API server.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;

use strait_io::overlay::HostSockets;
use strait_io::{Monitor, PeerStatus};
use strait_plan::conncheck::Traffic;
use strait_wg::PrivateKey;

use crate::cluster::{ClusterEvent, ClusterSource, Observed, PathWatch};
use crate::device_state::MissingPrefix;

/// The source of configuration changes.
pub enum Source {
    /// A file, reloaded on SIGHUP.
    File(PathBuf),
    /// The objects of an API server, watched.
    Cluster(Box<ClusterSource>),
}

impl Source {
    /// The observable state of the source.
    pub fn observed(&self) -> Option<Observed> {
        match self {
            Self::File(_) => None,
            Self::Cluster(cluster) => Some(cluster.observed()),
        }
    }

    /// What is known of the way to the other end, in a cluster.
    pub(super) fn path_watch(&self) -> Option<PathWatch> {
        match self {
            Self::File(_) => None,
            Self::Cluster(cluster) => Some(cluster.path_watch()),
        }
    }

    /// The gateway is draining.
    pub(super) fn set_draining(&self) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_draining(),
        }
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> ClusterEvent {
        match self {
            Self::File(_) => pending().await,
            Self::Cluster(cluster) => cluster.next().await,
        }
    }

    /// A private key that differs from the key `in_force`, if there is one.
    pub(super) fn new_key(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        match self {
            // Key rotation of a file is part of its reload.
            Self::File(_) => None,
            Self::Cluster(cluster) => cluster.new_key(in_force),
        }
    }

    /// Passes on the status of the peers.
    pub(super) fn handle_status(&mut self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.handle_status(status),
        }
    }

    /// Whether the leadership task waits for the peer, which is brief.
    pub(super) fn awaits_peer(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.awaits_peer(),
        }
    }

    /// Whether probes of the connection check find the path MTU.
    pub(super) fn checks_path_mtu(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.checks_connection(),
        }
    }

    /// Whether the device may get a larger MTU than the configured one.
    pub(super) fn grows_mtu(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.grows_mtu(),
        }
    }

    /// Sets the sockets for packets to the gateway's own addresses, with an overlay.
    pub(super) fn set_host_sockets(&mut self, sockets: HostSockets) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_host_sockets(sockets),
        }
    }

    /// Sets the gateway whose traffic the connection check follows.
    pub(super) fn set_monitor(&mut self, monitor: Monitor) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_traffic(Arc::new(move || {
                let strait_io::Traffic { receive_bytes, transmit_packets, damaged_datagrams } =
                    monitor.traffic();
                Traffic {
                    received_bytes: receive_bytes,
                    sent_packets: transmit_packets,
                    damaged_datagrams,
                }
            })),
        }
    }

    /// The MTU of the device has changed to `mtu` bytes.
    pub(super) fn set_device_mtu(&self, mtu: u16) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_device_mtu(mtu),
        }
    }

    /// Reports whether the peer was heard.
    pub(super) fn report_peer(&self, status: &[PeerStatus]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.report_peer(status),
        }
    }

    /// Reports the addresses and routes that the kernel refused.
    pub(super) fn set_missing(&mut self, missing: &[MissingPrefix]) {
        match self {
            Self::File(_) => {}
            Self::Cluster(cluster) => cluster.set_missing(missing),
        }
    }

    /// What a successor of this process needs to know of the objects before the API server answers.
    pub(super) fn source_state(&self, status: &[PeerStatus]) -> String {
        match self {
            Self::File(_) => String::new(),
            Self::Cluster(cluster) => cluster.source_state(status),
        }
    }

    /// Whether peers from before a restart are known, which the next event brings.
    pub(super) fn remembers_peers(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.remembers_peers(),
        }
    }

    /// Hands over to another replica. Returns whether one has taken over.
    pub(super) async fn hand_over(&mut self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Cluster(cluster) => cluster.hand_over().await,
        }
    }
}
