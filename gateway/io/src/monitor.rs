//! What there is to see of a gateway that runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use remap::{Reader, masquerade};

use super::Offload;
use super::clock::{self, Calendar};
use super::worker::Shared;
use strait_engine::Forwarding;
use strait_engine::explain::{self, Explanation, Question, QuestionError, Situation};
use strait_engine::translate::{Context, Memory};
use strait_packet::counters::{self, as_u64};
use strait_wg::Peer;
use strait_wg::PublicKey;

/// Reads the state of a gateway.
#[derive(Clone, Debug)]
pub struct Monitor {
    pub(super) shared: Arc<Shared>,
    pub(super) forwarding: Reader<Forwarding>,
    pub(super) has_lanes: bool,
}

impl Monitor {
    /// Everything at once.
    #[must_use]
    pub fn status(&self) -> Status {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let Shared { tun, udp, accounts, flows, calendar, is_alive, .. } = &*self.shared;
        let udp = udp.load();
        let peers: Vec<_> = forwarding
            .named_peers()
            .map(|(name, peer)| peer_status(name, peer, calendar))
            .collect();
        let merge = tun.merge();

        Status {
            listen_port: udp.port(),
            outbound: accounts.outbound.snapshot(),
            inbound: accounts.inbound.snapshot(),
            staged_packets: peers.iter().map(|peer| peer.staged_packets).sum(),
            flows: flows.statistics(),
            offload: Offload {
                tun_tso: merge.tcp,
                tun_uso: merge.udp,
                udp_gso: udp.segments(),
                udp_gro: udp.coalesces(),
                udp_steering: udp.steers(),
                vector_aead: self.has_lanes,
            },
            peers,
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

    /// The state of each peer that has an endpoint, in the order of the configuration: with the others nothing
    /// happens, and a server may have thousands of those.
    #[must_use]
    pub fn peers_with_endpoint(&self) -> Vec<PeerStatus> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());

        forwarding
            .named_peers()
            .filter(|(_, peer)| peer.endpoint().is_some())
            .map(|(name, peer)| peer_status(name, peer, &self.shared.calendar))
            .collect()
    }

    /// See [`Status::is_alive`].
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive.load(Ordering::Relaxed)
    }

    /// Ends when a packet thread has ended that was not told to: the device is gone. Cancel safe.
    pub async fn ended(&self) {
        loop {
            // Registered before the look, so that an end in between is not missed.
            let end = self.shared.end.notified();
            if !self.shared.is_alive.load(Ordering::Relaxed) {
                return;
            }
            end.await;
        }
    }

    /// Where datagrams to peers go now. Costs the packet threads nothing.
    #[must_use]
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());

        forwarding.peers().iter().filter_map(|peer| peer.endpoint()).collect()
    }

    /// The MTU of the device in bytes.
    #[must_use]
    pub fn device_mtu(&self) -> u16 {
        self.shared.mtu_bytes.load(Ordering::Relaxed)
    }

    /// What becomes of the packet that `question` describes, by what is in force now. Nothing is
    /// counted, and no flow is remembered.
    ///
    /// # Errors
    ///
    /// [`QuestionError`] if there is no such packet, or no telling who sends it.
    pub fn explain(&self, question: &Question) -> Result<Explanation, QuestionError> {
        let forwarding = Arc::clone(self.forwarding.clone().load_arc());
        let flows = &self.shared.flows;
        let context = Context {
            forwarding: &forwarding,
            flows,
            memory: Memory::Unchanged,
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
        path_mtu_bytes: peer.path_mtu(),
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
    /// What is remembered of flows.
    pub flows: masquerade::Statistics,
    /// What the kernel did not refuse and nobody switched off.
    pub offload: Offload,
    /// In the order of the configuration.
    pub peers: Vec<PeerStatus>,
    /// Generation of the table in force.
    pub generation: u64,
    /// Whether all packet threads run. `false` means the gateway must be restarted.
    pub is_alive: bool,
}

/// The state of one peer.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// As configured.
    pub name: String,
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Where it was heard from last, or where the configuration says it is.
    pub endpoint: Option<SocketAddr>,
    /// Initiations that went out since a handshake succeeded. The last of them may yet be answered.
    pub unanswered: u32,
    /// When the last handshake completed.
    pub last_handshake: Option<SystemTime>,
    /// Round trip of the last handshake.
    pub rtt: Option<Duration>,
    /// UDP payload bytes from and to the peer, and the packets inside.
    pub receive_bytes: u64,
    /// See [`Self::receive_bytes`].
    pub transmit_bytes: u64,
    /// Inner packets accepted from the peer.
    pub receive_packets: u64,
    /// Inner packets sent to the peer.
    pub transmit_packets: u64,
    /// Packets that wait for a handshake.
    pub staged_packets: u64,
    /// Whether a session is established.
    pub has_session: bool,
    /// The largest inner packet that the way to the peer carries, as far as it is known.
    pub path_mtu_bytes: Option<u16>,
}

impl PeerStatus {
    /// Of a peer about which nothing is known yet.
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
            path_mtu_bytes: None,
        }
    }
}
