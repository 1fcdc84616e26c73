//! Limits: of the table, of the ports of an address, of the share of a source.

use super::*;

#[test]
fn every_refusal_names_its_reason() {
    let limits = Limits { max_mappings: 2, max_per_source: 1, max_sources: 3, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    let refused = |flow| gateway.try_send(flow, Signal::Data, 0).unwrap_err();
    let sctp = Flow { protocol: Protocol::Raw(132), ..udp(NODE, 1, REMOTE, 1) };

    assert_eq!(refused(sctp), Refused::Protocol);
    assert_eq!(refused(udp("fd00::7", 1, "fd01::1", 1)), Refused::NoAddress);
    gateway.out(udp(NODE, 2_000, REMOTE, 1), 0);
    assert_eq!(refused(udp(NODE, 2_001, REMOTE, 1)), Refused::SourceShare);
    let external = gateway.out(udp("192.168.1.8", 2_001, REMOTE, 1), 0);
    for flow in [udp(NODE, 2_000, REMOTE, 1), udp("192.168.1.8", 2_001, REMOTE, 1)] {
        gateway.back(flow, Endpoint { port: flow.source.port, ..external }, Signal::Data, 0);
    }
    assert_eq!(refused(udp("192.168.1.9", 2_002, REMOTE, 1)), Refused::Sources);

    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.mappings, statistics.created), (2, 2));
    assert_eq!((statistics.refused_source_share, statistics.refused_sources), (1, 1));
}

#[test]
fn full_table_evicts_unanswered_then_idle() {
    let limits = Limits { max_mappings: 3, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    let flow = |n: u16| udp(&format!("192.168.1.{n}"), 40_000 + n, REMOTE, 1000);
    for n in 1..=3 {
        let external = gateway.out(flow(n), n.into());
        if n != 2 {
            gateway.back(flow(n), external, Signal::Data, n.into());
        }
    }
    let live = |now| -> BTreeSet<u16> {
        let flows = gateway.masquerade.flows(Tick::from_secs(now));
        flows.map(|mapping| mapping.internal.port - 40_000).collect()
    };

    let external = gateway.out(flow(4), 50);
    assert_eq!(live(50), [1, 3, 4].into(), "2 was never answered");
    gateway.back(flow(4), external, Signal::Data, 50);

    let external = gateway.out(flow(5), 50);
    assert_eq!(live(50), [3, 4, 5].into(), "1 was idle longest");
    gateway.back(flow(5), external, Signal::Data, 50);
    gateway.out(flow(3), 51);

    assert_eq!(gateway.try_send(flow(6), Signal::Data, 51), Err(Refused::Full));
    assert_eq!(live(51), [3, 4, 5].into());
    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.evicted, statistics.refused_full), (2, 1));
}

#[test]
fn source_limit_protects_other_sources() {
    let limits = Limits { max_mappings: 10, max_per_source: 8, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    gateway.out(udp("192.168.1.8", 1_500, REMOTE, 1), 0);

    for port in 2_000..3_000 {
        let _ = gateway.try_send(udp(NODE, port, REMOTE, 1), Signal::Data, 1);
    }

    assert_eq!(gateway.masquerade.flows(Tick::from_secs(1)).count(), 9);
    assert_eq!(gateway.masquerade.statistics().evicted, 0);
}

#[test]
fn expiry_frees_port_and_share() {
    let limits = Limits { max_per_source: 1, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    gateway.out(udp(NODE, 40_000, REMOTE, 1), 0);

    assert_eq!(gateway.out(udp("192.168.1.8", 40_000, REMOTE, 1), 301).port, 40_000);
    assert_eq!(gateway.out(udp(NODE, 50_000, REMOTE, 1), 301).port, 50_000);
    assert_eq!(gateway.masquerade.statistics().mappings, 2);
}

#[test]
fn other_parity_is_used_last() {
    let gateway = Gateway::new();

    let externals: BTreeSet<_> =
        (0..1023).map(|n| gateway.out(privileged(n), 0)).map(|external| external.port).collect();

    assert_eq!(externals, (1..1024).collect());
    assert!((0..512).all(|n| gateway.out(privileged(n), 0).port % 2 == 1), "its own parity first");
    assert_eq!(gateway.masquerade.statistics().evicted, 0);
}

#[test]
fn port_exhaustion_evicts_most_idle_unanswered() {
    let gateway = Gateway::new();
    for n in 0..1023 {
        let external = gateway.out(privileged(n), if n % 4 == 1 { 10 } else { 20 });
        if n % 4 == 0 {
            gateway.back(privileged(n), external, Signal::Data, 20);
        }
    }

    for n in 2_000..2_010 {
        assert!(gateway.out(privileged(n), 25).port < 1024);
    }

    let live: BTreeSet<_> =
        gateway.masquerade.flows(Tick::from_secs(25)).map(|mapping| mapping.internal).collect();
    let gone: Vec<_> = (0..1023).filter(|n| !live.contains(&privileged(*n).source)).collect();
    assert_eq!((live.len(), gone.len()), (1023, 10));
    assert!(gone.iter().all(|n| n % 4 == 1), "{gone:?}");
    assert_eq!(gateway.masquerade.statistics().evicted, 10);
}

#[test]
fn active_ports_are_not_evicted() {
    let gateway = Gateway::new();
    for n in 0..1023 {
        let external = gateway.out(privileged(n), 0);
        gateway.back(privileged(n), external, Signal::Data, 0);
    }
    let refused = |secs| gateway.try_send(privileged(2_000), Signal::Data, secs);

    assert_eq!(refused(29), Err(Refused::Ports));
    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.refused_ports, statistics.evicted), (1, 0));
    assert_eq!(statistics.mappings, 1023, "nothing is left of the attempt");
    gateway.masquerade.handle_timeout(Tick::from_secs(301));
    assert_eq!(refused(301).unwrap().port, 123);
}
