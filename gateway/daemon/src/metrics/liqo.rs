//! The metrics of Liqo's gateway under their own names, labels and help texts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use strait_io::overlay::NodeTraffic;
use strait_plan::conncheck::{Report, State};
use strait_plan::geneve::Tunnel;

use super::{Families, Labels, View};
use crate::cluster::NodeTunnels;

/// Liqo's dashboards select on this value.
const DRIVER: &str = "wireguard";

/// Upper bounds in microseconds, as Liqo 1.2 has them.
const LATENCY_BUCKETS_US: [f64; 15] = [
    10_000.0, 15_000.0, 20_000.0, 36_250.0, 52_500.0, 68_750.0, 85_000.0, 101_250.0, 117_500.0,
    133_750.0, 150_000.0, 178_380.0, 212_129.0, 252_264.0, 299_992.0,
];

/// State between scrapes: Liqo observes the latency of each connected peer, and of each connected node, once per scrape.
#[derive(Debug, Default)]
pub(super) struct Liqo {
    peers: Mutex<BTreeMap<String, Histogram>>,
    /// By node and fabric.
    nodes: Mutex<BTreeMap<(String, String), Histogram>>,
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
        let mut histograms = self.peers.lock();
        let names: HashSet<&str> = peers.iter().map(|peer| peer.status.name.as_str()).collect();
        histograms.retain(|name, _| names.contains(name.as_str()));
        for peer in peers {
            observe(histograms.entry(peer.status.name.clone()), latency_us(peer));
        }

        encode_histograms(
            families,
            "liqo_peer_latency_histogram_us",
            "Round-trip latency distribution of a given peer in microseconds.",
            histograms.iter().map(|(name, histogram)| (labels_of(name), histogram)),
        )
    }

    /// The metrics of Liqo after 1.2 about its Geneve tunnels: bytes of each, and the check of those that have one.
    pub(super) fn encode_nodes(
        &self,
        families: &mut Families<'_>,
        nodes: &NodeTunnels,
        traffic: &[NodeTraffic],
    ) -> fmt::Result {
        if nodes.tunnels.is_empty() {
            return Ok(());
        }
        let counted: &HashMap<_, _> = &traffic.iter().map(|node| (node.address, node)).collect();
        let bytes = |read: fn(&NodeTraffic) -> u64| {
            nodes.tunnels.iter().filter_map(move |tunnel| {
                let counted = counted.get(&tunnel.address?)?;
                Some((node_labels(nodes, &tunnel.node, &tunnel.fabric), read(counted)))
            })
        };
        families.counters(
            "liqo_geneve_receive_bytes",
            "Number of bytes received through a geneve tunnel.",
            bytes(|node| node.received_bytes),
        )?;
        families.counters(
            "liqo_geneve_transmit_bytes",
            "Number of bytes transmitted through a geneve tunnel.",
            bytes(|node| node.sent_bytes),
        )?;

        let checked: Vec<_> = nodes
            .tunnels
            .iter()
            .filter_map(|tunnel| Some((tunnel, tunnel.check.as_ref()?)))
            .collect();
        if checked.is_empty() { Ok(()) } else { self.encode_checks(families, nodes, &checked) }
    }

    fn encode_checks(
        &self,
        families: &mut Families<'_>,
        nodes: &NodeTunnels,
        checked: &[(&Tunnel, &Report)],
    ) -> fmt::Result {
        families.gauges(
            "liqo_geneve_is_connected",
            "Status of the connectivity of a geneve tunnel (true = tunnel is up and nodes are pinging each other).",
            checked.iter().map(|(tunnel, check)| {
                let is_connected = check.state == State::Connected;
                (node_labels(nodes, &tunnel.node, &tunnel.fabric), u64::from(is_connected))
            }),
        )?;
        families.gauges(
            "liqo_geneve_latency_us",
            "Round-trip latency of a geneve tunnel in microseconds.",
            checked.iter().filter_map(|(tunnel, check)| {
                let latency = microseconds(check.latency?);
                Some((node_labels(nodes, &tunnel.node, &tunnel.fabric), latency))
            }),
        )?;

        let mut histograms = self.nodes.lock();
        let key = |tunnel: &Tunnel| (tunnel.node.clone(), tunnel.fabric.clone());
        let keys: HashSet<_> = checked.iter().map(|(tunnel, _)| key(tunnel)).collect();
        histograms.retain(|key, _| keys.contains(key));
        for (tunnel, check) in checked {
            observe(histograms.entry(key(tunnel)), check.latency.map(microseconds));
        }
        encode_histograms(
            families,
            "liqo_geneve_latency_histogram_us",
            "Round-trip latency distribution of a geneve tunnel in microseconds.",
            histograms
                .iter()
                .map(|((node, fabric), histogram)| (node_labels(nodes, node, fabric), histogram)),
        )
    }
}

fn encode_histograms<'a, const N: usize>(
    families: &mut Families<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels<'a, N>, &'a Histogram)>,
) -> fmt::Result {
    let mut family = families.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, histogram) in samples {
        histogram.encode(family.encode_family(&labels)?)?;
    }

    Ok(())
}

fn observe<K: Ord>(histogram: Entry<'_, K, Histogram>, latency_us: Option<f64>) {
    let histogram = histogram.or_insert_with(|| Histogram::new(LATENCY_BUCKETS_US));
    if let Some(us) = latency_us {
        histogram.observe(us);
    }
}

fn node_labels<'a>(nodes: &'a NodeTunnels, node: &'a str, fabric: &'a str) -> Labels<'a, 4> {
    [
        ("internal_fabric", fabric),
        ("internal_node", node),
        ("namespace", &nodes.namespace),
        ("remote_cluster_id", &nodes.remote_cluster_id),
    ]
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

    round_trip.filter(|_| is_connected(peer)).map(microseconds)
}

fn microseconds(time: Duration) -> f64 {
    f64::from(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}
