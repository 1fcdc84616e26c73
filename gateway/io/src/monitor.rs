//! The state of a running gateway, for metrics and commands.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use remap::{Reader, masquerade};

use super::Offload;
use super::clock::{self, Calendar};
use super::edge::Edge as _;
use super::overlay::NodeTraffic;
use super::worker::Shared;
use strait_engine::Forwarding;
use strait_engine::explain::{self, Explanation, Question, QuestionError, Situation};
use strait_engine::flows::FlowAccess;
use strait_engine::translate::Context;
use strait_packet::counters::{self, as_u64};
use strait_wg::{PathMtu, Peer, PublicKey};

/// Reads the state of a gateway.
#[derive(Clone, Debug)]
pub struct Monitor {
    pub(super) shared: Arc<Shared>,
    pub(super) forwarding: Reader<Forwarding>,
    pub(super) has_lanes: bool,
}

impl Monitor {
    /// The whole state.
    #[must_use]
    pub fn status(&self) -> Status {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let Shared { edge, udp, accounts, flows, calendar, is_alive, .. } = &*self.shared;
        let udp = udp.load();
        let peers: Vec<_> = forwarding
            .named_peers()
            .map(|(name, peer)| peer_status(name, peer, calendar))
            .collect();
        let merge = edge.merge();

        Status {
            listen_port: udp.port(),
            outbound: accounts.outbound.snapshot(),
            inbound: accounts.inbound.snapshot(),
            staged_packets: peers.iter().map(|peer| peer.staged_packets).sum(),
            flows: flows.statistics(),
            offload: Offload {
                tun_tso: merge.tcp,
                tun_uso: merge.udp,
                tun_udp_tunnel: edge.has_overlay_offload(),
                udp_gso: udp.segments(),
                udp_gro: udp.coalesces(),
                udp_steering: udp.steers(),
                vector_aead: self.has_lanes,
            },
            peers,
            nodes: edge.overlay().map(|overlay| overlay.traffic()).unwrap_or_default(),
            generation: forwarding.table().generation(),
            is_alive: is_alive.load(Ordering::Relaxed),
        }
    }

    /// The state of each peer with one of `keys`, in their order.
    #[must_use]
    pub fn peers_by_key(&self, keys: &[PublicKey]) -> Vec<PeerStatus> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let status = |key: &PublicKey| {
            let (name, peer) = forwarding.named_by_key(*key)?;
            Some(peer_status(name, peer, &self.shared.calendar))
        };

        keys.iter().filter_map(status).collect()
    }

    /// The state of each peer that has an endpoint, in the order of the configuration. The others are idle, and a server
    /// may have thousands of them.
    #[must_use]
    pub fn peers_with_endpoint(&self) -> Vec<PeerStatus> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());

        forwarding
            .named_peers()
            .filter(|(_, peer)| peer.endpoint().is_some())
            .map(|(name, peer)| peer_status(name, peer, &self.shared.calendar))
            .collect()
    }

    /// Whether there are peers, and a session is established with each of them.
    #[must_use]
    pub fn has_all_sessions(&self) -> bool {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let peers = forwarding.peers();

        !peers.is_empty() && peers.iter().all(|peer| peer.tunnel.session().is_established)
    }

    /// See [`Status::is_alive`].
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive.load(Ordering::Relaxed)
    }

    /// Completes when a thread has ended although the gateway was not stopped, for instance because the device is gone.
    /// Cancel safe.
    pub async fn ended(&self) {
        loop {
            // Registered before the check, so that an end in between is not missed.
            let end = self.shared.end.notified();
            if !self.shared.is_alive.load(Ordering::Relaxed) {
                return;
            }
            end.await;
        }
    }

    /// The current endpoints of all peers. Costs the packet threads nothing.
    #[must_use]
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());

        forwarding.peers().iter().filter_map(|peer| peer.endpoint()).collect()
    }

    /// What all peers together have received and sent. Takes no lock.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let peers = forwarding.peers().iter();

        peers.fold(Traffic::default(), |sum, peer| Traffic {
            receive_bytes: sum.receive_bytes.wrapping_add(peer.receive.bytes.get()),
            transmit_packets: sum.transmit_packets.wrapping_add(peer.transmit.packets.get()),
            damaged_datagrams: sum.damaged_datagrams.wrapping_add(peer.damaged.get()),
        })
    }

    /// The MTU of the device in bytes.
    #[must_use]
    pub fn device_mtu(&self) -> u16 {
        self.shared.mtu_bytes.load(Ordering::Relaxed)
    }

    /// Explains how the packet that `question` describes is treated by the configuration in force. Counts nothing and
    /// creates no flow.
    ///
    /// # Errors
    ///
    /// [`QuestionError`] if there is no such packet, or if its sender is ambiguous.
    pub fn explain(&self, question: &Question) -> Result<Explanation, QuestionError> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let flows = &self.shared.flows;
        let context = Context {
            forwarding: &forwarding,
            flows,
            flow_access: FlowAccess::ReadOnly,
            now: flows.tick(clock::now()),
        };
        let situation = Situation { mtu_bytes: self.device_mtu(), is_running: true };

        explain::explain(&context, situation, question)
    }
}

fn peer_status(name: &str, peer: &Peer, calendar: &Calendar) -> PeerStatus {
    let session = peer.tunnel.session();

    PeerStatus {
        name: name.to_owned(),
        public_key: peer.keys.public_key,
        endpoint: peer.endpoint(),
        unanswered: peer.endpoints.unanswered(),
        last_handshake: session.last_handshake.and_then(|at| calendar.date(at)),
        rtt: session.rtt,
        receive_bytes: peer.receive.bytes.get(),
        transmit_bytes: peer.transmit.bytes.get(),
        receive_packets: peer.receive.packets.get(),
        transmit_packets: peer.transmit.packets.get(),
        staged_packets: as_u64(session.staged),
        has_session: session.is_established,
        path_mtu: peer.path_mtu(),
    }
}

/// The state of a gateway at one moment.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The port in use.
    pub listen_port: u16,
    /// Cluster to tunnel.
    pub outbound: counters::Snapshot,
    /// Tunnel to cluster.
    pub inbound: counters::Snapshot,
    /// Packets that wait for a handshake, all peers.
    pub staged_packets: u64,
    /// The table of flows.
    pub flows: masquerade::Statistics,
    /// Offloads in use: enabled, and not refused by the kernel.
    pub offload: Offload,
    /// In the order of the configuration.
    pub peers: Vec<PeerStatus>,
    /// What each node of the overlay has sent and got; none with a device.
    pub nodes: Vec<NodeTraffic>,
    /// Generation of the table in force.
    pub generation: u64,
    /// Whether all packet threads run. `false` means the gateway must be restarted.
    pub is_alive: bool,
}

/// What the tunnel has carried, all peers together. Decreases when a peer is removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// UDP payload bytes of authentic datagrams from peers: data, keepalives and handshakes.
    pub receive_bytes: u64,
    /// Inner packets sent to peers.
    pub transmit_packets: u64,
    /// Datagrams for sessions of peers with a wrong tag: damaged on the path, or forged.
    pub damaged_datagrams: u64,
}

/// The state of one peer.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its configured name.
    pub name: String,
    /// Its static public key.
    pub public_key: PublicKey,
    /// Source of its last authenticated datagram, or else the configured endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Initiations sent since the last successful handshake. The latest may still be answered.
    pub unanswered: u32,
    /// When the last handshake completed.
    pub last_handshake: Option<SystemTime>,
    /// Round trip of the last handshake.
    pub rtt: Option<Duration>,
    /// UDP payload bytes received from the peer.
    pub receive_bytes: u64,
    /// UDP payload bytes sent to the peer.
    pub transmit_bytes: u64,
    /// Inner packets accepted from the peer.
    pub receive_packets: u64,
    /// Inner packets sent to the peer.
    pub transmit_packets: u64,
    /// Packets that wait for a handshake.
    pub staged_packets: u64,
    /// Whether a session is established.
    pub has_session: bool,
    /// What the path to the peer carries, if it is known.
    pub path_mtu: Option<PathMtu>,
}

impl PeerStatus {
    /// The state of a peer that was never in contact.
    #[must_use]
    pub fn new(name: impl Into<String>, public_key: PublicKey) -> Self {
        Self {
            name: name.into(),
            public_key,
            endpoint: None,
            unanswered: 0,
            last_handshake: None,
            rtt: None,
            receive_bytes: 0,
            transmit_bytes: 0,
            receive_packets: 0,
            transmit_packets: 0,
            staged_packets: 0,
            has_session: false,
            path_mtu: None,
        }
    }
}
