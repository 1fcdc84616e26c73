//! Keeps what was learned of peers while there is no private key, when packet threads have no peers.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use strait_io::PeerStatus;
use strait_wg::PublicKey;
use strait_wg::uapi::PeerReport;

/// By public key. Empty until a private key is removed for the first time.
#[derive(Debug, Default)]
pub(super) struct LearnedPeers(HashMap<PublicKey, LearnedPeer>);

/// The endpoint in use, and the UDP payload bytes that the packet threads no longer count.
#[derive(Debug, Default)]
struct LearnedPeer {
    endpoint: Option<SocketAddr>,
    receive_bytes: u64,
    transmit_bytes: u64,
}

impl LearnedPeers {
    /// Saves the state of peers that the packet threads are about to lose.
    pub(super) fn take(&mut self, peers: &[PeerStatus]) {
        for peer in peers {
            let learned = self.0.entry(peer.public_key).or_default();
            learned.endpoint = peer.endpoint;
            learned.receive_bytes = learned.receive_bytes.saturating_add(peer.receive_bytes);
            learned.transmit_bytes = learned.transmit_bytes.saturating_add(peer.transmit_bytes);
        }
    }

    /// Removes all peers except `peers`.
    pub(super) fn retain(&mut self, peers: &HashSet<PublicKey>) {
        self.0.retain(|peer, _| peers.contains(peer));
    }

    /// Sets the endpoint of `peer`.
    pub(super) fn move_peer(&mut self, peer: PublicKey, endpoint: SocketAddr) {
        if let Some(learned) = self.0.get_mut(&peer) {
            learned.endpoint = Some(endpoint);
        }
    }

    /// The last endpoint of `peer`, if known.
    pub(super) fn endpoint(&self, peer: PublicKey) -> Option<SocketAddr> {
        self.0.get(&peer).and_then(|learned| learned.endpoint)
    }

    /// Adds the saved byte counts to `report`.
    pub(super) fn count_into(&self, report: &mut PeerReport) {
        if let Some(learned) = self.0.get(&report.public_key) {
            report.receive_bytes = report.receive_bytes.saturating_add(learned.receive_bytes);
            report.transmit_bytes = report.transmit_bytes.saturating_add(learned.transmit_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_add_up() {
        let mut learned_peers = LearnedPeers::default();
        let mut report = PeerReport { receive_bytes: 1, ..PeerReport::new(key(1)) };

        learned_peers.take(&[status(1, Some("192.0.2.1:1"), 10), status(2, None, 7)]);
        learned_peers.take(&[status(1, Some("192.0.2.2:2"), 100)]);
        learned_peers.count_into(&mut report);
        let learned = learned_peers.endpoint(key(1));
        learned_peers.move_peer(key(1), "192.0.2.3:3".parse().unwrap());
        learned_peers.move_peer(key(3), "192.0.2.3:3".parse().unwrap());

        assert_eq!((report.receive_bytes, report.transmit_bytes), (111, 220));
        assert_eq!(learned, Some("192.0.2.2:2".parse().unwrap()));
        assert_eq!(learned_peers.endpoint(key(1)), Some("192.0.2.3:3".parse().unwrap()));
        assert_eq!((learned_peers.endpoint(key(2)), learned_peers.endpoint(key(3))), (None, None));
    }

    #[test]
    fn removed_peers_are_forgotten() {
        let mut learned_peers = LearnedPeers::default();
        let mut report = PeerReport::new(key(1));
        learned_peers
            .take(&[status(1, Some("192.0.2.1:1"), 10), status(2, Some("192.0.2.2:2"), 7)]);

        learned_peers.retain(&HashSet::from([key(2)]));
        learned_peers.count_into(&mut report);

        assert_eq!(report, PeerReport::new(key(1)));
        assert_eq!(learned_peers.endpoint(key(1)), None);
        assert!(learned_peers.endpoint(key(2)).is_some());
    }

    fn key(number: u8) -> PublicKey {
        PublicKey::from_bytes([number; 32])
    }

    fn status(number: u8, endpoint: Option<&str>, bytes: u64) -> PeerStatus {
        PeerStatus {
            endpoint: endpoint.map(|text| text.parse().unwrap()),
            receive_bytes: bytes,
            transmit_bytes: 2 * bytes,
            ..PeerStatus::new("", key(number))
        }
    }
}
