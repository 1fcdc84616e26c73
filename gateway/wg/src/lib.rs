//! WireGuard: keys, sessions, cryptokey routing, and the seam to an implementation of the protocol.
//!
//! [`Tunnel`] is the seam: one peer's protocol state, batch in and batch out. Two implementations are behind it:
//! [`native`] is ours, [`boringtun`] is the library of that name. Everything else here is independent of the
//! implementation: keys and their rotation, the demultiplexing of messages, cryptokey routing, and what is learned
//! about a peer.

#![forbid(unsafe_code)]

pub mod accepted;
pub mod allowed_ips;
pub mod boringtun;
pub mod endpoints;
pub mod engine;
pub mod handover;
pub mod index;
pub mod initiation_copies;
pub mod key;
pub mod key_rotation;
pub mod message;
pub mod native;
pub mod opening;
pub mod path_mtu;
pub mod path_probe;
pub mod peer;
pub mod redact;
pub(crate) mod scrub;
pub mod staged;
pub mod tai64n;
pub mod tunnel;
pub mod uapi;

pub use accepted::AcceptedByPeer;
pub use allowed_ips::AllowedIps;
pub use endpoints::Endpoints;
pub use engine::Engine;
pub use index::{IndexSlot, ReceiverIndices};
pub use key::{KeyError, PresharedKey, PrivateKey, PublicKey};
pub use key_rotation::KeyRotation;
pub use opening::{OpenedRun, Opening};
pub use path_mtu::{PathMtu, PathMtuSource};
pub use path_probe::{OpenedProbes, PathProbe};
pub use peer::Peer;
pub use staged::Staged;
pub use tai64n::Epoch;
pub use tunnel::Tunnel;
