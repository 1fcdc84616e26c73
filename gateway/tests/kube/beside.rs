//! Beside Liqo's own containers, in the place of the one called `wireguard`: started as Liqo's
//! templates of each release start it, with the rights of Liqo's role.
//!
//! What the other containers do is done here: the test is the one that says to start, and nftables
//! and routes remap and forward, as Liqo's gateway container makes them.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use strait_api::Connection;
use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::TwoClusters;
use strait_lab::process::find;
use strait_lab::topology::CLUSTER_LINK;
use strait_lab::wait_until;

use crate::fed::{Fed, Mode, NAMESPACE, PATIENCE, UID, wait_for_ping};
use crate::require::Need::{Root, Tool, Tun};
use crate::require::require;
use crate::world::assert_traffic;
use strait_control_lab::roles::stock_role;

/// The routing table for what comes from pods.
const TABLE: &str = "1878";

/// What Liqo's templates pass to the container, by release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    V1_0,
    V1_1,
    V1_2,
    Head,
    /// Our own template for the newest.
    Ours,
}

#[test]
fn every_release_of_liqo_starts_it_and_it_carries_what_the_others_remap() {
    let Some(_turn) = require(&[Root, Tun, Tool("nft"), Tool("ip")]) else {
        return;
    };
    let clusters = TwoClusters::new(&Layout::equal().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::new(rome, milan, stock_role(), &clusters) else {
        return;
    };
    let Some(mut in_milan) = Fed::new(milan, rome, stock_role(), &clusters) else {
        return;
    };

    for (client, server) in [
        (Release::V1_0, Release::Head),
        (Release::V1_1, Release::V1_0),
        (Release::V1_2, Release::V1_1),
        (Release::Head, Release::V1_2),
        (Release::Ours, Release::Ours),
    ] {
        start(&mut in_rome, milan, Mode::Client, client);
        start(&mut in_milan, rome, Mode::Server, server);
        for cluster in [rome, milan] {
            be_the_gateway_container(cluster);
        }

        wait_for_ping(&rome.gateway, IpAddr::from([169, 254, 18, 1]));
        for (from, to) in [(rome, milan), (milan, rome)] {
            for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
                assert_traffic(from, to, target, seen_as);
            }
        }
        // It makes the Connection; what it is like is for the gateway container to say.
        in_rome.wait_for("Connecting");
        report(&in_rome, "Connected", "12ms");
        in_rome.wait_for("Connected");
        report(&in_rome, "Connecting", "N/A");

        in_rome.stop("wireguard");
        in_milan.stop("wireguard");
    }
}

/// Starts the container as `release` does, and says to start where that is what it waits for.
fn start(fed: &mut Fed, other: &Cluster, mode: Mode, release: Release) {
    let socket = fed.folder().join("leader.sock");
    let _ = std::fs::remove_file(&socket);
    let mut arguments = arguments(other, mode, release);
    arguments.push(format!("--ipc-socket={}", socket.display()));

    // Templates of 1.0 never say whether to wait; with several replicas those of today do.
    let waits = matches!((mode, release), (_, Release::V1_0) | (Mode::Client, Release::Head));
    if !waits {
        fed.start("wireguard", &arguments);
        return;
    }
    let listener = UnixListener::bind(&socket).unwrap();
    fed.start("wireguard", &arguments);
    let (mut stream, _) = listener.accept().unwrap();
    let mut name = [0; 64];
    let length = stream.read(&mut name).unwrap();
    assert_eq!(&name[..length], b"wireguard");
    stream.write_all(b"Start wireguard").unwrap();
    let _ = std::fs::remove_file(&socket);
}

/// Word for word, as rendered for one replica with metrics; of HEAD, the client has two.
fn arguments(other: &Cluster, mode: Mode, release: Release) -> Vec<String> {
    let peer = other.name;
    if release == Release::Ours {
        return from_template(other, mode);
    }
    let (mode_word, leader_election) = match (mode, release) {
        (Mode::Server, _) => ("server", "--leader-election=false"),
        (Mode::Client, Release::Head) => ("client", "--leader-election=true"),
        (Mode::Client, _) => ("client", "--leader-election=false"),
    };
    let mut arguments = vec![
        format!("--name={peer}"),
        format!("--namespace={NAMESPACE}"),
        format!("--remote-cluster-id={peer}"),
        format!("--gateway-uid={UID}"),
        format!("--mode={mode_word}"),
        "--container-name=wireguard".to_owned(),
        "--mtu=1340".to_owned(),
    ];
    let (listen, endpoint) = match release {
        Release::V1_0 | Release::V1_1 | Release::V1_2 => ("--listen-port", "--endpoint-port"),
        Release::Head | Release::Ours => ("--listen-ports", "--endpoint-ports"),
    };
    match mode {
        Mode::Server => arguments.push(format!("{listen}=51840")),
        Mode::Client => arguments.extend([
            format!("--endpoint-address={}", other.underlay),
            format!("{endpoint}=51840"),
        ]),
    }
    arguments.extend(
        ["--metrics-address=:8084", "--health-probe-bind-address=:8085"].map(str::to_owned),
    );
    if release != Release::V1_0 {
        arguments.push(leader_election.to_owned());
    }
    arguments.push("--implementation=userspace".to_owned());
    if matches!(release, Release::V1_2 | Release::Head) && mode == Mode::Server {
        arguments.push("--preserve-client-endpoint=true".to_owned());
    }

    arguments
}

/// The arguments of the container in the template that we ship, filled in as Liqo does it.
fn from_template(other: &Cluster, mode: Mode) -> Vec<String> {
    let template = match mode {
        Mode::Server => include_str!("../../../deploy/liqo/server.yaml"),
        Mode::Client => include_str!("../../../deploy/liqo/client.yaml"),
    };
    let template: Value = serde_saphyr::from_str(template).unwrap();
    let pod = "/spec/template/spec/deployment/spec/template/spec/containers";
    let containers = template.pointer(pod).unwrap().as_array().unwrap();
    let ours = containers.iter().find(|container| container["name"] == "wireguard").unwrap();
    let underlay = other.underlay.to_string();
    let values = [
        ("{{ .Name }}", other.name),
        ("{{ .Namespace }}", NAMESPACE),
        ("{{ .ClusterID }}", other.name),
        ("{{ .GatewayUID }}", UID),
        ("{{ .Spec.MTU }}", "1340"),
        ("{{ .Spec.Endpoint.Port }}", "51840"),
        ("{{ index .Spec.Endpoint.Addresses 0 }}", &underlay),
    ];

    let render = |argument: &Value| {
        let text = argument.as_str().unwrap().to_owned();
        values.iter().fold(text, |text, (variable, value)| text.replace(variable, value))
    };
    let arguments: Vec<_> = ours["args"].as_array().unwrap().iter().map(render).collect();
    assert!(!arguments.iter().any(|argument| argument.contains("{{")), "{arguments:?}");

    arguments
}

/// Routes to the device, and NETMAP both ways.
fn be_the_gateway_container(cluster: &Cluster) {
    let gateway = &cluster.gateway;
    wait_until("the device can be routed to", PATIENCE, || {
        let route = ["route", "replace", "default", "dev", "liqo-tunnel", "table", TABLE];
        Ok(run(gateway, "ip", &route))
    })
    .unwrap();
    // The remote's pods have the addresses of our own: only where a packet comes from tells.
    let _ = run(gateway, "ip", &["rule", "del", "iif", CLUSTER_LINK, "table", TABLE]);
    assert!(run(gateway, "ip", &["rule", "add", "iif", CLUSTER_LINK, "table", TABLE]));
    let realm = cluster.side.realms[0];
    let (remote, local) = (realm.pods, realm.remapped);
    let rules = format!(
        "table ip remap
        delete table ip remap
        table ip remap {{
            chain outgoing {{
                type nat hook prerouting priority -100;
                iifname {CLUSTER_LINK} ip daddr {local} dnat prefix to {remote}
            }}
            chain incoming {{
                type nat hook postrouting priority 100;
                iifname liqo-tunnel ip saddr {remote} snat prefix to {local}
            }}
        }}"
    );
    assert!(run(gateway, "nft", &[&rules]));
}

/// Writes the status of the Connection, as Liqo's gateway container does.
fn report(fed: &Fed, value: &'static str, latency: &'static str) {
    let name = format!("gw-{}", fed.peer);
    fed.ask(move |client| async move {
        let api = Api::<Connection>::namespaced(client, NAMESPACE);
        let mut connection = api.get(&name).await.unwrap();
        let status = json!({"value": value, "latency": {"value": latency}});
        connection.status = serde_json::from_value(status).unwrap();
        api.replace_status(&name, &PostParams::default(), &connection).await.unwrap();
    });
}

fn run(namespace: &Namespace, program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(find(program).unwrap());
    command.args(arguments).stderr(Stdio::null());

    namespace.start(command).unwrap().wait().unwrap().success()
}
