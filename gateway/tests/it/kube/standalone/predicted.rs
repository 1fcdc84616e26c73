//! What `strait plan` says will go, against what goes where real operators work.

use std::collections::BTreeSet;

use serde_json::Value;
use strait_lab::wait_until;

use super::Two;
use super::site::Site;
use crate::kube::fed::PATIENCE;

/// Everything that a verb or an operator makes of a peering.
const KINDS: &str = "gatewayservers,gatewayclients,wggatewayservers,wggatewayclients,deployments,\
                     services,serviceaccounts,secrets,publickeies,connections,configurations,\
                     networks,clusterrolebindings,rolebindings";

/// Kind, namespace and name of objects in each of two clusters.
pub(super) type Objects = [BTreeSet<String>; 2];

impl Two {
    /// What there is.
    pub(super) fn objects(&self) -> Objects {
        let of = |site: &Site| {
            let line =
                "{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}";
            let said = site
                .shell(&format!("kubectl get {KINDS} --all-namespaces --output=jsonpath='{line}'"));
            said.lines().map(str::to_owned).collect()
        };

        [of(&self.rome), of(&self.milan)]
    }

    /// What `strait network VERB` will delete, as `strait plan VERB` says it.
    pub(super) fn predicted(&self, verb: &str) -> Objects {
        let plan = self.strait(&["plan", verb], &["--output=json"]);
        assert_eq!(plan.status.code(), Some(2), "{verb}");
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        let of = |place: usize| {
            let changes = plan["clusters"][place]["changes"].as_array().unwrap();
            let text =
                |change: &Value, key: &str| change[key].as_str().unwrap_or_default().to_owned();
            let name = |change: &Value| {
                assert_eq!(change["action"], "delete", "{change}");
                let [kind, namespace, name] =
                    ["kind", "namespace", "name"].map(|it| text(change, it));
                format!("{kind} {namespace}/{name}")
            };
            changes.iter().map(name).collect()
        };

        [of(0), of(1)]
    }

    /// Until that is gone of what was there `before`, and nothing else is.
    pub(super) fn wait_until_gone(&self, before: &Objects, predicted: &Objects) {
        let gone = || {
            let mut after = self.objects().into_iter();
            before.each_ref().map(|before| {
                let after = after.next().unwrap();
                before.difference(&after).cloned().collect::<BTreeSet<_>>()
            })
        };
        let is_so = || Ok(gone() == *predicted);
        wait_until("all that was predicted is gone", PATIENCE, is_so)
            .unwrap_or_else(|_| panic!("gone: {:#?}\nforetold: {predicted:#?}", gone()));
    }
}
