//! Writes the conditions of this node. It runs apart from the routes, which it never delays.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use strait_kube::complaint::Complaint;
use tokio::select;
use tokio::sync::watch;
use tokio::time::sleep;

use super::facts::Facts;
use super::finding::Findings;
use crate::condition;

/// The pause before a failed write is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Runs without end. May be dropped at any time.
pub(super) async fn speak(
    client: Client,
    mut facts: watch::Receiver<Facts>,
    mut findings: watch::Receiver<Option<Findings>>,
) {
    let mut complaint = Complaint::about("write the condition strait.io/NodeRoutes");
    loop {
        let news = facts.borrow_and_update().news(findings.borrow_and_update().as_ref());
        let mut is_written = true;
        for statement in news {
            let outcome = condition::state(&client, &statement, Timestamp::now()).await;
            complaint.say(&outcome);
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
