//! Profiles of the gateways: a flame graph of each, and its busiest functions.
//!
//! `perf` samples both gateways during one TCP stream up, so the client's gateway mostly seals and the
//! server's mostly opens. A sleeping gateway has no samples: shares are of its running time.
//! `perf report` makes the table, and the program `flamegraph` the picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use strait_lab::process;

use crate::contestant::{Contestant, Kind};
use crate::load::{self, Direction};
use crate::measure::Plan;

/// Samples per second of each running thread. Not a divisor of any timer's frequency.
const FREQUENCY: &str = "499";

/// Stacks are copied with each sample and unwound by debug information, because the cryptography is
/// assembly without frame pointers. This many bytes hold the deepest stack.
const CALL_GRAPH: &str = "dwarf,16384";

/// Functions with a smaller share of the time are left out of the tables.
const LEAST_PERCENT: &str = "1";

/// The flame graph begins above this function, whose callers start threads and catch panics.
const OUTERMOST: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// Writes a flame graph of each gateway below `output`; returns the tables and the paths of the graphs.
///
/// The recordings stay beside them, for `perf report` and `perf annotate`.
pub(crate) fn run(
    kind: &Kind,
    plan: &Plan,
    output: &Path,
) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let perf = process::find("perf")
        .context("perf is missing: run `make profile` as root, or apt-get install linux-perf")?;
    let flamegraph = process::find("flamegraph").context(
        "flamegraph is missing: run `make profile`, or cargo install --locked flamegraph",
    )?;
    let duration = plan.duration;
    fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    let variation = plan.variation();
    let contestant = Contestant::start(kind, plan.congestion_control, variation)?;
    let gateways = contestant.gateways();
    ensure!(!gateways.is_empty(), "{} has no gateway to profile", kind.name());

    let mut recordings = Vec::new();
    for (name, pid) in gateways {
        recordings.push(Recording::start(&perf, name, pid, duration, output)?);
    }
    let received = load::tcp(&contestant, 1, Direction::Up, duration);
    let mut text = format!(
        "{}: {:.2} Gbit/s while it was recorded\n",
        kind.name(),
        received?.bits_per_second / 1e9
    );
    let mut files = Vec::new();
    for recording in recordings {
        let title = format!("{}, gateway of {}", kind.name(), recording.name);
        let path = output.join(format!("flame-{}.svg", recording.name));
        let data = recording.finish()?;
        let mut report = Command::new(&perf);
        report
            .args(["report", "--stdio", "--quiet", "--no-children", "--call-graph", "none"])
            .args(["--fields", "overhead,sym", "--percent-limit", LEAST_PERCENT, "--input"])
            .arg(&data);
        let _ = writeln!(text, "\n{title}\n{}", output_of(&mut report)?.trim_end());

        let mut draw = Command::new(&flamegraph);
        draw.args(["--deterministic", "--skip-after", OUTERMOST, "--title", &title, "--perfdata"])
            .arg(&data)
            .arg("--output")
            .arg(&path);
        output_of(&mut draw)?;
        files.push(path);
    }

    Ok((text, files))
}

/// A running `perf record` of one gateway.
struct Recording {
    name: &'static str,
    perf: Child,
    data: PathBuf,
}

impl Recording {
    fn start(
        perf: &Path,
        name: &'static str,
        pid: u32,
        duration: Duration,
        output: &Path,
    ) -> anyhow::Result<Self> {
        let data = output.join(format!("perf-{name}.data"));
        // perf would rename an existing file.
        let _ = fs::remove_file(&data);
        // iperf3 starts a moment after perf. Before and after it the gateways sleep, without samples.
        let seconds = (duration + Duration::from_secs(1)).as_secs_f64().to_string();
        let perf = Command::new(perf)
            .args(["record", "--quiet", "--freq", FREQUENCY, "--call-graph", CALL_GRAPH])
            .args(["--pid", &pid.to_string(), "--output"])
            .arg(&data)
            .args(["--", "sleep", &seconds])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start perf")?;

        Ok(Self { name, perf, data })
    }

    /// Waits for the end of the recording, and returns its file.
    fn finish(self) -> anyhow::Result<PathBuf> {
        let recorded = self.perf.wait_with_output().context("wait for perf")?;
        ensure!(
            recorded.status.success(),
            "perf record: {}{}",
            String::from_utf8_lossy(&recorded.stderr).trim(),
            forbidden().unwrap_or_default()
        );

        Ok(self.data)
    }
}

/// The remedy, if a setting of the kernel forbids sampling.
fn forbidden() -> Option<String> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    let level: i32 = level.trim().parse().ok()?;

    (level > 1).then(|| {
        format!(
            "\nkernel.perf_event_paranoid is {level}; run as root, or allow sampling with\n  \
             sudo sysctl kernel.perf_event_paranoid=1 kernel.kptr_restrict=0"
        )
    })
}

/// What a program wrote to its standard output.
fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().display().to_string();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("start {program}"))?;
    ensure!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );

    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
