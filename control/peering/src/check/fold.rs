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
    &["Unassigned", "TemplateMissing", "TemplateUnusable", WARNING_EVENT],
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

/// Puts each consequence among `findings` under its cause. `pairs` are the namespaces of the ends of each tunnel, the
/// local one first.
pub(super) fn fold(findings: Vec<Finding>, pairs: &[[String; 2]]) -> Vec<Finding> {
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
fn cause(finding: &Finding, all: &[Finding], pairs: &[[String; 2]]) -> Option<usize> {
    let errors = || all.iter().enumerate().filter(|(_, it)| it.severity == Severity::Error);
    let later = step(finding).filter(|step| *step > 0 && !WRITTEN.contains(&finding.reason));

    let earlier = later.zip(namespace(finding)).and_then(|(later, namespace)| {
        let own = (finding.side, namespace);
        let other = (later >= BETWEEN_GATEWAYS).then(|| other_end(own, pairs)).flatten();
        let steps = errors().filter_map(|(place, cause)| {
            let step = step(cause).filter(|step| *step < later)?;
            let of = (cause.side, self::namespace(cause)?);
            (of == own || other == Some(of)).then_some((step, of != own, place))
        });
        steps.min().map(|(_, _, place)| place)
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

/// The namespace of the gateway, or else of the object.
fn namespace(finding: &Finding) -> Option<&str> {
    if let Some(tenant) = &finding.tenant {
        return Some(tenant);
    }
    let (_, object) = finding.object.split_once(' ')?;

    object.split_once('/').map(|(namespace, _)| namespace)
}

/// The side and the namespace of the gateway at the other end.
fn other_end<'a>(own: (Side, &str), pairs: &'a [[String; 2]]) -> Option<(Side, &'a str)> {
    pairs.iter().find_map(|[local, remote]| match own {
        (Side::Local, namespace) if local == namespace => Some((Side::Remote, remote.as_str())),
        (Side::Remote, namespace) if remote == namespace => Some((Side::Local, local.as_str())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finding(side: Side, object: &str, reason: &'static str) -> Finding {
        let text = String::new();

        Finding { side, ..Finding::error(object.to_owned(), reason, text.clone(), text) }
    }

    /// Each cause with the reasons of its consequences.
    fn folded(
        findings: &[Finding],
        pairs: &[[String; 2]],
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
        let pairs = [["a".to_owned(), "b".to_owned()]];

        assert_eq!(folded(&found, &pairs), [("GatewayNotReady", vec!["NotConnected"])]);
        assert_eq!(folded(&found, &[]).len(), 2);
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
            let pairs = [["a".to_owned(), "b".to_owned()]];
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
