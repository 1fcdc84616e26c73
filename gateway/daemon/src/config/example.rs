//! A small valid configuration for tests.

use remap::{Cluster, Rule};
use strait_io::{Offload, Workers};
use strait_wg::{PresharedKey, PrivateKey, PublicKey};

use super::{AdminSocket, Config, Engine, Origins, Peer};

/// One peer with one remap rule. Nothing in it depends on the host.
pub(crate) fn config() -> Config {
    Config {
        name: "milan".to_owned(),
        interface: "strait0".to_owned(),
        addresses: vec!["169.254.18.1/30".parse().unwrap()],
        listen_port: 51840,
        mtu_bytes: Some(1340),
        private_key: PrivateKey::from_file_content(&[7; 32]).unwrap(),
        metrics_address: Some("127.0.0.1:9090".parse().unwrap()),
        admin_socket: AdminSocket::default(),
        engine: Engine::default(),
        routes: true,
        mss_clamp: true,
        max_flows: 1 << 18,
        offload: Offload::default(),
        workers: Workers::default(),
        dns_check_interval: crate::resolver::CHECK_INTERVAL,
        cluster: Cluster::default(),
        peers: vec![Peer {
            name: "rome".to_owned(),
            public_key: PublicKey::from_bytes([8; 32]),
            preshared_key: Some(PresharedKey::from_file_content(&[6; 32]).unwrap()),
            endpoints: vec!["192.0.2.1:51840".parse().unwrap()],
            persistent_keepalive: std::num::NonZeroU16::new(25),
            allowed_ips: ["10.244.0.0/16".parse().unwrap()].into(),
            remaps: vec![
                Rule::new("10.244.0.0/16".parse().unwrap(), "10.71.0.0/16".parse().unwrap())
                    .unwrap(),
            ],
            origins: Origins::default(),
        }],
        origins: Origins::default(),
    }
}
