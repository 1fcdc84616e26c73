//! How the kernel reaches gateways and other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use strait_host::netlink::{self, DOCUMENTATION_ADDRESSES, answer};

use super::{Kernel, KernelError};
use crate::flags::Vxlan;
use crate::forwarding::{NetworkView, OwnAddress, Reach};
use crate::plan::{Hop, Plan};

impl Kernel {
    /// The part of the network that `plan` depends on.
    pub(crate) async fn view(&self, plan: &Plan, vxlan: Vxlan) -> Result<NetworkView, KernelError> {
        let mut view = NetworkView { own: self.own(&plan.own).await?, ..NetworkView::default() };
        let mut is_gateway_here = false;
        let hops: BTreeSet<_> = plan.hops.values().chain(plan.reserve.values()).flatten().collect();
        for hop in hops {
            let (address, reach) = match hop {
                // The kernel finds the way of VXLAN's datagrams.
                Hop::Overlay { .. } => continue,
                Hop::Pod(pod) => {
                    is_gateway_here = true;
                    (*pod, self.reach_of_pod(*pod).await)
                }
                Hop::Node { address, .. } => (*address, self.reach(*address).await),
            };
            if let Some(reach) = reach {
                view.reach.insert(address, reach);
            }
        }
        if is_gateway_here && vxlan == Vxlan::Auto {
            view.has_far_nodes = self.has_far_nodes(plan, &view).await;
        }

        Ok(view)
    }

    /// Whether another node is behind a router, as far as it is known.
    async fn has_far_nodes(&self, plan: &Plan, view: &NetworkView) -> Option<bool> {
        let own = view.own.first().map(|own| own.address);
        // The source that VXLAN will have when this host has its address again.
        let own = own.or_else(|| plan.own.first().copied())?;
        let mut are_near = true;
        for addresses in plan.others.values() {
            let address = addresses.iter().find(|address| address.is_ipv4() == own.is_ipv4());
            let reach = match address {
                Some(address) => self.reach(*address).await,
                None => None,
            };
            match reach {
                Some(Reach::Routed) => return Some(true),
                Some(Reach::Neighbour { .. }) => {}
                None => are_near = false,
            }
        }

        are_near.then_some(false)
    }

    /// The `addresses` that are on an interface of this host.
    async fn own(&self, addresses: &[IpAddr]) -> Result<Vec<OwnAddress>, KernelError> {
        let found = answer(self.handle.address().get().execute().try_collect::<Vec<_>>()).await;
        let found = found.map_err(KernelError::of("list addresses"))?;
        let mut own = Vec::new();
        for address in addresses {
            let is_it = |ip: IpAddr| ip == *address;
            let message = found
                .iter()
                .find(|message| netlink::address_of(&message.attributes).is_some_and(is_it));
            if let Some(message) = message
                && let Some(mtu_bytes) = self.mtu(message.header.index).await
            {
                own.push(OwnAddress { address: *address, mtu_bytes });
            }
        }

        Ok(own)
    }

    /// How a pod of this node is reached; not through the interface of the default route.
    async fn reach_of_pod(&self, address: IpAddr) -> Option<Reach> {
        let route = self.lookup(address).await?;
        let default_destination = DOCUMENTATION_ADDRESSES
            .into_iter()
            .find(|other| other.is_ipv4() == address.is_ipv4())?;
        let default = self.lookup(default_destination).await;
        if default.is_some_and(|default| path(&default) == path(&route)) {
            return None;
        }

        netlink::output_interface(&route).map(|device| Reach::Neighbour { device })
    }

    async fn reach(&self, address: IpAddr) -> Option<Reach> {
        let route = self.lookup(address).await?;
        match gateway(&route) {
            Some(_) => Some(Reach::Routed),
            None => netlink::output_interface(&route).map(|device| Reach::Neighbour { device }),
        }
    }

    /// The route that a packet of this host to `address` takes.
    async fn lookup(&self, address: IpAddr) -> Option<RouteMessage> {
        let question = netlink::route_message(address.into(), None);
        let mut answers = Box::pin(self.handle.route().get(question).execute());
        let route = answer(answers.try_next()).await.ok()??;

        (route.header.kind == RouteType::Unicast).then_some(route)
    }
}

/// The interface and the next hop.
fn path(route: &RouteMessage) -> (Option<u32>, Option<&RouteAttribute>) {
    (netlink::output_interface(route), gateway(route))
}

fn gateway(route: &RouteMessage) -> Option<&RouteAttribute> {
    route
        .attributes
        .iter()
        .find(|attribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)))
}
