//! Where a verb is heard: lines on stdout as in Liqo's documentation, what is waited for on a terminal.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use control::commands::{Deadline, Report, Session, Side};

use super::super::operator::public_of;
use super::super::output;

/// To the beginning of the line, and nothing in it.
const CLEAR: &str = "\r\x1b[K";

/// Stdout for what is done, stderr for what is to be known besides.
pub(super) struct Terminal {
    /// Whether somebody sees stderr.
    is_watched: bool,
    /// Whether the line on stderr says what is waited for.
    is_waiting: Cell<bool>,
    /// Why what is done could not be said.
    lost: RefCell<Option<io::Error>>,
}

impl Terminal {
    pub(super) fn new() -> Self {
        Self {
            is_watched: io::stderr().is_terminal(),
            is_waiting: Cell::new(false),
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

    fn clear(&self) {
        if self.is_waiting.replace(false) {
            tell(CLEAR);
        }
    }
}

impl Report for Terminal {
    fn done(&self, side: Side, text: &str) {
        // A verb that nobody hears any more is still done to its end.
        if let Err(error) = self.print(&line("INFO", side, text)) {
            self.lost.replace(Some(error));
        }
    }

    fn warn(&self, side: Side, text: &str) {
        self.clear();
        tell(&line("WARN", side, text));
    }

    fn waiting(&self, side: Side, text: &str) {
        if self.is_watched {
            tell(&format!("{CLEAR}{}", line("....", side, text).trim_end()));
            self.is_waiting.set(true);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The error that comes next begins a line.
        self.clear();
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
        assert_eq!(line("INFO", Side::Only, "Publickey created"), " INFO   Publickey created\n");
    }
}
