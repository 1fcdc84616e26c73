//! The quantities that are compared, with their names and formats.

/// A quantity that is measured at most once a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Its identifier in the results.
    pub(crate) id: &'static str,
    /// Its name in tables, with its unit.
    pub(crate) title: &'static str,
    pub(crate) decimals: usize,
}

const fn metric(id: &'static str, title: &'static str, decimals: usize) -> Metric {
    Metric { id, title, decimals }
}

/// All metrics, in the order of the report. A contestant may lack some: `plain` has no gateway.
pub(crate) const METRICS: &[Metric] = &[
    metric("tcp_1_up_gbps", "TCP, 1 stream, Gb/s", 2),
    metric("tcp_1_down_gbps", "TCP, 1 stream down, Gb/s", 2),
    metric("tcp_1_both_gbps", "TCP, 1 stream each way, Gb/s", 2),
    metric("tcp_4_up_gbps", "TCP, 4 streams, Gb/s", 2),
    metric("tcp_4_down_gbps", "TCP, 4 streams down, Gb/s", 2),
    metric("tcp_4_both_gbps", "TCP, 4 streams each way, Gb/s", 2),
    metric("tcp_16_up_gbps", "TCP, 16 streams, Gb/s", 2),
    metric("tcp_16_down_gbps", "TCP, 16 streams down, Gb/s", 2),
    metric("tcp_16_both_gbps", "TCP, 16 streams each way, Gb/s", 2),
    metric("udp_64_pps", "UDP, 64 bytes, packets/s", 0),
    metric("udp_512_pps", "UDP, 512 bytes, packets/s", 0),
    metric("udp_1300_pps", "UDP, 1300 bytes, packets/s", 0),
    metric("connections_per_second", "short connections/s", 0),
    metric("cpu_seconds_per_gb", "CPU s per GB", 2),
    metric("cpu_seconds_per_gb_server", "CPU s per GB, server's gateway", 2),
    metric("cpu_seconds_per_gb_client", "CPU s per GB, client's gateway", 2),
    metric("all_cpu_seconds_per_gb", "CPU s per GB, with the load", 2),
    metric("cpu_seconds_per_million", "CPU s per million 64-byte packets", 2),
    metric("cpu_seconds_per_million_server", "the same, server's gateway", 2),
    metric("cpu_seconds_per_million_client", "the same, client's gateway", 2),
    metric("idle_p50_us", "idle round trip, median, µs", 0),
    metric("idle_p99_us", "idle round trip, p99, µs", 0),
    metric("idle_p999_us", "idle round trip, p99.9, µs", 0),
    metric("idle_lost_percent", "idle pings that were lost, %", 2),
    metric("loaded_p50_us", "round trip beside TCP, median, µs", 0),
    metric("loaded_p99_us", "round trip beside TCP, p99, µs", 0),
    metric("loaded_p999_us", "round trip beside TCP, p99.9, µs", 0),
    metric("loaded_lost_percent", "pings beside TCP that were lost, %", 2),
    metric("peak_mib", "most memory of a gateway, MiB", 1),
    metric("peers_1_gbps", "TCP with 1 peer, Gb/s", 2),
    metric("peers_100_gbps", "TCP with 100 peers, Gb/s", 2),
    metric("peers_1000_gbps", "TCP with 1,000 peers, Gb/s", 2),
    metric("peers_ratio", "1,000 peers to 1, ratio", 3),
    metric("peers_1_mib", "memory with 1 peer, MiB", 1),
    metric("peers_100_mib", "memory with 100 peers, MiB", 1),
    metric("peers_1000_mib", "memory with 1,000 peers, MiB", 1),
    metric("peers_1_idle_cpu_percent", "CPU without traffic, 1 peer, %", 2),
    metric("peers_100_idle_cpu_percent", "CPU without traffic, 100 peers, %", 2),
    metric("peers_1000_idle_cpu_percent", "CPU without traffic, 1,000 peers, %", 2),
    metric("jumbo_gbps", "TCP, MTU 9000, Gb/s", 2),
    metric("jumbo_ratio", "TCP, MTU 9000 to 1500, ratio", 2),
    metric("overlay_gbps", "TCP in VXLAN, Gb/s", 2),
    metric("overlay_ratio", "TCP in VXLAN to TCP, ratio", 2),
    metric("node_gbps", "TCP behind a node, Gb/s", 2),
    metric("node_device_gbps", "the same, with a device, Gb/s", 2),
    metric("node_ratio", "TCP behind a node, overlay to device, ratio", 2),
    metric("node_cost_ratio", "CPU with the load, overlay to device, ratio", 2),
    metric("node_idle_ratio", "idle round trip, overlay to device, ratio", 2),
    metric("all_on_gbps", "TCP, every offload on, Gb/s", 2),
    metric("no_tun_tso_gbps", "TCP without TUN TSO, Gb/s", 2),
    metric("no_tun_uso_gbps", "TCP without TUN USO, Gb/s", 2),
    metric("no_udp_gso_gbps", "TCP without UDP GSO, Gb/s", 2),
    metric("no_udp_gro_gbps", "TCP without UDP GRO, Gb/s", 2),
    metric("no_vector_aead_gbps", "TCP without vector AEAD, Gb/s", 2),
    metric("all_off_gbps", "TCP, every offload off, Gb/s", 2),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::METRICS;

    #[test]
    fn identifiers_are_unique() {
        let ids: BTreeSet<_> = METRICS.iter().map(|metric| metric.id).collect();

        assert_eq!(ids.len(), METRICS.len());
    }
}
