//! Base and chart on a real API server: all of it is taken and kept, the operator needs no more rights
//! than it is given, and Pod Security says of the pods what the documents say.

use std::fs::{self, File};
use std::process::{Child, Command};

use serde_json::{Value, json};
use strait_control_lab::ApiServer;

use crate::deploy::root;
use crate::deploy::tools::{Objects, Tools, chart, objects};
use crate::harness::STRAIT;

/// Of a peering.
const TENANT: &str = "liqo-tenant-milan";

/// As documents ask for it.
const CLUSTER_ID: &str = "configmap/liqo-clusterid-configmap";

/// Not the usual one.
const CHART_NAMESPACE: &str = "network";

/// What a gateway takes of Pod Security, in its own words.
const BASELINE: &str = "violates PodSecurity \"baseline:latest\": non-default capabilities (containers \
                        \"strait\", \"standby\" must not include \"NET_ADMIN\" in securityContext.capabilities.add), \
                        hostPath volumes (volume \"tun\")";
const RESTRICTED: &str = "Warning: would violate PodSecurity \"restricted:latest\": unrestricted \
                          capabilities (containers \"strait\", \"standby\" must not include \
                          \"NET_ADMIN\" in securityContext.capabilities.add), restricted volume types (volume \"tun\" \
                          uses restricted volume type \"hostPath\")\n";

#[tokio::test]
async fn the_base_is_taken_whole_and_is_enough() {
    let Some(tools) = Tools::find() else { return };
    let Some(server) = ApiServer::start().await else { return };
    tools.speak_to(&server);
    let base = root().join("deploy/standalone").display().to_string();
    let rendered = tools.kubectl_says(&["kustomize", &base], "");
    let apply = ["apply", "--server-side", "--validate=strict", "--kustomize", &base];

    install_definitions(&tools);
    tools.kubectl_says(&["create", "namespace", "liqo"], "");
    tools.kubectl_says(&[&apply[..], &["--dry-run=server", "--force-conflicts"]].concat(), "");
    let none = tools.kubectl_says(&["get", "deployments", "--all-namespaces"], "");
    assert_eq!(none, "", "a dry run leaves nothing");
    tools.kubectl_says(&apply, "");

    assert_kept(&tools, &rendered);
    let pods = root().join("deploy/kind/iperf3.yaml").display().to_string();
    tools.kubectl_says(&["apply", "--server-side", "--validate=strict", "--filename", &pods], "");
    let _operator = Operator::start(&tools, &server, "liqo");
    let named = ["wait", "--for=create", CLUSTER_ID, "--namespace=liqo", "--timeout=60s"];
    tools.kubectl_says(&named, "");
    assert_eq!(cluster_id(&tools, "liqo"), system_uid(&tools));
    makes_a_gateway(&tools, "liqo");
    pod_security_says_what_the_documents_say(&tools);
    policy_of_a_gateway_is_taken(&tools);
}

#[tokio::test]
async fn the_chart_is_installed_upgraded_and_removed() {
    let Some(tools) = Tools::find() else { return };
    let Some(server) = ApiServer::start().await else { return };
    tools.speak_to(&server);
    let chart = chart().display().to_string();
    let helm =
        |words: &[&str]| tools.helm_says(&[words, &["--namespace", CHART_NAMESPACE]].concat());

    let said = helm(&["install", "strait", &chart, "--create-namespace", "--set=clusterID=rome"]);
    for note in [
        "rollout status daemonset/strait-node".to_owned(),
        format!("--liqo-namespace {CHART_NAMESPACE} --remote-liqo-namespace {CHART_NAMESPACE}"),
    ] {
        assert!(said.contains(&note), "{note}: {said}");
    }
    let manifest = ["get", "manifest", "strait", "--namespace", CHART_NAMESPACE];
    assert_kept(&tools, &tools.helm_says(&manifest));
    let operator = Operator::start(&tools, &server, CHART_NAMESPACE);
    makes_a_gateway(&tools, CHART_NAMESPACE);

    helm(&["upgrade", "strait", &chart, "--dry-run=server", "--reset-then-reuse-values"]);
    tools.speak_to(&server);
    install_chart_definitions(&tools, &chart);
    let reserved = "--set=networks.reserved={192.168.0.0/24}";
    let values = ["--reset-then-reuse-values", "--set=operator.replicas=1", reserved];
    helm(&[&["upgrade", "strait", &chart][..], &values].concat());
    assert_kept(&tools, &tools.helm_says(&manifest));
    let deployment = get(&tools, CHART_NAMESPACE, "deployment/strait-operator");
    assert_eq!(deployment["spec"]["replicas"], 1);
    get(&tools, CHART_NAMESPACE, "networks.ipam.liqo.io/reserved-192-168-0-0-24");
    let other = ["upgrade", "strait", &chart, "--namespace", CHART_NAMESPACE];
    let other = tools.helm(&[&other[..], &["--reuse-values", "--set=clusterID=paris"]].concat());
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(error.contains("clusterID cannot be changed from rome to paris"), "{error}");
    assert!(error.contains("GatewayServer liqo-tenant-milan/milan"), "{error}");
    assert_eq!(cluster_id(&tools, CHART_NAMESPACE), "rome");

    drop(operator);
    let installed = tools.helm_says(&manifest);
    helm(&["uninstall", "strait", "--wait", "--timeout=60s"]);
    let left =
        tools.kubectl(&["get", "--ignore-not-found", "--output=name", "--filename=-"], &installed);
    assert!(left.status.success(), "{}", String::from_utf8_lossy(&left.stderr));
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    // What users have made is theirs, and needs its definitions.
    get(&tools, TENANT, "gatewayservers.networking.liqo.io/milan");
}

#[tokio::test]
async fn restricted_admits_a_gateway_with_an_overlay() {
    let Some(tools) = Tools::find() else { return };
    let Some(server) = ApiServer::start().await else { return };
    tools.speak_to(&server);
    let chart = chart().display().to_string();
    let install = ["install", "strait", &chart, "--namespace", CHART_NAMESPACE];
    let overlay = ["--create-namespace", "--set=gateways.edge=overlay"];
    tools.helm_says(&[&install[..], &overlay].concat());
    let _operator = Operator::start(&tools, &server, CHART_NAMESPACE);
    makes_a_gateway(&tools, CHART_NAMESPACE);
    let profile = "pod-security.kubernetes.io/enforce=restricted";
    tools.kubectl_says(&["create", "namespace", "restricted"], "");
    tools.kubectl_says(&["label", "namespace", "restricted", profile], "");

    let of_chart = pod_of(&tools, TENANT, "deployment/gw-milan");
    let of_liqo = ["server-whole", "client-whole"].map(pod_of_liqo);
    for pod in of_liqo.into_iter().chain([of_chart]) {
        let output = tools.kubectl(&["create", "--namespace=restricted", "--filename=-"], &pod);

        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
}

/// The pod of a template for Liqo, with a name and without an account.
fn pod_of_liqo(file: &str) -> String {
    let text = fs::read_to_string(root().join(format!("deploy/liqo/{file}.yaml"))).unwrap();
    let template: Value = serde_saphyr::from_str(&text).unwrap();
    let mut spec =
        template.pointer("/spec/template/spec/deployment/spec/template/spec").unwrap().clone();
    for account in ["serviceAccount", "serviceAccountName"] {
        spec.as_object_mut().unwrap().remove(account);
    }
    spec["volumes"][0]["secret"]["secretName"] = json!("keys");

    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": spec,
    })
    .to_string()
}

#[tokio::test]
async fn the_chart_generates_an_id_once() {
    let Some(tools) = Tools::find() else { return };
    let Some(server) = ApiServer::start().await else { return };
    tools.speak_to(&server);
    let chart = chart().display().to_string();
    let helm = |words: &[&str]| {
        tools.helm_says(&[words, &["strait", &chart, "--namespace", CHART_NAMESPACE]].concat());
        cluster_id(&tools, CHART_NAMESPACE)
    };

    assert_eq!(helm(&["install", "--create-namespace"]), system_uid(&tools));
    assert_eq!(helm(&["upgrade"]), system_uid(&tools));
    // No peer knows the cluster yet.
    assert_eq!(helm(&["upgrade", "--set=clusterID=rome"]), "rome");
    assert_eq!(helm(&["upgrade"]), "rome");
}

#[tokio::test]
async fn the_chart_does_not_come_beside_liqo() {
    let Some(tools) = Tools::find() else { return };
    let Some(server) = ApiServer::start().await else { return };
    tools.speak_to(&server);
    let chart = chart().display().to_string();
    let manager = ["create", "deployment", "liqo-controller-manager", "--image=liqo"];
    tools.kubectl_says(&["create", "namespace", "liqo"], "");
    tools.kubectl_says(&[&manager[..], &["--namespace=liqo"]].concat(), "");

    for namespace in ["liqo", "strait"] {
        let namespace = format!("--namespace={namespace}");
        let install = ["install", "strait", &chart, &namespace, "--create-namespace"];
        let output = tools.helm(&install);

        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(error.contains("Liqo runs in namespace liqo"), "{error}");
    }
}

/// As README and manual say.
fn install_definitions(tools: &Tools) {
    let folder = root().join("deploy/crds").display().to_string();
    tools.kubectl_says(&["apply", "--server-side", "--kustomize", &folder], "");
    wait_for_definitions(tools, &tools.kubectl_says(&["kustomize", &folder], ""));
}

/// As the notes of the chart say.
fn install_chart_definitions(tools: &Tools, chart: &str) {
    let crds = tools.helm_says(&["show", "crds", chart]);
    let apply = ["apply", "--server-side", "--force-conflicts", "--filename=-"];
    tools.kubectl_says(&apply, &crds);
    wait_for_definitions(tools, &crds);
}

fn wait_for_definitions(tools: &Tools, definitions: &str) {
    let wait = ["wait", "--for=condition=established", "--timeout=60s", "--filename=-"];

    tools.kubectl_says(&wait, definitions);
}

/// All that was applied is there as it was written: the server would remove an unknown field.
fn assert_kept(tools: &Tools, applied: &str) {
    let mut applied = objects(applied);
    // What a definition has of its own is for the tests of control.
    applied.retain(|[kind, ..], _| kind != "CustomResourceDefinition");
    assert!(applied.len() > 10, "{:?}", applied.keys());
    let list = json!({
        "apiVersion": "v1", "kind": "List", "items": applied.values().collect::<Vec<_>>(),
    });

    let found = tools.kubectl_says(&["get", "--filename=-", "--output=json"], &list.to_string());
    let found: Value = serde_json::from_str(&found).unwrap();
    let found: Objects = found["items"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|object| objects(&object.to_string()))
        .collect();

    for (id, wanted) in &applied {
        if let Err(place) = is_within(wanted, &found[id]) {
            panic!("{id:?}: {place} is not there in {:#}", found[id]);
        }
    }
}

/// Whether `found` has all of `wanted`, and perhaps defaults; else where not.
fn is_within(wanted: &Value, found: &Value) -> Result<(), String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, wanted) in wanted {
                let found = found.get(key).unwrap_or(&Value::Null);
                // An empty list or map may be left out.
                let is_empty = found.is_null() && (wanted == &json!({}) || wanted == &json!([]));
                if !is_empty {
                    is_within(wanted, found).map_err(|place| format!("/{key}{place}"))?;
                }
            }
            Ok(())
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                is_within(wanted, found).map_err(|place| format!("/{index}{place}"))?;
            }
            Ok(())
        }
        (wanted, found) if wanted == found => Ok(()),
        _ => Err(String::new()),
    }
}

/// `strait operator` with the arguments and the account of its Deployment; gone with the test.
struct Operator(Child);

impl Operator {
    fn start(tools: &Tools, server: &ApiServer, namespace: &str) -> Self {
        let folder = tools.kubeconfig().with_file_name("operator");
        fs::create_dir_all(&folder).unwrap();
        let token = ["create", "token", "strait-operator", "--namespace", namespace];
        fs::write(folder.join("token"), tools.kubectl_says(&token, "").trim()).unwrap();
        let kubeconfig = server.kubeconfig_of(&folder.join("token"));
        fs::write(folder.join("kubeconfig"), serde_json::to_vec(&kubeconfig).unwrap()).unwrap();
        let deployment = get(tools, namespace, "deployment/strait-operator");
        let args = deployment.pointer("/spec/template/spec/containers/0/args").unwrap();
        let args = args.as_array().unwrap().iter().map(|arg| {
            let arg = arg.as_str().unwrap();
            let arg = arg.replace("$(POD_NAMESPACE)", namespace).replace("$(POD_NAME)", "one");
            // Other tests have ports as well.
            arg.replace("=:8082", "=0").replace("=:8083", "=0")
        });

        let child = Command::new(STRAIT)
            .args(args)
            .env("KUBECONFIG", folder.join("kubeconfig"))
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();

        Self(child)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From the template that `strait network` looks for, in a namespace that says what Pod Security thinks.
fn makes_a_gateway(tools: &Tools, namespace: &str) {
    let server = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": TENANT, "labels": {
                "pod-security.kubernetes.io/enforce": "privileged",
                "pod-security.kubernetes.io/warn": "restricted",
            }},
        },
        {
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayServer",
            "metadata": {
                "name": "milan", "namespace": TENANT,
                "labels": {"liqo.io/remote-cluster-id": "milan"},
            },
            "spec": {
                "mtu": 1340, "endpoint": {"port": 51840, "serviceType": "NodePort"},
                "serverTemplateRef": {
                    "apiVersion": "networking.liqo.io/v1beta1", "kind": "WgGatewayServerTemplate",
                    "name": "wireguard-server", "namespace": namespace,
                },
            },
        },
    ]});
    let apply = ["apply", "--server-side", "--validate=strict", "--filename=-"];
    tools.kubectl_says(&apply, &server.to_string());

    let created = ["wait", "--for=create", "deployment/gw-milan", "--timeout=60s"];
    let log = tools.kubeconfig().with_file_name("operator").join("log");
    let output = tools.kubectl(&[&created[..], &["--namespace", TENANT]].concat(), "");
    assert!(output.status.success(), "{}", fs::read_to_string(log).unwrap());
}

fn pod_security_says_what_the_documents_say(tools: &Tools) {
    for profile in ["restricted", "baseline"] {
        tools.kubectl_says(&["create", "namespace", profile], "");
        let enforce = format!("pod-security.kubernetes.io/enforce={profile}");
        tools.kubectl_says(&["label", "namespace", profile, &enforce], "");
    }
    let [operator, gateway] =
        [("liqo", "deployment/strait-operator"), (TENANT, "deployment/gw-milan")]
            .map(|(namespace, name)| pod_of(tools, namespace, name));
    let create = |namespace: &str, pod: &str| {
        let output = tools.kubectl(&["create", "--namespace", namespace, "--filename=-"], pod);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    assert_eq!(create("restricted", &operator), (true, String::new()));
    assert_eq!(create(TENANT, &gateway), (true, RESTRICTED.to_owned()));
    let (is_taken, why) = create("baseline", &gateway);
    assert!(!is_taken && why.contains(BASELINE), "{why}");
}

/// A pod as a Deployment creates it.
fn pod_of(tools: &Tools, namespace: &str, deployment: &str) -> String {
    let template = &get(tools, namespace, deployment)["spec"]["template"];
    let metadata = json!({"generateName": "pod-", "labels": template["metadata"]["labels"]});

    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        .to_string()
}

fn policy_of_a_gateway_is_taken(tools: &Tools) {
    let policy = root().join("deploy/standalone/gateway-networkpolicy.yaml").display().to_string();

    let words = ["apply", "--server-side", "--validate=strict", "--namespace", TENANT];
    tools.kubectl_says(&[&words[..], &["--filename", &policy]].concat(), "");

    let policy = get(tools, TENANT, "networkpolicy/strait-gateway");
    let selected = policy.pointer("/spec/podSelector/matchLabels").unwrap();
    let pod = get(tools, TENANT, "deployment/gw-milan");
    is_within(selected, pod.pointer("/spec/template/metadata/labels").unwrap()).unwrap();
}

/// What the installation says that this cluster is called.
fn cluster_id(tools: &Tools, namespace: &str) -> String {
    let map = get(tools, namespace, CLUSTER_ID);

    map["data"]["CLUSTER_ID"].as_str().unwrap().to_owned()
}

/// The id of a cluster without a name of its own.
fn system_uid(tools: &Tools) -> String {
    let namespace = get(tools, "", "namespace/kube-system");

    namespace["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn get(tools: &Tools, namespace: &str, name: &str) -> Value {
    let words = ["get", name, "--namespace", namespace, "--output=json"];

    serde_json::from_str(&tools.kubectl_says(&words, "")).unwrap()
}
