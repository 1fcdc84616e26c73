//! CPU time and memory of a gateway process.

use std::fs;

/// Resources used since the start of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system time of all threads.
    pub(crate) cpu_seconds: f64,
    /// Peak resident memory in MiB.
    pub(crate) peak_mib: f64,
}

impl Usage {
    /// `None` if the process has ended.
    pub(super) fn of(pid: u32) -> Option<Self> {
        Some(Self { cpu_seconds: cpu_seconds(pid)?, peak_mib: peak_mib(pid)? })
    }
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;

    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces; what follows its closing bracket does not. proc(5): fields 14, 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();

    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

fn peak_mib(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;

    Some(kib.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}
