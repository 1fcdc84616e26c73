//! Flows to remote clusters that leave this node masqueraded.

use std::collections::BTreeMap;
use std::fmt;

use strait_plan::objects::ObjectName;

use super::conntrack::Flow;

/// The findings, by the `Configuration` of the remote cluster.
pub(super) type Findings = BTreeMap<ObjectName, Finding>;

/// Masqueraded flows of pods to one remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) flows: usize,
    /// One of the flows.
    pub(super) example: Flow,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the number of flows: this is written into objects, and each change is an event for all watches.
        let Self { flows: _, example: Flow { source, destination, seen_as } } = self;

        write!(
            f,
            "flows of pods leave with another source, as {source} to {destination} with {seen_as}: exempt the prefix from the masquerade of the CNI"
        )
    }
}
