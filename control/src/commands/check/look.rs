//! What there is in a cluster, as far as whoever asks may see it.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::contact::{End, own_id};
use super::super::plan::OPERATOR;
use super::super::{CommandError, Contact, Prefixes, keys, prefixes};
use super::api::{NEEDED, Served};
use super::{Finding, named};
use crate::api::{
    Configuration, Connection, GatewayClient, GatewayServer, IP, Network, PublicKey,
    WgGatewayClientTemplate, WgGatewayServerTemplate,
};
use crate::identity::Mode;
use crate::objects::REMOTE_CLUSTER_ID;

/// The Lease of the operators.
pub(super) const LEASE: &str = "strait-operator";

/// Liqo's own operator.
const LIQO: &str = "liqo-controller-manager";

/// What there is under a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Sight<T> {
    /// This.
    There(T),
    /// Nothing.
    #[default]
    Missing,
    /// Nobody can say: it may not be seen, or cannot be read.
    Hidden,
}

impl<T> Sight<T> {
    /// It, if it can be seen.
    pub(super) const fn seen(&self) -> Option<&T> {
        match self {
            Self::There(it) => Some(it),
            Self::Missing | Self::Hidden => None,
        }
    }
}

/// All of it. A list is `None` if it may not be seen, or if the API server does not know the kind.
#[derive(Default)]
pub(super) struct Facts {
    /// When that was.
    pub(super) now: Timestamp,
    /// Where Liqo or Strait is installed.
    pub(super) namespace: String,
    /// Which cluster it is, if anybody knows.
    pub(super) cluster_id: Option<String>,
    pub(super) served: Served,
    pub(super) operators: Option<Vec<Deployment>>,
    pub(super) liqo: Sight<Deployment>,
    pub(super) lease: Sight<Lease>,
    pub(super) networks: Option<Vec<Network>>,
    pub(super) ips: Option<Vec<IP>>,
    pub(super) configurations: Option<Vec<Configuration>>,
    pub(super) public_keys: Option<Vec<PublicKey>>,
    pub(super) connections: Option<Vec<Connection>>,
    pub(super) nodes: Option<Vec<Node>>,
    /// That of the API server.
    pub(super) api_service: Sight<Service>,
    /// Both ends, as far as they may be seen.
    pub(super) gateways: Vec<GatewayFacts>,
    /// Whether there may be others.
    pub(super) hides_gateways: bool,
    /// What may not be seen, or cannot be read.
    pub(super) blind: Vec<Finding>,
}

/// A gateway and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct GatewayFacts {
    pub(super) mode: Mode,
    /// As the API server has it.
    pub(super) object: Value,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The cluster at the other end.
    pub(super) remote: Option<String>,
    /// Kind, namespace and name of its template, as it refers to it.
    pub(super) template_ref: Option<[String; 3]>,
    /// What that says. One of a kind that is not ours is left to its maker, and hidden.
    pub(super) template: Sight<Value>,
    pub(super) deployment: Sight<Deployment>,
    pub(super) service: Sight<Service>,
    /// The names of those; `None` if they may not be seen.
    pub(super) active_pods: Option<Vec<String>>,
    /// Those that may be its own; `None` if they may not be seen.
    pub(super) secrets: Option<Vec<Secret>>,
}

/// One round of questions.
struct Looking<'a, 'b> {
    end: &'a End<'b>,
    blind: Vec<Finding>,
}

impl Facts {
    /// Asks for everything.
    pub(super) async fn look(contact: &Contact, end: &End<'_>) -> Result<Self, CommandError> {
        let served = served(end).await?;
        let mut look = Looking { end, blind: Vec::new() };
        let namespace = end.liqo_namespace.as_str();
        let cluster_id = look.cluster_id(contact).await?;
        let all = &ListParams::default();
        let operators = &ListParams::default().labels(OPERATOR);
        let scope = Some(end.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let here = Some(namespace);
        let mut facts = Self {
            now: Timestamp::now(),
            namespace: namespace.to_owned(),
            cluster_id,
            served,
            operators: look.list(here, operators).await?,
            liqo: look.get(here, LIQO).await?,
            lease: look.get(here, LEASE).await?,
            networks: look.list(None, all).await?,
            ips: look.list(None, all).await?,
            configurations: look.list(scope, all).await?,
            public_keys: look.list(scope, all).await?,
            connections: look.list(scope, all).await?,
            nodes: look.list(None, all).await?,
            api_service: look.get(Some("default"), "kubernetes").await?,
            gateways: Vec::new(),
            hides_gateways: false,
            blind: Vec::new(),
        };
        let servers = look.list::<GatewayServer>(scope, all).await?;
        let clients = look.list::<GatewayClient>(scope, all).await?;
        facts.hides_gateways = servers.is_none() || clients.is_none();
        for server in servers.iter().flatten() {
            facts.gateways.extend(look.gateway(Mode::Server, server).await?);
        }
        for client in clients.iter().flatten() {
            facts.gateways.extend(look.gateway(Mode::Client, client).await?);
        }
        facts.blind = look.blind;

        Ok(facts)
    }

    /// What the cluster says of itself, if that makes sense.
    pub(super) fn prefixes(&self) -> Option<Prefixes> {
        prefixes::of_cluster(&self.own_networks()?, &self.namespace).ok()
    }

    /// Those of the installation, if they may be seen.
    pub(super) fn own_networks(&self) -> Option<Vec<Network>> {
        let all = self.networks.as_ref()?.iter();
        let own = all.filter(|network| network.namespace().as_deref() == Some(&self.namespace));

        Some(own.cloned().collect())
    }

    /// What makes gateways, if that is ours and nobody else does.
    pub(super) fn only_operator(&self) -> Option<&Deployment> {
        let operator = self.operators.as_ref()?.first()?;

        matches!(self.liqo, Sight::Missing).then_some(operator)
    }
}

impl Looking<'_, '_> {
    /// All of `namespace`, or of all, that `parameters` select; `None` if they may not be seen.
    async fn list<K>(
        &mut self,
        namespace: Option<&str>,
        parameters: &ListParams,
    ) -> Result<Option<Vec<K>>, CommandError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = api(self.end, &resource, namespace);
        let doing = format!("listing {}", resource.plural);
        let list = async || match api.list(parameters).await {
            // The API server does not know the kind, which is a finding of its own.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            list => list.map(|list| Some(list.items)),
        };
        let Some(found) = self.end.ask(&doing, list).await? else {
            self.hidden(&format!("list {}", resource.plural));
            return Ok(None);
        };

        Ok(found.map(|found| found.into_iter().filter_map(|it| self.read(&resource, it)).collect()))
    }

    /// The object of this name.
    async fn get<K>(
        &mut self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Sight<K>, CommandError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());

        Ok(match self.named(&resource, namespace, name).await? {
            Sight::There(found) => self.read(&resource, found).map_or(Sight::Hidden, Sight::There),
            Sight::Missing => Sight::Missing,
            Sight::Hidden => Sight::Hidden,
        })
    }

    /// The object of this kind and name, whatever is in it.
    async fn named(
        &mut self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Sight<DynamicObject>, CommandError> {
        let api = api(self.end, resource, namespace);
        let doing = format!("reading {} {name}", resource.plural);
        let found = self.end.ask(&doing, async || api.get_opt(name).await).await?;

        Ok(match found {
            Some(Some(found)) => Sight::There(found),
            Some(None) => Sight::Missing,
            None => {
                self.hidden(&format!("get {}", resource.plural));
                Sight::Hidden
            }
        })
    }

    /// What `object` is. That it is something else is noted.
    fn read<K: DeserializeOwned>(
        &mut self,
        resource: &ApiResource,
        object: DynamicObject,
    ) -> Option<K> {
        let (namespace, name) = (object.namespace(), object.name_any());
        match serde_json::to_value(object).and_then(serde_json::from_value) {
            Ok(object) => Some(object),
            Err(error) => {
                let object = named(&resource.kind, namespace.as_deref(), &name);
                let remedy = "write it as its definition says".to_owned();
                let finding = Finding::error(object, "Unreadable", error.to_string(), remedy);
                self.blind.push(finding);
                None
            }
        }
    }

    /// Notes that whoever asks may not do that.
    fn hidden(&mut self, verb: &str) {
        let finding = Finding::warning(
            "your account".to_owned(),
            "NotAllowed",
            format!("it may not {verb}, so what is wrong there is not seen"),
            "ask for that right, or choose another context".to_owned(),
        );
        if !self.blind.contains(&finding) {
            self.blind.push(finding);
        }
    }

    /// Which cluster it is, if that is known: as the installation says it, or whoever asks.
    async fn cluster_id(&mut self, contact: &Contact) -> Result<Option<String>, CommandError> {
        match own_id(contact).await {
            Ok(id) => Ok(Some(id)),
            Err(CommandError::Call { is_forbidden: true, .. }) => {
                self.hidden("list configmaps");
                Ok(contact.cluster_id.clone())
            }
            Err(error @ CommandError::NoClusterId { .. }) => {
                let namespace = Some(contact.liqo_namespace.as_str());
                let object = named("ConfigMap", namespace, "clusterid-configmap");
                let remedy = "`strait network` and `strait generate` need it".to_owned();
                let message = error.to_string();
                self.blind.push(Finding::warning(object, "NoClusterID", message, remedy));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A gateway and what belongs to it; `None` if it is no object.
    async fn gateway(
        &mut self,
        mode: Mode,
        object: &(impl Resource<DynamicType = ()> + Serialize),
    ) -> Result<Option<GatewayFacts>, CommandError> {
        let Ok(value) = serde_json::to_value(object) else { return Ok(None) };
        let metadata = object.meta();
        let name = metadata.name.clone().unwrap_or_default();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let remote = metadata.labels.as_ref().and_then(|labels| labels.get(REMOTE_CLUSTER_ID));
        let remote = remote.cloned();
        let here = Some(namespace.as_str());
        let own_name = format!("gw-{name}");
        let deployment = self.get(here, &own_name).await?;
        let service = match mode {
            Mode::Server => self.get(here, &own_name).await?,
            Mode::Client => Sight::Missing,
        };
        let active = format!("{}=true,app.kubernetes.io/name={name}", crate::active::ACTIVE);
        let pods = self.list::<Pod>(here, &ListParams::default().labels(&active)).await?;
        let is_alive = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        let alive = |pods: Vec<Pod>| pods.into_iter().filter(is_alive);
        let active_pods = pods.map(|pods| alive(pods).map(|pod| pod.name_any()).collect());
        let of_peering = format!("{REMOTE_CLUSTER_ID}={}", remote.as_deref().unwrap_or_default());
        let selector = keys::selector(&of_peering);
        let secrets = self.list(here, &ListParams::default().labels(&selector)).await?;
        let template_ref = template_ref(mode, &value, &namespace);
        let template = match &template_ref {
            Some(reference) => self.template(mode, reference).await?,
            None => Sight::Missing,
        };

        Ok(Some(GatewayFacts {
            mode,
            object: value,
            namespace,
            name,
            remote,
            template_ref,
            template,
            deployment,
            service,
            active_pods,
            secrets,
        }))
    }

    /// What the template says.
    async fn template(
        &mut self,
        mode: Mode,
        [kind, namespace, name]: &[String; 3],
    ) -> Result<Sight<Value>, CommandError> {
        let resource = match mode {
            Mode::Server => ApiResource::erase::<WgGatewayServerTemplate>(&()),
            Mode::Client => ApiResource::erase::<WgGatewayClientTemplate>(&()),
        };
        if *kind != resource.kind {
            return Ok(Sight::Hidden);
        }

        Ok(match self.named(&resource, Some(namespace), name).await? {
            Sight::There(found) => {
                Sight::There(found.data.get("spec").cloned().unwrap_or_default())
            }
            Sight::Missing => Sight::Missing,
            Sight::Hidden => Sight::Hidden,
        })
    }
}

/// The objects of a kind in `namespace`, or in all.
fn api(end: &End<'_>, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(end.client.clone(), namespace, resource),
        None => Api::all_with(end.client.clone(), resource),
    }
}

/// Kind, namespace and name of the template, with what the operator takes for what is left out.
fn template_ref(mode: Mode, object: &Value, own_namespace: &str) -> Option<[String; 3]> {
    let field = match mode {
        Mode::Server => "serverTemplateRef",
        Mode::Client => "clientTemplateRef",
    };
    let reference = object.get("spec")?.get(field)?;
    let text =
        |field: &str| reference.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind = text("kind").map_or_else(|| format!("WgGateway{mode}Template"), str::to_owned);

    Some([kind, text("namespace").unwrap_or(own_namespace).to_owned(), text("name")?.to_owned()])
}

/// What the API server knows of the groups that matter.
async fn served(end: &End<'_>) -> Result<Served, CommandError> {
    let groups = end
        .call("asking for the API groups", async || end.client.list_api_groups().await)
        .await?
        .groups;
    let mut served = Served::new();
    let is_ours =
        |name: &str| NEEDED.keys().any(|version| version.starts_with(&format!("{name}/")));
    let versions = groups.into_iter().filter(|group| is_ours(&group.name));
    for version in versions.flat_map(|group| group.versions) {
        let version = version.group_version;
        let doing = format!("asking what {version} has");
        let found =
            end.call(&doing, async || end.client.list_api_group_resources(&version).await).await?;
        let plurals = found.resources.into_iter().map(|resource| resource.name);
        served.insert(version, plurals.collect());
    }

    Ok(served)
}
