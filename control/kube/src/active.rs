//! The label `networking.liqo.io/active`: it marks the active pod of a gateway. The Service of the gateway selects it,
//! and Liqo reads it.
//!
//! With it goes the deletion cost of the pod, so that an upgrade replaces the pods on standby first and leadership moves
//! once.
//!
//! A pod that becomes active has no session at first. The annotation `strait.io/has-session` marks the pod that nodes
//! send packets to: it moves to the active pod when that pod has a session.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectList, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, json};
use strait_api::identity::Identity;
use strait_api::labels::{ACTIVE, HAS_SESSION, TRUE};

/// The Deployment's controller deletes pods with the lower cost first; the others have none, which is 0.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The label by which the pods of a gateway are found; its value is the name of the gateway.
const APP_NAME: &str = "app.kubernetes.io/name";

/// Sets and removes label and annotation for one pod of a gateway.
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

    /// Removes the label from the other replicas, then sets it on this pod; likewise the annotation if this pod
    /// `has_session`. Writes only what differs. Returns the address of another replica that has had the annotation until
    /// now: nodes send packets to it.
    ///
    /// # Errors
    ///
    /// The error of the API server, not found if this pod does not exist. May be called again.
    pub async fn claim(&self, has_session: bool) -> kube::Result<Option<IpAddr>> {
        let replicas = self.replicas().await?;
        let is_own = |pod: &&Pod| pod.name_any() == self.pod;
        let former = replicas.iter().filter(|pod| !is_own(pod)).find(|pod| self::has_session(pod));
        // The others first, so that two pods never have the label at a time.
        for other in replicas.iter().filter(|pod| !is_own(pod)) {
            let marks = Marks {
                label: is_active(other).then_some(None),
                annotation: (has_session && self::has_session(other)).then_some(None),
            };
            match self.set(&other.name_any(), marks).await {
                // The pod was deleted, and its label with it.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                outcome => outcome?,
            }
        }
        let own = replicas.iter().find(is_own);
        let marks = Marks {
            label: (!own.is_some_and(is_active)).then_some(Some(TRUE)),
            annotation: (has_session && !own.is_some_and(self::has_session)).then_some(Some(TRUE)),
        };

        self.set(&self.pod, marks).await?;

        Ok(former.and_then(address))
    }

    /// Removes the label from this pod.
    ///
    /// # Errors
    ///
    /// The error of the API server.
    pub async fn remove_label(&self) -> kube::Result<()> {
        self.set(&self.pod, Marks { label: Some(None), annotation: None }).await
    }

    async fn replicas(&self) -> kube::Result<ObjectList<Pod>> {
        self.api.list(&ListParams::default().labels(&format!("{APP_NAME}={}", self.gateway))).await
    }

    /// Patches only these, so that there is no conflict with other writers of the pod.
    async fn set(&self, pod: &str, Marks { label, annotation }: Marks) -> kube::Result<()> {
        let mut annotations = Map::new();
        if let Some(value) = annotation {
            annotations.insert(HAS_SESSION.to_owned(), json!(value));
        }
        let mut metadata = Map::new();
        if let Some(value) = label {
            metadata.insert("labels".to_owned(), json!({ACTIVE: value}));
            annotations.insert(DELETION_COST.to_owned(), json!(value.map(|_| "1")));
        }
        if !annotations.is_empty() {
            metadata.insert("annotations".to_owned(), annotations.into());
        }
        if metadata.is_empty() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.api.patch_metadata(pod, &PatchParams::default(), &patch).await?;

        Ok(())
    }
}

/// New values of label and annotation: `None` leaves one as it is, `Some(None)` removes it.
struct Marks {
    label: Option<Option<&'static str>>,
    annotation: Option<Option<&'static str>>,
}

/// Whether `pod` has the label, so that the Service sends datagrams to it.
pub fn is_active(pod: &Pod) -> bool {
    pod.labels().get(ACTIVE).is_some_and(|value| value == TRUE)
}

/// Whether `pod` has the annotation: it was the last one of its gateway to establish a session.
pub fn has_session(pod: &Pod) -> bool {
    pod.annotations().get(HAS_SESSION).is_some_and(|value| value == TRUE)
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::Value;
    use strait_api::identity::Mode;
    use tower::service_fn;

    use super::*;

    /// An API server with these pods, which merges patches of their metadata.
    fn server(pods: Arc<Mutex<Vec<Value>>>) -> Client {
        let answer = move |request: Request<Body>| {
            let pods = Arc::clone(&pods);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let mut pods = pods.lock().unwrap();
                let answer = match head.uri.path().rsplit_once("/pods/") {
                    None => {
                        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": *pods})
                    }
                    Some((_, name)) => {
                        let patch: Value = serde_json::from_slice(&body).unwrap();
                        let pod = pods.iter_mut().find(|pod| pod["metadata"]["name"] == name);
                        let pod = pod.unwrap();
                        json_patch::merge(pod, &patch);
                        let metadata = &pod["metadata"];
                        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
                    }
                };
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        };

        Client::new(service_fn(answer), "tenant")
    }

    /// One for each of these pods.
    fn replicas(pods: &Arc<Mutex<Vec<Value>>>) -> [ActivePod; 2] {
        let identity = Identity {
            name: "milan".to_owned(),
            namespace: "tenant".to_owned(),
            remote_cluster_id: "milan".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Server,
        };
        let client = server(Arc::clone(pods));

        ["gw-1", "gw-2"].map(|pod| ActivePod::new(client.clone(), &identity, pod.to_owned()))
    }

    fn pod(name: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {APP_NAME: "milan"}, "annotations": {}}})
    }

    #[tokio::test]
    async fn the_active_pod_is_deleted_last() {
        let pods = Arc::new(Mutex::new(vec![pod("gw-1"), pod("gw-2")]));
        let [first, second] = replicas(&pods);
        let costs = || {
            let cost = |pod: &Value| pod["metadata"]["annotations"].get(DELETION_COST).cloned();
            pods.lock().unwrap().iter().map(cost).collect::<Vec<_>>()
        };

        first.claim(true).await.unwrap();
        assert_eq!(costs(), [Some(json!("1")), None]);
        second.claim(false).await.unwrap();
        assert_eq!(costs(), [None, Some(json!("1"))]);
        second.remove_label().await.unwrap();
        assert_eq!(costs(), [None, None]);
    }

    #[tokio::test]
    async fn nodes_follow_when_the_session_moves() {
        let mut running = pod("gw-1");
        running["status"] = json!({"podIP": "10.244.0.1"});
        let pods = Arc::new(Mutex::new(vec![running, pod("gw-2")]));
        let [first, second] = replicas(&pods);
        let marks = || {
            let parsed = |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).unwrap();
            let pods: Vec<_> = pods.lock().unwrap().iter().map(parsed).collect();
            let [first, second] =
                [&pods[0], &pods[1]].map(|pod| (is_active(pod), has_session(pod)));
            (first, second)
        };

        first.claim(false).await.unwrap();
        assert_eq!(marks(), ((true, false), (false, false)));
        first.claim(true).await.unwrap();
        assert_eq!(marks(), ((true, true), (false, false)));
        for _ in 0..2 {
            let former = second.claim(false).await.unwrap();
            assert_eq!(marks(), ((false, true), (true, false)));
            assert_eq!(former, Some([10, 244, 0, 1].into()));
        }
        second.claim(true).await.unwrap();
        assert_eq!(marks(), ((false, false), (true, true)));
        assert_eq!(second.claim(true).await.unwrap(), None);
        second.remove_label().await.unwrap();
        assert_eq!(marks(), ((false, false), (false, true)));
    }
}
