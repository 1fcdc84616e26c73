//! Finds out whether this node masquerades packets of its pods to remote clusters, which then see one address for all
//! pods.

use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::conntrack::{self, Flow};
use super::facts::Facts;
use super::finding::{Finding, Findings};

/// The period of reads of the connection table. A hundred thousand connections take a tenth of a second.
const PERIOD: Duration = Duration::from_secs(20);

/// Looks at the connections of this node periodically, and publishes what is wrong in `findings`; `None` while they cannot
/// be read.
pub(super) async fn scan(facts: watch::Receiver<Facts>, findings: watch::Sender<Option<Findings>>) {
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
        let former = findings.borrow().clone().unwrap_or_default();
        let found = spawn_blocking(move || find(&facts, &former)).await;
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
                    warn!(%object, flows = finding.flows, "{finding}");
                }
            }
        }
        findings.send_if_modified(|known| std::mem::replace(known, found) != *known);
    }
}

fn find(facts: &Facts, former: &Findings) -> io::Result<Findings> {
    let mut findings = Findings::new();
    conntrack::for_each(|flow| add(&mut findings, flow, facts, former))?;

    Ok(findings)
}

/// Adds `flow`, if it is a masqueraded one of a pod. The example of `former` is kept for as long as it is found.
fn add(findings: &mut Findings, flow: Flow, facts: &Facts, former: &Findings) {
    // Most flows end here.
    if !flow.is_masqueraded() || !facts.pods.iter().any(|pods| pods.contains(flow.source)) {
        return;
    }
    // The longest prefix, as in routing.
    let owners = facts.owners.iter().filter(|(prefix, _)| prefix.contains(flow.destination));
    if let Some((_, object)) = owners.max_by_key(|(prefix, _)| prefix.len_bits()) {
        let finding = findings.entry(object.clone()).or_insert(Finding { flows: 0, example: flow });
        finding.flows += 1;
        if former.get(object).is_some_and(|former| former.example == flow) {
            finding.example = flow;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use strait_plan::objects::ObjectName;

    use super::*;

    fn flow(pod: u8, seen_as: [u8; 4]) -> Flow {
        Flow {
            source: IpAddr::from([10, 244, 2, pod]),
            destination: IpAddr::from([10, 71, 2, 7]),
            seen_as: IpAddr::from(seen_as),
        }
    }

    #[test]
    fn a_finding_is_stable_while_flows_change() {
        const NODE: [u8; 4] = [172, 18, 0, 2];
        let object = ObjectName {
            kind: "Configuration".to_owned(),
            namespace: "tenant".to_owned(),
            name: "rome".to_owned(),
        };
        let mut facts = Facts::default();
        facts.owners.insert("10.71.0.0/16".parse().unwrap(), object.clone());
        facts.pods.insert("10.244.0.0/16".parse().unwrap());
        let look = |flows: &[Flow], former: &Findings| {
            let mut findings = Findings::new();
            for flow in flows {
                add(&mut findings, *flow, &facts, former);
            }
            findings
        };
        let untouched = flow(9, [10, 244, 2, 9]);
        let strange = Flow { source: IpAddr::from([192, 0, 2, 1]), ..flow(8, NODE) };

        let first = look(&[untouched, strange, flow(5, NODE), flow(6, NODE)], &Findings::new());
        let second = look(&[flow(7, NODE), flow(6, NODE), flow(5, NODE)], &first);
        let third = look(&[flow(7, NODE), flow(6, NODE)], &second);

        assert_eq!((first[&object].flows, second[&object].flows), (2, 3));
        let text = "flows of pods leave with another source, as 10.244.2.5 to 10.71.2.7 with \
                    172.18.0.2: exempt the prefix from the masquerade of the CNI";
        assert_eq!(first[&object].to_string(), text);
        assert_eq!(second[&object].to_string(), text);
        assert_eq!(third[&object].example, flow(7, NODE), "an existing flow");
        assert_eq!(look(&[untouched, strange], &third), Findings::new());
    }
}
