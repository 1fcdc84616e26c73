//! Notices on standby, at once, that the process of the leader has ended.
//!
//! A TCP connection to its health port ends with it, and from then on the kernel of its pod refuses connections. A node
//! that dies refuses nothing: then the Lease has to expire.
//!
//! The kubelet starts a container again at once when it ends for the first time, and after ten seconds or more when it
//! ends again.

use std::collections::VecDeque;
use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use strait_kube::active::ActivePod;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};
use tracing::debug;

use crate::election::pod_of;

const INTERVALS: Intervals =
    Intervals { open: Duration::from_secs(1), refused: Duration::from_millis(100) };

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long the kubelet remembers that a container has ended.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The least time between two attempts to connect.
#[derive(Clone, Copy, Debug)]
struct Intervals {
    /// If the port was open: servers close idle connections.
    open: Duration,
    /// If it was not.
    refused: Duration,
}

/// Where the replicas of a gateway are, and their health port.
#[derive(Clone, Debug)]
pub(super) struct HealthPort {
    pub(super) replicas: ActivePod,
    pub(super) port: u16,
    /// How many times the process of one pod has to end, in the time for which the kubelet remembers it.
    pub(super) ends: usize,
}

/// The process of the leader, as seen from another replica.
#[derive(Debug)]
pub(super) struct LeaderProcess {
    /// Without it nothing is noticed.
    health: Option<HealthPort>,
    holder: Option<String>,
    /// Each returns its pod, as one that is not followed any more may have ended meanwhile.
    watching: JoinSet<String>,
}

impl LeaderProcess {
    /// Follows no leader yet.
    pub(super) fn new(health: Option<HealthPort>) -> Self {
        Self { health, holder: None, watching: JoinSet::new() }
    }

    /// Follows the process of this holder of the Lease, or none. Ends of the same pod under another holder count on.
    pub(super) fn follow(&mut self, holder: Option<&str>) {
        if self.holder.as_deref() == holder {
            return;
        }
        let is_same_pod = self.holder.as_deref().map(pod_of) == holder.map(pod_of);
        self.holder = holder.map(str::to_owned);
        if is_same_pod && !self.watching.is_empty() {
            return;
        }
        self.watching.abort_all();
        if let (Some(health), Some(holder)) = (&self.health, holder) {
            let (health, pod) = (health.clone(), pod_of(holder).to_owned());
            self.watching.spawn(async move {
                health.ended(&pod).await;
                pod
            });
        }
    }

    /// Returns the pod whose process has ended [as many times](HealthPort::ends) as it has to. May be dropped and called
    /// again.
    pub(super) async fn ended(&mut self) -> String {
        while let Some(watched) = self.watching.join_next().await {
            if let Ok(pod) = watched {
                return pod;
            }
        }

        pending().await
    }
}

impl HealthPort {
    /// Returns when this port of `pod` has closed `ends` times.
    async fn ended(self, pod: &str) {
        let mut pace = paced(INTERVALS.open);
        let address = loop {
            pace.tick().await;
            match self.replicas.address_of(pod).await {
                Ok(Some(address)) => break address,
                Ok(None) => {}
                Err(error) => debug!(%error, pod, "cannot read the address of the leader"),
            }
        };

        closed(SocketAddr::from((address, self.port)), self.ends, INTERVALS).await;
    }
}

/// Returns when a port has closed this many times, each at most [`REMEMBERED`] ago.
async fn closed(address: SocketAddr, times: usize, intervals: Intervals) {
    let mut ends = VecDeque::new();
    while ends.len() < times {
        closed_once(address, intervals).await;
        let now = Instant::now();
        ends.retain(|end| now.duration_since(*end) < REMEMBERED);
        ends.push_back(now);
    }
}

/// Returns when no socket listens at `address` any more. A refused connection alone proves nothing, as the port may be
/// another one.
async fn closed_once(address: SocketAddr, intervals: Intervals) {
    let mut pace = paced(intervals.open);
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
            _ => sleep(intervals.refused).await,
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

    const INTERVALS: Intervals =
        Intervals { open: Duration::from_millis(1), refused: Duration::from_millis(1) };

    #[tokio::test]
    async fn an_open_port_that_closes_is_noticed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut closed = Box::pin(closed(address, 1, INTERVALS));

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
    async fn a_port_can_be_awaited_to_close_twice() {
        let listen = |address: SocketAddr| async move { TcpListener::bind(address).await.unwrap() };
        let mut listener = listen((Ipv4Addr::LOCALHOST, 0).into()).await;
        let address = listener.local_addr().unwrap();
        let mut closed = Box::pin(closed(address, 2, INTERVALS));

        for is_last in [false, true] {
            tokio::select! {
                () = &mut closed => panic!("the port has not closed twice"),
                accepted = listener.accept() => drop(accepted.unwrap()),
            }
            drop(listener);
            if is_last {
                break;
            }
            let waited = timeout(Duration::from_millis(100), &mut closed).await;
            waited.expect_err("the port has closed once");
            listener = listen(address).await;
        }
        closed.await;
    }

    #[tokio::test]
    async fn a_port_that_was_never_open_proves_nothing() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);

        let waited = timeout(Duration::from_millis(100), closed(address, 1, INTERVALS)).await;
        waited.expect_err("the port was never open");
    }

    #[tokio::test]
    async fn without_a_health_port_nothing_ends() {
        let mut leader = LeaderProcess::new(None);
        leader.follow(Some("gw-1_7_a"));

        assert!(leader.ended().now_or_never().is_none());
    }
}
