//! A progress line: the current step and the remaining time.

use std::io::{IsTerminal as _, stderr};
use std::time::Instant;

/// On a terminal one line that is overwritten; otherwise a line for each step.
pub(crate) struct Progress {
    start: Instant,
    last: Instant,
    total: usize,
    done: usize,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let now = Instant::now();

        Self { start: now, last: now, total, done: 0, is_terminal: stderr().is_terminal() }
    }

    pub(crate) fn show(&self, step: &str) {
        let (done, total) = (self.done, self.total);
        let line = format!("{done}/{total} {step}{}", self.left());
        if self.is_terminal {
            eprint!("\r{line:<70}");
        } else {
            eprintln!("{line}");
        }
    }

    pub(crate) fn done(&mut self) {
        self.last = Instant::now();
        self.done += 1;
    }

    pub(crate) fn clear(&self) {
        if self.is_terminal {
            eprint!("\r{:70}\r", "");
        }
    }

    /// The remaining time: every step takes about the same time.
    fn left(&self) -> String {
        let (Ok(done), Ok(left)) =
            (u32::try_from(self.done), u32::try_from(self.total - self.done))
        else {
            return String::new();
        };
        match self.last.duration_since(self.start).checked_div(done) {
            Some(each) => {
                let rest = (each * left).saturating_sub(self.last.elapsed());
                format!(", about {} s left", rest.as_secs())
            }
            None => String::new(),
        }
    }
}
