//! Bulk TCP by iperf3, the tool that administrators use for comparison.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use serde_json::Value;
use strait_lab::wait_until;

use super::round_trips::{Pings, loaded};
use crate::contestant::{Contestant, tool};

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the pod that opens the connections.
    Up,
    /// To the pod that opens the connections.
    Down,
    /// Both directions at once, over separate connections.
    Both,
}

/// Payload that arrived, the sum over all directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Payload bytes.
    pub(crate) bytes: f64,
    /// Payload rate, as counted by the receivers.
    pub(crate) bits_per_second: f64,
    /// CPU time of both ends of the load, which includes what the kernel does in their sends: in the pods, and on the nodes.
    pub(crate) cpu_seconds: f64,
}

impl Direction {
    pub(crate) const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Both];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Both => "both",
        }
    }

    const fn argument(self) -> Option<&'static str> {
        match self {
            Self::Up => None,
            Self::Down => Some("--reverse"),
            Self::Both => Some("--bidir"),
        }
    }

    /// JSON pointers to the received amounts in iperf3's report.
    const fn sums(self) -> &'static [&'static str] {
        match self {
            Self::Up | Self::Down => &["sum_received"],
            Self::Both => &["sum_received", "sum_received_bidir_reverse"],
        }
    }
}

/// After the client, a server ends within milliseconds.
const SERVER_END: Duration = Duration::from_secs(1);

/// One measurement with `streams` streams in each direction.
pub(crate) fn tcp(
    contestant: &Contestant,
    streams: u32,
    direction: Direction,
    duration: Duration,
) -> anyhow::Result<Received> {
    tcp_to(contestant, contestant.target()?, streams, direction, duration)
}

/// The same, to another address of the server.
pub(crate) fn tcp_to(
    contestant: &Contestant,
    target: IpAddr,
    streams: u32,
    direction: Direction,
    duration: Duration,
) -> anyhow::Result<Received> {
    let iperf3 = tool("iperf3")?;
    let mut server = Command::new(&iperf3);
    server.args(["--server", "--one-off"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = contestant.server().start(server)?;
    let report = run_client(contestant, &iperf3, target, streams, direction, duration);
    // A server still waits after a failed client, and if it did not notice the end of a client.
    let ended = wait_until("iperf3's server ends", SERVER_END, || {
        Ok(server.try_wait().is_ok_and(|status| status.is_some()))
    });
    if ended.is_err() {
        server.kill()?;
        server.wait()?;
    }

    let report = report?;
    let received = |key: &str| -> Option<f64> {
        let sums = direction.sums().iter().map(|sum| format!("/end/{sum}/{key}"));
        sums.map(|pointer| report.pointer(&pointer)?.as_f64()).sum()
    };
    let (bytes, bits_per_second) = received("bytes")
        .zip(received("bits_per_second"))
        .context("iperf3's report lacks what was received")?;

    let cpu_seconds = cpu_seconds(&report).context("iperf3's report lacks the CPU time")?;

    Ok(Received { bytes, bits_per_second, cpu_seconds })
}

/// Of both ends together.
fn cpu_seconds(report: &Value) -> Option<f64> {
    let number = |pointer: &str| report.pointer(pointer)?.as_f64();
    let percent = number("/end/cpu_utilization_percent/host_total")?
        + number("/end/cpu_utilization_percent/remote_total")?;

    Some(number("/end/sum_sent/seconds")? * percent / 100.0)
}

/// Runs iperf3's client and returns its report.
fn run_client(
    contestant: &Contestant,
    iperf3: &Path,
    target: IpAddr,
    streams: u32,
    direction: Direction,
    duration: Duration,
) -> anyhow::Result<Value> {
    wait_until("iperf3 listens", Duration::from_secs(5), || {
        contestant.server().run(|| Ok(is_listening()))
    })?;
    let (target, streams, seconds) =
        (target.to_string(), streams.to_string(), duration.as_secs_f64().to_string());
    let mut client = Command::new(iperf3);
    client.args(["--client", &target, "--parallel", &streams, "--time", &seconds, "--json"]);
    // The client passes this on to the server.
    client.args(["--congestion", contestant.congestion_control().name()]);
    client.args(direction.argument());
    client.stdin(Stdio::null()).stdout(Stdio::piped());
    let output = contestant.client().start(client)?.wait_with_output()?;

    let report: Value = serde_json::from_slice(&output.stdout).context("iperf3 wrote no JSON")?;
    ensure!(
        output.status.success(),
        "iperf3 ended with {}: {}",
        output.status,
        report.get("error").unwrap_or(&Value::Null)
    );

    Ok(report)
}

/// `streams` streams up, with pings beside them.
pub(crate) fn tcp_with_ping(
    contestant: &Contestant,
    streams: u32,
    duration: Duration,
) -> anyhow::Result<(Received, Pings)> {
    thread::scope(|scope| {
        let pings = scope.spawn(|| loaded(contestant, duration));
        let received = tcp(contestant, streams, Direction::Up, duration);
        let pings = pings.join().map_err(|_| anyhow!("the pinging thread panicked"))?;

        Ok((received?, pings?))
    })
}

/// Whether a socket listens on iperf3's port in this thread's namespace: state 0A in
/// `/proc/net/tcp`, whose first column is in hexadecimal.
fn is_listening() -> bool {
    const PORT: &str = ":1451 ";

    ["tcp", "tcp6"].into_iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}"));

        table.is_ok_and(|table| table.lines().any(|l| l.contains(PORT) && l.contains(" 0A ")))
    })
}
