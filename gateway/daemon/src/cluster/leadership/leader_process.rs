//! Notices on standby, at once, that the process of the leader has ended.
//!
//! A TCP connection to its health port ends with it, and from then on the kernel of its pod refuses connections. A node
//! that dies refuses nothing: then the Lease has to expire.

use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use strait_kube::active::ActivePod;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tracing::debug;

use crate::election::pod_of;

/// The least time between two connections to a port that is open: servers close idle ones.
const CONNECT_INTERVAL: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the replicas of a gateway are, and their health port.
#[derive(Clone, Debug)]
pub(super) struct HealthPort {
    pub(super) replicas: ActivePod,
    pub(super) port: u16,
}

/// The process of the leader, as seen from another replica.
#[derive(Debug)]
pub(super) struct LeaderProcess {
    /// Without it nothing is noticed.
    health: Option<HealthPort>,
    holder: Option<String>,
    /// Each returns its holder, as one that is not followed any more may have ended meanwhile.
    watching: JoinSet<String>,
}

impl LeaderProcess {
    /// Follows no leader yet.
    pub(super) fn new(health: Option<HealthPort>) -> Self {
        Self { health, holder: None, watching: JoinSet::new() }
    }

    /// Follows the process of this holder of the Lease, or none.
    pub(super) fn follow(&mut self, holder: Option<&str>) {
        if self.holder.as_deref() == holder {
            return;
        }
        self.holder = holder.map(str::to_owned);
        self.watching.abort_all();
        if let (Some(health), Some(holder)) = (&self.health, holder) {
            let (health, holder) = (health.clone(), holder.to_owned());
            self.watching.spawn(async move {
                health.closed(pod_of(&holder)).await;
                holder
            });
        }
    }

    /// Returns the holder whose process has ended, once for each. May be dropped and called again.
    pub(super) async fn ended(&mut self) -> String {
        while let Some(watched) = self.watching.join_next().await {
            if let Ok(holder) = watched {
                return holder;
            }
        }

        pending().await
    }
}

impl HealthPort {
    /// Returns when this port of `pod`, which was open, has closed.
    async fn closed(self, pod: &str) {
        let mut pace = paced(CONNECT_INTERVAL);
        let address = loop {
            pace.tick().await;
            match self.replicas.address_of(pod).await {
                Ok(Some(address)) => break address,
                Ok(None) => {}
                Err(error) => debug!(%error, pod, "cannot read the address of the leader"),
            }
        };

        closed(SocketAddr::from((address, self.port)), CONNECT_INTERVAL).await;
    }
}

/// Returns when no socket listens at `address` any more. A refused connection alone proves nothing, as the port may be
/// another one.
async fn closed(address: SocketAddr, least_interval: Duration) {
    let mut pace = paced(least_interval);
    let mut was_open = false;
    loop {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(connection)) => {
                was_open = true;
                // Here, so that the end of a connection that was open for longer is followed by an attempt at once.
                pace.tick().await;
                end_of(connection).await;
            }
            Ok(Err(error)) if was_open && error.kind() == ErrorKind::ConnectionRefused => return,
            _ => {
                pace.tick().await;
            }
        }
    }
}

/// The first tick is due at once, each other one this long after the last one or later.
fn paced(least_interval: Duration) -> Interval {
    let mut pace = interval(least_interval);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);

    pace
}

/// Returns when the other end has closed the connection.
async fn end_of(mut connection: TcpStream) {
    let mut answer = [0; 512];
    while connection.read(&mut answer).await.is_ok_and(|length| length > 0) {}
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn an_open_port_that_closes_is_noticed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut closed = Box::pin(closed(address, INTERVAL));

        // Servers close idle connections, which is no end.
        for _ in 0..3 {
            tokio::select! {
                () = &mut closed => panic!("the port is open"),
                accepted = listener.accept() => drop(accepted.unwrap()),
            }
        }
        drop(listener);
        closed.await;
    }

    #[tokio::test]
    async fn a_port_that_was_never_open_proves_nothing() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);

        let waited = timeout(Duration::from_millis(100), closed(address, INTERVAL)).await;
        waited.expect_err("the port was never open");
    }

    #[tokio::test]
    async fn without_a_health_port_nothing_ends() {
        let mut leader = LeaderProcess::new(None);
        leader.follow(Some("gw-1_7_a"));

        assert!(leader.ended().now_or_never().is_none());
    }
}
