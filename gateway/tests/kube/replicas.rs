//! Two replicas of one gateway: one forwards, and the other one does when that one is gone. With
//! `STRAIT_FIGURES` set, how soon is demanded of a Lease of one second.

use std::net::IpAddr;
use std::time::Duration;

use control::active::ACTIVE;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde_json::json;
use strait_gateway::lab::traffic::Ping;
use strait_gateway::lab::{Layout, Namespace, TwoClusters, wait_until};

use crate::api_server::create;
use crate::api_server::roles::shipped_role;
use crate::fed::{Fed, Mode, NAMESPACE, PATIENCE, wait_for_ping, whole};
use crate::require::Need::{Root, Tun};
use crate::require::require;

/// Both run in one namespace, as there is no kubelet that gives pods one each; devices of their own
/// keep them apart.
#[test]
fn the_standby_forwards_when_the_leader_is_killed_and_when_it_leaves() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let clusters = TwoClusters::new(&Layout::different().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::new(rome, milan, shipped_role(), &clusters) else {
        return;
    };
    let Some(mut in_milan) = Fed::new(milan, rome, shipped_role(), &clusters) else {
        return;
    };
    in_milan.start("server", &whole(rome, Mode::Server));
    let target = rome.side.sees(&milan.side).next().unwrap();

    for pod in ["one", "two", "three"] {
        in_rome.ask(move |client| async move { create_pod(client, pod).await });
    }
    in_rome.start("one", &replica(&whole(milan, Mode::Client), "one"));
    wait_for_ping(&rome.pod, target);
    in_rome.start("two", &replica(&whole(milan, Mode::Client), "two"));
    wait_until("the second one waits", PATIENCE, || {
        Ok(in_rome.log("two").contains("the gateway runs"))
    })
    .unwrap();
    assert_eq!(active(&in_rome), ["one"]);

    // Without an API server nobody can be elected, and nobody has to.
    in_rome.kill_api_server();
    let ping = Ping::new(target, 300).run(&rome.pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    in_rome.restart_api_server();
    wait_until("the Lease is renewed", PATIENCE, || {
        Ok(in_rome.log("one").matches("the API server answers again").count() >= 1)
    })
    .unwrap();
    assert_eq!(active(&in_rome), ["one"]);
    assert!(!in_rome.log("two").contains("leader election"));

    let missed = gap(&rome.pod, target, || in_rome.kill("one"));
    eprintln!("killed: nobody forwards for {missed:?}");
    assert!(missed <= promised(2_000), "{missed:?}");
    wait_until("the label moves", PATIENCE, || Ok(active(&in_rome) == ["two"])).unwrap();

    in_rome.start("three", &replica(&whole(milan, Mode::Client), "three"));
    wait_until("the third one waits", PATIENCE, || {
        Ok(in_rome.log("three").contains("the gateway runs"))
    })
    .unwrap();
    let left = gap(&rome.pod, target, || in_rome.stop("two"));
    eprintln!("left: nobody forwards for {left:?}");
    assert!(left <= promised(500), "{left:?}");
    wait_until("the label moves", PATIENCE, || Ok(active(&in_rome) == ["three"])).unwrap();
    in_rome.wait_for("Connected");

    in_rome.finish();
    in_milan.finish();
}

/// The flags of one replica of several. Where figures are demanded, a Lease is as short as Kubernetes has it.
fn replica(whole: &[String], name: &str) -> Vec<String> {
    let mut arguments = whole.to_vec();
    let [lease, deadline, period] =
        if is_strict() { ["1s", "800ms", "200ms"] } else { ["3s", "2s", "500ms"] };
    arguments.extend([
        "--leader-election=true".to_owned(),
        format!("--leader-election-lease-duration={lease}"),
        format!("--leader-election-renew-deadline={deadline}"),
        format!("--leader-election-retry-period={period}"),
    ]);
    arguments.extend([format!("--pod-name={name}"), format!("--interface={name}")]);

    arguments
}

/// For how long nobody forwards when `end` ends the active one.
fn gap(from: &Namespace, target: IpAddr, end: impl FnOnce()) -> Duration {
    const INTERVAL: Duration = Duration::from_millis(10);
    let ping = Ping { interval: INTERVAL, ..Ping::new(target, 1_200) };
    let pinging = from.spawn(move || ping.run_here()).unwrap();

    end();
    let report = pinging.join().unwrap().unwrap();

    INTERVAL * u32::try_from(report.unanswered.len()).unwrap()
}

/// For how long nobody may forward.
fn promised(milliseconds: u64) -> Duration {
    Duration::from_millis(if is_strict() { milliseconds } else { 10_000 })
}

fn is_strict() -> bool {
    std::env::var_os("STRAIT_FIGURES").is_some()
}

async fn create_pod(client: kube::Client, name: &str) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "milan"}},
        "spec": {"containers": [{"name": "strait", "image": "strait"}]},
    }))
    .unwrap();

    create(Api::namespaced(client, NAMESPACE), &pod).await;
}

/// The pods with the label of the active one.
fn active(fed: &Fed) -> Vec<String> {
    fed.ask(move |client| async move {
        let pods = Api::<Pod>::namespaced(client, NAMESPACE);
        let active = ListParams::default().labels(&format!("{ACTIVE}=true"));
        pods.list(&active).await.unwrap().iter().map(Pod::name_any).collect()
    })
}
