//! A dry run: the rounds of an operator on a copy of a cluster.
//!
//! The allocator is the real one, with the journal, the finalizers and the conditions; only the API server behind its
//! calls is in memory. The result is that of a single operator.
//!
//! # Not here
//!
//! Reading a cluster, and reporting the differences (see `strait-peering`).

mod in_memory;

use jiff::Timestamp;
use serde_json::Value;

use super::Settings;
use super::cluster::Failure;
use super::object::{Denial, Kind};
use super::round::Allocator;
use in_memory::InMemoryCluster;

/// The maximum number of rounds until nothing is left to do. A change takes fewer than ten.
const ROUNDS_MAX: usize = 100;

/// The state of a cluster, as far as it affects allocations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Every `Network`, `IP` and `Configuration`, as the API server returns it. Other kinds have no effect.
    pub objects: Vec<Value>,
    /// The journal, if there is one.
    pub journal: Option<String>,
}

/// A copy of a cluster for changes.
pub struct DryRun {
    allocator: Allocator<InMemoryCluster>,
    now: Timestamp,
}

/// An object that would get no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unallocated {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The reason, the same in every release.
    pub reason: &'static str,
    /// The cause, and the remedy.
    pub message: String,
}

/// Why the result cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DryRunError {
    /// The object is of another kind, or has no name.
    #[error(
        "{0} is none of Network and IP of ipam.liqo.io/v1alpha1 and Configuration of networking.liqo.io/v1beta1 with a name and a namespace: leave it out"
    )]
    Unknown(String),
    /// A call fails here too.
    #[error("no allocation is possible: {0}")]
    Failed(String),
    /// The rounds do not end.
    #[error(
        "there is something to do even after {ROUNDS_MAX} rounds: the allocations cannot be predicted"
    )]
    NoEnd,
}

impl DryRun {
    /// A copy of `snapshot` at the time `now`, which is the creation time of new objects.
    #[must_use]
    pub fn new(settings: Settings, snapshot: Snapshot, now: Timestamp) -> Self {
        let in_memory = InMemoryCluster::new(snapshot, now);

        Self { allocator: Allocator::new(in_memory, settings), now }
    }

    /// Creates `object`, or changes it as `kubectl apply` does: maps are merged, lists replaced, and fields that were
    /// applied the last time and are not in `object` are removed.
    ///
    /// # Errors
    ///
    /// [`DryRunError::Unknown`] if it is of another kind, or has no name.
    pub fn put(&self, object: &Value) -> Result<(), DryRunError> {
        self.allocator.cluster().put(object)
    }

    /// Deletes an object, and returns whether it existed. It is gone after [`Self::run`].
    #[must_use]
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let Some(kind) = Kind::named(kind) else { return false };

        self.allocator.cluster().delete(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// Runs the operator until it has nothing to do. Returns the objects without an allocation.
    ///
    /// # Errors
    ///
    /// [`DryRunError`] if it does not end.
    pub async fn run(&mut self) -> Result<Vec<Unallocated>, DryRunError> {
        for _ in 0..ROUNDS_MAX {
            let before = self.allocator.cluster().version();
            let objects = self.allocator.cluster().seen();
            let round = self.allocator.round(&objects, self.now).await;
            let round = round.map_err(|error: Failure| DryRunError::Failed(error.to_string()))?;
            if let Some(failure) = round.failures.first() {
                return Err(DryRunError::Failed(failure.clone()));
            }
            if !round.is_unfinished && self.allocator.cluster().version() == before {
                return Ok(round.denials.into_iter().map(Unallocated::from).collect());
            }
        }

        Err(DryRunError::NoEnd)
    }

    /// All objects, by kind, namespace and name.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        self.allocator.cluster().objects()
    }
}

impl From<Denial> for Unallocated {
    fn from(denial: Denial) -> Self {
        let Denial { object, reason, message, .. } = denial;

        Self {
            kind: object.kind.unwrap_or_default(),
            namespace: object.namespace.unwrap_or_default(),
            name: object.name.unwrap_or_default(),
            reason,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dry_run(objects: Vec<Value>) -> DryRun {
        let snapshot = Snapshot { objects, journal: None };

        DryRun::new(Settings::default(), snapshot, Timestamp::UNIX_EPOCH)
    }

    fn configuration(metadata: &Value, cidr: &Value) -> Value {
        let mut object = json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "Configuration",
            "metadata": {"name": "milan", "namespace": "tenant"},
            "spec": {"remote": {"cidr": cidr}},
        });
        json_patch::merge(&mut object, &json!({"metadata": metadata}));

        object
    }

    #[test]
    fn put_applies_as_kubectl_does() {
        let last =
            configuration(&json!({"labels": {"a": "b"}}), &json!({"external": ["10.70.0.0/16"]}));
        let note = json!({"kubectl.kubernetes.io/last-applied-configuration": last.to_string()});
        let both = json!({"pod": ["10.1.0.0/16", "10.2.0.0/16"], "external": ["10.70.0.0/16"]});
        let wanted =
            configuration(&json!({"labels": {"c": "d"}}), &json!({"pod": ["10.3.0.0/16"]}));

        for (metadata, cidr, labels) in [
            // It was created by another tool: fields that are not in `object` stay.
            (
                json!({"labels": {"a": "b"}}),
                json!({"pod": ["10.3.0.0/16"], "external": ["10.70.0.0/16"]}),
                json!({"a": "b", "c": "d"}),
            ),
            (
                json!({"labels": {"a": "b"}, "annotations": note}),
                json!({"pod": ["10.3.0.0/16"]}),
                json!({"c": "d"}),
            ),
        ] {
            let dry_run = dry_run(vec![configuration(&metadata, &both)]);
            dry_run.put(&wanted).unwrap();

            let objects = dry_run.objects();
            assert_eq!(objects[0].pointer("/spec/remote/cidr"), Some(&cidr));
            assert_eq!(objects[0].pointer("/metadata/labels"), Some(&labels));
        }
    }

    #[tokio::test]
    async fn a_string_becomes_a_list_of_one() {
        let cidr = json!({"pod": "10.243.0.0/16", "external": ["10.70.0.0/16"]});
        let mut dry_run = dry_run(vec![configuration(&json!({"uid": "milan"}), &cidr)]);

        assert_eq!(dry_run.run().await, Ok(Vec::new()));

        let objects = dry_run.objects();
        let object = objects.iter().find(|object| object["kind"] == "Configuration").unwrap();
        let lists = json!({"cidr": {"pod": ["10.243.0.0/16"], "external": ["10.70.0.0/16"]}});
        assert_eq!(object["spec"]["remote"], lists);
        assert_eq!(object["status"]["remote"], lists);
    }

    #[test]
    fn a_kind_has_its_group_and_version() {
        let dry_run = dry_run(Vec::new());
        let network = |api_version: &str| {
            json!({
                "apiVersion": api_version, "kind": "Network",
                "metadata": {"name": "a", "namespace": "b"}, "spec": {"cidr": "10.0.0.0/16"},
            })
        };

        assert_eq!(dry_run.put(&network("ipam.liqo.io/v1alpha1")), Ok(()));
        for other in ["ipam.liqo.io/v1beta1", "config.openshift.io/v1", "v1"] {
            let error = dry_run.put(&network(other)).unwrap_err();
            assert_eq!(error, DryRunError::Unknown(format!("Network of {other}")));
        }
        assert_eq!(dry_run.objects().len(), 1);
    }
}
