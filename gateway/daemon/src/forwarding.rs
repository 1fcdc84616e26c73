//! Whether this gateway forwards, for the agents that spread flows over the gateways of a peering.
//!
//! A task of its own decides, so that a control loop that waits for the kernel delays no answer. The agents of the nodes
//! read the result at `/forwarding`.

use std::time::Duration;

use hyper::body::Bytes;
use remap::Prefix;
use serde::Serialize;
use strait_io::Monitor;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use super::admin::StatusBoard;
use super::cluster::PathWatch;

/// Interval of looking for a session with the only peer of a gateway in a cluster.
const LOOK: Duration = Duration::from_millis(100);

/// Interval of looking for the sessions with all peers of a file.
const LOOK_AT_ALL: Duration = Duration::from_secs(1);

/// What a gateway says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Forwarding {
    /// Whether packets to the remote cluster that are given to this gateway reach the other end now, as far as it knows.
    pub(crate) forwards: bool,
    /// The prefixes, as this cluster sees them, that only this gateway and its other end may carry. Empty if unknown.
    #[serde(serialize_with = "texts")]
    pub(crate) own_destinations: Vec<Prefix>,
}

impl Forwarding {
    /// One line of JSON.
    pub(crate) fn to_line(&self) -> Bytes {
        // Serialization cannot fail for this type.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');

        line.into()
    }
}

fn texts<S: serde::Serializer>(prefixes: &[Prefix], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(prefixes.iter().map(ToString::to_string))
}

/// Publishes whether the gateway forwards. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Publisher(watch::Sender<Forwarding>);

impl Publisher {
    /// Follows what is published.
    pub(crate) fn follow(&self) -> watch::Receiver<Forwarding> {
        self.0.subscribe()
    }

    /// Whether at least one client follows.
    pub(crate) fn is_followed(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// The gateway is draining: it no longer forwards.
    pub(crate) fn retract(&self) {
        self.0.send_if_modified(|last| std::mem::take(&mut last.forwards));
    }

    /// Publishes this, and wakes clients if it is new.
    pub(crate) fn publish(&self, forwarding: Forwarding) {
        let is_followed = self.is_followed();
        self.0.send_if_modified(|last| {
            if last.forwards != forwarding.forwards && is_followed {
                info!(
                    forwards = forwarding.forwards,
                    "the agents of nodes learn whether this gateway forwards"
                );
            }
            let is_new = *last != forwarding;
            *last = forwarding;
            is_new
        });
    }
}

/// Follows sessions, and the `path` to the other end if there is a cluster, and publishes on `board`. Does not return.
pub(crate) async fn run(monitor: Monitor, mut path: Option<PathWatch>, board: StatusBoard) {
    let mut looks = interval(if path.is_some() { LOOK } else { LOOK_AT_ALL });
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_usable = path.as_ref().is_none_or(PathWatch::is_usable);
        let own_destinations = path.as_ref().map(PathWatch::own_destinations).unwrap_or_default();
        let forwards = is_usable && board.can_forward() && monitor.has_all_sessions();
        board.forwarding().publish(Forwarding { forwards, own_destinations });

        select! {
            _ = looks.tick() => {}
            () = changed(&mut path) => {}
        }
    }
}

/// Waits for a change of `path`; without one, forever. Cancel safe.
async fn changed(path: &mut Option<PathWatch>) {
    match path {
        Some(path) => path.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let own_destinations =
            vec!["10.81.0.1/32".parse().unwrap(), "fd00:81::1/128".parse().unwrap()];
        let forwarding = Forwarding { forwards: true, own_destinations };

        assert_eq!(
            forwarding.to_line(),
            "{\"forwards\":true,\"own_destinations\":[\"10.81.0.1/32\",\"fd00:81::1/128\"]}\n"
        );
        assert_eq!(
            Forwarding::default().to_line(),
            "{\"forwards\":false,\"own_destinations\":[]}\n"
        );
    }

    #[test]
    fn only_changes_wake_clients() {
        let publisher = Publisher::default();
        let mut client = publisher.follow();
        let [does, does_not] =
            [true, false].map(|forwards| Forwarding { forwards, ..Forwarding::default() });
        let mut woken = Vec::new();
        for step in [None, Some(&does_not), Some(&does), Some(&does), None] {
            match step {
                Some(forwarding) => publisher.publish(forwarding.clone()),
                None => publisher.retract(),
            }
            woken.push(client.has_changed().unwrap().then(|| client.borrow_and_update().clone()));
        }

        assert_eq!(woken, [None, None, Some(does), None, Some(does_not)]);
    }
}
