//! Writes the conditions of this node. It runs apart from the routes, which it never delays.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use strait_kube::repeated_failure::RepeatedFailure;
use tokio::select;
use tokio::sync::watch;
use tokio::time::sleep;

use super::facts::Facts;
use super::finding::Findings;
use crate::condition;

/// The pause before a failed write is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Runs without end. May be dropped at any time.
pub(super) async fn write_conditions(
    client: Client,
    mut facts: watch::Receiver<Facts>,
    mut findings: watch::Receiver<Option<Findings>>,
) {
    let mut failure = RepeatedFailure::about("write the condition strait.io/NodeRoutes");
    loop {
        let changed = facts.borrow_and_update().changed(findings.borrow_and_update().as_ref());
        let mut is_written = true;
        for statement in changed {
            let outcome = condition::state(&client, &statement, Timestamp::now()).await;
            failure.log(&outcome);
            is_written &= outcome.is_ok();
        }
        let again = async {
            if is_written {
                std::future::pending::<()>().await;
            }
            sleep(RETRY).await;
        };
        select! {
            Ok(()) = facts.changed() => {}
            Ok(()) = findings.changed() => {}
            () = again => {}
        }
    }
}
