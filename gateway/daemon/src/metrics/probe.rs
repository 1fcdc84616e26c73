//! Metrics of the connection check.

use std::fmt;

use strait_plan::conncheck::{Report, State};

use super::{Families, View, label};

pub(super) fn encode(families: &mut Families<'_>, peers: &[View<'_>]) -> fmt::Result {
    families.gauges(
        "strait_peer_probe_loss_ratio",
        "Share of the last probes through the tunnel that the peer did not answer, 0 to 1. Absent until known.",
        samples(peers, |report| (report.state != State::Connecting).then_some(report.loss)),
    )?;
    families.gauges(
        "strait_peer_probe_rtt_seconds",
        "Round trip of the last probe through the tunnel. Absent unless the peer answers.",
        samples(peers, |report| Some(report.latency?.as_secs_f64())),
    )?;

    families.gauges(
        "strait_peer_probe_jitter_seconds",
        "Smoothed jitter of the round trips of probes (RFC 3550). Absent unless the peer answers.",
        samples(peers, |report| report.latency.map(|_| report.jitter.as_secs_f64())),
    )
}

/// One sample for each checked peer for which `read` returns a value.
fn samples<'a>(
    peers: &'a [View<'_>],
    read: fn(&Report) -> Option<f64>,
) -> impl Iterator<Item = (super::Labels<'a, 1>, f64)> {
    peers.iter().filter_map(move |peer| Some((label(peer.status), read(peer.check.as_ref()?)?)))
}
