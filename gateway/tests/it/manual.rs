//! The manual names tests that exist.
//!
//! Two tables of the manual name tests: `protocol.md` those that show each feature of the kernel's WireGuard,
//! `figures.md` those that check each goal. A test that is renamed, moved or removed fails here.

use std::fs;
use std::path::Path;

/// Features of the kernel's WireGuard.
const FEATURES: usize = 37;

/// Goals that were set.
const GOALS: usize = 22;

const PROTOCOL: &str = include_str!("../../manual/src/protocol.md");
const FIGURES: &str = include_str!("../../manual/src/figures.md");

#[test]
fn each_feature_names_tests_that_exist() {
    let rows = rows(PROTOCOL);

    assert_eq!(rows.len(), FEATURES);
    for row in rows {
        let [_, feature, native, _, shown_by, _] = row[..] else { panic!("{row:?}") };
        let names = names(shown_by);
        assert_eq!(names.is_empty(), native == "not yet", "{feature}");
        for name in names {
            assert_exists(name, shown_by.starts_with("by reading"));
        }
    }
}

#[test]
fn each_goal_has_a_command_for_its_tests() {
    let rows = rows(FIGURES);

    assert_eq!(rows.len(), GOALS);
    for row in rows {
        let [_, quantity, _, command, shown_by, _] = row[..] else { panic!("{row:?}") };
        let names = names(shown_by);
        assert!(!names.is_empty(), "{quantity}");
        for name in names {
            assert_exists(name, false);
            assert_runs(command.trim_matches('`'), name);
        }
    }
}

/// Rows of the table with the column "shown by".
fn rows(page: &str) -> Vec<Vec<&str>> {
    let (_, table) = page.split_once("| shown by |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));

    rows.map(|row| row.split('|').map(str::trim).collect()).collect()
}

fn names(shown_by: &str) -> Vec<&str> {
    shown_by.split('`').filter(|name| name.contains(".rs::")).collect()
}

/// Asserts that `command` selects the package and the test binary of the test `name`, that no filter excludes it, and
/// that a command with `STRAIT_FIGURES` runs the release build.
fn assert_runs(command: &str, name: &str) {
    let (package, path) = match name.split_once('/').unwrap() {
        ("src" | "tests", _) => ("strait-gateway".to_owned(), name),
        (layer, path) => (format!("strait-{layer}"), path),
    };
    let target = match path.strip_prefix("tests/") {
        Some(path) => format!("--test {}", path.split(['/', '.']).next().unwrap()),
        None => "--lib".to_owned(),
    };
    let (before, after) = command
        .split_once(&format!(" -p {package} {target}"))
        .unwrap_or_else(|| panic!("{command:?} does not run {name}"));
    let filters = after.split(' ').filter(|word| !word.is_empty() && !word.starts_with("--"));
    let path = path
        .strip_prefix("tests/")
        .and_then(|path| path.split_once('/'))
        .map_or(path, |(_, path)| path);
    let path = path.replace(".rs::", "/").replace('/', "::");

    assert!(
        before == "cargo test" || before == "STRAIT_FIGURES=1 cargo test --release",
        "{command}"
    );
    for filter in filters {
        assert!(path.contains(filter), "the filter {filter} excludes {name}");
    }
}

/// Asserts that the file of `name`, below `gateway/`, has that function, and that it is a test unless it
/// `is_read`.
fn assert_exists(name: &str, is_read: bool) {
    let (file, function) = name.split_once("::").unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let Some((before, _)) = source.split_once(&format!("fn {function}(")) else {
        panic!("{file} has no function {function}");
    };

    let attributes = before.rsplit_once('}').map_or(before, |(_, attributes)| attributes);
    assert!(is_read || attributes.contains("#[test]"), "{name} is not a test");
}
