//! The requirements of the RFCs, one by one, and the choices that they leave open.

mod accounts;
mod fragments;
mod handover;
mod mappings;
mod pins;
mod room;
mod states;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const REALM: u32 = 1;
const NODE: &str = "192.168.1.7";
const REMOTE: &str = "10.244.2.7";

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
