//! The label `networking.liqo.io/active`: it marks the active pod of a gateway. The Service of the gateway selects it,
//! and Liqo reads it.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use strait_api::identity::Identity;
use strait_api::labels::{ACTIVE, TRUE};

/// The label by which the pods of a gateway are found; its value is the name of the gateway.
const APP_NAME: &str = "app.kubernetes.io/name";

/// Sets and removes the label for one pod of a gateway.
#[derive(Clone, Debug)]
pub struct ActivePod {
    api: Api<Pod>,
    gateway: String,
    pod: String,
}

impl ActivePod {
    /// For the replica of a gateway that runs in `pod`. Sends no request yet.
    #[must_use]
    pub fn new(client: Client, identity: &Identity, pod: String) -> Self {
        let api = Api::namespaced(client, &identity.namespace);

        Self { api, gateway: identity.name.clone(), pod }
    }

    /// Removes the label from the other replicas, then sets it on this pod. Writes only what differs.
    ///
    /// # Errors
    ///
    /// The error of the API server, not found if this pod does not exist. May be called again.
    pub async fn claim(&self) -> kube::Result<()> {
        let replicas = ListParams::default().labels(&format!("{APP_NAME}={}", self.gateway));
        let replicas = self.api.list(&replicas).await?;
        let is_own = |pod: &&Pod| pod.name_any() == self.pod;
        // The others first, so that two pods never have the label at a time.
        for other in replicas.iter().filter(|pod| !is_own(pod) && is_active(pod)) {
            match self.label(&other.name_any(), None).await {
                // The pod was deleted, and its label with it.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                outcome => outcome?,
            }
        }

        match replicas.iter().find(is_own) {
            Some(own) if is_active(own) => Ok(()),
            Some(_) | None => self.label(&self.pod, Some(TRUE)).await,
        }
    }

    /// Removes the label from this pod.
    ///
    /// # Errors
    ///
    /// The error of the API server.
    pub async fn remove_label(&self) -> kube::Result<()> {
        self.label(&self.pod, None).await
    }

    /// Patches only the label, so that there is no conflict with other writers of the pod.
    async fn label(&self, pod: &str, value: Option<&str>) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {ACTIVE: value}}}));
        self.api.patch_metadata(pod, &PatchParams::default(), &patch).await?;

        Ok(())
    }
}

/// Whether `pod` has the label, so that the Service sends datagrams to it.
pub fn is_active(pod: &Pod) -> bool {
    pod.labels().get(ACTIVE).is_some_and(|value| value == TRUE)
}
