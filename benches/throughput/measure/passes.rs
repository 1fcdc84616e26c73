//! Repetitions of the steps with a goal within a round, of which the mean counts.
//!
//! A single measurement of a second and a half is off by up to a tenth: on which core a thread wakes up, and how
//! large batches get as a result, differs from one measurement to the next. Longer ones do not help.

use std::collections::BTreeSet;

use super::Sample;
use crate::steal;

/// The measurements of one contestant in one round, one sample per pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Passes(Vec<Sample>);

impl Passes {
    /// `count` empty samples.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![Sample::default(); count])
    }

    /// The sample of pass `number`, from 0.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Sample> {
        self.0.get_mut(number)
    }

    /// One sample with the mean of each value over the undisturbed passes, or over all if there are none.
    pub(super) fn merged(self) -> Sample {
        let ids: BTreeSet<String> = self.0.iter().flat_map(|s| s.values.keys().cloned()).collect();
        let mut merged = Sample::default();
        for id in ids {
            let stolen = |sample: &Sample| sample.stolen.get(&id).copied().unwrap_or_default();
            let measured: Vec<(f64, f64)> = self
                .0
                .iter()
                .filter_map(|sample| Some((*sample.values.get(&id)?, stolen(sample))))
                .collect();
            let quiet: Vec<_> = measured
                .iter()
                .copied()
                .filter(|(_, stolen)| !steal::is_disturbed(*stolen))
                .collect();
            let counting = if quiet.is_empty() { &measured } else { &quiet };

            let mean = |value: fn(&(f64, f64)) -> f64| {
                let values = counting.iter().map(value);
                values.sum::<f64>() / f64::from(u32::try_from(counting.len()).unwrap_or(u32::MAX))
            };
            merged.values.insert(id.clone(), mean(|(value, _)| *value));
            merged.stolen.insert(id.clone(), mean(|(_, stolen)| *stolen));
            if measured.len() > 1 {
                merged.passes.insert(id, measured.iter().map(|(value, _)| *value).collect());
            }
        }
        for sample in self.0 {
            for (name, round_trips) in sample.round_trips {
                merged.round_trips.entry(name).or_insert_with(Vec::new).extend(round_trips);
            }
            merged.failures.extend(sample.failures);
        }

        merged
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A pass with one value, and its stolen share.
    fn pass(id: &str, value: f64, stolen: f64) -> Sample {
        Sample {
            values: BTreeMap::from([(id.to_owned(), value)]),
            stolen: BTreeMap::from([(id.to_owned(), stolen)]),
            round_trips: BTreeMap::from([("idle".to_owned(), vec![value])]),
            ..Sample::default()
        }
    }

    #[test]
    fn the_mean_of_undisturbed_passes_counts() {
        let passes =
            [(1.0, 0.0), (9.0, 0.9), (3.0, 0.02)].map(|(v, stolen)| pass("udp", v, stolen));

        let merged = Passes(passes.to_vec()).merged();

        assert_eq!(merged.values["udp"], 2.0);
        assert_eq!(merged.stolen["udp"], 0.01);
        assert_eq!(merged.passes["udp"], [1.0, 9.0, 3.0]);
        assert_eq!(merged.round_trips["idle"], [1.0, 9.0, 3.0]);
    }

    #[test]
    fn all_passes_count_if_all_were_disturbed() {
        let all = Passes(vec![pass("udp", 1.0, 0.5), pass("udp", 3.0, 0.9)]).merged();
        let one = Passes(vec![pass("tcp", 4.0, 0.0), Sample::default()]).merged();

        assert_eq!((all.values["udp"], all.stolen["udp"]), (2.0, 0.7));
        assert_eq!(one.values["tcp"], 4.0);
        assert!(one.passes.is_empty());
    }
}
