//! `strait check`: of a configuration file, or of clusters.

use std::path::PathBuf;
use std::process::ExitCode;

use strait_daemon::check;
use strait_host::stdout;

use crate::commands;
use crate::commands::args::{ContextArgs, Format, FormatArgs, RemoteArgs};

/// `strait check`
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Configuration file (TOML); no cluster is asked then
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
    /// How the answer is written down; `None` if people are to read it.
    pub(crate) fn format(&self) -> Option<Format> {
        self.format.output.or_else(|| self.json.then_some(Format::Json))
    }
}

/// Runs `strait check`. Changes nothing.
///
/// # Errors
///
/// [`Findings`](strait_daemon::config::Findings) if the configuration is wrong; what [`commands::check`] says of
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
