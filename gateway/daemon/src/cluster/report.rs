//! Creates the `Connection` of the gateway and keeps its status current.

use std::time::Duration;

use jiff::Timestamp;
use strait_kube::repeated_failure::RepeatedFailure;
use strait_plan::conncheck::Report;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::cluster::connection::Connections;

/// Longest interval between checks of the `Connection`.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout of a call to the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// First and longest pause between attempts while the API server does not answer.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Which process determines the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    /// This process, which also writes it.
    Own,
    /// Another container, which also writes it.
    OtherContainer,
}

/// Keeps the `Connection` once there is a peer. Writes reports to it, or reads them from it into `report_sender`.
/// Does not return while the source exists.
pub(super) async fn run(
    mut connections: Connections,
    reporter: Reporter,
    report_sender: watch::Sender<Report>,
    mut has_peer: watch::Receiver<bool>,
    interval: Duration,
) {
    // The cluster source was dropped.
    if has_peer.wait_for(|is| *is).await.is_err() {
        return;
    }
    let mut reports = report_sender.subscribe();
    let [first, longest] = RETRY;
    let mut retry = first;
    let mut failure = RepeatedFailure::about("keep the Connection");

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
        let kept = timeout(CALL_TIMEOUT, kept).await.map_err(anyhow::Error::from);
        let kept = kept.and_then(|kept| Ok(kept?));
        failure.log(&kept);
        match kept {
            Ok(()) => {
                retry = first;
                // Every probe changes the latency; only another state is written at once.
                sleep(first).await;
                let is_new = |now: &Report| now.state != report.state;
                let _ = timeout(CHECK_INTERVAL.min(interval), reports.wait_for(is_new)).await;
            }
            Err(_) => {
                sleep(retry).await;
                retry = (retry * 2).min(longest);
            }
        }
    }
}
