//! `create`, `delete`, `generate` and `info`, of one cluster.

use serde_json::{Value, json};
use strait_api::endpoint::Endpoint;
use strait_api::identity::Mode;
use strait_api::{Configuration, GatewayClient, GatewayServer, PublicKey};
use strait_control_lab::peering::{Work, World};
use strait_peering::{
    ClusterContext, CommandError, Create, CreateOptions, Exposure, Format, Generate, Health,
    NodePort, Prefixes, ServiceType, Side, TemplateType, create, delete, generate, info, peers,
    select,
};

use super::world::{RecordedReport, contact_of};

/// The id in Liqo's documentation.
const REMOTE: &str = "cl01";

const WAITS: CreateOptions = CreateOptions { format: None, overwrites: false, waits: true };

pub(crate) async fn verbs_about_one_cluster(world: &World) {
    let report = RecordedReport::default();
    let context = ClusterContext {
        namespace: Some("default".to_owned()),
        ..contact_of(&world.local, Side::Only)
    };
    let before = world.content().await;

    writes_down_what_it_would_make(&context, &report).await;
    problems_are_found(&context, &report).await;
    assert_eq!(world.content().await, before);

    world.set_work(Work::Prefixes).await;
    states_that_are_not_ready_are_shown(&context, &report).await;
    world.set_work(Work::All).await;
    makes_and_waits(&context, &report).await;
    overwrites_only_when_allowed(world, &context, &report).await;
    objects_for_the_other_cluster_are_printed(&context, &report).await;
    the_state_is_shown(&context, &report).await;
    deletes(&context, &report).await;

    makes_the_namespace_of_a_peering(world, &report).await;
}

async fn writes_down_what_it_would_make(context: &ClusterContext, report: &RecordedReport) {
    let yaml = write_down(context, &server(), Format::Yaml, report).await;
    assert_eq!(
        serde_saphyr::from_str::<Value>(&yaml).unwrap(),
        json!({
            "apiVersion": "networking.liqo.io/v1beta1",
            "kind": "GatewayServer",
            "metadata": {
                "labels": {"liqo.io/remote-cluster-id": REMOTE}, "name": "server",
                "namespace": "default",
            },
            "spec": {
                "endpoint": {"port": 51840, "serviceType": "NodePort"},
                "mtu": 1340,
                "serverTemplateRef": {
                    "apiVersion": "networking.liqo.io/v1beta1",
                    "kind": "WgGatewayServerTemplate",
                    "name": "wireguard-server",
                    "namespace": "liqo",
                },
            },
        })
    );
    let text = write_down(context, &client(), Format::Json, report).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json["spec"]["endpoint"],
        json!({"addresses": ["172.18.0.3"], "port": 30742, "protocol": "UDP"})
    );
    let text = write_down(context, &public_key(), Format::Json, report).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["spec"]["publicKey"], "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    let text = write_down(context, &configuration(), Format::Json, report).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json["spec"],
        json!({"remote": {"cidr": {"external": ["10.70.0.0/16"], "pod": ["10.243.0.0/16"]}}})
    );
    assert_eq!(report.lines(), [""; 0]);
}

async fn write_down(
    context: &ClusterContext,
    wanted: &Create,
    format: Format,
    report: &RecordedReport,
) -> String {
    let options = CreateOptions { format: Some(format), waits: true, overwrites: false };

    create(context, wanted, options, report.session()).await.unwrap().unwrap()
}

async fn problems_are_found(context: &ClusterContext, report: &RecordedReport) {
    let missing_namespace =
        ClusterContext { namespace: Some("missing".to_owned()), ..context.clone() };
    let mut other_template = server();
    let mut bad_port = server();
    if let Create::GatewayServer { template, .. } = &mut other_template {
        template.1 = "other".to_owned();
    }
    if let Create::GatewayServer { exposure, .. } = &mut bad_port {
        exposure.node_port = NodePort::Exactly(70);
    }

    for (context, wanted, says) in [
        (&missing_namespace, configuration(), "namespace missing does not exist"),
        (context, other_template, "choose one with --template-name and --template-namespace"),
        (context, bad_port, "choose another --node-port, or apply what -o yaml prints"),
        (
            context,
            named(server(), &"a".repeat(61)),
            "is not a valid name of a GatewayServer: write 1 to 60 ",
        ),
        (
            context,
            named(server(), "a.b"),
            "\"a.b\" is not a valid name of a GatewayServer: write 1 to 60 ",
        ),
        (context, named(client(), "-a"), "\"-a\" is not a valid name of a GatewayClient: "),
        (context, named(client(), ""), "\"\" is not a valid name of a GatewayClient: "),
        (context, named(public_key(), "A"), "\"A\" is not a valid name of a PublicKey: "),
    ] {
        let error =
            create(context, &wanted, CreateOptions::default(), report.session()).await.unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(says), "{error}");
    }
    let wanted = Generate::PublicKey { mode: Mode::Server, name: "server".to_owned() };
    let error = generate(context, &wanted, Format::Yaml, report.session()).await.unwrap_err();
    assert!(error.to_string().starts_with("GatewayServer \"server\" is not in namespace default"));
    let error = peers(context, &["cl01".to_owned()], report.session()).await.unwrap_err();
    assert_eq!(error.to_string(), "no peering with cluster \"cl01\"; there is none");
}

async fn states_that_are_not_ready_are_shown(context: &ClusterContext, report: &RecordedReport) {
    let short = report.session_of(std::time::Duration::from_millis(500));
    let error = create(context, &server(), WAITS, short).await.unwrap_err().to_string();
    assert!(error.contains("GatewayServer server to be ready"), "{error}");
    assert!(error.contains("no status.endpoint.addresses in it"), "{error}");

    let found = &peers(context, &[], report.session()).await.unwrap()[0];
    assert_eq!(found.network.status, Health::Unhealthy);
    assert_eq!(
        found.network.alerts,
        [
            "there is no Configuration",
            "there is no Deployment of the gateway",
            "there is no Connection",
        ]
    );
    let wanted = Generate::PublicKey { mode: Mode::Server, name: "server".to_owned() };
    let error = generate(context, &wanted, Format::Yaml, report.session()).await.unwrap_err();
    assert!(matches!(error, CommandError::NoSecret { .. }), "{error}");
    assert_eq!(report.lines(), ["GatewayServer created"]);
}

async fn makes_and_waits(context: &ClusterContext, report: &RecordedReport) {
    for wanted in [configuration(), server(), public_key()] {
        create(context, &wanted, WAITS, report.session()).await.unwrap();
    }

    assert_eq!(
        report.lines(),
        [
            "Configuration created",
            "Configuration is ready",
            "GatewayServer unchanged",
            "GatewayServer is ready",
            "PublicKey created",
        ]
    );
}

async fn overwrites_only_when_allowed(
    world: &World,
    context: &ClusterContext,
    report: &RecordedReport,
) {
    let mut other = server();
    if let Create::GatewayServer { mtu, exposure, .. } = &mut other {
        *mtu = 1300;
        exposure.port = 51820;
    }
    let before = world.content().await;

    let error = create(context, &other, WAITS, report.session()).await.unwrap_err();

    assert!(!error.is_usage());
    assert_eq!(
        error.to_string(),
        "GatewayServer \"server\" already exists in namespace default and differs: \
         spec.endpoint.port 51840 → 51820, spec.mtu 1340 → 1300; pass --yes to overwrite it, or choose \
         another name"
    );
    assert_eq!(world.content().await, before);
    let options = CreateOptions { overwrites: true, ..WAITS };
    for wanted in [&other, &server()] {
        create(context, wanted, options, report.session()).await.unwrap();
        assert_eq!(report.lines(), ["GatewayServer configured", "GatewayServer is ready"]);
    }
}

async fn objects_for_the_other_cluster_are_printed(
    context: &ClusterContext,
    report: &RecordedReport,
) {
    let wanted = Generate::Configuration;
    let text = generate(context, &wanted, Format::Yaml, report.session()).await.unwrap();
    assert_eq!(
        serde_saphyr::from_str::<Value>(&text).unwrap(),
        json!({
            "apiVersion": "networking.liqo.io/v1beta1",
            "kind": "Configuration",
            "metadata": {"labels": {"liqo.io/remote-cluster-id": "rome"}, "name": "rome"},
            "spec": {"remote": {"cidr": {"external": ["10.70.0.0/16"], "pod": ["10.244.0.0/16"]}}},
        })
    );

    let wanted = Generate::PublicKey { mode: Mode::Server, name: "server".to_owned() };
    let text = loop {
        match generate(context, &wanted, Format::Yaml, report.session()).await {
            // The stand-in works asynchronously.
            Err(CommandError::NoSecret { .. }) => tokio::task::yield_now().await,
            text => break text.unwrap(),
        }
    };
    let object: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(
        object["metadata"],
        json!({
            "labels": {
                "liqo.io/remote-cluster-id": "rome",
                "networking.liqo.io/gateway-resource": "true",
            },
            "name": "rome",
        })
    );
    let key: strait_api::public_key::PublicKeySpec =
        serde_json::from_value(object["spec"].clone()).unwrap();
    assert_eq!(key.public_key.unwrap().0, format!("{:x<32}", "server").into_bytes());
}

async fn the_state_is_shown(context: &ClusterContext, report: &RecordedReport) {
    let found = info(context, report.session()).await.unwrap();
    assert_eq!(
        found.text(false),
        "Cluster rome\n  Namespace       liqo\n  Network\n    Pod CIDRs       10.244.0.0/16\n    \
         External CIDR   10.70.0.0/16\n"
    );
    assert_eq!(
        found.text(true),
        "Cluster rome\n  Namespace       liqo\n  Network\n    Pod CIDRs       10.244.0.0/16\n    \
         Service CIDR    10.96.0.0/16\n    External CIDR   10.70.0.0/16\n    \
         Internal CIDR   10.90.0.0/16\n"
    );
    let value = serde_json::to_value(&found).unwrap();
    assert_eq!(select(&value, "clusterid"), Some(&json!("rome")));

    let found = loop {
        let found = peers(context, &[REMOTE.to_owned()], report.session()).await.unwrap().remove(0);
        if found.network.status == Health::Healthy {
            break found;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        found.to_string(),
        "Peer cl01\n  Network\n    Status          Healthy\n    Latency         12ms\n    CIDR\n      \
         Remote\n        Pod CIDR        10.243.0.0/16 → Remapped to 10.71.0.0/16\n        \
         External CIDR   10.70.0.0/16\n    Gateway\n      Role            Client\n      \
         Address         172.18.0.3\n      Port            30742\n"
    );
    let value = serde_json::to_value(&found).unwrap();
    let gateway = json!({"role": "Client", "address": ["172.18.0.3"], "port": 30742});
    assert_eq!(select(&value, "network.gateway"), Some(&gateway));
}

async fn deletes(context: &ClusterContext, report: &RecordedReport) {
    delete::<Configuration>(context, REMOTE, true, report.session()).await.unwrap();
    delete::<GatewayServer>(context, "server", true, report.session()).await.unwrap();
    delete::<PublicKey>(context, "cl01", false, report.session()).await.unwrap();
    assert_eq!(
        report.lines(),
        ["Configuration deleted", "GatewayServer deleted", "PublicKey deleted"]
    );

    let error =
        delete::<GatewayClient>(context, "client", true, report.session()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "GatewayClient \"client\" is not in namespace default: name another with --namespace"
    );
}

async fn makes_the_namespace_of_a_peering(world: &World, report: &RecordedReport) {
    let context = contact_of(&world.local, Side::Only);

    create(&context, &client(), WAITS, report.session()).await.unwrap();

    assert_eq!(report.lines(), ["GatewayClient created", "GatewayClient is ready"]);
    let found = world.local.api::<GatewayClient>("liqo-tenant-cl01").get("client").await;
    assert_eq!(found.unwrap().spec.mtu, Some(1340));
}

/// The same with another name.
fn named(mut wanted: Create, other: &str) -> Create {
    let (Create::Configuration { name, .. }
    | Create::GatewayServer { name, .. }
    | Create::GatewayClient { name, .. }
    | Create::PublicKey { name, .. }) = &mut wanted;
    *name = other.to_owned();

    wanted
}

fn template(type_: &str, name: &str) -> (TemplateType, String, Option<String>) {
    (TemplateType::parse(type_).unwrap(), name.to_owned(), None)
}

fn configuration() -> Create {
    let one = |text: &str| vec![text.parse().unwrap()];

    Create::Configuration {
        name: REMOTE.to_owned(),
        remote_cluster_id: REMOTE.to_owned(),
        prefixes: Prefixes { pod: one("10.243.0.0/16"), external: one("10.70.0.0/16") },
    }
}

fn server() -> Create {
    Create::GatewayServer {
        name: "server".to_owned(),
        remote_cluster_id: REMOTE.to_owned(),
        template: template(TemplateType::SERVER, "wireguard-server"),
        exposure: Exposure {
            service_type: ServiceType::NodePort,
            port: 51840,
            node_port: NodePort::Any,
            load_balancer_ip: None,
        },
        mtu: 1340,
    }
}

fn client() -> Create {
    Create::GatewayClient {
        name: "client".to_owned(),
        remote_cluster_id: REMOTE.to_owned(),
        template: template(TemplateType::CLIENT, "wireguard-client"),
        endpoint: Endpoint {
            addresses: vec!["172.18.0.3".to_owned()],
            port: Some(30742),
            ports: Vec::new(),
            protocol: Some("UDP".to_owned()),
        },
        mtu: 1340,
    }
}

fn public_key() -> Create {
    Create::PublicKey {
        name: "cl01".to_owned(),
        remote_cluster_id: REMOTE.to_owned(),
        key: [7; 32],
    }
}
