//! Which datagrams of our own may go through the tunnel.
//!
//! If the route to an endpoint leads into the device, what we send comes back as a packet to send. That is as it
//! should be where the endpoint of one peer is behind another peer: the tunnel to the one goes through the tunnel to
//! the other. But if the endpoint is behind the peer itself, or the endpoints of several peers are each behind the
//! next, the packet is sealed, sent, and comes back again for ever, longer by a header each time.
//!
//! Only the kernel knows where a route leads. So what comes back is noted: a packet is ours if it is UDP from one of
//! our ports, begins as WireGuard does, and goes to the endpoint of a peer. Sealed for the peer that has this address,
//! it becomes a datagram to the endpoint of that peer, and so on. Where each endpoint on this chain is one from which
//! datagrams came back within the last second, the chain has no end, and the packet is dropped.
//!
//! Of a datagram that was cut into fragments only the first has ports: the others are sealed once more, each in
//! one datagram that is whole and known when it comes back.
//!
//! Another process may have such a route into our device, and we into its: then no packet that comes is ours. So
//! the hop limit of a datagram with WireGuard in it is lower than that of the packet in it by [`NESTED_HOPS`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use remap::masquerade::Tick;

use super::Forwarding;
use super::translate::Memory;
use strait_packet::Fragment;
use strait_packet::Header;
use strait_packet::path::{LocalPort, canonical};
use strait_packet::ports::Ports;
use strait_wg::Peer;
use strait_wg::endpoints::Moves;

const UDP: u8 = 17;

pub(super) const UDP_HEADER_BYTES: usize = 8;

/// How often the peers are looked through in a second, at most.
const LOOKS: u32 = 10;

/// What a tunnel in a tunnel costs of the hop limit. Of the usual 64, eight tunnels in each other are left, or one in
/// another and 48 routers on the way.
const NESTED_HOPS: u8 = 8;

/// What we send from.
#[derive(Debug, Default)]
pub struct Outside {
    /// 0 as long as there is none.
    ports: [AtomicU16; 2],
    /// Of all peers.
    moves: Arc<Moves>,
}

/// Where the peers of one generation are.
///
/// Whoever sends from our port what looks like ours has each of its packets looked up here. There may be
/// thousands of peers, so they are looked through only after one of them has moved, and not for ever in
/// one second: a peer may move with every datagram.
#[derive(Debug, Default)]
pub(super) struct Ends(ArcSwapOption<Known>);

#[derive(Debug)]
struct Known {
    /// What had been counted when the peers were looked through.
    moves: u64,
    /// The second in which that was, and for which time in it.
    looked: (Tick, u32),
    /// The endpoints, and when a datagram to each came back last: the second, counted from 1, or 0.
    returned: HashMap<SocketAddr, AtomicU32>,
}

impl Outside {
    /// What counts the moves of peers.
    pub(super) fn moves(&self) -> Arc<Moves> {
        Arc::clone(&self.moves)
    }

    /// How often a peer was sought until now.
    pub(super) fn count_sought(&self) -> u64 {
        self.moves.count_sought()
    }

    pub(super) fn set_port(&self, of: LocalPort, port: u16) {
        let [listen, spare] = &self.ports;
        let known = match of {
            LocalPort::Listen => listen,
            LocalPort::Spare => spare,
        };
        known.store(port, Ordering::Relaxed);
    }

    /// Whether nothing speaks against it at first sight. All packets come here.
    #[inline]
    pub(super) fn may_have_sent(&self, packet: &[u8], header: &Header) -> bool {
        header.protocol() == UDP
            && Ports::read(packet, header).is_some_and(|ports| {
                let is_ours = |port: &AtomicU16| port.load(Ordering::Relaxed) == ports.source;
                ports.source != 0 && self.ports.iter().any(is_ours)
            })
            && is_wireguard(packet, header)
    }

    /// Whether we have sent `packet`, of which [`Self::may_have_sent`] says that we may have, to a peer, and would
    /// for ever.
    #[cold]
    pub(super) fn is_routing_loop(
        &self,
        packet: &[u8],
        header: &Header,
        (forwarding, ends): (&Forwarding, &Ends),
        (now, memory): (Tick, Memory),
    ) -> bool {
        let Some(ports) = Ports::read(packet, header) else { return false };
        let first = SocketAddr::new(header.destination(), ports.destination);
        let known = ends.known(self.moves.count(), forwarding.peers(), now);
        let Some(returned) = known.returned.get(&first) else { return false };
        if memory == Memory::Updated {
            returned.store(now.as_secs() + 1, Ordering::Relaxed);
        }

        let mut endpoint = first;
        for _ in forwarding.peers() {
            let Ok(route) = forwarding.outbound(endpoint.ip()) else {
                // Without a peer that has the address, nothing can be done with the packet at all.
                return endpoint == first;
            };
            let Some(path) = route.peer.path() else { return false };
            endpoint = canonical(path.remote);
            if endpoint != first && !known.has_returned(endpoint, now) {
                return false;
            }
        }

        true
    }
}

impl Ends {
    fn known(&self, moves: u64, peers: &[Arc<Peer>], now: Tick) -> Arc<Known> {
        let known = self.0.load_full();
        let times = known.as_ref().map_or(0, |known| known.times_in(now));
        if let Some(known) = known.filter(|known| known.moves == moves || times >= LOOKS) {
            return known;
        }

        let known = Arc::new(Known::new(moves, peers, (now, times + 1)));
        self.0.store(Some(Arc::clone(&known)));
        known
    }
}

impl Known {
    fn new(moves: u64, peers: &[Arc<Peer>], looked: (Tick, u32)) -> Self {
        let paths = peers.iter().filter_map(|peer| peer.path());
        let returned = paths.map(|path| (canonical(path.remote), AtomicU32::new(0))).collect();

        Self { moves, looked, returned }
    }

    /// Whether a datagram to `endpoint` came back in this second or the one before.
    fn has_returned(&self, endpoint: SocketAddr, now: Tick) -> bool {
        let returned = self.returned.get(&endpoint).map_or(0, |at| at.load(Ordering::Relaxed));

        returned > 0 && now.as_secs() <= returned
    }

    /// How often the peers were looked through in this second.
    fn times_in(&self, now: Tick) -> u32 {
        let (second, times) = self.looked;

        if second == now { times } else { 0 }
    }
}

/// The hop limit of a datagram with `packet` in it: `None` if that of the host will do, 0 if there is to be none.
///
/// All but the first fragment of a datagram may be of a tunnel.
#[inline]
pub(super) fn hop_limit(packet: &[u8], header: &Header) -> Option<u8> {
    if header.protocol() != UDP {
        return None;
    }
    let is_nested = header.fragment() == Fragment::Later || is_wireguard(packet, header);

    is_nested.then(|| header.hop_limit(packet).saturating_sub(NESTED_HOPS))
}

/// Whether the datagram begins with the type of a message and three bytes that are reserved (WireGuard
/// whitepaper section 5.4).
fn is_wireguard(packet: &[u8], header: &Header) -> bool {
    let payload = packet.get(header.transport_offset() + UDP_HEADER_BYTES..);

    matches!(payload, Some([1..=4, 0, 0, 0, ..]))
}

#[cfg(test)]
mod tests;
