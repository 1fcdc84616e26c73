//! `strait node`: keeps the routes from pods and processes of a node to the gateways.
//!
//! ```text
//! Configurations, Pods, Nodes ─┬─ plan ──> the hops for each prefix
//! gateways ── gateway_watch ───┘                             │
//! the network around ── kernel ──> NetworkView ── forwarding ┴──> desired State
//! routes of ours ────── kernel ──> Found ──────────────── state ──> changes ──> kernel
//! ```
//!
//! # Invariants
//!
//! - While a `Configuration` exists, no packet for its prefixes follows another route: behind each of our routes is one
//!   of type "unreachable", which stays when an interface is removed, and when this process ends.
//! - Nothing is removed before all objects were seen, nor when the process ends.
//! - Objects of others in the kernel are neither changed nor removed.

#![forbid(unsafe_code)]

mod agent;
pub mod condition;
mod condition_writer;
mod conntrack;
mod facts;
mod finding;
mod flags;
mod forwarding;
mod gateway_watch;
mod kernel;
mod masquerade;
mod nftables;
mod object_watch;
mod pages;
pub mod plan;
mod split_horizon;
mod state;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use strait_host::http::Admin;
use strait_host::signals::{Signals, end_on_signal};
use strait_host::stdout;
use strait_host::usage::UsageError;
use strait_kube::client::{self, Part};
use strait_kube::repeated_failure::RepeatedFailure;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tracing::info;

use agent::{Agent, Changed};
use facts::Facts;
pub use flags::NodeArgs;
use flags::Settings;
use kernel::Kernel;
use object_watch::{Update, Watch};
use pages::{Pages, Report};

/// The pause before another attempt after an incomplete one.
const RETRY: Duration = Duration::from_secs(1);

/// The period of comparisons with the kernel, in case another program has removed something.
const RESYNC: Duration = Duration::from_secs(30);

/// How long changes of interfaces are collected: pods that start cause many at once.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs `strait node` until a signal ends it, or once with `--clean-up`.
///
/// # Errors
///
/// Wrong flags, ports or netlink sockets that are not available, no configuration of an API server; with `--clean-up`
/// also objects that the kernel does not remove.
pub fn run(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    if args.clean_up {
        let place = args.place()?;
        let summary = runtime.block_on(async {
            let kernel = Kernel::connect(place).context("cannot open a netlink socket")?;
            anyhow::Ok(agent::clean_up(&kernel, place, &args.vxlan_device).await?)
        })?;
        stdout::print(&summary)?;
        return Ok(ExitCode::SUCCESS);
    }

    end_on_signal().context("cannot listen for signals")?;
    let settings = args.settings()?;
    let client = runtime.block_on(client::infer(Part::Node)).map_err(UsageError::wrong)?;
    let mut addresses = vec![args.metrics_address.0, args.health_probe_bind_address.0];
    addresses.dedup();
    let admins: Vec<_> =
        addresses.into_iter().flatten().map(Admin::bind).collect::<Result<_, _>>()?;

    runtime.block_on(serve(settings, &client, admins))?;

    Ok(ExitCode::SUCCESS)
}

async fn serve(settings: Settings, client: &Client, admins: Vec<Admin>) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let kernel = Kernel::connect(settings.place).context("cannot open a netlink socket")?;
    let (report, seen) = watch::channel(Report::default());
    let (facts, known) = watch::channel(Facts::default());
    let (findings, found) = watch::channel(None);
    let pages = Arc::new(Pages::new(seen, found.clone()));
    for admin in admins {
        admin.serve(Arc::clone(&pages)).context("cannot serve the admin port")?;
    }
    info!(
        version = env!("CARGO_PKG_VERSION"),
        node = settings.node,
        table = settings.place.table,
        priority = settings.place.priority,
        vxlan = ?settings.vxlan,
        "starting"
    );

    let agent = Agent::new(settings, kernel, report, facts);
    select! {
        () = follow(agent, Watch::new(client)) => {}
        () = masquerade::scan(known.clone(), findings) => {}
        () = condition_writer::write_conditions(client.clone(), known, found) => {}
        () = signals.end() => {}
    }
    info!("the node agent ended; its routes stay until `strait node --clean-up`");

    Ok(())
}

/// Applies the objects to the kernel, without end. May be dropped at any time.
async fn follow(mut agent: Agent, mut watch: Watch) {
    let mut failure =
        RepeatedFailure::about("reach the API server; its last known objects stay in force");
    let mut resync = interval_at(Instant::now() + RESYNC, RESYNC);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due: Option<Instant> = None;
    loop {
        let another_round = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        select! {
            update = watch.next() => match update {
                Update::Objects(objects) => {
                    failure.log(&Ok::<_, String>(()));
                    agent.apply(objects).await;
                    due = None;
                }
                Update::Unreachable(error) => failure.log(&Err::<(), _>(error)),
            },
            changed = agent.next_change() => {
                let settled = match changed {
                    Changed::Network => Instant::now() + SETTLE,
                    Changed::Gateways => {
                        agent.shift().await;
                        Instant::now()
                    }
                };
                due = Some(due.map_or(settled, |due| due.min(settled)));
                continue;
            }
            () = another_round => {
                agent.sync().await;
                due = None;
            }
            _ = resync.tick() => agent.sync().await,
        }
        if !agent.is_settled() {
            due.get_or_insert(Instant::now() + RETRY);
        }
    }
}
