//! The label that makes a pod the active one of its gateway: the Service sends datagrams to it, and
//! Liqo looks for it.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use strait_api::identity::Identity;
use strait_api::labels::{ACTIVE, TRUE};

/// The label by which the pods of a gateway are found; its value is the name of the gateway.
const APP_NAME: &str = "app.kubernetes.io/name";

/// Marks one pod of a gateway.
#[derive(Clone, Debug)]
pub struct ActivePod {
    api: Api<Pod>,
    gateway: String,
    pod: String,
}

impl ActivePod {
    /// The replica of a gateway that runs in `pod`. Asks nothing yet.
    #[must_use]
    pub fn new(client: Client, identity: &Identity, pod: String) -> Self {
        let api = Api::namespaced(client, &identity.namespace);

        Self { api, gateway: identity.name.clone(), pod }
    }

    /// Takes the label from the other replicas, then gives it to this one; what is right already is
    /// not written.
    ///
    /// # Errors
    ///
    /// What the API server says, not found if this pod is not there. To be called again.
    pub async fn claim(&self) -> kube::Result<()> {
        let replicas = ListParams::default().labels(&format!("{APP_NAME}={}", self.gateway));
        let replicas = self.api.list(&replicas).await?;
        let is_own = |pod: &&Pod| pod.name_any() == self.pod;
        // Never two at a time: the others come first.
        for other in replicas.iter().filter(|pod| !is_own(pod) && is_active(pod)) {
            match self.label(&other.name_any(), None).await {
                // Gone, and its label with it.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                outcome => outcome?,
            }
        }

        match replicas.iter().find(is_own) {
            Some(own) if is_active(own) => Ok(()),
            Some(_) | None => self.label(&self.pod, Some(TRUE)).await,
        }
    }

    /// Takes the label from this pod.
    ///
    /// # Errors
    ///
    /// What the API server says.
    pub async fn yield_to_others(&self) -> kube::Result<()> {
        self.label(&self.pod, None).await
    }

    /// Touches nothing but the label, so that no other writer of the pod can be in the way.
    async fn label(&self, pod: &str, value: Option<&str>) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {ACTIVE: value}}}));
        self.api.patch_metadata(pod, &PatchParams::default(), &patch).await?;

        Ok(())
    }
}

/// Whether datagrams are sent to `pod`.
pub fn is_active(pod: &Pod) -> bool {
    pod.labels().get(ACTIVE).is_some_and(|value| value == TRUE)
}
