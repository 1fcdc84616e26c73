//! Our own implementation of WireGuard behind the [`Tunnel`] seam.
//!
//! Pure: time, randomness and packets are passed in. The two directions share no lock: a packet reads the current
//! sessions from one published value, counters are reserved in one atomic step per batch, and the replay window is
//! used by the receiving thread only. Handshakes and timers have a lock of their own, which a packet with a session
//! never takes.
//!
//! | module | content |
//! |---|---|
//! | `noise` | hashing, key mixing and encryption of the handshake |
//! | `handshake` | the messages of a handshake |
//! | `mac` | their MACs, and cookies |
//! | `load` | rate limits for handshake messages under load |
//! | `keypair`, `datagram` | the keys of a session, and its transport data messages |
//! | the crate `strait-aead` | the AEAD for many datagrams at once |
//! | `sessions` | current, previous and next session |
//! | `replay` | the replay window |
//! | `timers` | rekey and keepalive timers |
//! | `handover` | the state of a tunnel for a successor of this process |
//! | `tunnel`, `state` | all of it for one peer |
//!
//! Source: WireGuard: Next Generation Kernel Network Tunnel, J. A. Donenfeld, revision of 2020-06-01.

mod datagram;
mod handover;
mod handshake;
mod keypair;
mod load;
mod mac;
mod noise;
mod replay;
mod sessions;
mod state;
#[cfg(test)]
mod tests;
mod timers;
mod tunnel;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ring::rand::{SecureRandom as _, SystemRandom};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use self::handshake::{INITIATION_LEN, IdentifiedInitiation, PeerStatics, StaticKeypair};
use self::load::Load;
use self::mac::{COOKIE_NONCE_LEN, CookieMint, MacKeys, has_cookie};
use self::noise::{AuthError, LEN, shared};
use self::tunnel::NativeTunnel;
use super::accepted::Accepted;
use super::tai64n::InitiationClock;
use super::tunnel::{Identification, Identity, PeerKeys, Tunnel};
use super::{AcceptedByPeer, Epoch, IndexSlot, PresharedKey, PrivateKey, PublicKey};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::path::Path;

pub(crate) use replay::WINDOW_BLOCKS;
pub use strait_aead::Lanes;

/// Fills bytes with unpredictable randomness.
pub type Randomness = dyn Fn(&mut [u8]) + Send + Sync;

/// The inputs of the protocol core, passed in.
#[derive(Clone)]
pub struct Environment {
    /// The source of randomness.
    pub randomness: Arc<Randomness>,
    /// The wall-clock time.
    pub epoch: Epoch,
    /// The MTU of the device in bytes, which may change at any time. Padding makes no content longer than this.
    pub mtu: Arc<AtomicU16>,
    /// How many datagrams are sealed or opened at once.
    pub lanes: Lanes,
}

impl Environment {
    /// With the randomness of the operating system, and the lanes of the processor.
    ///
    /// # Panics
    ///
    /// Not here, but in [`Self::randomness`] if the operating system returns an error: see getrandom(2), which cannot
    /// fail any more once it was initialised.
    #[must_use]
    pub fn new(epoch: Epoch, mtu: u16) -> Self {
        let random = SystemRandom::new();
        let randomness = move |bytes: &mut [u8]| {
            // Without randomness every later key would be known to attackers.
            assert!(random.fill(bytes).is_ok(), "the operating system gives no randomness");
        };

        Self {
            randomness: Arc::new(randomness),
            epoch,
            mtu: Arc::new(AtomicU16::new(mtu)),
            lanes: Lanes::detect(),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("mtu", &self.mtu)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// One key of ours, for the native core. Wiped when this is dropped and all its tunnels are dropped or closed.
pub struct NativeIdentity {
    shared: Arc<Shared>,
}

/// State that all tunnels under one key share, and the key itself. A closed tunnel has dropped its reference.
struct Shared {
    own: StaticKeypair,
    macs: MacKeys,
    environment: Environment,
    handshakes: Mutex<HandshakeState>,
}

/// State shared by all handshakes under one key: load, cookies, timestamps.
struct HandshakeState {
    now: Instant,
    load: Load,
    mint: CookieMint,
    /// The last initiation whose sender was read, kept for the tunnel that handles it next.
    identified: Option<([u8; INITIATION_LEN], Box<IdentifiedInitiation>)>,
    clock: InitiationClock,
    accepted: AcceptedByPeer,
}

impl NativeIdentity {
    /// The identity of the owner of `private_key`.
    #[must_use]
    pub fn new(private_key: &PrivateKey, environment: Environment) -> Self {
        let own = StaticKeypair::new(private_key.to_secret());
        let now = environment.epoch.base();
        let handshakes = HandshakeState {
            now,
            load: Load::new(now),
            mint: CookieMint::new(),
            identified: None,
            clock: InitiationClock::new(environment.epoch),
            accepted: AcceptedByPeer::default(),
        };

        Self {
            shared: Arc::new(Shared {
                macs: MacKeys::new(own.public),
                own,
                environment,
                handshakes: Mutex::new(handshakes),
            }),
        }
    }
}

impl Shared {
    fn handshakes(&self) -> MutexGuard<'_, HandshakeState> {
        self.handshakes.lock()
    }

    /// Whether `message`, an initiation or a response, is processed further. If not, `out` may get a cookie reply.
    ///
    /// # Errors
    ///
    /// [`DropReason::Unauthenticated`] if its first MAC is not valid.
    fn admit(
        &self,
        message: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<bool, DropReason> {
        let source = path.remote.ip();
        let HandshakeState { now, load, mint, .. } = &mut *self.handshakes();
        let has_cookie = has_cookie(message);
        if !has_cookie && load.is_under(*now) && !load.may_reply(source, *now) {
            return Ok(false);
        }
        self.macs.check(message).map_err(|_| DropReason::Unauthenticated)?;
        if !load.count(*now) {
            return Ok(true);
        }

        mint.refresh(*now, |bytes| (self.environment.randomness)(bytes));
        if mint.check(message, path.remote) {
            return Ok(load.admit(source, *now));
        }
        if !has_cookie || load.may_reply(source, *now) {
            let mut nonce = [0; COOKIE_NONCE_LEN];
            (self.environment.randomness)(&mut nonce);
            if let Some(reply) = mint.reply(&self.macs, message, path.remote, &nonce) {
                out.push_message(&reply, Outer::message(path));
                load.handle_reply(source, *now);
            }
        }

        Ok(false)
    }

    /// Reads the sender of an `initiation`, and keeps the result for [`Self::take_identified`].
    fn identify(&self, initiation: &[u8]) -> Result<PublicKey, DropReason> {
        let message = initiation.try_into().map_err(|_| DropReason::Malformed)?;

        let identified = IdentifiedInitiation::read(&self.own, initiation)
            .map_err(|_| DropReason::Unauthenticated)?;
        let peer = identified.peer;
        self.handshakes().identified = Some((message, Box::new(identified)));

        Ok(peer)
    }

    /// An admitted `initiation` whose sender was read, now or before.
    fn take_identified(&self, initiation: &[u8]) -> Result<Box<IdentifiedInitiation>, AuthError> {
        match self.handshakes().identified.take() {
            Some((known, identified)) if known == initiation => Ok(identified),
            _ => IdentifiedInitiation::read(&self.own, initiation).map(Box::new),
        }
    }

    /// See [`InitiationClock::has_predecessor`].
    fn has_predecessor(&self) -> bool {
        self.handshakes().clock.has_predecessor()
    }

    /// See [`InitiationClock::since_1970`].
    fn since_1970(&self, now: Instant) -> Duration {
        self.handshakes().clock.since_1970(now)
    }

    fn accepted(&self, peer: PublicKey) -> Arc<Mutex<Accepted>> {
        self.handshakes().accepted.of(peer)
    }

    const fn base(&self) -> Instant {
        self.environment.epoch.base()
    }

    /// A new ephemeral key, for one message.
    fn ephemeral(&self) -> StaticSecret {
        let mut bytes = Zeroizing::new([0; 32]);
        (self.environment.randomness)(&mut *bytes);

        StaticSecret::from(*bytes)
    }

    fn random_byte(&self) -> u8 {
        let mut byte = [0];
        (self.environment.randomness)(&mut byte);
        let [byte] = byte;

        byte
    }
}

impl Identity for NativeIdentity {
    fn public_key(&self) -> PublicKey {
        self.shared.own.public
    }

    fn tunnel(&self, keys: &PeerKeys, slot: IndexSlot) -> Arc<dyn Tunnel> {
        let static_static = shared(&self.shared.own.private, &keys.public_key);
        let nothing = [0; LEN];
        let peer = PeerStatics::new(
            keys.public_key,
            static_static.as_deref().unwrap_or(&nothing),
            keys.preshared_key.as_ref().map_or(&nothing, PresharedKey::as_bytes),
        );

        let tunnel = NativeTunnel::new(Arc::clone(&self.shared), peer, slot);
        if static_static.is_err() {
            // A point of low order has no private key: a claim to have it is false, and no initiation would be
            // answered.
            tunnel.close();
        }

        Arc::new(tunnel)
    }

    fn uses_slot_indices(&self) -> bool {
        true
    }

    fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<Identification, DropReason> {
        if !self.shared.admit(initiation, path, out)? {
            return Ok(Identification::UnderLoad);
        }

        self.shared.identify(initiation).map(Identification::Peer)
    }

    fn handle_timeout(&self, now: Instant) {
        let mut handshakes = self.shared.handshakes();
        handshakes.now = now;
        handshakes.identified = None;
        handshakes.load.handle_timeout(now);
    }

    fn handle_wall_clock(&self, epoch: Epoch) {
        self.shared.handshakes().clock.set(epoch);
    }

    fn continue_after(&self, epoch: Epoch) {
        self.shared.handshakes().clock.continue_after(epoch);
    }

    fn share_accepted(&self, accepted: &AcceptedByPeer) {
        self.shared.handshakes().accepted = accepted.clone();
    }
}

impl fmt::Debug for NativeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeIdentity").field("public_key", &self.public_key()).finish()
    }
}
