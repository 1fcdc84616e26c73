//! Errors are found before the first write.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use serde_json::json;
use strait_api::WgGatewayServerTemplate;
use strait_control_lab::peering::World;
use strait_control_lab::roles::no_rights;
use strait_kube::client::{Part, client};
use strait_peering::{
    ClusterContext, CommandError, Connect, NodePort, Pair, ServiceType, Side, TemplateType,
    connect, info,
};

use super::world::{RecordedReport, contact_of, desired, pair_of};

/// A node port that is taken.
const TAKEN: u16 = 31_999;

pub(crate) async fn changes_nothing(world: &World) {
    // It passes no field on.
    let template = json!({"spec": {"template": {"metadata": {}, "spec": {"service": {"spec": {
        "ports": [{"port": "{{ .Spec.Endpoint.Port }}"}],
    }}}}}});
    world.remote.put::<WgGatewayServerTemplate>("liqo", "bare", template).await;
    let service = json!({"spec": {
        "type": "NodePort", "ports": [{"port": 80, "nodePort": TAKEN, "protocol": "UDP"}],
    }});
    world.remote.put::<Service>("liqo", "other", service).await;
    let before = world.content().await;

    for (change, says) in [
        (
            pair(|pair| pair.remote.client = pair.local.client.clone()),
            "both sides are cluster \"rome\": name another one with --remote-kubeconfig",
        ),
        (
            // As in the README, where no ConfigMap has an id.
            pair(|pair| {
                pair.remote.client = pair.local.client.clone();
                for (context, id) in [(&mut pair.local, "rome"), (&mut pair.remote, "milan")] {
                    context.cluster_id = Some(id.to_owned());
                    context.liqo_namespace = "default".to_owned();
                }
            }),
            "both sides are cluster \"rome\": name another one with --remote-kubeconfig",
        ),
        (
            pair(|pair| {
                pair.remote.cluster_id = Some("rome".to_owned());
                pair.remote.liqo_namespace = "default".to_owned();
            }),
            "two clusters have the id \"rome\": give one of them another",
        ),
        (
            pair(|pair| pair.remote.cluster_id = Some("paris".to_owned())),
            "(remote) this is cluster \"milan\", not \"paris\": leave --remote-cluster-id out",
        ),
        (
            pair(|pair| pair.local.cluster_id = Some("Rome".to_owned())),
            "(local) \"Rome\" is no cluster id",
        ),
        (
            pair(|pair| pair.local.liqo_namespace = "default".to_owned()),
            "(local) no ConfigMap liqo-clusterid-configmap with the key CLUSTER_ID in namespace \
             default: pass --cluster-id",
        ),
        (
            pair(|pair| {
                pair.local.liqo_namespace = "default".to_owned();
                pair.local.cluster_id = Some("rome".to_owned());
            }),
            "(local) no Network with the label ipam.liqo.io/network-type=pod-cidr in namespace default",
        ),
        (
            pair(|pair| pair.remote.namespace = Some("tenant".to_owned())),
            "(remote) namespace tenant does not exist: make it, or leave the flag out for liqo-tenant-rome",
        ),
        (
            asks(|wanted| wanted.exposure.node_port = Some(NodePort::Exactly(80))),
            "(remote) port 80 is not among those of nodes, 30000 to 32767: choose another \
             --gw-server-service-nodeport, or pass --skip-validation if this cluster has others",
        ),
        (
            asks(|wanted| wanted.exposure.node_port = Some(NodePort::Exactly(TAKEN))),
            "(remote) port 31999 cannot be had on the nodes: Invalid value: 31999: provided port is \
             already allocated; choose another --gw-server-service-nodeport",
        ),
        (
            asks(|wanted| {
                wanted.server_template.name = Some("bare".to_owned());
                wanted.exposure.node_port = Some(NodePort::Exactly(30742));
            }),
            "(remote) template \"bare\" has no nodePort in spec.template.spec.service.spec.ports[0]: \
             add `?nodePort: \"{{ .Spec.Endpoint.NodePort }}\"` there, or leave \
             --gw-server-service-nodeport out",
        ),
        (
            asks(|wanted| {
                wanted.server_template.name = Some("bare".to_owned());
                wanted.exposure.service_type = Some(ServiceType::LoadBalancer);
                wanted.exposure.load_balancer_ip = Some("198.51.100.7".to_owned());
            }),
            "(remote) template \"bare\" has no loadBalancerIP in spec.template.spec.service.spec: add",
        ),
        (
            asks(|wanted| wanted.client_template.name = Some("other".to_owned())),
            "(local) WgGatewayClientTemplate \"other\" is not in namespace liqo: choose one with \
             --gw-client-template-name",
        ),
        (
            asks(|wanted| {
                let type_ = TemplateType::parse("networking.liqo.io/v1beta1/others");
                wanted.server_template.type_ = type_.ok();
            }),
            "(remote) there is no resource \"networking.liqo.io/v1beta1/others\": write",
        ),
        (
            asks(|wanted| {
                let type_ = TemplateType::parse("example.com/v1/others");
                wanted.server_template.type_ = type_.ok();
            }),
            "(remote) there is no resource \"example.com/v1/others\": write",
        ),
    ] {
        let error = refusal(world, change, says).await;

        assert!(error.to_string().starts_with(says), "{error}");
        let is_of_the_cluster = matches!(error, CommandError::Prefixes { .. });
        assert!(error.is_usage() || is_of_the_cluster, "{error}");
    }
    assert_eq!(world.content().await, before);

    unreachable_servers_are_named(world).await;
}

async fn unreachable_servers_are_named(world: &World) {
    let unreachable = Config::new("http://127.0.0.1:1".parse().unwrap());
    let unreachable = client(unreachable, Part::Command).unwrap();
    let error = refusal(world, pair(|pair| pair.remote.client = unreachable), "unreachable")
        .await
        .to_string();
    assert!(
        error.starts_with(
            "(remote) An error occurred while reading the cluster id in namespace liqo: "
        ),
        "{error}"
    );
    assert!(error.contains("Connection refused"), "{error}");
    assert!(error.ends_with("; is the API server of this context there?"), "{error}");

    let unprivileged: Client = world.local.server.client_with("liqo", &no_rights()).await;
    let error = refusal(world, pair(|pair| pair.local.client = unprivileged), "unprivileged")
        .await
        .to_string();
    assert!(error.contains("cannot list resource \"configmaps\""), "{error}");
    assert!(error.ends_with("; ask for these rights, or choose another context"), "{error}");
}

/// An API server that accepts the call and does not answer.
pub(crate) async fn is_not_waited_for_longer_than_typed(world: &World) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let frozen = client(Config::new(url.parse().unwrap()), Part::Command).unwrap();
    let (report, begin) = (RecordedReport::default(), Instant::now());
    let mut pair = pair_of(world);
    pair.remote.client = frozen;

    let session = report.session_of(Duration::from_secs(3));
    let error = connect(&pair, &desired(), session).await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "(remote) Failed waiting for the API server to answer (reading the cluster id in namespace \
         liqo): not within 3s; found no answer; look at `kubectl version`"
    );
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

/// A command without the flag would look for the other id.
pub(crate) async fn a_conflicting_generated_id_is_warned_of(world: &World) {
    world.local.put_cluster_wide::<Namespace>("generated", json!({})).await;
    let generated = json!({
        "metadata": {"annotations": {"strait.io/generated": "true"}},
        "data": {"CLUSTER_ID": "0d6f3c1d"},
    });
    world.local.put::<ConfigMap>("generated", "liqo-clusterid-configmap", generated).await;
    let context = |id: Option<&str>| ClusterContext {
        cluster_id: id.map(str::to_owned),
        liqo_namespace: "generated".to_owned(),
        ..contact_of(&world.local, Side::Only)
    };
    let report = RecordedReport::default();

    let found = info(&context(Some("rome")), report.session()).await.unwrap();
    assert_eq!(found.cluster_id, "rome");
    assert_eq!(
        report.lines(),
        ["warning: its ConfigMap has the generated id 0d6f3c1d: pass --cluster-id rome to every \
             command, or replace that ConfigMap by one with CLUSTER_ID=rome"]
    );
    for same in [None, Some("0d6f3c1d")] {
        info(&context(same), report.session()).await.unwrap();
        assert_eq!(report.lines(), [""; 0]);
    }
}

/// A cluster whose certificate is signed by another authority.
pub(crate) async fn a_certificate_is_called_untrusted(world: &World) {
    let kubeconfig = world.remote.server.kubeconfig_of_admin();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.root_cert = None;
    config.accept_invalid_certs = false;
    let mut pair = pair_of(world);
    pair.remote.client = client(config, Part::Command).unwrap();

    let error = connect(&pair, &desired(), RecordedReport::default().session())
        .await
        .unwrap_err()
        .to_string();

    assert!(
        error.contains("namespace liqo: the certificate of the API server is not trusted: Unknown"),
        "{error}"
    );
    assert!(error.ends_with("; check certificate-authority of this cluster in the kubeconfig"));
}

type Change = Box<dyn FnOnce(&mut Pair, &mut Connect)>;

fn pair(change: impl FnOnce(&mut Pair) + 'static) -> Change {
    Box::new(|pair, _| change(pair))
}

fn asks(change: impl FnOnce(&mut Connect) + 'static) -> Change {
    Box::new(|_, wanted| change(wanted))
}

async fn refusal(world: &World, change: Change, says: &str) -> CommandError {
    let report = RecordedReport::default();
    let (mut pair, mut wanted) = (pair_of(world), desired());
    change(&mut pair, &mut wanted);

    connect(&pair, &wanted, report.session()).await.expect_err(says)
}
