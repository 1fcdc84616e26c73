//! Two clusters, and their objects.

mod stand_in;
pub mod transcript;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use strait_api::{
    Configuration, Connection, GatewayClient, GatewayServer, Network, PublicKey,
    WgGatewayClientTemplate, WgGatewayServerTemplate,
};

use crate::ApiServer;

pub use stand_in::{StandIn, Work};

/// Rome and Milan have the same pod CIDR.
pub struct World {
    /// Rome.
    pub local: Cluster,
    /// Milan.
    pub remote: Cluster,
}

/// One of the two clusters.
pub struct Cluster {
    /// Its API server.
    pub server: ApiServer,
    /// A client that may do everything.
    pub client: Client,
    /// The stand-in for the operator and the gateways.
    pub stand_in: StandIn,
}

impl World {
    /// `None` if no API server can run here.
    pub async fn start() -> Option<Self> {
        let local = Cluster::start("rome", "10.70.0.0/16").await?;
        let remote = Cluster::start("milan", "10.80.0.0/16").await?;

        Some(Self { local, remote })
    }

    /// Sets the work of the stand-ins in both.
    pub async fn set_work(&self, work: Work) {
        self.local.stand_in.set(work).await;
        self.remote.stand_in.set(work).await;
    }

    /// Everything in both that a verb might have changed, with its version.
    pub async fn content(&self) -> Vec<String> {
        let mut content = self.local.content().await;
        content.extend(self.remote.content().await);

        content
    }
}

impl Cluster {
    async fn start(id: &str, external: &str) -> Option<Self> {
        let server = ApiServer::start_with_api().await?;
        let client = server.client().await;
        let stand_in = StandIn::start(client.clone());
        let cluster = Self { server, client, stand_in };
        cluster.put_cluster_wide::<Namespace>("liqo", json!({})).await;
        let id = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "clusterid-configmap"}},
            "data": {"CLUSTER_ID": id},
        });
        cluster.put::<ConfigMap>("liqo", "liqo-clusterid-configmap", id).await;
        for (name, cidr) in [
            ("pod-cidr", "10.244.0.0/16"),
            ("external-cidr", external),
            ("service-cidr", "10.96.0.0/16"),
            ("internal-cidr", "10.90.0.0/16"),
        ] {
            let network = json!({
                "metadata": {"labels": {"ipam.liqo.io/network-type": name}},
                "spec": {"cidr": cidr}, "status": {"cidr": cidr},
            });
            cluster.put::<Network>("liqo", name, network).await;
        }
        cluster.put::<WgGatewayServerTemplate>("liqo", "wireguard-server", server_template()).await;
        let template = json!({"spec": {"template": {"metadata": {}, "spec": {}}}});
        cluster.put::<WgGatewayClientTemplate>("liqo", "wireguard-client", template).await;

        Some(cluster)
    }

    /// Creates or changes an object, its status as well.
    pub async fn put<K>(&self, namespace: &str, name: &str, object: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::namespaced_with(self.client.clone(), namespace, &resource);
        put::<K>(api, "stand-in", name, object).await;
    }

    /// [`Self::put`] by another writer, beside the first one.
    pub async fn put_as<K>(&self, writer: &str, namespace: &str, name: &str, object: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::namespaced_with(self.client.clone(), namespace, &resource);
        put::<K>(api, writer, name, object).await;
    }

    /// [`Self::put`] of an object without a namespace.
    pub async fn put_cluster_wide<K>(&self, name: &str, object: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let api = Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        put::<K>(api, "stand-in", name, object).await;
    }

    /// Objects of one kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The number of `Network`s.
    pub async fn networks(&self) -> usize {
        let all = Api::<Network>::all(self.client.clone());

        all.list(&Default::default()).await.unwrap().items.len()
    }

    /// Kind, namespace, name and version of everything that a verb might have changed.
    pub async fn content(&self) -> Vec<String> {
        // After a whole round of the stand-in: otherwise its own writes would make two readings differ.
        self.stand_in.whole_round().await;
        let mut content = Vec::new();
        self.list::<Namespace>(&mut content).await;
        self.list::<Configuration>(&mut content).await;
        self.list::<GatewayServer>(&mut content).await;
        self.list::<GatewayClient>(&mut content).await;
        self.list::<PublicKey>(&mut content).await;
        self.list::<Secret>(&mut content).await;
        self.list::<Service>(&mut content).await;
        self.list::<Connection>(&mut content).await;

        content
    }

    async fn list<K>(&self, content: &mut Vec<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        for object in api.list(&Default::default()).await.unwrap() {
            let namespace = object.namespace().unwrap_or_default();
            let version = object.resource_version().unwrap_or_default();
            // Without the namespaces of the server itself.
            if namespace != "kube-system" && !(resource.kind == "Service" && namespace == "default")
            {
                content.push(format!(
                    "{} {namespace}/{} {version}",
                    resource.kind,
                    object.name_any()
                ));
            }
        }
    }
}

async fn put<K>(api: Api<DynamicObject>, writer: &str, name: &str, mut object: Value)
where
    K: Resource<DynamicType = ()>,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"]["name"] = json!(name);
    let parameters = PatchParams::apply(writer).force();
    api.patch(name, &parameters, &Patch::Apply(&object)).await.expect("an object");
    if object.get("status").is_some() {
        api.patch_status(name, &parameters, &Patch::Apply(&object)).await.expect("a status");
    }
}

/// A template with all fields that can be requested.
pub fn server_template() -> Value {
    json!({"spec": {"template": {"metadata": {}, "spec": {"service": {"spec": {
        "?loadBalancerIP": "{{ .Spec.Endpoint.LoadBalancerIP }}",
        "ports": [{
            "port": "{{ .Spec.Endpoint.Port }}",
            "?nodePort": "{{ .Spec.Endpoint.NodePort }}",
        }],
    }}}}}})
}
