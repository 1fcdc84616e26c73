//! The list of finalizers that an object should have, merged into it as a whole in the version that was read. Pure.
//!
//! Merged, not applied: after server-side apply a finalizer is owned together with its former writers and cannot be
//! removed alone.

use kube::{Resource, ResourceExt as _};

/// The finalizers of `object`, and `finalizer`; `None` if it has that already.
pub fn with<'a, K: Resource>(object: &'a K, finalizer: &'a str) -> Option<Vec<&'a str>> {
    let found = object.finalizers();

    (!has(found, finalizer)).then(|| found.iter().map(String::as_str).chain([finalizer]).collect())
}

/// The finalizers of `object` without `finalizer`; `None` if it does not have that.
pub fn without<'a, K: Resource>(object: &'a K, finalizer: &str) -> Option<Vec<&'a str>> {
    let found = object.finalizers();

    has(found, finalizer)
        .then(|| found.iter().map(String::as_str).filter(|other| *other != finalizer).collect())
}

fn has(found: &[String], finalizer: &str) -> bool {
    found.iter().any(|other| other == finalizer)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    #[test]
    fn finalizers_of_others_are_kept() {
        let held_by = |finalizers: &[&str]| {
            let finalizers = finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect();
            let metadata = ObjectMeta { finalizers: Some(finalizers), ..ObjectMeta::default() };
            ConfigMap { metadata, ..ConfigMap::default() }
        };
        let [both, other] = [held_by(&["a/own", "b/other"]), held_by(&["b/other"])];

        assert_eq!(with(&other, "a/own"), Some(vec!["b/other", "a/own"]));
        assert_eq!(with(&both, "a/own"), None);
        assert_eq!(without(&both, "a/own"), Some(vec!["b/other"]));
        assert_eq!(without(&other, "a/own"), None);
        assert_eq!(with(&ConfigMap::default(), "a/own"), Some(vec!["a/own"]));
    }
}
