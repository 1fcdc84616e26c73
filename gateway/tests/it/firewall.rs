//! nftables and routing rules of the kernel as the oracle for lowered `FirewallConfiguration`s and `RouteConfiguration`s:
//! the same packets through a namespace that has the objects installed as Liqo's gateway installs them, and through our
//! tables and chains.
//!
//! Needs root, `/dev/net/tun`, `nft` and `ip`.

mod gateway;
mod genuine;
mod kernel;
mod nft;
mod probe;
mod user;

use crate::harness::require::Need;
use crate::harness::require::Need::{Root, Tool, Tun};

const NEEDS: [Need; 4] = [Root, Tun, Tool("nft"), Tool("ip")];

/// Packets of each test, at least: one for each shape of Liqo's objects, one for random rules.
const PACKETS: usize = 10_000;
