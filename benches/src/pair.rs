//! Two engines with a session, without a network.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remap::{Cluster, PeerId, Prefix, Rule, Table};
use strait_engine::inbound::Received;
use strait_engine::{Engine, PeerConfig};
use strait_packet::buffer::TransmitBatch;
use strait_packet::ecn::Ecn;
use strait_packet::virtio::VirtioHeader;
use strait_wg::Epoch;
use strait_wg::native::{Environment, Lanes};
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};

/// The engines of two clusters with pods in 10.244.0.0/16, each of which addresses the other's pods
/// as 10.71.0.0/16.
#[derive(Debug)]
pub struct Pair {
    rome: Engine,
    milan: Engine,
    batch: TransmitBatch,
    endpoint: SocketAddr,
}

impl Pair {
    /// Two engines after their handshake.
    #[must_use]
    pub fn established(implementation: strait_wg::Engine, lanes: Lanes) -> Self {
        let endpoint = SocketAddr::from(([192, 0, 2, 1], 51840));
        let (rome, milan) = (PrivateKey::generate(), PrivateKey::generate());
        let mut pair = Self {
            rome: engine((implementation, lanes), &rome, milan.public_key(), endpoint),
            milan: engine((implementation, lanes), &milan, rome.public_key(), endpoint),
            batch: TransmitBatch::default(),
            endpoint,
        };
        pair.shake_hands();

        pair
    }

    /// The engine that initiated the handshake.
    #[must_use]
    pub const fn rome(&self) -> &Engine {
        &self.rome
    }

    /// The engine that responded.
    #[must_use]
    pub const fn milan(&self) -> &Engine {
        &self.milan
    }

    /// Rome sends one frame; the datagrams stay in the batch.
    pub fn outbound(&mut self, virtio: &VirtioHeader, frame: &mut [u8]) {
        self.outbound_all(virtio, std::iter::once(frame));
    }

    /// Rome sends these frames. The datagrams stay in the batch.
    ///
    /// # Panics
    ///
    /// If the frames do not fit one batch.
    pub fn outbound_all<'a>(
        &mut self,
        virtio: &VirtioHeader,
        frames: impl IntoIterator<Item = &'a mut [u8]>,
    ) {
        self.batch.clear();
        for frame in frames {
            let handled = self.rome.outbound.handle_frame(virtio, frame, now(), &mut self.batch);
            assert!(!handled.is_incomplete(), "the frames fit one batch");
        }
    }

    /// Milan receives the datagrams of the batch.
    pub fn inbound(&mut self) {
        let mut replies = TransmitBatch::with_capacity(0);
        let now = now();
        for transmit in self.batch.transmits() {
            let received = Received {
                bytes: self.batch.bytes(transmit),
                stride: transmit.segment_bytes,
                path: self.endpoint.into(),
                ecn: Ecn::NotEct,
            };
            self.milan.inbound.handle_datagrams(received, now, &mut replies, |_, _| false);
        }
        self.milan.inbound.drain(|frame, _, _| {
            std::hint::black_box(frame.packet_count());
        });
    }

    /// Initiation, response, keepalive.
    fn shake_hands(&mut self) {
        let mut batch = TransmitBatch::default();
        self.rome.handshakes.handle_timeout(now()).fill(&mut batch);
        for to in [&mut self.milan, &mut self.rome] {
            let message = take(&mut batch);
            to.handshakes.handle_message(&message, self.endpoint.into(), now(), &mut batch);
        }
        let keepalive = take(&mut batch);
        let received = Received {
            bytes: &keepalive,
            stride: keepalive.len(),
            path: self.endpoint.into(),
            ecn: Ecn::NotEct,
        };
        self.milan.inbound.handle_datagrams(received, now(), &mut batch, |_, _| false);
    }
}

fn take(batch: &mut TransmitBatch) -> Vec<u8> {
    let bytes = batch.transmits().first().map(|t| batch.bytes(t).to_vec()).unwrap_or_default();
    batch.clear();

    bytes
}

#[expect(clippy::expect_used, reason = "a benchmark may panic")]
fn engine(
    (implementation, lanes): (strait_wg::Engine, Lanes),
    own: &PrivateKey,
    other: PublicKey,
    endpoint: SocketAddr,
) -> Engine {
    let epoch = Epoch::new(now(), Duration::ZERO);
    let environment = Environment { lanes, ..Environment::new(epoch, 1420) };
    let mut engine = Engine::new(
        implementation.identity(own, &environment),
        strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now() },
    )
    .expect("1024 flows can be remembered");
    let pods = prefix([10, 244, 0, 0]);
    let rules = pods.zip(prefix([10, 71, 0, 0])).and_then(|(r, l)| Rule::new(r, l).ok());
    let peer = PeerConfig {
        name: "peer".into(),
        keys: PeerKeys { public_key: other, preshared_key: None },
        endpoints: vec![endpoint],
        allowed_ips: pods.into_iter().collect(),
        clamp_mtu: None,
        persistent_keepalive: None,
    };
    engine.control.apply(
        vec![peer],
        Table::build(1, &Cluster::default(), rules.map(|rule| (PeerId(0), rule))).0,
    );

    engine
}

fn prefix(network: [u8; 4]) -> Option<Prefix> {
    Prefix::new(network.into(), 16).ok()
}

fn now() -> Instant {
    Instant::now()
}
