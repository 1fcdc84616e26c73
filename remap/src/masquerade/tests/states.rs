//! The requirements of RFC 5382, 5508 and 7857: the states of a mapping, and its timeouts.

use super::*;

#[test]
fn rfc_5382_req_2_simultaneous_open() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);

    let external = gateway.send(flow, Signal::Syn, 0);
    assert_eq!(gateway.back(flow, external, Signal::Syn, 1), Some(flow.source));
    gateway.send(flow, Signal::Syn, 2);

    assert_eq!(gateway.state(2), State::Established);
}

#[test]
fn rfc_5382_req_5_established_timeout() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);

    assert_eq!(gateway.peek(external, 7_440), Some(flow.source));
    assert_eq!(gateway.peek(external, 7_441), None);
}

#[test]
fn rfc_5382_req_5_opening_timeout() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.send(flow, Signal::Syn, 0);

    assert_eq!(gateway.peek(external, 240), Some(flow.source));
    assert_eq!(gateway.peek(external, 241), None);
}

#[test]
fn rfc_5508_req_6_peeking_refreshes_nothing() {
    let gateway = Gateway::new();
    let flow = udp(NODE, 40_000, REMOTE, 1000);
    let external = gateway.out(flow, 0);
    let before: Vec<_> = gateway.masquerade.flows(Tick::from_secs(299)).collect();

    assert_eq!(gateway.peek(external, 299), Some(flow.source));
    let now = Tick::from_secs(299);
    let seen = gateway.masquerade.peek_outbound(REALM, flow.protocol, flow.source, now);

    assert_eq!(seen, Some(external));
    assert_eq!(gateway.masquerade.flows(now).collect::<Vec<_>>(), before);
}

#[test]
fn rfc_5508_req_1_echo_keeps_free_identifier() {
    let gateway = Gateway::new();
    let first = echo(NODE, 7);
    let second = echo("192.168.1.8", 7);

    let (a, b) = (gateway.out(first, 0), gateway.out(second, 0));

    assert_eq!(a, endpoint("10.70.0.1", 7));
    assert_ne!(b.port, 7);
    assert_eq!(gateway.back(first, a, Signal::Data, 0), Some(first.source));
    assert_eq!(gateway.back(second, b, Signal::Data, 0), Some(second.source));
    assert_eq!(gateway.out(echo("192.168.1.9", 0), 0).port, 0, "0 is a valid identifier");
}

#[test]
fn rfc_5508_req_2_echo_timeout() {
    let gateway = Gateway::new();
    let flow = echo(NODE, 7);
    let external = gateway.out(flow, 0);
    let peek = |secs| {
        gateway.masquerade.peek_inbound(REALM, flow.protocol, external, Tick::from_secs(secs))
    };

    assert_eq!(peek(60), Some(flow.source));
    assert_eq!(peek(61), None);
}

#[test]
fn rfc_7857_section_2_closing_timeout() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);

    gateway.send(flow, Signal::Fin, 100);
    assert_eq!(gateway.peek(external, 7_000), Some(flow.source), "half closed is not closed");
    gateway.back(flow, external, Signal::Fin, 200);
    gateway.send(flow, Signal::Data, 300);

    assert_eq!(gateway.peek(external, 440), Some(flow.source));
    assert_eq!(gateway.peek(external, 441), None, "the last ACK does not refresh");
}

#[test]
fn rfc_7857_section_2_2_reset_timeout() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);

    assert_eq!(gateway.back(flow, external, Signal::Reset, 100), Some(flow.source));

    assert_eq!(gateway.peek(external, 340), Some(flow.source));
    assert_eq!(gateway.peek(external, 341), None);
}

#[test]
fn rfc_7857_section_2_data_revokes_a_reset() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);

    gateway.back(flow, external, Signal::Reset, 100);
    gateway.send(flow, Signal::Data, 101);

    assert_eq!(gateway.peek(external, 7_541), Some(flow.source));
}

#[test]
fn rfc_7857_section_5_mappings_per_protocol() {
    let gateway = Gateway::new();
    let node = |flow| (gateway.out(flow, 0).port, flow.source.port);

    for flow in [
        udp(NODE, 40_000, REMOTE, 1000),
        tcp("192.168.1.8", 40_000, REMOTE, 1000),
        Flow { protocol: Protocol::UdpLite, ..udp("192.168.1.9", 40_000, REMOTE, 1000) },
        echo("192.168.1.10", 40_000),
    ] {
        let (external, internal) = node(flow);
        assert_eq!(external, internal, "{:?}: free within the protocol", flow.protocol);
    }
}

#[test]
fn rfc_7857_section_7_1_outbound_reset() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.send(flow, Signal::Syn, 0);

    gateway.send(flow, Signal::Reset, 200);

    assert_eq!(gateway.peek(external, 241), None);
}
