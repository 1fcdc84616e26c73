//! Translation of packets by a gateway with rules, host maps and masquerade.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use remap::{Cluster, HostMap, PeerId, Prefix, Rule, Table};
use strait_engine::flows::FlowAccess;
use strait_engine::translate::{self, Context};
use strait_engine::{Engine, PeerConfig, Settings};
use strait_packet::Header;
use strait_packet::icmp_error::{self, Cause, MAX_ERROR_BYTES};
use strait_packet::rewrite::Checksum;
use strait_wg::boringtun::BoringtunIdentity;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};

use crate::oracle::{Covered, Layout, checksums, octets};

const PEER: PeerId = PeerId(0);

/// Addresses of this cluster: a pod, a pod with an external address, a host with an external address, a
/// host without, and the external addresses, including the shared ones.
const LOCAL: [[&str; 2]; 8] = [
    ["10.244.1.5", "fd24::5"],
    ["10.244.1.9", "fd24::9"],
    ["192.0.2.9", "2001:db8::9"],
    ["172.18.0.3", "2001:db8::3"],
    ["10.70.0.7", "fd70::7"],
    ["10.70.0.9", "fd70::9"],
    ["10.70.0.1", "fd70::1"],
    ["10.70.0.2", "fd70::2"],
];

/// Addresses of the remote cluster: remapped, real, without a rule, with a checksum-neutral rule and an
/// address that it cannot translate, and one from which the peer may not send.
const REMOTE: [[&str; 2]; 8] = [
    ["10.71.2.7", "fd71::7"],
    ["10.244.2.7", "fd24::7"],
    ["10.99.0.1", "fd99::1"],
    ["10.71.0.0", "fd71:0:1:2::7"],
    ["10.244.0.0", "fd24:0:1:2::7"],
    ["10.71.255.255", "fd71:0:1:ffff::7"],
    ["10.244.255.255", "fd24:0:1:ffff::7"],
    ["203.0.113.1", "2001:db8:ffff::1"],
];

/// Sends packets in either direction, one after the other through one gateway. A translated packet
/// matches its parsed header, has the same length, and each checksum deviates as before.
///
/// Each packet is two bytes that choose direction and addresses, one with its length, and the packet.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn translate(mut bytes: &[u8]) {
    if bytes.len() < 23 {
        return;
    }
    static GATEWAY: OnceLock<Mutex<(Engine, Instant)>> = OnceLock::new();
    let gateway = GATEWAY.get_or_init(|| {
        let start = Instant::now();
        Mutex::new((gateway(start), start))
    });

    let (engine, start) = &mut *gateway.lock().unwrap_or_else(PoisonError::into_inner);
    // Removes the flows of the previous input together with the peer.
    engine.control.apply(Vec::new(), Table::default());
    configure(engine);
    while let Some((&[direction, ends, len], rest)) = bytes.split_first_chunk::<3>() {
        let (packet, others) = rest.split_at(usize::from(len).min(rest.len()));
        pass(engine, *start, direction, ends, packet.to_vec());
        bytes = others;
    }
}

fn pass(engine: &Engine, start: Instant, direction: u8, ends: u8, mut packet: Vec<u8>) {
    let Some(layout) = Layout::of(&packet) else {
        return;
    };
    let is_outbound = direction & 1 == 0;
    put_addresses(&mut packet, 0, &layout, is_outbound, ends);
    if let Some((at, quoted)) = layout.quoted(&packet) {
        put_addresses(&mut packet, at, &quoted, !is_outbound, ends.rotate_left(4) ^ direction);
    }
    let (before, len) = (residues(&packet), packet.len());
    let Ok(mut header) = Header::parse(&packet) else {
        return;
    };
    let forwarding = engine.control.current();
    let Some(peer) = forwarding.peers().first() else {
        return;
    };
    let context = Context {
        forwarding: &forwarding,
        flows: &engine.flows,
        flow_access: if direction & 2 == 0 { FlowAccess::Update } else { FlowAccess::ReadOnly },
        now: engine.flows.tick(start),
    };

    let is_sent = if is_outbound {
        outbound(&context, &mut packet, &mut header)
    } else {
        translate::inbound(&context, PEER, peer, &mut packet, &mut header).is_ok()
    };

    assert_eq!(packet.len(), len);
    if is_sent {
        assert_eq!(Header::parse(&packet), Ok(header));
        assert_eq!(residues(&packet), before);
    }
}

/// Translates an outbound packet. A dropped packet is unchanged, and may cause an ICMP error; an ICMP error
/// about that error is never sent.
fn outbound(context: &Context<'_>, packet: &mut [u8], header: &mut Header) -> bool {
    let before = packet.to_vec();
    let left = translate::route(context, packet, header).and_then(|outgoing| {
        translate::outbound(context, &outgoing, packet, header, Checksum::Complete)
    });
    let mut buffers = [[0; MAX_ERROR_BYTES]; 2];
    let [error, error_about_error] = &mut buffers;
    if left.is_err()
        && let Some(reply) = icmp_error::write(packet, Cause::Unreachable, error)
    {
        assert_eq!(packet, before);
        assert!(Header::parse(reply).is_ok());
        assert!(icmp_error::write(reply, Cause::Unreachable, error_about_error).is_none());
    }

    left.is_ok()
}

/// Writes a local and a remote address, in the order of the direction.
fn put_addresses(packet: &mut [u8], at: usize, layout: &Layout, is_outbound: bool, ends: u8) {
    let pick = |table: &[[&str; 2]; 8], choice: u8| -> Option<IpAddr> {
        let [v4, v6] = table.get(usize::from(choice & 7))?;
        (if layout.is_ipv6() { v6 } else { v4 }).parse().ok()
    };
    let (Some(ours), Some(theirs)) = (pick(&LOCAL, ends), pick(&REMOTE, ends >> 4)) else {
        return;
    };
    let pair = if is_outbound { [ours, theirs] } else { [theirs, ours] };

    for (address, offset) in pair.into_iter().zip(layout.addresses_at()) {
        let octets = octets(address);
        if let Some(field) = packet.get_mut(at + offset..at + offset + octets.len()) {
            field.copy_from_slice(&octets);
        }
    }
}

/// The deviation of each checksum of the packet from the correct one.
fn residues(packet: &[u8]) -> Vec<Option<u16>> {
    let residue =
        |checksum: Covered| (!checksum.is_absent(packet)).then(|| checksum.residue(packet));

    checksums(packet).into_iter().map(residue).collect()
}

#[expect(clippy::unwrap_used, reason = "64 flows can be remembered")]
fn gateway(start: Instant) -> Engine {
    let identity = Arc::new(BoringtunIdentity::new(&PrivateKey::generate()));

    Engine::new(identity, Settings { max_flows: 64, seed: 7, index_seed: 7, start }).unwrap()
}

#[expect(clippy::unwrap_used, reason = "the configuration is the same each time")]
fn configure(engine: &mut Engine) {
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    let map = |[internal, external]: [&str; 2]| {
        HostMap::new(internal.parse().unwrap(), external.parse().unwrap()).unwrap()
    };
    let cluster = Cluster {
        prefixes: ["10.244.0.0/16", "fd24::/48", "10.70.0.0/16", "fd70::/64"].map(prefix).into(),
        host_maps: vec![
            map(["10.244.1.9", "10.70.0.7"]),
            map(["fd24::9", "fd70::7"]),
            map(["192.0.2.9", "10.70.0.9"]),
            map(["2001:db8::9", "fd70::9"]),
        ],
        masquerade: ["10.70.0.1", "10.70.0.2", "fd70::1"].map(|a| a.parse().unwrap()).into(),
        sharing: Vec::new(),
    };
    let rules = [
        Rule::new(prefix("10.244.0.0/16"), prefix("10.71.0.0/16")),
        Rule::new(prefix("fd24::/48"), prefix("fd71::/48")),
        Rule::checksum_neutral(prefix("fd24:0:1::/48"), prefix("fd71:0:1::/48")),
    ];
    let (table, conflicts) = Table::build(1, &cluster, rules.map(|rule| (PEER, rule.unwrap())));
    assert!(conflicts.is_empty());
    let peer = PeerConfig {
        name: "peer".to_owned(),
        keys: PeerKeys { public_key: PublicKey::from_bytes([7; 32]), preshared_key: None },
        endpoints: Vec::new(),
        allowed_ips: ["10.244.0.0/16", "fd24::/47", "10.99.0.0/16", "fd99::/16"].map(prefix).into(),
        clamp_mtu: Some(1340),
        persistent_keepalive: None,
    };
    engine.control.apply(vec![peer], table);
}
