//! The packet engine: two directions and the handshakes between them, without a socket or a clock.
//!
//! ```text
//!            Control ── publishes ──▶ Forwarding (table, allowed IPs, peers: one immutable value)
//!                                        │ one look per batch
//!            ┌───────────────────────────┼──────────────────────────┐
//!   frames ▶ Outbound ▶ datagrams   datagrams ▶ Inbound ▶ frames    Handshakes ◀ time
//!            └──────────── Peer: session, endpoint, counters ───────┘
//! ```
//!
//! [`Engine::new`] makes the four parts. Each belongs to one thread; they share peers and counters.
//!
//! # Contract
//!
//! - [`Outbound::handle_frame`] takes one frame from the cluster and fills a batch of datagrams.
//!   [`Inbound::handle_datagrams`] takes what one system call received and fills a batch of frames. The caller empties
//!   a batch before it hands in the next one.
//! - `handle_*` methods take input, `poll_*` methods give output. Time comes in as `now` and must never run backwards.
//! - A batch sees one generation of the table, never a mix of two.
//! - Every packet that comes in goes out, is staged for a handshake, or is counted under exactly one [`DropReason`].
//!
//! # Not here
//!
//! Which address becomes which (`remap`), packets and batches (`strait-packet`), sessions and cryptokey routing
//! (`strait-wg`), system calls, clocks and threads (`strait-io`).
//!
//! # Sources
//!
//! The WireGuard whitepaper for the protocol and its names, RFC 1624 for checksums, RFC 6040 for congestion marks,
//! RFC 4787, 5382 and 5508 for what address translation owes to its users.

#![forbid(unsafe_code)]

pub mod counterparts;
pub mod explain;
pub mod flows;
mod forwarding;
pub mod handshakes;
pub mod inbound;
mod keyring;
pub mod notice;
pub mod outbound;
mod outside;
mod race;
mod rest;
mod strands;
pub mod translate;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use remap::masquerade::LimitsError;
use remap::{Publisher, Reader, Table};

use strait_packet::DropReason;
use strait_packet::buffer::Transmit;
use strait_packet::counters::{Counters, as_u64};
use strait_packet::path::LocalPort;
use strait_wg::Indices;
use strait_wg::Peer;
use strait_wg::PublicKey;
use strait_wg::native::Epoch;
use strait_wg::tunnel::{Identity, PeerKeys};

use counterparts::Counterparts;
pub use flows::Flows;
pub use forwarding::{Forwarding, Route};
pub use handshakes::Handshakes;
pub use inbound::Inbound;
use keyring::{Held, Keyring};
pub use outbound::Outbound;
pub use outside::Outside;
use strands::Strands;

/// What is wanted of one peer. Its place in the list is its [`remap::PeerId`] in the table.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// For logs and metrics.
    pub name: String,
    /// If any of them changes, a new session is begun; the one before serves until the new one does.
    pub keys: PeerKeys,
    /// Where the peer may be, the best first. An endpoint that answers stays in use whatever is added
    /// or taken away here.
    pub endpoints: Vec<SocketAddr>,
    /// The remote's real prefixes (cryptokey routing).
    pub allowed_ips: Arc<[remap::Prefix]>,
    /// The largest packet, in bytes, that TCP is told of; `None` tells it nothing.
    pub clamp_mtu: Option<u16>,
    /// A keepalive is sent after so many seconds without any message. No session is touched by a change of it.
    pub persistent_keepalive: Option<NonZeroU16>,
}

/// What an engine is given once.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many masqueraded flows are kept.
    pub max_flows: u32,
    /// For choices that nobody outside may foresee.
    pub seed: u64,
    /// When the engine starts. No packet is earlier.
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
    /// Takes configuration.
    pub control: Control,
    /// What is remembered of flows.
    pub flows: Arc<Flows>,
    /// Follows what is in force, for whoever reports it.
    pub forwarding: Reader<Forwarding>,
}

impl Engine {
    /// An engine without peers.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] if that many flows cannot be remembered.
    pub fn new(identity: Arc<dyn Identity>, settings: Settings) -> Result<Self, LimitsError> {
        let (publisher, reader) = remap::channel(Forwarding::default());
        let accounts = Accounts::default();
        let indices = if identity.takes_indices() {
            Indices::secret(settings.seed)
        } else {
            Indices::plain()
        };
        let keyring = Arc::new(Keyring::new(identity));
        let flows = Arc::new(Flows::new(settings)?);

        Ok(Self {
            outbound: Outbound::new(
                reader.clone(),
                Arc::clone(&flows),
                Arc::clone(&accounts.outbound),
                settings,
            ),
            inbound: Inbound::new(reader.clone(), indices, Arc::clone(&flows), accounts.clone()),
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
                strands: Strands::new(indices),
                outside: Arc::default(),
                next_realm: flows::OWN_REALM + 1,
            },
            flows,
        })
    }
}

/// The account of either direction.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// Cluster to tunnel.
    pub outbound: Arc<Counters>,
    /// Tunnel to cluster.
    pub inbound: Arc<Counters>,
}

impl Accounts {
    /// Counts a send that the network took, or did not.
    ///
    /// Whoever sends a batch reports each of its sends here, whichever part of the engine filled it:
    /// what was staged is sealed by the thread that completes the handshake.
    pub fn handle_transmit(&self, transmit: &Transmit, is_sent: bool) {
        if is_sent {
            self.outbound.packets_out.add(transmit.packets);
            self.outbound.bytes_out.add(transmit.packet_bytes);
        } else {
            self.outbound.count_drops(DropReason::WriteFailed, transmit.packets);
        }
    }

    /// Counts packets that the device took, or did not.
    pub fn handle_frame(&self, packets: u64, bytes: u64, is_written: bool) {
        if is_written {
            self.inbound.packets_out.add(packets);
            self.inbound.bytes_out.add(bytes);
        } else {
            self.inbound.count_drops(DropReason::WriteFailed, packets);
        }
    }
}

/// Takes configuration: keeps what was learned, publishes the rest.
#[derive(Debug)]
pub struct Control {
    keyring: Arc<Keyring>,
    publisher: Publisher<Forwarding>,
    flows: Arc<Flows>,
    accounts: Accounts,
    configured: Vec<PeerConfig>,
    strands: Strands,
    outside: Arc<Outside>,
    next_realm: u32,
}

impl Control {
    /// Makes `peers` and `table` the ones in force, from the next batch of either direction on.
    ///
    /// A peer keeps its session, its endpoint and its counters. It is the same one if it has the same
    /// public key, or the same name and a key that nobody had before.
    pub fn apply(&mut self, peers: Vec<PeerConfig>, table: Table) {
        let old = self.publisher.current();
        let held = self.keyring.keys();
        let keys: HashSet<PublicKey> = peers.iter().map(|peer| peer.keys.public_key).collect();
        let before = std::mem::take(&mut self.configured);
        let before =
            before.iter().map(|peer| (peer.keys.public_key, &*peer.name, peer.keys.public_key));
        let predecessors = Counterparts::new(&keys, before);
        let mut heirs = HashSet::with_capacity(peers.len());
        let mut wanted = Vec::with_capacity(peers.len());
        for config in &peers {
            let known = predecessors.of(config.keys.public_key, &config.name);
            let known = known.and_then(|key| old.by_key(key)).map(Arc::clone);
            let known = known.filter(|known| !heirs.contains(&known.realm));
            let peer = self.peer(known, config, &keys, (&held.current, &held.older));
            heirs.insert(peer.realm);
            wanted.push(peer);
        }
        self.configured = peers;
        self.publish(wanted, table);
    }

    /// Puts `peers` in force, as they are configured. Closes every strand that none of them has.
    fn publish(&mut self, peers: Vec<Arc<Peer>>, table: Table) {
        let old = self.publisher.current();
        let kept: HashSet<u32> = peers.iter().flat_map(|peer| peer.tunnel.slots()).collect();
        let heirs: HashMap<u32, Arc<Peer>> =
            peers.iter().map(|peer| (peer.realm, Arc::clone(peer))).collect();
        let outside = Arc::clone(&self.outside);
        self.publisher.publish(Forwarding::new(&self.configured, peers, table, outside));

        for peer in self.publisher.current().peers() {
            peer.tunnel.end_sending();
        }
        for peer in old.peers() {
            let heir = heirs.get(&peer.realm);
            for gone in peer.tunnel.strands().filter(|strand| !kept.contains(&strand.slot)) {
                self.strands.free(gone.slot);
                let staged = gone.tunnel.close();
                match heir {
                    Some(heir) => heir.tunnel.current().tunnel.adopt(staged),
                    None => {
                        let lost = as_u64(staged.len());
                        self.accounts.outbound.count_drops(DropReason::PeerRemoved, lost);
                    }
                }
            }
            if heir.is_none() {
                self.flows.forget(peer.realm);
            }
        }
    }

    /// Lets go of keys that have ended, and frees earlier configurations that no packet thread holds any more,
    /// with the keys in them. To be called now and then.
    pub fn free_retired(&mut self) {
        self.forget_ended();
        self.publisher.free_retired();
    }

    /// Has each peer go on without the strands that are over. Nothing else of it changes.
    fn forget_ended(&mut self) {
        let forwarding = self.publisher.current();
        if !forwarding.peers().iter().any(|peer| peer.tunnel.has_ended()) {
            return;
        }
        let peers = forwarding.peers().iter().map(|peer| {
            if !peer.tunnel.has_ended() {
                return Arc::clone(peer);
            }
            Arc::new(peer.heir(peer.keys.clone(), peer.tunnel.without_ended()))
        });
        let peers = peers.collect();

        self.publish(peers, forwarding.table().clone());
    }

    /// Datagrams leave from UDP `port` from now on.
    pub fn set_port(&self, port: u16) {
        self.outside.set_port(LocalPort::Listen, port);
    }

    /// And those to peers that did not answer it from UDP `port`.
    pub fn set_spare_port(&self, port: u16) {
        self.outside.set_port(LocalPort::Spare, port);
    }

    /// From now on we are `identity`. What peers know us by until then stays good for a grace period;
    /// no session is lost.
    pub fn succeed(&mut self, identity: &Arc<dyn Identity>) {
        if self.keyring.succeed(identity) {
            let table = self.publisher.current().table().clone();
            self.apply(self.configured.clone(), table);
        }
    }

    /// From now on we are `identity`, at once: nothing more is sent in sessions of keys before, and no handshake
    /// begun or answered with them. What peers still send in those sessions is received for a grace period.
    ///
    /// Packets of a batch that the outbound direction has begun by then may find only the session that has ended:
    /// they are dropped, and counted as [`DropReason::StagingFull`].
    pub fn supersede(&mut self, identity: &Arc<dyn Identity>) {
        if self.keyring.supersede(identity) {
            let table = self.publisher.current().table().clone();
            self.apply(self.configured.clone(), table);
        }
    }

    /// From now on we are `identity`, and who we were before is forgotten, with every session.
    pub fn replace(&mut self, identity: &Arc<dyn Identity>) {
        self.keyring.replace(identity);
        let table = self.publisher.current().table().clone();
        self.apply(self.configured.clone(), table);
    }

    /// Ends every session, for somebody else may go on with a copy of it: what both of us seal must not have the
    /// same keys and counters. A handshake is begun with every peer that had a session or waits for one, and
    /// what is staged waits for it. Everything else that is known of peers stays.
    pub fn renew_sessions(&mut self) {
        let held = self.keyring.keys();
        let before = self.publisher.current();
        let keys: HashSet<PublicKey> =
            before.peers().iter().map(|peer| peer.keys.public_key).collect();
        let mut peers = Vec::with_capacity(before.peers().len());
        let mut in_use = HashSet::new();
        for peer in before.peers() {
            if peer.tunnel.session().is_established || peer.endpoints.unanswered() > 0 {
                in_use.insert(peer.realm);
            }
            let tunnel = self.strands.anew(peer, &keys, (&held.current, &held.older));
            peers.push(Arc::new(peer.heir(peer.keys.clone(), tunnel)));
        }
        self.publish(peers, before.table().clone());

        for peer in self.publisher.current().peers() {
            if in_use.contains(&peer.realm) || peer.tunnel.session().staged > 0 {
                // Nobody waits for an answer to what was asked in the sessions before.
                peer.endpoints.forget_unanswered();
                peer.endpoints.ask();
            }
        }
    }

    /// Whoever was in our place before may have begun sessions until `epoch`; ours are dated later. To be
    /// called before there are peers.
    pub fn continue_after(&self, epoch: Epoch) {
        self.keyring.continue_after(epoch);
    }

    /// Datagrams to the peer go to `endpoint` from now on, until it is heard from elsewhere. Does nothing
    /// if no peer has this key.
    pub fn move_peer(&self, key: PublicKey, endpoint: SocketAddr) {
        if let Some(peer) = self.publisher.current().by_key(key) {
            peer.endpoints.tell(endpoint);
        }
    }

    /// The peer may be at `endpoints` from now on, as if the configuration had named them. Does nothing
    /// if no peer has this key.
    pub fn set_endpoints(&self, key: PublicKey, endpoints: &[SocketAddr]) {
        if let Some(peer) = self.publisher.current().by_key(key) {
            peer.endpoints.set_candidates(endpoints, || peer.tunnel.session().is_established);
        }
    }

    /// Has every peer with a persistent keepalive sent one at once.
    pub fn keep_alive(&self) {
        for peer in self.publisher.current().peers() {
            peer.owe_keepalive();
        }
    }

    /// Looks for every peer at all addresses where it may be: it does not seem to be where it was.
    pub fn seek_peers(&self) {
        for peer in self.publisher.current().peers() {
            peer.endpoints.seek();
        }
    }

    /// What is in force.
    #[must_use]
    pub fn current(&self) -> Arc<Forwarding> {
        self.publisher.current()
    }

    /// The account of either direction.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn peer(
        &mut self,
        known: Option<Arc<Peer>>,
        config: &PeerConfig,
        wanted: &HashSet<PublicKey>,
        keyring: (&Held, &[Held]),
    ) -> Arc<Peer> {
        let keys = &config.keys;
        let tunnel = self.strands.succession(known.as_deref(), keys, wanted, keyring);

        let peer = match known {
            Some(known) if known.tunnel.slots().eq(tunnel.slots()) => known,
            Some(known) => {
                // Nobody waits for an answer to what was asked with other keys.
                known.endpoints.forget_unanswered();
                Arc::new(known.heir(keys.clone(), tunnel))
            }
            None => {
                let realm = self.next_realm;
                self.next_realm += 1;
                Arc::new(Peer::new(keys.clone(), realm, tunnel, self.outside.moves()))
            }
        };
        peer.set_clamp_mtu(config.clamp_mtu);
        peer.set_persistent_keepalive(config.persistent_keepalive);
        // Who asks a tunnel for its state may have to wait for the packet threads, and they for it.
        let has_session = || peer.tunnel.session().is_established;
        peer.endpoints.set_candidates(&config.endpoints, has_session);

        peer
    }
}
