//! A small valid configuration for tests.

use remap::{Cluster, Rule, Table};
use strait_io::{Offload, Workers, overlay};
use strait_packet::overlay::{Encapsulation, Vni};
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PresharedKey, PrivateKey, PublicKey};

use super::{AdminSocket, Config, Engine, Origins, Peer};

/// One peer with one remap rule. Nothing in it depends on the host.
pub(crate) fn config() -> Config {
    let config = Config {
        name: "milan".to_owned(),
        interface: "strait0".to_owned(),
        overlay: None,
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
            keys: PeerKeys {
                public_key: PublicKey::from_bytes([8; 32]),
                preshared_key: Some(PresharedKey::from_file_content(&[6; 32]).unwrap()),
            },
            endpoints: vec!["192.0.2.1:51840".parse().unwrap()],
            persistent_keepalive: std::num::NonZeroU16::new(25),
            allowed_ips: ["10.244.0.0/16".parse().unwrap()].into(),
            remaps: vec![
                Rule::new("10.244.0.0/16".parse().unwrap(), "10.71.0.0/16".parse().unwrap())
                    .unwrap(),
            ],
            origins: Origins::default(),
        }],
        table: Table::default(),
        origins: Origins::default(),
    };

    planned(config)
}

/// An overlay with one node.
pub(crate) fn overlay() -> overlay::Settings {
    overlay::Settings {
        encapsulation: Encapsulation::Vxlan,
        port: 8483,
        mac: None,
        nodes: vec![overlay::Node {
            pods: vec!["10.244.0.0/16".parse().unwrap()],
            ..overlay::Node::new([172, 18, 3, 1].into(), Vni::new(83).unwrap())
        }],
        host: None,
    }
}

/// `config` with the table of its peers.
pub(crate) fn planned(config: Config) -> Config {
    let table = strait_plan::plan(&config.cluster, &config.peers).table;

    Config { table, ..config }
}
