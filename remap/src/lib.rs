//! Lock-free CIDR remapping.
//!
//! Translates the addresses of packets between clusters whose prefixes may overlap. A gateway assigns a
//! `local` (remapped) prefix to each `remote` (real) prefix of a remote cluster. Outbound, the destination
//! is translated from `local` to `remote`; inbound, the source from `remote` to `local`. Lookups use an
//! immutable [`Table`]; the control plane replaces the whole table through a [`Publisher`], and each
//! packet thread has a [`Reader`].
//!
//! Rules that no table can express, which users of nftables write, are a [`ruleset`].
//!
//! # Invariants
//!
//! - A packet is translated by exactly one table generation, never by a mix of two.
//! - [`Reader::load`] takes no lock and, between two publications, writes to no shared cache line.
//! - Translation of a remote's addresses is stateless and one to one, so replies need no flow
//!   state. Flow state exists only where sources of this cluster share an address.
//! - An address is translated once. The output is never looked up again, so two prefixes may swap.
//!
//! # Not here
//!
//! Packets and header rewriting (see `strait-packet`), where rules come from (see
//! `strait-plan`), clocks, I/O, logging.
//!
//! # Sources
//!
//! RFC 2663 for the vocabulary (*address realm*, *Basic NAT*, *Twice NAT*), RFC 1624 and RFC 1071
//! for checksums, RFC 6296 for checksum-neutral rules. The behaviour is that of the NETMAP target of
//! netfilter, without its state.

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
pub mod policy;
pub mod ruleset;
pub mod special;

pub use cluster::{Cluster, Destination, HostMap, HostMapError, Source};
pub use prefix::{Prefix, PrefixError};
pub use prefix_map::PrefixMap;
pub use publish::{Publisher, Reader, channel};
pub use rule::{Rule, RuleError};
pub use table::{Conflict, Outbound, PeerId, Table};
