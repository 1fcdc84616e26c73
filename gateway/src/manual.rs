//! The manual: what does not belong to one module.
//!
//! - [`architecture`]: threads, the two flows, what is shared
//! - [`commands`]: joining clusters, and seeing how they are
//! - [`device`]: a WireGuard interface for `wg` and `wg-quick`; what `strait show` tells
//! - [`nodes`]: the way from pods to the gateway, what nodes and CNIs must allow, what reaches what
//! - [`operator`]: clusters without Liqo: installing, gateways, prefixes, replicas
//! - [`protocol`]: on the wire: with whom it was tried, floods, receiver indices, what senders are told
//! - [`remapping`]: which address stands where, and what a remap does to each protocol
//! - [`troubleshooting`]: by symptom

#[doc = include_str!("manual/architecture.md")]
pub mod architecture {}

#[doc = include_str!("manual/commands.md")]
pub mod commands {}

#[doc = include_str!("manual/device.md")]
pub mod device {}

#[doc = include_str!("manual/nodes.md")]
pub mod nodes {}

#[doc = include_str!("manual/operator.md")]
pub mod operator {}

#[doc = include_str!("manual/protocol.md")]
pub mod protocol {}

#[doc = include_str!("manual/remapping.md")]
pub mod remapping {}

#[doc = include_str!("manual/troubleshooting.md")]
pub mod troubleshooting {}
