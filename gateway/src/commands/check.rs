//! `strait check` for clusters.

use std::process::ExitCode;

use strait_peering::{Pair, Severity};

use super::colour::{Colour, coloured};
use super::terminal::Terminal;
use super::{UNHEALTHY, in_all_namespaces, kubeconfig};
use crate::check::CheckArgs;

/// Checks the cluster of the context, and the remote one if it is named.
pub(super) async fn run(args: &CheckArgs, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    let session = terminal.session(args.context.timeout);
    let findings = if args.remote.is_named() {
        let Pair { local, remote } = kubeconfig::both(&args.context, &args.remote).await?;
        strait_peering::check_pair([&local, &remote], session).await?
    } else {
        strait_peering::check(&in_all_namespaces(&args.context).await?, session).await?
    };
    let text = match args.format() {
        Some(format) => strait_peering::text(&findings, format.into())?,
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
