//! Watches what concerns nodes, in all namespaces; agents in our own, where no other tenant makes pods.

use std::fmt::Debug;

use futures_util::stream::Stream;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, PodStatus};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use strait_api::Configuration;
use strait_api::labels::COMPONENT;
use strait_kube::watch::{Bundle, Changes, WATCH_SECONDS, changes, unending};

use crate::plan::{AGENT, Objects};

/// What a watch has to say.
#[derive(Debug)]
pub(crate) enum Update {
    /// What there is now.
    Objects(Objects),
    /// The API server cannot be asked. The watch goes on by itself.
    Unreachable(watcher::Error),
}

/// Watches every kind that a node reads. Nothing is told before all of them were listed.
pub(crate) struct Watch {
    configurations: Store<DeserializeGuard<Configuration>>,
    pods: Store<Pod>,
    nodes: Store<Node>,
    agents: Store<Pod>,
    bundle: Bundle,
}

impl Watch {
    /// Begins to watch. What the configuration of `client` names is the namespace of the agents. To be called
    /// within a runtime.
    #[must_use]
    pub(crate) fn new(client: &Client) -> Self {
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let labelled =
            |(label, value): (&str, &str)| config.clone().labels(&format!("{label}={value}"));

        let of_configurations = events(Api::all(client.clone()), config.clone());
        let (configurations, of_configurations) = kept("Configuration", of_configurations);
        let of_pods = events(Api::all(client.clone()), labelled(COMPONENT));
        let (pods, of_pods) = kept("Pod", of_pods);
        let agents = Api::default_namespaced(client.clone());
        let of_agents = events(agents, labelled(AGENT)).modify(slim_agent);
        let (agents, of_agents) = kept("Pod of an agent", of_agents);
        let of_nodes = events(Api::all(client.clone()), config).modify(slim);
        let (nodes, of_nodes) = kept("Node", of_nodes);
        let bundle = Bundle::new([of_configurations, of_pods, of_nodes, of_agents]);

        Self { configurations, pods, nodes, agents, bundle }
    }

    /// Waits until there is something to say. Cancel safe.
    pub(crate) async fn next(&mut self) -> Update {
        match self.bundle.next().await {
            Ok(()) => Update::Objects(Objects {
                configurations: self.configurations.state(),
                pods: self.pods.state(),
                nodes: self.nodes.state(),
                agents: self.agents.state(),
            }),
            Err(error) => Update::Unreachable(error),
        }
    }
}

/// Of all objects that `api` has, for ever.
fn events<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    unending(move || watcher(api.clone(), config.clone()))
}

/// The objects that `events` speak of, and their changes, which keep them up to date.
fn kept<K>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
) -> (Store<K>, (&'static str, Changes))
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();

    (store, changes(kind, reflector::reflector(writer, events)))
}

/// Of a node its addresses and its pods are asked for; images and volumes fill the most of it.
fn slim(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}

/// Of the pod of an agent only where it is and whether it is ready is asked for, and there are as many as nodes.
fn slim_agent(pod: &mut Pod) {
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    let conditions = pod.status.take().and_then(|status| status.conditions);
    pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
    pod.status = Some(PodStatus { conditions, ..PodStatus::default() });
}
