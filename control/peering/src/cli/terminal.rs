//! Where a verb is heard: lines on stdout as in Liqo's documentation, what is waited for on a terminal.

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

/// To the beginning of the line, and nothing in it.
const CLEAR: &str = "\r\x1b[K";

/// The exit code after Ctrl-C, as shells report it: 128 and the number of the signal.
const INTERRUPTED: i32 = 130;

/// Stdout for what is done, stderr for what is to be known besides.
pub(super) struct Terminal {
    /// Whether stderr is seen.
    is_watched: bool,
    /// Whether the user has allowed beforehand what may be lost.
    allows_all: bool,
    /// Makes public keys of private ones.
    public_of: PublicOf,
    /// What is waited for, and since when.
    waiting: Arc<Mutex<Option<(String, Instant)>>>,
    /// Why what is done could not be said.
    lost: RefCell<Option<io::Error>>,
}

impl Terminal {
    pub(super) fn new(allows_all: bool, public_of: PublicOf) -> Self {
        Self {
            is_watched: io::stderr().is_terminal(),
            allows_all,
            public_of,
            waiting: Arc::default(),
            lost: RefCell::new(None),
        }
    }

    /// A run that must end within `timeout`, heard here.
    pub(super) fn session(&self, timeout: Duration) -> Session<'_> {
        Session { report: self, deadline: Deadline::after(timeout), public_of: self.public_of }
    }

    /// Prints a result.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        self.clear();

        stdout::print(text)
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
            if self.is_watched
                && let Some((text, since)) = &*self.waiting.lock()
            {
                show(text, since.elapsed());
            }
        }
    }

    /// Has Ctrl-C end the program with a line about what is waited for. From a thread of its own, as a question
    /// holds up this one.
    pub(super) fn end_on_interrupt(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _guard = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        let (waiting, is_watched) = (Arc::clone(&self.waiting), self.is_watched);
        let end = move || {
            if runtime.block_on(interrupts.recv()).is_some() {
                let waiting = waiting.lock();
                let line = interrupted(waiting.as_ref().map(|(text, _)| text.as_str()));
                tell(&format!("{}{line}", if is_watched { CLEAR } else { "" }));
                process::exit(INTERRUPTED);
            }
        };
        thread::Builder::new().name("interrupt".to_owned()).spawn(end)?;

        Ok(())
    }

    fn clear(&self) {
        if self.waiting.lock().take().is_some() && self.is_watched {
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
        let text = format!("{side}{text}");
        if self.is_watched {
            show(&text, Duration::ZERO);
        }
        self.waiting.lock().replace((text, Instant::now()));
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
fn show(text: &str, elapsed: Duration) {
    tell(&format!("{CLEAR}{}", waiting_line(text, elapsed)));
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
            format!("strait: interrupted: {text}; the same command goes on where it stopped\n")
        }
        None => "strait: interrupted\n".to_owned(),
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
        let text = "(local) Waiting for Configuration milan to be applied";
        let line = format!(" ....   {text}");

        assert_eq!(waiting_line(text, Duration::from_millis(999)), line);
        assert_eq!(waiting_line(text, Duration::from_millis(12_300)), format!("{line} (12 s)"));
    }

    #[test]
    fn an_interruption_names_what_was_waited_for() {
        let text = "(local) Waiting for Configuration milan to be applied";

        assert_eq!(
            interrupted(Some(text)),
            format!("strait: interrupted: {text}; the same command goes on where it stopped\n")
        );
        assert_eq!(interrupted(None), "strait: interrupted\n");
    }
}
