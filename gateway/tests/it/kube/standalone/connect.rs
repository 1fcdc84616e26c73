//! One command joins two clusters, with the kubeconfigs of both.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, ListParams};
use strait_api::{Configuration, GatewayClient, Network};
use strait_lab::Layout;
use strait_lab::now;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;
use strait_plan::conditions::IN_FORCE;

use super::Two;
use super::garbage::uids;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{PATIENCE, wait_for_ping};
use crate::kube::rights::assert_needed;

/// The server listens at the port of its node: there is no kube-proxy.
const CONNECT: [&str; 5] = [
    "--wait",
    "--timeout=60s",
    "--gw-server-service-type=NodePort",
    "--gw-server-service-port=30742",
    "--gw-server-service-nodeport=30742",
];

#[test]
fn one_command_joins_and_one_parts_clusters() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(two) = Two::start(&Layout::equal()) else {
        return;
    };
    let start = now();
    let joined = two.network("connect", &CONNECT);
    let elapsed = start.elapsed();
    eprintln!("joined in {elapsed:?}");
    assert!(joined.status.success(), "{}", two.logs());
    let said = String::from_utf8_lossy(&joined.stdout).into_owned();
    let mut rest = said.as_str();
    for line in [
        "Network correctly initialized",
        "Gateway server correctly set up",
        "Gateway pod gw-rome is ready",
        "Gateway server Service created successfully",
        "Gateway client correctly set up",
        "Public key correctly created",
        "Connection is established",
    ] {
        let place =
            rest.find(line).unwrap_or_else(|| panic!("{line:?} is not said in its turn:\n{said}"));
        rest = &rest[place..];
    }
    // The figure is 5 s; neighbours of a test machine can take longer than that.
    let limit = if std::env::var_os("STRAIT_FIGURES").is_some() { 5 } else { 60 };
    assert!(elapsed < Duration::from_secs(limit), "{elapsed:?}");
    for (site, other) in [(&two.rome, "milan"), (&two.milan, "rome")] {
        assert_eq!(site.names(other), ["10.71.0.0/16"], "{}", two.logs());
    }
    let (pod, target) = (&two.clusters.rome.pod, two.target());
    wait_for_ping(pod, target);
    two.assert_traffic();
    let checked = two.strait(&["check"], &[]);
    assert!(checked.status.success(), "of sound clusters there is nothing wrong");

    // Again, and nothing is another one.
    let before = two.rome.ask(uids_of_gateways);
    assert!(two.network("connect", &CONNECT).status.success(), "{}", two.logs());
    assert_eq!(two.rome.ask(uids_of_gateways), before);

    // When the command has done its work, what it was asked for is in force, and all that was before is gone.
    for mtu in ["1300", "1340", "1280", "1340"] {
        let changed = [&CONNECT[..], &["--mtu", mtu]].concat();
        assert!(two.network("connect", &changed).status.success(), "{}", two.logs());
        for site in [&two.rome, &two.milan] {
            // The default grows.
            let expected = if mtu == "1340" { "1420" } else { mtu };
            wait_until(format!("{} has MTU {expected}", site.name), PATIENCE, || {
                let device = site.shell("ip link show liqo-tunnel");
                Ok(device.contains(&format!(" mtu {expected} ")))
            })
            .unwrap();
        }
        // A busy machine loses packets.
        assert_ne!(Ping::new(target, 5).run(pod).unwrap().received, 0, "{mtu}");
    }

    let (objects, predicted) = (two.objects(), two.predicted("disconnect"));
    let start = now();
    assert!(two.network("disconnect", &["--yes"]).status.success());
    for site in [&two.rome, &two.milan] {
        wait_until("nothing of the gateway is left", PATIENCE, || Ok(site.remains() == [0; 7]))
            .unwrap_or_else(|_| panic!("{:?}", site.remains()));
    }
    eprintln!("parted in {:?}", start.elapsed());
    two.wait_until_gone(&objects, &predicted);
    let ping = Ping { count: 1, ..Ping::new(target, 1) };
    assert_eq!(ping.run(pod).map_or(0, |report| report.received), 0);
    for site in [&two.rome, &two.milan] {
        wait_until("no gateway says that anything is in force", PATIENCE, || {
            Ok(!site.ask(conditions).contains(&IN_FORCE.to_owned()))
        })
        .unwrap();
    }
    let checked = two.strait(&["check"], &[]);
    assert!(checked.status.success(), "of clusters that are parted there is nothing wrong");

    let (objects, predicted) = (two.objects(), two.predicted("reset"));
    assert!(two.network("reset", &["--yes"]).status.success());
    two.wait_until_gone(&objects, &predicted);
    assert_eq!(two.strait(&["plan", "reset"], &[]).status.code(), Some(0));
    for site in [&two.rome, &two.milan] {
        wait_until("no prefix is taken any more", PATIENCE, || {
            // Those of the installation stay.
            Ok(site.count::<Configuration>() == 0 && site.count::<Network>() == 4)
        })
        .unwrap();
    }

    assert!(two.network("connect", &CONNECT).status.success(), "{}", two.logs());
    wait_for_ping(pod, target);
    assert_needed(&[two.rome.audit(), two.milan.audit()]);
}

/// The types of those of all Configurations.
async fn conditions(client: Client) -> Vec<String> {
    let all = Api::<Configuration>::all(client).list(&ListParams::default()).await.unwrap();
    let conditions = all.items.into_iter().flat_map(|it| it.status.unwrap_or_default().conditions);

    conditions.map(|condition| condition.type_).collect()
}

async fn uids_of_gateways(client: Client) -> [Vec<String>; 2] {
    [uids::<GatewayClient>(&client).await, uids::<Deployment>(&client).await]
}
