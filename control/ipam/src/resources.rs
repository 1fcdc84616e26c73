//! The content of the objects, as far as it affects allocations. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use remap::{Prefix, PrefixError};
use strait_api::labels::{EXTERNAL_CIDR, GATEWAYS_MAX, NETWORK_TYPE, SHARED, TRUE};
use strait_api::{Configuration, IP, Network};
use strait_plan::objects::Listed;

use super::names::{CIDR_TYPE, NOT_REMAPPED, PREINSTALLED};
use super::requests::{RequestedPrefixes, requested_prefixes};
use super::{Place, Request, Settings};

/// All objects of the kinds that matter, as they were seen last.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) networks: Vec<Listed<Network>>,
    pub(super) ips: Vec<Listed<IP>>,
    pub(super) configurations: Vec<Listed<Configuration>>,
}

/// Those that can be read.
pub(super) struct Resources<'a> {
    /// By place.
    pub(super) networks: Vec<ParsedNetwork<'a>>,
    /// By place.
    pub(super) ips: Vec<ParsedIp<'a>>,
    pub(super) configurations: Vec<ParsedConfiguration<'a>>,
    /// Of all networks and addresses, the unreadable ones as well.
    pub(super) uids: BTreeSet<&'a str>,
    network_of: BTreeMap<(&'a str, &'a str), usize>,
    external: Option<usize>,
}

/// A `Network`.
pub(super) struct ParsedNetwork<'a> {
    pub(super) object: &'a Network,
    pub(super) uid: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Whether it was deleted and is only kept by finalizers.
    pub(super) is_deleted: bool,
    pub(super) is_preinstalled: bool,
    pub(super) place: Place,
    pub(super) request: Result<Request, PrefixError>,
    /// The number of addresses at the beginning that are not allocated.
    pub(super) reserved: u32,
    /// The prefix in its status.
    pub(super) chosen: Option<Prefix>,
    /// The UID of the `Configuration` that it belongs to, and from which list of it.
    pub(super) configuration: Option<(&'a str, &'a str)>,
}

/// An `IP`.
pub(super) struct ParsedIp<'a> {
    pub(super) object: &'a IP,
    pub(super) uid: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) is_deleted: bool,
    pub(super) place: Place,
    /// The address in its status, which the API does not permit to change.
    pub(super) chosen: Option<IpAddr>,
}

/// A `Configuration` that was not deleted.
pub(super) struct ParsedConfiguration<'a> {
    pub(super) object: &'a Configuration,
    pub(super) uid: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) requested: RequestedPrefixes,
}

impl<'a> Resources<'a> {
    pub(super) fn read(settings: &Settings, objects: &'a Objects) -> Self {
        let mut configurations: Vec<_> =
            readable(&objects.configurations).filter_map(configuration).collect();
        configurations.sort_by_key(|facts| (facts.namespace, facts.name));
        let by_uid: BTreeMap<_, _> =
            configurations.iter().map(|facts| (facts.uid, facts)).collect();

        let networks = readable(&objects.networks);
        let mut networks: Vec<_> = networks.filter_map(|object| network(object, &by_uid)).collect();
        networks.sort_by(|a, b| (&a.place, a.uid).cmp(&(&b.place, b.uid)));
        let mut ips: Vec<_> = readable(&objects.ips).filter_map(ip).collect();
        ips.sort_by(|a, b| (&a.place, a.uid).cmp(&(&b.place, b.uid)));

        let uids = uids(&objects.networks).chain(uids(&objects.ips)).collect();
        let network_of = networks.iter().enumerate();
        let network_of =
            network_of.map(|(place, facts)| ((facts.namespace, facts.name), place)).collect();
        let is_external = |facts: &ParsedNetwork<'_>| {
            let is_of_type = label(facts.object, NETWORK_TYPE) == Some(EXTERNAL_CIDR);
            is_of_type && facts.namespace == settings.namespace
        };
        // Each gateway of a peering masquerades with one of them. Not in the spec: it is immutable, and that of an
        // installation which exists reserves one.
        for facts in networks.iter_mut().filter(|facts| is_external(facts)) {
            facts.reserved = facts.reserved.max(GATEWAYS_MAX.into());
        }
        let external = networks.iter().position(|facts| is_external(facts) && !facts.is_deleted);

        Self { networks, ips, configurations, uids, network_of, external }
    }

    /// Whether one of the objects has this UID.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.uids.contains(uid) || self.configurations.iter().any(|facts| facts.uid == uid)
    }

    /// The `Network` that an `IP` names, or the one of the installation if it names none.
    pub(super) fn network_of(&self, ip: &ParsedIp<'_>) -> Result<&ParsedNetwork<'a>, NoNetwork> {
        let reference = ip.object.spec.network_ref.as_ref();
        let named = reference.and_then(|reference| {
            let namespace = reference.namespace.as_deref().filter(|name| !name.is_empty());
            Some((namespace.unwrap_or(ip.namespace), reference.name.as_deref()?))
        });
        let place = match named {
            Some(named) => self.network_of.get(&named).copied(),
            None => self.external,
        };
        let facts = place.and_then(|place| self.networks.get(place));

        facts.filter(|facts| !facts.is_deleted).ok_or_else(|| match named {
            Some((namespace, name)) => {
                NoNetwork::Named { namespace: namespace.to_owned(), name: name.to_owned() }
            }
            None => NoNetwork::External,
        })
    }
}

/// Why an `IP` has no `Network`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoNetwork {
    #[error(
        "spec.networkRef names the Network {namespace}/{name}, which does not exist: create it, or name another one"
    )]
    Named { namespace: String, name: String },
    #[error(
        "the install namespace has no Network with the label {NETWORK_TYPE}={EXTERNAL_CIDR}: apply that of the installation, or name one in spec.networkRef"
    )]
    External,
}

fn readable<K>(listed: &[Listed<K>]) -> impl Iterator<Item = &K> {
    listed.iter().filter_map(|listed| listed.0.as_ref().ok())
}

fn uids<K: Resource>(listed: &[Listed<K>]) -> impl Iterator<Item = &str> {
    listed.iter().filter_map(|listed| listed.meta().uid.as_deref())
}

fn configuration(object: &Configuration) -> Option<ParsedConfiguration<'_>> {
    let (uid, namespace, name) = identity(object)?;
    let requested = requested_prefixes(object);

    (!is_deleted(object)).then_some(ParsedConfiguration { object, uid, namespace, name, requested })
}

fn network<'a>(
    object: &'a Network,
    configurations: &BTreeMap<&str, &ParsedConfiguration<'a>>,
) -> Option<ParsedNetwork<'a>> {
    let (uid, namespace, name) = identity(object)?;
    let is_true = |key| label(object, key) == Some(TRUE);
    let (is_immutable, is_shared) = (is_true(NOT_REMAPPED), is_true(SHARED));
    let prefix = object.spec.cidr.parse::<Prefix>();
    let request = prefix.map(|prefix| Request { prefix, is_immutable, is_shared });
    let annotations = object.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|annotations| annotations.get(PREINSTALLED));
    let reserved = object.spec.pre_allocated.and_then(|count| u32::try_from(count).ok());
    let status = object.status.as_ref().and_then(|status| status.cidr.as_deref());
    let owner = owner(object);
    let asked_by = owner.and_then(|owner| Some((owner, label(object, CIDR_TYPE)?)));

    // Those of one Configuration have its age, and its order.
    let asking = asked_by.and_then(|(uid, _)| configurations.get(uid));
    let place = asking.and_then(|asking| {
        let (_, cidr_type) = asked_by?;
        let turn = asking.requested.turn(cidr_type, request.as_ref().ok()?.prefix)?;
        Some(Place { turn, ..place(asking.object) })
    });

    Some(ParsedNetwork {
        object,
        uid,
        namespace,
        name,
        is_deleted: is_deleted(object),
        is_preinstalled: annotation.is_some_and(|text| text == TRUE),
        place: place.unwrap_or_else(|| self::place(object)),
        request,
        reserved: reserved.unwrap_or_default(),
        chosen: status.and_then(|text| text.parse().ok()),
        configuration: asked_by,
    })
}

fn ip(object: &IP) -> Option<ParsedIp<'_>> {
    let (uid, namespace, name) = identity(object)?;
    let status = object.status.as_ref().and_then(|status| status.ip.as_deref());
    let chosen = status.and_then(|text| text.parse().ok());
    let (is_going, place) = (is_deleted(object), place(object));

    Some(ParsedIp { object, uid, namespace, name, is_deleted: is_going, place, chosen })
}

/// The `Configuration` that owns an object.
fn owner(object: &Network) -> Option<&str> {
    let owners = object.metadata.owner_references.as_ref()?;
    let is_configuration = owners.iter().find(|owner| owner.kind == Configuration::kind(&()));

    is_configuration.map(|owner| owner.uid.as_str())
}

fn identity<K: Resource>(object: &K) -> Option<(&str, &str, &str)> {
    let meta = object.meta();

    Some((meta.uid.as_deref()?, meta.namespace.as_deref()?, meta.name.as_deref()?))
}

fn is_deleted<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

fn place<K: Resource>(object: &K) -> Place {
    let meta = object.meta();
    let created = meta.creation_timestamp.as_ref().map(|Time(created)| *created);
    let [namespace, name] =
        [&meta.namespace, &meta.name].map(|text| text.clone().unwrap_or_default());

    Place { created, namespace, name, turn: 0 }
}

pub(super) fn label<'a, K: Resource>(object: &'a K, key: &str) -> Option<&'a str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}
