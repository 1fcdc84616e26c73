//! What every container of `deploy` has.

use std::fs;

use serde_json::Value;

use crate::deploy::root;
use crate::deploy::tools::objects;

#[test]
fn a_container_is_ready_within_a_second() {
    for (file, container) in containers() {
        let period = container.pointer("/readinessProbe/periodSeconds");
        let is_ours = container["image"].as_str().is_some_and(|image| image.starts_with("strait"));
        if is_ours {
            assert_eq!(period, Some(&Value::from(1)), "{file}: {container:#}");
        }
    }
}

#[test]
fn without_root_the_group_is_not_roots() {
    for (file, container) in containers() {
        let context = &container["securityContext"];
        if context["runAsNonRoot"] == true {
            assert_eq!(context["runAsUser"], 65_532, "{file}");
            assert_eq!(context["runAsGroup"], 65_532, "{file}");
        }
    }
}

/// The containers of all manifests, also those inside templates of the operator, with their files.
fn containers() -> Vec<(&'static str, Value)> {
    let files =
        ["standalone/client", "standalone/node", "standalone/operator", "standalone/server"];
    let mut found = Vec::new();
    let of_liqo = ["liqo/client", "liqo/client-whole", "liqo/server", "liqo/server-whole"];
    for file in files.into_iter().chain(of_liqo) {
        let text = fs::read_to_string(root().join(format!("deploy/{file}.yaml"))).unwrap();
        let before = found.len();
        for object in objects(&text).values() {
            collect(file, object, &mut found);
        }
        assert!(found.len() > before, "{file} has no container");
    }

    found
}

fn collect(file: &'static str, value: &Value, found: &mut Vec<(&'static str, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let ("containers", Value::Array(containers)) = (key.as_str(), value) {
                    found.extend(containers.iter().map(|container| (file, container.clone())));
                }
                collect(file, value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(file, value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
