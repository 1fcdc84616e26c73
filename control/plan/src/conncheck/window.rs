//! The newest PINGs of the regular interval, and which of them were answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of PINGs over which loss is computed.
const LENGTH: usize = 32;

/// So many PINGs in a row without an answer are an outage of the other end, which says nothing about the path.
const OUTAGE: usize = 5;

/// The newest PINGs, the newest last.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// How long an answer may take.
    interval: Duration,
    probes: VecDeque<Probe>,
}

/// A PING that was sent.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) time_stamp: String,
    pub(super) nonce: u64,
    pub(super) sent: Instant,
    pub(super) is_answered: bool,
}

impl Window {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, probes: VecDeque::with_capacity(LENGTH) }
    }

    pub(super) fn push(&mut self, time_stamp: String, nonce: u64, sent: Instant) {
        if self.probes.len() == LENGTH {
            self.probes.pop_front();
        }
        self.probes.push_back(Probe { time_stamp, nonce, sent, is_answered: false });
    }

    /// The unanswered PING with this time stamp, and whether all that were answered are older.
    pub(super) fn unanswered(&mut self, time_stamp: &str) -> Option<(&mut Probe, bool)> {
        let newest_answered = self.probes.iter().rposition(|probe| probe.is_answered);
        let mut probes = self.probes.iter_mut().enumerate().rev();
        let (place, probe) =
            probes.find(|(_, probe)| probe.time_stamp == time_stamp && !probe.is_answered)?;

        Some((probe, newest_answered.is_none_or(|newest| place > newest)))
    }

    /// The number of the newest PINGs in a row without an answer in time. One that was sent before `proof`, when the other
    /// end answered something else, is not missed.
    pub(super) fn missed(&self, proof: Option<Instant>, now: Instant) -> u32 {
        let due = self.probes.iter().rev().skip_while(|probe| !self.is_due(probe, now));
        let is_missed = |probe: &&Probe| !probe.is_answered && Some(probe.sent) > proof;
        let missed = due.take_while(is_missed).count();

        u32::try_from(missed).unwrap_or(u32::MAX)
    }

    /// The share of PINGs that had an interval for their answer and got none, 0 to 1.
    pub(super) fn loss(&self, now: Instant) -> f64 {
        let answered = self.probes.iter().filter(|probe| probe.is_answered).count();
        let lost = self.lost(now);
        if lost == 0 { 0.0 } else { ratio(lost, lost + answered) }
    }

    /// As [`Self::loss`], but what was not sent yet counts as answered, and so does an outage: the first PING of a gateway,
    /// before there is a session, says nothing about the path.
    pub(super) fn loss_of_path(&self, now: Instant) -> f64 {
        let are_lost: Vec<_> = self.probes.iter().map(|probe| self.is_lost(probe, now)).collect();
        let runs = are_lost.chunk_by(|one, other| one == other);
        let lost = runs.filter(|run| run.contains(&true) && run.len() < OUTAGE).flatten().count();

        ratio(lost, LENGTH)
    }

    fn lost(&self, now: Instant) -> usize {
        self.probes.iter().filter(|probe| self.is_lost(probe, now)).count()
    }

    fn is_lost(&self, probe: &Probe, now: Instant) -> bool {
        !probe.is_answered && self.is_due(probe, now)
    }

    fn is_due(&self, probe: &Probe, now: Instant) -> bool {
        now.saturating_duration_since(probe.sent) >= self.interval
    }
}

/// Neither is more than [`LENGTH`].
fn ratio(part: usize, whole: usize) -> f64 {
    let exact = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));

    exact(part) / exact(whole)
}
