//! Brings the kernel into line with what objects say, as often as either has changed.

use std::collections::BTreeSet;

use control::node::{Objects, Plan, plan};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::facts::Facts;
use super::flags::{Place, Settings};
use super::forwarding::{self, Wanted};
use super::kernel::{Found, Kernel, KernelError};
use super::pages::Report;
use super::state::{Change, State};

/// One node, for as long as the process runs.
pub(super) struct Agent {
    settings: Settings,
    kernel: Kernel,
    objects: Option<Objects>,
    report: watch::Sender<Report>,
    facts: watch::Sender<Facts>,
    /// Whether the last round left nothing to do.
    is_settled: bool,
}

/// What one round came to.
#[derive(Default)]
struct Round {
    wanted: Wanted,
    changed: u64,
    failures: Vec<KernelError>,
}

impl Agent {
    pub(super) fn new(
        settings: Settings,
        kernel: Kernel,
        report: watch::Sender<Report>,
        facts: watch::Sender<Facts>,
    ) -> Self {
        Self { settings, kernel, objects: None, report, facts, is_settled: true }
    }

    /// Waits until an interface has changed. Cancel safe.
    pub(super) async fn next_link(&mut self) {
        self.kernel.next_link().await;
    }

    /// Whether another round may help.
    pub(super) const fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// From now on it goes by `objects`.
    pub(super) async fn follow(&mut self, objects: Objects) {
        self.objects = Some(objects);
        self.sync().await;
    }

    /// One round. Without objects, none: what a process before this one left stays in force.
    pub(super) async fn sync(&mut self) {
        let Some(objects) = &self.objects else { return };
        let plan = plan(&self.settings.node, objects);
        let Round { wanted, changed, failures } = match self.round(&plan).await {
            Ok(round) => round,
            Err(failure) => Round { failures: vec![failure], ..Round::default() },
        };

        // Problems of the way may pass by themselves, as when the network of a pod is being made.
        self.is_settled = failures.is_empty() && wanted.problems.is_empty();
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
        tell_news(&before.problems, &problems, |problem| warn!("{problem}"));
        tell_news(&before.refused, &refused, |failure| error!("{failure}"));
        if !before.refused.is_empty() && refused.is_empty() {
            info!("the kernel has all that it is to have again");
        }
        let failed = u64::try_from(refused.len()).unwrap_or(u64::MAX);
        self.report.send_replace(Report {
            is_listed: true,
            ways: wanted.ways.into_values().collect(),
            problems,
            refused,
            changed: before.changed.saturating_add(changed),
            failed: before.failed.saturating_add(failed),
        });
    }

    async fn round(&self, plan: &Plan) -> Result<Round, KernelError> {
        let Self { settings, kernel, .. } = self;
        let ground = kernel.ground(plan, settings.vxlan).await?;
        let found = kernel.found(&settings.overlay.device).await?;

        let mut failures = Vec::new();
        let is_in_use = found.keeps_device(plan);
        let overlay =
            forwarding::overlay(plan, &ground, settings.vxlan, &settings.overlay, is_in_use);
        let (overlay, no_overlay) = match overlay {
            Ok(overlay) => (overlay, None),
            Err(problem) => (None, Some(problem)),
        };
        let mut device = None;
        if let Some(overlay) = &overlay {
            match kernel.set_device(found.device.as_ref(), overlay).await {
                Ok(index) => {
                    if found.device.as_ref().is_none_or(|before| before.index != index) {
                        info!(%overlay, index, "made the VXLAN device");
                    }
                    device = Some((overlay, index));
                }
                Err(failure) => {
                    failures.push(failure);
                    // As it is, it may still carry packets.
                    let before = found.device.as_ref().filter(|before| before.is_ours);
                    device = before.map(|before| (overlay, before.index));
                }
            }
        }
        let mut wanted = forwarding::wanted(plan, &ground, settings.vxlan, device, &found.state);
        wanted.problems.extend(no_overlay);

        let changes = found.state.changes(&wanted.state);
        let index = device.map(|(_, index)| index);
        let (changed, refused) = make(kernel, &changes, &found, index).await;
        failures.extend(refused);
        failures.extend(kernel.remove_stale(&found).await);
        if let Some(before) =
            found.device.as_ref().filter(|before| overlay.is_none() && before.is_ours)
        {
            match kernel.remove_device(before).await {
                Ok(()) => info!(device = settings.overlay.device, "removed the VXLAN device"),
                Err(failure) => failures.push(failure),
            }
        }

        Ok(Round { wanted, changed, failures })
    }
}

/// Removes everything that is ours, and says what that was.
///
/// # Errors
///
/// [`KernelError`] of the first thing that stays.
pub(super) async fn clean_up(
    kernel: &Kernel,
    place: Place,
    device: &str,
) -> Result<String, KernelError> {
    let found = kernel.found(device).await?;
    if found.is_empty() {
        return Ok(format!("nothing of strait node is on this host (table {})\n", place.table));
    }
    let State { routes, rules, .. } = &found.state;
    let (routes, rules, stale) = (routes.len(), rules.len(), found.stale());
    // The neighbours go with their device.
    let bare = State {
        neighbours: Default::default(),
        forwarding: Default::default(),
        ..found.state.clone()
    };
    let changes = bare.changes(&State::default());
    let (_, refused) = make(kernel, &changes, &found, None).await;
    let mut failures = refused;
    failures.extend(kernel.remove_stale(&found).await);
    let own = found.device.as_ref().filter(|found| found.is_ours);
    if let Some(own) = own {
        failures.extend(kernel.remove_device(own).await.err());
    }
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure);
    }

    let stale = if stale == 0 { String::new() } else { format!(", {stale} of before") };
    let device = if own.is_some() { format!(", interface {device}") } else { String::new() };
    Ok(format!("removed {routes} routes, {rules} rules{stale}{device} (table {})\n", place.table))
}

/// Makes `changes`, each by itself: one that the kernel refuses keeps no other one back. How many it has
/// made, and the failures.
async fn make(
    kernel: &Kernel,
    changes: &[Change],
    found: &Found,
    device: Option<u32>,
) -> (u64, Vec<KernelError>) {
    let (mut made, mut failures) = (0, Vec::new());
    for change in changes {
        match kernel.apply(*change, found, device).await {
            Ok(()) => {
                info!("{change}");
                made += 1;
            }
            Err(failure) => failures.push(failure),
        }
    }

    (made, failures)
}

fn tell_news(before: &[String], now: &[String], tell: impl Fn(&str)) {
    let before: BTreeSet<_> = before.iter().collect();
    for line in now.iter().filter(|line| !before.contains(line)) {
        tell(line);
    }
}
