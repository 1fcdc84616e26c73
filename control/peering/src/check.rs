//! `check`: finds problems in a cluster, or between two, each with a remedy. Reads, and writes nothing.
//!
//! ```text
//! read    reads the objects that the user may read     asks the API server
//! api, installation, gateway, peering, pair            pure: facts in, findings out
//! rights  missing rights of the accounts               asks the API server
//! fold    puts consequences under their causes         pure
//! ```
//!
//! # Not here
//!
//! Configuration files of gateways (see `strait-daemon`).

#[cfg(test)]
mod agreement;
mod api;
mod fold;
mod gateway;
mod installation;
mod pair;
mod peering;
mod read;
mod rights;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

use super::context::{PeeringSide, check_distinct};
use super::{ClusterContext, CommandError, Session, Side};
use fold::GatewayName;
use read::{Facts, GatewayFacts};

/// A problem. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The cluster, of two.
    #[serde(skip_serializing_if = "Side::is_only")]
    pub side: Side,
    /// The severity.
    pub severity: Severity,
    /// The object, as `KIND NAMESPACE/NAME`.
    pub object: String,
    /// The reason, the same in every release.
    pub reason: &'static str,
    /// What is wrong.
    pub message: String,
    /// The remedy.
    pub remedy: String,
    /// The gateway that it concerns; `None`: each one in the namespace of the object.
    #[serde(skip)]
    gateway: Option<GatewayName>,
    /// Problems that follow from this one, and are solved with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Self>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Packets do not pass, or will not in future.
    Error,
    /// It may be intended, or something could not be read.
    Warning,
}

impl Severity {
    /// The label in JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Finding {
    fn error(object: String, reason: &'static str, message: String, remedy: String) -> Self {
        let (side, severity) = (Side::Only, Severity::Error);

        let (gateway, consequences) = (None, Vec::new());

        Self { side, severity, object, reason, message, remedy, gateway, consequences }
    }

    fn warning(object: String, reason: &'static str, message: String, remedy: String) -> Self {
        Self { severity: Severity::Warning, ..Self::error(object, reason, message, remedy) }
    }

    /// The same about `gateway` alone.
    fn of(self, gateway: &GatewayFacts) -> Self {
        Self { gateway: Some(gateway.id()), ..self }
    }
}

/// All problems found. Its JSON form is public interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The most severe first.
    pub findings: Vec<Finding>,
}

impl Findings {
    /// `pairs` are the ends of each tunnel, the local one first.
    fn new(mut findings: Vec<Finding>, pairs: &[[GatewayName; 2]]) -> Self {
        findings.sort_by(|a, b| (a.severity, &a.object).cmp(&(b.severity, &b.object)));
        findings.dedup();
        let findings = fold::fold(findings, pairs);

        Self { findings }
    }

    /// The number of problems of one severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Checks one cluster.
///
/// # Errors
///
/// [`CommandError`] if it does not answer, or is another one than was typed. What may not be read is a finding.
pub async fn check(
    context: &ClusterContext,
    session: Session<'_>,
) -> Result<Findings, CommandError> {
    let (_, findings) = alone(context, session).await?;

    Ok(Findings::new(findings, &[]))
}

/// Checks two clusters, and the connection between them.
///
/// # Errors
///
/// As of [`check()`], and if both are one cluster.
pub async fn check_pair(
    [local, remote]: [&ClusterContext; 2],
    session: Session<'_>,
) -> Result<Findings, CommandError> {
    let (of_local, mut findings) = alone(local, session).await?;
    let (of_remote, others) = alone(remote, session).await?;
    let ids = [&of_local.cluster_id, &of_remote.cluster_id];
    if let [Some(id), Some(other)] = ids {
        check_distinct([local, remote], [id, other], session).await?;
    }
    findings.extend(others);
    findings.extend(pair::findings(&of_local, &of_remote));

    Ok(Findings::new(findings, &pair::tunnels(&of_local, &of_remote)))
}

async fn alone(
    context: &ClusterContext,
    session: Session<'_>,
) -> Result<(Facts, Vec<Finding>), CommandError> {
    let end = PeeringSide::alone(context, context.namespace.clone().unwrap_or_default(), session);
    let facts = Facts::read(context, &end).await?;
    let mut findings = facts.unreadable.clone();
    findings.extend(api::findings(&facts.served));
    // Without the API its missing objects are not reported one by one.
    if api::is_served(&facts.served) {
        findings.extend(installation::findings(&facts));
        findings.extend(peering::findings(&facts));
        let of_gateways = facts.gateways.iter();
        findings.extend(of_gateways.flat_map(|it| gateway::findings(it, session.public_of)));
        findings.extend(rights::findings(&end, &facts).await?);
    }
    for finding in &mut findings {
        finding.side = context.side;
    }

    Ok((facts, findings))
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding { side, severity, object, reason, message, remedy, consequences, .. } =
                finding;
            let severity = severity.label();
            writeln!(f, "{severity:<7}  {side}{object}: {reason}: {message}; {remedy}")?;
            let called = |finding: &Finding| {
                format!("{}{} {}", finding.side, finding.object, finding.reason)
            };
            if !consequences.is_empty() {
                let consequences: Vec<_> = consequences.iter().map(called).collect();
                writeln!(f, "         therefore: {}", consequences.join(", "))?;
            }
        }
        let [errors, warnings] = [Severity::Error, Severity::Warning].map(|severity| {
            let count = self.count(severity);
            format!("{count} {}{}", severity.label(), if count == 1 { "" } else { "s" })
        });

        writeln!(f, "{errors}, {warnings}")
    }
}

/// The name of an object in a finding.
fn named(kind: &str, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
