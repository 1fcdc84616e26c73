//! The manual: what does not belong to one module.
//!
//! - [`architecture`]: threads, the two flows, what is shared
//! - [`commands`]: joining clusters, and seeing how they are
//! - [`device`]: a WireGuard interface for `wg` and `wg-quick`; what `strait show` tells
//! - [`figures`]: how soon, how much and how many, and the command that shows each
//! - [`nodes`]: the way from pods to the gateway, what nodes and CNIs must allow, what reaches what
//! - [`operator`]: clusters without Liqo: installing, gateways, prefixes, replicas
//! - [`protocol`]: on the wire: with whom it was tried, floods, receiver indices, what senders are told, and what shows
//!   that each thing is done that the kernel does
//! - [`remapping`]: which address stands where, and what a remap does to each protocol
//! - [`troubleshooting`]: by symptom

#[doc = include_str!("manual/architecture.md")]
pub mod architecture {}

#[doc = include_str!("manual/commands.md")]
pub mod commands {}

#[doc = include_str!("manual/device.md")]
pub mod device {}

#[doc = include_str!("manual/figures.md")]
pub mod figures {}

#[doc = include_str!("manual/nodes.md")]
pub mod nodes {}

#[doc = include_str!("manual/operator.md")]
pub mod operator {}

#[doc = include_str!("manual/protocol.md")]
pub mod protocol {}

#[doc = include_str!("manual/remapping.md")]
pub mod remapping {}

#[doc = include_str!("manual/troubleshooting.md")]
pub mod troubleshooting {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// The features of the kernel's WireGuard.
    const FEATURES: usize = 32;

    /// The goals that were set.
    const GOALS: usize = 22;

    const PROTOCOL: &str = include_str!("manual/protocol.md");
    const FIGURES: &str = include_str!("manual/figures.md");

    #[test]
    fn whatever_is_done_as_the_kernel_does_it_is_shown_by_what_there_is() {
        let rows = shown_rows(PROTOCOL);

        assert_eq!(rows.len(), FEATURES);
        for row in rows {
            let [_, feature, native, _, shown_by, _] = row[..] else { panic!("{row:?}") };
            let names = names(shown_by);
            assert_eq!(names.is_empty(), native == "not yet", "{feature}");
            for name in names {
                assert_there(name, shown_by.starts_with("by reading"));
            }
        }
    }

    #[test]
    fn every_goal_has_a_command_that_runs_what_shows_it() {
        let rows = shown_rows(FIGURES);

        assert_eq!(rows.len(), GOALS);
        for row in rows {
            let [_, quantity, _, command, shown_by, _] = row[..] else { panic!("{row:?}") };
            let names = names(shown_by);
            assert!(!names.is_empty(), "{quantity}");
            for name in names {
                assert_there(name, false);
                assert_runs(command.trim_matches('`'), name);
            }
        }
    }

    /// Rows of the table whose last column says what shows them.
    fn shown_rows(page: &str) -> Vec<Vec<&str>> {
        let (_, table) = page.split_once("| shown by |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));

        rows.map(|row| row.split('|').map(str::trim).collect()).collect()
    }

    fn names(shown_by: &str) -> Vec<&str> {
        shown_by.split('`').filter(|name| name.contains(".rs::")).collect()
    }

    /// `command` chooses the binary in which the test `name` is, and nothing that leaves it out. Where figures
    /// are demanded, they are of a release.
    fn assert_runs(command: &str, name: &str) {
        let target = match name.strip_prefix("tests/") {
            Some(path) => format!("--test {}", path.split(['/', '.']).next().unwrap()),
            None => "--lib".to_owned(),
        };
        let (before, after) = command
            .split_once(&format!(" {target}"))
            .unwrap_or_else(|| panic!("{name} is not in what {command:?} runs"));
        let filters = after.split(' ').filter(|word| !word.is_empty() && !word.starts_with("--"));
        let path = name.replace(".rs::", "/").replace('/', "::");

        assert!(before.ends_with("cargo test -p strait-gateway") || before.contains(" --release "));
        assert_eq!(before.starts_with("STRAIT_FIGURES=1 "), before.contains(" --release "));
        for filter in filters {
            assert!(path.contains(filter), "{filter} leaves out {name}");
        }
    }

    /// `name` is a file below `gateway/` and a function in it.
    fn assert_there(name: &str, is_read: bool) {
        let (file, function) = name.split_once("::").unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let Some((before, _)) = source.split_once(&format!("fn {function}(")) else {
            panic!("there is no {function} in {file}");
        };

        let attributes = before.rsplit_once('}').map_or(before, |(_, attributes)| attributes);
        assert!(is_read || attributes.contains("#[test]"), "{name} is no test");
    }
}
