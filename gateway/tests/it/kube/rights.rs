//! Whether the roles of operator and gateways are as small as they can be: no call of theirs is refused,
//! and no right is there for nothing. The API server's own log of calls says which were used.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;
use strait_control_lab::roles;

/// The account of the operator.
const OPERATOR: &str = "system:serviceaccount:liqo:strait-operator";

/// How accounts of gateways begin: these are in the namespaces of peerings.
const GATEWAYS: &str = "system:serviceaccount:liqo-tenant-";

/// A verb, an API group, and a resource with its part after the slash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right(String, String, String);

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(verb, group, resource) = self;

        write!(f, "{verb} {resource}.{group}")
    }
}

/// Rights that two joined and parted clusters do not show, or not each time, and why they are needed.
struct Exempt {
    /// As [`Right`] is written.
    rights: &'static [&'static str],
    #[expect(dead_code, reason = "for who reads this")]
    why: &'static str,
}

/// Of the operator.
const OPERATOR_EXEMPT: &[Exempt] = &[
    Exempt {
        rights: &[
            "create deployments.apps",
            "create foreignclusters.core.liqo.io",
            "create rolebindings.rbac.authorization.k8s.io",
            "create serviceaccounts.",
            "create services.",
            "create servicemonitors.monitoring.coreos.com",
            "create wggatewayclients.networking.liqo.io",
            "create wggatewayservers.networking.liqo.io",
        ],
        why: "the API server asks for it when a patch makes the object",
    },
    Exempt {
        rights: &[
            "bind clusterroles.rbac.authorization.k8s.io",
            "update gatewayclients/finalizers.networking.liqo.io",
            "update gatewayservers/finalizers.networking.liqo.io",
            "update wggatewayclients/finalizers.networking.liqo.io",
            "update wggatewayservers/finalizers.networking.liqo.io",
        ],
        why: "the API server asks for it: for a binding, and for an owner that is held back",
    },
    Exempt {
        rights: &[
            "get deployments.apps",
            "get nodes.",
            "get pods.",
            "get rolebindings.rbac.authorization.k8s.io",
            "get serviceaccounts.",
            "get services.",
            "get wggatewayclients.networking.liqo.io",
            "get wggatewayclienttemplates.networking.liqo.io",
            "get wggatewayservers.networking.liqo.io",
            "get wggatewayservertemplates.networking.liqo.io",
        ],
        why: "while not all of a kind are known, each is asked for",
    },
    Exempt {
        rights: &[
            "delete deployments.apps",
            "delete wggatewayclients.networking.liqo.io",
            "delete wggatewayservers.networking.liqo.io",
        ],
        why: "a template that changes what selects pods, or the kind or the name",
    },
    Exempt {
        rights: &[
            "delete services.",
            "delete servicemonitors.monitoring.coreos.com",
            "patch servicemonitors.monitoring.coreos.com",
        ],
        why: "metrics that are asked for, and then are not",
    },
    Exempt {
        rights: &["get ips.ipam.liqo.io", "get networks.ipam.liqo.io"],
        why: "whether what holds a prefix or an address is gone, before another object gets that",
    },
    Exempt {
        rights: &["delete networks.ipam.liqo.io"],
        why: "a prefix that a Configuration no longer has",
    },
    Exempt {
        rights: &["patch ips.ipam.liqo.io", "patch ips/status.ipam.liqo.io"],
        why: "an IP that a user makes",
    },
    Exempt {
        rights: &[
            "create endpointslices.discovery.k8s.io",
            "delete endpointslices.discovery.k8s.io",
            "get endpointslices.discovery.k8s.io",
            "patch endpointslices.discovery.k8s.io",
        ],
        why: "an IP that asks for a service",
    },
    Exempt { rights: &["patch secrets."], why: "keys of the user's own, to be labelled" },
    Exempt { rights: &["patch events.events.k8s.io"], why: "an Event that happens again" },
    Exempt {
        rights: &[
            "create clusterrolebindings.rbac.authorization.k8s.io",
            "delete clusterrolebindings.rbac.authorization.k8s.io",
            "get clusterrolebindings.rbac.authorization.k8s.io",
            "patch clusterrolebindings.rbac.authorization.k8s.io",
            "delete rolebindings.rbac.authorization.k8s.io",
        ],
        why: "gateways of Liqo, whose role is bound in all namespaces, and those that change roles",
    },
];

/// Of a gateway.
const GATEWAY_EXEMPT: &[Exempt] = &[
    Exempt {
        rights: &[
            "create leases.coordination.k8s.io",
            "get leases.coordination.k8s.io",
            "list pods.",
            "patch pods.",
            "update leases.coordination.k8s.io",
        ],
        why: "several replicas",
    },
    Exempt { rights: &["patch events."], why: "an Event that happens again" },
    Exempt {
        rights: &["update connections.networking.liqo.io"],
        why: "a Connection that another client has changed",
    },
];

/// Panics if the log of an API server has a call that was refused, or none that used a right, unless it
/// is known what uses it.
pub(crate) fn assert_needed(logs: &[String]) {
    let operator = [roles::operator_cluster_role().rules, roles::operator_role().rules];
    let gateway = [roles::shipped_role().rules];

    let of_operator = |account: &str| account == OPERATOR;
    let of_gateways = |account: &str| account.starts_with(GATEWAYS);
    let wrong = [
        compare("strait-operator", &operator, &used(logs, of_operator), OPERATOR_EXEMPT),
        compare("strait-gateway", &gateway, &used(logs, of_gateways), GATEWAY_EXEMPT),
    ]
    .concat();

    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is wrong with a role, a right or a call each.
fn compare(
    role: &str,
    rules: &[Option<Vec<PolicyRule>>],
    used: &Used,
    exempt: &[Exempt],
) -> Vec<String> {
    assert!(!used.rights.is_empty(), "{role}: no call at all is in the log");
    let granted = granted(rules.iter().flatten().flatten());
    let known: BTreeSet<_> = exempt.iter().flat_map(|known| known.rights).copied().collect();
    let written: BTreeSet<_> = granted.iter().map(Right::to_string).collect();

    let unused = granted.difference(&used.rights).map(Right::to_string);
    let unused = unused.filter(|right| !known.contains(right.as_str()));
    let stale = known.iter().filter(|right| !written.contains(**right));

    unused
        .map(|right| format!("{role} grants {right}, which no call used"))
        .chain(stale.map(|right| format!("{role} does not grant {right} any more")))
        .chain(used.refused.iter().map(|right| format!("{role} was refused {right}")))
        .collect()
}

fn granted<'a>(rules: impl Iterator<Item = &'a PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let right = |verb: &String| Right(verb.clone(), group.clone(), resource.clone());
                rights.extend(rule.verbs.iter().map(right));
            }
        }
    }

    rights
}

/// What accounts asked for.
#[derive(Default)]
struct Used {
    rights: BTreeSet<Right>,
    refused: BTreeSet<Right>,
}

/// The rights that the users with `is_meant` used.
fn used(logs: &[String], is_meant: impl Fn(&str) -> bool) -> Used {
    let events = logs.iter().flat_map(|log| log.lines());
    let events = events.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut used = Used::default();
    for event in events.filter(|event| is_meant(text(event, "/user/username"))) {
        assert!(text(&event, "/userAgent").starts_with("strait/"), "{event}");
        // Without an object it is a question about the API itself, which needs no right.
        if event["objectRef"].is_null() {
            continue;
        }
        let resource = match text(&event, "/objectRef/subresource") {
            "" => text(&event, "/objectRef/resource").to_owned(),
            part => format!("{}/{part}", text(&event, "/objectRef/resource")),
        };
        let group = text(&event, "/objectRef/apiGroup").to_owned();
        let right = Right(text(&event, "/verb").to_owned(), group, resource);
        if event["responseStatus"]["code"] == 403 {
            used.refused.insert(right);
        } else {
            used.rights.insert(right);
        }
    }

    used
}

fn text<'a>(event: &'a Value, pointer: &str) -> &'a str {
    event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
