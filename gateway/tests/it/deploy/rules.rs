//! The alerts: they ask for what is served, say what to do, and fire when they should.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use strait_lab::process::find;

use crate::deploy::root;
use crate::deploy::served::served;
use crate::harness::require::Need::Tool;
use crate::harness::require::check;

/// Input and expected output of each alert.
const CASES: &str = include_str!("alerts.yaml");

const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];

#[test]
fn alerts_ask_for_what_gateways_and_agents_serve() {
    let Some(served) = served() else {
        return;
    };

    for alert in alerts() {
        served.assert_has_all_of(text(&alert, "/expr"));
    }
    let cases: Value = serde_saphyr::from_str(CASES).unwrap();
    for case in cases["tests"].as_array().unwrap() {
        for series in case["input_series"].as_array().unwrap() {
            served_as(served, text(series, "/series"));
        }
    }
}

/// A series of a test stands for a sample, whose peers have other names.
fn served_as(served: &crate::deploy::served::Served, series: &str) {
    let variable = ["peer", "cluster_id", "version"]
        .iter()
        .fold(series.to_owned(), |series, label| with_variable(&series, label));

    served.assert_has_all_of(&variable);
}

fn with_variable(series: &str, label: &str) -> String {
    let start = format!("{label}=\"");
    match series.split_once(&start) {
        Some((before, rest)) => {
            let (_, after) = rest.split_once('"').unwrap();
            format!("{before}{start}$any\"{after}")
        }
        None => series.to_owned(),
    }
}

#[test]
fn alerts_have_a_severity_and_a_remedy() {
    let alerts = alerts();
    let names: BTreeSet<_> = alerts.iter().map(|alert| text(alert, "/alert")).collect();
    assert_eq!(names.len(), alerts.len(), "two alerts of one name");

    for alert in &alerts {
        let name = text(alert, "/alert");
        assert!(name.starts_with("Strait"), "{name}");
        assert!(SEVERITIES.contains(&text(alert, "/labels/severity")), "{name}");
        assert!(!text(alert, "/for").is_empty(), "{name}");
        for part in ["summary", "description"] {
            assert!(text(alert, &format!("/annotations/{part}")).ends_with('.'), "{name}: {part}");
        }
        let runbook = text(alert, "/annotations/runbook");
        assert!(runbook.lines().any(|line| line.starts_with("  ")), "{name}: no command");
    }
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    if !check(&[Tool("promtool")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec();
    write_rules(folder.path(), &spec);
    promtool(folder.path(), &["check", "rules", "rules.yaml"]);

    for rule in rules(&mut spec) {
        let summary = rule["annotations"]["summary"].clone();
        rule["annotations"] = json!({ "summary": summary });
    }
    write_rules(folder.path(), &spec);
    fs::write(folder.path().join("alerts.yaml"), CASES).unwrap();
    promtool(folder.path(), &["test", "rules", "alerts.yaml"]);
}

#[test]
fn every_alert_is_seen_firing_and_quiet() {
    let cases: Value = serde_saphyr::from_str(CASES).unwrap();
    let cases = cases["tests"].as_array().unwrap();
    let checks = cases.iter().flat_map(|case| case["alert_rule_test"].as_array().unwrap());
    let seen: BTreeSet<_> = checks
        .map(|check| (text(check, "/alertname"), check.get("exp_alerts").is_some()))
        .collect();

    for alert in alerts() {
        let name = text(&alert, "/alert");
        for fires in [true, false] {
            assert!(seen.contains(&(name, fires)), "{name}: nothing in which it fires: {fires}");
        }
    }
}

/// Runs `promtool` in `folder`, which must be content.
pub(crate) fn promtool(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(find("promtool").unwrap());

    let output = command.args(arguments).current_dir(folder).output().unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}{error}");
}

/// JSON is YAML.
pub(crate) fn write_rules(folder: &Path, rules: &Value) {
    fs::write(folder.join("rules.yaml"), rules.to_string()).unwrap();
}

fn spec() -> Value {
    let path = root().join("deploy/alerts/strait.yaml");
    let object: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(object["kind"], "PrometheusRule");

    object["spec"].clone()
}

fn alerts() -> Vec<Value> {
    let mut spec = spec();

    rules(&mut spec).map(|rule| rule.clone()).collect()
}

fn rules(spec: &mut Value) -> impl Iterator<Item = &mut Value> {
    let groups = spec["groups"].as_array_mut().unwrap().iter_mut();

    groups.flat_map(|group| group["rules"].as_array_mut().unwrap())
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer}: {value}"))
}
