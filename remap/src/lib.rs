//! Lock-free CIDR remapping.
//!
//! Answers one question on the packet path: *what does this address become?* A gateway gives the
//! prefixes of a remote cluster names of its own, because the remote's real prefixes may be its own
//! too. On the way out a destination turns from `local` (the name here) to `remote` (the name there);
//! on the way in a source turns from `remote` to `local`. The answer comes from an immutable
//! [`Table`]; the control plane replaces the whole table at once through a [`Publisher`], and each
//! packet thread follows with a [`Reader`] of its own.
//!
//! # Invariants
//!
//! - A packet is translated by exactly one table generation, never by a mix of two.
//! - [`Reader::load`] takes no lock and, between two publications, writes to no shared cache line.
//! - Translation of a remote's addresses is stateless and one to one, so the way back needs no flow
//!   state. Flow state exists only where many of our sources share an address.
//! - An address is translated once. The output is never looked up again, so two prefixes may swap.
//!
//! # Not here
//!
//! Packets and header rewriting (see `strait-packet`), where rules come from (see
//! `strait-control`), clocks, I/O, logging.
//!
//! # Sources
//!
//! RFC 2663 for the vocabulary (*address realm*, *Basic NAT*, *Twice NAT*), RFC 1624 and RFC 1071
//! for checksums, RFC 6296 for checksum-neutral rules. The behaviour is that of the NETMAP target of netfilter, without its state.

#![forbid(unsafe_code)]

mod cluster;
mod nptv6;
mod prefix;
mod prefix_map;
mod publish;
mod rule;
mod table;

pub mod checksum;
pub mod lpm;
pub mod masquerade;
pub mod special;

pub use cluster::{Cluster, Destination, HostMap, HostMapError, Source};
pub use prefix::{Prefix, PrefixError};
pub use prefix_map::PrefixMap;
pub use publish::{Publisher, Reader, channel};
pub use rule::{Rule, RuleError};
pub use table::{Conflict, Outbound, PeerId, Table};
