//! CPU time that the hypervisor gave to other virtual machines during a measurement.
//!
//! When the hypervisor takes a core away for 10 ms, round trips get longer and throughput drops. The
//! kernel counts that time ("steal"), so disturbed measurements can be recognised.

use std::fs;

/// Share of stolen CPU time up to which a measurement counts as undisturbed.
const MAX_STEAL: f64 = 0.05;

/// CPU time of all cores since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    total: f64,
    stolen: f64,
}

impl CpuTime {
    /// Zero if the kernel does not count steal.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// The stolen share of the time since `earlier`, from 0 to 1.
    pub(crate) fn stolen_since(self, earlier: Self) -> f64 {
        let total = self.total - earlier.total;

        if total > 0.0 { (self.stolen - earlier.stolen) / total } else { 0.0 }
    }

    /// `proc_stat(5)`: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> =
            line.split_whitespace().take(8).map(|field| field.parse().unwrap_or(0.0)).collect();

        Some(Self { total: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }
}

/// Whether this share of stolen time disturbs a measurement.
pub(crate) fn is_disturbed(stolen: f64) -> bool {
    stolen > MAX_STEAL
}

/// A measured value, with the steal during the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured<T> {
    pub(crate) value: T,
    /// The stolen share of the CPU time, from 0 to 1.
    pub(crate) stolen: f64,
}

/// Runs `measure` and determines the steal meanwhile.
///
/// # Errors
///
/// Those of `measure`.
pub(crate) fn during<T>(
    measure: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Measured<T>> {
    let before = CpuTime::now();
    let value = measure()?;

    Ok(Measured { value, stolen: CpuTime::now().stolen_since(before) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_a_share_of_elapsed_time() {
        let before = CpuTime::parse("cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 2 3").unwrap();
        let after = CpuTime::parse("cpu  150 0 70 900 10 0 5 65 20 0\n").unwrap();

        assert_eq!(after.stolen_since(before), 30.0 / 200.0);
        assert_eq!(after.stolen_since(after), 0.0);
    }

    #[test]
    fn missing_steal_counter_means_no_steal() {
        assert_eq!(CpuTime::parse("cpu  100 0 50 800\n"), None);
        assert_eq!(CpuTime::parse(""), None);
        assert_eq!(CpuTime::default().stolen_since(CpuTime::default()), 0.0);
    }
}
