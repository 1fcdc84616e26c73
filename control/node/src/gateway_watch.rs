//! Asks the gateways that share a remote cluster which of them forward: holds a connection to each.
//!
//! A gateway does not forward if it says so, if it cannot be reached, or if it is silent for [`SILENCE_MAX`].
//!
//! # Not here
//!
//! Which gateways share a remote cluster, and what follows from their answers (see [`crate::plan`]).

mod connection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use crate::plan::{Endpoint, Forwarding, GatewayState};
use connection::{Connection, Failure};

/// A gateway sends a line every 100 ms.
const SILENCE_MAX: Duration = Duration::from_millis(300);

/// A gateway ends each connection after a time, and is the same as before if another one is open that soon.
const REOPENED_WITHIN: Duration = Duration::from_millis(100);

/// The pause after the first failure; each further one doubles it.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The connections. Must live within the runtime that created it.
pub(super) struct GatewayWatch {
    connections: BTreeMap<Endpoint, JoinHandle<()>>,
    forwarding: watch::Sender<Forwarding>,
    seen: watch::Receiver<Forwarding>,
}

impl GatewayWatch {
    /// Without a connection.
    pub(super) fn new() -> Self {
        let (forwarding, seen) = watch::channel(Forwarding::default());

        Self { connections: BTreeMap::new(), forwarding, seen }
    }

    /// Holds a connection to each of `endpoints` from now on, and to no other.
    pub(super) fn follow(&mut self, endpoints: &BTreeSet<Endpoint>) {
        self.connections.retain(|endpoint, connection| {
            let stays = endpoints.contains(endpoint);
            if !stays {
                connection.abort();
            }
            stays
        });
        // The plan does not ask for the others any more.
        self.forwarding.send_if_modified(|known| {
            known.retain(|endpoint, _| endpoints.contains(endpoint));
            false
        });
        for endpoint in endpoints {
            self.connections
                .entry(endpoint.clone())
                .or_insert_with(|| tokio::spawn(ask(endpoint.clone(), self.forwarding.clone())));
        }
    }

    /// Waits until a gateway says something else. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // The sender is `self.forwarding`.
            std::future::pending::<()>().await;
        }
    }

    /// What gateways say now, as far as it is known.
    pub(super) fn forwarding(&mut self) -> Forwarding {
        self.seen.borrow_and_update().clone()
    }
}

impl Drop for GatewayWatch {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            connection.abort();
        }
    }
}

/// Publishes what the gateway at `endpoint` says, without end.
async fn ask(endpoint: Endpoint, forwarding: watch::Sender<Forwarding>) {
    let forwards = |state| publish(&forwarding, &endpoint, state, &"it says so");
    let is_lost = |reason: &Failure| {
        publish(&forwarding, &endpoint, GatewayState::default(), reason);
    };
    let mut pause = RETRY_MIN;
    let mut was_ended = false;
    loop {
        let mut attempt = Box::pin(Connection::open(endpoint.address));
        let opened = match timeout(REOPENED_WITHIN, &mut attempt).await {
            Ok(opened) => opened,
            Err(_) => {
                if was_ended {
                    is_lost(&Failure::Ended);
                }
                attempt.await
            }
        };
        let since = Instant::now();
        was_ended = false;
        match opened {
            Ok((mut connection, state)) => {
                forwards(state);
                let failure = loop {
                    match connection.next().await {
                        Ok(state) => forwards(state),
                        Err(failure) => break failure,
                    }
                };
                was_ended = failure.is_end() && since.elapsed() >= RETRY_MIN;
                if since.elapsed() >= RETRY_MAX {
                    pause = RETRY_MIN;
                }
                if was_ended {
                    continue;
                }
                is_lost(&failure);
            }
            Err(failure) => is_lost(&failure),
        }
        sleep(pause).await;
        pause = RETRY_MAX.min(pause * 2);
    }
}

fn publish(
    forwarding: &watch::Sender<Forwarding>,
    endpoint: &Endpoint,
    state: GatewayState,
    reason: &dyn Display,
) {
    forwarding.send_if_modified(|known| {
        let former = known.get(endpoint);
        if former == Some(&state) {
            return false;
        }
        if former.is_none_or(|former| former.forwards != state.forwards) {
            if state.forwards {
                info!(gateway = %endpoint, own_destinations = ?state.own_destinations, "the gateway forwards");
            } else {
                info!(gateway = %endpoint, %reason, "the gateway does not forward");
            }
        }
        known.insert(endpoint.clone(), state);
        true
    });
}
