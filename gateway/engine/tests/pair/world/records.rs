// What a side has sent and received, and its state.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use strait_packet::counters::Snapshot;
use strait_wg::Peer;
use strait_wg::message::Message;
use strait_wg::tunnel::{Identity, SessionState};

use super::{MILAN, ROME, World};

impl World {
    /// Removes the datagrams in flight from the wire.
    pub(crate) fn in_flight(&mut self) -> Vec<Vec<u8>> {
        self.wire.drain(..).map(|datagram| datagram.bytes).collect()
    }

    pub(crate) fn last_data_datagram(&self) -> Vec<u8> {
        let is_data = |d: &&Vec<u8>| {
            matches!(Message::classify(d), Some(Message::Data { .. })) && d.len() > 32
        };

        self.eavesdropped.iter().rev().find(is_data).unwrap().clone()
    }

    /// The endpoint that `side` sends to.
    pub(crate) fn endpoint(&self, side: usize) -> Option<SocketAddr> {
        self.sides[side].engine.control.current().peers()[0].endpoint()
    }

    /// The address that `side` last sent from.
    pub(crate) fn last_source(&self, side: usize) -> Option<SocketAddr> {
        self.sources.iter().rev().find(|(from, ..)| *from == side).map(|(.., source)| *source)
    }

    /// How many initiations were sent to `address`.
    pub(crate) fn initiations_to(&self, address: SocketAddr) -> usize {
        self.initiations.iter().filter(|to| **to == address).count()
    }

    /// The identity of `side`, as long as `side` holds it.
    pub(crate) fn identity(&self, side: usize) -> Weak<dyn Identity> {
        self.sides[side].identity.clone()
    }

    pub(crate) fn peer(&self, side: usize) -> Arc<Peer> {
        Arc::clone(&self.sides[side].engine.control.current().peers()[0])
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Clears the recorded datagrams and received packets.
    pub(crate) fn clear_records(&mut self) {
        self.eavesdropped.clear();
        for side in &mut self.sides {
            side.received.clear();
        }
    }

    /// The ICMP errors that the cluster of `side` got.
    pub(crate) fn icmp_errors(&self, side: usize) -> &[Vec<u8>] {
        &self.sides[side].icmp_errors
    }

    pub(crate) fn received(&self, side: usize) -> Vec<Vec<u8>> {
        self.sides[side].received.clone()
    }

    pub(crate) fn outbound(&self, side: usize) -> Snapshot {
        self.sides[side].engine.control.accounts().outbound.snapshot()
    }

    pub(crate) fn inbound(&self, side: usize) -> Snapshot {
        self.sides[side].engine.control.accounts().inbound.snapshot()
    }

    pub(crate) fn session(&self, side: usize) -> SessionState {
        self.sides[side].engine.control.current().peers()[0].tunnel.session()
    }

    pub(crate) fn staged(&self, side: usize) -> usize {
        self.session(side).staged
    }

    pub(crate) fn count(&self, is_wanted: impl Fn(Message) -> bool) -> usize {
        self.eavesdropped
            .iter()
            .filter_map(|d| Message::classify(d))
            .filter(|m| is_wanted(*m))
            .count()
    }

    /// How many initiations were sent. Copies of one count once.
    pub(crate) fn distinct_initiations(&self) -> usize {
        let is_initiation = |d: &&Vec<u8>| Message::classify(d) == Some(Message::Initiation);
        let initiations: HashSet<_> = self.eavesdropped.iter().filter(is_initiation).collect();

        initiations.len()
    }

    /// Asserts that packets in equal packets out, dropped and staged, on both sides and in both directions.
    pub(crate) fn assert_accounts_balance(&self) {
        for side in [MILAN, ROME] {
            let staged = i128::try_from(self.staged(side)).unwrap();
            let (outbound, inbound) = (self.outbound(side), self.inbound(side));
            assert_eq!(outbound.balance(), staged, "outbound of {side}: {outbound:?}");
            assert_eq!(inbound.balance(), 0, "inbound of {side}: {inbound:?}");
        }
    }
}
