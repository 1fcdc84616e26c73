//! The transcripts of the documentation, step by step.

use serde_json::Value;
use strait_control_lab::peering::Work;
use strait_control_lab::peering::transcript::{CONNECTED, INIT, connected_formerly};

use crate::commands::{Desk, assert_refused, stderr, stdout};

pub(super) async fn joins_and_takes_apart(desk: &Desk) {
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
    desk.world.set_work(Work::Prefixes).await;
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
    desk.world.set_work(Work::All).await;
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
pub(super) async fn joins_step_by_step(desk: &Desk) {
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
