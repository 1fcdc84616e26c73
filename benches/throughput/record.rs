//! What is kept of one run, and what is read from it.
//!
//! A metric is an identifier such as `tcp_4_up_gbps`. A contestant may lack any of them: not every
//! implementation can do everything, and a tool may be missing on the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host;

/// One run, as it is kept.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Record {
    /// The release of the kernel.
    pub(crate) kernel: String,
    /// TCP's congestion control, which decides how much stands in queues that pings wait in.
    #[serde(default)]
    pub(crate) congestion_control: String,
    /// The model of the processor.
    pub(crate) cpu: String,
    /// How many of them the run could use.
    pub(crate) cores: usize,
    /// Every contestant is measured once in each.
    pub(crate) rounds: usize,
    /// How long one measurement of throughput took.
    pub(crate) seconds: f64,
    /// In the order in which they are shown.
    pub(crate) contestants: Vec<Entrant>,
}

/// Everything measured of one contestant.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Entrant {
    /// How it is called in tables and pictures.
    pub(crate) name: String,
    /// Which version of it ran.
    pub(crate) version: String,
    /// One map a round: the identifier of a metric, and its value.
    pub(crate) samples: Vec<BTreeMap<String, f64>>,
    /// For each of them, the share of the cores' time that others had meanwhile.
    #[serde(default)]
    pub(crate) stolen: Vec<BTreeMap<String, f64>>,
    /// What was measured several times in a round: each value.
    #[serde(default)]
    pub(crate) passes: Vec<BTreeMap<String, Vec<f64>>>,
    /// Round trips in µs, of all rounds, sorted: "idle" and "loaded".
    pub(crate) round_trips: BTreeMap<String, Vec<f64>>,
    /// What could not be measured of it, and why.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
}

/// How far values of one kind lie apart: a metric over all rounds, say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Record {
    /// What `contestant` reached in `metric`; `None` if no round measured it.
    pub(crate) fn spread(&self, contestant: &str, metric: &str) -> Option<Spread> {
        self.contestants.iter().find(|entrant| entrant.name == contestant)?.spread(metric)
    }
}

impl Entrant {
    /// What it reached in `metric`, in undisturbed rounds if there are any; `None` if no round measured
    /// it.
    pub(crate) fn spread(&self, metric: &str) -> Option<Spread> {
        let rounds = 0..self.samples.len();
        let quiet = |round: &usize| !self.is_disturbed(*round, metric);
        let value = |round: usize| self.samples.get(round)?.get(metric).copied();

        Spread::of(rounds.clone().filter(quiet).filter_map(value))
            .or_else(|| Spread::of(rounds.filter_map(value)))
    }

    /// Whether others had too much of the machine while `metric` was measured in that round.
    pub(crate) fn is_disturbed(&self, round: usize, metric: &str) -> bool {
        let stolen = self.stolen.get(round).and_then(|round| round.get(metric));

        stolen.copied().is_some_and(host::is_disturbed)
    }
}

impl Spread {
    /// Of whatever is a number among `values`; `None` if nothing is.
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
    fn spread_of_an_odd_count_has_the_middle_value() {
        let record = record(&[3.0, 1.0, 8.0]);

        let spread = record.spread("strait", "peak_mib");

        assert_eq!(spread, Some(Spread { least: 1.0, median: 3.0, most: 8.0 }));
    }

    #[test]
    fn spread_of_an_even_count_has_the_mean_of_the_middle_two() {
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
    fn a_metric_that_nobody_measured_has_no_spread() {
        let record = record(&[5.0]);

        assert_eq!(record.spread("strait", "udp_64_pps"), None);
        assert_eq!(record.spread("boringtun", "peak_mib"), None);
    }

    #[test]
    fn a_record_survives_its_file() {
        let record = record(&[5.0, 0.25]);

        let text = serde_json::to_string(&record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();

        assert_eq!(read.spread("strait", "peak_mib"), record.spread("strait", "peak_mib"));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    /// One contestant, one metric, one value a round.
    fn record(values: &[f64]) -> Record {
        let samples = values.iter().map(|v| BTreeMap::from([("peak_mib".to_owned(), *v)]));
        let strait =
            Entrant { name: "strait".to_owned(), samples: samples.collect(), ..Entrant::default() };

        Record { contestants: vec![strait], ..Record::default() }
    }
}
