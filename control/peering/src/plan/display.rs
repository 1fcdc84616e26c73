//! A plan as text for people: one line per difference, with a sign in the first column.

use std::fmt;

use serde_json::Value;

use super::change::{Action, Change, Conflict, Field};
use super::{ClusterPlan, Plan};

/// In place of a value that is not known yet.
const LATER: &str = "(known later)";

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cluster in &self.clusters {
            cluster.fmt(f)?;
        }
        let conflicts: usize = self.clusters.iter().map(|cluster| cluster.conflicts.len()).sum();
        if !self.has_changes() && conflicts == 0 {
            return writeln!(f, "No changes.");
        }

        let count = |action| {
            let changes = self.clusters.iter().flat_map(|cluster| &cluster.changes);
            changes.filter(|change| change.action == action).count()
        };
        let counts = Action::ALL.map(|action| format!("{} to {}", count(action), action.label()));
        let plural = if conflicts == 1 { "" } else { "s" };
        writeln!(f, "Plan: {}; {conflicts} conflict{plural}.", counts.join(", "))
    }
}

impl fmt::Display for ClusterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, cluster_id, changes, conflicts, notes } = self;
        if changes.is_empty() && conflicts.is_empty() && notes.is_empty() {
            return Ok(());
        }

        writeln!(f, "{side}cluster {cluster_id}")?;
        for change in changes {
            change.fmt(f)?;
        }
        for conflict in conflicts {
            conflict.fmt(f)?;
        }
        for note in notes {
            writeln!(f, "  note: {note}")?;
        }

        writeln!(f)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, kind, namespace, name, fields } = self;
        let sign = match action {
            Action::Create => "+ ",
            Action::Update => "~ ",
            Action::Replace => "-+",
            Action::Delete => "- ",
        };
        writeln!(f, "{sign}{kind} {}", named(namespace.as_deref(), name))?;
        let width = fields.iter().map(|field| field.path.len()).max().unwrap_or_default();
        for Field { path, before, after, known_later } in fields {
            let after =
                if *known_later { Some(LATER.to_owned()) } else { after.as_ref().map(text) };
            let (sign, value) = match (before.as_ref().map(text), after) {
                (Some(before), Some(after)) => ("~", format!("{before} -> {after}")),
                (None, Some(after)) => ("+", after),
                (Some(before), None) => ("-", before),
                (None, None) => continue,
            };
            writeln!(f, "{sign}   {path:<width$}  {value}")?;
        }

        Ok(())
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name, reason, message } = self;

        writeln!(f, "! {kind} {}: {reason}: {message}", named(namespace.as_deref(), name))
    }
}

fn named(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}
