//! A set with the answer to a get restores the device.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use proptest::prelude::*;
use remap::Prefix;

use super::{
    AllowedIp, Changes, Configuration, DeviceReport, Drops, Operation, Peer, PeerChange,
    PeerReport, Report, RequestParser, Step,
};
use crate::{PathMtuSource, PresharedKey, PrivateKey, PublicKey};

proptest! {
    #[test]
    fn a_set_restores_what_a_get_reports(device in any_device()) {
        let text = device.report().to_text();

        let changes = set(&text);

        // Another device, and the same one.
        for before in [&Configuration::default(), &device.configuration] {
            let after = before.with(&changes);
            prop_assert_eq!(&after.peers, &device.peers());
            prop_assert_eq!(after.listen_port, device.configuration.listen_port);
            prop_assert_eq!(after.fwmark, device.configuration.fwmark);
            let own = |of: &Configuration| of.private_key.as_ref().map(PrivateKey::public_key);
            prop_assert_eq!(own(&after), own(&device.configuration));
            let again = Device { configuration: after, ..device.clone() };
            prop_assert_eq!(&*again.report().to_text(), &*text);
        }
    }
}

/// A configuration with learned values.
#[derive(Clone, Debug)]
struct Device {
    configuration: Configuration,
    /// The learned endpoints of the peers, in order.
    heard: Vec<Option<SocketAddr>>,
    count: u64,
    name: String,
}

impl Device {
    /// The peers with their learned endpoints.
    fn peers(&self) -> Vec<Peer> {
        let heard = self.heard.iter().copied().chain(std::iter::repeat(None));
        let peers = self.configuration.peers.iter().cloned().zip(heard);

        peers.map(|(peer, heard)| Peer { endpoint: heard.or(peer.endpoint), ..peer }).collect()
    }

    fn report(&self) -> Report {
        let Configuration { private_key, listen_port, fwmark, .. } = self.configuration.clone();
        let device = DeviceReport {
            private_key,
            listen_port,
            fwmark,
            engine: Some("native".to_owned()),
            outbound_drops: Drops::all(|_| self.count),
            inbound_drops: Drops::all(|_| self.count),
        };
        let peers = self.peers().into_iter().map(|peer| PeerReport {
            public_key: peer.public_key,
            preshared_key: peer.preshared_key,
            endpoint: peer.endpoint.map(Into::into),
            last_handshake: Some(Duration::from_nanos(self.count)),
            receive_bytes: self.count,
            transmit_bytes: self.count,
            persistent_keepalive: peer.persistent_keepalive,
            allowed_ips: peer.allowed_ips.iter().copied().map(Into::into).collect(),
            name: Some(self.name.clone()),
            rtt: Some(Duration::from_micros(self.count)),
            path_mtu_bytes: Some(1280),
            path_mtu_source: Some(PathMtuSource::Route),
            probe_rtt: Some(Duration::from_micros(self.count)),
            probe_jitter: None,
            probe_loss_percent: Some(3),
            staged_packets: self.count,
            unanswered: 3,
        });

        Report { device, peers: peers.collect() }
    }
}

/// The content of a set with the lines of `text`.
fn set(text: &str) -> Changes {
    let mut parser = RequestParser::default();
    let mut step = parser.take(b"set=1");
    for line in text.lines().chain([""]) {
        step = parser.take(line.as_bytes());
    }

    let Step::Answer(Ok(Operation::Set(changes))) = step else { panic!("{step:?}") };

    changes
}

/// Few keys and prefixes, so that they occur more than once.
fn any_device() -> impl Strategy<Value = Device> {
    let peer = (
        0_u8..6,
        any::<Option<[u8; 32]>>(),
        prop::option::of(any_endpoint()),
        any::<Option<u16>>(),
        prop::collection::vec((any::<bool>(), any_prefix()), 0..6),
    );
    let configuration =
        (any::<Option<[u8; 32]>>(), any::<u16>(), any::<u32>(), prop::collection::vec(peer, 0..8));
    let heard = prop::collection::vec(prop::option::of(any_endpoint()), 0..6);

    (configuration, heard, any::<u64>(), "[!-~]{1,20}").prop_map(
        |(configuration, heard, count, name)| {
            let (key, listen_port, fwmark, peers) = configuration;
            let changes = Changes {
                private_key: Some(key.and_then(|key| PrivateKey::from_bytes(&key).ok())),
                listen_port: Some(listen_port),
                fwmark: Some(fwmark),
                replaces_peers: false,
                peers: peers.into_iter().map(any_change).collect(),
            };
            let configuration = Configuration::default().with(&changes);

            Device { configuration, heard, count, name }
        },
    )
}

type AnyPeer = (u8, Option<[u8; 32]>, Option<SocketAddr>, Option<u16>, Vec<(bool, Prefix)>);

fn any_change((number, preshared_key, endpoint, keepalive, allowed_ips): AnyPeer) -> PeerChange {
    let preshared_key = preshared_key.map(|key| PresharedKey::from_bytes(&key).ok());
    let allowed_ips = allowed_ips.into_iter().map(|(is_added, prefix)| {
        if is_added { AllowedIp::Add(prefix) } else { AllowedIp::Remove(prefix) }
    });

    PeerChange {
        preshared_key,
        endpoint,
        persistent_keepalive: keepalive,
        allowed_ips: allowed_ips.collect(),
        ..PeerChange::new(PublicKey::from_bytes([number; 32]))
    }
}

/// As the kernel reports the source of a datagram: with a zone for link-local addresses only.
fn any_endpoint() -> impl Strategy<Value = SocketAddr> {
    let link_local = any::<(u64, u16, u32)>().prop_map(|(host, port, zone)| {
        let address = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(host));
        SocketAddrV6::new(address, port, 0, zone).into()
    });
    let global = any::<(u128, u16)>().prop_map(|(bits, port)| {
        SocketAddr::new(Ipv6Addr::from_bits(bits | 0x2000 << 112).into(), port)
    });

    prop_oneof![any::<([u8; 4], u16)>().prop_map(SocketAddr::from), global, link_local]
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    let texts = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.7/32", "::/0", "fe80::1/128"];

    prop::sample::select(texts.map(|text| text.parse().unwrap()).to_vec())
}
