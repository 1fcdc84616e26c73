//! The verbs about clusters as a user types them: two real API servers, kubeconfigs, the binary.
//!
//! Needs what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use strait_control_lab::peering::transcript::{CONNECTED, INIT, connected_formerly};
use strait_control_lab::peering::{Work, World};
use tempfile::TempDir;

use crate::harness::STRAIT;
use crate::harness::require;

/// Not there on any machine.
const NO_FILE: &str = "/nonexistent/kubeconfig";

/// Two clusters and the kubeconfigs of both.
struct Desk {
    world: World,
    folder: TempDir,
}

impl Desk {
    async fn new() -> Option<Self> {
        let world = World::start().await?;
        let folder = tempfile::tempdir().unwrap();
        for (name, cluster) in [("rome", &world.local), ("milan", &world.remote)] {
            let kubeconfig = serde_json::to_string(&cluster.server.kubeconfig_of_admin()).unwrap();
            // JSON is YAML.
            fs::write(folder.path().join(name), kubeconfig).unwrap();
        }

        Some(Self { world, folder })
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// `strait network VERB` with both kubeconfigs.
    async fn network(&self, words: &[&str], input: &str) -> Output {
        let (rome, milan) = (self.file("rome"), self.file("milan"));
        let clusters = ["--kubeconfig", &rome, "--remote-kubeconfig", &milan];

        self.strait(&[&["network"], words, &clusters].concat(), input).await
    }

    /// With the kubeconfig of Rome.
    async fn in_rome(&self, words: &[&str]) -> Output {
        let rome = self.file("rome");

        self.strait(&[words, &["--kubeconfig", &rome]].concat(), "").await
    }

    async fn in_milan(&self, words: &[&str]) -> Output {
        let milan = self.file("milan");

        self.strait(&[words, &["--kubeconfig", &milan]].concat(), "").await
    }

    /// Runs the binary while the stand-ins work.
    async fn strait(&self, words: &[&str], input: &str) -> Output {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let (home, input) = (self.folder.path().to_owned(), input.to_owned());

        tokio::task::spawn_blocking(move || strait(&home, &words, &input)).await.unwrap()
    }

    fn kubectl(&self, cluster: &str, words: &[&str], input: &str) -> Output {
        let kubectl = self.world.local.server.assets().join("kubectl");
        let mut command = Command::new(kubectl);
        command.args(["--kubeconfig", &self.file(cluster)]).args(words);

        run(command, input)
    }
}

#[tokio::test]
async fn commands_print_what_the_documentation_shows() {
    let Some(desk) = Desk::new().await else { return };

    finds_nothing_wrong(&desk).await;
    plans(&desk).await;
    joins_and_takes_apart(&desk).await;
    joins_step_by_step(&desk).await;
    finds_what_is_wrong(&desk).await;
}

/// `strait check` of two clusters where all is well: an operator works, and has its rights.
async fn finds_nothing_wrong(desk: &Desk) {
    let labels = json!({
        "app.kubernetes.io/component": "operator", "app.kubernetes.io/part-of": "strait",
    });
    let container = json!({
        "name": "operator", "image": "none",
        "env": [{"name": "STRAIT_LEADER_ELECTION", "value": "false"}],
    });
    let pod = json!({"serviceAccountName": "strait-operator", "containers": [container]});
    let operator = json!({
        "metadata": {"labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
        "status": {"replicas": 1, "readyReplicas": 1},
    });
    let clusters = [&desk.world.local, &desk.world.remote];
    for cluster in clusters {
        cluster.put::<Deployment>("liqo", "strait-operator", operator.clone()).await;
        cluster.server.kubeconfig_of_operator().await;
    }
    let check = ["check", "--remote-kubeconfig", &desk.file("milan")];
    let is_well = async {
        // Rights count from a moment after they were given.
        while desk.in_rome(&check).await.status.code() != Some(0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_well).await.expect("nothing is wrong");
    let output = desk.in_rome(&check).await;
    assert!(stdout(&output).ends_with("\n0 errors, 2 warnings\n"), "{}", stdout(&output));
    let alone = desk.in_rome(&["check", "-o", "json"]).await;
    let found: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!((alone.status.code(), found["findings"].as_array().unwrap().len()), (Some(0), 1));
    // The API server of the tests does not know what Rome says of itself.
    assert_eq!(found["findings"][0]["reason"], "ServiceCIDRUnknown");

    for cluster in clusters {
        let deployments = cluster.api::<Deployment>("liqo");
        deployments.delete("strait-operator", &DeleteParams::default()).await.unwrap();
    }
}

/// `strait plan`, before anything is done: signs, formats and exit codes.
async fn plans(desk: &Desk) {
    let before = desk.world.content().await;
    let connect = ["plan", "connect", "--remote-kubeconfig", &desk.file("milan")];
    let output = desk.in_rome(&connect).await;
    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), String::new()), "{text}");
    for line in [
        "(local) cluster rome\n",
        "+ Configuration liqo-tenant-milan/milan\n",
        "+   spec.remote.cidr.pod[0]         10.244.0.0/16\n",
        "+   status.remote.cidr.pod[0]       10.71.0.0/16\n",
        "+ GatewayClient liqo-tenant-milan/milan\n",
        "(remote) cluster milan\n",
        "+ GatewayServer liqo-tenant-rome/rome\n",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let json = desk.in_rome(&[&connect[..], &["-o", "json"]].concat()).await;
    let plan: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(plan["clusters"][1]["side"], "remote");
    assert_eq!(plan["clusters"][1]["clusterID"], "milan");
    assert_eq!(plan["clusters"][0]["changes"][0]["action"], "create");

    let configuration = desk.in_milan(&["generate", "configuration"]).await;
    let words = ["plan", "apply", "--kubeconfig", &desk.file("rome"), "-n", "liqo", "-f", "-"];
    let output = desk.strait(&words, &stdout(&configuration)).await;
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stdout(&output).contains("+ Configuration liqo/milan\n"), "{}", stdout(&output));
    let same = ["plan", "network", "pod-cidr", "--cidr", "10.244.0.0/16"];
    let output = desk.in_rome(&same).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("cluster rome\n  note: no operator of Strait is in "), "{text}");
    assert!(text.ends_with("\n\nNo changes.\n"), "{text}");
    let immutable = "{apiVersion: ipam.liqo.io/v1alpha1, kind: Network, \
        metadata: {name: pod-cidr, namespace: liqo}, spec: {cidr: 10.9.0.0/16}}";
    let output = desk.strait(&words, immutable).await;
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("! Network liqo/pod-cidr: FieldImmutable: "),
        "{}",
        stdout(&output)
    );
    for (words, input, needles) in [
        (&words[..], "", &["stdin", "no object"][..]),
        (&words[..], "{kind: Network, metadata: {name: a}}", &["stdin", "no apiVersion"]),
        (&["plan", "apply", "-f", NO_FILE], "", &[NO_FILE]),
        (
            &[
                "plan",
                "network",
                "pod-cidr",
                "--cidr",
                "10.0.0.0/8",
                "--pools",
                "10.0.0.0/8,10.1.0.0/16",
            ],
            "",
            &["--pools", "10.1.0.0/16"],
        ),
    ] {
        assert_refused(&desk.strait(words, input).await, 64, needles);
    }
    assert_eq!(desk.world.content().await, before);
}

/// `strait check`: lines, formats and exit codes.
async fn finds_what_is_wrong(desk: &Desk) {
    let check = ["check", "--remote-kubeconfig", &desk.file("milan")];
    let output = desk.in_rome(&check).await;
    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), String::new()), "{text}");
    for line in [
        "error    (local) Namespace liqo: OperatorMissing: ",
        "error    (remote) Namespace liqo: OperatorMissing: ",
        "error    (local) GatewayClient default/client: NoCounterpart: ",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let json = desk.in_rome(&["check", "--json"]).await;
    let found: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(found["findings"][0]["severity"], "error");
    assert!(found["findings"][0].get("side").is_none());
}

async fn joins_and_takes_apart(desk: &Desk) {
    let connect = ["connect", "--gw-server-service-type", "NodePort", "--wait"];
    let written = |lines: &[&str]| -> String {
        lines.iter().map(|line| format!(" INFO   {line}\n")).collect()
    };
    let connected = written(&CONNECTED);

    let first = desk.network(&["init", "--wait"], "").await;
    assert_eq!(
        (first.status.code(), stdout(&first), stderr(&first)),
        (Some(0), written(&INIT), String::new())
    );
    for (words, lines) in [
        (&connect[..], &connected),
        // What is not named stays as it is.
        (&["connect", "--wait", "--gw-server-service-nodeport", ""], &connected),
        (
            &["connect", "--server-service-type", "NodePort", "--server-port=51840", "--wait"],
            &written(&connected_formerly()),
        ),
    ] {
        let output = desk.network(words, "").await;
        assert_eq!(
            (output.status.code(), &stdout(&output), stderr(&output)),
            (Some(0), lines, String::new())
        );
    }
    let status = desk.in_rome(&["status"]).await;
    assert_eq!(
        (status.status.code(), stdout(&status)),
        (
            Some(0),
            "Cluster rome\n  Namespace       liqo\n  Network\n    \
             Pod CIDRs       10.244.0.0/16\n    External CIDR   10.70.0.0/16\n\n\
             PEER    ROLE     STATUS    LATENCY   SERVER             REASON\n\
             milan   Server   Healthy   12ms      172.18.0.3:30742\n"
                .to_owned()
        )
    );
    let before = desk.world.content().await;
    let other = desk.network(&["connect", "--gw-server-service-type", "ClusterIP"], "n\n").await;
    let error = stderr(&other);
    assert_eq!(other.status.code(), Some(1), "{error}");
    assert!(
        error
            .starts_with("(remote) Gateway server rome would be replaced, as its Service has type")
            && error.contains("[y/N]strait: action aborted: nothing was changed"),
        "{error}"
    );
    assert_eq!(desk.world.content().await, before);

    foretells_the_end(desk).await;
    let before = desk.world.content().await;
    for answer in ["", "n\n", "\n", "yesterday\n"] {
        let output = desk.network(&["disconnect"], answer).await;
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("disconnect is a potentially destructive command.\n"), "{error}");
        assert!(error.contains("[y/N]") && error.contains("action aborted"), "{error}");
    }
    assert_eq!(desk.world.content().await, before);

    let output = desk.network(&["disconnect", "--wait"], "yes\n").await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = stdout(&output);
    for line in [
        " INFO   (local) Cluster identity correctly retrieved\n",
        " INFO   (remote) Cluster identity correctly retrieved\n",
        " INFO   (local) Gateway client correctly deleted\n",
        " INFO   (remote) Gateway server correctly deleted\n",
    ] {
        assert!(lines.contains(line), "{lines}");
    }
    for confirmed in ["--yes", "--skip-confirm"] {
        let output = desk.network(&["reset", confirmed], "").await;
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    }
    desk.world.let_work(Work::Prefixes).await;
    let late = desk.network(&[&connect[..], &["--timeout", "1s"]].concat(), "").await;
    let error = stderr(&late);
    assert_eq!((late.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(
        error.starts_with("strait: (remote) Failed waiting for gateway pod gw-rome to be ready: "),
        "{error}"
    );
    let output = desk.in_milan(&["status"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("Unhealthy"), "{}", stdout(&output));
    desk.world.let_work(Work::All).await;
    let output = desk.network(&["reset", "-y", "--wait"], "").await;
    assert_eq!(output.status.code(), Some(0));
    let output = desk.in_rome(&["plan", "reset", "--remote-kubeconfig", &desk.file("milan")]).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "No changes.\n"));
}

/// `strait plan disconnect` and `reset` of clusters that are joined.
async fn foretells_the_end(desk: &Desk) {
    let before = desk.world.content().await;
    let remote = desk.file("milan");
    for (verb, has_configuration) in [("disconnect", false), ("reset", true)] {
        let words = ["plan", verb, "--remote-kubeconfig", &remote];
        let output = desk.in_rome(&words).await;
        let text = stdout(&output);
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), String::new()), "{text}");
        for line in [
            "(local) cluster rome\n",
            "- Deployment liqo-tenant-milan/gw-milan\n",
            "- GatewayClient liqo-tenant-milan/milan\n-   spec.clientTemplateRef.apiVersion  ",
            "- PublicKey liqo-tenant-milan/milan\n",
            "(remote) cluster milan\n",
            "- GatewayServer liqo-tenant-rome/rome\n",
            "- Secret liqo-tenant-rome/gw-rome\n- Service liqo-tenant-rome/gw-rome\n",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
        let deleted = text.contains("- Configuration liqo-tenant-milan/milan\n");
        assert_eq!(deleted, has_configuration, "{text}");
        let json = desk.in_rome(&[&words[..], &["-o", "json", "--yes"]].concat()).await;
        let plan: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!((json.status.code(), &plan["clusters"][1]["side"]), (Some(2), &"remote".into()));
        let changes = plan["clusters"][0]["changes"].as_array().unwrap();
        assert!(changes.iter().all(|change| change["action"] == "delete"), "{plan}");
    }
    let pools =
        ["plan", "reset", "--remote-kubeconfig", &remote, "--pools", "10.0.0.0/8,10.1.0.0/16"];
    assert_refused(&desk.in_rome(&pools).await, 64, &["--pools", "10.1.0.0/16"]);
    assert_refused(&desk.in_rome(&["plan", "reset"]).await, 64, &["--remote-kubeconfig"]);
    assert_eq!(desk.world.content().await, before);
}

/// The steps of the documentation for administrators who have one cluster each.
async fn joins_step_by_step(desk: &Desk) {
    let configuration = desk.in_rome(&["generate", "configuration"]).await;
    let applied = desk.kubectl("milan", &["apply", "-f", "-"], &stdout(&configuration));
    assert_eq!(stdout(&applied), "configuration.networking.liqo.io/rome created\n");
    let configuration = desk.in_milan(&["generate", "configuration", "-o", "json"]).await;
    let applied = desk.kubectl("rome", &["apply", "-f", "-"], &stdout(&configuration));
    assert_eq!(stdout(&applied), "configuration.networking.liqo.io/milan created\n");

    let server = ["create", "gatewayserver", "server", "--remote-cluster-id", "rome"];
    let output =
        desk.in_milan(&[&server[..], &["--service-type", "NodePort", "--wait"]].concat()).await;
    assert_eq!(
        stdout(&output),
        " INFO   GatewayServer created\n INFO   GatewayServer is ready\n",
        "{}",
        stderr(&output)
    );
    let get = |path: &'static str| async move {
        stdout(&desk.in_milan(&["info", "peer", "rome", "--get", path]).await)
    };
    let address = get("network.gateway.address.0").await;
    let port = get("network.gateway.port").await;
    let client = [
        "create",
        "gatewayclient",
        "client",
        "--remote-cluster-id",
        "milan",
        "--addresses",
        address.trim(),
        "--port",
        port.trim(),
    ];
    for done in ["created", "unchanged"] {
        let output = desk.in_rome(&client).await;
        assert_eq!(
            stdout(&output),
            format!(" INFO   GatewayClient {done}\n"),
            "{}",
            stderr(&output)
        );
    }
    let other = [&client[..], &["--mtu", "1300"]].concat();
    assert_refused(
        &desk.in_rome(&other).await,
        1,
        &["\"client\"", "spec.mtu 1340 → 1300", "--yes"],
    );

    let key = ["generate", "publickey", "--gateway-type", "server", "--gateway-name", "server"];
    let key = desk.in_milan(&key).await;
    let applied = desk.kubectl("rome", &["apply", "-f", "-"], &stdout(&key));
    assert_eq!(
        stdout(&applied),
        "publickey.networking.liqo.io/milan created\n",
        "{}",
        stderr(&key)
    );
    let key = ["create", "publickey", "rome", "--remote-cluster-id", "rome", "--public-key"];
    let text = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    let marks = ["--global-labels", "team=network,a.example/b=", "--global-annotations", "c=d e"];
    let output = desk.in_milan(&[&key[..], &[text], &marks].concat()).await;
    assert_eq!(stdout(&output), " INFO   PublicKey created\n", "{}", stderr(&output));
    let made = desk.kubectl("milan", &["get", "publickey", "rome", "-o", "json"], "");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["metadata"]["labels"]["team"], "network");
    assert_eq!(made["metadata"]["labels"]["a.example/b"], "");
    assert_eq!(made["metadata"]["annotations"]["c"], "d e");

    let peers = desk.in_rome(&["info", "peer", "-o", "json"]).await;
    let peers: Value = serde_json::from_slice(&peers.stdout).unwrap();
    assert_eq!(peers["milan"]["network"]["gateway"]["address"][0], "172.18.0.3");
    let info = desk.in_rome(&["info"]).await;
    assert!(stdout(&info).contains("    Pod CIDRs       10.244.0.0/16\n"), "{}", stdout(&info));
    assert!(!stdout(&info).contains("Service CIDR"), "{}", stdout(&info));
    let info = desk.in_rome(&["info", "-v"]).await;
    assert!(stdout(&info).contains("    Service CIDR    10.96.0.0/16\n"), "{}", stdout(&info));
    let id = desk.in_rome(&["info", "--get", "clusterid"]).await;
    assert_eq!(stdout(&id), "rome\n");
    let nothing = desk.in_rome(&["info", "--get", "network.moon"]).await;
    assert_refused(&nothing, 64, &["network.moon", "-o yaml"]);
    for (kind, name, said) in [
        ("publickey", "rome", "PublicKey"),
        ("gatewayserver", "server", "GatewayServer"),
        ("configuration", "rome", "Configuration"),
    ] {
        let asked = desk.in_milan(&["delete", kind, name]).await;
        let error = stderr(&asked);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""), "{error}");
        assert!(error.starts_with("delete is a potentially destructive command.\n"), "{error}");
        let output = desk.in_milan(&["delete", kind, name, "--wait", "--yes"]).await;
        assert_eq!(stdout(&output), format!(" INFO   {said} deleted\n"), "{}", stderr(&output));
    }
    assert_refused(
        &desk.in_milan(&["delete", "publickey", "rome", "--yes"]).await,
        1,
        &["PublicKey \"rome\""],
    );
}

/// The script that Liqo's documentation ends with, word for word but for the name of the program.
const SCRIPT: &str = include_str!("documents/declarative.sh");

#[tokio::test]
async fn the_script_of_the_documentation_joins_two_clusters() {
    if !require::check(&[require::Need::Tool("jq")]) {
        return;
    }
    let Some(desk) = Desk::new().await else { return };
    let script = SCRIPT
        .replace("PATH_TO_CLUSTER_1_KUBECONFIG", &desk.file("milan"))
        .replace("PATH_TO_CLUSTER_2_KUBECONFIG", &desk.file("rome"));

    let mut paths = vec![desk.world.local.server.assets().to_owned()];
    paths.extend(Path::new(STRAIT).parent().map(Path::to_owned));
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let path = std::env::join_paths(paths).unwrap();
    let folder = desk.folder.path().to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("bash");
        command
            .args(["-c", &script])
            .current_dir(folder)
            .env("PATH", path)
            .env_remove("KUBECONFIG");
        run(command, "")
    });
    let output = output.await.unwrap();

    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{text}");
    assert_eq!(text.matches(" condition met\n").count(), 6, "{text}");
    for line in [" INFO   GatewayServer created\n", " INFO   GatewayClient created\n"] {
        assert!(text.contains(line), "{text}");
    }
    let is_joined = async {
        while desk.in_rome(&["status"]).await.status.code() != Some(0)
            || desk.in_milan(&["status"]).await.status.code() != Some(0)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_joined).await.expect("both are connected");
}

#[test]
fn usage_errors_exit_64_before_any_question() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config").display().to_string();
    // No server listens there: a command that asked one would exit with 1.
    fs::write(
        &file,
        "{apiVersion: v1, kind: Config, current-context: test, \
         clusters: [{name: test, cluster: {server: 'http://127.0.0.1:1'}}], \
         users: [{name: test, user: {}}], \
         contexts: [{name: test, context: {cluster: test, user: test}}]}",
    )
    .unwrap();
    let connect = ["network", "connect", "--kubeconfig", &file];
    let both = [&connect[..], &["--remote-kubeconfig", &file]].concat();
    let configuration = ["create", "configuration", "cl01", "--remote-cluster-id", "cl01"];
    let create = |cidr: &'static str| {
        let cidrs = ["--kubeconfig", &file, "--external-cidr", "10.70.0.0/16", "--pod-cidr", cidr];
        [&configuration[..], &cidrs].concat()
    };
    let client = |addresses: &'static str| {
        let mut words = vec!["create", "gatewayclient", "client", "--remote-cluster-id", "cl01"];
        words.extend(["--kubeconfig", &file, "--port", "30742", "--addresses", addresses]);
        words
    };

    for (words, needles) in [
        (connect.to_vec(), &["--remote-kubeconfig or --remote-context"][..]),
        (
            [&connect[..], &["--remote-kubeconfig", NO_FILE]].concat(),
            &["--remote-kubeconfig", NO_FILE],
        ),
        (
            [&both[..], &["--remote-context", "milan"]].concat(),
            &["--remote-context: there is no context \"milan\" in", "config"],
        ),
        ([&both[..], &["--gw-server-service-nodeport", "70000"]].concat(), &["70000"]),
        ([&both[..], &["--gw-server-service-port", "0"]].concat(), &["'0'", "service-port"]),
        ([&both[..], &["--gw-server-service-type", "Ferry"]].concat(), &["Ferry", "NodePort"]),
        ([&both[..], &["--gw-server-type", "servers"]].concat(), &["GROUP/VERSION/PLURAL"]),
        ([&both[..], &["--mtu", "100"]].concat(), &["100", "--mtu"]),
        ([&both[..], &["--timeout", "soon"]].concat(), &["soon", "90s"]),
        ([&both[..], &["--global-labels", "team"]].concat(), &["team", "KEY=VALUE"]),
        ([&both[..], &["--global-labels", "team=a b"]].concat(), &["\"a b\"", "label"]),
        (
            [&both[..], &["--gw-server-service-loadbalancerip", "1.2.3"]].concat(),
            &["1.2.3", "an IP address"],
        ),
        ([&both[..], &["--gw-client-address", "a b"]].concat(), &["'a b'", "--gw-client-address"]),
        (
            [&both[..], &["--node-port", "1", "--gw-server-service-nodeport", "2"]].concat(),
            &["--node-port", "strait network connect --help"],
        ),
        (client(""), &["''", "--addresses"]),
        (client("not an address"), &["'not an address'", "strait create gatewayclient --help"]),
        (create("10.243.0.0/8"), &["10.243.0.0/8", "--pod-cidr"]),
        (create("fd00::/64"), &["fd00::/64", "IPv4 alone"]),
        (configuration.to_vec(), &["--pod-cidr"]),
        (vec!["check", "--remote-namespace", "a"], &["--remote-namespace", "--remote-context"]),
        (vec!["check", "--config", "a.toml", "--kubeconfig", &file], &["--kubeconfig", "--config"]),
        (vec!["completion", "tcsh"], &["tcsh", "bash", "zsh", "fish"]),
    ] {
        let output = strait(folder.path(), &words, "");

        assert_refused(&output, 64, needles);
    }
    let asked = strait(folder.path(), &both, "");
    assert_refused(&asked, 1, &["(local) An error occurred while reading the cluster id"]);
}

#[test]
fn shells_complete_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = strait(folder.path(), &["completion", shell], "");

        let script = stdout(&output);
        assert_eq!(output.status.code(), Some(0));
        for word in ["network", "disconnect", "gatewayserver", "remote-kubeconfig", "explain"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        if shell == "bash" {
            let mut command = Command::new("bash");
            command.arg("-n");
            let checked = run(command, &script);
            assert!(checked.status.success(), "{}", stderr(&checked));
        }
    }
}

fn strait<T: AsRef<str>>(home: &Path, words: &[T], input: &str) -> Output {
    let mut command = Command::new(STRAIT);
    command.args(words.iter().map(AsRef::as_ref)).env("HOME", home).env_remove("KUBECONFIG");

    run(command, input)
}

fn run(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who does not read it has ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());

    child.wait_with_output().unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, status: i32, needles: &[&str]) {
    let text = stderr(output);

    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!((stdout(output).as_str(), text.lines().count()), ("", 1), "{text}");
    for needle in needles {
        assert!(text.contains(needle), "{needle}: {text}");
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
