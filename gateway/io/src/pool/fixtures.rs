//! Two engines that are peers, and frames as a TUN device returns them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use remap::{Cluster, Table};

use crate::edge::FrameBuffer;
use strait_engine::inbound::Received;
use strait_engine::{Engine, PeerConfig};
use strait_packet::buffer::TransmitBatch;
use strait_packet::ecn::Ecn;
use strait_packet::fixtures::noise;
use strait_packet::virtio::{VIRTIO_LEN, VirtioHeader};
use strait_wg::Epoch;
use strait_wg::PrivateKey;
use strait_wg::native::{Environment, Lanes};
use strait_wg::tunnel::PeerKeys;

/// Two engines with a session. Its keys are the same in each call.
pub(super) fn engines() -> [Engine; 2] {
    let keys = [[1; 32], [2; 32]].map(|key| PrivateKey::from_bytes(&key).unwrap());
    let source = SocketAddr::from(([192, 0, 2, 1], 51840));
    let [mut rome, mut milan] = [(0, 1), (1, 0)].map(|(own, other)| {
        let next = AtomicU8::new(0);
        let environment = Environment {
            randomness: Arc::new(move |bytes| {
                bytes.fill_with(|| next.fetch_add(1, Ordering::Relaxed));
            }),
            epoch: Epoch::new(now(), Duration::from_secs(1)),
            mtu: Arc::new(AtomicU16::new(1400)),
            lanes: Lanes::detect(),
        };
        let identity = strait_wg::Engine::Native.identity(&keys[own], &environment);
        let settings =
            strait_engine::Settings { max_flows: 1024, seed: 7, index_seed: 7, start: now() };
        let mut engine = Engine::new(identity, settings).unwrap();
        let peer = PeerConfig {
            name: "peer".into(),
            keys: PeerKeys { public_key: keys[other].public_key(), preshared_key: None },
            endpoints: vec![source],
            allowed_ips: ["10.244.0.0/16".parse().unwrap()].into(),
            clamp_mtu: None,
            persistent_keepalive: None,
        };
        engine.control.apply(vec![peer], Table::build(1, &Cluster::default(), []).0);

        engine
    });

    let mut out = TransmitBatch::default();
    rome.control.current().peers()[0].tunnel.initiate(source.into(), &mut out, now());
    for to in [&mut milan, &mut rome] {
        let message = out.bytes(&out.transmits()[0]).to_vec();
        out.clear();
        to.handshakes.handle_message(&message, source.into(), now(), &mut out);
    }
    let keepalive = out.bytes(&out.transmits()[0]).to_vec();
    out.clear();
    let received = Received {
        bytes: &keepalive,
        stride: keepalive.len(),
        path: source.into(),
        ecn: Ecn::NotEct,
    };
    milan.inbound.handle_datagrams(received, now(), &mut out, |_, _| false);

    [rome, milan]
}

/// Writes a TCP frame as a TUN device returns it: the checksum covers the pseudo-header only. Returns its length.
pub(super) fn fill(
    frame: &mut FrameBuffer,
    payload: usize,
    segment: u16,
    seed: u64,
) -> (VirtioHeader, usize) {
    let (source, destination) = ([10, 244, 1, 5], [10, 244, 2, 7]);
    let total_len = u16::try_from(40 + payload).unwrap();
    let mut bytes = vec![0x45, 0];
    bytes.extend(total_len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(source);
    bytes.extend(destination);
    let header_checksum = remap::checksum::complete(remap::checksum::sum(&bytes));
    bytes[10..12].copy_from_slice(&header_checksum.to_be_bytes());
    let pseudo = remap::checksum::pseudo_header(
        source.into(),
        destination.into(),
        6,
        u32::from(total_len) - 20,
    );
    bytes.extend([0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(noise(payload, seed));
    frame.packet_mut()[..bytes.len()].copy_from_slice(&bytes);

    let is_large = payload > usize::from(segment);
    let mut virtio = [0; VIRTIO_LEN];
    virtio[0] = 1; // NEEDS_CSUM
    virtio[1] = u8::from(is_large); // TCPV4
    virtio[2..4].copy_from_slice(&40u16.to_ne_bytes());
    virtio[4..6].copy_from_slice(&(if is_large { segment } else { 0 }).to_ne_bytes());
    virtio[6..8].copy_from_slice(&20u16.to_ne_bytes());
    virtio[8..10].copy_from_slice(&16u16.to_ne_bytes());

    (VirtioHeader::parse(&virtio).unwrap(), bytes.len())
}

/// The same instant in each call.
#[expect(clippy::disallowed_methods, reason = "any instant serves as the start")]
pub(super) fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    *START.get_or_init(Instant::now)
}
