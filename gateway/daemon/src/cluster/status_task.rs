//! Writes the conditions and Events of objects, for as long as this replica is the leader.

use std::time::Duration;

use jiff::Timestamp;
use strait_kube::repeated_failure::RepeatedFailure;
use strait_plan::conditions::Verdict;
use strait_plan::conncheck::Report;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::cluster::status_reporter::{Round, StatusReporter};

/// First and longest pause between attempts while the API server does not answer; the first is also the minimum
/// between rounds.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// Writes changed `verdicts`, and the state of the connection check if there is one.
pub(super) async fn run(
    mut reporter: StatusReporter,
    mut verdicts: watch::Receiver<Vec<Verdict>>,
    mut checked: Option<watch::Receiver<Report>>,
) {
    let [first, longest] = RETRY;
    let mut retry = first;
    let mut failure = RepeatedFailure::about("write conditions and Events");

    loop {
        let current = verdicts.borrow_and_update().clone();
        let state = checked.as_ref().map(|reports| reports.borrow().state);
        let round = reporter.round(&current, state, Timestamp::now()).await;
        failure.log(&round);
        match round {
            Ok(Round { failures: complaints, again }) => {
                for failure in complaints {
                    warn!("{failure}");
                }
                retry = first;
                // Changes within a short time are written together.
                sleep(first).await;
                let change = async {
                    tokio::select! {
                        changed = verdicts.changed() => changed.is_ok(),
                        changed = other_than(&mut checked, state) => changed,
                    }
                };
                let is_alive = match again {
                    None => change.await,
                    Some(at) => timeout(until(at), change).await.unwrap_or(true),
                };
                // The cluster source was dropped.
                if !is_alive {
                    return;
                }
            }
            Err(_) => {
                sleep(retry).await;
                retry = (retry * 2).min(longest);
            }
        }
    }
}

/// Waits for a report with another state; without reports, forever. Returns whether more reports can follow.
async fn other_than(
    reports: &mut Option<watch::Receiver<Report>>,
    state: Option<strait_plan::conncheck::State>,
) -> bool {
    match reports {
        Some(reports) => reports.wait_for(|now| Some(now.state) != state).await.is_ok(),
        None => std::future::pending().await,
    }
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}
