//! Converts the status of the packet threads into reports.

use std::time::UNIX_EPOCH;

use strait_io::{PeerStatus, Status};
use strait_plan::conncheck;
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

/// Adds what the connection check of the peer has measured, while the peer answers.
pub(super) fn add_check(report: &mut PeerReport, check: &conncheck::Report) {
    if check.latency.is_none() {
        return;
    }
    // At most 32 of 32 probes are lost, and each is about 3 percent.
    let is_at_least = |percent: &u8| f64::from(*percent) >= check.loss * 100.0 - 0.5;

    report.probe_rtt = check.latency;
    report.probe_jitter = Some(check.jitter);
    report.probe_loss_percent = (0..=100).find(is_at_least);
}

#[cfg(test)]
mod tests {
    use strait_wg::PublicKey;

    use super::*;

    #[test]
    fn loss_is_rounded_to_percent() {
        for (lost, percent) in [(0, 0), (1, 3), (16, 50), (31, 97), (32, 100)] {
            let check = conncheck::Report {
                latency: Some(std::time::Duration::from_millis(1)),
                loss: f64::from(lost) / 32.0,
                ..conncheck::Report::default()
            };
            let mut report = PeerReport::new(PublicKey::from_bytes([1; 32]));
            add_check(&mut report, &check);

            assert_eq!(report.probe_loss_percent, Some(percent));
        }
    }

    #[test]
    fn a_peer_without_answers_has_no_figures() {
        let mut report = PeerReport::new(PublicKey::from_bytes([1; 32]));
        add_check(&mut report, &conncheck::Report::default());

        assert_eq!(report, PeerReport::new(PublicKey::from_bytes([1; 32])));
    }
}
