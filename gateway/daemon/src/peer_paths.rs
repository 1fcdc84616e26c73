//! The paths to the peers: their interface and path MTU, as the kernel knows them, and as probes have found.
//!
//! Routers report datagrams that are too large to the kernel, which then fragments what we send. Where such reports or the
//! fragments are lost, probes of the connection check, or in the session, find what passes. With the path MTU known, TCP
//! segments in the tunnel fit again. If a path changes to another interface, the local address that the peer knows is on
//! the wrong one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::iter;
use std::net::SocketAddr;

use strait_host::netlink::{Changed, Netlink, Underlay};
use strait_io::{Gateway, Monitor, PeerStatus};
use strait_wg::{PathMtu, PathMtuSource, PublicKey};
use tracing::info;

use super::config::MTU_MIN;
use super::mtu::{OVERHEAD_BYTES, OVERHEAD_BYTES_IPV4};

/// Peers that are queried in one round, so that many cost no more than a few.
const PEERS_PER_ROUND: usize = 16;

/// The paths to the peers, and which to query next.
#[derive(Debug, Default)]
pub(crate) struct PeerPaths {
    next: usize,
    last: HashMap<PublicKey, PeerPath>,
    /// Peers whose path may have changed, by changes in the kernel.
    due: BTreeSet<PublicKey>,
    /// The largest inner packet in bytes that probes of the connection check found to arrive.
    probed: Option<u16>,
    /// That of probes in the session of each peer.
    probed_in_session: HashMap<PublicKey, u16>,
    /// In bytes.
    device_mtu: u16,
}

/// The path to a peer.
#[derive(Debug)]
struct PeerPath {
    endpoint: SocketAddr,
    /// The index of the output interface.
    interface: u32,
    /// For this MTU of the device.
    path_mtu: PathMtu,
    device_mtu: u16,
    /// The bytes that had been sent to the peer by then.
    transmit_bytes: u64,
}

/// A change of the path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathChange {
    pub(crate) peer: PublicKey,
    /// If it changed.
    pub(crate) path_mtu: Option<PathMtu>,
    /// The path to the same endpoint uses another interface.
    pub(crate) is_rerouted: bool,
}

impl PathChange {
    /// Applies the change to the gateway.
    pub(crate) fn apply(self, gateway: &Gateway) {
        if let Some(path_mtu) = self.path_mtu {
            gateway.learn_path_mtu(self.peer, path_mtu);
        }
        if self.is_rerouted {
            gateway.forget_local(self.peer);
        }
    }
}

impl PeerPaths {
    /// Handles changes in the kernel.
    pub(crate) fn handle_change(&mut self, changed: &Changed) {
        let may_differ = self
            .last
            .iter()
            .filter(|(_, path)| changed.may_reroute(path.endpoint.ip(), path.interface));

        self.due.extend(may_differ.map(|(peer, _)| *peer));
    }

    /// Sets the largest inner packet in bytes that arrives at the peers, also at later ones: in a cluster there is one
    /// remote gateway, whose key may change. `None`: it is not known.
    pub(crate) fn set_probed(&mut self, bytes: Option<u16>) {
        self.probed = bytes;
        self.due.extend(self.last.keys());
    }

    /// Sets the largest inner packet in bytes that probes in the session with `peer` found to arrive. `None`: it is not
    /// known.
    pub(crate) fn set_probed_in_session(&mut self, peer: PublicKey, bytes: Option<u16>) {
        let before = match bytes {
            Some(bytes) => self.probed_in_session.insert(peer, bytes),
            None => self.probed_in_session.remove(&peer),
        };
        if before != bytes {
            self.due.insert(peer);
        }
    }

    /// Whether there are peers to query now: see [`Self::learn_due`].
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Queries the next peers whose path may have changed.
    pub(crate) async fn learn_due(
        &mut self,
        netlink: &Netlink,
        monitor: &Monitor,
    ) -> Vec<PathChange> {
        self.device_mtu = monitor.device_mtu();
        let keys: Vec<_> = iter::from_fn(|| self.due.pop_first()).take(PEERS_PER_ROUND).collect();
        let peers = monitor.peers_by_key(&keys);
        let round = peers.iter().filter_map(|peer| Some((peer, peer.endpoint?))).collect();

        self.query(netlink, round).await
    }

    /// Queries the next peers that are sent something, and returns the changes.
    pub(crate) async fn learn(
        &mut self,
        netlink: &Netlink,
        peers: &[PeerStatus],
        device_mtu: u16,
    ) -> Vec<PathChange> {
        self.device_mtu = device_mtu;
        let round = self.round(peers);
        let changed = self.query(netlink, round).await;
        if self.last.len() > peers.len() {
            let known: HashSet<_> = peers.iter().map(|peer| peer.public_key).collect();
            self.last.retain(|key, _| known.contains(key));
            self.probed_in_session.retain(|key, _| known.contains(key));
        }

        changed
    }

    async fn query(
        &mut self,
        netlink: &Netlink,
        round: Vec<(&PeerStatus, SocketAddr)>,
    ) -> Vec<PathChange> {
        let mut changed = Vec::new();
        for (peer, endpoint) in round {
            if let Some(found) = netlink.interface_towards(endpoint.ip()).await {
                changed.extend(self.handle_route(peer, endpoint, found));
            }
        }

        changed
    }

    /// The next peers whose path may have changed, with their endpoints.
    fn round<'a>(&mut self, peers: &'a [PeerStatus]) -> Vec<(&'a PeerStatus, SocketAddr)> {
        let first = self.next;
        let places = || peers.iter().enumerate();
        let mut round = Vec::new();
        for (place, peer) in places().skip(first).chain(places().take(first)) {
            let Some(endpoint) = peer.endpoint.filter(|endpoint| self.may_differ(peer, *endpoint))
            else {
                continue;
            };
            round.push((peer, endpoint));
            self.next = place + 1;
            if round.len() == PEERS_PER_ROUND {
                break;
            }
        }

        round
    }

    /// Routers report only on sent datagrams, so an idle path is not queried.
    fn may_differ(&self, peer: &PeerStatus, endpoint: SocketAddr) -> bool {
        self.last.get(&peer.public_key).is_none_or(|path| {
            path.transmit_bytes != peer.transmit_bytes
                || path.endpoint != endpoint
                || path.device_mtu != self.device_mtu
                || Some(path.path_mtu) != peer.path_mtu
        })
    }

    fn handle_route(
        &mut self,
        peer: &PeerStatus,
        endpoint: SocketAddr,
        (index, Underlay { interface, mtu_bytes }): (u32, Underlay),
    ) -> Option<PathChange> {
        let found = self.path_mtu(mtu_bytes, endpoint, peer.public_key);
        let PathMtu { bytes, source } = found;
        let path_mtu = (peer.path_mtu != Some(found)).then_some(found);
        if peer.path_mtu.is_some_and(|former| former.bytes != bytes) {
            info!(peer = peer.name, path_mtu = bytes, %source, "the path MTU to a peer changed");
        }
        let last = self.last.get(&peer.public_key);
        let is_rerouted =
            last.is_some_and(|path| path.endpoint == endpoint && path.interface != index);
        if is_rerouted {
            info!(peer = peer.name, interface, "the path to a peer uses another interface");
        }
        let (device_mtu, transmit_bytes) = (self.device_mtu, peer.transmit_bytes);
        let path =
            PeerPath { endpoint, interface: index, path_mtu: found, device_mtu, transmit_bytes };
        self.last.insert(peer.public_key, path);

        let change = PathChange { peer: peer.public_key, path_mtu, is_rerouted };
        (path_mtu.is_some() || is_rerouted).then_some(change)
    }

    /// The path MTU by a route with an MTU of `outer` bytes, by the device and by probes. If two limits are equal, the
    /// device is named before the route, and the route before a probe.
    fn path_mtu(&self, outer: u32, endpoint: SocketAddr, peer: PublicKey) -> PathMtu {
        let route = inner(outer, endpoint, self.device_mtu);
        let in_session = self.probed_in_session.get(&peer).copied();
        let probed = self.probed.or(in_session).map_or(u16::MAX, |probed| probed.max(MTU_MIN));
        let source = if self.device_mtu <= route.min(probed) {
            PathMtuSource::Device
        } else if route <= probed {
            PathMtuSource::Route
        } else {
            PathMtuSource::Probe
        };

        PathMtu { bytes: route.min(probed), source }
    }
}

/// The largest inner packet for an outer packet of `outer` bytes to `endpoint`.
fn inner(outer: u32, endpoint: SocketAddr, device_mtu: u16) -> u16 {
    let overhead = if endpoint.is_ipv4() { OVERHEAD_BYTES_IPV4 } else { OVERHEAD_BYTES };
    let room = u16::try_from(outer.saturating_sub(overhead.into())).unwrap_or(u16::MAX);
    // The packet is padded to a multiple of 16 bytes, but at most to the MTU of the device.
    let inner = if room < device_mtu { room & !15 } else { device_mtu };

    inner.max(MTU_MIN)
}

#[cfg(test)]
mod tests {
    use strait_wg::PrivateKey;

    use super::*;

    #[test]
    fn the_path_mtu_has_a_minimum() {
        let endpoint = "198.51.100.1:7".parse().unwrap();

        assert_eq!(inner(1500, endpoint, 1420), 1420);
        assert_eq!(inner(68, endpoint, 1420), MTU_MIN);
        assert_eq!(inner(u32::MAX, endpoint, u16::MAX), u16::MAX);
    }

    /// And no larger one fits, unless the device cannot carry it.
    #[test]
    fn the_largest_packet_fits_with_its_padding() {
        for endpoint in ["198.51.100.1:7", "[2001:db8::1]:7"].map(|text| text.parse().unwrap()) {
            for device_mtu in [1280, 1340, 1400, 1420, 1500] {
                for outer in 1000..1600 {
                    let ip = if SocketAddr::is_ipv4(&endpoint) { 20 } else { 40 };
                    let datagram =
                        |inner: u16| ip + 8 + 16 + inner.next_multiple_of(16).min(device_mtu) + 16;
                    let inner = inner(outer.into(), endpoint, device_mtu);

                    assert!(datagram(inner) <= outer, "{inner} in {outer} of {endpoint}");
                    assert!(inner == device_mtu || datagram(inner + 1) > outer, "{inner} {outer}");
                }
            }
        }
    }

    #[test]
    fn the_shorter_of_route_and_probe_counts() {
        use PathMtuSource::{Device, Probe, Route};

        let mut paths = PeerPaths { device_mtu: 1420, ..PeerPaths::default() };
        let mut peer = peer();
        let mut look = |paths: &mut PeerPaths, mtu_bytes| {
            let underlay = Underlay { interface: "eth0".to_owned(), mtu_bytes };
            let change = paths.handle_route(&peer, peer.endpoint.unwrap(), (0, underlay));
            let path_mtu = change.and_then(|change| change.path_mtu);
            peer.path_mtu = path_mtu.or(peer.path_mtu);
            path_mtu.map(|PathMtu { bytes, source }| (bytes, source))
        };
        assert_eq!(look(&mut paths, 1500), Some((1420, Device)));

        paths.set_probed(Some(1296));
        assert!(paths.is_due());
        assert_eq!([look(&mut paths, 1500), look(&mut paths, 1500)], [Some((1296, Probe)), None]);
        assert_eq!(look(&mut paths, 1280), Some((1216, Route)));
        paths.set_probed(Some(1216));
        assert_eq!(look(&mut paths, 1280), None);
        assert_eq!(look(&mut paths, 1500), Some((1216, Probe)));
        paths.set_probed(Some(10));
        assert_eq!(look(&mut paths, 1500), Some((MTU_MIN, Probe)));
        paths.set_probed(None);
        assert_eq!(look(&mut paths, 1500), Some((1420, Device)));
    }

    /// A peer that moves sends its datagrams to the address of ours that it knows.
    #[test]
    fn another_interface_is_a_path_change() {
        let mut paths = PeerPaths { device_mtu: 1420, ..PeerPaths::default() };
        let mut peer = peer();
        let mut look = |peer: &PeerStatus, endpoint: &str, index: u32| {
            let underlay = Underlay { interface: format!("eth{index}"), mtu_bytes: 1500 };
            paths.handle_route(peer, endpoint.parse().unwrap(), (index, underlay))
        };

        let first = look(&peer, "198.51.100.1:7", 0).unwrap();
        peer.path_mtu = first.path_mtu;
        let again = look(&peer, "198.51.100.1:7", 0);
        let rerouted = look(&peer, "198.51.100.1:7", 1).unwrap();
        let moved = look(&peer, "203.0.113.1:7", 0);

        assert_eq!((first.path_mtu.map(|it| it.bytes), first.is_rerouted), (Some(1420), false));
        assert_eq!((again, moved), (None, None));
        assert_eq!((rerouted.path_mtu, rerouted.is_rerouted), (None, true));
    }

    #[test]
    fn idle_paths_are_not_queried_again() {
        let mut paths = PeerPaths::default();
        let mut peers = [peer(), peer(), peer()];
        peers[2].endpoint = None;
        let [rome, milan] = [peers[0].public_key, peers[1].public_key];

        assert_eq!(query(&mut paths, &mut peers), [rome, milan]);
        assert_eq!(query(&mut paths, &mut peers), []);
        peers[1].transmit_bytes += 148;
        assert_eq!(query(&mut paths, &mut peers), [milan]);
        peers[0].endpoint = Some("203.0.113.1:7".parse().unwrap());
        assert_eq!(query(&mut paths, &mut peers), [rome]);
        // Configured again, so the engine no longer knows the path MTU.
        peers[0].path_mtu = None;
        assert_eq!(query(&mut paths, &mut peers), [rome]);
        assert_eq!(query(&mut paths, &mut peers), []);
        paths.device_mtu += 1;
        assert_eq!(query(&mut paths, &mut peers), [milan, rome]);
        assert_eq!(query(&mut paths, &mut peers), []);
    }

    #[test]
    fn sending_peers_take_turns() {
        let mut paths = PeerPaths::default();
        let mut peers: Vec<_> = (0..3 * PEERS_PER_ROUND).map(|_| peer()).collect();
        let keys: Vec<_> = peers.iter().map(|peer| peer.public_key).collect();

        let queried: Vec<_> = (0..3).flat_map(|_| query(&mut paths, &mut peers)).collect();
        assert_eq!(queried, keys);
        for place in [5, 40] {
            peers[place].transmit_bytes += 1;
        }
        assert_eq!(query(&mut paths, &mut peers), [keys[5], keys[40]]);
        for peer in &mut peers {
            peer.transmit_bytes += 1;
        }
        let queried: BTreeSet<_> = (0..3).flat_map(|_| query(&mut paths, &mut peers)).collect();
        assert_eq!(queried, keys.into_iter().collect());
        assert_eq!(query(&mut paths, &mut peers[..1]), []);
    }

    /// The peers of one round. Each answer is the same and is applied.
    fn query(paths: &mut PeerPaths, peers: &mut [PeerStatus]) -> Vec<PublicKey> {
        let mut queried = Vec::new();
        for (peer, endpoint) in paths.round(peers) {
            let underlay = Underlay { interface: "eth0".to_owned(), mtu_bytes: 1500 };
            paths.handle_route(peer, endpoint, (0, underlay));
            queried.push(peer.public_key);
        }
        for peer in peers.iter_mut().filter(|peer| queried.contains(&peer.public_key)) {
            peer.path_mtu = paths.last.get(&peer.public_key).map(|path| path.path_mtu);
        }

        queried
    }

    fn peer() -> PeerStatus {
        let public_key = PrivateKey::generate().public_key();
        let endpoint = Some("198.51.100.1:7".parse().unwrap());

        PeerStatus { has_session: true, endpoint, ..PeerStatus::new("milan", public_key) }
    }
}
