mod inbound;
mod masquerade;
mod packet_path;

use std::sync::Arc;
use std::time::Instant;

use remap::{Cluster, HostMap, Prefix, Rule, Table};

use super::*;
use crate::flows::FlowAccess;
use crate::{Engine, PeerConfig, Settings};
use strait_wg::PrivateKey;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;

const MTU: u16 = 1420;

const TCP: Content = Content::Tcp { source_port: 40_000, destination_port: 443 };
const UDP: Content = Content::Udp { source_port: 40_000, destination_port: 53 };
const ECHO: Content = Content::Echo { identifier: 7 };
const ESP: Content = Content::Other { protocol: 50 };
const AH: Content = Content::Other { protocol: 51 };

#[test]
fn remapped_destination_is_sent_by_its_rule() {
    let explanation = World::new().ask(&outbound("10.1.0.9", "10.71.2.7", TCP));

    let after = explanation.after.unwrap();
    assert_eq!(explanation.outcome, Outcome::Sent);
    assert_eq!(explanation.peer.unwrap().name, "milan");
    assert_eq!(explanation.routing, Some(Routing::Rule(milan_rule())));
    assert_eq!(after.packet, summary("10.1.0.9", "10.244.2.7", TCP));
    assert_eq!((after.source, after.destination), (Treatment::Unchanged, Treatment::Rule));
    assert_eq!(
        (explanation.mtu.map(|mtu| mtu.bytes), after.mss_bytes),
        (Some(MTU), Some(MTU - 40))
    );
}

#[test]
fn every_content_is_sent() {
    for content in [TCP, UDP, ECHO, ESP, Content::UdpLite { source_port: 1, destination_port: 2 }] {
        for (source, destination, real) in [
            ("10.1.0.9", "10.71.2.7", "10.244.2.7"),
            ("fd00:1::9", "fd00:10:73::7", "fd00:10:244::7"),
        ] {
            let explanation = World::new().ask(&outbound(source, destination, content));

            let after = explanation.after.unwrap();
            assert_eq!(explanation.outcome, Outcome::Sent, "{content:?}");
            assert_eq!(explanation.before, summary(source, destination, content));
            assert_eq!(after.packet, summary(source, real, content));
        }
    }
}

#[test]
fn plain_destination_is_sent_by_allowed_ips() {
    let explanation = World::new().ask(&outbound("10.1.0.9", "198.18.5.5", UDP));

    let after = explanation.after.unwrap();
    assert_eq!(explanation.outcome, Outcome::Sent);
    assert_eq!(explanation.peer.unwrap().name, "turin");
    assert_eq!(explanation.routing, Some(Routing::AllowedIps(prefix("198.18.0.0/15"))));
    assert_eq!(after.packet, explanation.before);
    assert_eq!(after.mss_bytes, None, "only TCP has an MSS");
}

#[test]
fn unknown_destination_is_named_with_the_remedy() {
    let (reason, remedy) = dropped(&World::new().ask(&outbound("10.1.0.9", "10.99.0.1", TCP)));

    assert_eq!(reason, DropReason::NoRoute);
    assert_eq!(
        remedy,
        "no remap covers 10.99.0.1 and it is in no peer's allowed_ips: add it to the peer that has it"
    );
}

#[test]
fn real_address_suggests_its_remapped_address() {
    let (reason, remedy) = dropped(&World::new().ask(&outbound("10.1.0.9", "10.244.2.7", TCP)));

    assert_eq!(reason, DropReason::NoRoute);
    assert_eq!(
        remedy,
        "10.244.2.7 is the real address at milan: send to 10.71.2.7 (10.244.0.0/16 as 10.71.0.0/16)"
    );
}

#[test]
fn untranslatable_address_is_named_with_its_rule() {
    let question = outbound("fd00:1::9", "fd00:10:71:ffff::1", TCP);

    let explanation = World::new().ask(&question);

    let (reason, remedy) = dropped(&explanation);
    assert_eq!(reason, DropReason::Untranslatable);
    assert!(remedy.starts_with("fd00:10:71:ffff::1 has no counterpart in "), "{remedy}");
    assert!(remedy.contains("(checksum-neutral)"), "{remedy}");
    assert_eq!(explanation.peer.unwrap().name, "milan");
}

#[test]
fn routing_loop_suggests_another_route() {
    let world = World::new();
    world.engine.control.set_port(51840);
    let asked = |destination_port| {
        let content = Content::Udp { source_port: 51840, destination_port };
        world.ask(&outbound("10.1.0.9", "198.51.100.3", content))
    };

    let (reason, remedy) = dropped(&asked(51840));

    assert_eq!(reason, DropReason::RoutingLoop);
    assert_eq!(
        remedy,
        "this is a datagram of the tunnel, which cannot carry itself: give 198.51.100.3 a route of \
         its own that does not lead to the device"
    );
    assert_eq!(dropped(&asked(53)).0, DropReason::NoRoute);
}

#[test]
fn authentication_header_forbids_remapping() {
    let changed = World::new().ask(&outbound("10.1.0.9", "10.71.2.7", AH));
    let kept = World::new().ask(&outbound("10.1.0.9", "198.18.5.5", AH));

    assert_eq!(dropped(&changed).0, DropReason::AddressAuthenticated);
    assert_eq!(kept.outcome, Outcome::Sent);
}

#[test]
fn the_path_to_the_peer_limits_the_size() {
    let world = World::new();
    let sized =
        |source, destination| Question { size: Some(MTU), ..outbound(source, destination, UDP) };
    let ipv4 = sized("10.1.0.9", "10.71.2.7");
    assert_eq!(world.ask(&ipv4).outcome, Outcome::Sent);

    let path = PathMtu { bytes: 1216, source: PathMtuSource::Probe };
    let peer = world.ask(&ipv4).peer.unwrap();
    world.engine.control.current().by_key(peer.public_key).unwrap().learn_path_mtu(path);
    let narrow = world.ask(&ipv4);
    assert_eq!((narrow.mtu, narrow.outcome), (Some(path), Outcome::TooBig));
    // Every link carries an IPv6 packet of 1280 bytes (RFC 8200 section 5), whole or in fragments of the tunnel.
    let ipv6 = world.ask(&sized("fd00:1::9", "fd00:10:71::7"));
    assert_eq!(ipv6.mtu, Some(PathMtu { bytes: 1280, ..path }));
}

#[test]
fn only_a_running_gateway_needs_an_endpoint() {
    let world = World::new();
    let question = outbound("10.1.0.9", "192.0.2.7", TCP);

    let running = world.ask(&question);
    let planned = world.ask_in(Situation { mtu_bytes: MTU, is_running: false }, &question).unwrap();

    assert_eq!(dropped(&running).0, DropReason::NoEndpoint);
    assert!(dropped(&running).1.starts_with("oslo has no known endpoint"));
    assert_eq!(planned.outcome, Outcome::Sent);
    assert_eq!(planned.peer.unwrap().has_session, None);
}

#[test]
fn host_map_replaces_the_source() {
    let explanation = World::new().ask(&outbound("172.16.0.9", "10.71.2.7", UDP));

    let after = explanation.after.unwrap();
    assert_eq!(after.packet, summary("10.70.0.9", "10.244.2.7", UDP));
    assert_eq!(after.source, Treatment::HostMap);
}

#[test]
fn packet_to_own_external_address_is_returned() {
    let explanation = World::new().ask(&outbound("172.16.0.10", "10.70.0.9", UDP));

    let after = explanation.after.unwrap();
    assert_eq!(explanation.outcome, Outcome::Returned);
    assert_eq!(explanation.peer, None);
    assert_eq!(after.packet, summary("10.70.0.10", "172.16.0.9", UDP));
    assert_eq!((after.source, after.destination), (Treatment::HostMap, Treatment::HostMap));
}

#[test]
fn hairpin_needs_an_external_source() {
    let (reason, remedy) = dropped(&World::new().ask(&outbound("10.1.0.7", "10.70.0.9", UDP)));

    assert_eq!(reason, DropReason::NoRoute);
    assert!(remedy.starts_with("10.70.0.9 is an external address of this cluster"), "{remedy}");
}

#[test]
fn size_above_the_mtu_is_too_big() {
    let sized = |size| Question { size: Some(size), ..outbound("10.1.0.9", "10.71.2.7", UDP) };
    let world = World::new();

    assert_eq!(world.ask(&sized(MTU)).outcome, Outcome::Sent);
    assert_eq!(world.ask(&sized(MTU + 1)).outcome, Outcome::TooBig);
    assert_eq!(sized(65_535).packet().unwrap().len(), 65_535);
}

#[test]
fn question_errors_name_the_cause() {
    let world = World::new();
    let error = |question| world.ask_in(RUNNING, &question).unwrap_err().to_string();

    for (question, expected) in [
        (outbound("10.1.0.9", "fd00::1", TCP), "not of the same IP version"),
        (
            Question { size: Some(43), ..outbound("10.1.0.9", "10.71.2.7", TCP) },
            "ask for 44 or more",
        ),
        (
            outbound("fd00:1::9", "fd00:10:73::7", Content::Other { protocol: 44 }),
            "IPv6 extension header",
        ),
        (inbound("10.244.2.7", "10.1.0.9", TCP, Some("naples")), "only milan, oslo, turin"),
        (inbound("10.244.2.7", "10.1.0.9", TCP, None), "milan, genoa: choose one with --peer"),
    ] {
        let text = error(question);
        assert!(text.contains(expected), "{text}");
    }
}

const RUNNING: Situation = Situation { mtu_bytes: MTU, is_running: true };

/// An engine and its clock.
struct World {
    engine: Engine,
    start: Instant,
}

impl World {
    /// Pods and host maps, without a shared address.
    fn new() -> Self {
        Self::with(Vec::new())
    }

    fn masquerading() -> Self {
        Self::with(vec![ip("10.70.0.1")])
    }

    fn with(masquerade: Vec<IpAddr>) -> Self {
        let start = now();
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 7, index_seed: 7, start };
        let engine = Engine::new(identity, settings);
        let host_map = |internal, external| HostMap::new(ip(internal), ip(external)).unwrap();
        let cluster = Cluster {
            prefixes: vec![prefix("10.1.0.0/16"), prefix("10.70.0.0/24"), prefix("fd00:1::/48")],
            host_maps: vec![
                host_map("172.16.0.9", "10.70.0.9"),
                host_map("172.16.0.10", "10.70.0.10"),
                host_map("10.1.0.5", "10.70.0.5"),
            ],
            masquerade,
            sharing: Vec::new(),
        };
        let (table, conflicts) = Table::build(3, &cluster, rules());
        assert_eq!(conflicts, []);
        let mut engine = engine.unwrap();
        engine.control.apply(peers(), table);

        Self { engine, start }
    }

    fn ask(&self, question: &Question) -> Explanation {
        self.ask_in(RUNNING, question).unwrap()
    }

    fn ask_in(
        &self,
        situation: Situation,
        question: &Question,
    ) -> Result<Explanation, QuestionError> {
        let context = Context {
            forwarding: &self.engine.control.current(),
            flows: &self.engine.flows,
            flow_access: FlowAccess::ReadOnly,
            now: self.engine.flows.tick(self.start),
        };

        explain(&context, situation, question)
    }
}

/// Milan and Genoa are realms of their own, with the same pod CIDR; Oslo and Turin share our realm.
fn peers() -> Vec<PeerConfig> {
    let milan = ["10.244.0.0/16", "fd00:10:244::/48", "fd00:10:245::/48"];
    let with_endpoint = |name, allowed| PeerConfig {
        endpoints: vec!["198.51.100.3:51840".parse().unwrap()],
        ..peer(name, allowed)
    };

    vec![
        with_endpoint("milan", &milan),
        peer("oslo", &["192.0.2.0/24"]),
        with_endpoint("turin", &["198.18.0.0/15"]),
        with_endpoint("genoa", &["10.244.0.0/16"]),
    ]
}

fn peer(name: &str, allowed_ips: &[&str]) -> PeerConfig {
    let keys = PeerKeys { public_key: PrivateKey::generate().public_key(), preshared_key: None };

    PeerConfig {
        name: name.to_owned(),
        keys,
        endpoints: Vec::new(),
        allowed_ips: allowed_ips.iter().map(|text| prefix(text)).collect(),
        clamp_mtu: Some(MTU),
        persistent_keepalive: None,
    }
}

fn rules() -> Vec<(PeerId, Rule)> {
    let neutral = (prefix("fd00:10:245::/48"), prefix("fd00:10:71::/48"));
    let plain = |remote, local| Rule::new(prefix(remote), prefix(local)).unwrap();

    vec![
        (PeerId(0), milan_rule()),
        (PeerId(0), Rule::checksum_neutral(neutral.0, neutral.1).unwrap()),
        (PeerId(0), plain("fd00:10:244::/48", "fd00:10:73::/48")),
        (PeerId(3), plain("10.244.0.0/16", "10.72.0.0/16")),
    ]
}

fn milan_rule() -> Rule {
    Rule::new(prefix("10.244.0.0/16"), prefix("10.71.0.0/16")).unwrap()
}

fn outbound(source: &str, destination: &str, content: Content) -> Question {
    Question {
        direction: Direction::Outbound,
        source: ip(source),
        destination: ip(destination),
        content,
        size: None,
        peer: None,
    }
}

fn inbound(source: &str, destination: &str, content: Content, peer: Option<&str>) -> Question {
    Question {
        direction: Direction::Inbound,
        peer: peer.map(str::to_owned),
        ..outbound(source, destination, content)
    }
}

fn summary(source: &str, destination: &str, content: Content) -> Summary {
    Summary { source: ip(source), destination: ip(destination), content }
}

#[track_caller]
fn dropped(explanation: &Explanation) -> (DropReason, String) {
    let Outcome::Dropped { reason, remedy, .. } = &explanation.outcome else {
        panic!("the outcome is {:?}", explanation.outcome);
    };

    (*reason, remedy.clone())
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
fn now() -> Instant {
    Instant::now()
}
