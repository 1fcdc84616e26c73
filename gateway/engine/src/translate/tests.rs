//! Compares the translated packet with a packet that is built with the expected addresses: every protocol, fragments,
//! options and extension headers, both IP versions.

mod answers;
mod hairpin;
mod masquerade;
mod policy;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use remap::{Cluster, HostMap, PeerId, Rule, Table};

use super::*;
use crate::{Control, Engine, PeerConfig, Settings};
use strait_packet::fixtures::{Extension, Packet, TCP, UDP, any_packet, tcp, udp};
use strait_wg::PresharedKey;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PathMtu, PathMtuSource, PrivateKey, PublicKey};

const AUTHENTICATION_HEADER: u8 = 51;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn outbound_equals_packet_with_remote_addresses(
        packet in any_packet(),
        from in any_source(),
        host: u8,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(from, is_ipv6);
        let before = Packet { source: internal, destination: local(is_ipv6, host), ..packet };
        let after = Packet {
            source: external,
            destination: remote(is_ipv6, host),
            ..before.clone()
        };

        let translated = world.outbound(&before);

        if before.protocol == AUTHENTICATION_HEADER && !before.is_later_fragment() {
            prop_assert_eq!(translated, Err(DropReason::AddressAuthenticated));
        } else {
            prop_assert_eq!(translated, Ok(after.build()));
        }
    }

    #[test]
    fn inbound_equals_packet_with_local_addresses(
        packet in any_packet(),
        to in any_source(),
        host: u8,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(to, is_ipv6);
        let before = Packet { source: remote(is_ipv6, host), destination: external, ..packet };
        let after = Packet {
            source: local(is_ipv6, host),
            destination: internal,
            ..before.clone()
        };

        let translated = world.inbound(&before);

        if before.protocol == AUTHENTICATION_HEADER && !before.is_later_fragment() {
            prop_assert_eq!(translated, Err(DropReason::AddressAuthenticated));
        } else {
            prop_assert_eq!(translated, Ok(after.build()));
        }
    }

    /// An ICMP error of one realm about a packet from the other realm, in both directions.
    #[test]
    fn icmp_error_quotes_the_packet_as_sent(
        packet in any_packet(),
        from in any_source(),
        host: u8,
        is_outbound: bool,
    ) {
        let world = World::new();
        let is_ipv6 = packet.source.is_ipv6();
        let (internal, external) = world.source(from, is_ipv6);
        let here = [local(is_ipv6, host), internal];
        let wire = [remote(is_ipv6, host), external];
        let error = |[theirs, ours]: [IpAddr; 2]| {
            let (source, destination) = if is_outbound { (ours, theirs) } else { (theirs, ours) };
            let quoted = Packet { source: destination, destination: source, ..packet.clone() };
            let (protocol, kind) = if is_ipv6 { (58, 1) } else { (1, 3) };
            let mut message = vec![kind, 1, 0, 0, 0, 0, 0, 0];
            message.extend(quoted.build());
            Packet::new(source, destination, protocol, message)
        };

        let (translated, expected) = if is_outbound {
            (world.outbound(&error(here)), error(wire))
        } else {
            (world.inbound(&error(wire)), error(here))
        };

        let translated = translated.unwrap();
        let expected = expected.build();
        let at = if is_ipv6 { 42 } else { 22 };
        // The outer checksum may be either form of zero.
        prop_assert_eq!(&translated[..at], &expected[..at]);
        prop_assert_eq!(&translated[at + 2..], &expected[at + 2..]);
    }
}

#[test]
fn source_routed_packets_are_dropped() {
    let world = World::new();
    let routing = Extension::Routing { segments_left: 0, last: [9_u16; 8].into() };
    let mut out = Packet::new(pod(true), local(true, 7), UDP, udp([1, 2], b"x"));
    out.extensions = vec![routing];
    let mut back = out.clone();
    (back.source, back.destination) = (remote(true, 7), pod(true));
    let type_0 = |packet: &Packet| {
        let mut bytes = packet.build();
        bytes[42] = 0;
        bytes
    };

    assert_eq!(world.outbound_bytes(type_0(&out)), Err(DropReason::SourceRouted));
    assert_eq!(world.inbound_bytes(type_0(&back)), Err(DropReason::SourceRouted));
    assert!(world.outbound(&out).is_ok(), "another type passes");
}

#[test]
fn authentication_header_passes_without_remapping() {
    let world = World::new();
    let direct = ip("10.99.1.1");
    let out = Packet::new(pod(false), direct, AUTHENTICATION_HEADER, vec![7; 24]);
    let back = Packet::new(direct, pod(false), AUTHENTICATION_HEADER, vec![7; 24]);

    assert_eq!(world.outbound(&out), Ok(out.build()));
    assert_eq!(world.inbound(&back), Ok(back.build()));
}

#[test]
fn mss_is_clamped_in_both_directions() {
    let world = World::new();
    world.peer().set_clamp_mtu(Some(1340));
    let syn = |source, destination, mss: u16| {
        let [high, low] = mss.to_be_bytes();
        Packet::new(source, destination, TCP, tcp([1, 2], 1, 2, &[2, 4, high, low], b""))
    };

    let out = world.outbound(&syn(pod(false), local(false, 7), 1460));
    let back = world.inbound(&syn(remote(true, 7), pod(true), 1440));
    world.peer().learn_path_mtu(PathMtu { bytes: 1300, source: PathMtuSource::Route });
    let learned = world.outbound(&syn(pod(false), local(false, 7), 1460));

    assert_eq!(out, Ok(syn(pod(false), remote(false, 7), 1340 - 40).build()));
    assert_eq!(back, Ok(syn(local(true, 7), pod(true), 1340 - 60).build()));
    assert_eq!(learned, Ok(syn(pod(false), remote(false, 7), 1300 - 40).build()));
}

#[test]
fn untranslatable_address_is_dropped() {
    let world = World::new();
    let out = Packet::new(pod(true), ip("fd71:0:1:ffff::1"), UDP, udp([1, 2], b"x"));

    assert_eq!(world.outbound(&out), Err(DropReason::Untranslatable));
}

/// One gateway with one peer.
struct World {
    control: Control,
    flows: Arc<Flows>,
    pool: Vec<IpAddr>,
    policy: Option<Arc<remap::policy::Policy>>,
    start: Instant,
}

/// The sender of a packet of ours.
#[derive(Clone, Copy, Debug)]
enum From {
    /// A pod, whose own address the remote knows.
    Pod,
    /// A host outside the pods, with an external address.
    Host,
}

impl World {
    /// Without a shared address: sources that the remote does not know are not translated.
    fn new() -> Self {
        Self::with_pool(&[])
    }

    /// Sources that the remote does not know are masqueraded.
    fn sharing() -> Self {
        Self::with_pool(&["10.70.0.1", "fd70::1"])
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
    fn with_pool(pool: &[&str]) -> Self {
        let start = Instant::now();
        let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));
        let settings = Settings { max_flows: 1024, seed: 1, index_seed: 1, start };
        let Engine { control, flows, .. } = Engine::new(identity, settings).unwrap();
        let pool = pool.iter().map(|address| ip(address)).collect();
        let mut world = Self { control, flows, pool, policy: None, start };
        world.reconfigure(None);

        world
    }

    fn reconfigure(&mut self, preshared_key: Option<PresharedKey>) {
        let map = |internal, external| HostMap::new(ip(internal), ip(external)).unwrap();
        let cluster = Cluster {
            prefixes: ["10.244.0.0/16", "fd24::/48", "10.70.0.0/16"].map(prefix).into(),
            host_maps: vec![
                map("192.0.2.9", "10.70.0.9"),
                map("192.0.2.8", "10.70.0.8"),
                map("10.244.1.9", "10.70.0.7"),
                map("2001:db8::9", "fd70::9"),
            ],
            masquerade: self.pool.clone(),
            sharing: Vec::new(),
        };
        let rules = [
            Rule::new(prefix("10.244.0.0/16"), prefix("10.71.0.0/16")),
            Rule::new(prefix("fd24::/48"), prefix("fd71::/48")),
            Rule::checksum_neutral(prefix("fd24:0:1::/48"), prefix("fd71:0:1::/48")),
        ];
        let (table, conflicts) =
            Table::build(1, &cluster, rules.map(|rule| (PeerId(0), rule.unwrap())));
        assert_eq!(conflicts, []);
        let peer = PeerConfig {
            name: "rome".into(),
            keys: PeerKeys { public_key: PublicKey::from_bytes([7; 32]), preshared_key },
            endpoints: Vec::new(),
            allowed_ips: ["10.244.0.0/16", "fd24::/47", "10.99.0.0/16"].map(prefix).into(),
            // No clamping: random bytes may be a SYN with an MSS.
            clamp_mtu: None,
            persistent_keepalive: None,
        };

        self.control.apply(vec![peer], table.with_policy(self.policy.clone()));
    }

    /// An address of ours, and the address as a remote knows it.
    fn source(&self, from: From, is_ipv6: bool) -> (IpAddr, IpAddr) {
        match (from, is_ipv6) {
            (From::Pod, _) => (pod(is_ipv6), pod(is_ipv6)),
            (From::Host, false) => (ip("192.0.2.9"), ip("10.70.0.9")),
            (From::Host, true) => (ip("2001:db8::9"), ip("fd70::9")),
        }
    }

    fn outbound(&self, packet: &Packet) -> Result<Vec<u8>, DropReason> {
        self.outbound_bytes(packet.build())
    }

    fn outbound_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, DropReason> {
        let forwarding = self.control.current();
        let mut header = Header::parse(&bytes).unwrap();
        let context = self.context(&forwarding);
        let before = bytes.clone();

        let outgoing = route(&context, &bytes, &header)?;
        let result = outbound(&context, &outgoing, &mut bytes, &mut header, Checksum::Complete);
        if result.is_err() && strait_packet::icmp::embedded(&before, &header).is_none() {
            assert_eq!(bytes, before, "an ICMP error quotes the packet as sent");
        }
        result?;
        assert_eq!(Header::parse(&bytes), Ok(header));
        Ok(bytes)
    }

    fn inbound(&self, packet: &Packet) -> Result<Vec<u8>, DropReason> {
        self.inbound_bytes(packet.build())
    }

    fn inbound_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, DropReason> {
        let forwarding = self.control.current();
        let mut header = Header::parse(&bytes).unwrap();
        let context = self.context(&forwarding);

        inbound(&context, PeerId(0), &self.peer(), &mut bytes, &mut header)?;
        assert_eq!(Header::parse(&bytes), Ok(header));
        Ok(bytes)
    }

    fn context<'a>(&'a self, forwarding: &'a Forwarding) -> Context<'a> {
        let now = self.flows.tick(self.start);

        Context { forwarding, flows: &self.flows, flow_access: FlowAccess::Update, now }
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.control.current().peers()[0])
    }
}

fn source_port(packet: &[u8]) -> u16 {
    let header = Header::parse(packet).unwrap();

    strait_packet::ports::Ports::read(packet, &header).unwrap().source
}

fn any_source() -> impl Strategy<Value = From> {
    prop_oneof![Just(From::Pod), Just(From::Host)]
}

fn pod(is_ipv6: bool) -> IpAddr {
    ip(if is_ipv6 { "fd24::5" } else { "10.244.1.5" })
}

fn local(is_ipv6: bool, host: u8) -> IpAddr {
    host_of(if is_ipv6 { "fd71::" } else { "10.71.0.0" }, host)
}

fn remote(is_ipv6: bool, host: u8) -> IpAddr {
    host_of(if is_ipv6 { "fd24::" } else { "10.244.0.0" }, host)
}

fn host_of(network: &str, host: u8) -> IpAddr {
    match ip(network) {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() | u32::from(host)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() | u128::from(host)).into()),
    }
}

fn prefix(text: &str) -> remap::Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
