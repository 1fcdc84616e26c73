//! What completes commands in a shell.

use std::process::ExitCode;

use clap_complete::{Shell, generate};
use strait_host::stdout;

use crate::args::{CompletionArgs, command};

/// Prints the script for a shell.
///
/// # Errors
///
/// What stdout reports.
pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    stdout::print(&script(args.shell))?;

    Ok(ExitCode::SUCCESS)
}

/// The script for `shell`.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut command(), "strait", &mut script);

    String::from_utf8_lossy(&script).into_owned()
}
