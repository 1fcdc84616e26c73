//! What of WireGuard is ours, and the seam to what is not.
//!
//! [`Tunnel`] is the seam: one peer's protocol state, batch in and batch out. Behind it stands an
//! engine: [`native`] is ours, [`boringtun`] the library of that name. Everything else here is independent of the engine: keys and how
//! one follows another, the demultiplexing of messages, cryptokey routing, and what is learned about a
//! peer.

pub mod allowed_ips;
pub mod boringtun;
pub mod endpoints;
pub mod engine;
pub mod index;
pub mod key;
pub mod key_rotation;
pub mod message;
pub mod native;
pub mod opening;
pub mod peer;
pub mod redact;
pub(crate) mod scrub;
pub mod staged;
pub mod tunnel;
pub mod uapi;

pub use allowed_ips::AllowedIps;
pub use endpoints::Endpoints;
pub use engine::Engine;
pub use index::{Indices, Slot};
pub use key::{KeyError, PresharedKey, PrivateKey, PublicKey};
pub use key_rotation::Succession;
pub use opening::{OpenedRun, Opening};
pub use peer::Peer;
pub use staged::Staged;
pub use tunnel::Tunnel;
