//! The objects of the cluster.

use super::*;

impl World {
    /// Makes the gateway on a node the active one, in place of any other.
    pub(crate) fn put_gateway(&self, node: usize) {
        self.runtime.block_on(remove_pods(&self.admin));
        self.add_gateway_pod(node, json!({"networking.liqo.io/active": "true"}));
    }

    /// Has a replica of the gateway run on a node, which is not the active one.
    pub(crate) fn stand_by(&self, node: usize) {
        self.add_gateway_pod(node, json!({"networking.liqo.io/active": "false"}));
    }

    /// A replica becomes the active one, as the one before is no more.
    pub(crate) fn take_over(&self, node: usize) {
        self.label(node, Some("true"));
    }

    /// The active one is that no more, and runs on.
    pub(crate) fn step_down(&self, node: usize) {
        self.label(node, None);
    }

    fn label(&self, node: usize, is_active: Option<&str>) {
        let name = gateway_name(node);
        let label = json!({"metadata": {"labels": {"networking.liqo.io/active": is_active}}});
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), TENANT);
        self.runtime.block_on(async {
            pods.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
        });
    }

    /// Adds a gateway of the peering on a node, beside those that are there.
    pub(crate) fn add_gateway(&self, node: usize, edge: &str) {
        let labels = json!({
            "networking.liqo.io/active": "true", "strait.io/edge": edge,
            "networking.liqo.io/gateway-name": gateway_name(node),
        });

        self.add_gateway_pod(node, labels);
    }

    fn add_gateway_pod(&self, node: usize, mut labels: Value) {
        labels["networking.liqo.io/component"] = "gateway".into();
        let address = format!("10.244.{node}.9");
        let pod = json!({
            "metadata": {
                "name": gateway_name(node), "labels": labels,
            },
            "spec": {
                "nodeName": format!("node-{node}"), "containers": [{
                    "name": "strait", "image": "strait:dev",
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": STATE_PORT}},
                }],
            },
            "status": {"phase": "Running", "podIP": address, "podIPs": [
                {"ip": address}, {"ip": pod_address_ipv6(node, 9).to_string()},
            ]},
        });
        let admin = self.admin.clone();
        self.runtime.block_on(put::<Pod>(Api::namespaced(admin, TENANT), &pod));
    }

    /// There is a pod for the agent of a node, which is ready or not.
    pub(crate) fn put_agent(&self, node: usize, is_ready: bool) {
        self.put_agent_in(AGENTS, node, is_ready);
    }

    /// The same, in another namespace.
    pub(crate) fn put_agent_in(&self, namespace: &str, node: usize, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {
                "name": format!("strait-node-{node}"),
                "labels": {"app.kubernetes.io/name": "strait-node"},
            },
            "spec": {
                "nodeName": format!("node-{node}"), "containers": [{"name": "node", "image": "strait:dev"}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
        });
        let admin = self.admin.clone();
        self.runtime.block_on(put::<Pod>(Api::namespaced(admin, namespace), &pod));
    }

    /// No pod of a gateway is there any more, as far as the API server knows; what carried packets goes on.
    pub(crate) fn remove_gateway(&self) {
        self.runtime.block_on(remove_pods(&self.admin));
    }

    pub(crate) fn put_configuration(&self, names: &[&str]) {
        let remote = names.iter().enumerate().map(|(number, name)| match name.split_once("::") {
            Some((_, len)) => format!("fd01:{number}::{len}"),
            None => format!("10.{number}.0.0/16"),
        });
        let remote: Vec<_> = remote.collect();
        let configuration = json!({
            "metadata": {
                "name": CONFIGURATION, "labels": {"liqo.io/remote-cluster-id": CONFIGURATION},
            },
            "spec": {
                "local": {"cidr": {"pod": ["10.244.0.0/16"]}}, "remote": {"cidr": {"pod": remote}},
            },
            "status": {"remote": {"cidr": {"pod": names}}},
        });
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);

        self.runtime.block_on(put(api, &configuration));
    }

    /// What nodes are to have said already.
    pub(crate) fn say(&self, message: &str) {
        let condition = json!({
            "type": NODE_ROUTES, "status": "False", "reason": "NodeProblem", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);
        let patch =
            async { api.patch_status(CONFIGURATION, &PatchParams::default(), &status).await };

        self.runtime.block_on(patch).unwrap();
    }

    /// Has the Node of a node have these addresses.
    pub(crate) fn set_addresses(&self, node: usize, addresses: &[IpAddr]) {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address.to_string()}))
            .collect();
        let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
        let api: Api<Node> = Api::all(self.admin.clone());
        let patch = async {
            api.patch_status(&format!("node-{node}"), &PatchParams::default(), &status).await
        };

        self.runtime.block_on(patch).unwrap();
    }

    pub(crate) fn remove_configuration(&self) {
        let api: Api<Configuration> = Api::namespaced(self.admin.clone(), TENANT);

        self.runtime.block_on(api.delete(CONFIGURATION, &DeleteParams::default())).unwrap();
    }
}

/// Objects that are always there, and a kubeconfig with the rights of an agent.
pub(super) async fn prepare(server: &ApiServer, folder: &Path) -> Client {
    let admin = server.client().await;
    for name in [TENANT, AGENTS] {
        let namespace: KubeNamespace = object(json!({"metadata": {"name": name}}));
        create(Api::all(admin.clone()), &namespace).await;
    }
    for number in 1..=3 {
        let node = json!({
            "metadata": {"name": format!("node-{number}")},
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
            "status": {"addresses": [
                {"type": "InternalIP", "address": node_address(number).to_string()},
                {"type": "InternalIP", "address": node_address_ipv6(number).to_string()},
            ]},
        });
        put::<Node>(Api::all(admin.clone()), &node).await;
    }
    let mut kubeconfig = server.kubeconfig_with(AGENTS, &node_role()).await;
    for context in kubeconfig.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        context.namespace = Some(AGENTS.to_owned());
    }
    fs::write(folder.join("kubeconfig"), serde_json::to_vec(&kubeconfig).unwrap()).unwrap();

    admin
}

async fn remove_pods(admin: &Client) {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), TENANT);
    let now = DeleteParams::default().grace_period(0);
    for pod in pods.list(&Default::default()).await.unwrap() {
        pods.delete(pod.metadata.name.as_deref().unwrap(), &now).await.unwrap();
    }
}

/// Makes or changes an object and its status.
async fn put<K>(api: Api<K>, value: &Value)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let wanted: K = object(value.clone());
    let name = wanted.meta().name.clone().unwrap();
    if api.get_opt(&name).await.unwrap().is_none() {
        api.create(&PostParams::default(), &wanted).await.unwrap();
    } else {
        let spec = Patch::Merge(json!({"spec": value["spec"]}));
        api.patch(&name, &PatchParams::default(), &spec).await.unwrap();
    }
    let status = Patch::Merge(json!({"status": value["status"]}));
    api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}
