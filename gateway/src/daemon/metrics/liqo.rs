//! The metrics of Liqo's gateway under their own names, labels and help texts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use strait_gateway::io::PeerStatus;

use super::{Families, Labels};

/// Liqo's dashboards select on this value.
const DRIVER: &str = "wireguard";

/// Upper bounds in microseconds, as Liqo 1.2 has them.
const LATENCY_BUCKETS_US: [f64; 15] = [
    10_000.0, 15_000.0, 20_000.0, 36_250.0, 52_500.0, 68_750.0, 85_000.0, 101_250.0, 117_500.0,
    133_750.0, 150_000.0, 178_380.0, 212_129.0, 252_264.0, 299_992.0,
];

/// What must be remembered from one scrape to the next: Liqo observes the latency of each connected
/// peer once per scrape.
#[derive(Debug, Default)]
pub(super) struct Liqo {
    latency: Mutex<BTreeMap<String, Histogram>>,
}

impl Liqo {
    pub(super) fn encode(&self, families: &mut Families<'_>, peers: &[PeerStatus]) -> fmt::Result {
        families.counters(
            "liqo_peer_receive_bytes",
            "Number of bytes received from a given peer.",
            peers.iter().map(|peer| (labels(&peer.name), peer.receive_bytes)),
        )?;
        families.counters(
            "liqo_peer_transmit_bytes",
            "Number of bytes transmitted to a given peer.",
            peers.iter().map(|peer| (labels(&peer.name), peer.transmit_bytes)),
        )?;
        families.gauges(
            "liqo_peer_latency_us",
            "Round-trip latency of a given peer in microseconds.",
            peers.iter().filter_map(|peer| Some((labels(&peer.name), latency_us(peer)?))),
        )?;
        self.encode_histogram(families, peers)?;
        families.gauges(
            "liqo_peer_is_connected",
            "Status of the connectivity to a given peer (true = Liqo tunnel is up and gateways are pinging each other).",
            peers.iter().map(|peer| (labels(&peer.name), u64::from(peer.has_session))),
        )?;

        families.gauges(
            "liqo_wireguard_implementation",
            "Wireguard used implementation",
            [([("driver", DRIVER), ("implementation", "userspace")], 1_u64)],
        )
    }

    fn encode_histogram(&self, families: &mut Families<'_>, peers: &[PeerStatus]) -> fmt::Result {
        // A scrape that panicked leaves at worst one observation too few.
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
        for peer in peers {
            let histogram = latency
                .entry(peer.name.clone())
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
            histogram.encode(family.encode_family(&labels(name))?)?;
        }

        Ok(())
    }
}

fn labels(cluster_id: &str) -> Labels<'_, 2> {
    [("driver", DRIVER), ("cluster_id", cluster_id)]
}

/// Liqo reports a latency only while the peer is connected.
fn latency_us(peer: &PeerStatus) -> Option<f64> {
    peer.rtt
        .filter(|_| peer.has_session)
        .map(|rtt| f64::from(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX)))
}
