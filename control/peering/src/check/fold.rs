//! Puts each consequence under its cause, so that one broken gateway is one finding. Pure.

use super::super::Side;
use super::{Finding, Severity};

/// Problems of the operator and of prefixes.
const OF_OPERATOR: [&str; 4] =
    ["OperatorMissing", "OperatorNotReady", "NobodyLeads", "RightsMissing"];

/// Problems that a working operator would solve, beside those of gateways.
const CONSEQUENCES: [&str; 4] = ["NotConfigured", "NoPrefix", "NoAddress", "NobodyLeads"];

/// The steps from a template to a connection: a problem of a step may follow from one of an earlier step.
const WAY: [&[&str]; 8] = [
    &["Unassigned", "IndexInvalid", "TemplateMissing", "TemplateUnusable", WARNING_EVENT],
    &["NoKeys", "KeysMalformed"],
    &["GatewayMissing"],
    &["GatewayNotReady"],
    &["NoActivePod", "SeveralActivePods", "LoadBalancerPending", "NoEndpoint"],
    &["NoCounterpart"],
    &["PublicKeyMissing", "KeyMalformed", "KeyDiffers", "ConfigurationMissing", "NotConfigured"],
    &["NotInForce", "ConnectionMissing", "NotConnected"],
];

/// Those of [`WAY`] that do not follow from another: wrong or missing input.
const WRITTEN: [&str; 5] =
    ["NoCounterpart", "KeyMalformed", "KeyDiffers", "ConfigurationMissing", "NotConfigured"];

/// From this step on the cause may be the gateway at the other end.
const BETWEEN_GATEWAYS: usize = 5;

/// The reason of a finding that is a Warning among the Events.
pub(super) const WARNING_EVENT: &str = "WarningEvent";

/// Names a gateway of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatewayName {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Puts each consequence among `findings` under its cause. `pairs` are the ends of each tunnel, the local one first.
pub(super) fn fold(findings: Vec<Finding>, pairs: &[[GatewayName; 2]]) -> Vec<Finding> {
    let causes: Vec<_> = findings.iter().map(|finding| cause(finding, &findings, pairs)).collect();
    let mut folded: Vec<_> = findings.iter().cloned().map(Some).collect();
    for (place, finding) in findings.into_iter().enumerate() {
        let mut root = place;
        // A cause is at an earlier step than its consequence, so this ends.
        while let Some(cause) = causes.get(root).copied().flatten() {
            root = cause;
        }
        if root != place {
            if let Some(cause) = folded.get_mut(root).and_then(Option::as_mut) {
                cause.consequences.push(finding);
            }
            if let Some(consequence) = folded.get_mut(place) {
                *consequence = None;
            }
        }
    }

    folded.into_iter().flatten().collect()
}

/// The index of the cause of `finding`: the first one on the way, or else the operator.
fn cause(finding: &Finding, all: &[Finding], pairs: &[[GatewayName; 2]]) -> Option<usize> {
    let errors = || all.iter().enumerate().filter(|(_, it)| it.severity == Severity::Error);
    let later = step(finding).filter(|step| *step > 0 && !WRITTEN.contains(&finding.reason));

    let earlier = later.zip(Place::of(finding)).and_then(|(later, own)| {
        let steps = errors().filter_map(|(index, cause)| {
            let step = step(cause).filter(|step| *step < later)?;
            let place = Place::of(cause)?;
            let is_own = place.is_shared_with(&own);
            let is_of_other_end =
                later >= BETWEEN_GATEWAYS && pairs.iter().any(|pair| own.is_across(&place, pair));
            (is_own || is_of_other_end).then_some((step, !is_own, index))
        });
        steps.min().map(|(_, _, index)| index)
    });
    let is_of_operator = |cause: &Finding| {
        cause.side == finding.side
            && OF_OPERATOR.contains(&cause.reason)
            && cause.reason != finding.reason
    };
    let operator = || {
        let is_left_undone = later.is_some() || CONSEQUENCES.contains(&finding.reason);
        errors().find(|(_, cause)| is_left_undone && is_of_operator(cause)).map(|(place, _)| place)
    };

    earlier.or_else(operator)
}

fn step(finding: &Finding) -> Option<usize> {
    WAY.iter().position(|reasons| reasons.contains(&finding.reason))
}

/// The gateway that a finding concerns.
struct Place<'a> {
    side: Side,
    namespace: &'a str,
    /// `None`: each one in the namespace.
    name: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(finding: &'a Finding) -> Option<Self> {
        let side = finding.side;
        if let Some(GatewayName { namespace, name }) = &finding.gateway {
            return Some(Self { side, namespace, name: Some(name) });
        }
        let (_, object) = finding.object.split_once(' ')?;
        let (namespace, _) = object.split_once('/')?;

        Some(Self { side, namespace, name: None })
    }

    /// Whether both concern one gateway.
    fn is_shared_with(&self, other: &Self) -> bool {
        let is_one = match (self.name, other.name) {
            (Some(name), Some(other)) => name == other,
            _ => true,
        };

        is_one && (self.side, self.namespace) == (other.side, other.namespace)
    }

    /// Whether `other` concerns the gateway at the other end of a tunnel with these ends.
    fn is_across(&self, other: &Self, [local, remote]: &[GatewayName; 2]) -> bool {
        match (self.side, other.side) {
            (Side::Local, Side::Remote) => self.is(local) && other.is(remote),
            (Side::Remote, Side::Local) => self.is(remote) && other.is(local),
            _ => false,
        }
    }

    /// Whether it concerns `gateway`.
    fn is(&self, gateway: &GatewayName) -> bool {
        self.namespace == gateway.namespace && self.name.is_none_or(|name| name == gateway.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finding(side: Side, object: &str, reason: &'static str) -> Finding {
        let text = String::new();

        Finding { side, ..Finding::error(object.to_owned(), reason, text.clone(), text) }
    }

    /// The only tunnel, between the gateways of namespaces `a` and `b`.
    fn tunnel() -> [[GatewayName; 2]; 1] {
        [[("a", "milan"), ("b", "rome")].map(|(namespace, name)| GatewayName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })]
    }

    /// Each cause with the reasons of its consequences.
    fn folded(
        findings: &[Finding],
        pairs: &[[GatewayName; 2]],
    ) -> Vec<(&'static str, Vec<&'static str>)> {
        let reason = |finding: &Finding| finding.reason;
        let folded = fold(findings.to_vec(), pairs);

        folded.iter().map(|it| (it.reason, it.consequences.iter().map(reason).collect())).collect()
    }

    #[test]
    fn a_broken_gateway_is_one_finding() {
        let here = |object, reason| finding(Side::Only, object, reason);
        let found = [
            here("Connection a/gw-rome", "ConnectionMissing"),
            here("Configuration a/rome", "NotConfigured"),
            here("Deployment a/gw-rome", "GatewayMissing"),
            here("Deployment b/gw-oslo", "GatewayNotReady"),
            here("GatewayServer a/rome", "NoKeys"),
            here("GatewayServer a/rome", "PublicKeyMissing"),
            here("GatewayServer a/rome", WARNING_EVENT),
        ];

        let consequences =
            vec!["ConnectionMissing", "GatewayMissing", "NoKeys", "PublicKeyMissing"];
        let expected =
            [("NotConfigured", vec![]), ("GatewayNotReady", vec![]), (WARNING_EVENT, consequences)];
        assert_eq!(folded(&found, &[]), expected);

        // A problem of the gateway itself takes precedence over one of the operator.
        let leader = here("Lease liqo/strait-operator", "NobodyLeads");
        let operator = here("Deployment liqo/strait-operator", "OperatorNotReady");
        let found = [&[leader, operator], &found[..]].concat();
        let (_, event) = expected.split_at(2);
        let of_operator = vec!["NobodyLeads", "NotConfigured", "GatewayNotReady"];
        assert_eq!(folded(&found, &[]), [&[("OperatorNotReady", of_operator)], event].concat());
    }

    #[test]
    fn the_other_end_may_be_the_cause() {
        let found = [
            finding(Side::Local, "Connection a/gw-milan", "NotConnected"),
            finding(Side::Remote, "Deployment b/gw-rome", "GatewayNotReady"),
        ];
        let pairs = tunnel();

        assert_eq!(folded(&found, &pairs), [("GatewayNotReady", vec!["NotConnected"])]);
        assert_eq!(folded(&found, &[]).len(), 2);
    }

    #[test]
    fn several_gateways_do_not_explain_each_other() {
        let of = |name: &str, it: Finding| {
            let (namespace, _) = it.object.split_once(' ').unwrap().1.split_once('/').unwrap();
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            Finding { gateway: Some(GatewayName { namespace, name }), ..it }
        };
        let found = [
            of("milan", finding(Side::Local, "Connection a/gw-milan", "NotConnected")),
            of("milan-1", finding(Side::Local, "Connection a/gw-milan-1", "NotConnected")),
            of("rome-1", finding(Side::Remote, "Deployment b/gw-rome-1", "GatewayNotReady")),
        ];
        let name = |namespace: &str, name: &str| GatewayName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let pairs =
            [[name("a", "milan"), name("b", "rome")], [name("a", "milan-1"), name("b", "rome-1")]];

        let expected = [("NotConnected", vec![]), ("GatewayNotReady", vec!["NotConnected"])];
        assert_eq!(folded(&found, &pairs), expected);
        let causes = fold(found.to_vec(), &pairs);
        assert_eq!(causes[0].object, "Connection a/gw-milan");
    }

    fn any_finding() -> impl Strategy<Value = Finding> {
        let reasons: Vec<_> = WAY
            .concat()
            .into_iter()
            .chain(OF_OPERATOR)
            .chain(CONSEQUENCES)
            .chain(["Other"])
            .collect();
        let sides = prop::sample::select(vec![Side::Local, Side::Remote]);
        let objects = prop::sample::select(vec!["Pod a/x", "Pod b/x", "Namespace a"]);

        (sides, objects, prop::sample::select(reasons), any::<bool>()).prop_map(
            |(side, object, reason, is_error)| {
                let severity = if is_error { Severity::Error } else { Severity::Warning };
                Finding { severity, ..finding(side, object, reason) }
            },
        )
    }

    proptest! {
        #[test]
        fn folding_keeps_every_finding(found in prop::collection::vec(any_finding(), 0..12)) {
            let pairs = tunnel();
            let folded = fold(found.clone(), &pairs);
            let mut all: Vec<_> = folded
                .iter()
                .flat_map(|it| it.consequences.iter().cloned().chain([Finding {
                    consequences: Vec::new(), ..it.clone()
                }]))
                .collect();
            let key = |it: &Finding| format!("{it:?}");
            all.sort_by_key(key);
            let mut found = found;
            found.sort_by_key(key);

            prop_assert_eq!(all, found);
        }
    }
}
