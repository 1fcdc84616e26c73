//! The manual: what does not belong to one module.
//!
//! - [`architecture`]: threads, the two flows, what is shared
//! - [`commands`]: joining clusters, and seeing how they are
//! - [`device`]: a WireGuard interface for `wg` and `wg-quick`; what `strait show` tells
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
    const FEATURES: usize = 25;

    const PROTOCOL: &str = include_str!("manual/protocol.md");

    #[test]
    fn whatever_is_done_as_the_kernel_does_it_is_shown_by_what_there_is() {
        let (_, table) = PROTOCOL.split_once("| shown by |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let rows: Vec<Vec<&str>> =
            rows.map(|row| row.split('|').map(str::trim).collect()).collect();

        assert_eq!(rows.len(), FEATURES);
        for row in rows {
            let [_, feature, native, _, shown_by, _] = row[..] else { panic!("{row:?}") };
            let names: Vec<&str> =
                shown_by.split('`').filter(|name| name.contains(".rs::")).collect();
            assert_eq!(names.is_empty(), native == "not yet", "{feature}");
            for name in names {
                assert_there(name, shown_by.starts_with("by reading"));
            }
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
