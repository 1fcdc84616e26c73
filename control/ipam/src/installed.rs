//! The `Network`s of an installation: the prefixes that the cluster itself uses, which are not allocated. Pure.

use kube::api::ObjectMeta;
use remap::Prefix;
use strait_api::Network;
use strait_api::labels::{EXTERNAL_CIDR, NETWORK_TYPE, POD_CIDR, SHARED, TRUE};
use strait_api::network::NetworkSpec;

use super::names::{NOT_REMAPPED, PREINSTALLED, in_name};

/// The default external prefix.
const DEFAULT_EXTERNAL: &str = "10.70.0.0/16";

/// The default internal prefix.
const DEFAULT_INTERNAL: &str = "10.80.0.0/16";

/// The first external address masquerades sources that remote clusters do not know. Allocation reserves more of them,
/// for peerings with several gateways; the field is immutable and has the value of Liqo.
const EXTERNAL_RESERVED: i32 = 1;

/// The prefixes that a cluster uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The namespace of the objects.
    pub namespace: String,
    /// The pod prefixes; at least one.
    pub pod_cidrs: Vec<Prefix>,
    /// The service prefix.
    pub service_cidr: Prefix,
    /// The external prefix, immutable. `None`: 10.70.0.0/16, or another one if that is in use.
    pub external_cidr: Option<Prefix>,
    /// The internal prefix, between pods and gateways, immutable. `None`: 10.80.0.0/16, or another one if that is in
    /// use.
    pub internal_cidr: Option<Prefix>,
    /// Other prefixes in use around the cluster.
    pub reserved: Vec<Prefix>,
}

/// The `Network`s to apply, in this order: those that can be remapped come last.
#[must_use]
pub fn installed_networks(installation: &Installation) -> Vec<Network> {
    let Installation { namespace, pod_cidrs, service_cidr, external_cidr, internal_cidr, reserved } =
        installation;
    let made = |name: String, network_type, cidr: String, marks: &[&str]| {
        network(namespace, name, network_type, cidr, marks)
    };
    let own = |name, network_type, prefix: &Prefix| {
        made(name, network_type, prefix.to_string(), &[NOT_REMAPPED, SHARED])
    };
    let pods = pod_cidrs.iter().map(|prefix| match pod_cidrs.as_slice() {
        [_] => own(POD_CIDR.to_owned(), POD_CIDR, prefix),
        _ => own(format!("{POD_CIDR}-{}", in_name(*prefix)), POD_CIDR, prefix),
    });
    let services = own("service-cidr".to_owned(), "service-cidr", service_cidr);
    let reserved = reserved
        .iter()
        .map(|prefix| own(format!("reserved-{}", in_name(*prefix)), "reserved", prefix));
    let exclusive = |network_type: &'static str, prefix: &Option<Prefix>, default: &str| {
        let name = network_type.to_owned();
        match prefix {
            Some(prefix) => made(name, network_type, prefix.to_string(), &[NOT_REMAPPED]),
            None => made(name, network_type, default.to_owned(), &[]),
        }
    };
    let mut external = exclusive(EXTERNAL_CIDR, external_cidr, DEFAULT_EXTERNAL);
    external.spec.pre_allocated = Some(EXTERNAL_RESERVED);
    let internal = exclusive("internal-cidr", internal_cidr, DEFAULT_INTERNAL);

    pods.chain([services]).chain(reserved).chain([external, internal]).collect()
}

fn network(
    namespace: &str,
    name: String,
    network_type: &str,
    cidr: String,
    marks: &[&str],
) -> Network {
    let marks = marks.iter().map(|mark| ((*mark).to_owned(), TRUE.to_owned()));
    let labels = marks.chain([(NETWORK_TYPE.to_owned(), network_type.to_owned())]);
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels.collect()),
        annotations: Some([(PREINSTALLED.to_owned(), TRUE.to_owned())].into()),
        ..ObjectMeta::default()
    };

    Network { metadata, spec: NetworkSpec { cidr, pre_allocated: None }, status: None }
}
