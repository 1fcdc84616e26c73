//! Packets that waited for a session.

use std::time::Instant;

use strait_packet::buffer::TransmitBatch;
use strait_packet::path::Path;
use strait_wg::Peer;

/// Seals the staged packets of `peer`. Those that do not fit into `out` are sealed by the next call.
pub(super) fn seal_staged(peer: &Peer, path: Path, out: &mut TransmitBatch, now: Instant) {
    let sealed = peer.tunnel.seal_staged(path, out, now);
    peer.transmit.packets.add(sealed.packets);
    peer.transmit.bytes.add(sealed.bytes);
}
