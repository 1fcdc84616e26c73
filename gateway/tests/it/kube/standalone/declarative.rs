//! Two administrators who tell each other nothing but files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use strait_lab::Layout;
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use super::Two;
use super::site::Site;
use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{PATIENCE, wait_for_ping};

/// As Liqo's documentation has it, with a fixed port and keys of the administrator.
const SERVER: &str = "
apiVersion: networking.liqo.io/v1beta1
kind: GatewayServer
metadata:
  labels:
    liqo.io/remote-cluster-id: milan
  name: server
spec:
  mtu: 1340
  endpoint:
    port: 30742
    serviceType: NodePort
    nodePort: 30742
  serverTemplateRef:
    apiVersion: networking.liqo.io/v1beta1
    kind: WgGatewayServerTemplate
    name: wireguard-server
    namespace: liqo
  secretRef:
    name: my-keys
";

const CLIENT: &str = "
apiVersion: networking.liqo.io/v1beta1
kind: GatewayClient
metadata:
  labels:
    liqo.io/remote-cluster-id: rome
  name: client
spec:
  mtu: 1340
  endpoint:
    addresses: [ADDRESS]
    port: PORT
    protocol: UDP
  clientTemplateRef:
    apiVersion: networking.liqo.io/v1beta1
    kind: WgGatewayClientTemplate
    name: wireguard-client
    namespace: liqo
";

#[test]
fn files_join_clusters_and_switch_the_template() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(two) = Two::start(&Layout::equal()) else {
        return;
    };
    let (rome, milan) = (&two.rome, &two.milan);
    for (site, other) in [(rome, "milan"), (milan, "rome")] {
        let id = "configmap/clusterid-configmap";
        site.shell(&format!(
            "kubectl --namespace=liqo create configmap clusterid-configmap --from-literal=CLUSTER_ID={}
             kubectl --namespace=liqo label {id} app.kubernetes.io/name=clusterid-configmap
             kubectl create namespace liqo-tenant-{other}",
            site.name
        ));
    }
    let in_rome = |line: &str| rome.shell(&format!("kubectl -n liqo-tenant-milan {line}"));
    let in_milan = |line: &str| milan.shell(&format!("kubectl -n liqo-tenant-rome {line}"));

    // Each learns the prefixes of the other, and gives them names.
    for (from, to) in [(rome, milan), (milan, rome)] {
        tell(from, to, "strait generate configuration");
    }
    let named = "--timeout=30s --for=jsonpath={.status.remote.cidr.pod[0]}=10.71.0.0/16";
    in_rome(&format!("wait configuration/milan {named}"));
    in_milan(&format!("wait configuration/rome {named}"));

    // The server, with a key that is there already.
    let key = PrivateKey::generate();
    let text = [key.to_base64().to_string(), key.public_key().to_string()];
    for (file, text) in ["privateKey", "publicKey"].iter().zip(&text) {
        rome.write(file, STANDARD.decode(text).unwrap());
    }
    in_rome(
        "create secret generic my-keys --from-file=$HOME/privateKey --from-file=$HOME/publicKey",
    );
    rome.apply("liqo-tenant-milan", SERVER);
    in_rome(
        "wait gatewayserver/server --timeout=30s --for=jsonpath={.status.endpoint.addresses[0]}",
    );
    let address = in_rome("get gatewayserver server -o jsonpath={.status.endpoint.addresses[0]}");
    let port = in_rome("get gatewayserver server -o jsonpath={.status.endpoint.port}");
    assert_eq!((&*address, &*port), (&*two.clusters.rome.underlay.to_string(), "30742"));

    // The client, which makes its keys itself.
    let client = CLIENT.replace("ADDRESS", &address).replace("PORT", &port);
    milan.apply("liqo-tenant-rome", &client);
    in_milan("wait gatewayclient/client --timeout=30s --for=jsonpath={.status.secretRef.name}");

    // Each learns the key of the other.
    let generate = "strait generate publickey --gateway-type";
    let said =
        tell(rome, milan, &format!("{generate} server --gateway-name server -n liqo-tenant-milan"));
    assert!(said.contains(&text[1]), "{said}");
    tell(milan, rome, &format!("{generate} client --gateway-name client -n liqo-tenant-rome"));
    for wait in ["--for=create", "--for=jsonpath={.status.value}=Connected"] {
        in_rome(&format!("wait connection/gw-server --timeout=30s {wait}"));
        in_milan(&format!("wait connection/gw-client --timeout=30s {wait}"));
    }
    wait_for_ping(&two.clusters.rome.pod, two.target());
    two.assert_traffic();
    assert!(rome.shell("strait status").contains("Healthy"));

    goes_over_to_another_template(rome);
    wait_for_ping(&two.clusters.rome.pod, two.target());
    two.assert_traffic();

    // What they have made goes; what they had before stays.
    in_milan("delete gatewayclient/client publickey/rome configuration/rome");
    in_rome("delete gatewayserver/server publickey/milan configuration/milan");
    for site in [rome, milan] {
        wait_until("nothing of the gateway is left", PATIENCE, || {
            let [deployments, services, rights, own_rights, _, keys, connections] = site.remains();
            Ok([deployments, services, rights, own_rights, keys, connections] == [0; 6])
        })
        .unwrap_or_else(|_| panic!("{:?}", site.remains()));
    }
    let kept = in_rome("get secret my-keys -o jsonpath={.data.publicKey}");
    assert_eq!(kept, text[1]);
}

/// What `from` says with `command` is brought to `to`, and said here.
fn tell(from: &Site, to: &Site, command: &str) -> String {
    let said = from.shell(command);
    to.apply(&format!("liqo-tenant-{}", from.name), &said);

    said
}

/// One flag more, and nothing of the gateway but its pod is another one.
fn goes_over_to_another_template(site: &Site) {
    const FLAG: &str = "--dns-check-interval=1m";
    let read = "kubectl -n liqo get wggatewayservertemplate wireguard-server -o json";
    let mut template: Value = serde_json::from_str(&site.shell(read)).unwrap();
    template["metadata"] = json!({"name": "another"});
    let container = "/spec/template/spec/deployment/spec/template/spec/containers/0/args";
    template.pointer_mut(container).unwrap().as_array_mut().unwrap().push(json!(FLAG));
    let kubectl = |line: &str| site.shell(&format!("kubectl -n liqo-tenant-milan {line}"));
    let who = "get deployment,service,secret,serviceaccount -o jsonpath={.items[*].metadata.uid}";
    let before = kubectl(who);
    let pods = "get pods -o jsonpath={.items[*].metadata.name}";
    let former = kubectl(pods);

    site.apply("liqo", &template.to_string());
    kubectl(
        r#"patch gatewayserver server --type=merge --patch='{"spec":{"serverTemplateRef":{"name":"another"}}}'"#,
    );
    let flags = "jsonpath={.spec.template.spec.containers[0].args}";
    wait_until("the flag is there", PATIENCE, || {
        Ok(kubectl(&format!("get deployment gw-server -o {flags}")).contains(FLAG))
    })
    .unwrap();
    kubectl("rollout status deployment/gw-server --timeout=30s");

    assert_eq!(kubectl(who), before);
    assert_ne!(kubectl(pods), former);
}
