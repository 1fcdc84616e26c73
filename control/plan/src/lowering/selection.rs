//! Which objects concern a gateway: the label sets that each gateway of Liqo watches, in all namespaces.

use kube::{Resource, ResourceExt};
use strait_api::labels::{
    ALL_GATEWAYS, FABRIC, FABRIC_NODE, FIREWALL_CATEGORY, FIREWALL_SUBCATEGORY, FIREWALL_UNIQUE,
    GATEWAY, IP_MAPPING, ROUTE_CATEGORY, ROUTE_SUBCATEGORY, ROUTE_UNIQUE,
};
use strait_api::{FirewallConfiguration, RouteConfiguration};

use super::{Outcome, Problem, Scope};
use crate::objects::{Listed, ObjectName};

/// An object that concerns the gateway.
#[derive(Debug)]
pub(super) struct Selected<'a, O> {
    pub(super) object: &'a O,
}

impl<O> Clone for Selected<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Selected<'_, O> {}

impl<O: Resource<DynamicType = ()>> Selected<'_, O> {
    pub(super) fn name(&self) -> ObjectName {
        ObjectName::of(self.object)
    }
}

/// Those that concern the gateway, in the order of their names.
pub(super) fn firewalls<'a>(
    scope: &Scope,
    listed: &'a [Listed<FirewallConfiguration>],
) -> Vec<Result<Selected<'a, FirewallConfiguration>, Box<Outcome>>> {
    select(listed, |label| {
        let of_all = [ALL_GATEWAYS, FABRIC, IP_MAPPING].map(Some);
        label(FIREWALL_CATEGORY) == Some(GATEWAY)
            && (of_all.contains(&label(FIREWALL_SUBCATEGORY))
                || label(FIREWALL_UNIQUE) == Some(&scope.remote_cluster_id))
    })
}

/// The same for routes.
pub(super) fn routes<'a>(
    scope: &Scope,
    listed: &'a [Listed<RouteConfiguration>],
) -> Vec<Result<Selected<'a, RouteConfiguration>, Box<Outcome>>> {
    select(listed, |label| {
        let unique = label(ROUTE_UNIQUE);
        let is_for = match label(ROUTE_SUBCATEGORY) {
            Some(FABRIC) => true,
            Some(FABRIC_NODE) if unique.is_some() => unique == scope.node_name.as_deref(),
            _ => false,
        };
        label(ROUTE_CATEGORY) == Some(GATEWAY)
            && (is_for || unique == Some(&scope.remote_cluster_id))
    })
}

/// An object that is being deleted is no longer in force, although finalizers of others keep it.
fn select<'a, O: Resource<DynamicType = ()>>(
    listed: &'a [Listed<O>],
    is_for: impl Fn(&dyn Fn(&str) -> Option<&'a str>) -> bool,
) -> Vec<Result<Selected<'a, O>, Box<Outcome>>> {
    let concerns = |listed: &&'a Listed<O>| {
        let labels = (***listed).labels();
        let is_deleted = (***listed).meta().deletion_timestamp.is_some();
        !is_deleted && is_for(&|label| labels.get(label).map(String::as_str))
    };
    let mut selected: Vec<_> = listed.iter().filter(concerns).collect();
    selected.sort_by_key(|listed| (listed.namespace(), listed.name_any()));

    let sound = selected.into_iter().map(|listed| match &listed.0 {
        Ok(object) => Ok(Selected { object }),
        Err(invalid) => {
            let problem = Problem::Malformed { cause: invalid.error.clone() };
            Err(Box::new(Outcome { problem: Some(problem), ..Outcome::of(&**listed) }))
        }
    });

    sound.collect()
}
