//! `strait check`: checks a configuration file or clusters.

use std::path::PathBuf;
use std::process::ExitCode;

use strait_daemon::check;
use strait_host::stdout;

use crate::commands;
use crate::commands::args::{ContextArgs, Format, FormatArgs, RemoteArgs};

/// `strait check`
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Configuration file (TOML) to check instead of a cluster
    #[arg(long, env = "STRAIT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "STRAIT_JSON")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
}

impl CheckArgs {
    /// The format of the output; `None` is text for people.
    pub(crate) fn format(&self) -> Option<Format> {
        self.format.output.or_else(|| self.json.then_some(Format::Json))
    }
}

/// Runs `strait check`. Changes nothing.
///
/// # Errors
///
/// [`Findings`](strait_daemon::config::Findings) if the configuration is wrong; errors of [`commands::check`] for
/// clusters.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let Some(file) = &args.config else { return commands::check(args) };
    let report = check::examine(file)?;

    let text = match args.format() {
        Some(format) => strait_peering::text(&report, format.into())?,
        None => report.to_string(),
    };
    stdout::print(&text)?;

    Ok(ExitCode::SUCCESS)
}
