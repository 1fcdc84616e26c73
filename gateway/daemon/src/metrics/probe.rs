//! Metrics of the connection check.

use std::fmt;

use strait_plan::conncheck::{Report, State};

use super::{Families, View, label};

pub(super) fn encode(families: &mut Families<'_>, peers: &[View<'_>]) -> fmt::Result {
    families.gauges(
        "strait_peer_probe_loss_ratio",
        "Share of the last 32 regular probes through the tunnel that the peer did not answer, 0 to 1. Absent until known.",
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
    )?;
    families.gauges(
        "strait_peer_silence_limit_seconds",
        "Silence of the peer after which a handshake starts, while packets are sent to it. Absent unless it is Strait and answers.",
        samples(peers, |report| Some(report.silence_limit?.as_secs_f64())),
    )?;

    families.counters(
        "strait_peer_silences",
        "Times the peer was found silent, each of which starts a handshake if its endpoint is configured.",
        samples(peers, |report| Some(u64::from(report.silences))),
    )
}

/// One sample for each checked peer for which `read` returns a value.
fn samples<'a, V>(
    peers: &'a [View<'_>],
    read: fn(&Report) -> Option<V>,
) -> impl Iterator<Item = (super::Labels<'a, 1>, V)> {
    peers.iter().filter_map(move |peer| Some((label(peer.status), read(peer.check.as_ref()?)?)))
}
