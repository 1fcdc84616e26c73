//! Objects generated from a schema: each value is valid, or garbage.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use strait_api::crd;
use strait_api::labels::REMOTE_CLUSTER_ID;

/// Valid prefixes.
pub(super) const CIDRS: [&str; 6] = [
    "172.16.0.0/16",
    "172.17.0.0/16",
    "172.18.4.0/24",
    "172.19.4.0/24",
    "172.20.0.1/32",
    "fd00:7::/64",
];

/// Invalid prefixes.
const NO_CIDRS: [&str; 7] = [
    "172.16.0.1/16",
    "172.16.0.0/33",
    "172.16.0.0/-1",
    "172.16.0.0/16 ",
    "172.16/16",
    "::ffff:172.16.0.0/112",
    "fe80::%eth0/64",
];

/// Garbage, of any type.
fn garbage() -> BoxedStrategy<Value> {
    let scalar = select(vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.5),
        json!(""),
        json!("\u{0}\u{202e}\n"),
        json!({}),
        json!([]),
        json!("no prefix"),
        json!("172.16.0.1/16"),
    ]);
    let list = vec(scalar.clone(), 0..3).prop_map(Value::from);
    let names = select(vec!["pod", "external", "cidr", "remote", "type", "x"]);
    let map = vec((names, scalar.clone()), 0..3).prop_map(|fields| {
        Value::Object(fields.into_iter().map(|(name, field)| (name.to_owned(), field)).collect())
    });

    prop_oneof![
        8 => scalar.clone(),
        2 => select(NO_CIDRS.to_vec()).prop_map(Value::from),
        2 => "[^0-9]{0,8}".prop_map(Value::from),
        2 => list.clone(),
        2 => map.clone(),
        1 => vec(prop_oneof![list, map], 0..3).prop_map(Value::from),
        1 => scalar.prop_map(|value| Value::from(vec![value; 300])),
        1 => Just(Value::from("é".repeat(40_000))),
    ]
    .boxed()
}

/// An object of a kind, of one of two remote clusters or of none. Its metadata, which the API server validates, is
/// valid.
pub(super) fn object(kind: &str) -> BoxedStrategy<Value> {
    let schema = schema(kind);
    let metadata = (select(vec!["b-one", "b-two", ""]), 0_i64..3).prop_map(|(cluster, age)| {
        let created = jiff::Timestamp::from_second(age).map(|time| time.to_string());
        json!({
            "name": "object", "namespace": "tenant", "uid": "object", "generation": 7,
            "creationTimestamp": created.unwrap_or_default(),
            "labels": {REMOTE_CLUSTER_ID: cluster},
        })
    });
    // Mostly valid, so that a single wrong field occurs as well.
    let content = prop_oneof![
        3 => value(&schema, 0.0),
        3 => value(&schema, 0.03),
        2 => value(&schema, 0.3),
    ];

    (metadata, content)
        .prop_map(|(metadata, content)| {
            let mut object = if content.is_object() { content } else { json!({}) };
            object["metadata"] = metadata;
            object
        })
        .boxed()
}

/// The schema of the only version of a kind.
fn schema(kind: &str) -> JSONSchemaProps {
    // To generate them takes a second.
    static DEFINITIONS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crd::all);
    let crd = DEFINITIONS.iter().find(|crd| crd.spec.names.kind == kind).expect("the kind");
    let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref());

    schema.and_then(|schema| schema.open_api_v3_schema.clone()).expect("a schema")
}

/// A value of this schema; each part of it is garbage with this probability.
fn value(schema: &JSONSchemaProps, wrong: f64) -> BoxedStrategy<Value> {
    let right = right(schema, wrong);
    if wrong == 0.0 {
        return right;
    }

    (prop::bool::weighted(wrong), garbage(), right)
        .prop_map(|(is_wrong, garbage, right)| if is_wrong { garbage } else { right })
        .boxed()
}

fn right(schema: &JSONSchemaProps, wrong: f64) -> BoxedStrategy<Value> {
    if let Some(values) = &schema.enum_ {
        return select(values.iter().map(|value| value.0.clone()).collect::<Vec<_>>()).boxed();
    }

    match schema.type_.as_deref() {
        Some("object") => map(schema, wrong),
        Some("array") => {
            let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items else {
                return Just(json!([])).boxed();
            };
            vec(value(items, wrong), 0..3).prop_map(Value::from).boxed()
        }
        Some("string") => text(schema.format.as_deref()),
        Some("integer") => (0_i64..70_000).prop_map(Value::from).boxed(),
        Some("number") => (0.0..1e6).prop_map(Value::from).boxed(),
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        // A list, or one of its elements.
        None if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items => {
            let list = vec(value(items, wrong), 0..3).prop_map(Value::from);
            prop_oneof![3 => list, 1 => value(items, wrong)].boxed()
        }
        // A number or a text, as in a port.
        _ => prop_oneof![Just(json!(80)), Just(json!("http"))].boxed(),
    }
}

/// Most of its fields; sometimes one that is not known.
fn map(schema: &JSONSchemaProps, wrong: f64) -> BoxedStrategy<Value> {
    let mut fields = Just(Map::new()).boxed();
    for (name, schema) in schema.properties.iter().flatten() {
        let (name, field) = (name.clone(), prop::option::weighted(0.9, value(schema, wrong)));
        fields = (fields, field)
            .prop_map(move |(mut fields, field)| {
                fields.extend(field.map(|field| (name.clone(), field)));
                fields
            })
            .boxed();
    }

    (fields, prop::bool::weighted(0.1))
        .prop_map(|(mut fields, is_extended)| {
            if is_extended {
                fields.insert("ofAnotherRelease".to_owned(), json!([{}]));
            }
            Value::Object(fields)
        })
        .boxed()
}

fn text(format: Option<&str>) -> BoxedStrategy<Value> {
    match format {
        Some("cidr") => select(CIDRS.to_vec()).prop_map(Value::from).boxed(),
        Some("ipv4") => any::<std::net::Ipv4Addr>().prop_map(|ip| json!(ip)).boxed(),
        Some("byte") => (0_u8..3, select(vec![32_usize, 32, 32, 0, 31, 33]))
            .prop_map(|(byte, bytes)| json!(STANDARD.encode(vec![byte; bytes])))
            .boxed(),
        Some("date-time") => Just(json!("2026-01-02T03:04:05Z")).boxed(),
        _ => "[a-z]{1,8}".prop_map(Value::from).boxed(),
    }
}
