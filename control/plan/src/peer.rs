//! A desired peer: the same value from a file or objects up to the packet engine.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use remap::{Prefix, Rule};
use strait_api::public_key::KEY_BYTES;

use crate::endpoint::Endpoint;
use crate::origin::Origins;

/// One peer. `K` are its keys: objects have a public key alone, a gateway may have a preshared key too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer<K = [u8; KEY_BYTES]> {
    /// Unique among all peers. For a peer of objects it is the id of the remote cluster.
    pub name: String,
    /// Unique among all peers.
    pub keys: K,
    /// Possible endpoints in order of preference; without any the peer must send first.
    pub endpoints: Vec<Endpoint>,
    /// In seconds; `None` is off.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// The remote's real prefixes. The list is shared with the packet engine, because it may have thousands of entries.
    pub allowed_ips: Arc<[Prefix]>,
    /// The remap rules of the remote's addresses.
    pub remaps: Vec<Rule>,
    /// Origins of the values.
    pub origins: Origins,
}

impl<K> Peer<K> {
    /// The configured and learned addresses of its gateway, without those of DNS names.
    pub fn endpoint_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.endpoints.iter().filter_map(Endpoint::address)
    }

    /// The same peer with keys of another type.
    pub fn map_keys<L>(self, convert: impl FnOnce(K) -> L) -> Peer<L> {
        let Self { name, keys, endpoints, persistent_keepalive, allowed_ips, remaps, origins } =
            self;
        let keys = convert(keys);

        Peer { name, keys, endpoints, persistent_keepalive, allowed_ips, remaps, origins }
    }
}
