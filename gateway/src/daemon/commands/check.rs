//! `strait check` of clusters: what is wrong, on stdout.

use std::process::ExitCode;

use control::commands::{self, Contact, Pair, Severity, Side};

use super::super::args::CheckArgs;
use super::args::Format;
use super::colour::{Colour, coloured};
use super::terminal::Terminal;
use super::{UNHEALTHY, kubeconfig};

/// Looks at the cluster of the context, and at the remote one if one is named.
pub(super) async fn run(args: &CheckArgs, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    let session = terminal.session(args.context.timeout);
    let findings = if kubeconfig::is_named(&args.remote) {
        let Pair { local, remote } = kubeconfig::both(&args.context, &args.remote).await?;
        commands::check_pair([&local, &remote], session).await?
    } else {
        let contact = kubeconfig::contact(&args.context).await?;
        // All namespaces unless one is named: peerings have one each.
        let namespace = args.context.namespace.clone();
        let contact = Contact { namespace, side: Side::Only, ..contact };
        commands::check(&contact, session).await?
    };
    let format = args.output.or_else(|| args.json.then_some(Format::Json));
    let text = match format {
        Some(format) => commands::text(&findings, format.into())?,
        None => coloured(&findings.to_string(), colour_of),
    };
    terminal.print(&text)?;
    let is_well = findings.count(Severity::Error) == 0;

    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

/// By the word that a line begins with.
fn colour_of(line: &str) -> Option<Colour> {
    if line.starts_with(Severity::Error.label()) {
        Some(Colour::Red)
    } else if line.starts_with(Severity::Warning.label()) {
        Some(Colour::Yellow)
    } else {
        None
    }
}
