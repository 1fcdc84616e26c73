//! The tasks of the leader besides forwarding: connection check, answers to nodes, `Connection` and conditions.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use strait_api::identity::Identity;
use strait_io::overlay::HostSockets;
use strait_plan::conditions::Verdict;
use strait_plan::conncheck::{Report, State, Traffic};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::applied::{self, Applied, AppliedReporter};
use super::node_check;
use super::probe::{self, TrafficSource};
use super::report::{self, Reporter};
use super::settings::{Check, Settings};
use super::status_task;
use crate::cluster::connection::Connections;
use crate::cluster::status_reporter::StatusReporter;

/// Runs the tasks from [`Self::begin`] to [`Self::end`].
pub(super) struct LeaderTasks {
    client: Client,
    identity: Identity,
    check: Check,
    report_interval: Duration,
    has_peer: watch::Sender<bool>,
    reports: watch::Sender<Report>,
    traffic: TrafficSource,
    /// In bytes.
    device_mtu: watch::Sender<u16>,
    is_draining: watch::Sender<bool>,
    own_address: Option<Ipv4Addr>,
    /// For packets to that address, and to the one in the overlay; with an overlay.
    host_sockets: Option<HostSockets>,
    node_ping_port: Option<u16>,
    /// The verdicts on objects.
    verdicts: watch::Sender<Vec<Verdict>>,
    /// The outcomes of rules and routes, and the pod that executes them; `None` if others do.
    applied: Option<(watch::Sender<Vec<Applied>>, String)>,
    /// Dropping this ends the tasks.
    tasks: JoinSet<()>,
}

impl LeaderTasks {
    /// Starts no task yet.
    pub(super) fn new(settings: &Settings, client: Client) -> Self {
        Self {
            client,
            identity: settings.identity.clone(),
            check: settings.check.clone(),
            report_interval: settings.report_interval,
            has_peer: watch::Sender::new(false),
            reports: watch::Sender::new(Report::default()),
            traffic: Arc::new(Traffic::default),
            device_mtu: watch::Sender::new(settings.mtu),
            is_draining: watch::Sender::new(false),
            own_address: match settings.scope.own_address {
                Some(IpAddr::V4(own)) => Some(own),
                _ => None,
            },
            host_sockets: None,
            node_ping_port: settings.node_ping_port,
            verdicts: watch::Sender::new(Vec::new()),
            applied: settings
                .rules
                .as_ref()
                .map(|_| (watch::Sender::new(Vec::new()), settings.pod.clone())),
            tasks: JoinSet::new(),
        }
    }

    /// The reports of the connection check.
    pub(super) fn reports(&self) -> watch::Receiver<Report> {
        self.reports.subscribe()
    }

    /// There is a peer to report on. If it disappears later, the check reports that.
    pub(super) fn set_has_peer(&self) {
        self.has_peer.send_if_modified(|is| !std::mem::replace(is, true));
    }

    /// Sets the source of what the tunnel has carried, for tasks that begin later.
    pub(super) fn set_traffic(&mut self, traffic: TrafficSource) {
        self.traffic = traffic;
    }

    /// Sets the MTU of the device, in bytes.
    pub(super) fn set_device_mtu(&self, mtu: u16) {
        self.device_mtu.send_if_modified(|former| std::mem::replace(former, mtu) != mtu);
    }

    /// The gateway is draining: the connection check tells the other end.
    pub(super) fn set_draining(&self) {
        self.is_draining.send_replace(true);
    }

    /// Sets the sockets for packets to the gateway's own addresses. To be called before [`Self::begin`].
    pub(super) fn set_host_sockets(&mut self, sockets: HostSockets) {
        self.host_sockets = Some(sockets);
    }

    /// Sets the verdicts on all objects, which have been applied.
    pub(super) fn set_verdicts(&self, current: Vec<Verdict>) {
        self.verdicts.send_if_modified(|verdicts| {
            let is_new = *verdicts != current;
            *verdicts = current;
            is_new
        });
    }

    /// Sets the outcomes of all rules and routes, which have been applied.
    pub(super) fn set_applied(&self, current: Vec<Applied>) {
        let Some((sender, _)) = &self.applied else { return };
        sender.send_if_modified(|applied| {
            let is_new = *applied != current;
            *applied = current;
            is_new
        });
    }

    /// Starts the tasks. Call it within the runtime.
    pub(super) fn begin(&mut self) {
        let Self {
            client,
            identity,
            check,
            report_interval,
            has_peer,
            reports,
            traffic,
            device_mtu,
            is_draining,
            own_address,
            host_sockets,
            node_ping_port,
            verdicts,
            applied,
            tasks,
        } = self;
        let (state, reporter) = match check {
            // Without a check the connection counts as established.
            Check::Off => (State::Connected, Reporter::Own),
            Check::Own(_) => (State::Connecting, Reporter::Own),
            Check::OtherContainer => (State::Connecting, Reporter::OtherContainer),
        };
        reports.send_replace(Report { state, ..Report::default() });
        let connections = Connections::new(client.clone(), identity.clone());
        let has_peer = has_peer.subscribe();

        tasks.spawn(report::run(
            connections,
            reporter,
            reports.clone(),
            has_peer,
            *report_interval,
        ));
        let status_reporter = StatusReporter::new(client, identity.clone(), Timestamp::now());
        // Findings of another container are reported by that container.
        let checked = matches!(check, Check::Own(_)).then(|| reports.subscribe());
        tasks.spawn(status_task::run(status_reporter, verdicts.subscribe(), checked));
        if let Some((applied, pod)) = applied {
            let reporter = AppliedReporter::new(client, identity, pod.clone(), Timestamp::now());
            tasks.spawn(applied::run(reporter, applied.subscribe()));
        }
        if let Check::Own(check) = check {
            let packets = host_sockets.as_ref().and_then(|host| host.tunnel.try_clone().ok());
            tasks.spawn(probe::run(
                check.clone(),
                packets.zip(*own_address),
                Arc::clone(traffic),
                reports.clone(),
                device_mtu.subscribe(),
                is_draining.subscribe(),
            ));
        }
        let packets = host_sockets.as_ref().and_then(|host| host.nodes.try_clone().ok());
        if let Some((packets, port)) = packets.zip(*node_ping_port) {
            tasks.spawn(node_check::run(packets, port));
        }
    }

    /// Stops the tasks, for another leader.
    pub(super) fn end(&mut self) {
        self.tasks.abort_all();
    }
}
