//! The chart: what it renders is the kustomize base, in any namespace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::deploy::root;
use crate::deploy::tools::{Objects, Tools, chart, id, objects, yaml};

/// What Helm adds to the labels of its objects.
const LABELS_OF_HELM: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Files that the chart shares, but for definitions: its own name, and that below `deploy`.
const SHARED: [(&str, &str); 9] = [
    ("files/alerts.yaml", "alerts/strait.yaml"),
    ("files/client.yaml", "standalone/client.yaml"),
    ("files/dashboard.json", "grafana/strait.json"),
    ("files/node.yaml", "standalone/node.yaml"),
    ("files/rbac/gateway-clusterrole.yaml", "rbac/gateway-clusterrole.yaml"),
    ("files/rbac/node-clusterrole.yaml", "rbac/node-clusterrole.yaml"),
    ("files/rbac/operator-clusterrole.yaml", "rbac/operator-clusterrole.yaml"),
    ("files/rbac/operator-role.yaml", "rbac/operator-role.yaml"),
    ("files/server.yaml", "standalone/server.yaml"),
];

const OTHER_NAMESPACE: &str = "network";

#[test]
fn the_chart_has_the_files_of_deploy() {
    let deploy = root().join("deploy");
    let definitions = |folder: &Path| -> BTreeSet<String> {
        let names = fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "kustomization.yaml").collect()
    };
    let names = definitions(&deploy.join("crds"));
    assert_eq!(definitions(&chart().join("crds")), names, "run `make chart`");

    let shared = SHARED.map(|(copy, original)| (copy.to_owned(), original.to_owned()));
    let crds = names.iter().map(|name| [format!("crds/{name}"), format!("crds/{name}")].into());
    for (copy, original) in crds.chain(shared) {
        let [copy, original] = [chart().join(copy), deploy.join(original)];
        let is_same = fs::read(&copy).unwrap() == fs::read(&original).unwrap();
        assert!(is_same, "{} is not {}: run `make chart`", copy.display(), original.display());
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = yaml(&chart().join("Chart.yaml"));

    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_chart_renders_the_base() {
    let Some(tools) = Tools::find() else { return };
    let mut base = tools.kustomize("standalone");
    // Helm makes it, with --create-namespace, and has definitions as files.
    assert!(base.remove(&id("Namespace", "", "liqo")).is_some());
    let (definitions, base): (Objects, Objects) =
        base.into_iter().partition(|([kind, ..], _)| kind == "CustomResourceDefinition");

    assert_same(&without_labels_of_helm(tools.chart("liqo", &[])), &base);
    let shown = objects(&tools.helm_says(&["show", "crds", &chart().display().to_string()]));
    // What is in them is compared as files.
    assert!(shown.keys().eq(definitions.keys()), "{:?}", shown.keys());
}

#[test]
fn optional_objects_equal_those_of_other_folders() {
    let Some(tools) = Tools::find() else { return };
    let mut wanted = tools.kustomize("monitoring");
    let path = root().join("deploy/standalone/gateway-networkpolicy.yaml");
    let mut policy = yaml(&path);
    policy["metadata"]["namespace"] = json!("liqo-tenant-milan");
    wanted.insert(id("NetworkPolicy", "liqo-tenant-milan", "strait-gateway"), policy);

    let flags = [
        "--set=monitoring.podMonitors.enabled=true",
        "--set=monitoring.rules.enabled=true",
        "--set=monitoring.dashboard.enabled=true",
        "--set=networkPolicy.gatewayNamespaces={liqo-tenant-milan}",
    ];
    let mut rendered = without_labels_of_helm(tools.chart("liqo", &flags));

    rendered.retain(|id, _| wanted.contains_key(id));
    assert_same(&rendered, &wanted);
}

#[test]
fn the_chart_can_be_in_any_namespace() {
    let Some(tools) = Tools::find() else { return };

    let rendered = tools.chart(OTHER_NAMESPACE, &["--set=monitoring.podMonitors.enabled=true"]);

    assert_eq!(rendered.len(), tools.chart("liqo", &[]).len() + 3);
    for ([kind, namespace, name], object) in &rendered {
        let has_none = kind.starts_with("Cluster");
        assert_eq!(namespace, if has_none { "" } else { OTHER_NAMESPACE }, "{kind} {name}");
        let subjects = object["subjects"].as_array().into_iter().flatten();
        for subject in subjects {
            assert_eq!(subject["namespace"], OTHER_NAMESPACE, "{kind} {name}");
        }
    }
}

fn without_labels_of_helm(mut objects: Objects) -> Objects {
    for (id, object) in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let labels = metadata["labels"].as_object_mut().unwrap();
        for label in LABELS_OF_HELM {
            assert!(labels.remove(label).is_some(), "{id:?} lacks the label {label}");
        }
        if labels.is_empty() {
            metadata.remove("labels");
        }
    }

    objects
}

/// The order of objects means nothing, that of lists does.
fn assert_same(found: &Objects, wanted: &Objects) {
    let ids = |objects: &Objects| objects.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(ids(found), ids(wanted));

    for (id, wanted) in wanted {
        assert_eq!(&found[id], wanted, "{id:?}");
    }
}
