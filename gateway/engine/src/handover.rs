//! The hand-over of an engine to a successor: another process of the same gateway that goes on where this one stopped.
//!
//! The configuration is not handed over: the successor has its own. It puts the handed-over state in force peer by peer,
//! as they are configured, if the keys are the same; what is left is [forgotten](Control::forget_handed_over).

use std::str::FromStr as _;
use std::time::Instant;

use remap::masquerade::FlowRecord;

use super::Control;
use strait_packet::DropReason;
use strait_packet::counters::{Counters, Snapshot};
use strait_packet::path::Path;
use strait_wg::handover::{HandoverError, Reader, TunnelState, Writer};
use strait_wg::{PathMtu, PathMtuSource, Peer, PublicKey};

/// Why an engine cannot be handed over at this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key was changed less than three minutes ago, and the former one is still in use")]
pub struct KeyRotationUnderWay;

/// What an engine has learned.
#[derive(Debug)]
pub struct EngineState {
    next_realm: u32,
    peers: Vec<PeerState>,
    tunnels: Vec<([u8; 32], u32, TunnelState)>,
    outbound: Snapshot,
    inbound: Snapshot,
    flows: Vec<FlowRecord>,
}

/// What is known of a peer beside its tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerState {
    key: PublicKey,
    pub(super) realm: u32,
    path: Option<Path>,
    path_mtu: Option<PathMtu>,
    /// Bytes and packets received, bytes and packets sent, and damaged datagrams.
    counts: [u64; 5],
}

impl Control {
    /// The state at `now` for a successor. The threads of the engine must have stopped, and may start again only if there is no
    /// successor.
    ///
    /// # Errors
    ///
    /// [`KeyRotationUnderWay`] while a peer has tunnels of former keys.
    pub fn export(&self, now: Instant) -> Result<EngineState, KeyRotationUnderWay> {
        let forwarding = self.publisher.current();
        let peers = forwarding.peers();
        if !self.is_settled() {
            return Err(KeyRotationUnderWay);
        }
        let tunnels = peers.iter().filter_map(|peer| {
            let keyed = peer.tunnel.current();
            Some((keyed.keys.digest(keyed.own), keyed.slot, keyed.tunnel.export()?))
        });

        Ok(EngineState {
            next_realm: self.next_realm,
            peers: peers.iter().map(|peer| PeerState::of(peer)).collect(),
            tunnels: tunnels.collect(),
            outbound: self.accounts.outbound.snapshot(),
            inbound: self.accounts.inbound.snapshot(),
            flows: self.flows.export(self.flows.tick(now)),
        })
    }

    /// Whether an engine can be handed over now: no former key is in use.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let forwarding = self.publisher.current();

        self.keyring.keys().older.is_empty()
            && forwarding.peers().iter().all(|peer| peer.tunnel.older().is_empty())
    }

    /// Goes on from `state`. To be called before there are peers, and before the threads start.
    pub fn import(&mut self, state: EngineState, now: Instant) {
        self.flows.import(&state.flows, self.flows.tick(now));
        self.next_realm = self.next_realm.max(state.next_realm);
        self.handed_over = state.peers.into_iter().map(|peer| (peer.key, peer)).collect();
        self.keyed_tunnels.import(state.tunnels);
        add(&self.accounts.outbound, &state.outbound);
        add(&self.accounts.inbound, &state.inbound);
    }

    /// Wipes what was handed over for peers that are not configured, or have other keys. Returns the number of their
    /// tunnels.
    pub fn forget_handed_over(&mut self) -> usize {
        for (_, peer) in self.handed_over.drain() {
            self.flows.remove_realm(peer.realm);
        }

        self.keyed_tunnels.forget_handed_over()
    }
}

impl EngineState {
    /// How many sessions it has.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.tunnels.iter().map(|(_, _, tunnel)| tunnel.sessions()).sum()
    }

    /// Appends it to a hand-over.
    pub fn write(&self, out: &mut Writer) {
        out.u32(self.next_realm);
        out.list(self.peers.iter(), |out, peer| peer.write(out));
        out.list(self.tunnels.iter(), |out, (keys, slot, tunnel)| {
            out.put(keys);
            out.u32(*slot);
            tunnel.write(out);
        });
        write_counts(&self.outbound, out);
        write_counts(&self.inbound, out);
        out.list(self.flows.iter(), |out, flow| out.put(flow.as_bytes()));
    }

    /// Reads what [`Self::write`] wrote.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if it is not that.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        Ok(Self {
            next_realm: realm(from)?,
            peers: from.list(PeerState::read)?,
            tunnels: from.list(|from| {
                let (keys, slot) = (*from.array()?, from.u32()?);
                if slot >= 1 << 24 {
                    return Err(HandoverError::Invalid("slot"));
                }
                Ok((keys, slot, TunnelState::read(from)?))
            })?,
            outbound: read_counts(from)?,
            inbound: read_counts(from)?,
            flows: from.list(|from| from.array().map(|bytes| FlowRecord::from_bytes(*bytes)))?,
        })
    }
}

impl PeerState {
    fn of(peer: &Peer) -> Self {
        let Peer { receive, transmit, damaged, .. } = peer;

        Self {
            key: peer.keys.public_key,
            realm: peer.realm,
            path: peer.path(),
            path_mtu: peer.path_mtu(),
            counts: [&receive.bytes, &receive.packets, &transmit.bytes, &transmit.packets, damaged]
                .map(|counter| counter.get()),
        }
    }

    /// Puts it in force for a new peer.
    pub(super) fn apply_to(&self, peer: &Peer) {
        let Peer { receive, transmit, damaged, .. } = peer;
        let counters =
            [&receive.bytes, &receive.packets, &transmit.bytes, &transmit.packets, damaged];
        for (counter, count) in counters.into_iter().zip(self.counts) {
            counter.add(count);
        }
        if let Some(path) = self.path {
            peer.learn_path(path);
        }
        if let Some(path_mtu) = self.path_mtu {
            peer.learn_path_mtu(path_mtu);
        }
    }

    fn write(&self, out: &mut Writer) {
        out.put(self.key.as_bytes());
        out.u32(self.realm);
        out.optional(self.path, Writer::path);
        out.optional(self.path_mtu, |out, path_mtu| {
            out.u16(path_mtu.bytes);
            out.bytes(path_mtu.source.name().as_bytes());
        });
        for count in self.counts {
            out.u64(count);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, HandoverError> {
        let mut state = Self {
            key: PublicKey::from_bytes(*from.array()?),
            realm: realm(from)?,
            path: from.optional(Reader::path)?,
            path_mtu: from.optional(|from| {
                let (bytes, name) = (from.u16()?, from.bytes()?);
                let source =
                    str::from_utf8(name).ok().and_then(|name| PathMtuSource::from_str(name).ok());
                let source = source.ok_or(HandoverError::Invalid("source of a path MTU"))?;
                Ok(PathMtu { bytes, source })
            })?,
            counts: [0; 5],
        };
        for count in &mut state.counts {
            *count = from.u64()?;
        }

        Ok(state)
    }
}

/// Reads the number of a realm. There are never so many that the last are reached.
fn realm(from: &mut Reader<'_>) -> Result<u32, HandoverError> {
    let realm = from.u32()?;

    if realm < u32::MAX / 2 { Ok(realm) } else { Err(HandoverError::Invalid("realm")) }
}

/// Adds the counts of the predecessor, so that sums of both processes balance.
fn add(counters: &Counters, counts: &Snapshot) {
    counters.packets_in.add(counts.packets_in);
    counters.bytes_in.add(counts.bytes_in);
    counters.packets_out.add(counts.packets_out);
    counters.bytes_out.add(counts.bytes_out);
    counters.protocol_messages.add(counts.protocol_messages);
    counters.icmp_errors.add(counts.icmp_errors);
    counters.worker_frames.add(counts.worker_frames);
    counters.relayed.add(counts.relayed);
    for reason in DropReason::ALL {
        counters.count_drops(reason, counts.drops(reason));
    }
}

/// Drops by the name of their reason: another version may know other reasons.
fn write_counts(counts: &Snapshot, out: &mut Writer) {
    for count in [
        counts.packets_in,
        counts.bytes_in,
        counts.packets_out,
        counts.bytes_out,
        counts.protocol_messages,
        counts.icmp_errors,
        counts.worker_frames,
        counts.relayed,
    ] {
        out.u64(count);
    }
    out.list(DropReason::ALL.iter(), |out, reason| {
        out.bytes(reason.label().as_bytes());
        out.u64(counts.drops(*reason));
    });
}

fn read_counts(from: &mut Reader<'_>) -> Result<Snapshot, HandoverError> {
    let counters = Counters::default();
    for counter in [
        &counters.packets_in,
        &counters.bytes_in,
        &counters.packets_out,
        &counters.bytes_out,
        &counters.protocol_messages,
        &counters.icmp_errors,
        &counters.worker_frames,
        &counters.relayed,
    ] {
        counter.add(from.u64()?);
    }
    from.list(|from| {
        let (label, count) = (from.bytes()?, from.u64()?);
        let reason = DropReason::ALL.iter().find(|reason| reason.label().as_bytes() == label);
        if let Some(reason) = reason {
            counters.count_drops(*reason, count);
        }
        Ok(())
    })?;

    Ok(counters.snapshot())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do as the start")]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use remap::Table;

    use super::*;
    use crate::{Engine, PeerConfig, Settings};
    use strait_wg::native::Environment;
    use strait_wg::tunnel::PeerKeys;
    use strait_wg::{Epoch, PresharedKey, PrivateKey};

    #[test]
    fn a_successor_knows_what_was_learned() {
        let (own, start) = (PrivateKey::generate(), Instant::now());
        let mut before = engine(&own, start);
        // The second peer keeps its slot and its realm although the first is gone.
        before.control.apply(vec![peer(1, None), peer(2, None)], Table::default());
        before.control.apply(vec![peer(2, None)], Table::default());
        let known = Arc::clone(&before.control.current().peers()[0]);
        known.learn_path(path());
        known.learn_path_mtu(PathMtu { bytes: 1380, source: PathMtuSource::Probe });
        known.receive.bytes.add(70);
        known.damaged.add(3);
        let account = before.control.accounts();
        account.inbound.packets_in.add(5);
        account.outbound.count_drops(DropReason::NoRoute, 2);

        let mut after = engine(&own, start);
        after.control.import(handed_over(&before, start), start);
        after.control.apply(vec![peer(3, None), peer(2, None)], Table::default());

        let forwarding = after.control.current();
        let [new, same] = forwarding.peers() else { panic!("there are two peers") };
        assert_eq!((same.path(), same.path_mtu()), (known.path(), known.path_mtu()));
        assert_eq!(same.receive.bytes.get() + same.damaged.get(), 73);
        assert_eq!((same.realm, new.realm), (known.realm, known.realm + 1));
        let slot = |peer: &Peer| peer.tunnel.current().slot;
        assert_eq!((slot(same), slot(new)), (slot(&known), 0));
        let account = after.control.accounts();
        assert_eq!(account.inbound.snapshot().packets_in, 5);
        assert_eq!(account.outbound.snapshot().drops(DropReason::NoRoute), 2);
        assert_eq!(after.control.forget_handed_over(), 0);
    }

    #[test]
    fn a_tunnel_of_other_keys_is_forgotten() {
        let (own, start) = (PrivateKey::generate(), Instant::now());
        let mut before = engine(&own, start);
        before.control.apply(vec![peer(1, None)], Table::default());
        before.control.current().peers()[0].learn_path(path());

        let mut after = engine(&own, start);
        after.control.import(handed_over(&before, start), start);
        after.control.apply(vec![peer(1, Some(9))], Table::default());

        assert_eq!(after.control.current().peers()[0].path(), Some(path()));
        assert_eq!(after.control.forget_handed_over(), 1);
    }

    #[test]
    fn former_keys_are_not_handed_over() {
        let start = Instant::now();
        let mut engine = engine(&PrivateKey::generate(), start);
        engine.control.apply(vec![peer(1, None)], Table::default());
        assert!(engine.control.export(start).is_ok());

        engine.control.rotate_key(&identity(&PrivateKey::generate(), start));

        assert_eq!(engine.control.export(start).unwrap_err(), KeyRotationUnderWay);
    }

    /// As it arrives at the successor.
    fn handed_over(engine: &Engine, start: Instant) -> EngineState {
        let mut out = Writer::new(start);
        engine.control.export(start).unwrap().write(&mut out);

        EngineState::read(&mut Reader::new(&out.finish(), start)).unwrap()
    }

    fn engine(own: &PrivateKey, start: Instant) -> Engine {
        let settings = Settings { max_flows: 1024, seed: 7, index_seed: 7, start };

        Engine::new(identity(own, start), settings).unwrap()
    }

    fn identity(own: &PrivateKey, start: Instant) -> Arc<dyn strait_wg::tunnel::Identity> {
        let epoch = Epoch::new(start, Duration::from_secs(1_700_000_000));

        strait_wg::Engine::Native.identity(own, &Environment::new(epoch, 1420))
    }

    fn peer(number: u8, preshared: Option<u8>) -> PeerConfig {
        let preshared_key =
            preshared.map(|number| PresharedKey::from_bytes(&[number; 32]).unwrap());

        PeerConfig {
            name: format!("peer {number}"),
            keys: PeerKeys { public_key: PublicKey::from_bytes([number; 32]), preshared_key },
            endpoints: Vec::new(),
            allowed_ips: Arc::default(),
            clamp_mtu: None,
            persistent_keepalive: None,
        }
    }

    fn path() -> Path {
        SocketAddr::from(([192, 0, 2, 1], 51840)).into()
    }
}
