//! Two clusters for the commands, and the output of commands.

use std::cell::RefCell;
use std::time::Duration;

use strait_control_lab::peering::{Cluster, World};
use strait_peering::{
    ClusterContext, Connect, Deadline, Marks, Pair, Report, ServiceType, Session, Side,
    TypedExposure,
};

/// Both clusters of a world.
pub(crate) fn pair_of(world: &World) -> Pair {
    Pair {
        local: contact_of(&world.local, Side::Local),
        remote: contact_of(&world.remote, Side::Remote),
    }
}

pub(crate) fn contact_of(cluster: &Cluster, side: Side) -> ClusterContext {
    ClusterContext {
        client: cluster.client.clone(),
        side,
        cluster_id: None,
        namespace: None,
        liqo_namespace: "liqo".to_owned(),
        marks: Marks::default(),
    }
}

/// The values of Liqo's documentation.
pub(crate) fn desired() -> Connect {
    let service_type = Some(ServiceType::NodePort);

    Connect {
        exposure: TypedExposure { service_type, ..TypedExposure::default() },
        waits: true,
        ..Connect::default()
    }
}

/// Records the output of verbs.
#[derive(Default)]
pub(crate) struct RecordedReport {
    lines: RefCell<Vec<String>>,
    /// Whether it answers questions with yes.
    allows: bool,
}

impl RecordedReport {
    /// Answers questions with yes.
    pub(crate) fn that_allows() -> Self {
        Self { allows: true, ..Self::default() }
    }

    /// A session that must end within a minute.
    pub(crate) fn session(&self) -> Session<'_> {
        self.session_of(Duration::from_secs(60))
    }

    pub(crate) fn session_of(&self, timeout: Duration) -> Session<'_> {
        // The stand-in for an operator has one key for both.
        Session { report: self, deadline: Deadline::after(timeout), public_of: |private| *private }
    }

    pub(crate) fn has_heard(&self, line: &str) -> bool {
        self.lines.borrow().iter().any(|heard| heard == line)
    }

    /// The output since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.take()
    }
}

impl Report for RecordedReport {
    fn done(&self, side: Side, text: &str) {
        self.lines.borrow_mut().push(format!("{side}{text}"));
    }

    fn warn(&self, side: Side, text: &str) {
        self.lines.borrow_mut().push(format!("warning: {side}{text}"));
    }

    fn waiting(&self, _: Side, _: &str) {}

    fn allows(&self, side: Side, warning: &str) -> bool {
        self.lines.borrow_mut().push(format!("question: {side}{warning}"));

        self.allows
    }
}
