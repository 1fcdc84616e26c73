//! JSON for tests: any, and what it consists of.

use proptest::prelude::*;
use serde_json::Value;

/// Any JSON of some depth.
pub fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i32).prop_map(Value::from),
        "[a-b]{0,1}".prop_map(Value::from),
    ];

    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every path to a part of `value`, with that part.
pub fn parts(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let below = |step: &str| format!("{path}/{step}");
    found.push((path.to_owned(), value.clone()));
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| parts(value, &below(key), found));
        }
        Value::Array(list) => {
            for (place, value) in list.iter().enumerate() {
                parts(value, &below(&place.to_string()), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
