//! What the kernel learned of the ways to the peers: links on them that carry less than ours.
//!
//! Routers that cannot forward a datagram tell the kernel, which from then on fragments what we
//! send. TCP through the tunnel is better off knowing: its segments then fit again.

use strait_gateway::io::PeerStatus;
use strait_gateway::wg::PublicKey;
use tracing::info;

use super::config::MTU_MIN;
use super::mtu::OVERHEAD_BYTES;
use super::netlink::Netlink;

/// Peers that are asked about at a time, so that many cost no more than a few.
const PEERS_PER_TURN: usize = 16;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    next: usize,
}

impl PathMtus {
    /// Asks the kernel about the next few peers. The answer holds those whose way changed, with the
    /// largest inner packet that it carries, in bytes.
    pub(crate) async fn learn(
        &mut self,
        netlink: &Netlink,
        peers: &[PeerStatus],
    ) -> Vec<(PublicKey, u16)> {
        let count = peers.len().min(PEERS_PER_TURN);
        let mut changed = Vec::new();
        for peer in peers.iter().cycle().skip(self.next).take(count) {
            let Some(endpoint) = peer.endpoint else {
                continue;
            };
            let Some(underlay) = netlink.underlay(Some(endpoint.ip())).await else {
                continue;
            };
            let bytes = inner(underlay.mtu_bytes);
            if peer.path_mtu_bytes == Some(bytes) {
                continue;
            }
            if peer.path_mtu_bytes.is_some() {
                info!(peer = peer.name, path_mtu = bytes, "the way to a peer changed");
            }
            changed.push((peer.public_key, bytes));
        }
        self.next = (self.next + count) % peers.len().max(1);

        changed
    }
}

/// The largest inner packet for an outer one of `outer` bytes.
fn inner(outer: u32) -> u16 {
    let inner = outer.saturating_sub(u32::from(OVERHEAD_BYTES));

    u16::try_from(inner).unwrap_or(u16::MAX).max(MTU_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_is_taken_off_and_a_little_is_left() {
        assert_eq!(inner(1500), 1420);
        assert_eq!(inner(68), MTU_MIN);
        assert_eq!(inner(u32::MAX), u16::MAX);
    }
}
