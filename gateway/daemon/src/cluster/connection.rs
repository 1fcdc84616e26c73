//! The `Connection` of a gateway: creates it, keeps its spec, reports in its status.
//!
//! Only with the verbs that Liqo's role grants: `get`, `create` and `update`; no `patch`, so no
//! server-side apply.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use strait_api::Connection;
use strait_api::connection::{ConnectionSpec, ConnectionStatus};
use strait_api::identity::Identity;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_plan::conncheck::Report;
use strait_plan::status;

/// How often an update is tried when others write at the same time.
const ATTEMPTS: usize = 5;

/// Writes the `Connection` of one gateway.
#[derive(Clone, Debug)]
pub struct Connections {
    api: Api<Connection>,
    identity: Identity,
    /// As the API server last returned it.
    known: Option<Connection>,
}

impl Connections {
    /// Sends no request yet.
    #[must_use]
    pub fn new(client: Client, identity: Identity) -> Self {
        let api = Api::namespaced(client, &identity.namespace);

        Self { api, identity, known: None }
    }

    /// Creates the `Connection`, or restores what was changed; a new one is `Connecting`.
    ///
    /// # Errors
    ///
    /// The error of the API server. The next call continues.
    pub async fn ensure(&mut self) -> kube::Result<()> {
        let name = self.identity.object_name();
        for attempt in 1.. {
            let written = match self.api.get_opt(&name).await? {
                None => self.api.create(&PostParams::default(), &wanted(&self.identity)).await,
                Some(found) => match mended(&self.identity, &found) {
                    None => Ok(found),
                    Some(mended) => self.api.replace(&name, &PostParams::default(), &mended).await,
                },
            };
            match written {
                Err(error) if attempt < ATTEMPTS && is_race(&error) => {}
                written => {
                    self.known = Some(written?);
                    break;
                }
            }
        }

        let is_new = |known: &Connection| known.status.as_ref().and_then(value).is_none();
        if self.known.as_ref().is_some_and(is_new) {
            let connecting = Some("Connecting".to_owned());
            self.write(ConnectionStatus { value: connecting, latency: None }).await?;
        }

        Ok(())
    }

    /// Writes the result of a check, if it has changed or the last latency is older than `interval`. Before
    /// [`Self::ensure`] there is no object to write to.
    ///
    /// # Errors
    ///
    /// The error of the API server. The next call writes what is missing.
    pub async fn report(
        &mut self,
        report: &Report,
        now: Timestamp,
        interval: Duration,
    ) -> kube::Result<()> {
        let Some(known) = &self.known else { return Ok(()) };

        match status::connection(report, known.status.as_ref(), now, interval) {
            Some(status) => self.write(status).await,
            None => Ok(()),
        }
    }

    /// The result in the `Connection` that [`Self::ensure`] has read, for when another component writes it.
    #[must_use]
    pub fn reported(&self) -> Option<Report> {
        Some(status::report(self.known.as_ref()?.status.as_ref()?))
    }

    async fn write(&mut self, status: ConnectionStatus) -> kube::Result<()> {
        let name = self.identity.object_name();
        for attempt in 1.. {
            let Some(mut connection) = self.known.clone() else { return Ok(()) };
            connection.status = Some(status.clone());
            match self.api.replace_status(&name, &PostParams::default(), &connection).await {
                Ok(written) => {
                    self.known = Some(written);
                    break;
                }
                Err(error) if attempt < ATTEMPTS && is_race(&error) => {
                    // Deleted meanwhile: the next call of `ensure` creates another.
                    self.known = self.api.get_opt(&name).await?;
                }
                Err(error) => return Err(error),
            }
        }

        Ok(())
    }
}

/// Whether another writer was faster, or has deleted the object.
fn is_race(error: &kube::Error) -> bool {
    matches!(
        error,
        kube::Error::Api(status)
            if status.is_conflict() || status.is_already_exists() || status.is_not_found()
    )
}

fn value(status: &ConnectionStatus) -> Option<&str> {
    status.value.as_deref().filter(|value| !value.is_empty())
}

/// The `Connection` to create.
fn wanted(identity: &Identity) -> Connection {
    let spec =
        ConnectionSpec { gateway_ref: identity.reference(), type_: identity.mode.to_string() };
    let mut connection = Connection::new(&identity.object_name(), spec);
    connection.metadata.namespace = Some(identity.namespace.clone());
    connection.metadata.owner_references = Some(vec![identity.owner()]);
    connection
        .labels_mut()
        .insert(REMOTE_CLUSTER_ID.to_owned(), identity.remote_cluster_id.clone());

    connection
}

/// `found` with its differences corrected, if there are any. Fields that others have added are kept.
fn mended(identity: &Identity, found: &Connection) -> Option<Connection> {
    let wanted = wanted(identity);
    let mut mended = found.clone();
    mended.spec = wanted.spec;
    mended.labels_mut().extend(wanted.metadata.labels.unwrap_or_default());
    let owner = identity.owner();
    let is_ours = |other: &&mut _| is_same_object(other, &owner);
    match mended.owner_references_mut().iter_mut().find(is_ours) {
        Some(ours) => ours.uid.clone_from(&owner.uid),
        None => mended.owner_references_mut().push(owner),
    }

    (mended != *found).then_some(mended)
}

/// Whether two owners are the same object, which may have been deleted and created again.
fn is_same_object(a: &OwnerReference, b: &OwnerReference) -> bool {
    (&a.api_version, &a.kind, &a.name) == (&b.api_version, &b.kind, &b.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use strait_api::identity::Mode;

    use super::*;

    fn identity() -> Identity {
        Identity {
            name: "milan".to_owned(),
            namespace: "liqo-tenant-milan".to_owned(),
            remote_cluster_id: "milan-id".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Client,
        }
    }

    #[test]
    fn a_connection_equals_that_of_liqo() {
        let connection = wanted(&identity());

        assert_eq!(
            serde_json::to_value(connection).unwrap(),
            json!({
                "apiVersion": "networking.liqo.io/v1beta1",
                "kind": "Connection",
                "metadata": {
                    "name": "gw-milan",
                    "namespace": "liqo-tenant-milan",
                    "labels": {"liqo.io/remote-cluster-id": "milan-id"},
                    "ownerReferences": [{
                        "apiVersion": "networking.liqo.io/v1beta1",
                        "kind": "GatewayClient",
                        "name": "milan",
                        "uid": "5b8e",
                    }],
                },
                "spec": {
                    "type": "Client",
                    "gatewayRef": {
                        "apiVersion": "networking.liqo.io/v1beta1",
                        "kind": "WgGatewayClient",
                        "name": "milan",
                        "namespace": "liqo-tenant-milan",
                        "uid": "5b8e",
                    },
                },
            })
        );
    }

    #[test]
    fn changes_are_reverted_and_additions_are_kept() {
        let good = wanted(&identity());
        assert_eq!(mended(&identity(), &good), None);

        let mut bad = good.clone();
        bad.spec.type_ = "Server".to_owned();
        bad.metadata.owner_references.as_mut().unwrap()[0].uid = "of-a-former-life".to_owned();
        bad.labels_mut().clear();
        bad.labels_mut().insert("team".to_owned(), "net".to_owned());
        let mended = mended(&identity(), &bad).unwrap();

        assert_eq!(mended.spec, good.spec);
        assert_eq!(mended.metadata.owner_references, good.metadata.owner_references);
        assert_eq!(mended.labels().get("team").map(String::as_str), Some("net"));
        assert_eq!(mended.labels().get(REMOTE_CLUSTER_ID).map(String::as_str), Some("milan-id"));
    }
}
