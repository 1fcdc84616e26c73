//! The engine: two directions and the handshakes between them, without a socket or a clock.
//!
//! ```text
//!            Control ── publishes ──▶ Forwarding (table, allowed IPs, peers: one immutable value)
//!                                        │ one look per batch
//!            ┌───────────────────────────┼──────────────────────────┐
//!   frames ▶ Outbound ▶ datagrams   datagrams ▶ Inbound ▶ frames    Handshakes ◀ time
//!            └──────────── Peer: session, endpoint, counters ───────┘
//! ```
//!
//! [`new`] makes the four parts. Each belongs to one thread; they share peers and counters.

pub mod flows;
mod forwarding;
pub mod handshakes;
pub mod inbound;
pub mod outbound;
mod race;
pub mod translate;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use remap::masquerade::LimitsError;
use remap::{Publisher, Reader, Table};

use crate::DropReason;
use crate::buffer::Transmit;
use crate::counters::Counters;
use crate::wg::tunnel::{Identity, PeerKeys};
use crate::wg::{Peer, PublicKey};

pub use flows::Flows;
pub use forwarding::{Forwarding, Route};
pub use handshakes::Handshakes;
pub use inbound::Inbound;
pub use outbound::Outbound;

/// What is wanted of one peer. Its place in the list is its [`remap::PeerId`] in the table.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// For logs and metrics.
    pub name: String,
    /// Keys and keepalive. If any of it changes, the session begins anew.
    pub keys: PeerKeys,
    /// Where the peer may be, the best first. An endpoint that answers stays in use whatever is added
    /// or taken away here.
    pub endpoints: Vec<SocketAddr>,
    /// The remote's real prefixes (cryptokey routing).
    pub allowed_ips: Vec<remap::Prefix>,
    /// The largest packet, in bytes, that TCP is told of; `None` tells it nothing.
    pub clamp_mtu: Option<u16>,
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

/// An engine without peers.
///
/// # Errors
///
/// [`LimitsError`] if that many flows cannot be remembered.
pub fn new(identity: Arc<dyn Identity>, settings: Settings) -> Result<Engine, LimitsError> {
    let (publisher, reader) = remap::channel(Forwarding::default());
    let accounts = Accounts::default();
    let flows = Arc::new(Flows::new(settings)?);

    Ok(Engine {
        outbound: Outbound::new(reader.clone(), Arc::clone(&flows), Arc::clone(&accounts.outbound)),
        inbound: Inbound::new(
            reader.clone(),
            Arc::clone(&flows),
            Arc::clone(&identity),
            accounts.clone(),
        ),
        forwarding: reader.clone(),
        handshakes: Handshakes::new(
            reader,
            Arc::clone(&flows),
            Arc::clone(&identity),
            accounts.clone(),
        ),
        control: Control {
            identity,
            publisher,
            flows: Arc::clone(&flows),
            accounts,
            free_slots: Vec::new(),
            next_slot: 0,
            next_realm: flows::OWN_REALM + 1,
        },
        flows,
    })
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
    identity: Arc<dyn Identity>,
    publisher: Publisher<Forwarding>,
    flows: Arc<Flows>,
    accounts: Accounts,
    free_slots: Vec<u32>,
    next_slot: u32,
    next_realm: u32,
}

impl Control {
    /// Makes `peers` and `table` the ones in force, from the next batch of either direction on.
    ///
    /// A peer that was there with the same keys keeps its session, its endpoint and its counters.
    pub fn apply(&mut self, peers: Vec<PeerConfig>, table: Table) {
        let old = self.publisher.current();
        let wanted: Vec<Arc<Peer>> = peers.iter().map(|peer| self.peer(&old, peer)).collect();
        let kept: HashSet<u32> = wanted.iter().map(|peer| peer.slot).collect();
        let kept_realms: HashSet<u32> = wanted.iter().map(|peer| peer.realm).collect();
        self.publisher.publish(Forwarding::new(&peers, wanted, table));

        for gone in old.peers().iter().filter(|peer| !kept.contains(&peer.slot)) {
            self.free_slots.push(gone.slot);
            // A peer with new keys is another one here, and the same one to its flows.
            if !kept_realms.contains(&gone.realm) {
                self.flows.forget(gone.realm);
            }
            let given_up = gone.tunnel.give_up();
            self.accounts.outbound.count_drops(DropReason::PeerRemoved, given_up);
        }
    }

    /// The peer may be at `endpoints` from now on, as if the configuration had named them. Does nothing
    /// if no peer has this key.
    pub fn set_endpoints(&self, key: PublicKey, endpoints: &[SocketAddr]) {
        if let Some(peer) = self.publisher.current().by_key(key) {
            peer.endpoints.set_candidates(endpoints, peer.tunnel.session().is_established);
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

    fn peer(&mut self, old: &Forwarding, config: &PeerConfig) -> Arc<Peer> {
        let key = config.keys.public_key;
        let peer = match old.by_key(key) {
            Some(known) if known.keys == config.keys => Arc::clone(known),
            Some(known) => Arc::new(self.create(config).succeed(known)),
            None => Arc::new(self.create(config)),
        };
        peer.set_clamp_mtu(config.clamp_mtu);
        let has_session = peer.tunnel.session().is_established;
        peer.endpoints.set_candidates(&config.endpoints, has_session);

        peer
    }

    fn create(&mut self, config: &PeerConfig) -> Peer {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.next_slot;
            self.next_slot += 1;
            slot
        });

        let realm = self.next_realm;
        self.next_realm += 1;

        Peer::new(config.keys.clone(), slot, realm, self.identity.tunnel(&config.keys, slot))
    }
}
