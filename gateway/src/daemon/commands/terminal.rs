//! Where a verb is heard: lines on stdout as in Liqo's documentation, what is waited for on a terminal.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use control::commands::{Deadline, Report, Session, Side};
use tokio::time::Instant;

use super::super::operator::public_of;
use super::super::output;
use super::args::answer;
use super::colour::{Colour, coloured, coloured_on};

/// To the beginning of the line, and nothing in it.
const CLEAR: &str = "\r\x1b[K";

/// Stdout for what is done, stderr for what is to be known besides.
pub(super) struct Terminal {
    /// Whether stderr is seen.
    is_watched: bool,
    /// Whether the user has allowed beforehand what may be lost.
    allows_all: bool,
    /// What the last line on stderr says that is waited for, and since when.
    waiting: RefCell<Option<(String, Instant)>>,
    /// Why what is done could not be said.
    lost: RefCell<Option<io::Error>>,
}

impl Terminal {
    pub(super) fn new(allows_all: bool) -> Self {
        Self {
            is_watched: io::stderr().is_terminal(),
            allows_all,
            waiting: RefCell::new(None),
            lost: RefCell::new(None),
        }
    }

    /// A run that must end within `timeout`, heard here.
    pub(super) fn session(&self, timeout: Duration) -> Session<'_> {
        Session { report: self, deadline: Deadline::after(timeout), public_of }
    }

    /// Prints a result.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        self.clear();

        output::print(text)
    }

    /// No more is said. An error if something of it was lost.
    pub(super) fn end(&self) -> io::Result<()> {
        self.clear();

        self.lost.take().map_or(Ok(()), Err)
    }

    /// Shows for how long there has been waiting, every second; without end.
    pub(super) async fn count_seconds(&self) -> Infallible {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if let Some((line, since)) = &*self.waiting.borrow() {
                show(line, since.elapsed());
            }
        }
    }

    fn clear(&self) {
        if self.waiting.take().is_some() {
            tell(CLEAR);
        }
    }
}

impl Report for Terminal {
    fn done(&self, side: Side, text: &str) {
        let level = coloured("INFO", |_| Some(Colour::Green));
        // A verb whose lines are lost is still done to its end.
        if let Err(error) = self.print(&line(level.trim_end(), side, text)) {
            self.lost.replace(Some(error));
        }
    }

    fn warn(&self, side: Side, text: &str) {
        self.clear();
        let level = coloured_on("WARN", self.is_watched, |_| Some(Colour::Yellow));
        tell(&line(level.trim_end(), side, text));
    }

    fn waiting(&self, side: Side, text: &str) {
        if self.is_watched {
            let line = line("....", side, text).trim_end().to_owned();
            show(&line, Duration::ZERO);
            self.waiting.replace(Some((line, Instant::now())));
        }
    }

    fn allows(&self, side: Side, warning: &str) -> bool {
        self.clear();

        self.allows_all
            || answer(&format!("{side}{warning}")).unwrap_or_else(|error| {
                self.warn(side, &format!("the question has no answer: {error}"));
                false
            })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The error that comes next begins a line.
        self.clear();
    }
}

/// Shows what is waited for in the place of what was shown before.
fn show(line: &str, elapsed: Duration) {
    tell(&format!("{CLEAR}{}", waiting_line(line, elapsed)));
}

fn waiting_line(line: &str, elapsed: Duration) -> String {
    match elapsed.as_secs() {
        0 => line.to_owned(),
        seconds => format!("{line} ({seconds} s)"),
    }
}

fn line(level: &str, side: Side, text: &str) -> String {
    format!(" {level}   {side}{text}\n")
}

/// Says it on stderr. Nobody is left to tell if that is closed.
fn tell(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_documentation() {
        let text = "Network configuration correctly retrieved";

        assert_eq!(line("INFO", Side::Local, text), format!(" INFO   (local) {text}\n"));
        assert_eq!(line("INFO", Side::Remote, text), format!(" INFO   (remote) {text}\n"));
        assert_eq!(line("INFO", Side::Only, "PublicKey created"), " INFO   PublicKey created\n");
    }

    #[test]
    fn waits_show_seconds() {
        let line = " ....   (local) Waiting for Configuration milan to be applied";

        assert_eq!(waiting_line(line, Duration::from_millis(999)), line);
        assert_eq!(waiting_line(line, Duration::from_millis(12_300)), format!("{line} (12 s)"));
    }
}
