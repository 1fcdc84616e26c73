//! Reconciles the kernel with the objects, as often as either has changed.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use strait_host::netlink::METRIC_OF_LAST_RESORT;
use tokio::select;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use super::facts::Facts;
use super::flags::{Place, Settings};
use super::forwarding::{self, Desired, NetworkView, Overlay, VxlanDevice};
use super::gateway_watch::GatewayWatch;
use super::kernel::{Found, Kernel, KernelError, within};
use super::nftables::{self, Outcome, Ruleset, TABLE};
use super::pages::{Gateways, Report};
use super::split_horizon::{self, Neighbours};
use super::state::{Change, State};
use crate::plan::{self, Objects, Plan, plan};

/// The timeout of a round. The kernel answers at once: a longer wait is for an answer that was lost, and the round is
/// repeated.
const ROUND_MAX: Duration = Duration::from_secs(30);

/// The agent of one node, for as long as the process runs.
pub(super) struct Agent {
    settings: Settings,
    kernel: Kernel,
    gateways: GatewayWatch,
    objects: Option<Objects>,
    /// As the last round has left it.
    applied: Option<Applied>,
    report: watch::Sender<Report>,
    facts: watch::Sender<Facts>,
    /// Whether the last round left nothing to do.
    is_settled: bool,
    /// As after the last round: the kernel forgets neighbours that are not used.
    near_nodes: NearNodes,
}

/// What a round has read and written.
struct Applied {
    view: NetworkView,
    device: Option<VxlanDevice>,
    found: Found,
}

/// What has changed without the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// An interface, a rule or a route of ours.
    Network,
    /// What a gateway says.
    Gateways,
}

/// The result of one round.
#[derive(Default)]
struct Round {
    desired: Desired,
    changed: u64,
    failures: Vec<KernelError>,
    near_nodes: NearNodes,
    applied: Option<Applied>,
}

/// Nodes on a network in common that are next hops.
#[derive(Default)]
struct NearNodes {
    /// All neighbours on their interfaces.
    neighbours: Neighbours,
    /// Those whose MAC addresses are not known.
    unresolved: BTreeSet<(u32, IpAddr)>,
}

impl Agent {
    pub(super) fn new(
        settings: Settings,
        kernel: Kernel,
        report: watch::Sender<Report>,
        facts: watch::Sender<Facts>,
    ) -> Self {
        Self {
            settings,
            kernel,
            gateways: GatewayWatch::new(),
            objects: None,
            applied: None,
            report,
            facts,
            is_settled: true,
            near_nodes: NearNodes::default(),
        }
    }

    /// Waits until something has changed. Cancel safe.
    pub(super) async fn next_change(&mut self) -> Changed {
        let Self { kernel, gateways, .. } = self;

        select! {
            () = gateways.changed() => Changed::Gateways,
            () = kernel.next_change() => Changed::Network,
        }
    }

    /// Whether another round may help.
    pub(super) const fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Applies `objects` from now on.
    pub(super) async fn apply(&mut self, objects: Objects) {
        self.gateways.follow(&plan::endpoints(&objects));
        self.objects = Some(objects);
        self.sync().await;
    }

    /// Moves routes to the gateways that forward now. Takes from the last round how gateways are reached, which a whole
    /// round reads again: that one has to follow.
    pub(super) async fn shift(&mut self) {
        let Self { settings, kernel, gateways, objects, applied, report, .. } = self;
        let (Some(objects), Some(Applied { view, device, found })) = (objects, applied) else {
            return;
        };
        objects.forwarding = gateways.forwarding();
        let plan = plan(&settings.node, objects);
        let wanted = forwarding::desired(&plan, view, settings.vxlan, *device, &found.state);

        let changes = found.state.changes(&wanted.state);
        let index = device.map(|device| device.index);
        let made = async { Ok(make(kernel, &changes, found, index).await) };
        // What was refused, or not answered, is for the round.
        let (changed, _) = within(ROUND_MAX, made).await.unwrap_or_default();
        report.send_modify(|report| report.changed = report.changed.saturating_add(changed));
    }

    /// One round. Without objects nothing is done: the routes of a former process stay in force.
    pub(super) async fn sync(&mut self) {
        if let Some(objects) = &mut self.objects {
            objects.forwarding = self.gateways.forwarding();
        }
        let Some(objects) = &self.objects else { return };
        let plan = plan(&self.settings.node, objects);
        let Round { desired: wanted, changed, failures, near_nodes, applied } =
            match within(ROUND_MAX, self.round(&plan)).await {
                Ok(round) => round,
                Err(failure) => Round { failures: vec![failure], ..Round::default() },
            };

        // Problems of routes may pass by themselves, as when the network of a pod is being created.
        // A node that is being resolved is known a moment later, or is not there.
        let is_resolving = !near_nodes.unresolved.is_subset(&self.near_nodes.unresolved);
        self.near_nodes = near_nodes;
        self.applied = applied;
        self.is_settled = failures.is_empty() && wanted.problems.is_empty() && !is_resolving;
        let of_objects = plan.problems.iter().map(ToString::to_string);
        let problems: Vec<String> =
            of_objects.chain(wanted.problems.iter().map(ToString::to_string)).collect();
        let refused: Vec<String> = failures
            .into_iter()
            .map(|failure| format!("{:#}", anyhow::Error::from(failure)))
            .collect();
        let facts = Facts::new(&self.settings.node, objects, &plan, &wanted.problems, &refused);
        self.facts.send_if_modified(|known| std::mem::replace(known, facts) != *known);
        let before = self.report.borrow().clone();
        log_changes(&before.problems, &problems, |problem| warn!("{problem}"));
        log_changes(&before.refused, &refused, |failure| error!("{failure}"));
        if !before.refused.is_empty() && refused.is_empty() {
            info!("the kernel is in the desired state again");
        }
        let [forwarding, not_forwarding] = [true, false].map(|forwards| {
            objects.forwarding.values().filter(|state| state.forwards == forwards).count()
        });
        let failed = u64::try_from(refused.len()).unwrap_or(u64::MAX);
        self.report.send_replace(Report {
            is_listed: true,
            paths: wanted.paths.into_values().flatten().collect(),
            gateways: Gateways { forwarding, not_forwarding },
            problems,
            refused,
            changed: before.changed.saturating_add(changed),
            failed: before.failed.saturating_add(failed),
        });
    }

    async fn round(&self, plan: &Plan) -> Result<Round, KernelError> {
        let Self { settings, kernel, .. } = self;
        let view = kernel.view(plan, settings.vxlan).await?;
        let mut found = kernel.found(&settings.overlay.device).await?;
        let own = found.own_device().map(|own| own.index);

        let mut failures = Vec::new();
        let before = own.map(|_| &found.state);
        let overlay = forwarding::overlay(plan, &view, settings.vxlan, &settings.overlay, before);
        let device = match &overlay {
            Ok(Some(overlay)) => self.device(overlay, &found, &mut failures).await,
            Ok(None) => None,
            Err(_) => own.map(|index| VxlanDevice { index, local: None }),
        };
        let mut before = found.state.clone();
        if let Some(own) = own {
            match device {
                // The device is removed, and its entries with it.
                None => before = before.without_device(own),
                // The former device is gone; its entries have to be on the new one.
                Some(device) if device.index != own => {
                    before = before.with_device(own, device.index);
                    found.state = found.state.without_device(own);
                }
                Some(_) => {}
            }
        }
        let mut wanted = forwarding::desired(plan, &view, settings.vxlan, device, &before);

        let changes = found.state.changes(&wanted.state);
        let index = device.map(|device| device.index).or(own);
        let (changed, refused) = make(kernel, &changes, &mut found, index).await;
        failures.extend(refused);
        failures.extend(kernel.remove_stale(&found).await);
        if let Some(own) = found.own_device().filter(|_| overlay == Ok(None)) {
            match kernel.remove_device(own).await {
                Ok(()) => info!(device = own.name, "removed the VXLAN device"),
                Err(failure) => failures.push(failure),
            }
        }
        wanted.problems.extend(overlay.err());
        let near_nodes = match self.near_nodes(plan, &wanted).await {
            Ok(near_nodes) => near_nodes,
            Err(failure) => {
                failures.push(failure);
                NearNodes::default()
            }
        };
        failures.extend(self.set_ruleset(plan, &wanted.state, &near_nodes.neighbours).await.err());

        let applied = failures.is_empty().then_some(Applied { view, device, found });

        Ok(Round { desired: wanted, changed, failures, near_nodes, applied })
    }

    /// The MAC addresses of the next hops that are nodes on a network in common.
    async fn near_nodes(&self, plan: &Plan, wanted: &Desired) -> Result<NearNodes, KernelError> {
        let hops = split_horizon::near_nodes(plan, &wanted.state, &wanted.reserve);
        let mut neighbours = self.kernel.resolved(&hops).await?;
        for hop in &hops {
            if let Some(mac) = self.near_nodes.neighbours.get(hop) {
                neighbours.entry(*hop).or_insert(*mac);
            }
        }
        let unresolved = hops.into_iter().filter(|hop| !neighbours.contains_key(hop)).collect();

        Ok(NearNodes { neighbours, unresolved })
    }

    /// Writes the nftables table for the prefixes that we route.
    async fn set_ruleset(
        &self,
        plan: &Plan,
        wanted: &State,
        neighbours: &Neighbours,
    ) -> Result<(), KernelError> {
        let is_unmasqueraded = self.settings.masquerade_bypass;
        let pods = plan.pods.iter().filter(|_| is_unmasqueraded).map(|prefix| prefix.to_net());
        let whole = wanted.routes.keys().filter(|key| key.metric == METRIC_OF_LAST_RESORT);
        let remotes = whole.map(|key| key.prefix);
        let prefixes_by_node = split_horizon::prefixes_by_node(plan, wanted, neighbours);
        let ruleset = Ruleset::new(pods, remotes, prefixes_by_node);
        let applied = ruleset.clone();
        let outcome = spawn_blocking(move || applied.apply()).await;

        match outcome.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(Outcome::Unchanged) => Ok(()),
            Ok(Outcome::Written) => {
                info!(%ruleset, "wrote the nftables table {TABLE}");
                Ok(())
            }
            // The scan of connections reports what is masqueraded then.
            Err(error) if nftables::is_not_supported(&error) => Ok(()),
            Err(error) => Err(KernelError::of(format!("write the nftables table {TABLE}"))(error)),
        }
    }

    /// The VXLAN device, created or corrected as `overlay` specifies.
    async fn device(
        &self,
        overlay: &Overlay,
        found: &Found,
        failures: &mut Vec<KernelError>,
    ) -> Option<VxlanDevice> {
        let former = found.device.as_ref();
        match self.kernel.set_device(former, overlay).await {
            Ok(index) => {
                if former.is_none_or(|former| former.index != index) {
                    info!(%overlay, index, "made the VXLAN device");
                }
                Some(VxlanDevice { index, local: Some(overlay.local) })
            }
            Err(failure) => {
                failures.push(failure);
                // An existing device may still carry packets; new routes use it only if its fixed settings are right.
                let own = found.own_device()?;
                let local = own.is_like(overlay).then_some(overlay.local);
                Some(VxlanDevice { index: own.index, local })
            }
        }
    }
}

/// Removes everything that is ours, and returns a summary.
///
/// # Errors
///
/// [`KernelError`] of the first object that stays.
pub(super) async fn clean_up(
    kernel: &Kernel,
    place: Place,
    device: &str,
) -> Result<String, KernelError> {
    let mut found = kernel.found(device).await?;
    let had_table = nftables::remove();
    let had_table =
        had_table.map_err(KernelError::of(format!("remove the nftables table {TABLE}")))?;
    if found.is_empty() && !had_table {
        return Ok(format!("nothing of strait node is on this host (table {})\n", place.table));
    }
    let State { routes, rules, .. } = &found.state;
    let (routes, rules, stale) = (routes.len(), rules.len(), found.stale());
    let own = found.own_device().cloned();
    let changes = found.state.changes(&State::default());
    let index = own.as_ref().map(|own| own.index);
    let (_, mut failures) = make(kernel, &changes, &mut found, index).await;
    failures.extend(kernel.remove_stale(&found).await);
    if let Some(own) = &own {
        failures.extend(kernel.remove_device(own).await.err());
    }
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure);
    }

    let stale = if stale == 0 { String::new() } else { format!(", {stale} outdated") };
    let device = own.map(|own| format!(", interface {}", own.name)).unwrap_or_default();
    let nftables = if had_table { format!(", nftables table {TABLE}") } else { String::new() };
    Ok(format!(
        "removed {routes} routes, {rules} rules{stale}{device}{nftables} (table {})\n",
        place.table
    ))
}

/// Makes `changes`, each by itself: one that the kernel refuses does not stop the others. Returns the number of changes
/// made, and the failures.
async fn make(
    kernel: &Kernel,
    changes: &[Change],
    found: &mut Found,
    device: Option<u32>,
) -> (u64, Vec<KernelError>) {
    let (mut made, mut failures) = (0, Vec::new());
    for change in changes {
        match kernel.apply(change, found, device).await {
            Ok(()) => {
                info!("{change}");
                made += 1;
            }
            Err(failure) => failures.push(failure),
        }
    }

    (made, failures)
}

fn log_changes(before: &[String], now: &[String], tell: impl Fn(&str)) {
    let before: BTreeSet<_> = before.iter().collect();
    for line in now.iter().filter(|line| !before.contains(line)) {
        tell(line);
    }
}

#[cfg(test)]
mod tests;
