//! Detects datagrams of our own that would circulate through the tunnel.
//!
//! If the route to an endpoint leads into the device, our datagrams come back as packets to send. That is correct if
//! the endpoint of one peer is behind another peer: one tunnel goes through the other. But if the endpoint is behind
//! the peer itself, or the endpoints of several peers are behind each other in a circle, the packet is sealed, sent,
//! and comes back endlessly, longer by a header each time.
//!
//! Only the kernel knows where a route leads. So datagrams that come back are recorded: a packet is ours if it is UDP
//! from one of our ports, has a WireGuard message type, and goes to the endpoint of a peer. Sealed for the peer that
//! has this address, it becomes a datagram to the endpoint of that peer, and so on. If datagrams to every endpoint of
//! this chain came back within the last second, the chain is endless, and the packet is dropped.
//!
//! Of a fragmented datagram only the first fragment has ports: the others are sealed once more, each in one datagram
//! that is whole and recognized when it comes back.
//!
//! Another process may have such a route into our device, and we into its device: then no packet that comes is ours.
//! So the hop limit of a datagram that carries WireGuard is lower than that of the packet in it by [`NESTED_HOPS`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use remap::masquerade::Tick;

use super::Forwarding;
use super::flows::FlowAccess;
use strait_packet::path::{LocalPort, canonical};
use strait_packet::ports::Ports;
use strait_packet::{Fragment, Header};
use strait_wg::Peer;
use strait_wg::endpoints::EndpointEvents;
use strait_wg::initiation_copies::CopyQueue;

const UDP: u8 = 17;

pub(super) const UDP_HEADER_BYTES: usize = 8;

/// The most rebuilds of the endpoint cache in one second.
const REBUILDS_PER_SECOND: u32 = 10;

/// By how much a tunnel in a tunnel reduces the hop limit. The usual 64 allow eight nested tunnels, or one in another
/// and 48 routers.
const NESTED_HOPS: u8 = 8;

/// Recognizes our own datagrams.
#[derive(Debug, Default)]
pub struct LoopGuard {
    /// The UDP ports we send from; 0 if not set.
    ports: [AtomicU16; 2],
    /// Counts endpoint changes of all peers.
    moves: Arc<EndpointEvents>,
}

/// The endpoints of the peers of one generation.
///
/// Every packet that passes [`LoopGuard::may_have_sent`] is looked up here, so a sender can make it frequent. There may
/// be thousands of peers, so the cache is rebuilt only after an endpoint has changed, and at most
/// [`REBUILDS_PER_SECOND`] times a second: a peer may roam with every datagram.
#[derive(Debug, Default)]
pub(super) struct EndpointCache(ArcSwapOption<CachedEndpoints>);

#[derive(Debug)]
struct CachedEndpoints {
    /// The count of endpoint changes when the cache was built.
    moves: u64,
    /// The second in which it was built, and the number of builds in that second.
    built: (Tick, u32),
    /// The endpoints, and when a datagram to each last came back: the second, counted from 1, or 0.
    returned: HashMap<SocketAddr, AtomicU32>,
}

impl LoopGuard {
    /// The counter of endpoint changes, for new peers.
    pub(super) fn moves(&self) -> Arc<EndpointEvents> {
        Arc::clone(&self.moves)
    }

    /// The copies of initiations to all peers that wait for their turn.
    pub(super) fn initiation_copies(&self) -> &CopyQueue {
        self.moves.copies()
    }

    /// How many searches for peers were requested.
    pub(super) fn count_sought(&self) -> u64 {
        self.moves.handshake_requests()
    }

    pub(super) fn set_port(&self, socket: LocalPort, port: u16) {
        let [listen, spare] = &self.ports;
        let current = match socket {
            LocalPort::Listen => listen,
            LocalPort::Spare => spare,
        };
        current.store(port, Ordering::Relaxed);
    }

    /// Cheap pre-check on every packet: UDP from one of our ports with a WireGuard message type.
    #[inline]
    pub(super) fn may_have_sent(&self, packet: &[u8], header: &Header) -> bool {
        header.protocol() == UDP
            && Ports::read(packet, header).is_some_and(|ports| {
                let is_ours = |port: &AtomicU16| port.load(Ordering::Relaxed) == ports.source;
                ports.source != 0 && self.ports.iter().any(is_ours)
            })
            && is_wireguard(packet, header)
    }

    /// Whether `packet`, which has passed [`Self::may_have_sent`], was sent by us to a peer and would circulate
    /// endlessly.
    #[cold]
    pub(super) fn is_routing_loop(
        &self,
        packet: &[u8],
        header: &Header,
        forwarding: &Forwarding,
        endpoint_cache: &EndpointCache,
        now: Tick,
        flow_access: FlowAccess,
    ) -> bool {
        let Some(ports) = Ports::read(packet, header) else { return false };
        let first = SocketAddr::new(header.destination(), ports.destination);
        let cached = endpoint_cache.current(self.moves.path_changes(), forwarding.peers(), now);
        let Some(returned) = cached.returned.get(&first) else { return false };
        if flow_access == FlowAccess::Update {
            returned.store(now.as_secs() + 1, Ordering::Relaxed);
        }

        let mut endpoint = first;
        for _ in forwarding.peers() {
            let Ok(route) = forwarding.outbound(endpoint.ip()) else {
                // Without a peer that has the address, the packet cannot be sent at all.
                return endpoint == first;
            };
            let Some(path) = route.peer.path() else { return false };
            endpoint = canonical(path.remote);
            if endpoint != first && !cached.has_returned(endpoint, now) {
                return false;
            }
        }

        true
    }
}

impl EndpointCache {
    fn current(&self, moves: u64, peers: &[Arc<Peer>], now: Tick) -> Arc<CachedEndpoints> {
        let cached = self.0.load_full();
        let builds = cached.as_ref().map_or(0, |cached| cached.builds_in(now));
        let is_usable =
            |cached: &Arc<CachedEndpoints>| cached.moves == moves || builds >= REBUILDS_PER_SECOND;
        if let Some(cached) = cached.filter(is_usable) {
            return cached;
        }

        let cached = Arc::new(CachedEndpoints::new(moves, peers, (now, builds + 1)));
        self.0.store(Some(Arc::clone(&cached)));
        cached
    }
}

impl CachedEndpoints {
    fn new(moves: u64, peers: &[Arc<Peer>], built: (Tick, u32)) -> Self {
        let paths = peers.iter().filter_map(|peer| peer.path());
        let returned = paths.map(|path| (canonical(path.remote), AtomicU32::new(0))).collect();

        Self { moves, built, returned }
    }

    /// Whether a datagram to `endpoint` came back in this second or the one before.
    fn has_returned(&self, endpoint: SocketAddr, now: Tick) -> bool {
        let returned = self.returned.get(&endpoint).map_or(0, |at| at.load(Ordering::Relaxed));

        returned > 0 && now.as_secs() <= returned
    }

    /// How often the cache was built in this second.
    fn builds_in(&self, now: Tick) -> u32 {
        let (second, builds) = self.built;

        if second == now { builds } else { 0 }
    }
}

/// The hop limit of the datagram that carries `packet`: `None` for the default of the host, 0 if it must not be sent.
///
/// A later fragment has no UDP header, so it is treated as WireGuard.
#[inline]
pub(super) fn hop_limit(packet: &[u8], header: &Header) -> Option<u8> {
    if header.protocol() != UDP {
        return None;
    }
    let is_nested = header.fragment() == Fragment::Later || is_wireguard(packet, header);

    is_nested.then(|| header.hop_limit(packet).saturating_sub(NESTED_HOPS))
}

/// Whether the datagram starts with a message type and three reserved bytes (WireGuard whitepaper section 5.4).
fn is_wireguard(packet: &[u8], header: &Header) -> bool {
    let payload = packet.get(header.transport_offset() + UDP_HEADER_BYTES..);

    matches!(payload, Some([1..=4, 0, 0, 0, ..]))
}

#[cfg(test)]
mod tests;
