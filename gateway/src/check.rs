//! `strait check`: checks a configuration file or clusters.

use std::process::ExitCode;

use strait_daemon::check;
use strait_host::stdout;
use strait_peering::cli::{self, TypedCheck};

use crate::operator::public_of;

/// Runs `strait check`. Changes nothing.
///
/// # Errors
///
/// [`Findings`](strait_daemon::config::Findings) if the configuration is wrong; as [`cli::check`] for
/// clusters.
pub(crate) fn run(args: &TypedCheck) -> anyhow::Result<ExitCode> {
    let Some(file) = args.config() else { return cli::check(args, public_of) };
    let report = check::examine(file)?;

    let text = match args.format() {
        Some(format) => strait_peering::text(&report, format)?,
        None => report.to_string(),
    };
    stdout::print(&text)?;

    Ok(ExitCode::SUCCESS)
}
