//! What others took of the machine while something was measured.
//!
//! A hypervisor that gives a core to somebody else for 10 ms adds them to every round trip and takes
//! them from every throughput. The kernel counts that time ("steal"), so a measurement can be told
//! from an accident.

use std::fs;

/// A measurement with at most this share of the cores' time stolen counts as undisturbed.
const QUIET: f64 = 0.05;

/// The time of all cores since the machine started, in any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cores {
    total: f64,
    stolen: f64,
}

impl Cores {
    /// Where the kernel does not say, nothing is ever stolen.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// The share of the time since `earlier` that others had, from 0 to 1.
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

/// Whether so much stolen time explains a bad result.
pub(crate) fn is_disturbed(stolen: f64) -> bool {
    stolen > QUIET
}

/// A measurement, and how much it was disturbed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured<T> {
    pub(crate) value: T,
    /// The share of the cores' time that others had.
    pub(crate) stolen: f64,
}

/// Measures, and asks how much it was disturbed.
///
/// # Errors
///
/// Those of `measure`.
pub(crate) fn watched<T>(
    measure: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Measured<T>> {
    let before = Cores::now();
    let value = measure()?;

    Ok(Measured { value, stolen: Cores::now().stolen_since(before) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stolen_is_a_share_of_the_time_that_passed() {
        let before = Cores::parse("cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 2 3").unwrap();
        let after = Cores::parse("cpu  150 0 70 900 10 0 5 65 20 0\n").unwrap();

        assert_eq!(after.stolen_since(before), 30.0 / 200.0);
        assert_eq!(after.stolen_since(after), 0.0);
    }

    #[test]
    fn a_kernel_that_does_not_count_it_steals_nothing() {
        assert_eq!(Cores::parse("cpu  100 0 50 800\n"), None);
        assert_eq!(Cores::parse(""), None);
        assert_eq!(Cores::default().stolen_since(Cores::default()), 0.0);
    }
}
