//! The binary as a script sees it: exit status, stdout, and one clear line a problem on stderr.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use strait_lab::wait_until;

use crate::harness::STRAIT;

/// RFC 7748 section 6.1, the keys of Alice and the public key of Bob.
const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
const PEER: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";

#[test]
fn a_generated_key_has_a_public_key() {
    let generated = strait(&["key", "generate"], "");
    let public = strait(&["key", "public"], &stdout(&generated));

    assert_eq!((generated.status.code(), public.status.code()), (Some(0), Some(0)));
    assert_eq!(stdout(&public).trim().len(), 44);
    assert_ne!(stdout(&public), stdout(&generated));
}

#[test]
fn pubkey_reads_stdin_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "key", PRIVATE, 0o600);

    let from_stdin = strait(&["key", "public"], PRIVATE);
    let from_file = strait(&["key", "public", &file], "");

    assert_eq!(stdout(&from_stdin).trim(), PUBLIC);
    assert_eq!(stdout(&from_file).trim(), PUBLIC);
}

#[test]
fn a_key_file_is_private_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let name = file.display().to_string();

    let first = strait(&["key", "generate", "--output", &name], "");
    let content = fs::read_to_string(&file).unwrap();
    let second = strait(&["key", "generate", "--output", &name], "");

    assert_eq!(first.status.code(), Some(0));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(stdout(&first), stdout(&strait(&["key", "public", &name], "")));
    assert_refused(&second, 64, &[&name, "never overwritten", "choose another --output"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), content);
}

#[test]
fn crds_are_one_stream_or_one_file_each() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("crds").display().to_string();

    let stream = strait(&["crds"], "");
    let files = strait(&["crds", "--output", &folder], "");

    assert_eq!((stream.status.code(), files.status.code()), (Some(0), Some(0)));
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    paths.sort();
    let texts: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    assert_eq!(stdout(&stream).matches("\nkind: CustomResourceDefinition\n").count(), paths.len());
    assert!(texts.iter().all(|text| stdout(&stream).contains(text)));
    assert!(paths[0].ends_with("core.liqo.io_foreignclusters.yaml"), "{paths:?}");
}

#[test]
fn a_gateway_needs_a_file_or_a_cluster() {
    assert_refused(&strait(&["gateway"], ""), 64, &["--config <FILE> is missing"]);
    assert_refused(&strait(&["gateway", "--kube"], ""), 64, &["--namespace is missing"]);
    assert_refused(&strait(&["gateway", "--kube", "--config", "f"], ""), 64, &["--config"]);
}

#[test]
fn an_invalid_device_name_exits_64_without_changes() {
    for (flags, name) in [
        (&["gateway", "--kube"][..], "sixteen-bytes-xx"),
        (&["gateway", "--kube"], "a/b"),
        (&["gateway", "--kube"], "a b"),
        (&["explain", "10.0.0.1", "10.0.0.2"], "../strait0"),
    ] {
        let interface = format!("--interface={name}");
        let output = strait(&[flags, &[&interface]].concat(), "");

        assert_refused(&output, 64, &[name, "--interface", "1 to 15 bytes"]);
    }
}

#[test]
fn cluster_gateways_log_json_by_default() {
    let words = ["gateway", "--kube", "--no-such-flag"];
    let first = |words: &[&str]| stderr(&strait(words, "")).lines().next().unwrap().to_owned();

    let by_itself = first(&words);
    let as_text = first(&[&words[..], &["--log-format=text"]].concat());

    let line: serde_json::Value = serde_json::from_str(&by_itself).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["message"], "--no-such-flag is unknown and ignored");
    assert!(as_text.ends_with(" WARN --no-such-flag is unknown and ignored"), "{as_text}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);

    let output =
        Command::new(STRAIT).arg("crds").stdout(writer).stderr(Stdio::piped()).output().unwrap();

    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_folder_that_cannot_be_made_exits_1() {
    let output = strait(&["crds", "--output", "/dev/null/crds"], "");

    assert_refused(&output, 1, &["/dev/null/crds"]);
}

#[test]
fn an_unwritable_key_file_exits_1() {
    let output = strait(&["key", "generate", "--output", "/nonexistent/key"], "");

    assert_refused(&output, 1, &["/nonexistent/key", "No such file"]);
}

#[test]
fn a_key_file_others_may_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "key", PRIVATE, 0o644);

    let output = strait(&["key", "public", &file], "");

    assert_refused(&output, 64, &["mode 0644", &format!("chmod 600 {file}")]);
}

#[test]
fn an_invalid_key_is_refused_and_not_printed() {
    let output = strait(&["key", "public"], "hunter2");

    assert_refused(&output, 64, &["7 bytes", "strait key generate"]);
    assert!(!stderr(&output).contains("hunter2"));
}

#[test]
fn check_prints_what_the_gateway_would_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);

    let output = strait(&["check", "--config", &file], "");

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for expected in ["strait0, MTU 1340", PUBLIC, "peer rome", "10.244.0.0/16 -> 10.71.0.0/16"] {
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
    assert!(!stdout(&output).contains(PRIVATE));
}

#[test]
fn check_prints_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);

    let output = strait(&["check", "--json", "--config", &file], "");

    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["mtu"], 1340);
    assert_eq!(report["peers"][0]["remap"][0]["local"], "10.71.0.0/16");
    for (words, begins) in
        [(["-o", "json"], stdout(&output)), (["-o", "yaml"], "name: milan\n".to_owned())]
    {
        let output = strait(&[&["check", "--config", &file], &words[..]].concat(), "");
        assert!(stdout(&output).starts_with(&begins), "{}", stdout(&output));
    }
}

#[test]
fn check_and_gateway_exit_64_for_invalid_configurations() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[("listen_port", "listen_prt")]);

    for command in ["check", "gateway"] {
        let output = strait(&[command, "--config", &file], "");

        assert_refused(&output, 64, &[&format!("{file}:5: "), "`listen_prt`", "expected one of"]);
    }
}

#[test]
fn every_finding_has_a_line_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[("1340", "1"), ("51840", "70000")]);

    let output = strait(&["check", "--config", &file], "");

    assert_eq!(output.status.code(), Some(64));
    assert_eq!(stderr(&output).lines().count(), 2, "{}", stderr(&output));
}

#[test]
fn a_missing_configuration_exits_64() {
    let output = strait(&["gateway", "--config", "/nonexistent/strait.toml"], "");

    assert_refused(&output, 64, &["/nonexistent/strait.toml", "--config"]);
}

#[test]
fn a_standby_refuses_wrong_flags_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let locked = File::create(&path).unwrap();
    locked.lock().unwrap();
    let lock_file = format!("--lock-file={}", path.display());
    let keys = format!("--keys-dir={}", dir.path().display());
    let identity = ["--kube", "--name=milan", "--namespace=tenant", "--remote-cluster-id=milan"];
    let wrong = ["--gateway-uid=5b8e", "--mode=server", &keys, &lock_file];

    let output = strait(&[&["gateway"], &identity[..], &wrong[..]].concat(), "");

    assert_refused(&output, 64, &["--keys-dir", "privateKey"]);
}

#[test]
fn a_used_metrics_address_exits_1_first() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = site(dir.path(), &[("127.0.0.1:9090", &address)]);

    let output = strait(&["gateway", "--config", &file], "");

    assert_refused(&output, 1, &[&address, "choose another metrics_address"]);
}

#[test]
fn too_few_file_descriptors_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);
    let script = "ulimit -n 32; exec \"$0\" gateway --config \"$1\"";
    let output = Command::new("sh").args(["-c", script, STRAIT, &file]).output().unwrap();

    assert_refused(&output, 1, &["RLIMIT_NOFILE is 32", "ulimit -n"]);
}

/// By a handler: the kernel ends the first process of a container by no default action.
#[test]
fn sigterm_ends_a_gateway_that_reads_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("gateway.toml");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut strait = Command::new(STRAIT);
    strait.args(["gateway", "--config"]).arg(&fifo);
    let mut gateway = strait.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut write = File::options();
    write.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut held = None;
    wait_until("it read the configuration", Duration::from_secs(10), || {
        held = write.open(&fifo).ok();
        Ok(held.is_some())
    })
    .unwrap();

    kill(Pid::from_raw(gateway.id().cast_signed()), Signal::SIGTERM).unwrap();

    assert_eq!(gateway.wait().unwrap().code(), Some(0));
}

#[test]
fn no_core_dump_can_hold_a_key() {
    let mut strait = Command::new(STRAIT);
    strait.args(["key", "public"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = strait.spawn().unwrap();
    let limits = format!("/proc/{}/limits", process.id());
    let is_zero = || {
        let limits = fs::read_to_string(&limits).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        core.split_whitespace().skip(4).take(2).eq(["0", "0"])
    };

    // It is for its whole life, from soon after its start.
    let is_zero = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_zero()
    });
    process.kill().unwrap();
    process.wait().unwrap();

    assert!(is_zero);
}

#[test]
fn explain_answers_from_a_file_with_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);

    let sent =
        strait(&["explain", "10.244.1.5", "10.71.2.7", "--dport", "443", "--config", &file], "");
    let dropped = strait(&["explain", "10.244.1.5", "10.244.2.7", "--config", &file], "");

    assert_eq!((sent.status.code(), dropped.status.code()), (Some(0), Some(1)));
    for expected in ["rome (endpoint not known)", "→ 10.244.2.7:443", "clamped to 1300"] {
        assert!(stdout(&sent).contains(expected), "{}", stdout(&sent));
    }
    for expected in ["dropped: no_route", "send to 10.71.2.7"] {
        assert!(stdout(&dropped).contains(expected), "{}", stdout(&dropped));
    }
}

#[test]
fn explain_prints_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);

    let output = strait(
        &["explain", "10.244.2.7", "10.1.0.9", "--inbound", "--json", "--config", &file],
        "",
    );

    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(report["verdict"], "delivered");
    assert_eq!(report["after"]["source"], "10.71.2.7");
}

#[test]
fn a_wrong_question_exits_64_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = site(dir.path(), &[]);
    let cases: [(&[&str], &[&str]); 8] = [
        (&["10.244.1", "10.71.2.7"], &["10.244.1", "<SRC>"]),
        (&["10.244.1.5", "fd00::1"], &["10.244.1.5 and fd00::1", "same IP version"]),
        (&["10.244.1.5", "10.71.2.7", "--dport", "65536"], &["65536", "--dport"]),
        (&["10.244.1.5", "10.71.2.7", "--proto", "tpc"], &["tpc", "use icmp, "]),
        (&["10.244.1.5", "10.71.2.7", "--proto", "esp", "--dport", "1"], &["esp has no ports"]),
        (&["10.244.1.5", "10.71.2.7", "--size", "19"], &["19 bytes", "28 or more"]),
        (&["10.244.2.7", "10.1.0.9", "--inbound", "--peer", "oslo"], &["\"oslo\"", "rome"]),
        (&["10.244.1.5", "10.71.2.7", "--peer", "rome"], &["--inbound"]),
    ];

    for (words, expected) in cases {
        let arguments = [&["explain"], words, &["--config", &file]].concat();

        let output = strait(&arguments, "");

        assert_refused(&output, 64, expected);
        // A cause is printed once.
        let text = stderr(&output);
        assert_eq!(text.matches(*expected.last().unwrap()).count(), 1, "{text}");
    }
}

#[test]
fn explain_without_a_gateway_exits_69() {
    let socket = "/nonexistent/strait.sock";

    let named = strait(&["explain", "10.0.0.1", "10.0.0.2", "--socket", socket], "");
    let by_device = strait(&["explain", "10.0.0.1", "10.0.0.2", "--interface", "none0"], "");

    assert_refused(&named, 69, &[socket, "--config"]);
    assert_refused(&by_device, 69, &["/run/strait/none0.sock", "--config"]);
}

#[test]
fn an_interrupted_command_exits_130_with_a_line() {
    let dir = tempfile::tempdir().unwrap();
    // An API server that answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("https://{}", listener.local_addr().unwrap());
    let kubeconfig = format!(
        r#"{{"current-context": "rome", "contexts": [{{"name": "rome", "context": {{"cluster": "rome"}}}}],
            "clusters": [{{"name": "rome", "cluster": {{"server": "{server}"}}}}]}}"#
    );
    let kubeconfig = write(dir.path(), "kubeconfig", &kubeconfig, 0o600);
    let mut strait = Command::new(STRAIT);
    strait.args(["info", "--kubeconfig", &kubeconfig]);
    let child = strait.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    let _connection = listener.accept().unwrap();
    let process = Pid::from_raw(child.id().try_into().unwrap());
    kill(process, Signal::SIGINT).unwrap();

    let output = child.wait_with_output().unwrap();
    assert_refused(&output, 130, &["strait: interrupted"]);
}

#[test]
fn wrong_usage_exits_64() {
    assert_refused(&strait(&["ferry"], ""), 64, &["ferry", "strait --help"]);
    assert_refused(&strait(&["check", "--speed"], ""), 64, &["--speed", "strait check --help"]);
    assert_refused(&strait(&[], ""), 64, &["subcommand", "strait --help"]);
}

#[test]
fn help_and_version_exit_0() {
    let help = strait(&["--help"], "");
    let version = strait(&["--version"], "");

    assert_eq!((help.status.code(), version.status.code()), (Some(0), Some(0)));
    assert!(stdout(&help).contains("gateway"), "{}", stdout(&help));
    assert_eq!(stdout(&version), concat!("strait ", env!("CARGO_PKG_VERSION"), "\n"));
}

fn strait(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(STRAIT)
        .args(arguments)
        .env_remove("RUST_LOG")
        .env_remove("STRAIT_LOG_FORMAT")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());

    child.wait_with_output().unwrap()
}

/// A directory with a key and a configuration in which `changes` were made.
fn site(dir: &Path, changes: &[(&str, &str)]) -> String {
    write(dir, "private.key", PRIVATE, 0o600);
    let mut text = format!(
        r#"[gateway]
name = "milan"
private_key_file = "private.key"
addresses = ["169.254.18.1/30"]
listen_port = 51840
mtu = 1340
metrics_address = "127.0.0.1:9090"

[[peer]]
name = "rome"
public_key = "{PEER}"
allowed_ips = ["10.244.0.0/16"]

[[peer.remap]]
remote = "10.244.0.0/16"
local = "10.71.0.0/16"
"#
    );
    for (from, to) in changes {
        assert!(text.contains(from), "{from:?} is not in the configuration");
        text = text.replace(from, to);
    }

    write(dir, "strait.toml", &text, 0o644)
}

fn write(dir: &Path, name: &str, content: &str, mode: u32) -> String {
    let path: PathBuf = dir.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();

    path.display().to_string()
}

#[track_caller]
fn assert_refused(output: &Output, status: i32, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
