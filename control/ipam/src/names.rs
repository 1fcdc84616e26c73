//! Labels, finalizers and names, exactly those of Liqo.

use remap::Prefix;

/// `"true"` on an immutable `Network`, whose prefix cannot be remapped.
pub(super) const NOT_REMAPPED: &str = "ipam.liqo.io/network-not-remapped";
/// `"true"` as annotation of the objects of the installation: they have no finalizer.
pub(super) const PREINSTALLED: &str = "liqo.io/preinstalled";

/// On an `IP`: the namespace of the `Network` that its address is from.
pub(super) const NETWORK_NAMESPACE: &str = "ipam.liqo.io/network-namespace";
/// On an `IP`: the name of that `Network`.
pub(super) const NETWORK_NAME: &str = "ipam.liqo.io/network-name";

/// On a `Network` of a `Configuration`: which list it is from.
pub(super) const CIDR_TYPE: &str = "configuration.liqo.io/cidr-type";

/// Keeps a `Network` until its prefix is released.
pub(super) const NETWORK_FINALIZER: &str = "network.ipam.liqo.io/finalizer";
/// Keeps an `IP` until its address is released.
pub(super) const IP_FINALIZER: &str = "ip.ipam.liqo.io/finalizer";

/// Annotation of ours: the UID of the journal before which no write to the object can be outstanding.
pub(super) const SINCE: &str = "ipam.strait.io/since-journal";

/// The longest name of an object.
const NAME_BYTES_MAX: usize = 253;

/// `prefix` in the form for a name.
pub(super) fn in_name(prefix: Prefix) -> String {
    prefix.to_string().replace(['.', '/', ':'], "-")
}

/// The name of the `Network` of a `Configuration`; `None` if it would be too long.
pub(super) fn of_child(configuration: &str, cidr_type: &str, prefix: Prefix) -> Option<String> {
    let name = format!("{configuration}-{cidr_type}-{}", in_name(prefix));

    (name.len() <= NAME_BYTES_MAX).then_some(name)
}
