//! Watches the objects that concern a gateway in one namespace, and reports all of them after each change.
//!
//! # Invariants
//!
//! - While the API server is unavailable, the objects that were reported last stay in force.

use std::fmt::Debug;

use kube::core::{DeserializeGuard, NamespaceResourceScope, Selector};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::runtime::watcher as watch;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, PublicKey};
use strait_kube::watch::{Bundle, Changes, WATCH_SECONDS, changes, unending};
use strait_plan::objects::{Objects, Remapping, Scope};

/// A report of a watch.
#[derive(Debug)]
pub enum Update {
    /// The current objects.
    Objects(Objects),
    /// The API server cannot be reached. The watch goes on by itself.
    Unreachable(watcher::Error),
}

/// Watches every kind that a gateway reads.
pub struct Watch {
    public_keys: Store<DeserializeGuard<PublicKey>>,
    configurations: Option<Store<DeserializeGuard<Configuration>>>,
    bundle: Bundle,
}

impl Watch {
    /// Starts to watch `namespace` for the objects that concern `scope`.
    #[must_use]
    pub fn new(client: &Client, namespace: &str, scope: &Scope) -> Self {
        let (public_keys, key_changes) = watched("PublicKey", client, namespace, scope);
        let mut kinds = vec![key_changes];
        let configurations = match scope.remapping {
            Remapping::External | Remapping::Rules => None,
            Remapping::Configurations => {
                let (store, more) = watched("Configuration", client, namespace, scope);
                kinds.push(more);
                Some(store)
            }
        };

        Self { public_keys, configurations, bundle: Bundle::new(kinds) }
    }

    /// Waits for the next report. Cancel safe.
    pub async fn next(&mut self) -> Update {
        match self.bundle.next().await {
            Ok(()) => Update::Objects(self.objects()),
            Err(error) => Update::Unreachable(error),
        }
    }

    fn objects(&self) -> Objects {
        Objects {
            public_keys: self.public_keys.state(),
            configurations: self.configurations.as_ref().map(Store::state).unwrap_or_default(),
        }
    }
}

/// The objects of one kind, and the stream of changes that keeps them up to date.
fn watched<K>(
    kind: &'static str,
    client: &Client,
    namespace: &str,
    scope: &Scope,
) -> (Store<DeserializeGuard<K>>, (&'static str, Changes))
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::namespaced(client.clone(), namespace);
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(id) = &scope.remote_cluster_id {
        config =
            config.labels_from(&Selector::from_iter([(REMOTE_CLUSTER_ID.to_owned(), id.clone())]));
    }

    let (store, writer) = reflector::store();
    let events = reflector::reflector(writer, unending(move || watch(api.clone(), config.clone())));

    (store, changes(kind, events))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use kube::Config;
    use strait_kube::client::{Part, client};
    use tokio::time::timeout;

    use super::*;

    /// As from a balancer in front of a server that starts, and from an overloaded server.
    #[tokio::test]
    async fn a_busy_server_is_reported_at_once() {
        for status in ["503 Service Unavailable", "429 Too Many Requests\r\nRetry-After: 60"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            // Ends with the process.
            thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = stream.read(&mut [0; 4096]);
                    let head = "Content-Length: 0\r\nConnection: close";
                    let _ = write!(stream, "HTTP/1.1 {status}\r\n{head}\r\n\r\n");
                }
            });

            let client = client(Config::new(url), Part::Gateway).unwrap();
            let mut watch = Watch::new(&client, "liqo-tenant", &Scope::default());
            let update = timeout(Duration::from_secs(10), watch.next()).await;
            assert!(matches!(update, Ok(Update::Unreachable(_))), "{status}: {update:?}");
        }
    }
}
