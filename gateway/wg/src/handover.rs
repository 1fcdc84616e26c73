//! The hand-over of sessions to a successor: another process of the same gateway that goes on where this one stopped.
//!
//! The state of a tunnel is a plain value, [`TunnelState`]. A process that has stopped using a tunnel
//! [exports](crate::Tunnel::export) it, [`Writer`] makes bytes of it, and the successor [reads](Reader) all of them before
//! it [imports](crate::Tunnel::import) any. So a hand-over is taken over whole or not at all.
//!
//! Handed over are the keys and counters of all sessions, the replay windows, staged packets, timers, and the timestamps
//! of initiations in both directions. A handshake of ours under way is not: the successor starts another at once. Neither
//! are the secrets that cookies are made of: under load, peers get new cookies.
//!
//! # Invariants
//!
//! - No counter is used twice: the exporting process sends nothing any more.
//! - No datagram is accepted twice: the replay window is handed over whole.
//! - Instants are durations since a base that both processes know: see [`Writer::new`].

mod codec;
mod sealed;
mod tunnel_state;

pub use codec::{HandoverError, Reader, Writer};
pub use sealed::{SEAL_KEY_LEN, open, seal};
pub use tunnel_state::TunnelState;
pub(crate) use tunnel_state::{AcceptedRecord, AcceptedState, KeypairState, TimerState};
