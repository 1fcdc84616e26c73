//! The verbs about clusters as a user types them: two real API servers, kubeconfigs, the binary.
//!
//! Needs what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

mod steps;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use strait_control_lab::peering::World;
use tempfile::TempDir;

use crate::harness::{STRAIT, require};
use steps::{joins_and_takes_apart, joins_step_by_step};

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
        (create("fd00::1/64"), &["fd00::1/64", "fd00::/64"]),
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
