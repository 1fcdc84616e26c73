//! The outcome of each object, for its status and an Event.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use remap::ruleset::ChainError;
use remap::{Conflict, Prefix};
use strait_api::route_configuration::HostCondition;

use crate::objects::ObjectName;
use crate::{firewall, routing};

/// The type of the condition that Liqo's gateways write.
const APPLIED: &str = "Applied";

/// Whether an object is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The object.
    pub object: ObjectName,
    /// Its UID.
    pub uid: Option<String>,
    /// The generation that this is about.
    pub generation: Option<i64>,
    /// Why nothing of the object is executed; `None` if all of it is.
    pub problem: Option<Problem>,
}

/// Why an object is not executed. The text is for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Problem {
    /// A field has another type than in its schema.
    #[error("it cannot be read: {cause}")]
    Malformed { cause: String },
    /// A value of a rule is not understood.
    #[error(transparent)]
    Firewall(#[from] firewall::Unknown),
    /// A value of a route is not understood.
    #[error(transparent)]
    Routing(#[from] routing::Invalid),
    /// The table is of frames, or of a family without addresses of IP.
    #[error(
        "spec.table.family is {family:?}: this gateway forwards IP alone, write IPV4, IPV6 or INET"
    )]
    Family { family: String },
    /// Only packets that are forwarded pass the rules.
    #[error(
        "chain {chain}: hook is {hook:?}, but this gateway filters what it forwards alone: write prerouting, forward or postrouting"
    )]
    Hook { chain: String, hook: &'static str },
    /// nftables would refuse the chain, or a rule never has an effect.
    #[error("chain {chain}: {cause}")]
    Chain { chain: String, cause: ChainError },
    /// The object contradicts an earlier one.
    #[error("{0}")]
    Conflict(Conflict),
    /// Only the flows of sources that share an address are tracked.
    #[error(
        "chain {chain}, rule {rule}: it {action}, which needs the flow of a packet: this gateway tracks flows of sources that share an address alone"
    )]
    NeedsFlows { chain: String, rule: usize, action: &'static str },
    /// The remote would have to get an ICMP error.
    #[error(
        "chain {chain}, rule {rule}: it rejects packets from the tunnel, whose senders get no error from this gateway: write drop, or match the input device of a node"
    )]
    RejectsInbound { chain: String, rule: usize },
    /// A node has one source at most that the remote does not know.
    #[error(
        "{rejected} is a further source that nodes share: this gateway has {kept} for that already, use one"
    )]
    SecondSource { kept: IpAddr, rejected: IpAddr },
    /// A rule is not in force although the object is sound by itself.
    #[error("{cause}")]
    Rejected { cause: String },
    /// A rule selects packets by what a gateway does not route by.
    #[error(
        "rules[{rule}]: {field} is set, but this gateway selects routes by dst, iif and fwmark alone: leave it out"
    )]
    Selector { rule: usize, field: &'static str },
    /// A packet would be sent back, or leave this gateway by another way.
    #[error(
        "rules[{rule}]: the route to {destination} leads neither from a node into the tunnel nor from the tunnel to a node, which is all that this gateway forwards"
    )]
    Target { rule: usize, destination: Prefix },
}

impl Outcome {
    /// The outcome of an object that is executed.
    pub(super) fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        let (uid, generation) = (meta.uid.clone(), meta.generation);

        Self { object: ObjectName::of(object), uid, generation, problem: None }
    }

    /// The condition that reports this outcome for the gateway `host`, in place of `former`.
    #[must_use]
    pub fn condition(
        &self,
        host: &str,
        former: Option<&HostCondition>,
        now: Timestamp,
    ) -> HostCondition {
        let status = if self.problem.is_none() { "True" } else { "False" };
        let same = former.filter(|former| former.status == status);
        let last_transition_time =
            same.map_or(Some(Time(now)), |former| former.last_transition_time.clone());

        HostCondition {
            host: host.to_owned(),
            last_transition_time,
            status: status.to_owned(),
            type_: APPLIED.to_owned(),
        }
    }
}
