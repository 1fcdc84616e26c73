//! Origins of the configuration of a gateway in a cluster.

use strait_api::identity::Mode;
use strait_plan::conditions::Verdict;

use crate::cluster::flags::{EdgeFlag, OffloadSwitch};
use crate::config::{Origin, Origins};
use crate::flag_values::FlagValues;

/// The origins of the initial configuration: each key with the flag that sets it.
pub(super) fn of_flags(
    flag_values: &FlagValues,
    mode: Mode,
    edge: EdgeFlag,
    offloads: &[OffloadSwitch],
) -> Origins {
    let port = match mode {
        Mode::Server => "listen_ports",
        Mode::Client => "mode",
    };
    let overlay_port = match edge {
        EdgeFlag::Device | EdgeFlag::Overlay => "vxlan_port",
        EdgeFlag::Geneve => "geneve_port",
    };
    let flags = [
        ("name", "name"),
        ("interface", "interface"),
        ("addresses", "mode"),
        ("listen_port", port),
        ("mtu", "mtu"),
        ("private_key_file", "keys_dir"),
        ("metrics_address", "metrics_address"),
        ("admin_socket", "admin_socket"),
        ("engine", "engine"),
        ("encapsulation", "edge"),
        ("port", overlay_port),
        ("vni", "vxlan_vni"),
        ("node", "node_address"),
    ];

    let offloads = offloads.iter().map(|switch| (switch.name, "offload"));

    flags.into_iter().chain(offloads).fold(Origins::default(), |origins, (key, flag)| {
        origins.with(key, flag_values.origin(flag))
    })
}

/// Whether `origin` is the object that `verdict` is about.
pub(super) fn is_subject_of(origin: &Origin, verdict: &Verdict) -> bool {
    matches!(origin, Origin::Object { kind, namespace, name } if verdict.is_about(kind, namespace, name))
}
