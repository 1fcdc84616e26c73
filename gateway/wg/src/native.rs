//! The second engine: our own WireGuard core behind the [`Tunnel`] seam.
//!
//! Pure: time, randomness and packets are passed in. The two directions share no lock: a packet takes the
//! session in use from one published value, its counter from one atomic step per batch, and the replay
//! window is the receiving thread's. Handshakes and timers have a lock of their own, which no packet with
//! a session asks for.
//!
//! | | module |
//! |---|---|
//! | what is hashed, mixed and sealed in a handshake | `noise` |
//! | the three messages of one | `handshake` |
//! | their MACs, and cookies | `mac` |
//! | who is answered under load | `load` |
//! | when a message was made | `tai64n` |
//! | the keys of a session, and the datagrams made with them | `keypair`, `datagram` |
//! | what those are sealed with, many at once | `cipher` |
//! | how one session follows another | `sessions` |
//! | what was received before | `replay` |
//! | which handshakes were answered before | `accepted` |
//! | when a peer is owed something | `timers` |
//! | all of it for one peer | `tunnel`, `state` |
//!
//! Source: WireGuard: Next Generation Kernel Network Tunnel, J. A. Donenfeld, revision of 2020-06-01.

mod accepted;
mod cipher;
mod datagram;
mod handshake;
mod keypair;
mod load;
mod mac;
mod noise;
mod replay;
mod sessions;
mod state;
mod tai64n;
#[cfg(test)]
mod tests;
mod timers;
mod tunnel;

use std::fmt;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use self::accepted::Accepted;
use self::handshake::{Acquaintance, INITIATION_LEN, Introduced, Own};
use self::load::Load;
use self::mac::{COOKIE_NONCE_LEN, CookieMint, MacKeys, has_cookie};
use self::noise::{Forged, LEN, shared};
use self::tai64n::Dates;
use self::tunnel::NativeTunnel;
use super::PresharedKey;
use super::PrivateKey;
use super::PublicKey;
use super::Slot;
use super::scrub::scrubbed;
use super::tunnel::{Identity, Introduction, PeerKeys, Tunnel};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::path::Path;

pub use accepted::AcceptedByPeer;
pub use cipher::Lanes;
pub use tai64n::Epoch;

/// Fills bytes with randomness that nobody can foresee.
pub type Randomness = dyn Fn(&mut [u8]) + Send + Sync;

/// What the core is given from outside.
#[derive(Clone)]
pub struct Surroundings {
    /// Where randomness comes from.
    pub randomness: Arc<Randomness>,
    /// What time it is.
    pub epoch: Epoch,
    /// The MTU of the device in bytes, which may change at any time: padding makes no datagram longer than a full
    /// packet's.
    pub mtu: Arc<AtomicU16>,
    /// How many datagrams are sealed or opened at once.
    pub lanes: Lanes,
}

impl Surroundings {
    /// With the randomness of the operating system, and with the lanes that the processor has.
    ///
    /// # Panics
    ///
    /// Not here, but whenever there is no randomness to be had: see getrandom(2), which gives it for ever
    /// once it has given any.
    #[must_use]
    pub fn new(epoch: Epoch, mtu: u16) -> Self {
        let random = SystemRandom::new();
        let randomness = move |bytes: &mut [u8]| {
            // Every key made later would be known to everybody: better to have no gateway.
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

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings")
            .field("mtu", &self.mtu)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// One key of ours, for the native core. Wiped when this is dropped and all its tunnels are dropped or closed.
pub struct NativeIdentity {
    shared: Arc<Shared>,
}

/// What all tunnels under one key have in common, the key with it. A tunnel that is closed has let go of it.
struct Shared {
    own: Own,
    macs: MacKeys,
    surroundings: Surroundings,
    guard: Mutex<Guard>,
}

/// Decides who is answered, and when what is asked was asked. Only handshakes come here.
struct Guard {
    now: Instant,
    load: Load,
    mint: CookieMint,
    /// The last initiation, of which half is understood: it is looked at again in a moment.
    introduced: Option<([u8; INITIATION_LEN], Box<Introduced>)>,
    dates: Dates,
    accepted: AcceptedByPeer,
}

impl NativeIdentity {
    /// The identity that `private_key` is.
    #[must_use]
    pub fn new(private_key: &PrivateKey, surroundings: Surroundings) -> Self {
        let own = scrubbed(|| Own::new(private_key.to_secret()));
        let now = surroundings.epoch.base();
        let guard = Guard {
            now,
            load: Load::new(now),
            mint: CookieMint::new(),
            introduced: None,
            dates: Dates::new(surroundings.epoch),
            accepted: AcceptedByPeer::default(),
        };

        Self {
            shared: Arc::new(Shared {
                macs: MacKeys::new(own.public),
                own,
                surroundings,
                guard: Mutex::new(guard),
            }),
        }
    }
}

impl Shared {
    fn guard(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `message`, an initiation or a response, is worked for. If not, `out` may get a cookie reply.
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
        let Guard { now, load, mint, .. } = &mut *self.guard();
        let has_cookie = has_cookie(message);
        if !has_cookie && load.is_under(*now) && !load.may_reply(source, *now) {
            return Ok(false);
        }
        self.macs.check(message).map_err(|_| DropReason::Unauthenticated)?;
        if !load.count(*now) {
            return Ok(true);
        }

        mint.refresh(*now, |bytes| (self.surroundings.randomness)(bytes));
        if mint.check(message, path.remote) {
            return Ok(load.admit(source, *now));
        }
        if !has_cookie || load.may_reply(source, *now) {
            let mut nonce = [0; COOKIE_NONCE_LEN];
            (self.surroundings.randomness)(&mut nonce);
            if let Some(reply) = mint.reply(&self.macs, message, path.remote, &nonce) {
                out.push_message(&reply, Outer::message(path));
                load.handle_reply(source, *now);
            }
        }

        Ok(false)
    }

    /// Reads who sends an `initiation`, and remembers what that took.
    fn introduce(&self, initiation: &[u8]) -> Result<PublicKey, DropReason> {
        let message = initiation.try_into().map_err(|_| DropReason::Malformed)?;

        scrubbed(|| {
            let introduced =
                Introduced::read(&self.own, initiation).map_err(|_| DropReason::Unauthenticated)?;
            let peer = introduced.peer;
            self.guard().introduced = Some((message, Box::new(introduced)));

            Ok(peer)
        })
    }

    /// Who sends an `initiation`, which was admitted.
    fn introduced(&self, initiation: &[u8]) -> Result<Box<Introduced>, Forged> {
        match self.guard().introduced.take() {
            Some((known, introduced)) if known == initiation => Ok(introduced),
            _ => Introduced::read(&self.own, initiation).map(Box::new),
        }
    }

    /// Of an initiation. See [`Dates::date`].
    fn date(&self, now: Instant) -> Duration {
        self.guard().dates.date(now)
    }

    fn accepted(&self, peer: PublicKey) -> Arc<Mutex<Accepted>> {
        self.guard().accepted.of(peer)
    }

    const fn base(&self) -> Instant {
        self.surroundings.epoch.base()
    }

    /// A key for one message and never another.
    fn ephemeral(&self) -> StaticSecret {
        let mut bytes = Zeroizing::new([0; 32]);
        (self.surroundings.randomness)(&mut *bytes);

        StaticSecret::from(*bytes)
    }

    fn random_byte(&self) -> u8 {
        let mut byte = [0];
        (self.surroundings.randomness)(&mut byte);
        let [byte] = byte;

        byte
    }
}

impl Identity for NativeIdentity {
    fn public_key(&self) -> PublicKey {
        self.shared.own.public
    }

    fn tunnel(&self, keys: &PeerKeys, slot: Slot) -> Arc<dyn Tunnel> {
        let (peer, is_nobody) = scrubbed(|| {
            let static_static = shared(&self.shared.own.private, &keys.public_key);
            let nothing = [0; LEN];
            let peer = Acquaintance::new(
                keys.public_key,
                static_static.as_deref().unwrap_or(&nothing),
                keys.preshared_key.as_ref().map_or(&nothing, PresharedKey::as_bytes),
            );

            (peer, static_static.is_err())
        });

        let tunnel = NativeTunnel::new(Arc::clone(&self.shared), peer, slot);
        if is_nobody {
            // With a point of low order there is no secret: whoever says to have the key is lying, and
            // to ask would be for ever in vain.
            tunnel.close();
        }

        Arc::new(tunnel)
    }

    fn takes_indices(&self) -> bool {
        true
    }

    fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<Introduction, DropReason> {
        if !self.shared.admit(initiation, path, out)? {
            return Ok(Introduction::TurnedAway);
        }

        self.shared.introduce(initiation).map(Introduction::By)
    }

    fn handle_timeout(&self, now: Instant) {
        let mut guard = self.shared.guard();
        guard.now = now;
        guard.introduced = None;
        guard.load.handle_timeout(now);
    }

    fn handle_wall_clock(&self, epoch: Epoch) {
        self.shared.guard().dates.follow(epoch);
    }

    fn continue_after(&self, epoch: Epoch) {
        self.shared.guard().dates.continue_after(epoch);
    }

    fn remember_in(&self, accepted: &AcceptedByPeer) {
        self.shared.guard().accepted = accepted.clone();
    }
}

impl fmt::Debug for NativeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeIdentity").field("public_key", &self.public_key()).finish()
    }
}
