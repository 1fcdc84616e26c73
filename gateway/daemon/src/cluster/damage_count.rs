//! The number of datagrams that arrived damaged, for the other gateway, which may have to send in another way.

use std::time::SystemTime;

use strait_io::PeerStatus;

/// Counts the damaged datagrams of the remote gateway.
#[derive(Debug, Default)]
pub(crate) struct DamageCount {
    total: u64,
    /// The last handshake and the counter of the engine at the last [`Self::handle_status`].
    last: Option<(SystemTime, u64)>,
}

impl DamageCount {
    /// Returns the number of damaged datagrams so far.
    ///
    /// Those between a handshake and the next call do not count: receiver indices of a former process may be in use
    /// again, and its sessions have other keys.
    pub(crate) fn handle_status(&mut self, peer: &PeerStatus) -> u64 {
        let current = peer.last_handshake.map(|handshake| (handshake, peer.damaged_datagrams));
        if let (Some((before, counted)), Some((handshake, damaged))) = (self.last, current)
            && before == handshake
        {
            self.total += damaged.saturating_sub(counted);
        }
        self.last = current;

        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strait_wg::PublicKey;

    use super::*;

    #[test]
    fn damage_beside_a_handshake_does_not_count() {
        let mut count = DamageCount::default();
        let mut status = |seconds, damaged_datagrams| {
            let key = PublicKey::from_bytes([7; 32]);
            let last_handshake = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
            let mut peer = PeerStatus::new("milan", key);
            (peer.last_handshake, peer.damaged_datagrams) = (last_handshake, damaged_datagrams);
            count.handle_status(&peer)
        };

        assert_eq!(status(1, 70), 0);
        assert_eq!(status(1, 75), 5);
        assert_eq!(status(2, 90), 5);
        assert_eq!(status(2, 91), 6);
        // The peer was configured again.
        assert_eq!(status(2, 1), 6);
        assert_eq!(status(2, 3), 8);
    }
}
