//! Where the gateways spend their time: a flame graph of each, and its busiest functions.
//!
//! `perf` takes samples of both gateways while one TCP stream goes up, so that the client's mostly
//! seals and the server's mostly opens. A gateway that sleeps leaves no samples: shares are of the
//! time in which it ran.

mod flame;
mod stacks;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use strait_lab::process;

use crate::contestant::{Contestant, Kind, Variation};
use crate::load::{self, Direction};
use crate::measure::Plan;
use stacks::{Frame, Origin};

/// Samples a second of each thread that runs. Not a divisor of any timer's frequency.
const FREQUENCY: &str = "499";

/// Stacks are copied with each sample and unwound from the debug information, as the cryptography is
/// assembler that keeps no frame pointers. As many bytes hold the deepest one.
const CALL_GRAPH: &str = "dwarf,16384";

/// Lines of a table.
const BUSIEST: usize = 15;

/// Writes a flame graph of each gateway below `output`; returns the tables and the pictures' paths.
///
/// What perf recorded stays beside them, for `perf report` and `perf annotate`.
pub(crate) fn run(
    kind: &Kind,
    plan: &Plan,
    output: &Path,
) -> anyhow::Result<(String, Vec<PathBuf>)> {
    let perf = process::find("perf")
        .context("perf is missing: run `make profile` as root, or apt-get install linux-perf")?;
    let duration = plan.duration;
    fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    let contestant = Contestant::start(kind, plan.congestion_control, Variation::default())?;
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
        let name = recording.name;
        let all = recording.stacks(&perf)?;
        let title = format!("{}, gateway of {name}: {} samples", kind.name(), all.samples);
        let path = output.join(format!("flame-{name}.svg"));
        fs::write(&path, flame::draw(&title, &all))
            .with_context(|| format!("write {}", path.display()))?;
        text.push_str(&table(&title, &all));
        files.push(path);
    }

    Ok((text, files))
}

/// perf at work on one gateway.
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
        // perf would keep the one before.
        let _ = fs::remove_file(&data);
        // iperf3 starts a moment after perf; what comes before and after it is sleep, so no sample.
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

    /// Waits for the end of the recording and reads it.
    fn stacks(self, perf: &Path) -> anyhow::Result<Frame> {
        let recorded = self.perf.wait_with_output().context("wait for perf")?;
        if !recorded.status.success() {
            bail!(
                "perf record: {}{}",
                String::from_utf8_lossy(&recorded.stderr).trim(),
                forbidden().unwrap_or_default()
            );
        }

        let script = Command::new(perf)
            .args(["script", "--fields", "comm,ip,sym,dso", "--input"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .output()
            .context("start perf script")?;
        let all = Frame::from_script(&String::from_utf8_lossy(&script.stdout));
        ensure!(
            script.status.success() && all.samples > 0,
            "perf script found no samples: {}",
            String::from_utf8_lossy(&script.stderr).trim()
        );

        Ok(all)
    }
}

/// The remedy, if it is the kernel's settings that forbid sampling.
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

fn table(title: &str, all: &Frame) -> String {
    let mut text = format!("\n{title}\n   self  function\n");
    for ((function, host), own) in all.busiest().into_iter().take(BUSIEST) {
        let share = percent(own, all.samples);
        let origin = match (function.origin, host) {
            (Origin::Kernel, _) => " [kernel]".to_owned(),
            (_, Some(host)) => format!(", inlined into {host}"),
            (_, None) => String::new(),
        };
        let _ = writeln!(text, "{share:5.1} %  {}{origin}", function.name);
    }

    text
}

fn percent(part: u32, all: u32) -> f64 {
    if all == 0 {
        return 0.0;
    }

    100.0 * f64::from(part) / f64::from(all)
}
