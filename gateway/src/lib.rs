//! The packet engine of Strait.
//!
//! Takes IP packets from a cluster, gives them the addresses under which the remote cluster knows
//! them, and carries them through WireGuard; and the same the other way round. The engine is a
//! function of packets, table and time: whoever drives it brings the socket, the device, the clock
//! and the threads.
//!
//! # Contract
//!
//! - [`engine::Outbound::handle_frame`] takes one frame from the cluster and fills a batch of
//!   datagrams. [`engine::Inbound::handle_datagrams`] takes what one system call received and fills
//!   a batch of frames. The caller empties a batch before it hands in the next one.
//! - `handle_*` methods take input, `poll_*` methods give output. Time comes in as `now` and must
//!   never run backwards.
//! - A batch sees one table generation, never a mix of two.
//! - Every packet that comes in goes out, is staged for a handshake, or is counted under exactly one
//!   [`DropReason`].
//!
//! # Not here
//!
//! Which address becomes which (see `remap`), where rules come from (see `control`). System calls,
//! clocks and threads are in [`io`], which only the feature `daemon` builds.
//!
//! # Sources
//!
//! The WireGuard whitepaper for the protocol and its names, RFC 1624 for checksums, RFC 6040 for
//! congestion marks, RFC 4787, 5382 and 5508 for what address translation owes to its users.

mod bucket;
pub mod buffer;
pub mod counters;
pub mod engine;
pub mod explain;
pub mod packet;
pub mod path;
pub mod uapi;
pub mod verdict;
pub mod wg;

#[cfg(feature = "daemon")]
pub mod io;
#[cfg(feature = "daemon")]
pub mod lab;

pub use verdict::DropReason;
