//! Keeps the `Connection` of the gateway, and what it says.

use std::time::Duration;

use control::complaint::Complaint;
use control::conncheck::Report;
use control::connection::Connections;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How often the `Connection` is looked at when there is no news of it.
const LOOK: Duration = Duration::from_secs(10);

/// After this a server that took the call and says nothing counts as away.
const CALL: Duration = Duration::from_secs(10);

/// Between attempts while the API server is away, first and longest.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Who finds out what there is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    /// This process, which writes it.
    Own,
    /// Another one has written it.
    OtherContainer,
}

/// Makes and keeps the `Connection` as soon as there `has_peer`, and reports for ever, or says in
/// `report_sender` what is reported.
pub(super) async fn run(
    mut connections: Connections,
    reporter: Reporter,
    report_sender: watch::Sender<Report>,
    mut has_peer: watch::Receiver<bool>,
    interval: Duration,
) {
    // Nobody is left to serve if the other end is gone.
    if has_peer.wait_for(|is| *is).await.is_err() {
        return;
    }
    let mut reports = report_sender.subscribe();
    let [first, longest] = RETRY;
    let mut retry = first;
    let mut complaint = Complaint::about("keep the Connection");

    loop {
        let report = *reports.borrow_and_update();
        let kept = async {
            connections.ensure().await?;
            match reporter {
                Reporter::Own => connections.report(&report, Timestamp::now(), interval).await,
                Reporter::OtherContainer => {
                    report_sender.send_replace(connections.reported().unwrap_or_default());
                    Ok(())
                }
            }
        };
        let kept = timeout(CALL, kept).await.map_err(anyhow::Error::from);
        let kept = kept.and_then(|kept| Ok(kept?));
        complaint.say(&kept);
        match kept {
            Ok(()) => {
                retry = first;
                // Every probe measures something else; only another state is worth a hurry.
                sleep(first).await;
                let is_new = |now: &Report| now.state != report.state;
                let _ = timeout(LOOK.min(interval), reports.wait_for(is_new)).await;
            }
            Err(_) => {
                sleep(retry).await;
                retry = (retry * 2).min(longest);
            }
        }
    }
}
