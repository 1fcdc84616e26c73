use clap::Parser as _;

use super::super::config::example;
use super::*;

#[test]
fn a_sent_packet_is_explained_in_text() {
    let text = report("explain 10.244.1.5 10.71.2.7 --proto tcp").to_string();

    assert_eq!(
        text,
        "\
10.244.1.5 → 10.71.2.7 tcp/443   outbound
  peer     rome (192.0.2.1:51840)
  rule     10.244.0.0/16 as 10.71.0.0/16
  before   10.244.1.5:40000 → 10.71.2.7:443
  after    10.244.1.5:40000 → 10.244.2.7:443
  mtu      1340 (device): MSS is clamped to 1300
  verdict  sent
"
    );
}

#[test]
fn a_dropped_packet_is_shown_with_the_remedy() {
    let text = report("explain 10.244.1.5 10.99.0.1").to_string();

    assert_eq!(
        text,
        "\
10.244.1.5 → 10.99.0.1 icmp   outbound
  before   10.244.1.5 → 10.99.0.1, identifier 1
  mtu      1340 (device)
  verdict  dropped: no_route
  sender   gets \"host unreachable\"
  remedy   no remap covers 10.99.0.1 and it is in no peer's allowed_ips: add it to the peer that has it
"
    );
}

#[test]
fn an_inbound_packet_is_shown() {
    let text = report("explain 10.244.2.7 10.244.1.5 --inbound --dport 80").to_string();

    assert_eq!(
        text,
        "\
10.244.2.7 → 10.244.1.5 tcp/80   inbound
  peer     rome (192.0.2.1:51840)
  rule     10.244.0.0/16 as 10.71.0.0/16
  before   10.244.2.7:40000 → 10.244.1.5:80
  after    10.71.2.7:40000 → 10.244.1.5:80
  mtu      MSS is clamped to 1300
  verdict  delivered
"
    );
}

#[test]
fn a_size_is_compared_with_the_mtu() {
    let fits = report("explain 10.244.1.5 10.71.2.7 --proto udp --size 1340");
    let too_big = report("explain 10.244.1.5 10.71.2.7 --proto udp --size 1341");

    assert!(fits.is_forwarded() && !too_big.is_forwarded());
    assert!(fits.to_string().contains("mtu      1340 (device): 1340 bytes fit\n"), "{fits}");
    let expected =
        "mtu      1340 (device): 1341 bytes do not fit, the sender gets \"fragmentation needed\"";
    assert!(too_big.to_string().contains(expected), "{too_big}");
    assert!(too_big.to_string().contains("verdict  too big\n"), "{too_big}");
}

#[test]
fn the_json_form_has_exactly_these_keys() {
    let json = serde_json::to_value(report("explain 10.244.1.5 10.71.2.7 --dport 80")).unwrap();

    assert_eq!(
        json,
        serde_json::json!({
            "direction": "outbound",
            "verdict": "sent",
            "reason": null,
            "remedy": null,
            "icmp_error": null,
            "peer": {
                "name": "rome",
                "public_key": example::config().peers[0].keys.public_key.to_string(),
                "endpoint": "192.0.2.1:51840",
                "has_session": null,
            },
            "may_send": [],
            "rule": {
                "remote": "10.244.0.0/16", "local": "10.71.0.0/16", "checksum_neutral": false,
            },
            "allowed_ip": null,
            "before": {
                "source": "10.244.1.5", "destination": "10.71.2.7",
                "protocol": 6, "protocol_name": "tcp",
                "source_port": 40000, "destination_port": 80, "identifier": null,
            },
            "after": {
                "source": "10.244.1.5", "destination": "10.244.2.7",
                "protocol": 6, "protocol_name": "tcp",
                "source_port": 40000, "destination_port": 80, "identifier": null,
            },
            "source_by": "unchanged",
            "destination_by": "rule",
            "mtu": 1340,
            "mtu_source": "device",
            "size": null,
            "mss": 1300,
            "generation": 1,
        })
    );
    let back: Report = serde_json::from_value(json).unwrap();
    assert_eq!(back, report("explain 10.244.1.5 10.71.2.7 --dport 80"));
}

#[test]
fn a_protocol_is_a_name_or_a_number() {
    for (text, expected) in [
        ("tcp", Protocol::Number(6)),
        ("ICMP", Protocol::Icmp),
        ("icmpv6", Protocol::Icmp),
        ("sctp", Protocol::Number(132)),
        ("200", Protocol::Number(200)),
    ] {
        assert_eq!(parse_protocol(text), Ok(expected), "{text}");
    }
    for text in ["tpc", "256", "-1", ""] {
        assert!(parse_protocol(text).unwrap_err().contains("use icmp, "), "{text}");
    }
}

#[test]
fn ports_need_a_protocol_with_ports() {
    for (line, expected) in [
        ("explain 10.0.0.1 10.0.0.2 --proto esp --dport 1", "esp has no ports"),
        ("explain 10.0.0.1 10.0.0.2 --proto icmp --sport 1", "icmp has no ports"),
        ("explain 10.0.0.1 10.0.0.2 --proto 200 --dport 1", "protocol 200 has no ports"),
        ("explain 10.0.0.1 10.0.0.2 --proto tcp --id 1", "tcp has no echo identifier"),
    ] {
        let error = question(&typed(line)).unwrap_err();

        assert_eq!(error.exit_status(), USAGE);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn report(line: &str) -> Report {
    let question = question(&typed(line)).unwrap();
    let explanation = explain_config(&example::config(), 1340, &question).unwrap();

    Report::new(&question, &explanation)
}

/// Parses a command line of `explain`.
fn typed(line: &str) -> ExplainArgs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ExplainArgs,
    }

    Line::try_parse_from(line.split(' ')).unwrap().args
}
