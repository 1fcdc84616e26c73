//! What a process keeps in memory when its start is over.

use std::time::Duration;

use strait_gateway::io::let_go_of_files;
use tokio::time::sleep;
use tracing::debug;

/// Until everything has happened once: devices, addresses and routes, the first handshakes, the first look
/// at all that is looked at every second.
const START: Duration = Duration::from_secs(5);

/// Waits for the end of the start and lets go of what it alone has read of the program: half of what is
/// resident.
pub(crate) async fn let_go_of_start() {
    sleep(START).await;
    match let_go_of_files() {
        Ok(bytes) => debug!(bytes, "the start is over: what it has read is let go"),
        Err(error) => debug!(%error, "what the start has read stays in memory"),
    }
}
