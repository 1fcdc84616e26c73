//! The state that a gateway hands over to its successor.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use strait_engine::handover::EngineState;
use strait_packet::buffer::TransmitBatch;
use strait_wg::handover::{HandoverError, Reader, TunnelState, Writer};
use strait_wg::native::{Environment, Lanes, NativeIdentity};
use strait_wg::tunnel::{Identity as _, PeerKeys, TimerPolicy, Tunnel};
use strait_wg::{Epoch, PrivateKey};

/// Bytes are the state of a tunnel or of an engine, or are refused. What was read is written as bytes that are read as the
/// same, and a tunnel goes on with it: its timers run, and it hands over what it has.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn handover(bytes: &[u8]) {
    let now = Instant::now();
    stays_the_same(bytes, now, EngineState::read, EngineState::write);
    stays_the_same(bytes, now, TunnelState::read, TunnelState::write);

    if let Ok(state) = TunnelState::read(&mut Reader::new(bytes, now)) {
        let tunnel = tunnel(now);
        tunnel.import(state);
        let path = Some(SocketAddr::from(([192, 0, 2, 1], 1)).into());
        let policy = TimerPolicy { path, persistent_keepalive: None, may_initiate: true };
        for seconds in [0, 1, 20, 200] {
            let now = now + Duration::from_secs(seconds);
            tunnel.handle_timeout(policy, &mut TransmitBatch::default(), now);
            tunnel.session();
        }
        assert!(tunnel.export().is_some(), "an open tunnel has a state");
    }
}

/// What is read from `bytes`, if anything, survives being written and read.
fn stays_the_same<T>(
    bytes: &[u8],
    base: Instant,
    read: impl Fn(&mut Reader<'_>) -> Result<T, HandoverError>,
    write: impl Fn(&T, &mut Writer),
) {
    let Ok(state) = read(&mut Reader::new(bytes, base)) else { return };
    let written = |state: &T| {
        let mut out = Writer::new(base);
        write(state, &mut out);
        out.finish()
    };

    let once = written(&state);
    let again = read(&mut Reader::new(&once, base));
    let again = again.unwrap_or_else(|error| panic!("what was written is refused: {error}"));
    assert_eq!(*written(&again), *once);
}

fn tunnel(now: Instant) -> Arc<dyn Tunnel> {
    let key = |number| {
        PrivateKey::from_file_content(&[number; 32]).unwrap_or_else(|error| panic!("{error}"))
    };
    let environment = Environment {
        randomness: Arc::new(|bytes: &mut [u8]| bytes.fill(7)),
        epoch: Epoch::new(now, Duration::from_secs(1_700_000_000)),
        mtu: Arc::new(AtomicU16::new(1420)),
        lanes: Lanes::none(),
    };
    let keys = PeerKeys { public_key: key(2).public_key(), preshared_key: None };

    NativeIdentity::new(&key(1), environment).tunnel(&keys, 1.into())
}
