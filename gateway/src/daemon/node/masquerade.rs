//! Whether this node masquerades what its pods send to remote clusters: then those see one address for
//! all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use control::objects::ObjectName;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::conntrack::{self, Flow};
use super::facts::Facts;

/// How often connections are looked at. A hundred thousand of them take a tenth of a second.
const PERIOD: Duration = Duration::from_secs(20);

/// What was found, by the `Configuration` of the remote cluster.
pub(super) type Findings = BTreeMap<ObjectName, Finding>;

/// Masqueraded flows of pods to one remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) flows: usize,
    /// One of them.
    pub(super) example: Flow,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, example: Flow { source, destination, seen_as } } = self;

        write!(
            f,
            "{flows} flows of pods leave with another source, as {source} to {destination} with {seen_as}: exempt the prefix from the masquerade of the CNI"
        )
    }
}

/// Looks at the connections of this node for ever, and says in `findings` what is wrong; `None` while it
/// cannot see any.
pub(super) async fn look(facts: watch::Receiver<Facts>, findings: watch::Sender<Option<Findings>>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_seen = true;
    loop {
        ticks.tick().await;
        let facts = facts.borrow().clone();
        if facts.owners.is_empty() {
            findings.send_if_modified(|known| known.replace(Findings::new()) != *known);
            continue;
        }
        let found = spawn_blocking(move || find(&facts)).await;
        let found = found.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        match &found {
            Ok(_) => was_seen = true,
            Err(error) if was_seen => {
                was_seen = false;
                info!(%error, "cannot see connections; whether pods are masqueraded is not known");
            }
            Err(_) => {}
        }
        let found = found.ok();
        if let Some(found) = &found {
            let known = findings.borrow();
            for (object, finding) in found {
                let is_known = known.as_ref().is_some_and(|known| known.contains_key(object));
                if !is_known {
                    warn!(%object, "{finding}");
                }
            }
        }
        findings.send_if_modified(|known| std::mem::replace(known, found) != *known);
    }
}

fn find(facts: &Facts) -> io::Result<Findings> {
    let mut findings = Findings::new();
    conntrack::for_each(|flow| {
        let is_of_pod = facts.pods.iter().any(|pods| pods.contains(flow.source));
        if !flow.is_masqueraded() || !is_of_pod {
            return;
        }
        // The longest one, as routes have it.
        let owners = facts.owners.iter().filter(|(prefix, _)| prefix.contains(flow.destination));
        if let Some((_, object)) = owners.max_by_key(|(prefix, _)| prefix.len_bits()) {
            let finding =
                findings.entry(object.clone()).or_insert(Finding { flows: 0, example: flow });
            finding.flows += 1;
        }
    })?;

    Ok(findings)
}
