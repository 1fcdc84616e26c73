//! The difference between two states of objects. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// The change of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The action.
    pub action: Action,
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// The differences in its spec and its status, in the order of the paths.
    pub fields: Vec<Field>,
}

/// An action on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It would be created.
    Create,
    /// It would be changed.
    Update,
    /// It would be replaced by another one of its name.
    Replace,
    /// It would be deleted.
    Delete,
}

impl Action {
    /// All of them, in the order in which they are counted.
    pub(super) const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Replace, Self::Delete];

    /// The label in JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }
}

/// A value that would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Field {
    /// The path from the object on, as in `status.remote.cidr.pod[0]`.
    pub path: String,
    /// The present value; null: there is none.
    pub before: Option<Value>,
    /// The future value; null: there is none, or it is not known.
    pub after: Option<Value>,
    /// Whether there will be a value that is not known yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub known_later: bool,
}

/// Something that could not be allocated, or would conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the object.
    pub name: String,
    /// The reason, the same in every release.
    pub reason: String,
    /// The problem, with the remedy.
    pub message: String,
}

impl Change {
    /// The order of changes: kind, namespace and name.
    pub(super) fn order(&self) -> (&str, Option<&str>, &str) {
        (&self.kind, self.namespace.as_deref(), &self.name)
    }

    /// From `before` to `after`, two states of one object; `None` if there is no visible difference.
    pub(super) fn between(before: Option<&Value>, after: Option<&Value>) -> Option<Self> {
        let uid = |object: &Value| object.pointer("/metadata/uid").cloned();
        let action = match (before, after) {
            (None, None) => return None,
            (None, Some(_)) => Action::Create,
            (Some(_), None) => Action::Delete,
            (Some(before), Some(after)) if uid(before) != uid(after) => Action::Replace,
            (Some(_), Some(_)) => Action::Update,
        };
        let leaves = |object: Option<&Value>| object.map(leaves).unwrap_or_default();
        let (of_before, mut of_after) = (leaves(before), leaves(after));
        let paths: BTreeSet<_> = of_before.keys().chain(of_after.keys()).cloned().collect();
        let fields: Vec<_> = paths
            .into_iter()
            .map(|path| {
                let (before, after) = (of_before.get(&path).cloned(), of_after.remove(&path));
                Field { path, before, after, known_later: false }
            })
            .filter(|field| field.before != field.after)
            .collect();
        if action == Action::Update && fields.is_empty() {
            return None;
        }

        let object = after.or(before)?;
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            action,
            kind: text("/kind")?,
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name")?,
            fields,
        })
    }
}

/// Every value in the spec and the status of an object, by its path. Left out are times and authors, and conditions,
/// which follow from the rest.
fn leaves(object: &Value) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    for part in ["spec", "status"] {
        if let Some(value) = object.get(part) {
            collect(part.to_owned(), value, &mut leaves);
        }
    }
    leaves.retain(|path, _| !path.starts_with("status.conditions["));

    leaves
}

fn collect(path: String, value: &Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                collect(format!("{path}.{key}"), value, leaves);
            }
        }
        Value::Array(list) => {
            for (place, value) in list.iter().enumerate() {
                collect(format!("{path}[{place}]"), value, leaves);
            }
        }
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            leaves.insert(path, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_visible_fields_are_compared() {
        let object = |uid: &str, cidr: &str, labels: Value| {
            json!({
                "kind": "Network", "metadata": {"name": "a", "uid": uid, "labels": labels},
                "spec": {"cidr": cidr},
                "status": {"conditions": [{"type": "Ready", "lastTransitionTime": uid}]},
            })
        };
        let before = object("1", "10.1.0.0/16", json!({}));

        assert_eq!(Change::between(Some(&before), Some(&before)), None);
        let same = object("1", "10.1.0.0/16", json!({"a": "b"}));
        assert_eq!(Change::between(Some(&before), Some(&same)), None);
        let other = object("1", "10.2.0.0/16", json!({}));
        let change = Change::between(Some(&before), Some(&other)).unwrap();
        assert_eq!((change.action, change.fields.len()), (Action::Update, 1));
        assert_eq!(change.fields[0].path, "spec.cidr");
        for (before, after, action) in [
            (None, Some(&before), Action::Create),
            (Some(&before), None, Action::Delete),
            (Some(&before), Some(&object("2", "10.1.0.0/16", json!({}))), Action::Replace),
        ] {
            assert_eq!(Change::between(before, after).unwrap().action, action);
        }
    }
}
