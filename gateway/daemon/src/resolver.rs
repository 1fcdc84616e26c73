//! Keeps endpoints with DNS names up to date, without blocking.
//!
//! A failed lookup is never an error of the gateway: the peer may come up later, and other peers must not wait.
//! Resolved addresses stay in use until a lookup returns others.

mod candidates;
mod lookup;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_io::PeerStatus;
use strait_wg::PublicKey;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::config::{Endpoint, HostPort, Peer, address_of_one_host};
use lookup::{Resolved, look_up};
use schedule::Schedule;

pub(crate) use schedule::CHECK_INTERVAL;

/// Unanswered initiations after which a name is looked up.
const UNANSWERED: u32 = 2;

/// The DNS names of a configuration, and the resulting addresses of its peers.
#[derive(Debug)]
pub(crate) struct Resolver {
    check_interval: Duration,
    peers: BTreeMap<PublicKey, Target>,
    names: BTreeMap<HostPort, Name>,
    lookups: JoinSet<Answer>,
}

/// The endpoints of one peer, and its current addresses.
#[derive(Debug)]
struct Target {
    endpoints: Vec<Endpoint>,
    addresses: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Name {
    schedule: Schedule,
    /// In the resolver's order of preference.
    addresses: Vec<SocketAddr>,
}

/// The result of one lookup.
#[derive(Debug)]
pub(crate) struct Answer {
    name: HostPort,
    result: io::Result<Resolved>,
}

impl Resolver {
    /// Creates a resolver without names. Each name is looked up at least every `check_interval`.
    pub(crate) fn new(check_interval: Duration) -> Self {
        Self {
            check_interval,
            peers: BTreeMap::new(),
            names: BTreeMap::new(),
            lookups: JoinSet::new(),
        }
    }

    /// Replaces the peers. Names that stay keep their addresses.
    pub(crate) fn configure(&mut self, peers: &[Peer], now: Instant) {
        let mut before = std::mem::take(&mut self.names);
        let endpoints = peers.iter().flat_map(|peer| &peer.endpoints);
        for name in endpoints.filter_map(Endpoint::name) {
            if !self.names.contains_key(name) {
                let fresh = || Name { schedule: Schedule::new(now), addresses: Vec::new() };
                self.names.insert(name.clone(), before.remove(name).unwrap_or_else(fresh));
            }
        }

        let mut before = std::mem::take(&mut self.peers);
        for peer in peers {
            let addresses = before.remove(&peer.keys.public_key).map(|target| target.addresses);
            let endpoints = peer.endpoints.clone();
            let target = Target { endpoints, addresses: addresses.unwrap_or_default() };
            self.peers.insert(peer.keys.public_key, target);
        }
        self.choose();
    }

    /// The candidate addresses of a peer, in order of preference.
    pub(crate) fn addresses(&self, key: &PublicKey) -> &[SocketAddr] {
        self.peers.get(key).map_or(&[], |target| &target.addresses)
    }

    /// Looks up all names now, because a peer may have moved.
    pub(crate) fn look_up_now(&mut self, now: Instant) {
        for name in self.names.values_mut() {
            name.schedule.look_up_now(now);
        }
        self.start_lookups(now);
    }

    /// Handles the status of the peers and starts the lookups that are due. Call it about once a second, within the
    /// runtime.
    pub(crate) fn handle_status(&mut self, peers: &[PeerStatus], now: Instant) {
        let silent = peers.iter().filter(|peer| peer.unanswered >= UNANSWERED);
        let silent = silent.filter_map(|peer| self.peers.get(&peer.public_key));
        let unanswered: BTreeSet<&HostPort> =
            silent.flat_map(|target| &target.endpoints).filter_map(Endpoint::name).collect();
        for (target, name) in &mut self.names {
            name.schedule.set_unanswered(unanswered.contains(target), now);
        }
        self.start_lookups(now);
    }

    /// Waits for the next answer; forever while there is no lookup. Cancel safe.
    pub(crate) async fn next_answer(&mut self) -> Answer {
        loop {
            match self.lookups.join_next().await {
                Some(Ok(answer)) => return answer,
                // Lookups are never aborted, and the panic hook reports panics.
                Some(Err(_)) => {}
                None => pending().await,
            }
        }
    }

    /// Applies an answer and returns the peers whose candidates changed.
    pub(crate) fn handle_answer(&mut self, answer: Answer, now: Instant) -> Vec<PublicKey> {
        let Answer { name: target, result } = answer;
        let Some(name) = self.names.get_mut(&target) else {
            return Vec::new();
        };
        let was_failing = name.schedule.is_failing();
        let found = result.map_err(|error| error.to_string()).and_then(|found| {
            let addresses: Vec<_> = found.addresses.into_iter().filter_map(usable).collect();
            if addresses.is_empty() {
                Err("no usable address".into())
            } else {
                Ok((addresses, found.ttl))
            }
        });
        let (addresses, ttl) = match found {
            Ok(found) => found,
            Err(error) => {
                name.schedule.handle_failure(now);
                if !was_failing {
                    warn!(name = %target, error, "cannot resolve the endpoint; trying again");
                }
                return Vec::new();
            }
        };

        name.schedule.handle_answer(ttl, self.check_interval, now);
        name.addresses = addresses;
        let changed = self.choose();
        if was_failing || !changed.is_empty() {
            let addresses = self.names.get(&target).map(|name| &name.addresses);
            info!(name = %target, ?addresses, ?ttl, "endpoint resolved");
        }

        changed
    }

    fn start_lookups(&mut self, now: Instant) {
        for (target, name) in &mut self.names {
            if name.schedule.poll_lookup(now) {
                let target = target.clone();
                self.lookups.spawn(async move {
                    let result = look_up(&target).await;
                    Answer { name: target, result }
                });
            }
        }
    }

    /// Recomputes the candidates and returns the peers for which they changed.
    fn choose(&mut self) -> Vec<PublicKey> {
        let mut changed = Vec::new();
        for (key, target) in &mut self.peers {
            let sources: Vec<Vec<SocketAddr>> = target
                .endpoints
                .iter()
                .map(|endpoint| match endpoint {
                    Endpoint::Address(address) | Endpoint::Learned(address) => vec![*address],
                    Endpoint::Name(name) => {
                        self.names.get(name).map_or_else(Vec::new, |name| name.addresses.clone())
                    }
                })
                .collect();
            let addresses = candidates::choose(&target.addresses, &sources);
            if addresses.iter().collect::<BTreeSet<_>>() != target.addresses.iter().collect() {
                changed.push(*key);
            }
            target.addresses = addresses;
        }

        changed
    }
}

fn usable(address: SocketAddr) -> Option<SocketAddr> {
    address_of_one_host(address).ok()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests;
