//! The stored results of one run.
//!
//! A metric is an identifier such as `tcp_4_up_gbps`. A contestant may lack any of them: an
//! implementation may not support it, or a tool may be missing on the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::steal;

/// The results of one run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Record {
    /// The release of the kernel.
    pub(crate) kernel: String,
    /// TCP's congestion control, which determines the queues in which pings wait.
    #[serde(default)]
    pub(crate) congestion_control: String,
    /// MTU of the underlay, the pods and the tunnel.
    #[serde(default)]
    pub(crate) mtu: String,
    /// The nodes between pods and gateways; empty without any.
    #[serde(default)]
    pub(crate) nodes: String,
    /// The model of the processor.
    pub(crate) cpu: String,
    /// Number of cores that the run could use.
    pub(crate) cores: usize,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// Duration of one measurement of TCP throughput.
    pub(crate) seconds: f64,
    /// In the order of tables and pictures.
    pub(crate) contestants: Vec<Results>,
}

/// All results of one contestant.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Results {
    /// Its name in tables and pictures.
    pub(crate) name: String,
    /// The version that ran.
    pub(crate) version: String,
    /// One map per round, from the identifier of a metric to its value.
    pub(crate) samples: Vec<BTreeMap<String, f64>>,
    /// The stolen share of the CPU time for each of these values.
    #[serde(default)]
    pub(crate) stolen: Vec<BTreeMap<String, f64>>,
    /// Each single value of what was measured several times in a round.
    #[serde(default)]
    pub(crate) passes: Vec<BTreeMap<String, Vec<f64>>>,
    /// Round trips in µs, of all rounds, sorted: "idle" and "loaded".
    pub(crate) round_trips: BTreeMap<String, Vec<f64>>,
    /// Failed measurements, with the reason.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
}

/// Lowest, median and highest of several values, such as those of a metric in all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Record {
    /// The spread of `metric` of `contestant`; `None` if no round measured it.
    pub(crate) fn spread(&self, contestant: &str, metric: &str) -> Option<Spread> {
        self.contestants.iter().find(|results| results.name == contestant)?.spread(metric)
    }
}

impl Results {
    /// The spread of `metric` over the undisturbed rounds, or over all if there are none; `None` if no
    /// round measured it.
    pub(crate) fn spread(&self, metric: &str) -> Option<Spread> {
        let rounds = 0..self.samples.len();
        let quiet = |round: &usize| !self.is_disturbed(*round, metric);
        let value = |round: usize| self.samples.get(round)?.get(metric).copied();

        Spread::of(rounds.clone().filter(quiet).filter_map(value))
            .or_else(|| Spread::of(rounds.filter_map(value)))
    }

    /// Whether the measurement of `metric` in that round was disturbed.
    pub(crate) fn is_disturbed(&self, round: usize, metric: &str) -> bool {
        let stolen = self.stolen.get(round).and_then(|round| round.get(metric));

        stolen.copied().is_some_and(steal::is_disturbed)
    }
}

impl Spread {
    /// The spread of `values` without NaN; `None` if there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let high = *values.get(values.len() / 2)?;
        let low = *values.get((values.len() - 1) / 2)?;

        Some(Self {
            least: *values.first()?,
            median: f64::midpoint(low, high),
            most: *values.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_odd_count() {
        let record = record(&[3.0, 1.0, 8.0]);

        let spread = record.spread("strait", "peak_mib");

        assert_eq!(spread, Some(Spread { least: 1.0, median: 3.0, most: 8.0 }));
    }

    #[test]
    fn median_of_an_even_count_is_a_mean() {
        let record = record(&[4.0, 1.0, 2.0, 9.0]);

        let spread = record.spread("strait", "peak_mib");

        assert_eq!(spread, Some(Spread { least: 1.0, median: 3.0, most: 9.0 }));
    }

    #[test]
    fn rounds_without_the_metric_do_not_count() {
        let mut record = record(&[5.0, 7.0]);
        record.contestants[0].samples.push(BTreeMap::new());

        let spread = record.spread("strait", "peak_mib");

        assert_eq!(spread, Some(Spread { least: 5.0, median: 6.0, most: 7.0 }));
    }

    #[test]
    fn an_unmeasured_metric_has_no_spread() {
        let record = record(&[5.0]);

        assert_eq!(record.spread("strait", "udp_64_pps"), None);
        assert_eq!(record.spread("boringtun", "peak_mib"), None);
    }

    #[test]
    fn a_record_round_trips_through_json() {
        let record = record(&[5.0, 0.25]);

        let text = serde_json::to_string(&record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();

        assert_eq!(read.spread("strait", "peak_mib"), record.spread("strait", "peak_mib"));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    /// A record of one contestant and one metric, with one value per round.
    fn record(values: &[f64]) -> Record {
        let samples = values.iter().map(|v| BTreeMap::from([("peak_mib".to_owned(), *v)]));
        let strait =
            Results { name: "strait".to_owned(), samples: samples.collect(), ..Results::default() };

        Record { contestants: vec![strait], ..Record::default() }
    }
}
