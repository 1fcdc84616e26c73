//! The steps of the demo: namespaces, gateways, traffic, and the packet counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::CleanUp;
use crate::Cluster;
use crate::Direction;
use crate::LabError;
use crate::Layout;
use crate::Metrics;
use crate::TwoClusters;
use crate::process::{Process, find};
use crate::traffic::{Amount, Datagrams, Ping, tcp, udp};
use crate::wait_until;
use anyhow::{Context, anyhow};

use super::picture;
use super::report::{PacketCounts, PodPath, Report};
use super::screen::Screen;

/// Pings in each direction and family.
const PINGS: u16 = 20;

/// Duration of transfers over IPv6; those over IPv4 take the configured duration.
const SHORT_TRANSFER: Duration = Duration::from_secs(1);

/// A rate that any machine can send: about 100 Mb/s in each direction.
const DATAGRAMS_PER_SECOND: u32 = 10_000;

/// Fits into the tunnel with either address family.
const DATAGRAM_BYTES: usize = 1200;

/// Time limit for an iperf3 server to listen.
const IPERF_TIMEOUT: Duration = Duration::from_secs(5);

/// The port on which iperf3 listens.
const IPERF_PORT: u16 = 5201;

/// Creates the clusters, sends traffic and reads the metrics. `on_start` gets the handle for clean-up,
/// first for the clusters, then for the gateways too.
///
/// # Errors
///
/// If something cannot be set up or measured. Failed traffic is in the report.
pub(super) fn run(
    binary: &Path,
    duration: Duration,
    screen: Screen,
    on_start: impl Fn(CleanUp),
) -> anyhow::Result<(TwoClusters, Report)> {
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    let layout = if has_ipv6 { Layout::equal() } else { Layout::equal().without_ipv6() };

    screen.title("Two clusters with the same pod CIDR, joined by two gateways")?;
    let mut clusters = TwoClusters::new(&layout).context("cannot create two clusters")?;
    on_start(clusters.clean_up());
    screen.lines(&picture::lines(&layout, [clusters.rome.underlay, clusters.milan.underlay]))?;
    clusters.start(binary).context("cannot start the gateways")?;
    on_start(clusters.clean_up());

    let mut scenario = Scenario { clusters: &clusters, screen, report: Report::default() };
    scenario.ping()?;
    scenario.tcp(duration)?;
    scenario.udp(duration)?;
    scenario.iperf3(duration)?;
    scenario.check_accounts()?;
    let report = scenario.report;

    Ok((clusters, report))
}

struct Scenario<'a> {
    clusters: &'a TwoClusters,
    screen: Screen,
    report: Report,
}

impl Scenario<'_> {
    /// Pings in each family and both directions at the same time, and compares packet counts.
    fn ping(&mut self) -> anyhow::Result<()> {
        self.screen.title("Ping")?;
        let before = self.metrics()?;
        let paths = paths(self.clusters);
        let reports = thread::scope(|scope| {
            let workers: Vec<_> = paths
                .iter()
                .map(|(path, from, _)| {
                    let ping = Ping::new(path.target, PINGS);
                    scope.spawn(move || ping.run(&from.pod))
                })
                .collect();
            workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let after = self.metrics()?;

        let (mut sent, mut received) = (0, 0);
        for ((path, ..), report) in paths.iter().zip(&reports) {
            let line = self.report.add_ping(*path, report);
            self.screen.line(&line)?;
            sent += report.sent;
            received += report.received;
        }
        // Each direction carries the requests of one side and the replies of the other.
        for (path, ..) in ipv4_paths(self.clusters) {
            let counts = counts(&before, &after, path, sent, received);
            let line = self.report.add_counts("requests and replies", path, counts);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// One direction after the other, so that each transfer has the whole machine.
    fn tcp(&mut self, duration: Duration) -> anyhow::Result<()> {
        self.screen.title("TCP")?;
        for (path, from, to) in paths(self.clusters) {
            let time = if path.target.is_ipv4() { duration } else { SHORT_TRANSFER };
            let report = self.screen.watch(self.clusters, || {
                tcp(&from.pod, &to.pod, path.target, Amount::Time(time))
            })??;
            let line = self.report.add_tcp(path, &report);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// Both directions at the same time, and compares packet counts.
    fn udp(&mut self, duration: Duration) -> anyhow::Result<()> {
        self.screen.title("UDP")?;
        let before = self.metrics()?;
        let paths = ipv4_paths(self.clusters);
        let datagrams = Datagrams {
            count: duration.as_secs() * u64::from(DATAGRAMS_PER_SECOND),
            payload_bytes: DATAGRAM_BYTES,
            per_second: DATAGRAMS_PER_SECOND,
        };
        let reports = self.screen.watch(self.clusters, || {
            thread::scope(|scope| {
                let workers: Vec<_> = paths
                    .iter()
                    .map(|(path, from, to)| {
                        scope.spawn(move || udp(&from.pod, &to.pod, path.target, datagrams))
                    })
                    .collect();
                workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
            })
        })??;
        let after = self.metrics()?;

        for ((path, ..), report) in paths.iter().zip(&reports) {
            let line = self.report.add_udp(*path, report);
            self.screen.line(&line)?;
            let counts = counts(&before, &after, *path, report.sent, report.received);
            let line = self.report.add_counts("datagrams", *path, counts);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// Measures with iperf3, if it is installed.
    fn iperf3(&mut self, duration: Duration) -> anyhow::Result<()> {
        let Some(iperf3) = find("iperf3") else {
            return Ok(());
        };
        self.screen.title("iperf3, one TCP stream")?;
        for (path, from, to) in ipv4_paths(self.clusters) {
            let log = self.clusters.scratch.path().join("iperf3.log");
            let arguments = ["--server", "--one-off"];
            let _server = Process::start(&to.pod, "iperf3", &iperf3, arguments, log)?;
            wait_until("iperf3 listened", IPERF_TIMEOUT, || to.pod.run(|| Ok(is_listening())))?;

            let mut client = Command::new(&iperf3);
            client
                .args(["--json", "--time", &duration.as_secs().to_string()])
                .args(["--client", &path.target.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let output = self.screen.watch(self.clusters, || {
                let client = from.pod.start(client)?;
                client.wait_with_output().map_err(LabError::io("read the output of iperf3"))
            })??;
            let measured = received_bits_per_second(&output.stdout).unwrap_or(0.0);
            let line = self.report.add_iperf3(path, measured);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    fn check_accounts(&mut self) -> anyhow::Result<()> {
        self.screen.title("The account: packets in = packets out + protocol + drops")?;
        for (name, metrics) in self.metrics()? {
            let [outbound, inbound] = Direction::ALL.map(|path| metrics.account(path));
            let lines = self.report.add_account(name, outbound, inbound);
            self.screen.lines(&lines)?;
        }

        Ok(())
    }

    /// The counters of each gateway when no packet is in transit.
    fn metrics(&self) -> Result<Scrapes, LabError> {
        let TwoClusters { rome, milan, .. } = self.clusters;

        [rome, milan].into_iter().map(|c| Ok((c.name, c.metrics_at_rest()?))).collect()
    }
}

/// Metrics by the name of the cluster.
type Scrapes = BTreeMap<&'static str, Metrics>;

/// The paths from Rome to Milan and back, in every family.
fn paths(clusters: &TwoClusters) -> Vec<(PodPath, &Cluster, &Cluster)> {
    let TwoClusters { rome, milan, .. } = clusters;

    [(rome, milan), (milan, rome)]
        .into_iter()
        .flat_map(|(from, to)| {
            let addresses = from.side.sees(&to.side).zip(to.side.sees(&from.side));
            addresses.map(move |(target, seen_as)| {
                (PodPath { from: from.name, to: to.name, target, seen_as }, from, to)
            })
        })
        .collect()
}

/// The IPv4 paths.
fn ipv4_paths(clusters: &TwoClusters) -> Vec<(PodPath, &Cluster, &Cluster)> {
    paths(clusters).into_iter().filter(|(path, ..)| path.target.is_ipv4()).collect()
}

/// The packets of the sender, of both gateways since `before`, and of the receiver.
fn counts(
    before: &Scrapes,
    after: &Scrapes,
    path: PodPath,
    sent: u64,
    received: u64,
) -> PacketCounts {
    let forwarded = |scrapes: &Scrapes, cluster, direction| {
        scrapes.get(cluster).map_or(0, |metrics| metrics.account(direction).forwarded)
    };
    let passed = |cluster, path| {
        forwarded(after, cluster, path).saturating_sub(forwarded(before, cluster, path))
    };

    PacketCounts {
        sent,
        near: passed(path.from, Direction::Outbound),
        far: passed(path.to, Direction::Inbound),
        received,
    }
}

fn join<T>(worker: ScopedJoinHandle<'_, Result<T, LabError>>) -> anyhow::Result<T> {
    let result = worker.join().map_err(|_| anyhow!("a traffic thread panicked"))?;

    Ok(result?)
}

/// Whether a socket listens on the port of iperf3 in the namespace of this thread.
fn is_listening() -> bool {
    // proc_net_tcp: local address and port in hexadecimal, then the remote one, then the state.
    let port = format!(":{IPERF_PORT:04X} ");
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

    tables
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .any(|table| table.lines().any(|line| line.contains(&port) && line.contains(" 0A ")))
}

fn received_bits_per_second(json: &[u8]) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_slice(json).ok()?;

    report.pointer("/end/sum_received/bits_per_second")?.as_f64()
}
