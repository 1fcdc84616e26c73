//! Whether the API server serves the API. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use strait_api::crd;

use super::Finding;

/// The plurals that are served, by `GROUP/VERSION`.
pub(super) type Served = BTreeMap<String, BTreeSet<String>>;

/// The remedy: install it.
const REMEDY: &str = "apply the definitions: `strait crds | kubectl apply --server-side -f -`";

/// Each version of a group that is needed, with the plurals of its kinds. Computed once, as that generates the schemas
/// of all kinds.
pub(super) static NEEDED: LazyLock<Served> = LazyLock::new(|| {
    let mut needed = Served::new();
    for definition in crd::all() {
        let spec = definition.spec;
        // Liqo's definitions serve no other.
        for version in spec.versions.into_iter().filter(|version| version.storage) {
            let plurals = needed.entry(format!("{}/{}", spec.group, version.name)).or_default();
            plurals.insert(spec.names.plural.clone());
        }
    }

    needed
});

/// Whether all groups are served, in the version that is needed.
pub(super) fn is_served(served: &Served) -> bool {
    NEEDED.keys().all(|version| served.contains_key(version))
}

/// The parts that are not served.
pub(super) fn findings(served: &Served) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (version, plurals) in NEEDED.iter() {
        let (group, _) = version.split_once('/').unwrap_or((version, ""));
        let Some(found) = served.get(version) else {
            let prefix = format!("{group}/");
            let others: Vec<_> =
                served.keys().filter_map(|version| version.strip_prefix(&prefix)).collect();
            let message = if others.is_empty() {
                format!("the API server does not know {version}")
            } else {
                format!("the API server knows {group} as {} and not {version}", others.join(", "))
            };
            let object = format!("APIGroup {group}");
            findings.push(Finding::error(object, "APIMissing", message, REMEDY.to_owned()));
            continue;
        };
        for plural in plurals.difference(found) {
            let object = format!("CustomResourceDefinition {plural}.{group}");
            let message = format!("{version} has no {plural}");
            findings.push(Finding::error(object, "APIMissing", message, REMEDY.to_owned()));
        }
    }

    findings
}
