//! The first engine: `boringtun`, unmodified, behind the [`Tunnel`] seam.
//!
//! `Tunn` wants `&mut self` for both directions, so a lock stands around it: taken once per batch,
//! never per packet. What the library leaves out is added here where it can be added from outside:
//! staged packets are ours (the library drops some without saying so), the round trip of a handshake
//! is measured, and a persistent keepalive goes on after the library has given a peer up.
//!
//! The library keeps its own clock, which [`Tunnel::handle_timeout`] makes it read; `now` serves the
//! round trip only.
//!
//! Known limits of the library, which the native engine does not share: a replay window of 1024, no
//! padding, no limit on messages per session, cookies over the address without the port.

mod state;
mod tunnel;
mod turns;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519;

use self::tunnel::BoringtunTunnel;
use super::PrivateKey;
use super::PublicKey;
use super::Slot;
use super::message::MAX_HANDSHAKE_BYTES;
use super::tunnel::{Identity, Introduction, PeerKeys, Tunnel};
use strait_packet::DropReason;
use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::path::Path;

/// Initiations a second from all sources before cookies are asked for.
const INITIATIONS_PER_SECOND: u64 = 100;

/// One key of ours, for boringtun. The library wipes it when it is dropped.
pub struct BoringtunIdentity {
    private_key: x25519::StaticSecret,
    public_key: x25519::PublicKey,
    limiter: RateLimiter,
}

impl BoringtunIdentity {
    /// The identity that `private_key` is.
    #[must_use]
    pub fn new(private_key: &PrivateKey) -> Self {
        let private_key = private_key.to_secret();
        let public_key = x25519::PublicKey::from(&private_key);

        Self {
            private_key,
            public_key,
            limiter: RateLimiter::new(&public_key, INITIATIONS_PER_SECOND),
        }
    }
}

impl Identity for BoringtunIdentity {
    fn public_key(&self) -> PublicKey {
        PublicKey::from_bytes(self.public_key.to_bytes())
    }

    fn tunnel(&self, keys: &PeerKeys, slot: Slot) -> Arc<dyn Tunnel> {
        let peer = x25519::PublicKey::from(*keys.public_key.as_bytes());
        let tunn = Tunn::new(
            self.private_key.clone(),
            peer,
            keys.preshared_key.as_ref().map(|key| *key.as_bytes()),
            // The library counts from the last keepalive, not from the last message, and never lets it change.
            None,
            // The library puts it into the upper 24 bits of its receiver indices.
            slot.number(),
            None,
        );

        let tunnel = BoringtunTunnel::new(tunn);
        if !self.private_key.diffie_hellman(&peer).was_contributory() {
            // With a point of low order there is no secret, and the library would talk to anybody.
            tunnel.close();
        }

        Arc::new(tunnel)
    }

    fn takes_indices(&self) -> bool {
        false
    }

    fn identify(
        &self,
        initiation: &[u8],
        path: Path,
        out: &mut TransmitBatch,
    ) -> Result<Introduction, DropReason> {
        let mut reply = [0; MAX_HANDSHAKE_BYTES];
        let packet =
            match self.limiter.verify_packet(Some(path.remote.ip()), initiation, &mut reply) {
                Ok(packet) => packet,
                Err(TunnResult::WriteToNetwork(cookie)) => {
                    out.push_message(cookie, Outer::message(path));
                    return Ok(Introduction::TurnedAway);
                }
                Err(TunnResult::Err(error)) => return Err(drop_reason(&error)),
                Err(_) => return Err(DropReason::Malformed),
            };
        let Packet::HandshakeInit(initiation) = packet else {
            return Err(DropReason::Malformed);
        };

        match parse_handshake_anon(&self.private_key, &self.public_key, &initiation) {
            Ok(half) => Ok(Introduction::By(PublicKey::from_bytes(half.peer_static_public))),
            Err(error) => Err(drop_reason(&error)),
        }
    }

    fn handle_timeout(&self, _now: Instant) {
        self.limiter.reset_count();
    }
}

impl fmt::Debug for BoringtunIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoringtunIdentity").field("public_key", &self.public_key()).finish()
    }
}

fn drop_reason(error: &WireGuardError) -> DropReason {
    match error {
        WireGuardError::NoCurrentSession | WireGuardError::WrongIndex => DropReason::NoSession,
        WireGuardError::InvalidCounter
        | WireGuardError::DuplicateCounter
        | WireGuardError::WrongTai64nTimestamp => DropReason::Replayed,
        WireGuardError::InvalidMac
        | WireGuardError::InvalidAeadTag
        | WireGuardError::WrongKey
        | WireGuardError::InvalidTai64nTimestamp => DropReason::Unauthenticated,
        WireGuardError::UnderLoad => DropReason::UnderLoad,
        WireGuardError::UnexpectedPacket | WireGuardError::ConnectionExpired => {
            DropReason::NoSession
        }
        WireGuardError::DestinationBufferTooSmall
        | WireGuardError::IncorrectPacketLength
        | WireGuardError::WrongPacketType
        | WireGuardError::InvalidPacket
        | WireGuardError::LockFailed => DropReason::Malformed,
    }
}
