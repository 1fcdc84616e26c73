//! Medians, spread, ratios; and every sample in a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use crate::contestant::Kind;
use crate::measure::Sample;

/// Whom everybody is compared with.
const REFERENCE: &str = "wireguard-go";

#[derive(Debug)]
pub(crate) struct Report {
    contestants: Vec<(&'static str, String)>,
    rounds: usize,
    seconds: u32,
    samples: BTreeMap<&'static str, Vec<Sample>>,
}

/// How one number is taken from a sample and shown.
struct Column {
    title: &'static str,
    value: fn(&Sample) -> f64,
    decimals: usize,
}

const COLUMNS: [Column; 3] = [
    Column { title: "TCP 1 stream, Gb/s", value: |s| s.tcp_gbps, decimals: 2 },
    Column { title: "idle round trip, µs", value: |s| s.idle_us, decimals: 0 },
    Column { title: "CPU s per GB", value: |s| s.cpu_seconds_per_gb, decimals: 2 },
];

impl Report {
    pub(crate) fn new(kinds: &[Kind], rounds: usize, seconds: u32) -> Self {
        let contestants = kinds.iter().map(|kind| (kind.name(), kind.version())).collect();

        Self { contestants, rounds, seconds, samples: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, kind: &Kind, sample: Sample) {
        self.samples.entry(kind.name()).or_default().push(sample);
    }

    /// One line a contestant: for each number the median, the range, and the ratio to the reference.
    pub(crate) fn table(&self) -> String {
        let mut table = format!("{:<14}", "");
        for column in &COLUMNS {
            let _ = write!(table, " | {:<34}", column.title);
        }
        for (name, _) in &self.contestants {
            let _ = write!(table, "\n{name:<14}");
            for column in &COLUMNS {
                let _ = write!(table, " | {:<34}", self.cell(name, column));
            }
        }
        let _ = write!(
            table,
            "\n\nmedian [least, most] of {} rounds of {} s; × = ratio to {REFERENCE}",
            self.rounds, self.seconds
        );
        for (name, version) in &self.contestants {
            let _ = write!(table, "\n{name}: {version}");
        }

        table
    }

    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let text = serde_json::to_string_pretty(&self.to_json())?;

        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    fn cell(&self, name: &str, column: &Column) -> String {
        let Some([least, median, most]) = self.spread(name, column) else {
            return String::new();
        };
        let decimals = column.decimals;
        let ratio = self
            .spread(REFERENCE, column)
            .filter(|[_, reference, _]| *reference > 0.0)
            .map(|[_, reference, _]| format!("{:.2} ×", median / reference))
            .unwrap_or_default();

        format!("{median:>8.decimals$} [{least:.decimals$}, {most:.decimals$}] {ratio:>8}")
    }

    /// Least, median, most.
    fn spread(&self, name: &str, column: &Column) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.samples.get(name)?.iter().map(column.value).collect();
        values.sort_by(f64::total_cmp);

        Some([*values.first()?, *values.get(values.len() / 2)?, *values.last()?])
    }

    fn to_json(&self) -> Value {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let contestants: Vec<Value> = self
            .contestants
            .iter()
            .map(|(name, version)| {
                let samples = self.samples.get(name).map(Vec::as_slice).unwrap_or_default();
                let samples: Vec<Value> = samples
                    .iter()
                    .map(|s| {
                        json!({
                            "tcp_gbps": s.tcp_gbps,
                            "idle_us": s.idle_us,
                            "cpu_seconds_per_gb": s.cpu_seconds_per_gb,
                        })
                    })
                    .collect();
                json!({ "name": name, "version": version, "samples": samples })
            })
            .collect();

        json!({
            "kernel": kernel.trim(),
            "cpu": model.map(|(_, model)| model),
            "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "contestants": contestants,
        })
    }
}
