//! `deploy/kind/run`, as far as it can be run without a container engine: it says what is missing, and
//! with stand-ins for the tools it makes, joins, measures and deletes what it should.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use strait_lab::process::find;
use tempfile::TempDir;

use crate::deploy::root;
use crate::deploy::tools::{id, objects, yaml};

/// What the script itself is made of.
const OF_THE_SYSTEM: [&str; 9] =
    ["awk", "bash", "cat", "dirname", "grep", "mktemp", "realpath", "rm", "sleep"];

const TOOLS: [&str; 4] = ["docker", "kind", "kubectl", "strait"];

/// Stands in for all tools: writes down how it was called, and answers as they do.
const STAND_IN: &str = r#"#!/usr/bin/env bash
name=${0##*/}
echo "$name $*" >> "$CALLS"
cluster=rome
[[ "$*" == *"kubeconfig "*/milan* ]] && cluster=milan
case "$name $*" in
    "docker info"*) [ -z "${NO_DOCKER-}" ] ;;
    "docker image inspect"*) [ -z "${NO_IMAGE-}" ] ;;
    "docker exec "*" --check "*) exit 1 ;;
    "kind get clusters") printf '%s\n' ${CLUSTERS-} ;;
    "kind get nodes --name "*) echo "${*: -1}-control-plane"; echo "${*: -1}-worker" ;;
    *"get configurations.networking.liqo.io/milan"*) printf %s "${PREFIX-10.71.0.0/16}" ;;
    *"get configurations.networking.liqo.io/rome"*) printf %s 10.72.0.0/16 ;;
    *"get pod pod "*) [ "$cluster" = rome ] && printf %s 10.244.1.5 || printf %s 10.244.2.7 ;;
    *"get pod node "*) [ "$cluster" = rome ] && printf %s 172.18.0.2 || printf %s 172.18.0.4 ;;
    *" exec pod -- iperf3 "*"--client 10.7"*) mbits=2500 ;;
    *" exec node -- iperf3 "*"--client 172.18."*) mbits=10000 ;;
    *" -- iperf3 "*) echo "no server is there" >&2; exit 1 ;;
esac
status=$?
if [ -n "${mbits-}" ]; then
    echo "[  5]   0.00-10.00  sec  2.93 GBytes  2600 Mbits/sec    7             sender"
    echo "[  5]   0.00-10.04  sec  2.92 GBytes  $mbits Mbits/sec                  receiver"
fi
exit "$status"
"#;

/// A folder of programs that is the whole search path of the script.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn with(tools: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in OF_THE_SYSTEM {
            let program = find(name).unwrap_or_else(|| panic!("{name} is missing"));
            std::os::unix::fs::symlink(program, folder.path().join(name)).unwrap();
        }
        let machine = Self { folder };
        for tool in tools {
            let file = machine.folder.path().join(tool);
            fs::write(&file, STAND_IN).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }

        machine
    }

    /// Runs the script, which nothing of the user's environment reaches.
    fn run(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(root().join("deploy/kind/run"))
            .args(words)
            .env_clear()
            .env("PATH", self.folder.path())
            .env("CALLS", self.calls_file())
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }

    /// The same, with the stand-in that joins clusters.
    fn measure(&self, environment: &[(&str, &str)]) -> Output {
        let strait = self.folder.path().join("strait").display().to_string();

        self.run(&["--strait", &strait, "--seconds", "3"], environment)
    }

    fn calls_file(&self) -> PathBuf {
        self.folder.path().join("calls")
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.calls_file()).unwrap_or_default()
    }
}

#[test]
fn wrong_arguments_exit_64_and_touch_nothing() {
    let machine = Machine::with(&TOOLS);
    for (words, needle) in [
        (&["--seconds"][..], "--seconds ''"),
        (&["--seconds", "soon"], "--seconds 'soon'"),
        (&["--seconds", "0"], "--seconds '0'"),
        (&["--strait", "/nonexistent/strait"], "--strait '/nonexistent/strait'"),
        (&["--strait", "/"], "--strait '/'"),
        (&["--cleanup"], "'--cleanup'"),
        (&["rome"], "'rome'"),
    ] {
        let output = machine.run(words, &[]);

        assert_eq!(output.status.code(), Some(64), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(needle), "{words:?}: {}", stderr(&output));
    }
    let help = machine.run(&["--help"], &[]);
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).starts_with("usage: deploy/kind/run"));
    assert_eq!(machine.calls(), "");
}

#[test]
fn missing_requirements_are_named_before_any_change() {
    let none = Machine::with(&["strait"]).measure(&[]);
    assert_eq!(none.status.code(), Some(69));
    for needle in ["docker: install", "kind: go install", "kubectl: install"] {
        assert!(stderr(&none).contains(needle), "{needle}: {}", stderr(&none));
    }

    for (variable, needle) in [("NO_DOCKER", "docker info"), ("NO_IMAGE", "make image")] {
        let machine = Machine::with(&TOOLS);
        let output = machine.measure(&[(variable, "1")]);
        assert_eq!(output.status.code(), Some(69), "{variable}");
        assert!(stderr(&output).contains(needle), "{variable}: {}", stderr(&output));
        assert!(!machine.calls().contains("kind create"), "{}", machine.calls());
    }
}

#[test]
fn two_clusters_are_made_joined_and_measured() {
    let machine = Machine::with(&TOOLS);

    let output = machine.measure(&[]);

    assert!(output.status.success(), "{}\n{}", stderr(&output), machine.calls());
    let table = "\n\
        one TCP stream, Mb/s      pod to pod    node to node   share\n\
        rome to milan                   2500           10000    25 %\n\
        milan to rome                   2500           10000    25 %\n\n";
    assert_eq!(stdout(&output), table);
    let calls = machine.calls();
    let mut rest = calls.as_str();
    for step in [
        "kind create cluster --name strait-rome",
        "kind load docker-image strait:dev --name strait-rome",
        "kind create cluster --name strait-milan",
        "rollout status deployment/strait-operator",
        "rollout status daemonset/strait-node",
        "network connect --kubeconfig",
        // What kind's network would do to packets of pods.
        "docker exec strait-rome-worker iptables --table nat --insert KIND-MASQ-AGENT --destination 10.71.0.0/16",
        // The host of Milan's pod, by Rome's name; then the node by its own.
        "exec pod -- iperf3 --connect-timeout 2000 --client 10.71.2.7 --time 3",
        "exec node -- iperf3 --connect-timeout 2000 --client 172.18.0.4 --time 3",
        "exec pod -- iperf3 --connect-timeout 2000 --client 10.72.1.5 --time 3",
    ] {
        let place = rest.find(step).unwrap_or_else(|| panic!("{step:?} not in its turn:\n{calls}"));
        rest = &rest[place..];
    }
    // The user's own clusters are not asked.
    for call in calls.lines() {
        let is_ours = call.contains("--kubeconfig")
            || ["docker ", "kind load", "kind get", "kubectl kustomize"]
                .iter()
                .any(|start| call.starts_with(start));
        assert!(is_ours, "{call}");
    }
}

#[test]
fn existing_kind_clusters_are_reused_and_kept() {
    let machine = Machine::with(&TOOLS);

    let again = machine.measure(&[("CLUSTERS", "strait-milan other strait-rome")]);

    assert!(again.status.success(), "{}", stderr(&again));
    let calls = machine.calls();
    assert!(calls.contains("kind export kubeconfig --name strait-milan --kubeconfig"), "{calls}");
    assert!(!calls.contains("kind create") && !calls.contains("kind delete"), "{calls}");

    let machine = Machine::with(&TOOLS[..2]);
    assert!(machine.run(&["--clean-up"], &[]).status.success());
    let calls = machine.calls();
    let deleted: Vec<_> = calls.lines().filter(|call| call.starts_with("kind")).collect();
    assert_eq!(
        deleted,
        ["kind delete cluster --name strait-rome", "kind delete cluster --name strait-milan"]
    );
}

#[test]
fn pods_without_a_name_here_are_no_figure() {
    let machine = Machine::with(&TOOLS);

    let output = machine.measure(&[("PREFIX", "")]);

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("the remapped prefix '' is not a /16"), "{}", stderr(&output));
}

#[test]
fn kind_clusters_have_the_prefixes_of_the_base() {
    let cluster = yaml(&root().join("deploy/kind/cluster.yaml"));
    let networks = fs::read_to_string(root().join("deploy/standalone/networks.yaml")).unwrap();
    let networks = objects(&networks);

    for (key, name) in [("podSubnet", "pod-cidr"), ("serviceSubnet", "service-cidr")] {
        let network = &networks[&id("Network", "liqo", name)];
        assert_eq!(cluster["networking"][key], network["spec"]["cidr"], "{name}");
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
