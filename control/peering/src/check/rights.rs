//! Checks the rights of the operator's account, through the API server.

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use kube::api::PostParams;

use super::super::CommandError;
use super::super::context::PeeringSide;
use super::read::Facts;
use super::{Finding, named};

/// The rights that the operator needs, in all namespaces and in its own.
const CLUSTER_ROLE: &str = include_str!("../../../../deploy/rbac/operator-clusterrole.yaml");
const ROLE: &str = include_str!("../../../../deploy/rbac/operator-role.yaml");

/// Groups without which an operator works.
const OPTIONAL: [&str; 1] = ["monitoring.coreos.com"];

/// The number of concurrent calls.
const CALLS_MAX: usize = 16;

/// Asks for each right that the operator needs.
pub(super) async fn findings(
    end: &PeeringSide<'_>,
    facts: &Facts,
) -> Result<Vec<Finding>, CommandError> {
    let account = facts.only_operator().and_then(|operator| {
        let pod = operator.spec.template.spec.as_ref()?;
        pod.service_account_name.clone()
    });
    let Some(account) = account else { return Ok(Vec::new()) };
    let needed = needed(&facts.namespace);
    let object = named("ServiceAccount", Some(&facts.namespace), &account);
    let reviews: Api<SubjectAccessReview> = Api::all(end.client.clone());
    let questions: Vec<_> =
        needed.into_iter().map(|attributes| ask(end, &reviews, &account, attributes)).collect();
    let mut answers = stream::iter(questions).buffer_unordered(CALLS_MAX);
    let mut missing = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer? {
            Answer::Allowed => {}
            Answer::Denied(right) => missing.push(right),
            Answer::Unknown => {
                return Ok(vec![Finding::warning(
                    "your account".to_owned(),
                    "NotAllowed",
                    format!(
                        "it may not create subjectaccessreviews, so the rights of {object} are not checked"
                    ),
                    "ask for that right, or choose another context".to_owned(),
                )]);
            }
        }
    }
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    missing.sort();
    let message = format!("it may not {}", missing.join(", "));
    let remedy = "apply deploy/rbac, and bind the roles to it".to_owned();

    Ok(vec![Finding::error(object, "RightsMissing", message, remedy)])
}

/// The answer of the API server on one right.
enum Answer {
    Allowed,
    /// The right that is missing.
    Denied(String),
    /// The user may not ask.
    Unknown,
}

async fn ask(
    end: &PeeringSide<'_>,
    reviews: &Api<SubjectAccessReview>,
    account: &str,
    attributes: ResourceAttributes,
) -> Result<Answer, CommandError> {
    let right = request_text(&attributes);
    let review = review(&end.liqo_namespace, account, attributes);
    let parameters = PostParams::default();
    let answer =
        end.ask("asking for rights", async || reviews.create(&parameters, &review).await).await?;

    Ok(match answer {
        None => Answer::Unknown,
        Some(review) if review.status.as_ref().is_some_and(|status| status.allowed) => {
            Answer::Allowed
        }
        Some(_) => Answer::Denied(right),
    })
}

/// Whether `account` has that right, by itself or by the groups that the API server puts it in.
fn review(namespace: &str, account: &str, attributes: ResourceAttributes) -> SubjectAccessReview {
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ];
    let spec = SubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        user: Some(format!("system:serviceaccount:{namespace}:{account}")),
        groups: Some(groups.to_vec()),
        ..SubjectAccessReviewSpec::default()
    };

    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// One review per verb.
fn needed(namespace: &str) -> Vec<ResourceAttributes> {
    // Both are part of this program, and tested.
    let everywhere = serde_saphyr::from_str::<ClusterRole>(CLUSTER_ROLE).ok();
    let here = serde_saphyr::from_str::<Role>(ROLE).ok();
    let everywhere = everywhere.and_then(|role| role.rules).unwrap_or_default();
    let here = here.and_then(|role| role.rules).unwrap_or_default();
    let of_all = everywhere.iter().flat_map(|rule| attributes(rule, None));
    let of_here = here.iter().flat_map(|rule| attributes(rule, Some(namespace)));

    of_all.chain(of_here).collect()
}

fn attributes(rule: &PolicyRule, namespace: Option<&str>) -> Vec<ResourceAttributes> {
    let groups = rule.api_groups.iter().flatten();
    let names = rule.resource_names.clone().filter(|names| !names.is_empty());
    // Of several one will do: which one is used depends on flags.
    let name = names.and_then(|names| names.into_iter().next_back());
    let mut attributes = Vec::new();
    for group in groups.filter(|group| !OPTIONAL.contains(&group.as_str())) {
        for resource in rule.resources.iter().flatten() {
            let (resource, part) = match resource.split_once('/') {
                Some((resource, part)) => (resource, Some(part.to_owned())),
                None => (resource.as_str(), None),
            };
            attributes.extend(rule.verbs.iter().map(|verb| ResourceAttributes {
                group: Some(group.clone()),
                resource: Some(resource.to_owned()),
                subresource: part.clone(),
                verb: Some(verb.clone()),
                name: name.clone(),
                namespace: namespace.map(str::to_owned),
                ..ResourceAttributes::default()
            }));
        }
    }

    attributes
}

/// In the notation of administrators.
fn request_text(attributes: &ResourceAttributes) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut words = format!("{} {}", text(&attributes.verb), text(&attributes.resource));
    if let Some(part) = &attributes.subresource {
        words = format!("{words}/{part}");
    }
    if let Some(group) = attributes.group.as_ref().filter(|group| !group.is_empty()) {
        words = format!("{words}.{group}");
    }

    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_the_shipped_roles_is_checked() {
        let needed = needed("liqo");
        let words: Vec<_> = needed.iter().map(request_text).collect();

        for right in [
            "create configmaps",
            "update configmaps",
            "patch networks/status.ipam.liqo.io",
            "bind clusterroles.rbac.authorization.k8s.io",
            "create secrets",
        ] {
            assert!(words.iter().any(|word| word == right), "{right}: {words:?}");
        }
        let own: Vec<_> = needed.iter().filter(|it| it.namespace.is_some()).collect();
        assert!(own.iter().all(|it| it.namespace.as_deref() == Some("liqo")));
        assert_eq!(own.len(), 8);
        assert!(!words.iter().any(|word| word.contains("servicemonitors")));
    }

    #[test]
    fn rights_of_a_group_are_the_accounts() {
        let review = review("liqo", "strait-operator", ResourceAttributes::default());

        assert_eq!(review.spec.user.unwrap(), "system:serviceaccount:liqo:strait-operator");
        assert_eq!(
            review.spec.groups.unwrap(),
            ["system:serviceaccounts", "system:serviceaccounts:liqo", "system:authenticated"]
        );
    }
}
