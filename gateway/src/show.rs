//! `strait show`.

use std::process::ExitCode;

use strait_daemon::show::{self, ShowArgs};
use strait_host::stdout;

use crate::output;

/// Prints the devices of this host.
///
/// # Errors
///
/// Errors of [`show::read`] and of stdout. Of several devices, one with an invalid answer is reported on stderr and
/// by the status; the others are shown.
pub(crate) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let (text, errors) = show::read(args)?;
    stdout::print(&text)?;
    let statuses =
        errors.into_iter().map(|error| output::failure(&error.into(), "strait show --help"));

    Ok(statuses.last().unwrap_or(ExitCode::SUCCESS))
}
