//! Watches what Liqo's controllers write for its gateways: rules, routes and the nodes of the overlay.
//!
//! Rules and routes are in any namespace; tunnels and their ends are in that of the gateway.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::core::{DeserializeGuard, Selector};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use strait_api::labels::{FIREWALL_CATEGORY, GATEWAY, ROUTE_CATEGORY};
use strait_api::{
    FirewallConfiguration, GeneveTunnel, InternalFabric, InternalNode, RouteConfiguration,
};
use strait_io::overlay;
use strait_kube::watch::{Bundle, Changes, WATCH_SECONDS, changes, unending};
use strait_packet::overlay::{SharedSource, Vni};
use strait_plan::lowering::{Lowered, Outcome, Scope};
use strait_plan::objects::{Listed, ObjectName};
use strait_plan::{geneve, lowering};
use tracing::info;

use super::applied::Applied;

/// Watches every kind.
pub(super) struct FabricWatch {
    firewalls: Store<DeserializeGuard<FirewallConfiguration>>,
    routes: Store<DeserializeGuard<RouteConfiguration>>,
    tunnels: Store<DeserializeGuard<GeneveTunnel>>,
    fabrics: Store<DeserializeGuard<InternalFabric>>,
    nodes: Store<DeserializeGuard<InternalNode>>,
    bundle: Bundle,
    scope: Scope,
    /// The unreached nodes that were logged last.
    unreached: Vec<geneve::Unreached>,
}

/// All objects, read for this gateway.
#[derive(Clone, Debug)]
pub(super) struct Fabric {
    pub(super) lowered: Lowered,
    pub(super) nodes: Vec<overlay::Node>,
    pub(super) tunnels: Vec<geneve::Tunnel>,
    objects: lowering::Objects,
}

impl FabricWatch {
    /// Starts to watch for a gateway in `namespace`. Call it within the runtime.
    pub(super) fn new(client: &Client, namespace: &str, scope: Scope) -> Self {
        let of_gateways =
            |label: &str| Selector::from_iter([(label.to_owned(), GATEWAY.to_owned())]);
        let all = Api::all(client.clone());
        let (firewalls, of_firewalls) =
            watched("FirewallConfiguration", all, Some(of_gateways(FIREWALL_CATEGORY)));
        let all = Api::all(client.clone());
        let (routes, of_routes) =
            watched("RouteConfiguration", all, Some(of_gateways(ROUTE_CATEGORY)));
        let own = Api::namespaced(client.clone(), namespace);
        let (tunnels, of_tunnels) = watched("GeneveTunnel", own, None);
        let own = Api::namespaced(client.clone(), namespace);
        let (fabrics, of_fabrics) = watched("InternalFabric", own, None);
        let (nodes, of_nodes) = watched("InternalNode", Api::all(client.clone()), None);
        let bundle = Bundle::new([of_firewalls, of_routes, of_tunnels, of_fabrics, of_nodes]);

        Self { firewalls, routes, tunnels, fabrics, nodes, bundle, scope, unreached: Vec::new() }
    }

    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    ///
    /// If the API server cannot be reached; what was returned last stays in force.
    pub(super) async fn next(&mut self) -> watcher::Result<Fabric> {
        self.bundle.next().await?;
        let objects = lowering::Objects {
            firewall_configurations: self.firewalls.state(),
            route_configurations: self.routes.state(),
        };
        let fabric = geneve::Objects {
            tunnels: self.tunnels.state(),
            fabrics: self.fabrics.state(),
            nodes: self.nodes.state(),
        };
        let lowered = Lowered::new(&self.scope, &objects);
        let (nodes, unreached) = geneve::nodes(self.scope.node_name.as_deref(), &fabric, &lowered);
        for node in unreached.iter().filter(|node| !self.unreached.contains(node)) {
            info!("{node}");
        }
        self.unreached = unreached;

        Ok(Fabric {
            lowered,
            nodes: nodes.iter().filter_map(overlay_node).collect(),
            tunnels: geneve::tunnels(self.scope.node_name.as_deref(), &fabric),
            objects,
        })
    }
}

impl Fabric {
    /// What to report about `outcomes`.
    pub(super) fn applied(&self, outcomes: &[Outcome]) -> Vec<Applied> {
        let firewalls = by_name(&self.objects.firewall_configurations);
        let routes = by_name(&self.objects.route_configurations);

        let applied = outcomes.iter().map(|outcome| {
            let firewall = firewalls.get(&outcome.object).map(|firewall| {
                let status = firewall.status.clone().unwrap_or_default();
                (firewall.spec.table.name.clone(), status.conditions)
            });
            let route = routes.get(&outcome.object).map(|route| {
                let table = route.spec.table.as_ref().map(|table| table.name.clone());
                let status = route.status.clone().unwrap_or_default();
                (table.unwrap_or_default(), status.conditions)
            });
            // One that cannot be read has neither.
            let (table, known) = firewall.or(route).unwrap_or_default();
            Applied { outcome: outcome.clone(), table, known }
        });
        applied.collect()
    }
}

fn by_name<K>(listed: &[Listed<K>]) -> BTreeMap<ObjectName, &K>
where
    K: Resource<DynamicType = ()>,
{
    let sound = listed.iter().filter_map(|listed| listed.0.as_ref().ok());

    sound.map(|object| (ObjectName::of(object), object)).collect()
}

fn overlay_node(node: &geneve::Node) -> Option<overlay::Node> {
    let geneve::Node { address, other_address, inner, gateway, vni, prefixes, shared_source } =
        node;

    Some(overlay::Node {
        address: *address,
        // The plan has checked the range.
        vni: Vni::new(*vni)?,
        mac: None,
        pods: prefixes.clone(),
        sources: other_address.iter().copied().collect(),
        inner: Some(*inner),
        gateway: *gateway,
        shared_source: shared_source.map(|shared| SharedSource { shared, own: *inner }),
    })
}

/// The objects of one kind, and the stream of changes that keeps them up to date.
fn watched<K>(
    kind: &'static str,
    api: Api<DeserializeGuard<K>>,
    selector: Option<Selector>,
) -> (Store<DeserializeGuard<K>>, (&'static str, Changes))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(selector) = &selector {
        config = config.labels_from(selector);
    }
    let (store, writer) = reflector::store();
    let begin = move || watcher(api.clone(), config.clone());

    (store, changes(kind, reflector::reflector(writer, unending(begin))))
}
