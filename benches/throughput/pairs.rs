//! Two variants of strait, measured in pairs, to show differences of a few percent.
//!
//! Both are ready all the time and measured one right after the other, the second one first in every
//! other pair. The gateways of the other variant are stopped meanwhile. Throughput depends on other
//! load of the machine; CPU time per gigabyte depends on it much less.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use strait_wg::Engine;

use crate::contestant::{CongestionControl, Contestant, Edge, Kind, Variation};
use crate::load::{self, Direction, Received, percentile};
use crate::progress::Progress;
use crate::record::Spread;
use crate::steal;

/// Configured peers in [`Comparison::Peers`].
const MANY_PEERS: u32 = 1_000;

/// Minimum number of pairs for a confidence interval of 95 %.
pub(crate) const LEAST_PAIRS: usize = 6;

/// The two variants to compare.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Comparison<'a> {
    /// 1,000 configured peers, and 1.
    Peers,
    /// The gateway, and another build of it.
    Build(&'a Path),
    /// The engines native and boringtun.
    Engines,
    /// The edges overlay and device, behind nodes.
    Edges,
}

/// What is measured, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) pairs: usize,
    pub(crate) streams: u32,
    /// Whether round trips are measured beside the streams.
    pub(crate) pings: bool,
    /// Duration of one measurement.
    pub(crate) duration: Duration,
    pub(crate) congestion_control: CongestionControl,
    /// What both variants have in common.
    pub(crate) variation: Variation,
    /// The engine of both variants, except in [`Comparison::Engines`].
    pub(crate) engine: Engine,
    /// The edge of both variants, except in [`Comparison::Edges`].
    pub(crate) edge: Edge,
}

/// A contestant, with its name in the report.
struct Variant {
    name: String,
    contestant: Contestant,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    gbps: f64,
    cpu_seconds_per_gb: f64,
    /// The same with the load.
    all_cpu_seconds_per_gb: f64,
    /// The 99th percentile of the round trips, if there were pings.
    p99_us: Option<f64>,
    is_disturbed: bool,
}

/// Ratios of the first variant to the second.
pub(crate) struct Outcome {
    names: [String; 2],
    /// Spread of the undisturbed measurements, in Gb/s.
    rates: [Option<Spread>; 2],
    throughput: Vec<f64>,
    cost: Vec<f64>,
    all_cost: Vec<f64>,
    p99: Vec<f64>,
    pairs: usize,
}

/// Measures the pairs.
pub(crate) fn run(
    binary: &Path,
    comparison: Comparison<'_>,
    plan: Plan,
) -> anyhow::Result<Outcome> {
    let Plan { pairs, .. } = plan;
    let variants = variants(binary, comparison, plan)?;
    for variant in &variants {
        variant.signal(Signal::SIGSTOP)?;
    }

    let mut measured = Vec::with_capacity(pairs);
    let mut progress = Progress::new(pairs);
    for number in 1..=pairs {
        progress.show(&format!("pair {number}/{pairs}"));
        let [new, old] = &variants;
        measured.push(if number % 2 == 1 {
            let new = new.measure(plan)?;
            (new, old.measure(plan)?)
        } else {
            let old = old.measure(plan)?;
            (new.measure(plan)?, old)
        });
        progress.done();
    }
    progress.clear();

    Ok(Outcome::of(variants.each_ref().map(|variant| variant.name.clone()), &measured))
}

fn variants(binary: &Path, comparison: Comparison<'_>, plan: Plan) -> anyhow::Result<[Variant; 2]> {
    let Plan { engine, edge, congestion_control, .. } = plan;
    let variant = |name: String, binary: &Path, engine, edge, idle_peers| {
        let variation = Variation { idle_peers, ..plan.variation };
        let kind = Kind::Strait(binary.to_owned(), engine, edge);
        let contestant = Contestant::start(&kind, congestion_control, variation)
            .with_context(|| format!("start {name}"))?;

        Ok::<_, anyhow::Error>(Variant { name, contestant })
    };

    Ok(match comparison {
        Comparison::Peers => [
            variant(format!("{MANY_PEERS} peers"), binary, engine, edge, MANY_PEERS - 1)?,
            variant("1 peer".to_owned(), binary, engine, edge, 0)?,
        ],
        Comparison::Build(other) => [
            variant(binary.display().to_string(), binary, engine, edge, 0)?,
            variant(other.display().to_string(), other, engine, edge, 0)?,
        ],
        Comparison::Engines => [
            variant(Engine::Native.to_string(), binary, Engine::Native, edge, 0)?,
            variant(Engine::Boringtun.to_string(), binary, Engine::Boringtun, edge, 0)?,
        ],
        Comparison::Edges => [
            variant("overlay".to_owned(), binary, engine, Edge::Overlay, 0)?,
            variant("device".to_owned(), binary, engine, Edge::Device, 0)?,
        ],
    })
}

impl Drop for Variant {
    fn drop(&mut self) {
        // A stopped process does not handle SIGTERM.
        let _ = self.signal(Signal::SIGCONT);
    }
}

impl Variant {
    fn measure(&self, plan: Plan) -> anyhow::Result<Measured> {
        self.signal(Signal::SIGCONT)?;
        let before = self.contestant.cpu_seconds();
        let measured = steal::during(|| self.load(plan));
        let cpu_seconds = self.contestant.cpu_seconds() - before;
        self.signal(Signal::SIGSTOP)?;

        let steal::Measured { value: (received, p99_us), stolen } = measured?;
        ensure!(received.bytes > 0.0, "{}: nothing arrived", self.name);

        Ok(Measured {
            gbps: received.bits_per_second / 1e9,
            cpu_seconds_per_gb: cpu_seconds / received.bytes * 1e9,
            all_cpu_seconds_per_gb: (cpu_seconds + received.cpu_seconds) / received.bytes * 1e9,
            p99_us,
            is_disturbed: steal::is_disturbed(stolen),
        })
    }

    fn load(&self, plan: Plan) -> anyhow::Result<(Received, Option<f64>)> {
        let Plan { streams, duration, .. } = plan;
        if plan.pings {
            let (received, pings) = load::tcp_with_ping(&self.contestant, streams, duration)?;
            return Ok((received, percentile(&pings.round_trips, 0.99)));
        }

        Ok((load::tcp(&self.contestant, streams, Direction::Up, duration)?, None))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        for (name, pid) in self.contestant.gateways() {
            let pid = Pid::from_raw(pid.try_into()?);
            kill(pid, signal).with_context(|| format!("{signal} to the gateway of {name}"))?;
        }

        Ok(())
    }
}

impl Outcome {
    fn of(names: [String; 2], measured: &[(Measured, Measured)]) -> Self {
        let is_quiet = |pair: &&(Measured, Measured)| !pair.0.is_disturbed && !pair.1.is_disturbed;
        let quiet = || measured.iter().filter(is_quiet);
        let throughput = quiet().map(|(new, old)| new.gbps / old.gbps).collect();
        let p99 = quiet().filter_map(|(new, old)| Some(new.p99_us? / old.p99_us?)).collect();
        // Steal does not add to the CPU time of a process, so disturbed pairs count here too.
        let cost =
            |(new, old): &(Measured, Measured)| new.cpu_seconds_per_gb / old.cpu_seconds_per_gb;
        let cost = measured.iter().map(cost).collect();
        let all_cost = measured
            .iter()
            .map(|(new, old)| new.all_cpu_seconds_per_gb / old.all_cpu_seconds_per_gb)
            .collect();

        let rates = [
            measured.iter().map(|pair| pair.0).collect::<Vec<_>>(),
            measured.iter().map(|pair| pair.1).collect(),
        ]
        .map(|measured| {
            let quiet = measured.into_iter().filter(|one| !one.is_disturbed);
            Spread::of(quiet.map(|one| one.gbps))
        });

        Self { names, rates, throughput, cost, all_cost, p99, pairs: measured.len() }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [new, old] = &self.names;
        for (name, rate) in self.names.iter().zip(&self.rates) {
            if let Some(Spread { least, median, most }) = rate {
                writeln!(f, "{name}: {median:.2} [{least:.2}, {most:.2}] Gb/s")?;
            }
        }
        writeln!(f, "{new} to {old}, median of the ratios [95 % confidence]")?;
        let mut rows = vec![
            ("TCP", &self.throughput),
            ("CPU s per GB", &self.cost),
            ("with load", &self.all_cost),
        ];
        if !self.p99.is_empty() {
            rows.push(("ping p99", &self.p99));
        }
        for (name, ratios) in rows {
            match Interval::of(ratios) {
                Some(Interval { low, median, high }) => {
                    writeln!(f, "  {name:<12} {median:.3} [{low:.3}, {high:.3}]")?;
                }
                None => writeln!(f, "  {name:<12} too few undisturbed pairs: measure again")?,
            }
        }
        let Self { throughput, pairs, .. } = self;

        write!(
            f,
            "{} of {pairs} pairs were undisturbed; only those count for TCP",
            throughput.len()
        )
    }
}

/// The median of a sample, with a confidence interval of 95 % for the true median.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Interval {
    low: f64,
    median: f64,
    high: f64,
}

impl Interval {
    /// By ranks, for any distribution: the number of values below the median is binomial, which is
    /// approximated by a normal distribution.
    fn of(values: &[f64]) -> Option<Self> {
        const Z: f64 = 1.96;

        if values.len() < LEAST_PAIRS {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        let count = f64::from(u32::try_from(sorted.len()).ok()?);
        let away = Z * count.sqrt() / 2.0;
        let below = (0..=last).take_while(|rank| {
            u32::try_from(*rank).is_ok_and(|rank| f64::from(rank) < count / 2.0 - away)
        });
        let rank = below.count().saturating_sub(1);

        Some(Self {
            low: *sorted.get(rank)?,
            median: f64::midpoint(*sorted.get(last / 2)?, *sorted.get(last.div_ceil(2))?),
            high: *sorted.get(last - rank)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_contain_the_median_and_narrow() {
        let values = |count: u32| (0..count).map(f64::from).map(move |n| n / f64::from(count - 1));
        let of = |count| Interval::of(&values(count).collect::<Vec<_>>()).unwrap();

        for count in [6, 7, 40, 41, 400] {
            let Interval { low, median, high } = of(count);
            assert!((median - 0.5).abs() < 1e-9, "{count}: {median}");
            assert!(low < median && median < high, "{count}");
            assert!((low + high - 1.0).abs() < 1e-9, "{count}: it is symmetric");
        }
        assert!(of(400).high - of(400).low < of(40).high - of(40).low);
        assert_eq!(Interval::of(&[1.0; LEAST_PAIRS - 1]), None);
    }

    /// Of 40 values the 14th and the 27th, as in tables of the sign test.
    #[test]
    fn ranks_match_the_sign_test() {
        let values: Vec<f64> = (1..=40).map(f64::from).collect();

        let interval = Interval::of(&values).unwrap();

        assert_eq!(interval, Interval { low: 14.0, median: 20.5, high: 27.0 });
    }

    #[test]
    fn disturbed_pairs_count_for_cost_only() {
        let quiet = Measured {
            gbps: 2.0,
            cpu_seconds_per_gb: 4.0,
            all_cpu_seconds_per_gb: 5.0,
            p99_us: Some(9.0),
            is_disturbed: false,
        };
        let disturbed = Measured { gbps: 1.0, is_disturbed: true, ..quiet };
        let names = ["new", "old"].map(str::to_owned);

        let outcome = Outcome::of(names, &[(quiet, quiet), (disturbed, quiet), (quiet, disturbed)]);

        assert_eq!(outcome.throughput, [1.0]);
        assert_eq!(outcome.p99, [1.0]);
        assert_eq!(outcome.cost, [1.0; 3]);
        assert!(outcome.to_string().contains("1 of 3 pairs were undisturbed"));
    }
}
