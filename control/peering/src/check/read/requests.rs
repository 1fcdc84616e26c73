//! The single requests, and what may not be read.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::identity::Mode;
use strait_api::labels::{REMOTE_CLUSTER_ID, gateway_index};
use strait_api::{WgGatewayClientTemplate, WgGatewayServerTemplate};

use super::super::super::context::{PeeringSide, own_id};
use super::super::super::{ClusterContext, CommandError, cause, keys};
use super::super::api::{NEEDED, Served};
use super::super::{Finding, named};
use super::{GatewayFacts, Visibility};

/// One round of requests.
pub(super) struct Reader<'a, 'b> {
    pub(super) end: &'a PeeringSide<'b>,
    pub(super) unreadable: Vec<Finding>,
    /// Whether any request was answered.
    pub(super) was_answered: bool,
}

impl Reader<'_, '_> {
    /// The objects of `namespace`, or of all, that `parameters` select; `None` if they may not be read.
    pub(super) async fn list<K>(
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
        self.was_answered = true;

        Ok(found.map(|found| found.into_iter().filter_map(|it| self.read(&resource, it)).collect()))
    }

    /// The object of this name.
    pub(super) async fn get<K>(
        &mut self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Visibility<K>, CommandError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());

        let found = self.object(&resource, namespace, name).await?;

        Ok(found.and_then(|found| {
            self.read(&resource, found).map_or(Visibility::Hidden, Visibility::Found)
        }))
    }

    /// The object of this kind and name, valid or not.
    async fn object(
        &mut self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Visibility<DynamicObject>, CommandError> {
        let api = api(self.end, resource, namespace);
        let doing = format!("reading {} {name}", resource.plural);
        let found = self.end.ask(&doing, async || api.get_opt(name).await).await?;

        self.was_answered |= found.is_some();
        Ok(match found {
            Some(Some(found)) => Visibility::Found(found),
            Some(None) => Visibility::Missing,
            None => {
                self.hidden(&format!("get {}", resource.plural));
                Visibility::Hidden
            }
        })
    }

    /// Parses `object`. A failure is recorded.
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
                self.unreadable.push(finding);
                None
            }
        }
    }

    /// Records that the user may not do that.
    fn hidden(&mut self, verb: &str) {
        let finding = Finding::warning(
            "your account".to_owned(),
            "NotAllowed",
            format!("it may not {verb}, so problems there are not reported"),
            "ask for that right, or choose another context".to_owned(),
        );
        if !self.unreadable.contains(&finding) {
            self.unreadable.push(finding);
        }
    }

    /// The cluster id, if it is known: from the installation, or from the user.
    pub(super) async fn cluster_id(
        &mut self,
        context: &ClusterContext,
    ) -> Result<Option<String>, CommandError> {
        match own_id(context, self.end.session).await {
            Ok(id) => {
                self.was_answered = true;
                Ok(Some(id))
            }
            Err(CommandError::Call { is_forbidden: true, .. }) => {
                self.hidden("list configmaps");
                Ok(context.cluster_id.clone())
            }
            Err(error @ CommandError::NoClusterId { .. }) => {
                let namespace = Some(context.liqo_namespace.as_str());
                let object = named("ConfigMap", namespace, "liqo-clusterid-configmap");
                let remedy = "`strait network` and `strait generate` need it".to_owned();
                let message = error.to_string();
                self.unreadable.push(Finding::warning(object, "NoClusterID", message, remedy));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A gateway and its objects; `None` if the object is invalid.
    pub(super) async fn gateway(
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
            Mode::Client => Visibility::Missing,
        };
        let active = format!("{}=true,app.kubernetes.io/name={name}", strait_api::labels::ACTIVE);
        let pods = self.list::<Pod>(here, &ListParams::default().labels(&active)).await?;
        let is_alive = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        let alive = |pods: Vec<Pod>| pods.into_iter().filter(is_alive);
        let active_pods = pods.map(|pods| alive(pods).map(|pod| pod.name_any()).collect());
        let of_peering = format!("{REMOTE_CLUSTER_ID}={}", remote.as_deref().unwrap_or_default());
        let selector = keys::selector(&of_peering);
        let secrets = self.list(here, &ListParams::default().labels(&selector)).await?;
        let cause = cause::find(self.end, &namespace, &name).await;
        let template_ref = template_ref(mode, &value, &namespace);
        let template = match &template_ref {
            Some(reference) => self.template(mode, reference).await?,
            None => Visibility::Missing,
        };

        Ok(Some(GatewayFacts {
            mode,
            object: value,
            namespace,
            name,
            remote,
            index: gateway_index(object).map_err(str::to_owned),
            template_ref,
            template,
            deployment,
            service,
            active_pods,
            secrets,
            cause,
        }))
    }

    /// The spec of the template.
    async fn template(
        &mut self,
        mode: Mode,
        [kind, namespace, name]: &[String; 3],
    ) -> Result<Visibility<Value>, CommandError> {
        let resource = match mode {
            Mode::Server => ApiResource::erase::<WgGatewayServerTemplate>(&()),
            Mode::Client => ApiResource::erase::<WgGatewayClientTemplate>(&()),
        };
        if *kind != resource.kind {
            return Ok(Visibility::Hidden);
        }

        let found = self.object(&resource, Some(namespace), name).await?;
        let spec = |found: DynamicObject| found.data.get("spec").cloned().unwrap_or_default();

        Ok(found.and_then(|found| Visibility::Found(spec(found))))
    }
}

/// The objects of a kind in `namespace`, or in all.
fn api(
    end: &PeeringSide<'_>,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(end.client.clone(), namespace, resource),
        None => Api::all_with(end.client.clone(), resource),
    }
}

/// Kind, namespace and name of the template, with the operator's defaults for missing fields.
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

/// The part of the needed API groups that the API server serves.
pub(super) async fn served(end: &PeeringSide<'_>) -> Result<Served, CommandError> {
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
