//! What nodes report on the routes to a remote cluster, as the condition [`NODE_ROUTES`] of its `Configuration`.
//!
//! All nodes share one condition, as its status depends on all of them. Its message is a list of the reports of single
//! nodes, each after the name of its node. A node changes its own part only; one of them (`reporter`) also writes the
//! condition where no node has a problem, and removes the parts of deleted nodes.
//!
//! # Invariants
//!
//! - Conditions of other types stay as they are, garbage as well.
//! - Once the report of each node is written, there is no further write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::Configuration;
use strait_plan::conditions::NODE_ROUTES;
use strait_plan::objects::ObjectName;

use crate::plan::Objects;
use crate::plan::gateway::is_ready;

/// No node reports a problem.
const ROUTED: &str = "Routed";

/// A node reports a problem.
const NODE_PROBLEM: &str = "NodeProblem";

const ALL_IS_WELL: &str = "no node reports a problem on its way to the gateway";

/// The field manager, as in `managedFields`.
const FIELD_MANAGER: &str = "strait-node";

/// The number of nodes in a message. More of them show no more, and the length of a message is bounded.
const NODES_MAX: usize = 5;

/// The longest report of one node; five of them, with names of the longest kind, fit into 3 KiB.
const PART_BYTES_MAX: usize = 320;

/// Between parts of a message.
const SEPARATOR: &str = "; ";

/// How often an update is tried when others write at the same time.
const ATTEMPTS: usize = 5;

/// What one node reports on one `Configuration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The `Configuration`.
    pub object: ObjectName,
    /// The node.
    pub node: String,
    /// What is wrong, if anything is.
    pub problem: Option<String>,
    /// All nodes, if this one is the `reporter`.
    pub reports_for: Option<BTreeSet<String>>,
}

/// The present condition of a `Configuration`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    condition: Option<Condition>,
    generation: Option<i64>,
}

/// The present condition of each `Configuration` that can be read.
#[must_use]
pub fn known(objects: &Objects) -> BTreeMap<ObjectName, Known> {
    let readable = objects.configurations.iter().filter_map(|listed| listed.0.as_ref().ok());
    let known = readable.map(|object| {
        let mut conditions = object.status.iter().flat_map(|status| &status.conditions);
        let condition = conditions.find(|condition| condition.type_ == NODE_ROUTES).cloned();
        (ObjectName::of(object), Known { condition, generation: object.metadata.generation })
    });

    known.collect()
}

/// The node that reports for all, the same for all of them: the first by name on which an agent is ready.
///
/// Not every node has an agent: it may run another system, exist in name only, be left out on purpose, or be dead.
/// While no agent is ready it is the first node that has one. Where no agent pod is seen it is the first of all: agents
/// may run outside of pods, as a service of the host.
#[must_use]
pub(crate) fn reporter(objects: &Objects) -> Option<String> {
    let nodes: BTreeSet<_> = objects.nodes.iter().map(|node| node.name_any()).collect();
    let first_with = |is_meant: fn(&Pod) -> bool| {
        let agents = objects.agents.iter().filter(|agent| is_meant(agent));
        let places = agents.filter_map(|agent| agent.spec.as_ref()?.node_name.clone());
        places.filter(|place| nodes.contains(place)).min()
    };

    first_with(is_ready).or_else(|| first_with(|_| true)).or_else(|| nodes.first().cloned())
}

impl Statement {
    /// Whether the condition has all of this already.
    #[must_use]
    pub fn is_reported_by(&self, known: &Known) -> bool {
        let Known { condition, generation } = known;

        self.condition(condition.as_ref(), *generation, Timestamp::UNIX_EPOCH).is_none()
    }

    /// The condition with this report in place of `former`; `None` if that has it already.
    fn condition(
        &self,
        former: Option<&Condition>,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<Condition> {
        let before = former.map(parts).unwrap_or_default();
        let mut after: Vec<(&str, String)> = before
            .iter()
            .filter(|(node, _)| *node != self.node)
            .filter(|(node, _)| self.reports_for.as_ref().is_none_or(|nodes| nodes.contains(*node)))
            .map(|(node, text)| (*node, (*text).to_owned()))
            .collect();
        if let Some(problem) = &self.problem
            && after.len() < NODES_MAX
        {
            // The text must not look like the beginning of another part.
            let problem = problem.replace(SEPARATOR, ", ");
            after.push((&self.node, shortened(&problem)));
        }
        after.sort();

        let is_same = after.iter().map(|(node, text)| (*node, text.as_str())).eq(before);
        let is_up_to_date = former.is_some_and(|former| former.observed_generation == generation);
        // Only the reporter writes for other nodes.
        if is_same && (self.reports_for.is_none() || is_up_to_date) {
            return None;
        }

        let list: Vec<_> = after.iter().map(|(node, text)| format!("{node}: {text}")).collect();
        let (status, reason, message) = match list.as_slice() {
            [] => ("True", ROUTED, ALL_IS_WELL.to_owned()),
            list => ("False", NODE_PROBLEM, list.join(SEPARATOR)),
        };
        let same = former.filter(|former| former.status == status);
        Some(Condition {
            last_transition_time: same
                .map_or(Time(now), |former| former.last_transition_time.clone()),
            message,
            observed_generation: generation,
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: NODE_ROUTES.to_owned(),
        })
    }
}

/// The parts of single nodes, in the order of their names.
fn parts(condition: &Condition) -> Vec<(&str, &str)> {
    if condition.status != "False" {
        return Vec::new();
    }

    condition.message.split(SEPARATOR).filter_map(|part| part.split_once(": ")).collect()
}

fn shortened(text: &str) -> String {
    let end = (0..=PART_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));

    text.get(..end.unwrap_or_default()).unwrap_or(text).to_owned()
}

/// The conditions to write in place of `conditions`, if those do not have this report already.
fn merged(
    conditions: &[Value],
    statement: &Statement,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Vec<Value>> {
    let is_ours =
        |condition: &&Value| condition.get("type").and_then(Value::as_str) == Some(NODE_ROUTES);
    let former: Option<Condition> = conditions
        .iter()
        .find(is_ours)
        .and_then(|value| serde_json::from_value(value.clone()).ok());
    let condition = statement.condition(former.as_ref(), generation, now)?;
    let others = conditions.iter().filter(|condition| !is_ours(condition)).cloned();

    Some(others.chain(serde_json::to_value(condition)).collect())
}

/// Writes `statement`, if it has changed.
///
/// # Errors
///
/// The error of the API server, a conflict if others write all the time. May be called again.
pub async fn state(client: &Client, statement: &Statement, now: Timestamp) -> kube::Result<()> {
    let resource = ApiResource::erase::<Configuration>(&());
    let ObjectName { namespace, name, .. } = &statement.object;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let parameters =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };

    let mut attempts = 0;
    loop {
        let Some(found) = api.get_opt(name).await? else { return Ok(()) };
        let conditions = found.data.pointer("/status/conditions").and_then(Value::as_array);
        let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
        let Some(conditions) = merged(conditions, statement, found.metadata.generation, now) else {
            return Ok(());
        };
        let patch = json!({
            "metadata": {"resourceVersion": found.resource_version()},
            "status": {"conditions": conditions},
        });
        attempts += 1;
        match api.patch_status(name, &parameters, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() && attempts < ATTEMPTS => {}
            outcome => return outcome.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn statement(node: &str, problem: Option<&str>, all: Option<&[&str]>) -> Statement {
        Statement {
            object: ObjectName {
                kind: "Configuration".to_owned(),
                namespace: "tenant".to_owned(),
                name: "rome".to_owned(),
            },
            node: node.to_owned(),
            problem: problem.map(str::to_owned),
            reports_for: all.map(|all| all.iter().map(|&node| node.to_owned()).collect()),
        }
    }

    fn merge(conditions: &mut Vec<Value>, statement: &Statement) -> bool {
        match merged(conditions, statement, Some(7), Timestamp::UNIX_EPOCH) {
            Some(news) => {
                *conditions = news;
                true
            }
            None => false,
        }
    }

    fn message(conditions: &[Value]) -> &str {
        conditions.last().unwrap()["message"].as_str().unwrap()
    }

    #[test]
    fn nodes_share_a_condition_and_keep_others() {
        let others = [json!({"type": "strait.io/InForce", "status": "True"}), json!(7)];
        let mut conditions = others.to_vec();
        let all = ["node-1", "node-2", "node-3"];

        assert!(!merge(&mut conditions, &statement("node-2", None, None)), "the first speaks");
        assert!(merge(&mut conditions, &statement("node-1", None, Some(&all))));
        assert_eq!((message(&conditions), &conditions[2]["status"]), (ALL_IS_WELL, &json!("True")));
        assert!(merge(&mut conditions, &statement("node-3", Some("no; way"), None)));
        assert!(merge(&mut conditions, &statement("node-2", Some("a: b"), None)));
        assert_eq!(message(&conditions), "node-2: a: b; node-3: no, way");
        assert_eq!(conditions[2]["reason"], "NodeProblem");
        assert!(!merge(&mut conditions, &statement("node-1", None, Some(&all))));
        // The part of a deleted node is removed.
        assert!(merge(&mut conditions, &statement("node-1", None, Some(&all[..2]))));
        assert_eq!(message(&conditions), "node-2: a: b");
        assert!(merge(&mut conditions, &statement("node-2", None, None)));
        assert_eq!((message(&conditions), &conditions[2]["status"]), (ALL_IS_WELL, &json!("True")));
        assert_eq!(conditions[..2], others);
    }

    /// A cluster with the nodes a, b and c.
    fn reporter_with(agents: &[(&str, bool)]) -> Option<String> {
        let nodes = ["c", "a", "b"].map(|name| {
            let node = json!({"metadata": {"name": name}});
            Arc::new(serde_json::from_value(node).unwrap())
        });
        let agents = agents.iter().map(|(node, is_ready)| {
            let status = if *is_ready { "True" } else { "False" };
            let pod = json!({
                "metadata": {"name": format!("strait-node-{node}")},
                "spec": {"nodeName": node, "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        });
        let agents = agents.collect();

        reporter(&Objects { nodes: nodes.into(), agents, ..Objects::default() })
    }

    #[test]
    fn the_first_ready_node_reports_for_all() {
        for (agents, first) in [
            (&[("a", true), ("b", true), ("c", true)][..], "a"),
            (&[("c", true), ("b", true)], "b"),
            (&[("b", false), ("c", true)], "c"),
            (&[("c", false), ("b", false)], "b"),
            (&[], "a"),
            // Its Node was just deleted.
            (&[("0", true), ("c", true)], "c"),
            (&[("0", true)], "a"),
        ] {
            assert_eq!(reporter_with(agents).as_deref(), Some(first), "{agents:?}");
        }
    }

    #[test]
    fn a_problem_everywhere_names_some_nodes() {
        let mut conditions = Vec::new();
        for number in 1..=9 {
            let written =
                merge(&mut conditions, &statement(&format!("node-{number}"), Some("x"), None));
            assert_eq!(written, number <= NODES_MAX);
        }
        assert_eq!(message(&conditions).matches(": x").count(), NODES_MAX);
    }

    proptest! {
        /// In any order of writes, in the end every report is written and there is no further write.
        #[test]
        fn reports_converge(
            problems in proptest::collection::vec(proptest::option::of("[a-z;: ]{1,9}"), 1..9),
            order in proptest::collection::vec(0..9_usize, 0..30),
        ) {
            let names: Vec<_> = (0..problems.len()).map(|number| format!("node-{number}")).collect();
            let all: Vec<_> = names.iter().map(String::as_str).collect();
            let statements: Vec<_> = names
                .iter()
                .zip(&problems)
                .map(|(name, problem)| {
                    let is_first = *name == names[0];
                    statement(name, problem.as_deref(), is_first.then_some(&all[..]))
                })
                .collect();
            let mut conditions = Vec::new();
            for number in order {
                merge(&mut conditions, &statements[number % statements.len()]);
            }
            for _ in 0..2 {
                for statement in &statements {
                    merge(&mut conditions, statement);
                }
            }

            for statement in &statements {
                prop_assert!(!merge(&mut conditions, statement), "{conditions:?}");
            }
            let is_well = conditions.last().is_some_and(|condition| condition["status"] == "True");
            prop_assert_eq!(is_well, problems.iter().all(Option::is_none));
        }
    }
}
