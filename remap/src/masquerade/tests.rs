//! The requirements of the RFCs, one by one, and the choices that they leave open.

mod accounts;
mod pins;
mod room;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const REALM: u32 = 1;
const NODE: &str = "192.168.1.7";
const REMOTE: &str = "10.244.2.7";

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

#[test]
fn closed_mapping_is_reused_by_new_connections() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);
    gateway.send(flow, Signal::Fin, 1);
    gateway.back(flow, external, Signal::Fin, 1);
    assert_eq!(gateway.state(1), State::Closing);

    for remote in [flow, tcp(NODE, 40_000, "10.244.9.9", 443)] {
        assert_eq!(gateway.send(remote, Signal::Syn, 2), external);
        assert_eq!(gateway.state(2), State::Opening);
        gateway.back(remote, external, Signal::Syn, 2);
        assert_eq!(gateway.state(2), State::Established, "the new connection is tracked");
        gateway.back(remote, external, Signal::Reset, 2);
    }
}

#[test]
fn shared_mapping_survives_fin_and_rst() {
    let gateway = Gateway::new();
    let first = tcp(NODE, 40_000, REMOTE, 443);
    let second = tcp(NODE, 40_000, "10.244.9.9", 443);
    let external = gateway.established(first);

    gateway.send(second, Signal::Syn, 0);
    gateway.back(second, external, Signal::Reset, 1);
    gateway.send(first, Signal::Fin, 1);
    gateway.back(first, external, Signal::Fin, 1);

    assert_eq!(gateway.state(1), State::Shared);
    assert_eq!(gateway.peek(external, 7_441), Some(first.source));
}

#[test]
fn unknown_remotes_change_no_state() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let stranger = tcp(NODE, 40_000, "10.244.9.9", 443);
    let external = gateway.established(flow);

    for signal in [Signal::Reset, Signal::Fin, Signal::Syn, Signal::Data] {
        gateway.back(stranger, external, signal, 100);
    }

    assert_eq!(gateway.state(100), State::Established);
    assert_eq!(gateway.peek(external, 7_441), None, "not even the timeout");
}

#[test]
fn connection_survives_a_gateway_restart() {
    let flow = tcp(NODE, 40_001, REMOTE, 443);
    let before = Gateway { pool: pool(1..=8), ..Gateway::new() };
    let external = before.established(flow);

    let after = Gateway { pool: pool(1..=8), ..Gateway::with(Limits::DEFAULT, 99) };
    let again = after.send(flow, Signal::Data, 0);
    after.back(flow, again, Signal::Data, 0);

    assert_eq!(again, external);
    assert_eq!(after.state(0), State::Established);
}

#[test]
fn two_nodes_may_use_one_port() {
    let gateway = Gateway::new();
    let (a, b) = (tcp(NODE, 40_000, REMOTE, 443), tcp("192.168.1.8", 40_000, REMOTE, 443));

    let (external_a, external_b) = (gateway.established(a), gateway.established(b));

    assert_eq!(gateway.back(a, external_a, Signal::Data, 0), Some(a.source));
    assert_eq!(gateway.back(b, external_b, Signal::Data, 0), Some(b.source));
}

#[test]
fn mapping_ends_with_its_pool_address() {
    let gateway = Gateway::new();
    let flow = tcp(NODE, 40_000, REMOTE, 443);
    let external = gateway.established(flow);

    let gateway = Gateway { pool: Pool::new([external.address, ip("10.70.0.5")]), ..gateway };
    assert_eq!(
        gateway.send(flow, Signal::Data, 1),
        external,
        "another address in the pool has no effect"
    );

    let gateway = Gateway { pool: pool(5..=5), ..gateway };
    let replaced = gateway.send(flow, Signal::Data, 2);
    assert_eq!(replaced, endpoint("10.70.0.5", 40_000));
    assert_eq!(gateway.peek(external, 2), None, "the old mapping is gone");
    assert_eq!(gateway.back(flow, replaced, Signal::Data, 2), Some(flow.source));
    assert_eq!(gateway.masquerade.statistics().replaced, 1);

    let gateway = Gateway { pool: Pool::default(), ..gateway };
    assert_eq!(gateway.try_send(flow, Signal::Data, 3), Err(Refused::NoAddress));
    assert_eq!(gateway.masquerade.statistics().mappings, 0);
}

#[test]
fn echo_identifiers_form_one_range() {
    let limits = Limits { max_per_source: 1 << 16, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    for identifier in 0..=u16::MAX {
        gateway.out(echo(NODE, identifier), 0);
    }

    gateway.out(echo("192.168.1.8", 7), 1);

    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.mappings, statistics.evicted), (1 << 16, 1));
}

#[test]
fn timeouts_remove_every_record() {
    let gateway = Gateway::new();
    for n in 0..1_000 {
        gateway.out(udp(&format!("192.168.{}.1", n % 200), 2_000 + n, REMOTE, 1), 0);
        gateway.out(tcp(&format!("192.168.{}.1", n % 200), 2_000 + n, REMOTE, 1), 0);
    }

    for _ in 0..2 {
        gateway.masquerade.handle_timeout(Tick::from_secs(301));
    }

    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.mappings, statistics.expired), (0, 2_000));
    let records = (0..gateway.masquerade.mappings.slab.used())
        .filter_map(|number| gateway.masquerade.mappings.slab.get(number)?.read())
        .count();
    assert_eq!(records, 0, "no source and no port pool is left either");
}

#[test]
fn purging_a_realm_keeps_the_others() {
    let gateway = Gateway::new();
    let flow = udp(NODE, 40_000, REMOTE, 1000);
    let now = Tick::default();
    for realm in [1, 2] {
        gateway.masquerade.outbound(realm, &flow, Signal::Data, &gateway.pool, now).unwrap();
        gateway.masquerade.pin(realm, &inverse(flow), ip("10.70.0.9"), Signal::Data, now).unwrap();
    }

    gateway.masquerade.purge_realm(1);

    let realms: Vec<_> = gateway.masquerade.flows(now).map(|mapping| mapping.realm).collect();
    assert_eq!(realms, [2]);
    assert_eq!(gateway.masquerade.peek_pinned(1, &flow, now), None);
    assert_eq!(gateway.masquerade.peek_pinned(2, &flow, now), Some(ip("10.70.0.9")));
}

#[test]
fn ipv6_gets_an_ipv6_address() {
    let external: IpAddr = ip("fd70::1");
    let gateway = Gateway { pool: Pool::new([external, ip("10.70.0.1")]), ..Gateway::new() };
    let flow = tcp("fd00::7", 40_000, "fd01::7", 443);

    let mapped = gateway.established(flow);

    assert_eq!(mapped, Endpoint::new(external, 40_000));
    assert_eq!(gateway.back(flow, mapped, Signal::Data, 0), Some(flow.source));
    assert_eq!(gateway.out(tcp(NODE, 40_000, REMOTE, 443), 0), endpoint("10.70.0.1", 40_000));
}

#[test]
fn ip_versions_are_never_confused() {
    let gateway = Gateway::new();
    let flow = udp("0.0.0.7", 40_000, REMOTE, 1000);
    let external = gateway.out(flow, 0);
    let now = Tick::default();
    let peek = |address| {
        let internal = Endpoint::new(ip(address), 40_000);
        gateway.masquerade.peek_outbound(REALM, Protocol::Udp, internal, now)
    };

    assert_eq!(peek("0.0.0.7"), Some(external));
    assert_eq!(peek("::7"), None);
    assert_eq!(peek("::ffff:0.0.0.7"), None);
}

#[test]
fn later_fragments_follow_the_first() {
    let gateway = Gateway::new();
    let datagram = Datagram {
        realm: REALM,
        source: ip(REMOTE),
        destination: ip("10.70.0.1"),
        identification: 77,
        protocol: 17,
    };
    let later = |datagram: &Datagram, secs| {
        let now = Tick::from_secs(secs);
        gateway.masquerade.later_fragment(Direction::Inbound, datagram, now)
    };
    assert_eq!(later(&datagram, 0), Err(Refused::Fragment), "the first was not seen");

    let now = Tick::default();
    gateway.masquerade.remember_fragment(Direction::Inbound, &datagram, ip(NODE), now);

    assert_eq!(later(&datagram, 30), Ok(ip(NODE)));
    assert_eq!(later(&datagram, 31), Err(Refused::Fragment));
    for other in [
        Datagram { realm: 2, ..datagram },
        Datagram { identification: 78, ..datagram },
        Datagram { protocol: 6, ..datagram },
        Datagram { source: ip("10.244.9.9"), ..datagram },
    ] {
        assert_eq!(later(&other, 0), Err(Refused::Fragment));
    }
    let outbound = gateway.masquerade.later_fragment(Direction::Outbound, &datagram, now);
    assert_eq!(outbound, Err(Refused::Fragment), "directions are separate");
}

#[test]
fn fragment_flood_evicts_the_oldest() {
    let limits = Limits { max_fragments: 8, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    let datagram = |identification| Datagram {
        realm: REALM,
        source: ip(REMOTE),
        destination: ip("10.70.0.1"),
        identification,
        protocol: 17,
    };
    let remember = |n: u32| {
        let now = Tick::from_secs(n.into());
        gateway.masquerade.remember_fragment(Direction::Inbound, &datagram(n), ip(NODE), now);
    };
    remember(0);
    let memory = gateway.masquerade.memory_bytes();

    (1..12).for_each(remember);

    let known: Vec<_> = (0..12)
        .filter(|n| {
            let now = Tick::from_secs(12);
            gateway.masquerade.later_fragment(Direction::Inbound, &datagram(*n), now).is_ok()
        })
        .collect();
    assert_eq!(known, (4..12).collect::<Vec<_>>());
    assert_eq!(gateway.masquerade.memory_bytes(), memory);
}

#[test]
fn default_limits_use_the_documented_memory() {
    let gateway = Gateway::new();
    let idle = gateway.masquerade.memory_bytes();
    gateway.out(udp(NODE, 40_000, REMOTE, 1000), 0);

    assert!(idle < 16 << 10, "{idle}");
    assert_eq!(gateway.masquerade.memory_bytes() >> 20, 6);
    assert_eq!(gateway.masquerade.max_memory_bytes() >> 20, 25);
}

struct Gateway {
    masquerade: Masquerade,
    pool: Pool,
}

impl Gateway {
    fn new() -> Self {
        Self::with(Limits::DEFAULT, 1)
    }

    fn with(limits: Limits, seed: u64) -> Self {
        let masquerade = Masquerade::new(limits, Timeouts::DEFAULT, seed).unwrap();

        Self { masquerade, pool: pool(1..=1) }
    }

    fn out(&self, flow: Flow, secs: u64) -> Endpoint {
        self.send(flow, Signal::Data, secs)
    }

    fn send(&self, flow: Flow, signal: Signal, secs: u64) -> Endpoint {
        self.try_send(flow, signal, secs).unwrap()
    }

    fn try_send(&self, flow: Flow, signal: Signal, secs: u64) -> Result<Endpoint, Refused> {
        self.masquerade.outbound(REALM, &flow, signal, &self.pool, Tick::from_secs(secs))
    }

    /// An answer to `flow`, which left with `external`.
    fn back(&self, flow: Flow, external: Endpoint, signal: Signal, secs: u64) -> Option<Endpoint> {
        let answer = Flow { source: flow.destination, destination: external, ..flow };

        self.masquerade.inbound(REALM, &answer, signal, Tick::from_secs(secs))
    }

    fn established(&self, flow: Flow) -> Endpoint {
        let external = self.send(flow, Signal::Syn, 0);
        self.back(flow, external, Signal::Syn, 0);

        external
    }

    /// Of TCP, else of UDP.
    fn peek(&self, external: Endpoint, secs: u64) -> Option<Endpoint> {
        let peek = |protocol| {
            self.masquerade.peek_inbound(REALM, protocol, external, Tick::from_secs(secs))
        };

        peek(Protocol::Tcp).or_else(|| peek(Protocol::Udp))
    }

    /// Of the only mapping.
    fn state(&self, secs: u64) -> State {
        let mut flows = self.masquerade.flows(Tick::from_secs(secs));

        flows.next().unwrap().state
    }
}

/// From port 123 of node `n`.
fn privileged(n: u16) -> Flow {
    let node = Ipv4Addr::from_bits(0xc0a9_0000 + u32::from(n));

    udp(&node.to_string(), 123, REMOTE, 1)
}

fn inverse(flow: Flow) -> Flow {
    Flow { source: flow.destination, destination: flow.source, ..flow }
}

fn tcp(source: &str, port: u16, destination: &str, destination_port: u16) -> Flow {
    Flow { protocol: Protocol::Tcp, ..udp(source, port, destination, destination_port) }
}

fn udp(source: &str, port: u16, destination: &str, destination_port: u16) -> Flow {
    Flow {
        protocol: Protocol::Udp,
        source: endpoint(source, port),
        destination: endpoint(destination, destination_port),
    }
}

fn echo(source: &str, identifier: u16) -> Flow {
    Flow { protocol: Protocol::Echo, ..udp(source, identifier, REMOTE, 0) }
}

fn endpoint(address: &str, port: u16) -> Endpoint {
    Endpoint::new(ip(address), port)
}

fn pool(hosts: std::ops::RangeInclusive<u8>) -> Pool {
    hosts.map(|host| IpAddr::from([10, 70, 0, host])).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
