//! Confirmation of destructive commands.

use std::io::{self, BufRead as _, Write as _};

use clap::Args;

use crate::CommandError;

/// Whether the user must confirm.
#[derive(Clone, Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask for confirmation
    #[arg(short, long, env = "STRAIT_YES", visible_alias = "skip-confirm")]
    pub(crate) yes: bool,
}

impl Confirmation {
    /// Asks the user to confirm `verb`, unless `--yes` is set.
    pub(crate) fn execute(&self, verb: &str) -> anyhow::Result<()> {
        let warning = format!("{verb} is a potentially destructive command.");

        if self.yes || answer(&warning)? { Ok(()) } else { Err(CommandError::Aborted.into()) }
    }
}

/// Asks on stderr whether to continue in spite of `warning`, and reads the answer from stdin.
///
/// # Errors
///
/// Errors of stderr or stdin.
pub(crate) fn answer(warning: &str) -> io::Result<bool> {
    let question = format!("{warning}\nAre you sure you want to continue? [y/N]");
    let mut stderr = io::stderr().lock();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    // Unlocked, so that Ctrl-C can print its message meanwhile.
    drop(stderr);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;

    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes))
}
