//! Output of a command: lines on stdout as in Liqo's documentation, and waits on a terminal.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use parking_lot::Mutex;
use strait_api::public_key::PublicOf;
use strait_host::stdout;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::args::answer;
use super::colour::{Colour, coloured, coloured_on};
use crate::{Deadline, Report, Session, Side};

/// Moves to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[K";

/// The exit code after Ctrl-C, as shells report it: 128 plus the number of the signal.
const INTERRUPTED: i32 = 130;

/// Writes results to stdout, and warnings and waits to stderr.
pub(super) struct Terminal {
    /// Whether stderr is a terminal.
    is_terminal: bool,
    /// Whether a flag has confirmed destructive steps.
    is_confirmed: bool,
    /// Makes public keys of private ones.
    public_of: PublicOf,
    /// What is current wait and when it began.
    waiting: Arc<Mutex<Option<(String, Instant)>>>,
    /// The error of stdout, if a line was lost.
    lost: RefCell<Option<io::Error>>,
}

impl Terminal {
    pub(super) fn new(is_confirmed: bool, public_of: PublicOf) -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
            is_confirmed,
            public_of,
            waiting: Arc::default(),
            lost: RefCell::new(None),
        }
    }

    /// A session that reports here and must end within `timeout`.
    pub(super) fn session(&self, timeout: Duration) -> Session<'_> {
        Session { report: self, deadline: Deadline::after(timeout), public_of: self.public_of }
    }

    /// Prints a result.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        self.clear();

        stdout::print(text)
    }

    /// Ends the output. Returns an error if a line was lost.
    pub(super) fn end(&self) -> io::Result<()> {
        self.clear();

        self.lost.take().map_or(Ok(()), Err)
    }

    /// Updates the duration of the current wait every second. Does not return.
    pub(super) async fn count_seconds(&self) -> Infallible {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.is_terminal
                && let Some((text, since)) = &*self.waiting.lock()
            {
                show(text, since.elapsed());
            }
        }
    }

    /// Makes Ctrl-C end the program with a line about the current wait. Runs on a separate thread, because a question
    /// blocks this one.
    pub(super) fn end_on_interrupt(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _guard = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        let (waiting, is_terminal) = (Arc::clone(&self.waiting), self.is_terminal);
        let end = move || {
            if runtime.block_on(interrupts.recv()).is_some() {
                let waiting = waiting.lock();
                let line = interrupted(waiting.as_ref().map(|(text, _)| text.as_str()));
                write_stderr(&format!("{}{line}", if is_terminal { CLEAR } else { "" }));
                process::exit(INTERRUPTED);
            }
        };
        thread::Builder::new().name("interrupt".to_owned()).spawn(end)?;

        Ok(())
    }

    fn clear(&self) {
        if self.waiting.lock().take().is_some() && self.is_terminal {
            write_stderr(CLEAR);
        }
    }
}

impl Report for Terminal {
    fn done(&self, side: Side, text: &str) {
        let level = coloured("INFO", |_| Some(Colour::Green));
        // A command whose output is lost still runs to its end.
        if let Err(error) = self.print(&line(level.trim_end(), side, text)) {
            self.lost.replace(Some(error));
        }
    }

    fn warn(&self, side: Side, text: &str) {
        self.clear();
        let level = coloured_on("WARN", self.is_terminal, |_| Some(Colour::Yellow));
        write_stderr(&line(level.trim_end(), side, text));
    }

    fn waiting(&self, side: Side, text: &str) {
        let text = format!("{side}{text}");
        if self.is_terminal {
            show(&text, Duration::ZERO);
        }
        self.waiting.lock().replace((text, Instant::now()));
    }

    fn allows(&self, side: Side, warning: &str) -> bool {
        self.clear();

        self.is_confirmed
            || answer(&format!("{side}{warning}")).unwrap_or_else(|error| {
                self.warn(side, &format!("the question was not answered: {error}"));
                false
            })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // An error message begins on a new line.
        self.clear();
    }
}

/// Shows a wait in place of the previous one.
fn show(text: &str, elapsed: Duration) {
    write_stderr(&format!("{CLEAR}{}", waiting_line(text, elapsed)));
}

fn waiting_line(text: &str, elapsed: Duration) -> String {
    let line = line("....", Side::Only, text);
    let line = line.trim_end();

    match elapsed.as_secs() {
        0 => line.to_owned(),
        seconds => format!("{line} ({seconds} s)"),
    }
}

/// The line that Ctrl-C prints, with the last wait of the command.
fn interrupted(waiting: Option<&str>) -> String {
    match waiting {
        Some(text) => {
            format!("strait: interrupted: {text}; run the same command again to continue\n")
        }
        None => "strait: interrupted\n".to_owned(),
    }
}

fn line(level: &str, side: Side, text: &str) -> String {
    format!(" {level}   {side}{text}\n")
}

/// Writes to stderr. A closed stderr cannot be reported.
fn write_stderr(text: &str) {
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
        let text = "(local) Waiting for Configuration milan to be applied";
        let line = format!(" ....   {text}");

        assert_eq!(waiting_line(text, Duration::from_millis(999)), line);
        assert_eq!(waiting_line(text, Duration::from_millis(12_300)), format!("{line} (12 s)"));
    }

    #[test]
    fn an_interruption_names_the_wait() {
        let text = "(local) Waiting for Configuration milan to be applied";

        assert_eq!(
            interrupted(Some(text)),
            format!("strait: interrupted: {text}; run the same command again to continue\n")
        );
        assert_eq!(interrupted(None), "strait: interrupted\n");
    }
}
