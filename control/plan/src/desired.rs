//! From all objects to all that there is to do about them: the peers that can be in force, and what
//! became of each object. Pure.

use std::net::IpAddr;

use remap::Cluster;

use crate::conditions::{self, Verdict};
use crate::objects::{self, Asked, AskedPeer, Objects, Refusal, Scope};
use crate::plan::{Rejection, Wanted, WantedPeer, without_rejected};

/// What objects come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// What can be in force, in the order of their names.
    pub peers: Vec<AskedPeer>,
    /// What is ours.
    pub cluster: Cluster,
    /// What is wrong with an object by itself.
    pub refused: Vec<Refusal>,
    /// What is wrong with what an object asks for, beside what others ask for.
    pub rejected: Vec<Rejection>,
    /// What became of each object.
    pub verdicts: Vec<Verdict>,
}

impl Desired {
    /// Of all `objects`. The gateways of remote clusters may be at `endpoints`, which no name of a
    /// prefix may hide.
    #[must_use]
    pub fn new(scope: &Scope, objects: &Objects, endpoints: &[IpAddr]) -> Self {
        let asked = objects::read(scope, objects);
        let peers = asked
            .peers
            .iter()
            .map(|peer| WantedPeer { endpoints: endpoints.to_vec(), ..peer.wanted.clone() });
        let (left, rejected) =
            without_rejected(Wanted { cluster: asked.cluster.clone(), peers: peers.collect() });
        let verdicts = conditions::verdicts(scope, objects, &asked, &rejected);

        let Asked { peers, cluster, refused } = asked;
        let peers = peers.into_iter().zip(left.peers);
        let peers = peers.map(|(peer, wanted)| AskedPeer { wanted, ..peer }).collect();

        Self { peers, cluster, refused, rejected, verdicts }
    }
}
