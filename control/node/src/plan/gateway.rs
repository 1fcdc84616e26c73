//! Where the gateways of a remote cluster are, and which of them packets go to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use remap::Prefix;
use strait_api::Configuration;
use strait_api::labels::{COMPONENT, GATEWAY_NAME, OVERLAY_EDGE, REMOTE_CLUSTER_ID};
use strait_kube::active;
use strait_plan::objects::{ObjectName, cluster_id};

use super::endpoint::{Endpoint, Forwarding, GatewayState};
use super::{Hop, Places, Plan, Problem};

/// The pods of gateways that have not ended, by namespace, and what they say.
pub(super) struct Gateways<'a> {
    pods: BTreeMap<&'a str, Vec<&'a Pod>>,
    forwarding: &'a Forwarding,
}

/// The next hops for one prefix.
#[derive(Default)]
pub(super) struct Hops {
    /// Those in use; empty for the former ones.
    pub(super) used: BTreeSet<Hop>,
    /// Those to every usable gateway, also to one that does not forward now.
    pub(super) all: BTreeSet<Hop>,
    /// Those for the parts of the prefix that only one gateway carries.
    pub(super) of_parts: BTreeMap<Prefix, BTreeSet<Hop>>,
    /// What is wrong with gateways.
    pub(super) problems: Vec<Problem>,
}

/// What one of several gateways said last.
enum LastAnswer<'a> {
    Forwards(&'a GatewayState),
    DoesNotForward,
    /// Nothing yet.
    None,
}

impl<'a> Gateways<'a> {
    pub(super) fn new(pods: &'a [Arc<Pod>], forwarding: &'a Forwarding) -> Self {
        let mut gateways = BTreeMap::<_, Vec<_>>::new();
        for pod in pods.iter().filter(|pod| is_there(pod)) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            gateways.entry(namespace).or_default().push(&**pod);
        }

        Self { pods: gateways, forwarding }
    }

    /// The next hops from the node `own` for `prefix`, one of `configuration`; `plan` has all nodes.
    pub(super) fn hops(
        &self,
        configuration: &Configuration,
        prefix: Prefix,
        own: &str,
        plan: &Plan,
    ) -> Hops {
        let mut hops = Hops::default();
        let mut reached = Vec::new();
        for pod in self.active(configuration) {
            match hop(pod, configuration, prefix, own, plan) {
                Ok(hop) => reached.push((pod, hop)),
                Err(problem) => hops.problems.extend(problem.map(|problem| *problem)),
            }
        }
        hops.all = reached.iter().map(|(_, hop)| hop.clone()).collect();
        if let [(_, only)] = reached.as_slice() {
            hops.used = [only.clone()].into();
            return hops;
        }

        let (mut forwarding, mut are_all_unknown) = (BTreeSet::new(), true);
        for (pod, hop) in reached {
            match self.last_answer(pod) {
                LastAnswer::Forwards(state) => {
                    for part in state.own_destinations.iter().filter_map(|text| text.parse().ok()) {
                        if prefix.covers(part) {
                            hops.of_parts.entry(part).or_default().insert(hop.clone());
                        }
                    }
                    forwarding.insert(hop);
                }
                LastAnswer::DoesNotForward => are_all_unknown = false,
                LastAnswer::None => {}
            }
        }
        are_all_unknown &= forwarding.is_empty();
        // The routes of a former process, or those to the first gateway, are better than a guess.
        if !are_all_unknown {
            let usable = if forwarding.is_empty() { hops.all.clone() } else { forwarding };
            hops.used = nearest(usable);
        }
        if let Some(whole) = hops.of_parts.remove(&prefix) {
            hops.used = whole;
        }

        hops
    }

    /// The destinations that gateways of `configuration` claim for themselves outside of its `prefixes`, each with the pod.
    pub(super) fn foreign_destinations(
        &self,
        configuration: &Configuration,
        prefixes: &[Prefix],
    ) -> Vec<(String, String)> {
        let mut foreign = Vec::new();
        for pod in self.active(configuration) {
            let LastAnswer::Forwards(state) = self.last_answer(pod) else { continue };
            for text in &state.own_destinations {
                let part = text.parse::<Prefix>();
                if !part.is_ok_and(|part| prefixes.iter().any(|prefix| prefix.covers(part))) {
                    foreign.push((pod.name_any(), text.clone()));
                }
            }
        }

        foreign
    }

    /// The pages that tell which gateways of `configuration` forward, if it has several: those of all replicas.
    pub(super) fn endpoints(&self, configuration: &Configuration) -> Vec<Endpoint> {
        match self.active(configuration).as_slice() {
            [] | [_] => Vec::new(),
            [_, _, ..] => self.of(configuration).filter_map(Endpoint::of).collect(),
        }
    }

    fn last_answer(&self, pod: &Pod) -> LastAnswer<'a> {
        let Some(endpoint) = Endpoint::of(pod) else { return LastAnswer::DoesNotForward };
        match self.forwarding.get(&endpoint) {
            Some(state) if state.forwards => LastAnswer::Forwards(state),
            Some(_) => LastAnswer::DoesNotForward,
            None => LastAnswer::None,
        }
    }

    /// Where the gateways of `configuration` may be, for the node `own`.
    pub(super) fn places(&self, configuration: &Configuration, own: &str, plan: &Plan) -> Places {
        places(self.of(configuration), own, plan)
    }

    /// Where any gateway may be.
    pub(super) fn all_places(&self, own: &str, plan: &Plan) -> Places {
        places(self.pods.values().flatten().copied(), own, plan)
    }

    /// The pod of each gateway that carries the packets of `configuration`: the one with a session, even if it is being
    /// deleted and another one is active. Of several, as during a rollout, a ready one, and of those the youngest.
    fn active(&self, configuration: &Configuration) -> Vec<&'a Pod> {
        let mut gateways = BTreeMap::<_, Vec<_>>::new();
        for pod in self.of(configuration).filter(|pod| is_usable(pod)) {
            let name = pod.labels().get(GATEWAY_NAME).map(String::as_str).unwrap_or_default();
            gateways.entry(name).or_default().push(pod);
        }
        let active = gateways.into_values().filter_map(|pods| {
            pods.into_iter().max_by_key(|pod| {
                let has_session = active::has_session(pod);

                (has_session, is_ready(pod), pod.creation_timestamp(), pod.name_any())
            })
        });

        active.collect()
    }

    /// All pods of the gateways of `configuration`.
    fn of(&self, configuration: &Configuration) -> impl Iterator<Item = &'a Pod> {
        let cluster = cluster_id(configuration);
        let namespace = configuration.metadata.namespace.as_deref().unwrap_or_default();
        let pods = self.pods.get(namespace).filter(|_| cluster.is_some());

        // The templates of Liqo set no label with the cluster on pods: there is one remote cluster per namespace.
        pods.into_iter().flatten().copied().filter(move |pod| {
            let id = pod.labels().get(REMOTE_CLUSTER_ID).filter(|id| !id.is_empty());
            id.is_none_or(|id| Some(id.as_str()) == cluster)
        })
    }
}

/// The next hop from the node `own` to the gateway in `pod`.
///
/// # Errors
///
/// What is wrong with the gateway; `None` if it is not on a node yet.
fn hop(
    pod: &Pod,
    configuration: &Configuration,
    prefix: Prefix,
    own: &str,
    plan: &Plan,
) -> Result<Hop, Option<Box<Problem>>> {
    let object = || ObjectName::of(configuration);
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

/// Those of `hops` that are on this node, or else all: no packet is relayed by a node that has a gateway itself, so
/// none comes back to a node that has sent it.
fn nearest(hops: BTreeSet<Hop>) -> BTreeSet<Hop> {
    let is_here = |hop: &Hop| matches!(hop, Hop::Pod(_));
    if !hops.iter().any(is_here) {
        return hops;
    }

    hops.into_iter().filter(is_here).collect()
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
