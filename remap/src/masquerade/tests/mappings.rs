//! The requirements of RFC 4787 on mappings.

use super::*;

#[test]
fn rfc_4787_req_1_endpoint_independent_mapping() {
    let gateway = Gateway::new();

    let first = gateway.out(udp(NODE, 40_000, REMOTE, 1000), 0);

    assert_eq!(gateway.out(udp(NODE, 40_000, REMOTE, 2000), 0), first);
    assert_eq!(gateway.out(udp(NODE, 40_000, "10.244.9.9", 1000), 0), first);
    assert_eq!(first, endpoint("10.70.0.1", 40_000));
}

#[test]
fn rfc_4787_req_2_address_pooling_is_paired() {
    let gateway = Gateway { pool: pool(1..=8), ..Gateway::new() };

    for node in (0..20).map(|n| format!("192.168.1.{n}")) {
        let addresses: BTreeSet<_> = (2_000..2_050)
            .map(|port| gateway.out(udp(&node, port, REMOTE, 1000), 0).address)
            .collect();
        assert_eq!(addresses.len(), 1, "{node}");
    }
}

#[test]
fn rfc_4787_req_2_next_address_without_ports() {
    let gateway = Gateway { pool: pool(1..=2), ..Gateway::new() };
    let paired = gateway.masquerade.paired(REALM, ip(NODE), &gateway.pool).unwrap();
    // All ports below 1024 of the paired address, taken by sources that are paired with it.
    let mut taken = BTreeSet::new();
    for node in (0..=u16::MAX).map(|n| Ipv4Addr::from_bits(0xc0a9_0000 + u32::from(n)).into()) {
        if gateway.masquerade.paired(REALM, node, &gateway.pool) == Some(paired) {
            taken.insert(gateway.out(udp(&node.to_string(), 500, REMOTE, 1000), 0));
        }
        if taken.len() == 1023 {
            break;
        }
    }
    assert!(taken.iter().all(|external| external.address == paired && external.port < 1024));

    let external = gateway.out(udp(NODE, 500, REMOTE, 1000), 0);

    assert_ne!(external.address, paired);
    assert_eq!(external.port, 500, "there it is free");
    let other = gateway.out(udp(NODE, 5_000, REMOTE, 1000), 0);
    assert_eq!(other.address, paired, "new ones come back");
    assert_eq!(gateway.masquerade.statistics().evicted, 0, "no eviction while a port is free");
}

/// Both are recommended, but the remote notices a second address.
#[test]
fn rfc_4787_req_2_comes_before_req_4() {
    let gateway = Gateway { pool: pool(1..=2), ..Gateway::new() };
    let paired = gateway.masquerade.paired(REALM, ip(NODE), &gateway.pool).unwrap();
    let same_address: Vec<_> = (0..=u16::MAX)
        .map(|n| Ipv4Addr::from_bits(0xc0a9_0000 + u32::from(n)))
        .filter(|n| gateway.masquerade.paired(REALM, (*n).into(), &gateway.pool) == Some(paired))
        .take(511)
        .collect();

    for node in same_address {
        assert_eq!(gateway.out(udp(&node.to_string(), 500, REMOTE, 1000), 0).port % 2, 0);
    }
    let external = gateway.out(udp(NODE, 500, REMOTE, 1000), 0);

    assert_eq!((external.address, external.port % 2), (paired, 1));
}

#[test]
fn rfc_4787_req_3_ports_are_unique() {
    let gateway = Gateway::new();

    let externals: BTreeSet<_> = (0..200)
        .map(|n| gateway.out(udp(&format!("192.168.1.{n}"), 40_000, REMOTE, 1000), 0))
        .collect();

    assert_eq!(externals.len(), 200);
}

#[test]
fn rfc_4787_req_3a_4_range_and_parity() {
    let gateway = Gateway::new();

    for port in [123, 500, 1023, 1024, 40_001, 65_535] {
        for node in (0..20).map(|n| format!("192.168.1.{n}")) {
            let external = gateway.out(udp(&node, port, REMOTE, 1000), 0);
            assert_eq!(external.port < 1024, port < 1024, "{port} became {external}");
            assert_eq!(external.port % 2, port % 2, "{port} became {external}");
        }
    }
}

#[test]
fn rfc_4787_req_5_udp_timeout() {
    let gateway = Gateway::new();
    let flow = udp(NODE, 40_000, REMOTE, 1000);
    let external = gateway.out(flow, 0);

    assert_eq!(gateway.peek(external, 300), Some(flow.source));
    assert_eq!(gateway.peek(external, 301), None);
}

#[test]
fn rfc_4787_req_5a_dns_timeout() {
    let gateway = Gateway::new();
    let question = udp(NODE, 40_000, REMOTE, 53);
    let external = gateway.out(question, 0);
    assert_eq!(gateway.peek(external, 30), Some(question.source));
    assert_eq!(gateway.peek(external, 31), None);

    let external = gateway.out(question, 100);
    gateway.out(udp(NODE, 40_000, REMOTE, 1000), 101);

    assert_eq!(gateway.peek(external, 401), Some(question.source), "it is not only a query");
}

#[test]
fn rfc_4787_req_6_outbound_refreshes() {
    let gateway = Gateway::new();
    let flow = udp(NODE, 40_000, REMOTE, 1000);
    let external = gateway.out(flow, 0);

    gateway.out(flow, 250);

    assert_eq!(gateway.peek(external, 550), Some(flow.source));
}

#[test]
fn rfc_4787_req_6a_inbound_refreshes() {
    let gateway = Gateway::new();
    let flow = udp(NODE, 40_000, REMOTE, 1000);
    let external = gateway.out(flow, 0);

    gateway.back(flow, external, Signal::Data, 250);

    assert_eq!(gateway.peek(external, 550), Some(flow.source));
}

#[test]
fn rfc_4787_req_8_endpoint_independent_filtering() {
    let gateway = Gateway::new();
    for flow in [udp(NODE, 40_000, REMOTE, 1000), tcp(NODE, 40_000, REMOTE, 443)] {
        let external = gateway.out(flow, 0);
        let stranger = Flow { destination: endpoint("10.244.99.99", 9), ..flow };

        assert_eq!(gateway.back(stranger, external, Signal::Syn, 0), Some(flow.source));
        let other = gateway.masquerade.peek_inbound(2, flow.protocol, external, Tick::default());
        assert_eq!(other, None, "not from another realm");
    }
}

#[test]
fn rfc_4787_req_9_hairpin_source_is_external() {
    let gateway = Gateway::new();
    let server = udp(NODE, 40_000, REMOTE, 1000);
    let external = gateway.out(server, 0);
    let hairpin = Flow { source: endpoint("192.168.1.8", 5_000), destination: external, ..server };

    let source = gateway.out(hairpin, 0);

    assert_eq!(source, endpoint("10.70.0.1", 5_000), "REQ-9a");
    assert_eq!(gateway.peek(external, 0), Some(server.source));
}
