//! Puts what is a consequence under its cause, so that one broken gateway is one finding. Pure.

use super::super::Side;
use super::{Finding, Severity};

/// Trouble with what makes gateways and gives prefixes.
const OF_OPERATOR: [&str; 4] =
    ["OperatorMissing", "OperatorNotReady", "NobodyLeads", "RightsMissing"];

/// What an operator that works would mend, beside what belongs to a gateway.
const LEFT_UNDONE: [&str; 3] = ["NotConfigured", "NoPrefix", "NoAddress"];

/// The way from a template to a connection: what comes later may be wrong because of what comes before.
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

/// Of [`WAY`] what nothing on it causes: somebody has written it.
const WRITTEN: [&str; 4] = ["KeyMalformed", "KeyDiffers", "ConfigurationMissing", "NotConfigured"];

/// From here on what is wrong may be the fault of the gateway at the other end.
const BETWEEN_GATEWAYS: usize = 5;

/// What an Event has told of.
pub(super) const WARNING_EVENT: &str = "WarningEvent";

/// Puts each consequence among `findings` under its cause. `pairs` are the namespaces of the ends of each
/// tunnel, the local one first.
pub(super) fn fold(findings: Vec<Finding>, pairs: &[[String; 2]]) -> Vec<Finding> {
    let causes: Vec<_> = findings.iter().map(|finding| cause(finding, &findings, pairs)).collect();
    let mut folded: Vec<_> = findings.iter().cloned().map(Some).collect();
    for (place, finding) in findings.into_iter().enumerate() {
        let mut root = place;
        // A cause comes earlier on the way than its consequence, so this ends.
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

/// The place of what `finding` is a consequence of: the first on the way.
fn cause(finding: &Finding, all: &[Finding], pairs: &[[String; 2]]) -> Option<usize> {
    let errors = || all.iter().enumerate().filter(|(_, it)| it.severity == Severity::Error);
    let of_operator = errors()
        .find(|(_, cause)| cause.side == finding.side && OF_OPERATOR.contains(&cause.reason));
    let later = step(finding);
    if let Some((place, _)) = of_operator
        && (later.is_some_and(|step| step > 0 && !is_written(finding))
            || LEFT_UNDONE.contains(&finding.reason))
    {
        return Some(place);
    }

    let later = later.filter(|_| !is_written(finding))?;
    let (side, namespace) = (finding.side, namespace(finding)?);
    let other = (later >= BETWEEN_GATEWAYS).then(|| other_end(side, namespace, pairs)).flatten();
    let is_of = |cause: &Finding, (side, namespace): (Side, &str)| {
        cause.side == side && self::namespace(cause) == Some(namespace)
    };
    let earlier = errors().filter_map(|(place, cause)| {
        let step = step(cause).filter(|step| *step < later)?;
        let is_own = is_of(cause, (side, namespace));
        let is_others = other.is_some_and(|other| is_of(cause, other));
        (is_own || is_others).then_some((step, !is_own, place))
    });

    earlier.min().map(|(_, _, place)| place)
}

fn step(finding: &Finding) -> Option<usize> {
    WAY.iter().position(|reasons| reasons.contains(&finding.reason))
}

fn is_written(finding: &Finding) -> bool {
    WRITTEN.contains(&finding.reason)
}

/// Of the object that the finding is about.
fn namespace(finding: &Finding) -> Option<&str> {
    let (_, object) = finding.object.split_once(' ')?;

    object.split_once('/').map(|(namespace, _)| namespace)
}

/// The side and the namespace of the gateway at the other end.
fn other_end<'a>(side: Side, namespace: &str, pairs: &'a [[String; 2]]) -> Option<(Side, &'a str)> {
    pairs.iter().find_map(|[local, remote]| match side {
        Side::Local if local == namespace => Some((Side::Remote, remote.as_str())),
        Side::Remote if remote == namespace => Some((Side::Local, local.as_str())),
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

        let operator = here("Deployment liqo/strait-operator", "OperatorNotReady");
        let found = [&found[..], &[operator]].concat();
        let [(cause, ref explained), ref more @ ..] = folded(&found, &[])[..] else { panic!() };
        assert_eq!((cause, explained.len()), (WARNING_EVENT, 0), "{more:?}");
        assert_eq!(more[0].0, "OperatorNotReady");
        assert_eq!(more[0].1.len(), 6);
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
            .chain(LEFT_UNDONE)
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
        fn nothing_is_lost_and_every_cause_stays(found in prop::collection::vec(any_finding(), 0..12)) {
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
