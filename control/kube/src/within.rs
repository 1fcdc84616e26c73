//! Whether an object is already as desired, so that only differences are written. Pure.

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;

use std::fmt;

use serde_json::Value;

/// A list in which each writer has its own part.
const OWNER_REFERENCES: &str = "ownerReferences";

/// Whether `found` has everything that `wanted` has. Fields that others have added do not matter, nor empty ones in
/// `wanted`: an API server does not store those. Lists have the same length, except for owners.
pub fn is_within(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            wanted.iter().all(|(key, wanted)| match (wanted, found.get(key)) {
                (Value::Array(wanted), Some(Value::Array(found))) if key == OWNER_REFERENCES => {
                    let is_there =
                        |wanted: &Value| found.iter().any(|found| is_within(wanted, found));
                    wanted.iter().all(is_there)
                }
                (wanted, Some(found)) => is_within(wanted, found),
                (wanted, None) => is_nothing(wanted),
            })
        }
        (Value::Array(wanted), Value::Array(found)) => {
            let is_as_long = wanted.len() == found.len();
            is_as_long && wanted.iter().zip(found).all(|(wanted, found)| is_within(wanted, found))
        }
        (wanted, found) => wanted == found,
    }
}

/// A value that differs from the desired one.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The path from the object on, as in `spec.endpoint.addresses[0]`.
    path: String,
    /// The value found; null: there is none.
    found: Value,
    /// The desired value.
    wanted: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, found, wanted } = self;
        if found.is_null() {
            write!(f, "{path} none → {wanted}")
        } else {
            write!(f, "{path} {found} → {wanted}")
        }
    }
}

/// Where `found` differs from `wanted`: empty if `wanted` is within it.
pub fn differences(wanted: &Value, found: &Value) -> Vec<Difference> {
    let mut differences = Vec::new();
    collect(String::new(), wanted, found, &mut differences);

    differences
}

fn collect(path: String, wanted: &Value, found: &Value, differences: &mut Vec<Difference>) {
    match (wanted, found) {
        (Value::Object(parts), Value::Object(others)) => {
            for (key, part) in parts {
                let alone = Value::Object([(key.clone(), part.clone())].into_iter().collect());
                if is_within(&alone, found) {
                    continue;
                }
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let other = others.get(key).unwrap_or(&Value::Null);
                if key == OWNER_REFERENCES {
                    let (found, wanted) = (other.clone(), part.clone());
                    differences.push(Difference { path, found, wanted });
                } else {
                    collect(path, part, other, differences);
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (place, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                collect(format!("{path}[{place}]"), wanted, found, differences);
            }
        }
        (wanted, found) if wanted == found => {}
        (wanted, found) => {
            let (found, wanted) = (found.clone(), wanted.clone());
            differences.push(Difference { path, found, wanted });
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::fixtures::{parts, value};
    use super::*;

    #[test]
    fn fields_of_others_are_no_difference() {
        let found = json!({
            "metadata": {"uid": "1", "ownerReferences": [{"uid": "a"}, {"uid": "b", "controller": true}]},
            "spec": {"mtu": 1340, "list": [1, 2], "ports": [{"port": 1, "nodePort": 7}]},
        });

        for wanted in [
            json!({"spec": {"mtu": 1340}}),
            json!({"metadata": {"ownerReferences": [{"uid": "b"}]}}),
            json!({"spec": {"ports": [{"port": 1, "name": ""}], "labels": {}, "node": null}}),
            json!({"status": null}),
        ] {
            assert!(is_within(&wanted, &found), "{wanted}");
        }
        for wanted in [
            json!({"metadata": {"ownerReferences": [{"uid": "c"}]}}),
            json!({"spec": {"list": [1]}}),
            json!({"spec": {"list": [1, 2, 3]}}),
            json!({"spec": {"ports": [{"port": 2}]}}),
            json!({"spec": {"port": 1}}),
            json!({"spec": {"is_on": false}}),
        ] {
            assert!(!is_within(&wanted, &found), "{wanted}");
        }
    }

    /// The slow definition: each part of `wanted` that is not empty is at its path in `found`.
    fn has_all_parts(wanted: &Value, found: &Value) -> bool {
        let mut all = Vec::new();
        parts(wanted, "", &mut all);

        all.iter().all(|(path, part)| match (part, found.pointer(path)) {
            (Value::Array(part), Some(found)) => {
                found.as_array().is_some_and(|found| found.len() == part.len())
            }
            (Value::Object(_), Some(found)) => found.is_object(),
            (part, Some(found)) => part == found,
            (Value::Object(_), None) => true,
            (Value::Array(part), None) => part.is_empty(),
            (part, None) => part.is_null() || part == "",
        })
    }

    #[test]
    fn differences_name_path_and_both_values() {
        let found =
            json!({"metadata": {"labels": {"id": "a"}}, "spec": {"mtu": 1340, "at": ["b"]}});
        let wanted = json!({
            "metadata": {"labels": {"id": "c"}}, "spec": {"mtu": 1300, "at": ["d"], "port": 1},
            "status": null,
        });

        let lines: Vec<_> = differences(&wanted, &found).iter().map(ToString::to_string).collect();

        assert_eq!(
            lines,
            [
                "metadata.labels.id \"a\" → \"c\"",
                "spec.at[0] \"b\" → \"d\"",
                "spec.mtu 1340 → 1300",
                "spec.port none → 1",
            ]
        );
    }

    proptest! {
        #[test]
        fn differences_are_empty_where_it_is_within(wanted in value(), found in value()) {
            prop_assert_eq!(differences(&wanted, &found).is_empty(), is_within(&wanted, &found));
        }

        #[test]
        fn is_within_equals_the_slow_definition(wanted in value(), found in value()) {
            prop_assert_eq!(is_within(&wanted, &found), has_all_parts(&wanted, &found));
            prop_assert!(is_within(&found, &found));
        }

        #[test]
        fn a_written_object_is_not_written_again(found in value(), wanted in value()) {
            let (mut found, wanted) = (json!({"spec": found}), json!({"spec": wanted}));

            json_patch::merge(&mut found, &wanted);

            prop_assert!(is_within(&wanted, &found));
        }
    }
}
