//! The published forwarding state: one immutable value that both directions load once per batch.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use remap::masquerade::Tick;
use remap::{PeerId, Rule, Table};

use super::PeerConfig;
use super::flows::FlowAccess;
use super::loop_guard::{EndpointCache, LoopGuard};
use strait_packet::DropReason;
use strait_packet::Header;
use strait_packet::path::Path;
use strait_wg::initiation_copies::CopyQueue;
use strait_wg::{AllowedIps, Peer, PublicKey};

/// The table, cryptokey routing and the peers of one generation.
#[derive(Debug, Default)]
pub struct Forwarding {
    table: Table,
    allowed_ips: AllowedIps,
    peers: Box<[Arc<Peer>]>,
    names: Box<[String]>,
    by_key: HashMap<PublicKey, PeerId>,
    by_slot: Box<[Option<PeerId>]>,
    loop_guard: Arc<LoopGuard>,
    endpoint_cache: EndpointCache,
}

/// Where a packet goes: the answer of [`Forwarding::outbound`].
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The peer to send to.
    pub peer: &'a Peer,
    /// Its id in this generation.
    pub id: PeerId,
    /// The rule that translates the destination, if one does.
    pub rule: Option<&'a Rule>,
    /// The destination as the remote knows it.
    pub destination: IpAddr,
}

impl Forwarding {
    /// Builds one generation. `peers` and `configs` are in the order of peer ids.
    #[must_use]
    pub fn new(
        configs: &[PeerConfig],
        peers: Vec<Arc<Peer>>,
        table: Table,
        loop_guard: Arc<LoopGuard>,
    ) -> Self {
        let allowed = configs.iter().map(|config| Arc::clone(&config.allowed_ips));
        let allowed_ips = AllowedIps::new(allowed, &table);
        let ids = || (0..).map(PeerId);
        let names = configs.iter().map(|config| config.name.clone()).collect();
        let keyed_tunnels = || {
            let peers = peers.iter().zip(ids());
            peers.flat_map(|(peer, id)| peer.tunnel.keyed_tunnels().map(move |keyed| (keyed, id)))
        };
        let mut by_key: HashMap<_, _> =
            peers.iter().map(|peer| peer.keys.public_key).zip(ids()).collect();
        for (keyed, id) in keyed_tunnels() {
            by_key.entry(keyed.keys.public_key).or_insert(id);
        }

        let slots = keyed_tunnels().map(|(keyed, _)| slot_index(keyed.slot) + 1).max().unwrap_or(0);
        let mut by_slot = vec![None; slots].into_boxed_slice();
        for (keyed, id) in keyed_tunnels() {
            if let Some(entry) = by_slot.get_mut(slot_index(keyed.slot)) {
                *entry = Some(id);
            }
        }

        let peers = peers.into_boxed_slice();
        Self {
            table,
            allowed_ips,
            peers,
            names,
            by_key,
            by_slot,
            loop_guard,
            endpoint_cache: EndpointCache::default(),
        }
    }

    /// The route for a packet to `destination`, an address as this cluster knows it.
    ///
    /// # Errors
    ///
    /// [`DropReason::NoRoute`] if no peer has the address, [`DropReason::Untranslatable`] if the rule that covers it
    /// has no counterpart for it.
    #[inline]
    pub fn outbound(&self, destination: IpAddr) -> Result<Route<'_>, DropReason> {
        let (id, rule, destination) = match self.table.outbound_rule(destination) {
            Some((id, rule)) => {
                let real = rule.to_remote(destination).ok_or(DropReason::Untranslatable)?;
                (id, Some(rule), real)
            }
            None => {
                let owner = self.allowed_ips.owner(destination).ok_or(DropReason::NoRoute)?;
                (owner, None, destination)
            }
        };
        let peer = self.peer(id).ok_or(DropReason::NoRoute)?;

        Ok(Route { peer, id, rule, destination })
    }

    /// The address under which this cluster knows `source`, an address as `peer` knows it.
    ///
    /// An address that no rule of the peer covers is not translated. It is refused if it is a remapped address of
    /// another peer: a reply to it would go to that peer.
    ///
    /// # Errors
    ///
    /// [`DropReason::SourceNotAllowed`] if the peer may not send from it,
    /// [`DropReason::Untranslatable`] if the rule that covers it has no counterpart for it.
    #[inline]
    pub fn inbound(&self, peer: PeerId, source: IpAddr) -> Result<IpAddr, DropReason> {
        if !self.allowed_ips.allows(peer, source) {
            return Err(DropReason::SourceNotAllowed);
        }

        match self.table.inbound_rule(peer, source) {
            Some(rule) => rule.to_local(source).ok_or(DropReason::Untranslatable),
            None if self.table.outbound_rule(source).is_some() => Err(DropReason::SourceNotAllowed),
            None => Ok(source),
        }
    }

    /// Whether `packet`, which came from the device, is a datagram of ours that would come back endlessly, longer by a
    /// header each time. See [`LoopGuard`].
    #[inline]
    #[must_use]
    pub fn is_routing_loop(
        &self,
        packet: &[u8],
        header: &Header,
        now: Tick,
        flow_access: FlowAccess,
    ) -> bool {
        self.loop_guard.may_have_sent(packet, header)
            && self.loop_guard.is_routing_loop(
                packet,
                header,
                self,
                &self.endpoint_cache,
                now,
                flow_access,
            )
    }

    /// How many searches for peers were requested.
    pub(super) fn count_sought(&self) -> u64 {
        self.loop_guard.count_sought()
    }

    /// The copies of initiations to all peers that wait for their turn.
    pub(super) fn initiation_copies(&self) -> &CopyQueue {
        self.loop_guard.initiation_copies()
    }

    /// The kernel refuses to send by `path`: peers that are reached by it are reached from another address of ours from
    /// now on.
    pub fn forget_local(&self, path: Path) {
        for peer in &self.peers {
            peer.endpoints.forget_local(path);
        }
    }

    /// The remap rules.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Cryptokey routing.
    #[must_use]
    pub const fn allowed_ips(&self) -> &AllowedIps {
        &self.allowed_ips
    }

    /// All peers, in the order of their ids.
    #[must_use]
    pub const fn peers(&self) -> &[Arc<Peer>] {
        &self.peers
    }

    /// All peers with their names, in the order of their ids.
    pub fn named_peers(&self) -> impl Iterator<Item = (&str, &Peer)> {
        self.names.iter().map(String::as_str).zip(self.peers.iter().map(AsRef::as_ref))
    }

    /// The name of the peer with this id.
    #[must_use]
    pub fn name(&self, id: PeerId) -> Option<&str> {
        self.names.get(usize::try_from(id.0).ok()?).map(String::as_str)
    }

    /// The peer with this id.
    #[must_use]
    #[inline]
    pub fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(usize::try_from(id.0).ok()?).map(AsRef::as_ref)
    }

    /// The id of the peer that has this key as its newest or as an older one.
    #[must_use]
    pub fn id_of(&self, key: PublicKey) -> Option<PeerId> {
        self.by_key.get(&key).copied()
    }

    /// The peer that [`Self::id_of`] names.
    #[must_use]
    pub fn by_key(&self, key: PublicKey) -> Option<&Arc<Peer>> {
        let id = self.id_of(key)?;

        self.peers.get(usize::try_from(id.0).ok()?)
    }

    /// The same with its name.
    #[must_use]
    pub fn named_by_key(&self, key: PublicKey) -> Option<(&str, &Peer)> {
        let id = self.id_of(key)?;

        self.name(id).zip(self.peer(id))
    }

    /// The peer in this slot of receiver indices.
    #[must_use]
    #[inline]
    pub fn by_slot(&self, slot: u32) -> Option<(PeerId, &Peer)> {
        let id = (*self.by_slot.get(slot_index(slot))?)?;

        Some((id, self.peer(id)?))
    }
}

fn slot_index(slot: u32) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}
