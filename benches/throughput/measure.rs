//! What is measured of one contestant in one round.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::wait_until;

use crate::contestant::{Contestant, tool};

/// Echo requests for the idle round trip.
const PINGS: u16 = 100;

/// One contestant in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// TCP, one stream, as the receiver counts it.
    pub(crate) tcp_gbps: f64,
    /// Round trip without other traffic, the median.
    pub(crate) idle_us: f64,
    /// CPU seconds of both gateways for each GB of TCP payload; zero without gateway processes.
    pub(crate) cpu_seconds_per_gb: f64,
}

pub(crate) fn all(contestant: &Contestant, seconds: u32) -> anyhow::Result<Sample> {
    let ping =
        Ping { interval: Duration::from_millis(5), ..Ping::new(contestant.target()?, PINGS) };
    let report = ping.run(contestant.client())?;
    let idle = report.median_round_trip().context("no ping came back")?;

    let before = contestant.cpu_seconds();
    let (bytes, bits_per_second) = tcp(contestant, seconds)?;
    let cpu = contestant.cpu_seconds() - before;

    Ok(Sample {
        tcp_gbps: bits_per_second / 1e9,
        idle_us: idle.as_secs_f64() * 1e6,
        cpu_seconds_per_gb: cpu / (bytes / 1e9),
    })
}

/// Bytes and bits per second of one stream.
fn tcp(contestant: &Contestant, seconds: u32) -> anyhow::Result<(f64, f64)> {
    let iperf3 = tool("iperf3")?;
    let mut server = Command::new(&iperf3);
    server.args(["--server", "--one-off"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = contestant.server().start(server)?;
    let target = contestant.target()?;
    wait_until("iperf3 listens", Duration::from_secs(5), || {
        contestant.server().run(|| Ok(is_listening()))
    })?;

    let (target, seconds) = (target.to_string(), seconds.to_string());
    let mut client = Command::new(&iperf3);
    client.args(["--client", &target, "--time", &seconds, "--json"]);
    client.stdin(Stdio::null()).stdout(Stdio::piped());
    let output = contestant.client().start(client)?.wait_with_output()?;
    server.wait()?;

    let report: Value = serde_json::from_slice(&output.stdout).context("iperf3 wrote no JSON")?;
    let received =
        |key: &str| report.pointer(&format!("/end/sum_received/{key}")).and_then(Value::as_f64);
    let result = received("bytes").zip(received("bits_per_second"));

    result.with_context(|| format!("iperf3: {}", report.get("error").unwrap_or(&Value::Null)))
}

/// Whether something listens on iperf3's port in this thread's namespace: state 0A in
/// `/proc/net/tcp`, whose first column is in hexadecimal.
fn is_listening() -> bool {
    const PORT: &str = ":1451 ";

    ["tcp", "tcp6"].into_iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}"));

        table.is_ok_and(|table| table.lines().any(|l| l.contains(PORT) && l.contains(" 0A ")))
    })
}
