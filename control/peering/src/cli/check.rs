//! `strait check` for clusters.

use std::process::ExitCode;

use crate::{Pair, Severity};

use super::args::CheckArgs;
use super::colour::{Colour, coloured};
use super::terminal::Terminal;
use super::{UNHEALTHY, in_all_namespaces, kubeconfig};

/// Checks the cluster of the context, and the remote one if it is named.
pub(super) async fn run(args: &CheckArgs, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    let session = terminal.session(args.context.timeout);
    let findings = if args.remote.is_named() {
        let Pair { local, remote } = kubeconfig::both(&args.context, &args.remote).await?;
        crate::check_pair([&local, &remote], session).await?
    } else {
        crate::check(&in_all_namespaces(&args.context).await?, session).await?
    };
    let text = match args.format() {
        Some(format) => crate::text(&findings, format.into())?,
        None => coloured(&findings.to_string(), colour_of),
    };
    terminal.print(&text)?;
    let is_well = findings.count(Severity::Error) == 0;

    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

/// The colour by the severity at the beginning of a line.
fn colour_of(line: &str) -> Option<Colour> {
    if line.starts_with(Severity::Error.label()) {
        Some(Colour::Red)
    } else if line.starts_with(Severity::Warning.label()) {
        Some(Colour::Yellow)
    } else {
        None
    }
}
