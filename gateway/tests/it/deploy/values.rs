//! Values of the chart: each has its effect and its place in the table, and the error names a wrong one.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::deploy::root;
use crate::deploy::tools::{Tools, chart, id, yaml};

#[test]
fn every_chart_value_is_in_the_readme() {
    let readme = fs::read_to_string(root().join("deploy/README.md")).unwrap();
    let mut names = Vec::new();
    collect_names("", &yaml(&chart().join("values.yaml")), &mut names);
    assert!(names.len() > 30, "{names:?}");

    for name in names {
        assert!(readme.contains(&format!("`{name}`")), "{name} is not in deploy/README.md");
    }
}

/// The names of all values that are no groups of values.
fn collect_names(group: &str, value: &Value, names: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        // These are not names of ours: what is in them is an example.
        Some(_) if group.ends_with("labels") || group.ends_with("resources") => {
            names.push(group.to_owned());
        }
        Some(map) => {
            for (key, value) in map {
                let dot = if group.is_empty() { "" } else { "." };
                collect_names(&format!("{group}{dot}{key}"), value, names);
            }
        }
        None => names.push(group.to_owned()),
    }
}

#[test]
fn every_value_has_its_effect() {
    let Some(tools) = Tools::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    // JSON is YAML.
    fs::write(&file, values().to_string()).unwrap();

    let rendered = tools.chart("liqo", &["--values", &file.display().to_string()]);

    for (kind, name, pointer, wanted) in effects() {
        let object = rendered.iter().find(|([k, _, n], _)| k == kind && n == name);
        let (_, object) = object.unwrap_or_else(|| panic!("no {kind} {name}"));
        assert_eq!(object.pointer(&pointer), Some(&wanted), "{pointer} of {object:#}");
    }
    let mut names = Vec::new();
    collect_names("", &yaml(&chart().join("values.yaml")), &mut names);
    for name in names {
        let pointer = format!("/{}", name.replace('.', "/"));
        assert!(values().pointer(&pointer).is_some(), "nothing shows that {name} has an effect");
    }
}

/// All of them, and none as it is by default.
fn values() -> Value {
    let of_pods = json!({
        "extraArgs": ["--log-level=debug"], "podLabels": {"team": "network"},
        "podAnnotations": {"owner": "network"}, "priorityClassName": "high",
        "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAffinity": {}}, "resources": {"limits": {"memory": "1Gi"}},
    });
    let mut nodes = of_pods.clone();
    nodes["enabled"] = json!(true);
    let mut gateways = of_pods.clone();
    gateways["replicas"] = json!(3);
    gateways["edge"] = json!("overlay");
    gateways["standbyContainer"] = json!(false);
    let mut operator = of_pods;
    operator["replicas"] = json!(3);
    operator["podDisruptionBudget"] = json!({"enabled": true, "maxUnavailable": "50%"});

    json!({
        "image": {
            "repository": "registry.test/strait", "tag": "1.2.3", "digest": "",
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}],
        "clusterID": "2026",
        "networks": {
            "pod": ["10.0.0.0/9", "fd00:1::/48"], "service": "10.128.0.0/12", "external": "10.144.0.0/16",
            "internal": "10.145.0.0/16", "reserved": ["192.168.0.0/24", "fd00:2::/48"],
        },
        "pools": ["172.16.0.0/12", "192.168.0.0/16"],
        "operator": operator,
        "gateways": gateways,
        "nodes": nodes,
        "networkPolicy": {
            "enabled": true, "apiServerPorts": [16443],
            "metricsFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
            "gatewayNamespaces": ["liqo-tenant-milan"], "nodes": ["172.18.0.0/16"],
        },
        "monitoring": {
            "podMonitors": {"enabled": true, "labels": {"release": "main"}, "interval": "15s"},
            "rules": {"enabled": true, "labels": {"release": "main"}},
            "dashboard": {
                "enabled": true, "labels": {"board": "1"}, "annotations": {"folder": "Network"},
            },
        },
    })
}

#[test]
fn without_the_agent_nothing_of_it_is_there() {
    let Some(tools) = Tools::find() else { return };

    let monitored = "--set=monitoring.podMonitors.enabled=true";
    let rendered = tools.chart("liqo", &["--set=nodes.enabled=false", monitored]);

    let ours = |name: &str| name.starts_with("strait-node");
    let kinds: Vec<_> = rendered.keys().filter(|[.., name]| ours(name)).collect();
    assert_eq!(kinds, [&id("ClusterRole", "", "strait-node")]);
}

type Effect = (&'static str, &'static str, String, Value);

/// What must come of [`values`]: kind, name, pointer and what is there.
fn effects() -> Vec<Effect> {
    let operator = ("Deployment", "strait-operator", "/spec/template");
    let server = (
        "WgGatewayServerTemplate",
        "wireguard-server",
        "/spec/template/spec/deployment/spec/template",
    );
    let client = ("WgGatewayClientTemplate", "wireguard-client", server.2);
    let node = ("DaemonSet", "strait-node", "/spec/template");
    let mut effects: Vec<Effect> = Vec::new();
    let mut effect = |kind, name, pointer: &str, wanted: Value| {
        effects.push((kind, name, pointer.to_owned(), wanted));
    };

    // Behind their own flags, and the operator's pools.
    for ((kind, name, pod), flags) in [(operator, 6), (server, 20), (client, 21), (node, 4)] {
        let mut effect = |rest: &str, wanted| effect(kind, name, &format!("{pod}{rest}"), wanted);
        effect("/spec/containers/0/image", json!("registry.test/strait:1.2.3"));
        effect("/spec/containers/0/imagePullPolicy", json!("Always"));
        effect("/spec/containers/0/resources/limits", json!({"memory": "1Gi"}));
        effect("/spec/imagePullSecrets", json!([{"name": "registry"}]));
        effect("/spec/priorityClassName", json!("high"));
        effect("/spec/nodeSelector", json!({"disk": "ssd"}));
        effect("/spec/tolerations", json!([{"operator": "Exists"}]));
        effect("/spec/affinity", json!({"podAffinity": {}}));
        effect("/metadata/labels/team", json!("network"));
        effect("/metadata/labels/app.kubernetes.io~1part-of", json!("strait"));
        effect("/metadata/annotations", json!({"owner": "network"}));
        effect(&format!("/spec/containers/0/args/{flags}"), json!("--log-level=debug"));
    }
    for (kind, name, _) in [server, client] {
        effect(kind, name, "/spec/template/spec/deployment/spec/replicas", json!(3));
        let label = "/metadata/labels/strait.io~1edge";
        effect(kind, name, &format!("{}{label}", server.2), json!("overlay"));
    }
    let pools = "/spec/template/spec/containers/0/args/5";
    effect(operator.0, operator.1, pools, json!("--pools=172.16.0.0/12,192.168.0.0/16"));
    effect(operator.0, operator.1, "/spec/replicas", json!(3));
    effect("PodDisruptionBudget", operator.1, "/spec/maxUnavailable", json!("50%"));
    effect("ConfigMap", "liqo-clusterid-configmap", "/data/CLUSTER_ID", json!("2026"));
    let marker = "/metadata/labels/app.kubernetes.io~1name";
    effect("ConfigMap", "liqo-clusterid-configmap", marker, json!("clusterid-configmap"));

    for (name, cidr) in [
        ("pod-cidr", "10.0.0.0/9"),
        ("pod-cidr-2", "fd00:1::/48"),
        ("service-cidr", "10.128.0.0/12"),
        ("external-cidr", "10.144.0.0/16"),
        ("internal-cidr", "10.145.0.0/16"),
        ("reserved-192-168-0-0-24", "192.168.0.0/24"),
        ("reserved-fd00-2---48", "fd00:2::/48"),
    ] {
        effect("Network", name, "/spec/cidr", json!(cidr));
    }

    let port = json!([{"port": 16443, "protocol": "TCP"}]);
    let scraper = json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]);
    let nodes = json!("172.18.0.0/16");
    effect("NetworkPolicy", "strait-operator", "/spec/egress/0/ports", port.clone());
    effect("NetworkPolicy", "strait-operator", "/spec/ingress/0/from", scraper.clone());
    effect("NetworkPolicy", "strait-gateway", "/metadata/namespace", json!("liqo-tenant-milan"));
    effect("NetworkPolicy", "strait-gateway", "/spec/egress/1/ports/0", port[0].clone());
    effect("NetworkPolicy", "strait-gateway", "/spec/ingress/1/from", scraper);
    for way in ["ingress/2/from", "egress/2/to"] {
        let pointer = format!("/spec/{way}/1/ipBlock/cidr");
        effect("NetworkPolicy", "strait-gateway", &pointer, nodes.clone());
    }

    for name in ["strait-operator", "strait-gateways", "strait-nodes"] {
        let interval = "/spec/podMetricsEndpoints/0/interval";
        effect("PodMonitor", name, interval, json!("15s"));
        effect("PodMonitor", name, "/metadata/labels/release", json!("main"));
    }
    effect("PrometheusRule", "strait", "/metadata/labels/release", json!("main"));
    effect("ConfigMap", "strait-dashboard", "/metadata/labels/board", json!("1"));
    effect("ConfigMap", "strait-dashboard", "/metadata/labels/grafana_dashboard", json!("1"));
    effect("ConfigMap", "strait-dashboard", "/metadata/annotations/folder", json!("Network"));

    effects
}

#[test]
fn the_standby_container_equals_the_first_one() {
    let Some(tools) = Tools::find() else { return };
    let common = ["--set=gateways.replicas=2", "--set=gateways.resources.limits.memory=1Gi"];

    for (edge, standby, count) in
        [("device", "true", 2), ("overlay", "true", 2), ("device", "false", 1)]
    {
        let edge = format!("--set=gateways.edge={edge}");
        let standby = format!("--set=gateways.standbyContainer={standby}");
        let rendered = tools.chart("liqo", &[&common[..], &[&edge, &standby]].concat());
        for (kind, name) in [
            ("WgGatewayServerTemplate", "wireguard-server"),
            ("WgGatewayClientTemplate", "wireguard-client"),
        ] {
            let pod = "/spec/template/spec/deployment/spec/template/spec/containers";
            let containers = rendered[&id(kind, "liqo", name)].pointer(pod).unwrap();
            let mut containers = containers.as_array().unwrap().clone();
            assert_eq!(containers.len(), count, "{edge} {standby}");
            for container in &mut containers {
                let container = container.as_object_mut().unwrap();
                // A name of a port is one of the pod.
                container.remove("ports");
                container.remove("name");
                for probe in ["readinessProbe", "livenessProbe"] {
                    container[probe]["httpGet"]["port"] = json!("healthz or 8085");
                }
            }
            assert_eq!(containers.first(), containers.last(), "{edge} {name}");
        }
    }
}

#[test]
fn gateway_replicas_elect_the_active_one() {
    let Some(tools) = Tools::find() else { return };
    let template = |rendered: &BTreeMap<_, Value>, kind, name| {
        rendered[&id(kind, "liqo", name)].pointer("/spec/template/spec/deployment/spec").cloned()
    };

    let one = tools.chart("liqo", &[]);
    let two = tools.chart("liqo", &["--set=gateways.replicas=2"]);

    for (kind, name) in [
        ("WgGatewayServerTemplate", "wireguard-server"),
        ("WgGatewayClientTemplate", "wireguard-client"),
    ] {
        let alone = template(&one, kind, name).unwrap();
        let shared = template(&two, kind, name).unwrap();
        let label = "/template/metadata/labels/networking.liqo.io~1active";
        let args = "/template/spec/containers/0/args";
        assert_eq!((&alone["replicas"], &shared["replicas"]), (&json!(1), &json!(2)));
        let rolling = json!({"maxSurge": 1, "maxUnavailable": 0});
        for deployment in [&alone, &shared] {
            let strategy = &deployment["strategy"];
            assert_eq!(*strategy, json!({"type": "RollingUpdate", "rollingUpdate": rolling}));
            // A standby that had the label would receive what the active replica has to.
            assert_eq!(deployment.pointer(label), None);
            let args = deployment.pointer(args).and_then(Value::as_array).unwrap();
            assert!(args.contains(&json!("--leader-election=true")));
        }
        let spread = &shared["template"]["spec"]["topologySpreadConstraints"][0];
        assert_eq!(spread["labelSelector"], shared["selector"]);
    }
}

#[test]
fn gateways_of_a_peering_prefer_different_nodes() {
    let Some(tools) = Tools::find() else { return };
    let rendered = tools.chart("liqo", &["--set=gateways.replicas=2"]);

    for (kind, name) in [
        ("WgGatewayServerTemplate", "wireguard-server"),
        ("WgGatewayClientTemplate", "wireguard-client"),
    ] {
        let template = &rendered[&id(kind, "liqo", name)];
        let pod = template.pointer("/spec/template/spec/deployment/spec/template").unwrap();
        let avoided = pod
            .pointer(
                "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0",
            )
            .and_then(|preferred| preferred.pointer("/podAffinityTerm/labelSelector"))
            .unwrap();
        let own = &pod["metadata"]["labels"];
        for (label, value) in avoided["matchLabels"].as_object().unwrap() {
            assert_eq!(own[label], *value, "others of the same kind are avoided");
        }
        // Its own former pod and its replicas are not: these are spread by a constraint.
        let others = &avoided["matchExpressions"][0];
        assert_eq!(others["operator"], "NotIn");
        assert_eq!(others["values"], json!([own[others["key"].as_str().unwrap()]]));
    }
}

#[test]
fn an_overlay_edge_needs_no_privilege() {
    let Some(tools) = Tools::find() else { return };

    let rendered = tools.chart("liqo", &["--set=gateways.edge=overlay"]);

    for (kind, name) in [
        ("WgGatewayServerTemplate", "wireguard-server"),
        ("WgGatewayClientTemplate", "wireguard-client"),
    ] {
        let pod = "/spec/template/spec/deployment/spec/template/spec";
        let pod = rendered[&id(kind, "liqo", name)].pointer(pod).unwrap();
        let container = &pod["containers"][0];
        let text = pod.to_string();
        assert!(!text.contains("hostPath") && !text.contains("NET_ADMIN"), "{text}");
        assert!(!text.contains("\"tun\""), "{text}");
        assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["command"], json!(["/usr/local/bin/strait"]));
        let args = container["args"].as_array().unwrap();
        for flag in ["--edge=overlay", "--node-address=$(NODE_ADDRESS)"] {
            assert!(args.contains(&json!(flag)), "{flag}");
        }
        let address = container.pointer("/env/0/valueFrom/fieldRef/fieldPath");
        assert_eq!(address, Some(&json!("status.hostIP")));
    }
}

#[test]
fn a_digest_replaces_the_tag_policies_are_optional() {
    let Some(tools) = Tools::find() else { return };
    let digest = format!("sha256:{}", "0".repeat(64));

    let rendered = tools.chart(
        "liqo",
        &[
            &format!("--set=image.digest={digest}"),
            "--set=networkPolicy.enabled=false",
            "--set=operator.podDisruptionBudget.enabled=false",
        ],
    );

    let deployment = &rendered[&id("Deployment", "liqo", "strait-operator")];
    let image = deployment.pointer("/spec/template/spec/containers/0/image");
    assert_eq!(image, Some(&json!(format!("strait@{digest}"))));
    let without = |kind: &str| rendered.keys().all(|[other, ..]| other != kind);
    assert!(without("NetworkPolicy") && without("PodDisruptionBudget"));
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    let Some(tools) = Tools::find() else { return };
    let chart = chart().display().to_string();
    let linted = tools.helm_says(&["lint", "--strict", &chart]);
    assert!(linted.contains("0 chart(s) failed"), "{linted}");

    let long = format!("--set=clusterID={}", "r".repeat(52));
    for (flag, needles) in [
        ("--set=network.pod=10.0.0.0/8", ["'network'", "not allowed"]),
        ("--set=networks.pods=10.0.0.0/8", ["'pods'", "not allowed"]),
        ("--set=networks.pod=10.0.0.0", ["networks/pod", "10.0.0.0"]),
        ("--set=networks.pod=10.0.0.256/8", ["networks/pod", "10.0.0.256/8"]),
        ("--set=networks.service=10.0.0.0/33", ["networks/service", "10.0.0.0/33"]),
        ("--set=networks.external=fd00::/64", ["networks/external", "fd00::/64"]),
        ("--set=networks.internal=null", ["networks", "'internal'"]),
        (
            "--set=networks.pod=10.244.0.1/16",
            ["networks.pod: 10.244.0.1/16", "write 10.244.0.0/16"],
        ),
        ("--set=networks.pod={10.244.0.0/16,ten}", ["networks/pod/1", "ten"]),
        ("--set=networks.service=fd00:g::/48", ["networks/service", "fd00:g::/48"]),
        (
            "--set=networks.reserved={10.1.0.0/8}",
            ["networks.reserved: 10.1.0.0/8", "write 10.0.0.0/8"],
        ),
        ("--set=pools={10.0.0.0/8,ten}", ["pools/1", "ten"]),
        ("--set=pools={10.0.0.0/8,172.16.9.0/12}", ["pools: 172.16.9.0/12", "write 172.16.0.0/12"]),
        ("--set=clusterID=Rome", ["clusterID", "Rome"]),
        (&long, ["clusterID", "51"]),
        ("--set=image.tag=", ["image", "tag"]),
        ("--set=image.digest=sha256:0", ["image/digest", "sha256:0"]),
        ("--set=image.pullPolicy=Sometimes", ["image/pullPolicy", "IfNotPresent"]),
        ("--set=operator.replicas=0", ["operator/replicas", "0"]),
        ("--set=operator.extraArgs={loud}", ["operator/extraArgs/0", "loud"]),
        ("--set=operator.podDisruptionBudget.maxUnavailable=120%", ["maxUnavailable", "120%"]),
        ("--set=networkPolicy.apiServerPorts={70000}", ["apiServerPorts/0", "70,000"]),
        ("--set=gateways.replicas=0", ["gateways/replicas", "0"]),
        ("--set=gateways.edge=tun", ["gateways/edge", "overlay"]),
        ("--set=monitoring.podMonitors.interval=soon", ["podMonitors/interval", "soon"]),
    ] {
        let output = tools.helm(&["template", "strait", &chart, flag]);

        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{flag} is taken");
        for needle in needles {
            assert!(error.contains(needle), "{flag}: {needle:?} is not in {error}");
        }
    }
}
