//! From all objects to the desired state: the peers that can be in force, and the outcome of each object. Pure.

use std::net::IpAddr;

use remap::Cluster;

use crate::conditions::{self, Verdict};
use crate::objects::{self, Objects, Refusal, Requested, RequestedPeer, Scope};
use crate::plan::{DesiredPeer, PlanInput, Rejection, without_rejected};

/// The desired state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The peers that can be in force, in the order of their names.
    pub peers: Vec<RequestedPeer>,
    /// The prefixes of this cluster.
    pub cluster: Cluster,
    /// What is wrong with an object by itself.
    pub refused: Vec<Refusal>,
    /// What is rejected because it contradicts another request.
    pub rejected: Vec<Rejection>,
    /// The outcome of each object.
    pub verdicts: Vec<Verdict>,
}

impl Desired {
    /// Computes the desired state from all `objects`. `endpoints` are possible addresses of remote gateways, which no
    /// local prefix may hide.
    #[must_use]
    pub fn new(scope: &Scope, objects: &Objects, endpoints: &[IpAddr]) -> Self {
        let requested = objects::read(scope, objects);
        let peers = requested
            .peers
            .iter()
            .map(|peer| DesiredPeer { endpoints: endpoints.to_vec(), ..peer.desired.clone() });
        let (left, rejected) = without_rejected(PlanInput {
            cluster: requested.cluster.clone(),
            peers: peers.collect(),
        });
        let verdicts = conditions::verdicts(scope, objects, &requested, &rejected);

        let Requested { peers, cluster, refused } = requested;
        let peers = peers.into_iter().zip(left.peers);
        let peers = peers.map(|(peer, wanted)| RequestedPeer { desired: wanted, ..peer }).collect();

        Self { peers, cluster, refused, rejected, verdicts }
    }
}
