//! The metrics of Liqo's gateway under their own names, labels and help texts.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use strait_plan::conncheck::State;

use super::{Families, Labels, View};

/// Liqo's dashboards select on this value.
const DRIVER: &str = "wireguard";

/// Upper bounds in microseconds, as Liqo 1.2 has them.
const LATENCY_BUCKETS_US: [f64; 15] = [
    10_000.0, 15_000.0, 20_000.0, 36_250.0, 52_500.0, 68_750.0, 85_000.0, 101_250.0, 117_500.0,
    133_750.0, 150_000.0, 178_380.0, 212_129.0, 252_264.0, 299_992.0,
];

/// State between scrapes: Liqo observes the latency of each connected peer once per scrape.
#[derive(Debug, Default)]
pub(super) struct Liqo {
    latency: Mutex<BTreeMap<String, Histogram>>,
}

impl Liqo {
    pub(super) fn encode(&self, families: &mut Families<'_>, peers: &[View<'_>]) -> fmt::Result {
        families.counters(
            "liqo_peer_receive_bytes",
            "Number of bytes received from a given peer.",
            peers.iter().map(|peer| (labels(peer), peer.status.receive_bytes)),
        )?;
        families.counters(
            "liqo_peer_transmit_bytes",
            "Number of bytes transmitted to a given peer.",
            peers.iter().map(|peer| (labels(peer), peer.status.transmit_bytes)),
        )?;
        families.gauges(
            "liqo_peer_latency_us",
            "Round-trip latency of a given peer in microseconds.",
            peers.iter().filter_map(|peer| Some((labels(peer), latency_us(peer)?))),
        )?;
        self.encode_histogram(families, peers)?;
        families.gauges(
            "liqo_peer_is_connected",
            "Status of the connectivity to a given peer (true = Liqo tunnel is up and gateways are pinging each other).",
            peers.iter().map(|peer| (labels(peer), u64::from(is_connected(peer)))),
        )?;

        families.gauges(
            "liqo_wireguard_implementation",
            "Wireguard used implementation",
            [([("driver", DRIVER), ("implementation", "userspace")], 1_u64)],
        )
    }

    fn encode_histogram(&self, families: &mut Families<'_>, peers: &[View<'_>]) -> fmt::Result {
        let mut latency = self.latency.lock();
        let names: HashSet<&str> = peers.iter().map(|peer| peer.status.name.as_str()).collect();
        latency.retain(|name, _| names.contains(name.as_str()));
        for peer in peers {
            let histogram = latency
                .entry(peer.status.name.clone())
                .or_insert_with(|| Histogram::new(LATENCY_BUCKETS_US));
            if let Some(us) = latency_us(peer) {
                histogram.observe(us);
            }
        }

        let mut family = families.0.encode_descriptor(
            "liqo_peer_latency_histogram_us",
            "Round-trip latency distribution of a given peer in microseconds.",
            None,
            MetricType::Histogram,
        )?;
        for (name, histogram) in latency.iter() {
            histogram.encode(family.encode_family(&labels_of(name))?)?;
        }

        Ok(())
    }
}

fn labels<'a>(peer: &View<'a>) -> Labels<'a, 2> {
    labels_of(&peer.status.name)
}

fn labels_of(cluster_id: &str) -> Labels<'_, 2> {
    [("driver", DRIVER), ("cluster_id", cluster_id)]
}

/// The result of the check, as in Liqo; without a check, whether there is a session.
fn is_connected(peer: &View<'_>) -> bool {
    match peer.check {
        Some(report) => report.state == State::Connected,
        None => peer.status.has_session,
    }
}

/// Liqo reports a latency only while the peer is connected.
fn latency_us(peer: &View<'_>) -> Option<f64> {
    let round_trip = match peer.check {
        Some(report) => report.latency,
        None => peer.status.rtt,
    };

    round_trip
        .filter(|_| is_connected(peer))
        .map(|rtt| f64::from(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX)))
}
