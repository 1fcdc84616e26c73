use std::time::{Duration, SystemTime};

use strait_io::overlay::NodeTraffic;
use strait_packet::counters::Counters;
use strait_plan::conncheck::State;
use strait_plan::geneve::Tunnel;
use strait_wg::{PathMtu, PathMtuSource, PublicKey};
use tokio::sync::watch;

use super::*;
use crate::cluster::NodeTunnels;

#[test]
fn a_scrape_shows_both_directions() {
    let outbound = Counters::default();
    outbound.packets_in.add(10);
    outbound.bytes_in.add(1000);
    outbound.packets_out.add(7);
    outbound.bytes_out.add(900);
    outbound.count_drops(DropReason::NoRoute, 3);
    outbound.icmp_errors.add(2);
    outbound.worker_frames.add(8);
    let inbound = Counters::default();
    inbound.packets_in.add(5);
    inbound.protocol_messages.add(2);
    inbound.worker_frames.add(9);
    let status = Status {
        outbound: outbound.snapshot(),
        inbound: inbound.snapshot(),
        staged_packets: 4,
        generation: 6,
        ..Status::default()
    };

    let text = scrape(status);

    assert_has(&text, r#"strait_packets_received_total{direction="outbound"} 10"#);
    assert_has(&text, r#"strait_packets_received_total{direction="inbound"} 5"#);
    assert_has(&text, r#"strait_bytes_received_total{direction="outbound"} 1000"#);
    assert_has(&text, r#"strait_packets_forwarded_total{direction="outbound"} 7"#);
    assert_has(&text, r#"strait_bytes_forwarded_total{direction="outbound"} 900"#);
    assert_has(&text, r#"strait_protocol_messages_total{direction="inbound"} 2"#);
    assert_has(&text, r#"strait_drops_total{direction="outbound",reason="no_route"} 3"#);
    assert_has(&text, "strait_icmp_errors_total 2");
    assert_has(&text, r#"strait_worker_frames_total{direction="outbound"} 8"#);
    assert_has(&text, r#"strait_worker_frames_total{direction="inbound"} 9"#);
    assert_has(&text, "strait_staged_packets 4");
    assert_has(&text, "strait_table_generation 6");
    assert_has(&text, r#"strait_offload_enabled{offload="tun_tso"} 1"#);
    assert_has(
        &text,
        concat!(r#"strait_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
    );
}

#[test]
fn every_drop_reason_starts_at_zero() {
    let text = scrape(Status::default());

    for direction in ["outbound", "inbound"] {
        for reason in DropReason::ALL {
            let label = reason.label();
            let sample =
                format!(r#"strait_drops_total{{direction="{direction}",reason="{label}"}} 0"#);
            assert_has(&text, &sample);
        }
    }
}

#[test]
fn a_connected_peer_has_liqo_metrics_too() {
    let text = scrape(Status { peers: vec![connected_peer()], ..Status::default() });

    assert_has(&text, r#"strait_peer_receive_bytes_total{peer="rome"} 11"#);
    assert_has(&text, r#"strait_peer_transmit_bytes_total{peer="rome"} 12"#);
    assert_has(&text, r#"strait_peer_receive_packets_total{peer="rome"} 13"#);
    assert_has(&text, r#"strait_peer_transmit_packets_total{peer="rome"} 14"#);
    assert_has(&text, r#"strait_peer_last_handshake_timestamp_seconds{peer="rome"} 1700000000.5"#);
    assert_has(&text, r#"strait_peer_rtt_seconds{peer="rome"} 0.012"#);
    assert_has(&text, r#"strait_peer_staged_packets{peer="rome"} 15"#);
    assert_has(&text, r#"strait_peer_has_session{peer="rome"} 1"#);
    assert_has(&text, r#"strait_peer_path_mtu_bytes{peer="rome",source="device"} 1420"#);
    assert_has(&text, "strait_masquerade_mappings 0");
    for reason in ["expired", "evicted", "replaced", "forgotten"] {
        assert_has(&text, &format!("strait_flows_ended_total{{reason=\"{reason}\"}} 0"));
    }
    let liqo = r#"{driver="wireguard",cluster_id="rome"}"#;
    assert_has(&text, &format!("liqo_peer_receive_bytes_total{liqo} 11"));
    assert_has(&text, &format!("liqo_peer_transmit_bytes_total{liqo} 12"));
    assert_has(&text, &format!("liqo_peer_latency_us{liqo} 12000.0"));
    assert_has(&text, &format!("liqo_peer_is_connected{liqo} 1"));
}

#[test]
fn the_check_overrides_the_handshake() {
    let (latency, jitter) = (Duration::from_micros(2_500), Duration::from_micros(125));
    let connected = Report {
        state: State::Connected,
        latency: Some(latency),
        jitter,
        loss: 0.25,
        silences: 3,
        silence_limit: Some(Duration::from_millis(450)),
        ..Report::default()
    };
    let liqo = r#"{driver="wireguard",cluster_id="rome"}"#;
    // The handshake contradicts the check.
    let silent = PeerStatus { has_session: false, rtt: None, ..connected_peer() };
    let text = scrape_checked(vec![silent], connected);

    assert_has(&text, &format!("liqo_peer_is_connected{liqo} 1"));
    assert_has(&text, &format!("liqo_peer_latency_us{liqo} 2500.0"));
    assert_has(&text, &format!("liqo_peer_latency_histogram_us_sum{liqo} 2500.0"));
    assert_has(&text, r#"strait_peer_probe_loss_ratio{peer="rome"} 0.25"#);
    assert_has(&text, r#"strait_peer_probe_jitter_seconds{peer="rome"} 0.000125"#);
    assert_has(&text, r#"strait_peer_probe_rtt_seconds{peer="rome"} 0.0025"#);
    assert_has(&text, r#"strait_peer_silence_limit_seconds{peer="rome"} 0.45"#);
    assert_has(&text, r#"strait_peer_silences_total{peer="rome"} 3"#);

    let lost =
        Report { state: State::Lost, latency: None, loss: 1.0, silence_limit: None, ..connected };
    let text = scrape_checked(vec![connected_peer()], lost);

    assert_has(&text, &format!("liqo_peer_is_connected{liqo} 0"));
    assert_has(&text, &format!("liqo_peer_latency_histogram_us_count{liqo} 0"));
    assert_has(&text, r#"strait_peer_probe_loss_ratio{peer="rome"} 1.0"#);
    for absent in [
        "liqo_peer_latency_us{",
        "strait_peer_probe_jitter_seconds{",
        "strait_peer_probe_rtt_seconds{",
        "strait_peer_silence_limit_seconds{",
    ] {
        assert!(!text.contains(absent), "{text}");
    }
}

#[test]
fn probe_metrics_are_absent_until_known() {
    let other = PeerStatus { name: "oslo".to_owned(), ..connected_peer() };

    let text = scrape_checked(vec![connected_peer(), other], Report::default());

    assert!(!text.contains("strait_peer_probe_loss_ratio{"), "{text}");
    assert_has(&text, r#"liqo_peer_is_connected{driver="wireguard",cluster_id="rome"} 0"#);
    assert_has(&text, r#"liqo_peer_is_connected{driver="wireguard",cluster_id="oslo"} 1"#);
    assert_has(&text, r#"liqo_peer_latency_us{driver="wireguard",cluster_id="oslo"} 12000.0"#);
}

#[test]
fn the_refused_metric_follows_the_objects() {
    let cluster = Observed::unchecked();
    let metrics = Metrics::new(Arc::new(Status::default), Some(cluster.clone()));

    cluster.set_refused(3);
    let three = text(&metrics);
    cluster.set_refused(0);

    assert_has(&three, "strait_objects_refused 3");
    assert_has(&text(&metrics), "strait_objects_refused 0");
    assert!(!scrape(Status::default()).contains("strait_objects_refused"));
}

#[test]
fn tunnels_of_nodes_have_liqos_names() {
    let cluster = Observed::unchecked();
    let address = |last: u8| [172, 18, 0, last].into();
    let traffic = |last, received_bytes, sent_bytes| NodeTraffic {
        address: address(last),
        received_bytes,
        sent_bytes,
    };
    let nodes = vec![traffic(1, 1_000, 100), traffic(2, 0, 0)];
    let status = Status { nodes, ..Status::default() };
    let metrics = Metrics::new(Arc::new(move || status.clone()), Some(cluster.clone()));
    assert!(!text(&metrics).contains("liqo_geneve"));
    let tunnel = |last, check| Tunnel {
        fabric: "rome".to_owned(),
        node: format!("n{last}"),
        address: Some(address(last)),
        check,
    };
    let check = |state, latency| Some(Report { state, latency, ..Report::default() });
    let latency = Some(Duration::from_millis(12));
    let tunnels = vec![
        tunnel(1, check(State::Connected, latency)),
        tunnel(2, check(State::Lost, None)),
        tunnel(3, None),
    ];

    let [namespace, remote_cluster_id] = ["liqo-tenant-rome", "rome"].map(str::to_owned);
    cluster.set_node_tunnels(NodeTunnels { namespace, remote_cluster_id, tunnels });
    let found = text(&metrics);

    let labels = |node: &str| {
        format!(
            r#"internal_fabric="rome",internal_node="{node}",namespace="liqo-tenant-rome",remote_cluster_id="rome""#
        )
    };
    assert_has(&found, &format!("liqo_geneve_receive_bytes_total{{{}}} 1000", labels("n1")));
    assert_has(&found, &format!("liqo_geneve_transmit_bytes_total{{{}}} 100", labels("n1")));
    assert_has(&found, &format!("liqo_geneve_receive_bytes_total{{{}}} 0", labels("n2")));
    assert_has(&found, &format!("liqo_geneve_is_connected{{{}}} 1", labels("n1")));
    assert_has(&found, &format!("liqo_geneve_is_connected{{{}}} 0", labels("n2")));
    assert_has(&found, &format!("liqo_geneve_latency_us{{{}}} 12000.0", labels("n1")));
    assert!(!found.contains(&format!("liqo_geneve_latency_us{{{}}}", labels("n2"))));
    let histogram = "liqo_geneve_latency_histogram_us";
    assert_has(&found, &format!("{histogram}_count{{{}}} 1", labels("n1")));
    assert_has(&found, &format!("{histogram}_count{{{}}} 0", labels("n2")));
    assert!(!found.contains(r#"internal_node="n3""#), "neither traffic nor a check: {found}");

    cluster.set_node_tunnels(NodeTunnels::default());
    assert!(!text(&metrics).contains("liqo_geneve"));
}

#[test]
fn without_a_session_there_is_no_latency() {
    let peer =
        PeerStatus { last_handshake: None, rtt: None, has_session: false, ..connected_peer() };

    let text = scrape(Status { peers: vec![peer], ..Status::default() });

    assert!(!text.contains("strait_peer_last_handshake_timestamp_seconds{"), "{text}");
    assert!(!text.contains("strait_peer_rtt_seconds{"), "{text}");
    assert!(!text.contains("liqo_peer_latency_us{"), "{text}");
    assert_has(&text, r#"liqo_peer_is_connected{driver="wireguard",cluster_id="rome"} 0"#);
}

#[test]
fn each_scrape_observes_latency_once() {
    let status = Status { peers: vec![connected_peer()], ..Status::default() };
    let metrics = Metrics::new(Arc::new(move || status.clone()), None);

    let first = text(&metrics);
    let second = text(&metrics);

    let labels = r#"driver="wireguard",cluster_id="rome""#;
    assert_has(&first, &format!("liqo_peer_latency_histogram_us_count{{{labels}}} 1"));
    assert_has(&second, &format!("liqo_peer_latency_histogram_us_count{{{labels}}} 2"));
    let bucket = |bound: &str, count: u32| {
        format!(r#"liqo_peer_latency_histogram_us_bucket{{le="{bound}",{labels}}} {count}"#)
    };
    assert_has(&second, &bucket("10000.0", 0));
    assert_has(&second, &bucket("15000.0", 2));
    assert_has(&second, &bucket("+Inf", 2));
}

#[test]
fn label_values_are_escaped() {
    let peer = PeerStatus { name: "ro\"me\\".to_owned(), ..connected_peer() };

    let text = scrape(Status { peers: vec![peer], ..Status::default() });

    assert_has(&text, r#"strait_peer_has_session{peer="ro\"me\\"} 1"#);
}

#[test]
fn the_text_ends_with_eof() {
    assert!(scrape(Status::default()).ends_with("# EOF\n"));
}

fn scrape(status: Status) -> String {
    text(&Metrics::new(Arc::new(move || status.clone()), None))
}

/// Scrapes with a check of the peer "rome".
fn scrape_checked(peers: Vec<PeerStatus>, report: Report) -> String {
    let status = Status { peers, ..Status::default() };
    let (_sender, reports) = watch::channel(report);
    let cluster = Observed::checked("rome".to_owned(), reports);

    text(&Metrics::new(Arc::new(move || status.clone()), Some(cluster)))
}

#[track_caller]
fn assert_has(text: &str, sample: &str) {
    assert!(text.lines().any(|line| line == sample), "no line {sample:?} in:\n{text}");
}

fn connected_peer() -> PeerStatus {
    PeerStatus {
        last_handshake: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500)),
        rtt: Some(Duration::from_millis(12)),
        receive_bytes: 11,
        transmit_bytes: 12,
        receive_packets: 13,
        transmit_packets: 14,
        staged_packets: 15,
        has_session: true,
        path_mtu: Some(PathMtu { bytes: 1420, source: PathMtuSource::Device }),
        ..PeerStatus::new("rome", PublicKey::from_bytes([1; 32]))
    }
}

fn text(metrics: &Metrics) -> String {
    let mut text = String::new();
    metrics.write(&mut text).unwrap();

    text
}
