//! What the task that keeps routes publishes to slower tasks.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use remap::Prefix;
use strait_plan::objects::ObjectName;

use super::finding::Findings;
use super::forwarding::PathProblem;
use crate::condition::{self, Known, Statement};
use crate::plan::{Objects, Plan};

const NO_GATEWAY: &str = "no pod of the gateway is active and running";

/// The facts of the last round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// The `Configuration` of each prefix.
    pub(super) owners: BTreeMap<Prefix, ObjectName>,
    /// The pod prefixes of this cluster.
    pub(super) pods: BTreeSet<Prefix>,
    node: String,
    /// The names of all nodes. This one is missing if it has another name, or its Node was deleted.
    nodes: BTreeSet<String>,
    /// The node that reports for all.
    reporter: Option<String>,
    /// The present condition of each `Configuration`.
    known: BTreeMap<ObjectName, Known>,
    /// The problems of a `Configuration` for all nodes, and for this one.
    of_all: BTreeMap<ObjectName, String>,
    of_own: BTreeMap<ObjectName, String>,
}

impl Facts {
    pub(super) fn new(
        node: &str,
        objects: &Objects,
        plan: &Plan,
        of_way: &[PathProblem],
        refused: &[String],
    ) -> Self {
        // A problem of no object concerns every prefix.
        let subjects = |object: Option<&ObjectName>| match object {
            Some(object) => vec![object.clone()],
            None => plan.owners.values().cloned().collect(),
        };
        let about = |object: Option<&ObjectName>, text: String| {
            subjects(object).into_iter().map(move |object| (object, text.clone()))
        };
        let (of_one, of_all): (Vec<_>, Vec<_>) =
            plan.problems.iter().partition(|problem| problem.is_of_one_node());
        let [of_one, of_all] = [of_one, of_all].map(|problems| {
            problems.into_iter().flat_map(|problem| about(problem.object(), problem.to_string()))
        });
        let without_gateway = plan.without_gateway.iter();
        let of_all =
            of_all.chain(without_gateway.map(|object| (object.clone(), NO_GATEWAY.to_owned())));
        let of_way = of_way.iter().flat_map(|problem| {
            let owner = problem.prefix().and_then(|prefix| plan.owners.get(&prefix));
            about(owner, problem.to_string())
        });
        let refused = refused.iter().flat_map(|refused| about(None, refused.clone()));

        Self {
            owners: plan.owners.clone(),
            pods: plan.pods.clone(),
            nodes: objects.nodes.iter().map(|node| node.name_any()).collect(),
            reporter: condition::reporter(objects),
            node: node.to_owned(),
            known: condition::known(objects),
            // The first of each is enough: the log has the others.
            of_all: of_all.fold(BTreeMap::new(), keep_first),
            of_own: of_one.chain(of_way).chain(refused).fold(BTreeMap::new(), keep_first),
        }
    }

    /// The statements that are not written yet.
    pub(super) fn changed(&self, findings: Option<&Findings>) -> Vec<Statement> {
        // The reporter would remove the part of an unknown node, which would write it again, without end.
        if !self.nodes.contains(&self.node) {
            return Vec::new();
        }
        let speaks_for_all = self.reporter.as_ref() == Some(&self.node);
        let statement = |object: &ObjectName| {
            let finding = findings.and_then(|findings| findings.get(object));
            let of_all = self.of_all.get(object).filter(|_| speaks_for_all);
            let problem = self.of_own.get(object).or(of_all).cloned();
            Statement {
                object: object.clone(),
                node: self.node.clone(),
                problem: problem.or_else(|| finding.map(ToString::to_string)),
                reports_for: speaks_for_all.then(|| self.nodes.clone()),
            }
        };
        let known = self.known.iter();
        let statements = known.map(|(object, known)| (statement(object), known));

        statements
            .filter(|(statement, known)| !statement.is_reported_by(known))
            .map(|(statement, _)| statement)
            .collect()
    }
}

fn keep_first(
    mut map: BTreeMap<ObjectName, String>,
    (object, text): (ObjectName, String),
) -> BTreeMap<ObjectName, String> {
    map.entry(object).or_insert(text);

    map
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use crate::plan::{Forwarding, plan};
    use kube::core::DeserializeGuard;
    use serde_json::{Value, json};

    use super::super::conntrack::Flow;
    use super::super::finding::Finding;
    use strait_plan::conditions::NODE_ROUTES;

    use super::*;

    fn node(name: &str, address: Option<&str>) -> Value {
        let address = address.map(|address| json!({"type": "InternalIP", "address": address}));

        json!({
            "metadata": {"name": name},
            "status": {"addresses": address.into_iter().collect::<Vec<_>>()},
        })
    }

    /// A cluster with the gateway to Rome on node-2, which has an IPv4 address only.
    fn objects(nodes: &[Value], prefix: &str) -> Objects {
        objects_that_say(nodes, prefix, &[])
    }

    /// The same, with these parts in the condition of Rome.
    fn objects_that_say(nodes: &[Value], prefix: &str, parts: &[&str]) -> Objects {
        let condition = json!({
            "type": NODE_ROUTES, "status": "False", "reason": "NodeProblem",
            "message": parts.join("; "), "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let conditions = if parts.is_empty() { Vec::new() } else { vec![condition] };
        let configuration = json!({
            "metadata": {
                "name": "rome", "namespace": "tenant", "labels": {"liqo.io/remote-cluster-id": "rome"},
            },
            "spec": {"remote": {"cidr": {"pod": [prefix]}}},
            "status": {"remote": {"cidr": {"pod": [prefix]}}, "conditions": conditions},
        });
        let pod = json!({
            "metadata": {"name": "gw", "namespace": "tenant", "labels": {
                "networking.liqo.io/component": "gateway", "networking.liqo.io/active": "true",
            }},
            "spec": {"nodeName": "node-2", "containers": []},
            "status": {"phase": "Running", "podIP": "10.244.2.9"},
        });
        let configuration: DeserializeGuard<_> = serde_json::from_value(configuration).unwrap();

        Objects {
            configurations: vec![Arc::new(configuration)],
            pods: vec![Arc::new(serde_json::from_value(pod).unwrap())],
            nodes: nodes
                .iter()
                .map(|node| Arc::new(serde_json::from_value(node.clone()).unwrap()))
                .collect(),
            agents: Vec::new(),
            forwarding: Forwarding::default(),
        }
    }

    /// The pod of an agent which is ready.
    fn agent(node: &str) -> Value {
        json!({
            "metadata": {"name": "strait-node", "namespace": "liqo"},
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    fn facts(own: &str, objects: &Objects, of_way: &[PathProblem], refused: &[String]) -> Facts {
        Facts::new(own, objects, &plan(own, objects), of_way, refused)
    }

    /// The statement on Rome; `None` if there is nothing to write.
    fn statement(facts: &Facts) -> Option<String> {
        facts.changed(None).into_iter().find_map(|statement| statement.problem)
    }

    #[test]
    fn a_problem_of_one_node_is_its_own() {
        let nodes = [node("node-1", Some("fd00::1")), node("node-2", Some("172.18.0.2"))];
        let objects = objects(&nodes, "fd00:71::/56");

        let [first, second] = ["node-1", "node-2"].map(|own| facts(own, &objects, &[], &[]));

        assert!(
            statement(&first).unwrap().contains("node node-2 has no address of the IP version")
        );
        // The node with the gateway sends to the pod, and does not know the other problem.
        assert!(statement(&second).unwrap().contains("pod gw has no address of the IP version"));
    }

    #[test]
    fn the_reporter_names_a_missing_gateway() {
        let nodes = [node("node-1", Some("172.18.0.1")), node("node-2", Some("172.18.0.2"))];
        let objects = Objects { pods: Vec::new(), ..objects(&nodes, "10.71.0.0/16") };

        let [first, second] =
            ["node-1", "node-2"].map(|own| statement(&facts(own, &objects, &[], &[])));

        assert_eq!((first.as_deref(), second), (Some(NO_GATEWAY), None));
    }

    #[test]
    fn a_problem_without_a_prefix_concerns_all() {
        let whole = [node("node-1", Some("172.18.0.1")), node("node-2", Some("172.18.0.2"))];
        let nameless = [node("node-1", None), node("node-2", Some("172.18.0.2"))];
        let objects = |nodes| objects(nodes, "10.71.0.0/16");
        let refused = ["cannot list IPv4 rules".to_owned()];

        let lost = facts("node-1", &objects(&whole), &[PathProblem::NoOwnAddress], &refused);
        let own = facts("node-1", &objects(&nameless), &[], &[]);
        let refused = facts("node-2", &objects(&whole), &[], &refused);

        assert!(statement(&lost).unwrap().contains("none of the addresses of the Node is on"));
        assert!(
            statement(&own).unwrap().contains("node node-1 is not there, or has no InternalIP")
        );
        assert_eq!(statement(&refused).unwrap(), "cannot list IPv4 rules");
    }

    #[test]
    fn a_node_without_an_agent_never_reports() {
        let all = ["node-1", "node-2", "node-3"];
        let nodes = [1, 2, 3]
            .map(|number| node(&format!("node-{number}"), Some(&format!("172.18.0.{number}"))));
        let objects = |prefix: &str, parts: &[&str]| Objects {
            agents: ["node-2", "node-3"]
                .map(|node| Arc::new(serde_json::from_value(agent(node)).unwrap()))
                .into(),
            ..objects_that_say(&nodes, prefix, parts)
        };
        let well = objects("10.71.0.0/16", &["node-9: it is gone"]);
        let wrong = objects("172.18.0.0/24", &[]);

        let of_well = all.map(|own| facts(own, &well, &[], &[]).changed(None));
        let of_wrong = all.map(|own| statement(&facts(own, &wrong, &[], &[])));

        // It knows which nodes exist, so the part of node-9 is removed.
        let [first, reporter, other] = &of_well;
        let [statement] = reporter.as_slice() else { panic!("{reporter:?}") };
        assert_eq!(statement.problem, None);
        assert_eq!(statement.reports_for, Some(all.map(str::to_owned).into()));
        assert!(first.is_empty() && other.is_empty(), "{of_well:?}");
        let [first, reporter, other] = of_wrong;
        assert!(reporter.unwrap().contains("172.18.0.0/24 overlaps"));
        assert_eq!((first, other), (None, None));
    }

    #[test]
    fn an_unknown_host_reports_nothing() {
        let nodes = [node("node-1", Some("172.18.0.1")), node("node-2", Some("172.18.0.2"))];
        let objects = objects(&nodes, "10.71.0.0/16");
        let flow = Flow {
            source: IpAddr::from([10, 244, 2, 5]),
            destination: IpAddr::from([10, 71, 2, 7]),
            seen_as: IpAddr::from([172, 18, 0, 2]),
        };
        let findings = |facts: &Facts| -> Findings {
            let finding = Finding { flows: 1, example: flow };
            facts.owners.values().map(|owner| (owner.clone(), finding)).collect()
        };

        for (own, statements) in [("node-0", 0), ("node-1", 1), ("node-2", 1)] {
            let facts = facts(own, &objects, &[], &["cannot list IPv4 rules".to_owned()]);

            assert_eq!(facts.changed(Some(&findings(&facts))).len(), statements, "{own}");
        }
    }
}
