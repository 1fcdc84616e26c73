//! Converts the status of the packet threads into reports.

use std::time::UNIX_EPOCH;

use strait_io::{PeerStatus, Status};
use strait_wg::uapi::{DeviceReport, Drops, PeerReport};

/// The observed state of the device, without its configuration.
pub(crate) fn of_device(status: &Status) -> DeviceReport {
    DeviceReport {
        listen_port: status.listen_port,
        outbound_drops: Drops::all(|reason| status.outbound.drops(reason)),
        inbound_drops: Drops::all(|reason| status.inbound.drops(reason)),
        ..DeviceReport::default()
    }
}

/// The observed state of one peer, without its configuration.
pub(crate) fn of_peer(status: &PeerStatus) -> PeerReport {
    PeerReport {
        endpoint: status.endpoint.map(Into::into),
        last_handshake: status.last_handshake.and_then(|at| at.duration_since(UNIX_EPOCH).ok()),
        receive_bytes: status.receive_bytes,
        transmit_bytes: status.transmit_bytes,
        rtt: status.rtt,
        path_mtu_bytes: status.path_mtu.map(|path_mtu| path_mtu.bytes),
        path_mtu_source: status.path_mtu.map(|path_mtu| path_mtu.source),
        staged_packets: status.staged_packets,
        unanswered: status.unanswered,
        ..PeerReport::new(status.public_key)
    }
}
