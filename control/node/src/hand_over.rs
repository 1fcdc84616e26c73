//! Which pods of gateways became active a moment ago.
//!
//! A replica that gives up its Lease forwards for two seconds more, as its successor may have no session yet: the
//! client of a server behind a Service follows when kube-proxy has, up to a second later. So routes stay with the former
//! pod for a second ([`Hop::Former`](crate::plan::Hop)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use strait_kube::active::is_active;
use tokio::time::Instant;

/// How long routes stay with the former pod: kube-proxy collects changes for a second.
const HAND_OVER: Duration = Duration::from_secs(1);

/// Since when each active pod is active; `None`: since before the first round.
#[derive(Debug, Default)]
pub(super) struct ActiveSince(Option<BTreeMap<String, Option<Instant>>>);

impl ActiveSince {
    /// The UIDs of those of all `pods` that became active less than a second before `now`.
    pub(super) fn recent(&mut self, pods: &[Arc<Pod>], now: Instant) -> BTreeSet<String> {
        let before = self.0.take();
        let since = |uid: &str| {
            let before = before.as_ref()?;

            before.get(uid).copied().unwrap_or(Some(now))
        };
        let active = pods.iter().filter(|pod| is_active(pod)).filter_map(|pod| pod.uid());
        let known: BTreeMap<_, _> = active.map(|uid| (uid.clone(), since(&uid))).collect();

        let is_recent = |since: &Instant| now.saturating_duration_since(*since) < HAND_OVER;
        let recent = known.iter().filter(|(_, since)| since.as_ref().is_some_and(is_recent));
        let recent = recent.map(|(uid, _)| uid.clone()).collect();
        self.0 = Some(known);

        recent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use strait_api::labels::{ACTIVE, TRUE};

    use super::*;

    fn pod(uid: &str, is_active: bool) -> Arc<Pod> {
        let labels = if is_active { json!({ACTIVE: TRUE}) } else { json!({}) };
        let metadata = json!({"name": uid, "uid": uid, "labels": labels});

        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn a_pod_is_recent_for_a_second() {
        let mut since = ActiveSince::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let pods = |second: bool| [pod("first", !second), pod("second", second)];

        assert!(since.recent(&pods(false), at(0)).is_empty(), "from the first round on");
        let second = BTreeSet::from(["second".to_owned()]);
        assert_eq!(since.recent(&pods(true), at(100)), second);
        assert_eq!(since.recent(&pods(true), at(1099)), second);
        assert!(since.recent(&pods(true), at(1100)).is_empty());
        let first = BTreeSet::from(["first".to_owned()]);
        assert_eq!(since.recent(&pods(false), at(5000)), first, "active again");
        assert!(since.recent(&[], at(5001)).is_empty());
    }
}
