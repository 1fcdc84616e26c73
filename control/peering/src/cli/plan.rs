//! `strait plan`: prints what a change would do.

use std::process::ExitCode;

use strait_host::usage::UsageError;
use strait_ipam::Pools;

use crate::{Plan, Proposal};

use super::args::{
    PlanApplyArgs, PlanCommand, PlanConnectArgs, PlanDisconnectArgs, PlanNetworkArgs,
    PlanOutputArgs, PlanResetArgs,
};
use super::colour::{Colour, coloured};
use super::terminal::Terminal;
use super::{kubeconfig, requests};

/// There are changes.
const CHANGES: u8 = 2;

/// A part of the change is not possible.
const CONFLICTS: u8 = 3;

/// Runs `strait plan`. The exit status shows whether there are changes or conflicts.
pub(super) async fn run(command: &PlanCommand, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    let (plan, format) = match command {
        PlanCommand::Connect(args) => {
            let PlanConnectArgs { connect, output } = args.as_ref();
            let pools = pools(output)?;
            let wanted = requests::connect(connect);
            let pair = kubeconfig::pair(&connect.clusters).await?;
            let session = terminal.session(connect.clusters.context.timeout);
            (crate::plan_connect(&pair, &wanted, pools.as_ref(), session).await?, &output.format)
        }
        PlanCommand::Disconnect(args) => {
            let PlanDisconnectArgs { disconnect, output } = args.as_ref();
            let pair = kubeconfig::pair(&disconnect.clusters).await?;
            let session = terminal.session(disconnect.clusters.context.timeout);
            (crate::plan_disconnect(&pair, session).await?, output)
        }
        PlanCommand::Reset(args) => {
            let PlanResetArgs { reset, output } = args.as_ref();
            let pools = pools(output)?;
            let pair = kubeconfig::pair(&reset.clusters).await?;
            let session = terminal.session(reset.clusters.context.timeout);
            (crate::plan_reset(&pair, pools.as_ref(), session).await?, &output.format)
        }
        PlanCommand::Apply(PlanApplyArgs { filename, context, output }) => {
            let pools = pools(output)?;
            let text = filename.read().map_err(UsageError::Wrong)?;
            let objects = crate::objects(&filename.to_string(), &text)?;
            let cluster = kubeconfig::cluster_context(context).await?;
            let session = terminal.session(context.timeout);
            let proposal = Proposal::Apply { objects };
            (crate::plan(&cluster, &proposal, pools.as_ref(), session).await?, &output.format)
        }
        PlanCommand::Network(PlanNetworkArgs { name, cidr, context, output }) => {
            let pools = pools(output)?;
            let cluster = kubeconfig::cluster_context(context).await?;
            let session = terminal.session(context.timeout);
            let proposal = Proposal::Network { name: name.clone(), cidr: *cidr };
            (crate::plan(&cluster, &proposal, pools.as_ref(), session).await?, &output.format)
        }
    };
    let text = match format.output {
        Some(format) => crate::text(&plan, format.into())?,
        None => coloured(&plan.to_string(), colour_of),
    };
    terminal.print(&text)?;

    Ok(status(&plan))
}

/// The pools of `--pools`, if set.
fn pools(output: &PlanOutputArgs) -> Result<Option<Pools>, UsageError> {
    if output.pools.is_empty() {
        return Ok(None);
    }
    let pools = Pools::new(output.pools.clone());

    pools.map(Some).map_err(|error| UsageError::Wrong(format!("--pools: {error}")))
}

fn status(plan: &Plan) -> ExitCode {
    if plan.has_conflicts() {
        ExitCode::from(CONFLICTS)
    } else if plan.has_changes() {
        ExitCode::from(CHANGES)
    } else {
        ExitCode::SUCCESS
    }
}

/// The colour by the sign at the beginning of a line.
fn colour_of(line: &str) -> Option<Colour> {
    match line.chars().next()? {
        '+' => Some(Colour::Green),
        '-' | '!' => Some(Colour::Red),
        '~' => Some(Colour::Yellow),
        _ => None,
    }
}
