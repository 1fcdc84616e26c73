//! Questions before something is lost.

use std::io::{self, BufRead as _, Write as _};

use clap::Args;

use crate::CommandError;

/// Whether the user is asked first.
#[derive(Clone, Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask first
    #[arg(short, long, env = "STRAIT_YES", visible_alias = "skip-confirm")]
    pub(crate) yes: bool,
}

impl Confirmation {
    /// Asks whether `verb` is meant, unless that was said.
    pub(crate) fn ask(&self, verb: &str) -> anyhow::Result<()> {
        let warning = format!("{verb} is a potentially destructive command.");

        if self.yes || answer(&warning)? { Ok(()) } else { Err(CommandError::Aborted.into()) }
    }
}

/// Asks on stderr whether to go on in spite of `warning`; the answer is the next line of stdin.
///
/// # Errors
///
/// What stderr or stdin report.
pub(crate) fn answer(warning: &str) -> io::Result<bool> {
    let question = format!("{warning}\nAre you sure you want to continue? [y/N]");
    let mut stderr = io::stderr().lock();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    // What ends the program meanwhile may say so.
    drop(stderr);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;

    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}
