//! Replicas of one gateway: one forwards, and another one does when that one is gone. With `STRAIT_FIGURES`
//! set, how soon is demanded of a Lease of one second.
//!
//! ```text
//!   pod ─ node ─┬─ one    ┐
//!               ├─ two    ├─ (node) ─ underlay ─ Milan
//!               └─ three  ┘
//! ```
//!
//! Milan reaches each replica by its address, as it would on the network of the host; a server's begins at a port
//! of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use strait_control_lab::create;
use strait_control_lab::roles::shipped_role;
use strait_kube::active;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::TwoClusters;
use strait_lab::netlink::Via;
use strait_lab::topology::{LISTEN_PORT, UNDERLAY_LINK};
use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Fed, Mode, NAMESPACE, PATIENCE, whole};
use crate::kube::standalone::forward;
use crate::kube::standalone::pods::{Exposed, Pod, expose};

const HEALTH_PORT: u16 = 8085;

/// How often the node looks which of the replicas is the active one.
const LOOK: Duration = Duration::from_millis(20);

#[test]
fn a_client_standby_takes_over_from_the_leader() {
    one_after_another(Mode::Client);
}

#[test]
fn a_server_standby_takes_over_from_the_leader() {
    one_after_another(Mode::Server);
}

/// The replicas are those of a gateway of this `mode`.
fn one_after_another(mode: Mode) {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let opposite = match mode {
        Mode::Client => Mode::Server,
        Mode::Server => Mode::Client,
    };
    let clusters = TwoClusters::new(&Layout::different().without_ipv6()).unwrap();
    let (rome, milan) = (&clusters.rome, &clusters.milan);
    let Some(mut in_rome) = Fed::new(rome, milan, shipped_role(), &clusters) else {
        return;
    };
    let Some(mut in_milan) = Fed::new(milan, rome, shipped_role(), &clusters) else {
        return;
    };
    in_milan.start("gateway", &whole(rome, opposite));
    let target = rome.side.sees(&milan.side).next().unwrap();
    let mut node = Node::new(Arc::clone(&rome.gateway), rome.side.realms[0].remapped, mode);
    let to_replicas = Via::Router(rome.underlay);
    milan.gateway.add_route("10.244.0.0/24".parse().unwrap(), UNDERLAY_LINK, to_replicas).unwrap();
    let replica = whole(milan, mode);

    let mut locked = replica.clone();
    locked.push(format!("--lock-file={}", in_rome.folder().join("lock").display()));
    node.start(&mut in_rome, "one", &locked);
    wait_until("the first one forwards", PATIENCE, || {
        node.follow(&in_rome);
        Ok(Ping::new(target, 1).run(&rome.pod).is_ok_and(|ping| ping.is_perfect()))
    })
    .unwrap();
    if mode == Mode::Server {
        // Calls of the client stay with the dead replica, as nothing here removes entries of conntrack.
        wait_until("the Lease has the endpoint of the client", PATIENCE, || {
            Ok(has_annotation(&in_rome, "strait.io/peer-endpoint"))
        })
        .unwrap();
    }
    wait_until("the Lease has the path MTU", PATIENCE, || {
        Ok(has_annotation(&in_rome, "strait.io/path-mtu"))
    })
    .unwrap();
    node.start(&mut in_rome, "two", &replica);
    assert_eq!(active(&in_rome), ["one"]);

    // Without an API server no leader can be elected, and none has to be.
    in_rome.kill_api_server();
    let ping = Ping::new(target, 300).run(&rome.pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");
    assert!(!in_rome.log("one").contains("the API server answers again"));
    in_rome.restart_api_server();
    wait_until("both replicas reach the API server", PATIENCE, || {
        let reaches = |name| in_rome.log(name).contains("the API server answers again");
        Ok(reaches("one") && reaches("two"))
    })
    .unwrap();
    assert_eq!(active(&in_rome), ["one"]);
    assert!(!in_rome.log("two").contains("leader election"));

    // A second process in the pod is on standby.
    let again = "one again";
    in_rome.start_in(&node.replicas["one"].namespace, again, &of_several(&locked, "one"));
    wait_until("it is on standby", PATIENCE, || {
        Ok(in_rome.log(again).contains("on standby until"))
    })
    .unwrap();
    let one = in_rome.take("one");
    let missed = gap(&rome.pod, target, || drop(one), || node.follow(&in_rome));
    eprintln!("killed: no process forwards for {missed:?}");
    assert!(missed <= promised(Duration::from_millis(600)), "{missed:?}");
    assert_eq!(active(&in_rome), ["one"]);

    let one = in_rome.take(again);
    let missed = gap(&rome.pod, target, || drop(one), || node.follow(&in_rome));
    eprintln!("killed: no replica forwards for {missed:?}");
    assert!(missed <= promised(Duration::from_secs(2)), "{missed:?}");
    assert_eq!(active(&in_rome), ["two"]);
    assert_inherits_mtu(&in_rome.log("two"));

    node.start(&mut in_rome, "three", &replica);
    let two = in_rome.take("two");
    let left = gap(&rome.pod, target, || two.stop().unwrap(), || node.follow(&in_rome));
    eprintln!("left: no replica forwards for {left:?}");
    assert!(left.is_zero(), "{left:?}");
    assert_eq!(active(&in_rome), ["three"]);
    let relay = "datagrams of former sessions are relayed to the former leader";
    assert!(in_rome.log("three").contains(relay));
    in_rome.wait_for("Connected");

    // No other replica can take its place.
    in_rome.finish();
    in_milan.finish();
}

/// The node of Rome, and the replicas on it: what `strait node` does where there are nodes.
struct Node {
    namespace: Arc<Namespace>,
    /// What leads to the active replica.
    remote: IpNet,
    mode: Mode,
    replicas: BTreeMap<&'static str, Pod>,
    /// Where packets and calls go.
    route: Option<String>,
    service: Option<String>,
}

impl Node {
    const fn new(namespace: Arc<Namespace>, remote: IpNet, mode: Mode) -> Self {
        Self { namespace, remote, mode, replicas: BTreeMap::new(), route: None, service: None }
    }

    /// Starts a replica in a namespace of its own, and waits until it runs.
    fn start(&mut self, fed: &mut Fed, name: &'static str, flags: &[String]) {
        let number = u8::try_from(self.replicas.len() + 1).unwrap();
        let pod = Pod::new(&self.namespace, name.to_owned(), 0, number);
        let address = pod.address;
        fed.ask(move |client| async move { create_pod(client, name, address).await });
        forward(&pod.namespace, &self.namespace, fed.api_port());

        fed.start_in(&pod.namespace, name, &of_several(flags, name));
        self.replicas.insert(name, pod);
        wait_until(format!("{name} runs"), PATIENCE, || {
            Ok(fed.log(name).contains("the gateway runs"))
        })
        .unwrap();
    }

    /// Routes packets to the replica with a session, and calls of a server to the active one.
    fn follow(&mut self, fed: &Fed) {
        let active = named(fed, active::is_active);
        assert!(active.len() <= 1, "{active:?}");
        let with_session = named(fed, active::has_session);
        if let Some(name) = with_session.last().or(active.last())
            && self.route.as_ref() != Some(name)
        {
            let pod = self.replicas[name.as_str()].address;
            self.namespace.replace_route(self.remote, name, Via::Router(pod)).unwrap();
            self.route = Some(name.clone());
        }
        if self.mode == Mode::Server
            && let Some(name) = active.first()
            && self.service.as_ref() != Some(name)
        {
            let (pod, port) = (self.replicas[name.as_str()].address, LISTEN_PORT.into());
            expose(&self.namespace, &[Exposed { node_port: port, pod, port }]);
            self.service = Some(name.clone());
        }
    }
}

/// The flags of one replica of several. Where figures are demanded, a Lease is as short as Kubernetes has it.
fn of_several(whole: &[String], name: &str) -> Vec<String> {
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
    arguments.push(format!("--health-probe-bind-address=:{HEALTH_PORT}"));

    arguments
}

/// For how long no replica forwards when `end` ends the active one, while `follow` is called again and again.
fn gap(
    from: &Namespace,
    target: IpAddr,
    end: impl FnOnce() + Send,
    mut follow: impl FnMut(),
) -> Duration {
    const INTERVAL: Duration = Duration::from_millis(10);
    let ping = Ping { interval: INTERVAL, ..Ping::new(target, 1_200) };
    let pinging = from.spawn(move || ping.run_here()).unwrap();

    let report = thread::scope(|scope| {
        let ending = scope.spawn(end);
        while !pinging.is_finished() {
            follow();
            thread::sleep(LOOK);
        }
        ending.join().unwrap();

        pinging.join().unwrap().unwrap()
    });

    INTERVAL * u32::try_from(report.unanswered.len()).unwrap()
}

/// For how long no replica may forward.
fn promised(figure: Duration) -> Duration {
    if is_strict() { figure } else { Duration::from_secs(10) }
}

fn is_strict() -> bool {
    std::env::var_os("STRAIT_FIGURES").is_some()
}

async fn create_pod(client: kube::Client, name: &str, address: IpAddr) {
    let pod: KubePod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "milan"}},
        "spec": {"containers": [{"name": "strait", "image": "strait"}]},
    }))
    .unwrap();

    let pods = Api::namespaced(client, NAMESPACE);
    create(pods.clone(), &pod).await;
    let status = Patch::Merge(json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}));
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}

/// Whether a successor would know what the annotation `name` records of the peer.
fn has_annotation(fed: &Fed, name: &'static str) -> bool {
    fed.ask(move |client| async move {
        let leases = Api::<Lease>::namespaced(client, NAMESPACE);
        let leases = leases.list(&ListParams::default()).await.unwrap();
        leases.iter().any(|lease| lease.annotations().contains_key(name))
    })
}

/// The log is that of a replica that took over.
fn assert_inherits_mtu(log: &str) {
    let line = |text: &str| log.lines().position(|line| line.contains(text));
    let inherits = line("the previous leader knew the path MTU").expect("the Lease had it");

    assert!(line("the device has another MTU").is_some_and(|grows| inherits < grows));
}

/// The pods with the label of the active one.
fn active(fed: &Fed) -> Vec<String> {
    named(fed, active::is_active)
}

/// The pods that `are` it.
fn named(fed: &Fed, are: fn(&KubePod) -> bool) -> Vec<String> {
    fed.ask(move |client| async move {
        let pods = Api::<KubePod>::namespaced(client, NAMESPACE);
        let pods = pods.list(&ListParams::default()).await.unwrap();
        pods.iter().filter(|pod| are(pod)).map(KubePod::name_any).collect()
    })
}
