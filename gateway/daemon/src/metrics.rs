//! The state of the gateway as OpenMetrics, read at the moment of the scrape.
//!
//! The packet threads only count; a scrape copies the counters. Names are public interface: renaming one breaks
//! dashboards and alerts. Liqo's names are kept exactly in [`liqo`], so that its dashboards work.

mod liqo;
mod probe;

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use remap::masquerade::Statistics;
use strait_io::{PeerStatus, Status};
use strait_packet::DropReason;
use strait_packet::counters::Snapshot;
use strait_plan::conncheck::Report;

use super::cluster::Observed;
use liqo::Liqo;

/// The source of the state.
pub(crate) type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

/// The metrics of one gateway.
#[derive(Debug)]
pub(crate) struct Metrics(Registry);

impl Metrics {
    /// Creates metrics that read `source`, and the cluster source if any, at every scrape.
    pub(crate) fn new(source: StatusSource, cluster: Option<Observed>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape { source, cluster, liqo: Liqo::default() }));

        Self(registry)
    }

    /// Writes one scrape to `out`, in the OpenMetrics text format.
    ///
    /// # Errors
    ///
    /// Only the error of `out`.
    pub(crate) fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        encode(out, &self.0)
    }
}

struct Scrape {
    source: StatusSource,
    cluster: Option<Observed>,
    liqo: Liqo,
}

/// A peer and the report of its connection check, if there is one.
struct View<'a> {
    status: &'a PeerStatus,
    check: Option<Report>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").field("liqo", &self.liqo).finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = (self.source)();
        let mut families = Families(encoder);

        families.build_info()?;
        families.directions(&status.outbound, &status.inbound)?;
        families.gateway(&status)?;
        families.flows(&status.flows)?;
        families.peers(&status.peers)?;
        if let Some(cluster) = &self.cluster {
            families.gauge(
                "strait_objects_refused",
                "Invalid settings in objects of the API server, which have no effect; the log names them.",
                cluster.refused(),
            )?;
        }
        let report = |name: &str| self.cluster.as_ref()?.report(name);
        let peers: Vec<_> = status
            .peers
            .iter()
            .map(|status| View { status, check: report(&status.name) })
            .collect();
        probe::encode(&mut families, &peers)?;

        self.liqo.encode(&mut families, &peers)?;

        let tunnels = self.cluster.as_ref().map(Observed::node_tunnels).unwrap_or_default();
        self.liqo.encode_nodes(&mut families, &tunnels, &status.nodes)
    }
}

/// Writes metric families one after the other: name, help, and every sample with its labels.
struct Families<'a>(DescriptorEncoder<'a>);

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

impl Families<'_> {
    fn build_info(&mut self) -> fmt::Result {
        let info = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        let encoder = self.0.encode_descriptor(
            "strait_build",
            "Version of Strait.",
            None,
            info.metric_type(),
        )?;

        info.encode(encoder)
    }

    fn directions(&mut self, outbound: &Snapshot, inbound: &Snapshot) -> fmt::Result {
        let both = [("outbound", outbound), ("inbound", inbound)];
        let mut counters = |name, help, read: fn(&Snapshot) -> u64| {
            let samples = both.map(|(label, side)| ([("direction", label)], read(side)));
            self.counters(name, help, samples)
        };

        counters(
            "strait_packets_received",
            "Packets received from the device (outbound) or from the network (inbound).",
            |side| side.packets_in,
        )?;
        counters(
            "strait_packets_forwarded",
            "Packets forwarded to the network (outbound) or to the device (inbound).",
            |side| side.packets_out,
        )?;
        counters("strait_bytes_received", "Bytes of the received packets.", |side| side.bytes_in)?;
        counters("strait_bytes_forwarded", "Bytes of the forwarded packets.", |side| {
            side.bytes_out
        })?;
        counters(
            "strait_protocol_messages",
            "Accepted messages of the protocol that carry no packet: handshakes, cookie replies, keepalives.",
            |side| side.protocol_messages,
        )?;
        counters(
            "strait_worker_frames",
            "Frames sealed (outbound) or opened (inbound) by a worker, because of backlog.",
            |side| side.worker_frames,
        )?;
        self.counter(
            "strait_icmp_errors",
            "ICMP errors sent to the senders of dropped packets.",
            outbound.icmp_errors,
        )?;
        self.counter(
            "strait_relayed_datagrams",
            "Datagrams passed on between the peer and the pod that was the active one before, after a change of leaders.",
            inbound.relayed,
        )?;

        let drops = both.into_iter().flat_map(|(label, side)| {
            DropReason::ALL.into_iter().map(move |reason| {
                ([("direction", label), ("reason", reason.label())], side.drops(reason))
            })
        });
        self.counters("strait_drops", "Dropped packets, by reason.", drops)
    }

    fn gateway(&mut self, status: &Status) -> fmt::Result {
        self.gauge(
            "strait_staged_packets",
            "Packets of all peers that wait for a handshake.",
            status.staged_packets,
        )?;
        self.gauges(
            "strait_offload_enabled",
            "Whether an offload is in use: 0 means switched off, or not supported by kernel or processor.",
            status.offload.named().map(|(name, is_on)| ([("offload", name)], u64::from(is_on))),
        )?;
        self.gauge(
            "strait_table_generation",
            "Generation of the current remapping table.",
            status.generation,
        )
    }

    /// Rejected flows are counted as drops.
    fn flows(&mut self, flows: &Statistics) -> fmt::Result {
        self.gauge("strait_masquerade_mappings", "Current masqueraded flows.", flows.mappings)?;
        self.gauge(
            "strait_host_map_flows",
            "Current flows of hosts with two addresses: their own and that of a host map.",
            flows.pins,
        )?;
        let ends = [
            ("expired", flows.expired),
            ("evicted", flows.evicted),
            ("replaced", flows.replaced),
            ("forgotten", flows.forgotten),
        ];
        self.counters(
            "strait_flows_ended",
            "Flows that ended: expired, evicted to make room, replaced because their external address changed, or forgotten with their peer.",
            ends.map(|(reason, count)| ([("reason", reason)], count)),
        )?;
        let created = ConstCounter::new(flows.created);

        created.encode(self.0.encode_descriptor(
            "strait_flows_created",
            "Flows that were created.",
            None,
            MetricType::Counter,
        )?)
    }

    fn peers(&mut self, peers: &[PeerStatus]) -> fmt::Result {
        let mut counters = |name, help, read: fn(&PeerStatus) -> u64| {
            self.counters(name, help, peers.iter().map(|peer| (label(peer), read(peer))))
        };
        counters("strait_peer_receive_bytes", "UDP payload bytes from the peer.", |peer| {
            peer.receive_bytes
        })?;
        counters("strait_peer_transmit_bytes", "UDP payload bytes to the peer.", |peer| {
            peer.transmit_bytes
        })?;
        counters("strait_peer_receive_packets", "Packets accepted from the peer.", |peer| {
            peer.receive_packets
        })?;
        counters("strait_peer_transmit_packets", "Packets sent to the peer.", |peer| {
            peer.transmit_packets
        })?;

        self.gauges(
            "strait_peer_last_handshake_timestamp_seconds",
            "When the last handshake completed, in seconds since 1970. Absent until there is one.",
            peers.iter().filter_map(|peer| {
                let since = peer.last_handshake?.duration_since(UNIX_EPOCH).ok()?;
                Some((label(peer), since.as_secs_f64()))
            }),
        )?;
        self.gauges(
            "strait_peer_rtt_seconds",
            "Round trip of the last handshake. Absent until there is one.",
            peers.iter().filter_map(|peer| Some((label(peer), peer.rtt?.as_secs_f64()))),
        )?;
        self.gauges(
            "strait_peer_staged_packets",
            "Packets to the peer that wait for a handshake.",
            peers.iter().map(|peer| (label(peer), peer.staged_packets)),
        )?;
        self.gauges(
            "strait_peer_has_session",
            "Whether a session with the peer is established.",
            peers.iter().map(|peer| (label(peer), u64::from(peer.has_session))),
        )?;
        self.gauges(
            "strait_peer_path_mtu_bytes",
            "Path MTU to the peer: the largest packet inside the tunnel, and what limits it. Absent until known.",
            peers.iter().filter_map(|peer| {
                let path_mtu = peer.path_mtu?;
                let [name] = label(peer);

                Some(([name, ("source", path_mtu.source.name())], u64::from(path_mtu.bytes)))
            }),
        )
    }

    /// A counter for each set of labels. The encoder appends `_total` to `name`.
    fn counters<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }

        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);

        counter.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauges<'l, const N: usize, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }

        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);

        gauge.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

fn label(peer: &PeerStatus) -> Labels<'_, 1> {
    [("peer", peer.name.as_str())]
}

#[cfg(test)]
mod tests;
