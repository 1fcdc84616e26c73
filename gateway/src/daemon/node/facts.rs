//! What the task that keeps routes lets others know, who may be slow.

use std::collections::{BTreeMap, BTreeSet};

use control::node::condition::{self, Known, Statement};
use control::node::{Objects, Plan};
use control::objects::ObjectName;
use remap::Prefix;

use super::forwarding::WayProblem;
use super::masquerade::Findings;

/// Of the last round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Whose each prefix is.
    pub(super) owners: BTreeMap<Prefix, ObjectName>,
    /// Of this cluster.
    pub(super) pods: BTreeSet<Prefix>,
    node: String,
    nodes: BTreeSet<String>,
    /// What each `Configuration` says already.
    known: BTreeMap<ObjectName, Known>,
    /// What is wrong with a `Configuration` for all nodes, and for this one.
    of_all: BTreeMap<ObjectName, String>,
    of_own: BTreeMap<ObjectName, String>,
}

impl Facts {
    pub(super) fn new(
        node: &str,
        objects: &Objects,
        plan: &Plan,
        of_way: &[WayProblem],
        refused: &[String],
    ) -> Self {
        let own = node.to_owned();
        let of_all = plan
            .problems
            .iter()
            .filter_map(|problem| Some((problem.object()?.clone(), problem.to_string())));
        let of_way = of_way.iter().filter_map(|problem| {
            let owner = plan.owners.get(&problem.prefix()?)?;
            Some((owner.clone(), problem.to_string()))
        });
        // What the kernel refuses concerns every prefix.
        let refused = refused.first().into_iter().flat_map(|refused| {
            plan.owners.values().map(move |owner| (owner.clone(), refused.clone()))
        });

        Self {
            owners: plan.owners.clone(),
            pods: plan.pods.clone(),
            nodes: plan.others.keys().cloned().chain([own.clone()]).collect(),
            node: own,
            known: condition::known(objects),
            // The first of each is enough: the log has the others.
            of_all: of_all.fold(BTreeMap::new(), keep_first),
            of_own: of_way.chain(refused).fold(BTreeMap::new(), keep_first),
        }
    }

    /// What is to be said that nobody has read yet.
    pub(super) fn news(&self, findings: Option<&Findings>) -> Vec<Statement> {
        let speaks_for_all = self.nodes.first() == Some(&self.node);
        let statement = |object: &ObjectName| {
            let finding = findings.and_then(|findings| findings.get(object));
            let of_all = self.of_all.get(object).filter(|_| speaks_for_all);
            let problem = self.of_own.get(object).or(of_all).cloned();
            Statement {
                object: object.clone(),
                node: self.node.clone(),
                problem: problem.or_else(|| finding.map(ToString::to_string)),
                speaks_for: speaks_for_all.then(|| self.nodes.clone()),
            }
        };
        let known = self.known.iter();
        let statements = known.map(|(object, known)| (statement(object), known));

        statements
            .filter(|(statement, known)| !statement.is_said_by(known))
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
