//! The dashboard: it asks for what is served, and Grafana can show it.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::deploy::expression::Names;
use crate::deploy::root;
use crate::deploy::rules::{promtool, write_rules};
use crate::deploy::served::served;
use crate::harness::require::Need::Tool;
use crate::harness::require::check;

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

#[test]
fn panels_and_variables_use_metrics_that_exist() {
    let Some(served) = served() else {
        return;
    };

    for expression in expressions(&dashboard()) {
        served.assert_has_all_of(&expression);
    }
    for query in queries(&dashboard()) {
        let arguments = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (metric, label) = arguments.rsplit_once(", ").unwrap();
        served.assert_has_all_of(&format!("count by ({label}) ({metric})"));
    }
}

/// What is Liqo's and has another name with us need not be there twice.
#[test]
fn each_metric_of_ours_is_on_a_panel() {
    let Some(served) = served() else {
        return;
    };
    let shown: BTreeSet<_> = expressions(&dashboard())
        .iter()
        .flat_map(|expression| Names::of(expression).selectors)
        .map(|selector| selector.metric)
        .collect();

    let hidden: Vec<_> = served
        .metrics()
        .filter(|name| name.starts_with("strait_") && !shown.contains(*name))
        .collect();

    assert!(hidden.is_empty(), "{hidden:?}");
}

#[test]
fn expressions_of_panels_are_expressions() {
    if !check(&[Tool("promtool")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rules: Vec<_> = expressions(&dashboard())
        .into_iter()
        .enumerate()
        .map(|(index, expression)| {
            json!({
                "record": format!("panel:{index}"),
                "expr": expression.replace("$__rate_interval", "5m"),
            })
        })
        .collect();
    assert!(rules.len() > 30, "{} expressions", rules.len());

    write_rules(folder.path(), &json!({"groups": [{"name": "dashboard", "rules": rules}]}));

    promtool(folder.path(), &["check", "rules", "rules.yaml"]);
}

#[test]
fn every_variable_is_defined_and_used() {
    let dashboard = dashboard();
    let used = |text: &str| -> BTreeSet<String> {
        let name = |rest: &str| rest.chars().take_while(|next| next.is_alphabetic()).collect();
        text.split('$').skip(1).map(name).filter(|name: &String| !name.is_empty()).collect()
    };

    let mut defined = BTreeSet::from(["datasource".to_owned()]);
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(variables[0]["type"], "datasource");
    for variable in &variables[1..] {
        let query = variable["query"]["query"].as_str().unwrap();
        assert!(used(query).is_subset(&defined), "{query}: {defined:?}");
        // Where a label is missing, as `cluster` mostly is, all is all.
        assert_eq!(variable["allValue"], ".*", "{variable}");
        defined.insert(variable["name"].as_str().unwrap().to_owned());
    }
    let in_panels: BTreeSet<_> =
        expressions(&dashboard).iter().flat_map(|expression| used(expression)).collect();

    defined.remove("datasource");
    assert_eq!(in_panels, defined);
}

#[test]
fn panels_have_a_place_source_and_description() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();

    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is that of another");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= COLUMNS, "{title}: too wide");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title}: lies on another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().unwrap().ends_with('.'), "{title}: no description");
        let sources = panel["targets"].as_array().unwrap().iter().chain([panel]);
        for source in sources {
            assert_eq!(source["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

fn dashboard() -> Value {
    let path = root().join("deploy/grafana/strait.json");

    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();

    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

fn queries(dashboard: &Value) -> Vec<String> {
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();

    variables.filter_map(|variable| Some(variable["query"]["query"].as_str()?.to_owned())).collect()
}
