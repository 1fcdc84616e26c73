//! Keeps the endpoints that are given by name up to date, beside everything else.
//!
//! A name that does not resolve is never an error of the gateway: the peer may come up later, and
//! others must not wait for it.

mod schedule;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_gateway::io::PeerStatus;
use strait_gateway::wg::PublicKey;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::config::{Endpoint, HostPort, Peer, address_of_one_host};
use schedule::Schedule;

/// After this a lookup counts as failed. The system's resolver gives up after 5 s a server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);

/// All names of one configuration.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    names: BTreeMap<PublicKey, Name>,
    lookups: JoinSet<Answer>,
}

#[derive(Debug)]
struct Name {
    peer: String,
    target: HostPort,
    wants_keepalive: bool,
    schedule: Schedule,
}

/// What came of one lookup.
#[derive(Debug)]
pub(crate) struct Answer {
    key: PublicKey,
    target: HostPort,
    result: io::Result<Vec<SocketAddr>>,
}

impl Resolver {
    /// Takes over the names of `peers`. A name that was there before keeps its answer.
    pub(crate) fn configure(&mut self, peers: &[Peer], now: Instant) {
        let mut before = std::mem::take(&mut self.names);
        for peer in peers {
            let Some(Endpoint::Name(target)) = &peer.endpoint else {
                continue;
            };
            let schedule = match before.remove(&peer.public_key) {
                Some(name) if name.target == *target => name.schedule,
                _ => Schedule::new(now),
            };
            let name = Name {
                peer: peer.name.clone(),
                target: target.clone(),
                wants_keepalive: peer.persistent_keepalive.is_some(),
                schedule,
            };
            self.names.insert(peer.public_key, name);
        }
    }

    /// The address that the name of a peer led to, if it has a name and an answer.
    pub(crate) fn resolved(&self, key: &PublicKey) -> Option<SocketAddr> {
        self.names.get(key)?.schedule.chosen()
    }

    /// Looks at the peers and starts the lookups that are due. To be called about once a second,
    /// within the runtime.
    pub(crate) fn handle_status(&mut self, peers: &[PeerStatus], now: Instant) {
        for (key, name) in &mut self.names {
            let status = peers.iter().find(|peer| peer.public_key == *key);
            let wants_handshake = status.is_some_and(|peer| {
                peer.staged_packets > 0 || (name.wants_keepalive && !peer.has_session)
            });
            name.schedule.handle_status(wants_handshake, now);
            if name.schedule.poll_lookup(now) {
                self.lookups.spawn(look_up(*key, name.target.clone()));
            }
        }
    }

    /// The next answer; waits for ever while nothing is being looked up. Cancel safe.
    pub(crate) async fn next_answer(&mut self) -> Answer {
        loop {
            match self.lookups.join_next().await {
                Some(Ok(answer)) => return answer,
                // A lookup is never aborted, and a panic in it was reported by the panic hook.
                Some(Err(_)) => {}
                None => pending().await,
            }
        }
    }

    /// Draws the consequence of an answer: the peer and the endpoint it must get, if any.
    pub(crate) fn handle_answer(
        &mut self,
        answer: Answer,
        peers: &[PeerStatus],
        now: Instant,
    ) -> Option<(PublicKey, SocketAddr)> {
        let Answer { key, target, result } = answer;
        let name = self.names.get_mut(&key).filter(|name| name.target == target)?;
        let was_failing = name.schedule.is_failing();
        let addresses: Vec<SocketAddr> = match result {
            Ok(addresses) => addresses.into_iter().filter_map(usable).collect(),
            Err(error) => {
                name.schedule.handle_failure(now);
                name.warn_once(was_failing, &error.to_string());
                return None;
            }
        };
        if addresses.is_empty() {
            name.schedule.handle_failure(now);
            name.warn_once(was_failing, "no usable address");
            return None;
        }

        let current =
            peers.iter().find(|peer| peer.public_key == key).and_then(|peer| peer.endpoint);
        let change = name.schedule.handle_answer(&addresses, current, now);
        if was_failing || change.is_some() {
            let (peer, endpoint) = (&name.peer, name.schedule.chosen());
            info!(%peer, name = %target, ?endpoint, "endpoint resolved");
        }

        change.map(|endpoint| (key, endpoint))
    }
}

impl Name {
    fn warn_once(&self, was_failing: bool, error: &str) {
        if !was_failing {
            let (peer, name) = (&self.peer, &self.target);
            warn!(%peer, %name, error, "endpoint does not resolve; trying again until it does");
        }
    }
}

async fn look_up(key: PublicKey, target: HostPort) -> Answer {
    let result = match timeout(LOOKUP_TIMEOUT, lookup_host((&*target.host, target.port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };

    Answer { key, target, result }
}

fn usable(address: SocketAddr) -> Option<SocketAddr> {
    address_of_one_host(address).ok()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test owns the clock")]
mod tests {
    use super::super::config::example;
    use super::*;

    #[test]
    fn an_answer_becomes_the_endpoint_of_its_peer() {
        let (mut resolver, key) = resolver_for("rome.example:51840");

        let change = resolver.handle_answer(answer(key, &["192.0.2.7"]), &[status(key)], now());

        let endpoint = "192.0.2.7:51840".parse().unwrap();
        assert_eq!(change, Some((key, endpoint)));
        assert_eq!(resolver.resolved(&key), Some(endpoint));
    }

    #[test]
    fn an_answer_counts_before_the_engine_shows_the_peer() {
        let (mut resolver, key) = resolver_for("rome.example:51840");

        let change = resolver.handle_answer(answer(key, &["192.0.2.7"]), &[], now());

        assert_eq!(change, Some((key, "192.0.2.7:51840".parse().unwrap())));
    }

    #[test]
    fn addresses_of_no_host_are_no_answer() {
        let (mut resolver, key) = resolver_for("rome.example:51840");

        let change =
            resolver.handle_answer(answer(key, &["0.0.0.0", "224.0.0.1"]), &[status(key)], now());

        assert_eq!(change, None);
        assert_eq!(resolver.resolved(&key), None);
    }

    #[test]
    fn an_answer_for_a_name_that_changed_meanwhile_is_ignored() {
        let (mut resolver, key) = resolver_for("rome.example:51840");
        let late = answer(key, &["192.0.2.7"]);
        resolver.configure(&[peer("roma.example:51840")], now());

        let change = resolver.handle_answer(late, &[status(key)], now());

        assert_eq!(change, None);
    }

    #[test]
    fn a_name_that_stays_keeps_its_answer_across_a_reload() {
        let (mut resolver, key) = resolver_for("rome.example:51840");
        resolver.handle_answer(answer(key, &["192.0.2.7"]), &[status(key)], now());

        resolver.configure(&[peer("rome.example:51840")], now());

        assert!(resolver.resolved(&key).is_some());
    }

    #[test]
    fn a_literal_address_needs_no_lookup() {
        let mut resolver = Resolver::default();

        resolver.configure(&[peer("192.0.2.1:51840")], now());

        assert!(resolver.names.is_empty());
    }

    #[test]
    fn the_system_resolver_is_asked() {
        let (mut resolver, key) = resolver_for("localhost:51840");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

        let answer = runtime.block_on(async {
            resolver.handle_status(&[status(key)], now());
            resolver.next_answer().await
        });

        let addresses = answer.result.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()), "{addresses:?}");
    }

    fn resolver_for(endpoint: &str) -> (Resolver, PublicKey) {
        let peer = peer(endpoint);
        let mut resolver = Resolver::default();
        resolver.configure(std::slice::from_ref(&peer), now());

        (resolver, peer.public_key)
    }

    fn peer(endpoint: &str) -> Peer {
        Peer { endpoint: Some(endpoint.parse().unwrap()), ..example::config().peers[0].clone() }
    }

    fn answer(key: PublicKey, ips: &[&str]) -> Answer {
        let target = HostPort { host: "rome.example".to_owned(), port: 51840 };
        let addresses = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 51840)).collect();

        Answer { key, target, result: Ok(addresses) }
    }

    fn status(public_key: PublicKey) -> PeerStatus {
        PeerStatus {
            name: "rome".to_owned(),
            public_key,
            endpoint: None,
            last_handshake: None,
            rtt: None,
            receive_bytes: 0,
            transmit_bytes: 0,
            receive_packets: 0,
            transmit_packets: 0,
            staged_packets: 0,
            has_session: false,
            path_mtu_bytes: None,
        }
    }

    fn now() -> Instant {
        Instant::now()
    }
}
