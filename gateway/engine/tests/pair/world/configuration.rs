// Changes the configuration of a side: addresses, endpoints and keys.

use std::net::SocketAddr;
use std::sync::Arc;

use remap::Table;
use strait_engine::PeerConfig;
use strait_wg::PrivateKey;

use super::{ENGINES, World, environment};

impl World {
    /// Changes the address that `side` sends from, as after a change of network.
    pub(crate) fn move_to(&mut self, side: usize, address: SocketAddr) {
        self.sides[side].address = address;
    }

    /// Sets the addresses of `side`. It sends from the first unless a path requires another.
    pub(crate) fn set_addresses(&mut self, side: usize, addresses: &[SocketAddr]) {
        self.sides[side].address = addresses[0];
        self.sides[side].others = addresses.to_vec();
    }

    /// Sets the endpoint of the peer of `side`.
    pub(crate) fn set_endpoint(&self, side: usize, address: SocketAddr) {
        let control = &self.sides[side].engine.control;
        let key = control.current().peers()[0].keys.public_key;

        control.move_peer(key, address);
    }

    /// Sets the addresses of `side`, and configures them at its peer.
    pub(crate) fn publish_addresses(&mut self, side: usize, addresses: &[SocketAddr]) {
        self.set_addresses(side, addresses);
        let addresses = addresses.to_vec();
        self.reconfigure(1 - side, |peer| peer.endpoints = addresses);
    }

    /// Changes the candidate endpoints of the peer of `side`.
    pub(crate) fn set_endpoints(&self, side: usize, endpoints: &[SocketAddr]) {
        let control = &self.sides[side].engine.control;
        let key = control.current().peers()[0].keys.public_key;

        control.set_endpoints(key, endpoints);
    }

    /// Requests a search for the peer of `side`.
    pub(crate) fn seek(&self, side: usize) {
        self.sides[side].engine.control.seek_peers();
    }

    /// Sets the allowed IPs of the peer of `side`.
    pub(crate) fn allow(&mut self, side: usize, prefix: &str) {
        self.sides[side].peer.allowed_ips = [prefix.parse().unwrap()].into();
        self.sides[side].apply(2);
    }

    pub(crate) fn apply_again(&mut self, side: usize) {
        self.sides[side].apply(3);
    }

    /// Changes the peer configuration of `side`.
    pub(crate) fn reconfigure(&mut self, side: usize, change: impl FnOnce(&mut PeerConfig)) {
        change(&mut self.sides[side].peer);
        self.sides[side].apply(4);
    }

    /// Rotates the private key of `side`. The other side does not know it yet.
    pub(crate) fn change_key(&mut self, side: usize) {
        self.set_key(side, &PrivateKey::generate());
    }

    pub(crate) fn set_key(&mut self, side: usize, key: &PrivateKey) {
        let identity = ENGINES[side].identity(key, &environment(self.start));
        let side = &mut self.sides[side];
        side.key = key.clone();
        side.identity = Arc::downgrade(&identity);

        side.engine.control.rotate_key(&identity);
    }

    /// Changes the private key of `side` to `key`. Nothing is sent with the former one.
    pub(crate) fn supersede_key(&mut self, side: usize, key: &PrivateKey) {
        let identity = ENGINES[side].identity(key, &environment(self.start));
        let side = &mut self.sides[side];
        side.key = key.clone();

        side.engine.control.supersede_key(&identity);
    }

    pub(crate) fn key(&self, side: usize) -> PrivateKey {
        self.sides[side].key.clone()
    }

    /// Configures `side` with the current key of the other side.
    pub(crate) fn learn_key(&mut self, side: usize) {
        let key = self.key(1 - side);

        self.announce_key(side, &key);
    }

    /// Configures `side` with `key` for the other side.
    pub(crate) fn announce_key(&mut self, side: usize, key: &PrivateKey) {
        self.reconfigure(side, |peer| peer.keys.public_key = key.public_key());
    }

    pub(crate) fn remove_peer(&mut self, side: usize) {
        self.sides[side].engine.control.apply(Vec::new(), Table::default());
    }
}
