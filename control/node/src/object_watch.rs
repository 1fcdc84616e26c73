//! Watches the objects that concern nodes, in all namespaces; agents in our own, where no other tenant creates pods.

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
use strait_kube::nodes;
use strait_kube::watch::{Bundle, Changes, WATCH_SECONDS, changes, unending};

use crate::plan::{AGENT, Forwarding, Objects};

/// A report of a watch.
#[derive(Debug)]
pub(crate) enum Update {
    /// The current objects.
    Objects(Objects),
    /// The API server cannot be reached. The watch goes on by itself.
    Unreachable(watcher::Error),
}

/// Watches every kind that a node reads. Nothing is reported before all of them were listed.
pub(crate) struct Watch {
    configurations: Store<DeserializeGuard<Configuration>>,
    pods: Store<Pod>,
    nodes: Store<Node>,
    agents: Store<Pod>,
    bundle: Bundle,
}

impl Watch {
    /// Starts to watch. The namespace of the agents is the default one of `client`. To be called within a runtime.
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
        let of_nodes = events(Api::all(client.clone()), config).modify(nodes::slim);
        let (nodes, of_nodes) = kept("Node", of_nodes);
        let bundle = Bundle::new([of_configurations, of_pods, of_nodes, of_agents]);

        Self { configurations, pods, nodes, agents, bundle }
    }

    /// Waits for the next report. Cancel safe.
    pub(crate) async fn next(&mut self) -> Update {
        match self.bundle.next().await {
            Ok(()) => Update::Objects(Objects {
                configurations: self.configurations.state(),
                pods: self.pods.state(),
                nodes: self.nodes.state(),
                agents: self.agents.state(),
                forwarding: Forwarding::default(),
            }),
            Err(error) => Update::Unreachable(error),
        }
    }
}

/// The events of all objects of `api`, without end.
fn events<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    unending(move || watcher(api.clone(), config.clone()))
}

/// The objects of `events`, and the stream of changes that keeps them up to date.
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

/// Keeps where the pod of an agent runs and whether it is ready: there are as many as nodes.
fn slim_agent(pod: &mut Pod) {
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    let conditions = pod.status.take().and_then(|status| status.conditions);
    pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
    pod.status = Some(PodStatus { conditions, ..PodStatus::default() });
}
