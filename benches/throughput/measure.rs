//! The measurements of one round: all contestants in turn, one quantity after the other.
//!
//! All contestants are ready at the same time and one works at a time, so that compared measurements
//! are seconds apart: other load on a shared machine changes from minute to minute.

mod nodes;
mod passes;
mod step;
mod variation;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::contestant::{CongestionControl, Contestant, Kind, Mtu, Nodes, Variation};
use crate::load::{Direction, RoundTrips};
use crate::steal::{self, Measured};
use passes::Passes;
use step::Step;

/// What is measured in a round, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Duration of a TCP measurement. The first one takes twice as long, as its figures matter most.
    pub(crate) duration: Duration,
    pub(crate) congestion_control: CongestionControl,
    pub(crate) mtu: Mtu,
    /// The nodes between pods and gateways, if there are any.
    pub(crate) nodes: Option<Nodes>,
    /// Duration of an attempt at one rate, in a search for the highest rate.
    pub(crate) trial: Duration,
    pub(crate) streams: &'static [u32],
    pub(crate) directions: &'static [Direction],
    pub(crate) payload_bytes: &'static [usize],
    /// Whether short connections, many peers and the kill switches are measured too.
    pub(crate) is_full: bool,
    /// How often a step with a goal is measured in a round.
    pub(crate) passes: usize,
    /// Time limit of the repetitions of disturbed measurements in a round.
    pub(crate) repeat_time: Duration,
}

impl Plan {
    pub(crate) const fn quick(congestion_control: CongestionControl, mtu: Mtu) -> Self {
        Self {
            duration: Duration::from_millis(1_100),
            congestion_control,
            mtu,
            nodes: None,
            trial: Duration::from_millis(120),
            streams: &[1, 4],
            directions: &[Direction::Up],
            payload_bytes: &[64, 1300],
            is_full: false,
            passes: 1,
            repeat_time: Duration::from_secs(6),
        }
    }

    pub(crate) const fn full(congestion_control: CongestionControl, mtu: Mtu) -> Self {
        Self {
            duration: Duration::from_millis(1_500),
            congestion_control,
            mtu,
            nodes: None,
            trial: Duration::from_millis(250),
            streams: &[1, 4, 16],
            directions: &Direction::ALL,
            payload_bytes: &[64, 512, 1300],
            is_full: true,
            passes: 5,
            repeat_time: Duration::from_secs(45),
        }
    }

    /// The contestants of the comparison.
    pub(crate) fn variation(&self) -> Variation {
        let Self { mtu, nodes, .. } = *self;

        Variation { mtu, nodes, ..Variation::default() }
    }

    fn steps(&self, scope: Scope) -> Vec<Step> {
        let tcp = self.streams.iter().flat_map(|streams| {
            self.directions.iter().map(|direction| Step::Tcp(*streams, *direction))
        });
        // Step::RoundTrips measures this one, with pings beside it.
        let tcp = tcp.filter(|step| *step != Step::Tcp(1, Direction::Up));
        let udp = self.payload_bytes.iter().copied().map(Step::Udp);
        let connections = self.is_full.then_some(Step::Connections);

        let steps = [Step::RoundTrips].into_iter().chain(tcp).chain(udp).chain(connections);
        steps.filter(|step| scope.has_other_steps || step.has_goal()).collect()
    }
}

/// What a round measures besides the steps with a goal, which are in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The other steps.
    pub(crate) has_other_steps: bool,
    /// Measurements that need other gateways.
    pub(crate) has_variations: bool,
}

impl Scope {
    /// The scope of round `round` of `rounds`, from 1: alternately one of the two. A single round has
    /// both.
    pub(crate) const fn of(round: usize, rounds: usize, plan: &Plan) -> Self {
        let is_odd = round % 2 == 1;

        Self {
            has_other_steps: is_odd || !plan.is_full,
            has_variations: plan.is_full && (!is_odd || rounds == 1),
        }
    }
}

/// Maximum repetitions of a disturbed or failed measurement.
const REPEATS: usize = 3;

/// The measurements of one contestant: values by the identifiers of [`crate::metric`], and round
/// trips as "idle" and "loaded".
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) round_trips: BTreeMap<String, RoundTrips>,
    /// For each value: the stolen share of the CPU time meanwhile.
    pub(crate) stolen: BTreeMap<String, f64>,
    /// Each single value of what was measured several times.
    pub(crate) passes: BTreeMap<String, Vec<f64>>,
    /// Failed measurements, with the reason.
    pub(crate) failures: Vec<String>,
}

/// Measures each of `kinds` within `scope`; `show` gets the current step. A failed measurement is missing in the
/// sample and listed in its failures.
pub(crate) fn round(
    kinds: &[Kind],
    plan: &Plan,
    scope: Scope,
    mut show: impl FnMut(&dyn Display),
) -> Vec<Sample> {
    let contestants =
        kinds.iter().map(|kind| Contestant::start(kind, plan.congestion_control, plan.variation()));
    let contestants: Vec<_> = contestants.collect();

    let mut tasks = Vec::new();
    for step in plan.steps(scope) {
        for pass in 0..plan.passes {
            let is_first = pass == 0;
            let places = kinds.iter().zip(&contestants).enumerate();
            let places =
                places.filter(|(_, (kind, _))| is_first || step.has_goal() && kind.has_goal());
            tasks.extend(places.filter_map(|(place, (_, contestant))| {
                let contestant = contestant.as_ref().ok()?;

                Some(Task { step, pass, place, contestant, is_measured: false, failure: None })
            }));
        }
    }
    let passes = in_turn(tasks, plan, kinds.len(), &mut show);
    let mut samples: Vec<_> = passes.into_iter().map(Passes::merged).collect();
    for (contestant, sample) in contestants.into_iter().zip(&mut samples) {
        let contestant = sample.keep("start", contestant);
        sample.put_peak("peak_mib", contestant.as_ref());
    }

    if scope.has_variations {
        for (kind, sample) in kinds.iter().zip(&mut samples) {
            variation::all(kind, plan, sample, &mut show);
        }
    }

    samples
}

/// One step of one contestant.
struct Task<'a> {
    step: Step,
    pass: usize,
    place: usize,
    contestant: &'a Contestant,
    is_measured: bool,
    failure: Option<anyhow::Error>,
}

/// Runs each task, then repeats those that failed or were disturbed, within the time limit of the
/// plan. The least disturbed measurement counts.
fn in_turn(
    mut tasks: Vec<Task<'_>>,
    plan: &Plan,
    places: usize,
    show: &mut impl FnMut(&dyn Display),
) -> Vec<Passes> {
    let mut passes = vec![Passes::new(plan.passes); places];
    let mut deadline = None;
    for _ in 0..=REPEATS {
        let mut again = Vec::new();
        let mut shown = None;
        for mut task in tasks {
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                again.push(task);
                continue;
            }
            if shown != Some(task.step) {
                show(&task.step);
                shown = Some(task.step);
            }
            match steal::during(|| task.step.measure(task.contestant, plan)) {
                Ok(measured) => {
                    let is_disturbed = steal::is_disturbed(measured.stolen);
                    if let Some(sample) = task.sample_in(&mut passes) {
                        sample.improve(measured);
                    }
                    task.is_measured = true;
                    again.extend(is_disturbed.then_some(task));
                }
                Err(error) => {
                    task.failure = Some(error);
                    again.push(task);
                }
            }
        }
        tasks = again;
        deadline = deadline.or_else(|| Instant::now().checked_add(plan.repeat_time));
    }

    for mut task in tasks {
        let (failure, is_measured) = (task.failure.take(), task.is_measured);
        if let (Some(sample), Some(error), false) =
            (task.sample_in(&mut passes), failure, is_measured)
        {
            sample.keep::<()>(task.step, Err(error));
        }
    }

    passes
}

impl Task<'_> {
    /// The sample that gets its result.
    fn sample_in<'s>(&self, passes: &'s mut [Passes]) -> Option<&'s mut Sample> {
        passes.get_mut(self.place)?.get_mut(self.pass)
    }
}

impl Sample {
    fn put(&mut self, id: impl Into<String>, value: f64) {
        self.values.insert(id.into(), value);
    }

    /// The peak memory of the gateways of `contestant`, if it has any.
    fn put_peak(&mut self, id: impl Into<String>, contestant: Option<&Contestant>) {
        let peaks = contestant.into_iter().flat_map(Contestant::usage).map(|usage| usage.peak_mib);
        if let Some(peak) = peaks.max_by(f64::total_cmp) {
            self.put(id, peak);
        }
    }

    /// The value of `result`; an error is added to the failures.
    fn keep<T>(&mut self, what: impl Display, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.failures.push(format!("{what}: {error:#}"))).ok()
    }

    /// Replaces values by those of `measured`, unless the known ones are less disturbed.
    fn improve(&mut self, measured: Measured<Self>) {
        let Measured { value, stolen } = measured;
        let known = value.values.keys().next().and_then(|id| self.stolen.get(id));
        if known.is_some_and(|known| *known <= stolen) {
            return;
        }
        self.stolen.extend(value.values.keys().map(|id| (id.clone(), stolen)));
        self.values.extend(value.values);
        self.round_trips.extend(value.round_trips);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_two_rounds_measure_all() {
        let full = Plan::full(CongestionControl::default(), Mtu::default());
        let scopes = |rounds| (1..=rounds).map(move |round| Scope::of(round, rounds, &full));
        let has_all = |rounds| {
            scopes(rounds).any(|scope| scope.has_other_steps)
                && scopes(rounds).any(|scope| scope.has_variations)
        };
        assert!(has_all(1) && has_all(2) && has_all(4));

        let judged =
            [Step::RoundTrips, Step::Tcp(4, Direction::Up), Step::Udp(64), Step::Udp(1300)];
        let [first, second] = [1, 2].map(|round| full.steps(Scope::of(round, 4, &full)));
        assert!(
            judged.iter().all(|step| first.contains(step)) && first.contains(&Step::Connections)
        );
        assert_eq!(second, judged);

        let quick = Plan::quick(CongestionControl::default(), Mtu::default());
        assert_eq!(Scope::of(2, 3, &quick), Scope { has_other_steps: true, has_variations: false });
    }

    #[test]
    fn the_least_disturbed_measurement_counts() {
        let mut sample = Sample::default();
        for (value, stolen) in [(1.0, 0.3), (2.0, 0.1), (3.0, 0.2)] {
            let mut again = Sample::default();
            again.put("udp_64_pps", value);
            sample.improve(Measured { value: again, stolen });
        }

        assert_eq!(sample.values["udp_64_pps"], 2.0);
        assert_eq!(sample.stolen["udp_64_pps"], 0.1);
    }
}
