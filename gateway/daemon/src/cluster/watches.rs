//! The watches of a gateway in a cluster as one: its objects, the rules and routes that it executes, and the nodes of its
//! overlay.
//!
//! While the API server is unavailable, what was reported last stays in force.

use std::future::pending;

use kube::Client;
use kube::runtime::watcher;
use strait_io::overlay;
use strait_plan::objects::Objects;
use tracing::{info, warn};

use super::fabric::{Fabric, FabricWatch};
use super::object_watch::{Update, Watch};
use super::overlay_nodes::OverlayNodes;
use super::settings::{OverlayScope, Settings};

/// What has changed: all that is known of it now.
pub(super) enum Change {
    /// The objects of the gateway.
    Objects(Objects),
    /// Rules, routes and the nodes of Liqo's overlay.
    Fabric(Box<Fabric>),
    /// The nodes of the overlay of node agents.
    Nodes(Vec<overlay::Node>),
}

/// All watches of one gateway.
pub(super) struct Watches {
    objects: Watch,
    /// In place of Liqo's own containers.
    fabric: Option<FabricWatch>,
    /// With an overlay of node agents.
    nodes: Option<OverlayNodes>,
    is_reachable: bool,
    /// Whether the last attempt to read rules and routes has failed.
    is_fabric_unread: bool,
}

impl Watches {
    /// Starts to watch. Call it within the runtime.
    pub(super) fn start(settings: &Settings, client: &Client) -> Self {
        let namespace = &settings.identity.namespace;
        let nodes =
            settings.overlay.map(|OverlayScope { node, vni }| OverlayNodes::new(client, node, vni));
        let fabric = settings.rules.clone().map(|scope| FabricWatch::new(client, namespace, scope));

        Self {
            objects: Watch::new(client, namespace, &settings.scope),
            fabric,
            nodes,
            is_reachable: true,
            is_fabric_unread: false,
        }
    }

    /// Whether this gateway executes rules and routes.
    pub(super) const fn has_fabric(&self) -> bool {
        self.fabric.is_some()
    }

    /// Waits for the next change, and logs whether the API server can be reached. Cancel safe.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            tokio::select! {
                update = self.objects.next() => {
                    if let Some(objects) = self.reached(update) {
                        return Change::Objects(objects);
                    }
                }
                // An unreachable server is reported by the first watch.
                Ok(nodes) = next_nodes(&mut self.nodes) => return Change::Nodes(nodes),
                fabric = next_fabric(&mut self.fabric) => {
                    if let Some(fabric) = self.read(fabric) {
                        return Change::Fabric(Box::new(fabric));
                    }
                }
            }
        }
    }

    /// The objects of `update`, if the API server can be reached.
    fn reached(&mut self, update: Update) -> Option<Objects> {
        match update {
            Update::Unreachable(error) => {
                if self.is_reachable {
                    warn!(%error, "cannot reach the API server; the last known objects stay in force");
                }
                self.is_reachable = false;
                None
            }
            Update::Objects(objects) => {
                if !self.is_reachable {
                    info!("the API server answers again");
                }
                self.is_reachable = true;
                Some(objects)
            }
        }
    }

    /// The rules, routes and nodes of `update`, if they could be read.
    fn read(&mut self, update: watcher::Result<Fabric>) -> Option<Fabric> {
        match update {
            // An unreachable server is reported by the first watch, but not a kind that this cluster does not have.
            Err(error) => {
                if self.is_reachable && !std::mem::replace(&mut self.is_fabric_unread, true) {
                    warn!(%error, "cannot list the rules, routes and nodes of Liqo");
                }
                None
            }
            Ok(fabric) => {
                self.is_fabric_unread = false;
                Some(fabric)
            }
        }
    }
}

/// The next rules, routes and nodes; waits forever if others execute them. Cancel safe.
async fn next_fabric(watch: &mut Option<FabricWatch>) -> watcher::Result<Fabric> {
    match watch {
        Some(watch) => watch.next().await,
        None => pending().await,
    }
}

/// The next nodes of an overlay; waits forever without one. Cancel safe.
async fn next_nodes(nodes: &mut Option<OverlayNodes>) -> watcher::Result<Vec<overlay::Node>> {
    match nodes {
        Some(nodes) => nodes.next().await,
        None => pending().await,
    }
}
