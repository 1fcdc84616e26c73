//! Where the gateway of a remote cluster is.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::Configuration;
use strait_api::labels::{COMPONENT, OVERLAY_EDGE, REMOTE_CLUSTER_ID};
use strait_kube::active;
use strait_plan::objects::{ObjectName, cluster_id};

use super::{Hop, Places, Plan, Problem};

/// The pods of gateways that have not ended, by namespace.
pub(super) struct Gateways<'a>(BTreeMap<&'a str, Vec<&'a Pod>>);

impl<'a> Gateways<'a> {
    pub(super) fn new(pods: &'a [Arc<Pod>]) -> Self {
        let mut gateways = BTreeMap::<_, Vec<_>>::new();
        for pod in pods.iter().filter(|pod| is_there(pod)) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            gateways.entry(namespace).or_default().push(&**pod);
        }

        Self(gateways)
    }

    /// The next hop from the node `own` for `prefix`, one of `configuration`; `plan` has all nodes.
    ///
    /// # Errors
    ///
    /// What is wrong with the gateway; `None` if there is none, which may be so for a moment.
    pub(super) fn hop(
        &self,
        configuration: &Configuration,
        prefix: Prefix,
        own: &str,
        plan: &Plan,
    ) -> Result<Hop, Option<Box<Problem>>> {
        let object = || ObjectName::of(configuration);
        let pod = self.active(configuration).ok_or(None)?;
        let spec = pod.spec.as_ref();
        if spec.and_then(|spec| spec.host_network).unwrap_or_default() {
            let problem = Problem::HostNetwork { object: object(), pod: pod.name_any() };
            return Err(Some(Box::new(problem)));
        }
        if is_overlay(pod) {
            return Ok(Hop::Overlay { pod: pod.name_any(), addresses: addresses(pod) });
        }
        let node = spec.and_then(|spec| spec.node_name.as_deref()).ok_or(None)?;
        let of_version = |addresses: &[IpAddr]| {
            addresses.iter().copied().find(|address| address.is_ipv4() == prefix.is_ipv4())
        };
        let without = |what| Some(Box::new(Problem::NoAddress { object: object(), prefix, what }));
        if node == own {
            let address = of_version(&addresses(pod));
            return address.map(Hop::Pod).ok_or_else(|| without(format!("pod {}", pod.name_any())));
        }
        let addresses = plan.others.get(node).map(Vec::as_slice).unwrap_or_default();
        let address = of_version(addresses).ok_or_else(|| without(format!("node {node}")))?;

        Ok(Hop::Node { name: node.to_owned(), address })
    }

    /// Where the gateway of `configuration` may be, for the node `own`.
    pub(super) fn places(&self, configuration: &Configuration, own: &str, plan: &Plan) -> Places {
        places(self.of(configuration), own, plan)
    }

    /// Where any gateway may be.
    pub(super) fn all_places(&self, own: &str, plan: &Plan) -> Places {
        places(self.0.values().flatten().copied(), own, plan)
    }

    /// The pod that carries the packets of `configuration`: the one with a session, even if it is being deleted and
    /// another one is active. Of several, as during a rollout, a ready one, and of those the youngest.
    fn active(&self, configuration: &Configuration) -> Option<&'a Pod> {
        let pods = self.of(configuration).filter(|pod| is_usable(pod));

        pods.max_by_key(|pod| {
            let has_session = active::has_session(pod);

            (has_session, is_ready(pod), pod.creation_timestamp(), pod.name_any())
        })
    }

    /// All pods of the gateway of `configuration`.
    fn of(&self, configuration: &Configuration) -> impl Iterator<Item = &'a Pod> {
        let cluster = cluster_id(configuration);
        let namespace = configuration.metadata.namespace.as_deref().unwrap_or_default();
        let pods = self.0.get(namespace).filter(|_| cluster.is_some());

        // The templates of Liqo set no label with the cluster on pods: there is one gateway per namespace.
        pods.into_iter().flatten().copied().filter(move |pod| {
            let id = pod.labels().get(REMOTE_CLUSTER_ID).filter(|id| !id.is_empty());
            id.is_none_or(|id| Some(id.as_str()) == cluster)
        })
    }
}

/// Where these pods are, for the node `own`; `plan` has all nodes.
fn places<'a>(pods: impl Iterator<Item = &'a Pod>, own: &str, plan: &Plan) -> Places {
    let mut places = Places::default();
    for pod in pods {
        match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            _ if is_overlay(pod) => places.addresses.extend(addresses(pod)),
            Some(node) if node == own => places.addresses.extend(addresses(pod)),
            Some(node) => match plan.others.get(node).map(Vec::as_slice) {
                Some([]) => places.is_incomplete = true,
                addresses => places.addresses.extend(addresses.unwrap_or_default()),
            },
            None => {}
        }
    }

    places
}

/// Whether it is a pod of a gateway that has addresses, or may still have them.
fn is_there(pod: &Pod) -> bool {
    let (label, value) = COMPONENT;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());

    pod.labels().get(label).is_some_and(|found| found == value)
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether it ends VXLAN itself.
fn is_overlay(pod: &Pod) -> bool {
    let (label, value) = OVERLAY_EDGE;

    pod.labels().get(label).is_some_and(|found| found == value)
}

/// Whether it runs, and has a session or is the active pod of a gateway and not being deleted.
fn is_usable(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_active = active::is_active(pod) && pod.metadata.deletion_timestamp.is_none();

    (active::has_session(pod) || is_active)
        && phase == Some("Running")
        && !addresses(pod).is_empty()
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();

    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = pod.status.as_ref() else { return Vec::new() };
    let all = status.pod_ips.as_deref().unwrap_or_default().iter().map(|pod| pod.ip.as_str());
    let first = status.pod_ip.as_deref();
    let mut addresses: Vec<IpAddr> =
        all.chain(first).filter_map(|text| text.parse().ok()).collect();
    addresses.sort_unstable();
    addresses.dedup();

    addresses
}
