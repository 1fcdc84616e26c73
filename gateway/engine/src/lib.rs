//! The packet engine: two directions and the handshakes between them, without a socket or a clock.
//!
//! ```text
//!            Control ── publishes ──▶ Forwarding (table, allowed IPs, peers: one immutable value)
//!                                        │ one load per batch
//!            ┌───────────────────────────┼──────────────────────────┐
//!   frames ▶ Outbound ▶ datagrams   datagrams ▶ Inbound ▶ frames    Handshakes ◀ time
//!            └──────────── Peer: session, endpoint, counters ───────┘
//! ```
//!
//! [`Engine::new`] creates the four parts. Each belongs to one thread; they share peers and counters.
//!
//! # Contract
//!
//! - [`Outbound::handle_frame`] takes one frame from the cluster and fills a batch of datagrams.
//!   [`Inbound::handle_datagrams`] takes the datagrams of one system call and fills a batch of frames. The caller
//!   empties a batch before it passes the next one.
//! - `handle_*` methods take input, `poll_*` methods return output. Time is passed as `now` and must never run
//!   backwards.
//! - A batch sees one generation of the table, never a mix of two.
//! - Every packet is sent, staged for a handshake, or counted under exactly one [`DropReason`].
//!
//! # Not here
//!
//! Remap rules (`remap`), packets and batches (`strait-packet`), sessions and cryptokey routing (`strait-wg`), system
//! calls, clocks and threads (`strait-io`).
//!
//! # Sources
//!
//! The WireGuard whitepaper for the protocol and its names, RFC 1624 for checksums, RFC 6040 and 8289 for congestion marks,
//! RFC 4787, 5382 and 5508 for the requirements on address translation.

#![forbid(unsafe_code)]

pub mod codel;
pub mod explain;
pub mod flows;
mod forwarding;
pub mod handover;
pub mod handshakes;
pub mod icmp_errors;
mod idle_peers;
pub mod inbound;
mod initiation_fanout;
mod keyed_tunnels;
mod keyring;
mod loop_guard;
pub mod outbound;
pub mod peer_matcher;
mod predecessor;
mod staged;
pub mod translate;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use remap::masquerade::LimitsError;
use remap::{Publisher, Reader, Table};

use strait_packet::DropReason;
use strait_packet::buffer::{Transmit, TransmitBatch};
use strait_packet::counters::{Counters, as_u64};
use strait_packet::path::LocalPort;
use strait_wg::Epoch;
use strait_wg::tunnel::{Identity, PeerKeys};
use strait_wg::{KeyRotation, PathProbe, Peer, PublicKey, ReceiverIndices};

pub use flows::Flows;
pub use forwarding::{Forwarding, Route};
use handover::PeerState;
pub use handshakes::Handshakes;
pub use inbound::Inbound;
use keyed_tunnels::KeyedTunnels;
use keyring::{Keyring, OwnKeys};
pub use loop_guard::LoopGuard;
pub use outbound::Outbound;
use peer_matcher::PeerMatcher;
use predecessor::Predecessor;

/// Configuration of one peer. Its index in the list is its [`remap::PeerId`] in the table.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// For logs and metrics.
    pub name: String,
    /// If any of them changes, a new session is established; the former one is used until then.
    pub keys: PeerKeys,
    /// Candidate endpoints, the best first. An endpoint that answers stays in use when this list changes.
    pub endpoints: Vec<SocketAddr>,
    /// The remote's real prefixes (cryptokey routing).
    pub allowed_ips: Arc<[remap::Prefix]>,
    /// The packet size, in bytes, to which the MSS of TCP is clamped; `None` does not clamp.
    pub clamp_mtu: Option<u16>,
    /// Seconds without any message after which a keepalive is sent. A change does not affect sessions.
    pub persistent_keepalive: Option<NonZeroU16>,
}

/// Settings of an engine, fixed at its start.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most masqueraded flows that are kept.
    pub max_flows: u32,
    /// Seed for choices that must be unpredictable from outside.
    pub seed: u64,
    /// The seed of receiver indices: [`ReceiverIndices::seed_of`] the private key, or anything unpredictable.
    pub index_seed: u64,
    /// Start of the engine. No packet is earlier.
    pub start: Instant,
}

/// The four parts of an engine.
#[derive(Debug)]
pub struct Engine {
    /// From the cluster to the tunnel.
    pub outbound: Outbound,
    /// From the tunnel to the cluster.
    pub inbound: Inbound,
    /// Handshakes and timers.
    pub handshakes: Handshakes,
    /// Applies configuration.
    pub control: Control,
    /// Flow state.
    pub flows: Arc<Flows>,
    /// Reads the published forwarding value, for reports.
    pub forwarding: Reader<Forwarding>,
}

impl Engine {
    /// An engine without peers.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] if `max_flows` is out of range.
    pub fn new(identity: Arc<dyn Identity>, settings: Settings) -> Result<Self, LimitsError> {
        let (publisher, reader) = remap::channel(Forwarding::default());
        let accounts = Accounts::default();
        let indices = if identity.uses_slot_indices() {
            ReceiverIndices::secret(settings.index_seed)
        } else {
            ReceiverIndices::plain()
        };
        let keyring = Arc::new(Keyring::new(identity));
        let flows = Arc::new(Flows::new(settings)?);
        let predecessor = Predecessor::default();

        Ok(Self {
            outbound: Outbound::new(
                reader.clone(),
                Arc::clone(&flows),
                Arc::clone(&accounts.outbound),
                settings,
            ),
            inbound: Inbound::new(
                reader.clone(),
                indices,
                predecessor.clone(),
                Arc::clone(&flows),
                accounts.clone(),
            ),
            forwarding: reader.clone(),
            handshakes: Handshakes::new(
                reader,
                indices,
                Arc::clone(&flows),
                Arc::clone(&keyring),
                accounts.clone(),
            ),
            control: Control {
                keyring,
                publisher,
                flows: Arc::clone(&flows),
                accounts,
                configured: Vec::new(),
                keyed_tunnels: KeyedTunnels::new(indices),
                loop_guard: Arc::default(),
                predecessor,
                next_realm: flows::OWN_REALM + 1,
                handed_over: HashMap::new(),
            },
            flows,
        })
    }
}

/// The counters of both directions.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Cluster to tunnel.
    pub outbound: Arc<Counters>,
    /// Tunnel to cluster.
    pub inbound: Arc<Counters>,
}

impl Accounts {
    /// Counts a send, successful or not.
    ///
    /// The thread that sends a batch reports each of its sends here, also those that another part of the engine
    /// appended: the thread that completes a handshake seals the staged packets.
    pub fn handle_transmit(&self, transmit: &Transmit, is_sent: bool) {
        if is_sent {
            self.outbound.packets_out.add(transmit.packets);
            self.outbound.bytes_out.add(transmit.packet_bytes);
        } else {
            self.outbound.count_drops(DropReason::WriteFailed, transmit.packets);
        }
    }

    /// Counts packets that were written to the device, or that it refused.
    pub fn handle_frame(&self, packets: u64, bytes: u64, is_written: bool) {
        if is_written {
            self.inbound.packets_out.add(packets);
            self.inbound.bytes_out.add(bytes);
        } else {
            self.inbound.count_drops(DropReason::WriteFailed, packets);
        }
    }
}

/// Applies configuration: keeps learned state, publishes the rest.
#[derive(Debug)]
pub struct Control {
    keyring: Arc<Keyring>,
    publisher: Publisher<Forwarding>,
    flows: Arc<Flows>,
    accounts: Accounts,
    configured: Vec<PeerConfig>,
    keyed_tunnels: KeyedTunnels,
    loop_guard: Arc<LoopGuard>,
    predecessor: Predecessor,
    next_realm: u32,
    /// What the predecessor of this process knew of peers that are not configured yet.
    handed_over: HashMap<PublicKey, PeerState>,
}

impl Control {
    /// Publishes `peers` and `table`, which are in force from the next batch of either direction on.
    ///
    /// A peer keeps its session, its endpoint and its counters. It is the same peer if it has the same public key, or
    /// the same name and a key that no peer had before.
    pub fn apply(&mut self, peers: Vec<PeerConfig>, table: Table) {
        let old = self.publisher.current();
        let own_keys = self.keyring.keys();
        let keys: HashSet<PublicKey> = peers.iter().map(|peer| peer.keys.public_key).collect();
        let before = std::mem::take(&mut self.configured);
        let before =
            before.iter().map(|peer| (peer.keys.public_key, &*peer.name, peer.keys.public_key));
        let predecessors = PeerMatcher::new(&keys, before);
        let mut kept_realms = HashSet::with_capacity(peers.len());
        let mut wanted = Vec::with_capacity(peers.len());
        for config in &peers {
            let known = predecessors.find(config.keys.public_key, &config.name);
            let known = known.and_then(|key| old.by_key(key)).map(Arc::clone);
            let known = known.filter(|known| !kept_realms.contains(&known.realm));
            let peer = self.peer(known, config, &keys, &own_keys);
            kept_realms.insert(peer.realm);
            wanted.push(peer);
        }
        self.configured = peers;
        self.publish(wanted, table);
    }

    /// Publishes `peers`, in the order of the configuration. Closes every keyed tunnel that none of them has.
    fn publish(&mut self, peers: Vec<Arc<Peer>>, table: Table) {
        let old = self.publisher.current();
        let kept: HashSet<u32> = peers.iter().flat_map(|peer| peer.tunnel.slots()).collect();
        let successors: HashMap<u32, Arc<Peer>> =
            peers.iter().map(|peer| (peer.realm, Arc::clone(peer))).collect();
        let loop_guard = Arc::clone(&self.loop_guard);
        self.publisher.publish(Forwarding::new(&self.configured, peers, table, loop_guard));

        for peer in self.publisher.current().peers() {
            peer.tunnel.end_sending();
        }
        for peer in old.peers() {
            let successor = successors.get(&peer.realm);
            for gone in peer.tunnel.keyed_tunnels().filter(|keyed| !kept.contains(&keyed.slot)) {
                self.keyed_tunnels.free(gone.slot);
                let staged = gone.tunnel.close();
                match successor {
                    Some(successor) => successor.tunnel.current().tunnel.append_staged(staged),
                    None => {
                        let lost = as_u64(staged.len());
                        self.accounts.outbound.count_drops(DropReason::PeerRemoved, lost);
                    }
                }
            }
            if successor.is_none() {
                self.flows.remove_realm(peer.realm);
            }
        }
    }

    /// Drops expired keys, and frees former configurations that no packet thread holds any more, with the keys in
    /// them. To be called periodically.
    pub fn free_retired(&mut self) {
        self.drop_ended();
        self.publisher.free_retired();
    }

    /// Removes ended keyed tunnels from all peers. Nothing else of a peer changes.
    fn drop_ended(&mut self) {
        let forwarding = self.publisher.current();
        if !forwarding.peers().iter().any(|peer| peer.tunnel.has_ended()) {
            return;
        }
        let peers = forwarding.peers().iter().map(|peer| {
            if !peer.tunnel.has_ended() {
                return Arc::clone(peer);
            }
            Arc::new(peer.with_tunnel(peer.keys.clone(), peer.tunnel.without_ended()))
        });
        let peers = peers.collect();

        self.publish(peers, forwarding.table().clone());
    }

    /// Sets the UDP port that datagrams are sent from.
    pub fn set_port(&self, port: u16) {
        self.loop_guard.set_port(LocalPort::Listen, port);
    }

    /// Sets the UDP port for datagrams to peers that do not answer the first port.
    pub fn set_spare_port(&self, port: u16) {
        self.loop_guard.set_port(LocalPort::Spare, port);
    }

    /// Rotates our static key to that of `identity`. The former one stays valid for a grace period; no session is lost.
    pub fn rotate_key(&mut self, identity: &Arc<dyn Identity>) {
        if self.keyring.rotate(identity) {
            let table = self.publisher.current().table().clone();
            self.apply(self.configured.clone(), table);
        }
    }

    /// Rotates our static key to that of `identity` at once: sessions of former keys send nothing more, and no
    /// handshake is initiated or answered with these keys. What peers still send in those sessions is received for a
    /// grace period.
    ///
    /// Packets of a batch that the outbound thread has already started may find only the ended session: they are
    /// dropped, and counted as [`DropReason::StagingFull`].
    pub fn supersede_key(&mut self, identity: &Arc<dyn Identity>) {
        if self.keyring.supersede(identity) {
            let table = self.publisher.current().table().clone();
            self.apply(self.configured.clone(), table);
        }
    }

    /// Replaces our static key by that of `identity`, and drops all former keys and every session.
    pub fn replace_key(&mut self, identity: &Arc<dyn Identity>) {
        self.keyring.replace(identity);
        let table = self.publisher.current().table().clone();
        self.apply(self.configured.clone(), table);
    }

    /// Ends every session, because a copy of this process may use the same sessions: no two packets may be sealed with
    /// the same key and counter. Starts a handshake with every peer that had a session or waits for one; staged packets
    /// wait for it. All other state of peers is kept.
    pub fn renew_sessions(&mut self) {
        let own_keys = self.keyring.keys();
        let before = self.publisher.current();
        let keys: HashSet<PublicKey> =
            before.peers().iter().map(|peer| peer.keys.public_key).collect();
        let mut peers = Vec::with_capacity(before.peers().len());
        let mut in_use = HashSet::new();
        for peer in before.peers() {
            if peer.tunnel.session().is_established || peer.endpoints.unanswered() > 0 {
                in_use.insert(peer.realm);
            }
            let tunnel = self.keyed_tunnels.renewed(peer, &keys, &own_keys);
            peers.push(Arc::new(peer.with_tunnel(peer.keys.clone(), tunnel)));
        }
        self.publish(peers, before.table().clone());

        for peer in self.publisher.current().peers() {
            if in_use.contains(&peer.realm) || peer.tunnel.session().staged > 0 {
                // Initiations of the former sessions no longer count as unanswered.
                peer.endpoints.reset_unanswered();
                // A packet may have started the handshake by now.
                peer.endpoints.request_session();
            }
        }
    }

    /// Dates our initiations after `epoch`, until which a former instance with our key may have sent some. To be called
    /// before there are peers.
    pub fn continue_after(&self, epoch: Epoch) {
        self.keyring.continue_after(epoch);
    }

    /// Relays datagrams between the only peer and `predecessor`, the gateway that led before this one, until the time
    /// `until`. The predecessor may still have sessions with the peer, and get packets for it.
    pub fn relay(&self, predecessor: SocketAddr, until: Instant) {
        self.predecessor.set(predecessor, until);
    }

    /// Sets the endpoint of a peer, until an authentic datagram arrives from another one. Does nothing if no peer has
    /// this key.
    pub fn move_peer(&self, key: PublicKey, endpoint: SocketAddr) {
        if let Some(peer) = self.publisher.current().by_key(key) {
            peer.endpoints.set_endpoint(endpoint);
        }
    }

    /// Replaces the candidate endpoints of a peer, as if the configuration had named them. Does nothing if no peer has
    /// this key.
    pub fn set_endpoints(&self, key: PublicKey, endpoints: &[SocketAddr]) {
        if let Some(peer) = self.publisher.current().by_key(key) {
            peer.endpoints.set_candidates(endpoints, || peer.tunnel.session().is_established);
        }
    }

    /// Sends a keepalive at once to every peer with a persistent keepalive.
    pub fn keep_alive(&self) {
        for peer in self.publisher.current().peers() {
            peer.request_keepalive();
        }
    }

    /// Tries all candidate endpoints of every peer, because the one in use does not seem to work.
    pub fn seek_peers(&self) {
        for peer in self.publisher.current().peers() {
            peer.endpoints.request_candidate_handshakes();
        }
    }

    /// Seals probes of the path to the peer, one for each of `lengths` in bytes. Does nothing without a session, or if no
    /// peer has this key.
    pub fn probe_path(
        &self,
        key: PublicKey,
        lengths: &[u16],
        now: Instant,
        out: &mut TransmitBatch,
    ) {
        let forwarding = self.publisher.current();
        let Some(peer) = forwarding.by_key(key) else { return };
        let Some(path) = peer.path() else { return };
        for bytes in lengths {
            let sent = peer.tunnel.seal_probe(PathProbe::Probe(*bytes), path, out, now);
            peer.transmit.bytes.add(sent);
        }
    }

    /// The published value.
    #[must_use]
    pub fn current(&self) -> Arc<Forwarding> {
        self.publisher.current()
    }

    /// The counters of both directions.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn peer(
        &mut self,
        known: Option<Arc<Peer>>,
        config: &PeerConfig,
        wanted: &HashSet<PublicKey>,
        own_keys: &OwnKeys,
    ) -> Arc<Peer> {
        let keys = &config.keys;
        let tunnel = self.keyed_tunnels.for_keys(known.as_deref(), keys, wanted, own_keys);

        let peer = match known {
            Some(known) if known.tunnel.slots().eq(tunnel.slots()) => known,
            Some(known) => {
                // Initiations with former keys no longer count as unanswered.
                known.endpoints.reset_unanswered();
                Arc::new(known.with_tunnel(keys.clone(), tunnel))
            }
            None => self.new_peer(keys, tunnel),
        };
        peer.set_clamp_mtu(config.clamp_mtu);
        peer.set_persistent_keepalive(config.persistent_keepalive);
        // Lazily: reading the state of a tunnel takes a lock that the packet threads use.
        let has_session = || peer.tunnel.session().is_established;
        peer.endpoints.set_candidates(&config.endpoints, has_session);

        peer
    }

    /// A peer that was not configured, as the predecessor of this process knew it.
    fn new_peer(&mut self, keys: &PeerKeys, tunnel: KeyRotation) -> Arc<Peer> {
        let state = self.handed_over.remove(&keys.public_key);
        let realm = state.as_ref().map_or(self.next_realm, |state| state.realm);
        self.next_realm = self.next_realm.max(realm + 1);
        let peer = Peer::new(keys.clone(), realm, tunnel, self.loop_guard.moves());
        if let Some(state) = state {
            state.apply_to(&peer);
        }

        Arc::new(peer)
    }
}
