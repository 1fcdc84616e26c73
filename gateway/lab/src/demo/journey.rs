//! The demo from the first namespace to the last counter.

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
use super::report::{Passage, Report, Way};
use super::screen::Screen;

/// Pings each way and family.
const PINGS: u16 = 20;

/// What IPv6 gets; the full duration is for IPv4.
const SHORT_TRANSFER: Duration = Duration::from_secs(1);

/// A rate that any machine can send: about 100 Mb/s each way.
const DATAGRAMS_PER_SECOND: u32 = 10_000;

/// Fits into the tunnel with either family inside.
const DATAGRAM_BYTES: usize = 1200;

/// How long an iperf3 server may take to listen.
const IPERF_TIMEOUT: Duration = Duration::from_secs(5);

/// Where iperf3 listens.
const IPERF_PORT: u16 = 5201;

/// Makes the clusters, runs the traffic and reads the metrics. `is_started` hears how to clean up,
/// first of the clusters, then of the gateways as well.
///
/// # Errors
///
/// What could not be set up or measured. Traffic that went wrong is in the report.
pub(super) fn run(
    binary: &Path,
    duration: Duration,
    screen: Screen,
    is_started: impl Fn(CleanUp),
) -> anyhow::Result<(TwoClusters, Report)> {
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    let layout = if has_ipv6 { Layout::equal() } else { Layout::equal().without_ipv6() };

    screen.title("Two clusters with the same pod CIDR, joined by two gateways")?;
    let mut clusters = TwoClusters::new(&layout).context("cannot make two clusters")?;
    is_started(clusters.clean_up());
    screen.lines(&picture::lines(&layout, [clusters.rome.underlay, clusters.milan.underlay]))?;
    clusters.start(binary).context("cannot start the gateways")?;
    is_started(clusters.clean_up());

    let mut journey = Journey { clusters: &clusters, screen, report: Report::default() };
    journey.ping()?;
    journey.tcp(duration)?;
    journey.udp(duration)?;
    journey.iperf3(duration)?;
    journey.settle_accounts()?;
    let report = journey.report;

    Ok((clusters, report))
}

struct Journey<'a> {
    clusters: &'a TwoClusters,
    screen: Screen,
    report: Report,
}

impl Journey<'_> {
    /// Every family both ways at the same time, and the packets counted.
    fn ping(&mut self) -> anyhow::Result<()> {
        self.screen.title("Ping")?;
        let before = self.metrics()?;
        let ways = ways(self.clusters);
        let reports = thread::scope(|scope| {
            let workers: Vec<_> = ways
                .iter()
                .map(|(way, from, _)| {
                    let ping = Ping::new(way.target, PINGS);
                    scope.spawn(move || ping.run(&from.pod))
                })
                .collect();
            workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let after = self.metrics()?;

        let (mut sent, mut received) = (0, 0);
        for ((way, ..), report) in ways.iter().zip(&reports) {
            let line = self.report.add_ping(*way, report);
            self.screen.line(&line)?;
            sent += report.sent;
            received += report.received;
        }
        // Each way carries the requests of one side and the replies of the other.
        for (way, ..) in ipv4_ways(self.clusters) {
            let passage = passage(&before, &after, way, sent, received);
            let line = self.report.add_passage("requests and replies", way, passage);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// One way after the other, so that each has the machine to itself.
    fn tcp(&mut self, duration: Duration) -> anyhow::Result<()> {
        self.screen.title("TCP")?;
        for (way, from, to) in ways(self.clusters) {
            let time = if way.target.is_ipv4() { duration } else { SHORT_TRANSFER };
            let report = self.screen.watch(self.clusters, || {
                tcp(&from.pod, &to.pod, way.target, Amount::Time(time))
            })??;
            let line = self.report.add_tcp(way, &report);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// Both ways at the same time, and the packets counted.
    fn udp(&mut self, duration: Duration) -> anyhow::Result<()> {
        self.screen.title("UDP")?;
        let before = self.metrics()?;
        let ways = ipv4_ways(self.clusters);
        let datagrams = Datagrams {
            count: duration.as_secs() * u64::from(DATAGRAMS_PER_SECOND),
            payload_bytes: DATAGRAM_BYTES,
            per_second: DATAGRAMS_PER_SECOND,
        };
        let reports = self.screen.watch(self.clusters, || {
            thread::scope(|scope| {
                let workers: Vec<_> = ways
                    .iter()
                    .map(|(way, from, to)| {
                        scope.spawn(move || udp(&from.pod, &to.pod, way.target, datagrams))
                    })
                    .collect();
                workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
            })
        })??;
        let after = self.metrics()?;

        for ((way, ..), report) in ways.iter().zip(&reports) {
            let line = self.report.add_udp(*way, report);
            self.screen.line(&line)?;
            let passage = passage(&before, &after, *way, report.sent, report.received);
            let line = self.report.add_passage("datagrams", *way, passage);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    /// What everybody else measures with, if it is here.
    fn iperf3(&mut self, duration: Duration) -> anyhow::Result<()> {
        let Some(iperf3) = find("iperf3") else {
            return Ok(());
        };
        self.screen.title("iperf3, one TCP stream")?;
        for (way, from, to) in ipv4_ways(self.clusters) {
            let log = self.clusters.scratch.path().join("iperf3.log");
            let arguments = ["--server", "--one-off"];
            let _server = Process::start(&to.pod, "iperf3", &iperf3, arguments, log)?;
            wait_until("iperf3 listened", IPERF_TIMEOUT, || to.pod.run(|| Ok(is_listening())))?;

            let mut client = Command::new(&iperf3);
            client
                .args(["--json", "--time", &duration.as_secs().to_string()])
                .args(["--client", &way.target.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let output = self.screen.watch(self.clusters, || {
                let client = from.pod.start(client)?;
                client.wait_with_output().map_err(LabError::io("read what iperf3 says"))
            })??;
            let measured = received_bits_per_second(&output.stdout).unwrap_or(0.0);
            let line = self.report.add_iperf3(way, measured);
            self.screen.line(&line)?;
        }

        Ok(())
    }

    fn settle_accounts(&mut self) -> anyhow::Result<()> {
        self.screen.title("The account: packets in = packets out + protocol + drops")?;
        for (name, metrics) in self.metrics()? {
            let [outbound, inbound] = Direction::ALL.map(|way| metrics.account(way));
            let lines = self.report.add_account(name, outbound, inbound);
            self.screen.lines(&lines)?;
        }

        Ok(())
    }

    /// The counters of each gateway when nothing is under way.
    fn metrics(&self) -> Result<Scrapes, LabError> {
        let TwoClusters { rome, milan, .. } = self.clusters;

        [rome, milan].into_iter().map(|c| Ok((c.name, c.metrics_at_rest()?))).collect()
    }
}

/// By the name of the cluster.
type Scrapes = BTreeMap<&'static str, Metrics>;

/// Rome to Milan and back, in every family.
fn ways(clusters: &TwoClusters) -> Vec<(Way, &Cluster, &Cluster)> {
    let TwoClusters { rome, milan, .. } = clusters;

    [(rome, milan), (milan, rome)]
        .into_iter()
        .flat_map(|(from, to)| {
            let addresses = from.side.sees(&to.side).zip(to.side.sees(&from.side));
            addresses.map(move |(target, seen_as)| {
                (Way { from: from.name, to: to.name, target, seen_as }, from, to)
            })
        })
        .collect()
}

/// The same without IPv6.
fn ipv4_ways(clusters: &TwoClusters) -> Vec<(Way, &Cluster, &Cluster)> {
    ways(clusters).into_iter().filter(|(way, ..)| way.target.is_ipv4()).collect()
}

/// What the sender sent, what passed the gateways since `before`, what the receiver received.
fn passage(before: &Scrapes, after: &Scrapes, way: Way, sent: u64, received: u64) -> Passage {
    let forwarded = |scrapes: &Scrapes, cluster, direction| {
        scrapes.get(cluster).map_or(0, |metrics| metrics.account(direction).forwarded)
    };
    let passed = |cluster, way| {
        forwarded(after, cluster, way).saturating_sub(forwarded(before, cluster, way))
    };

    Passage {
        sent,
        near: passed(way.from, Direction::Outbound),
        far: passed(way.to, Direction::Inbound),
        received,
    }
}

fn join<T>(worker: ScopedJoinHandle<'_, Result<T, LabError>>) -> anyhow::Result<T> {
    let result = worker.join().map_err(|_| anyhow!("a thread of the traffic panicked"))?;

    Ok(result?)
}

/// Whether somebody listens on the port of iperf3 in the namespace of this thread.
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
