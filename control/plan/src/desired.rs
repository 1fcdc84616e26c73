//! From all objects to the desired state: the peers that can be in force, their table, and the outcome of each object.
//! Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use remap::{Cluster, Prefix, Rule, Table};

use crate::conditions::{self, Verdict};
use crate::endpoint::Endpoint;
use crate::lowering::{Lowered, Outcome, Problem};
use crate::objects::{self, ObjectName, Objects, Refusal, Requested, Scope};
use crate::peer::Peer;
use crate::plan::{self, Plan, Rejection, plan};

/// The desired state.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// The peers that can be in force, in the order of their names.
    pub peers: Vec<Peer>,
    /// The prefixes of this cluster.
    pub cluster: Cluster,
    /// The table of these peers.
    pub table: Table,
    /// The prefixes in the addresses of this cluster that, of several gateways to the remote cluster, only this one may carry
    /// packets to (see [`objects::own_destinations`]).
    pub own_destinations: Vec<Prefix>,
    /// What is wrong with an object by itself.
    pub refused: Vec<Refusal>,
    /// What is rejected because it contradicts another request.
    pub rejected: Vec<Rejection>,
    /// The outcome of each object.
    pub verdicts: Vec<Verdict>,
    /// The outcome of each `FirewallConfiguration` and `RouteConfiguration`, if this gateway executes them.
    pub outcomes: Vec<Outcome>,
}

impl Desired {
    /// Computes the desired state from all `objects`.
    #[must_use]
    pub fn new(scope: &Scope, objects: &Objects) -> Self {
        let mut desired = Self::of_requested(scope, objects::read(scope, objects));
        desired.verdicts = conditions::verdicts(scope, objects, &desired);

        desired
    }

    /// Computes the desired state from all `objects`, and from rules and routes that were `lowered` for this gateway.
    #[must_use]
    pub fn with_rules(scope: &Scope, objects: &Objects, lowered: &Lowered) -> Self {
        let mut requested = objects::read(scope, objects);
        requested.cluster = lowered.cluster.clone();
        for peer in &mut requested.peers {
            let remotes = lowered.remaps.iter().map(Rule::remote).chain(lowered.remotes.clone());
            let remotes = peer.allowed_ips.iter().copied().chain(remotes);
            let remotes: BTreeSet<Prefix> = remotes.collect();
            peer.allowed_ips = remotes.into_iter().collect();
            peer.remaps.clone_from(&lowered.remaps);
        }

        let mut desired = Self::of_requested(scope, requested);
        desired.table = desired.table.with_policy(lowered.policy().map(Arc::new));
        desired.verdicts = conditions::verdicts(scope, objects, &desired);
        desired.outcomes = desired.outcomes_of(lowered);

        desired
    }

    /// The outcome of each object of `lowered`. A rule can contradict an endpoint of the peer, which lowering does not know.
    fn outcomes_of(&self, lowered: &Lowered) -> Vec<Outcome> {
        let is_lost = |rule: &Rule| self.peers.iter().any(|peer| !peer.remaps.contains(rule));
        let lost: BTreeSet<&ObjectName> = lowered
            .remap_objects
            .iter()
            .filter(|(rule, _)| is_lost(rule))
            .map(|(_, object)| object)
            .collect();
        let texts: Vec<_> = self.rejected.iter().map(ToString::to_string).collect();
        let cause = texts.join("; ");

        let with_cause = |mut outcome: Outcome| {
            if lost.contains(&outcome.object) {
                let problem = Problem::Rejected { cause: cause.clone() };
                outcome.problem.get_or_insert(problem);
            }
            outcome
        };
        lowered.outcomes.iter().cloned().map(with_cause).collect()
    }

    /// Computes the desired state from what objects requested. There are no verdicts, as there are no objects.
    #[must_use]
    pub fn of_requested(scope: &Scope, requested: Requested) -> Self {
        let Requested { mut peers, mut cluster, own_destinations, refused } = requested;
        for peer in &mut peers {
            add_endpoints(peer, scope);
        }
        // The remote gateway knows our tunnel address, so it is not masqueraded.
        if let Some(own) = scope.own_address.map(Prefix::of_host)
            && !cluster.masquerade.is_empty()
            && !cluster.prefixes.contains(&own)
        {
            cluster.prefixes.push(own);
        }

        let Plan { table, rejected } = plan(&cluster, &peers);
        plan::remove_rejected(&table, &mut peers);

        Self {
            peers,
            cluster,
            table,
            own_destinations,
            refused,
            rejected,
            verdicts: Vec::new(),
            outcomes: Vec::new(),
        }
    }
}

/// Adds the endpoints of the scope. Learned ones come first: the peer was there last.
fn add_endpoints(peer: &mut Peer, scope: &Scope) {
    let of_scope: Vec<_> = scope.endpoints.iter().filter_map(Endpoint::address).collect();
    peer.endpoints.retain(|known| known.address().is_none_or(|known| !of_scope.contains(&known)));
    peer.endpoints.splice(0..0, scope.endpoints.iter().cloned());
    peer.endpoints.sort_by_key(|endpoint| !matches!(endpoint, Endpoint::Learned(_)));
    peer.origins = peer.origins.clone().with("endpoint", scope.endpoint_origin.clone());
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;
    use crate::origin::{Origin, Origins};

    const HEARD: &str = "192.0.2.7:7";

    #[test]
    fn learned_endpoints_come_first_and_once() {
        let heard: SocketAddr = HEARD.parse().unwrap();
        let name: Endpoint = "peer.example:51840".parse().unwrap();
        let endpoints = |configured: &[Endpoint]| {
            let scope = Scope { endpoints: configured.to_vec(), ..Scope::default() };
            Desired::of_requested(&scope, requested(&[])).peers.remove(0).endpoints
        };

        assert_eq!(
            endpoints(std::slice::from_ref(&name)),
            [Endpoint::Learned(heard), name.clone()]
        );
        let configured = [name, Endpoint::Address(heard)];
        assert_eq!(endpoints(&configured), configured);
    }

    #[test]
    fn endpoints_have_the_origin_of_the_scope() {
        let flag = Origin::Flag { flag: "--endpoint-address".to_owned() };
        let scope = Scope { endpoint_origin: flag.clone(), ..Scope::default() };

        let peer = Desired::of_requested(&scope, requested(&[])).peers.remove(0);

        assert_eq!(peer.origins.of("endpoint"), flag);
        assert_eq!(peer.origins.of("remap"), Origin::Default);
    }

    #[test]
    fn the_tunnel_address_is_not_masqueraded() {
        let own: IpAddr = "169.254.18.2".parse().unwrap();
        let scope = Scope { own_address: Some(own), ..Scope::default() };

        let desired = Desired::of_requested(&scope, requested(&[]));

        assert_eq!(desired.cluster.prefixes, [Prefix::of_host(own)]);
        assert_eq!(desired.table.source(own), remap::Source::Known);
    }

    #[test]
    fn a_rule_around_the_endpoint_refuses_its_object() {
        let object = |name: &str| ObjectName {
            kind: "FirewallConfiguration".to_owned(),
            namespace: "tenant".to_owned(),
            name: name.to_owned(),
        };
        let rule = |remote: &str, local: &str| {
            Rule::new(remote.parse().unwrap(), local.parse().unwrap()).unwrap()
        };
        let [good, bad] =
            [rule("10.244.0.0/16", "10.71.0.0/16"), rule("10.9.0.0/16", "192.0.0.0/16")];
        let outcome = |name: &str| Outcome {
            object: object(name),
            uid: None,
            generation: None,
            problem: None,
        };
        let lowered = Lowered {
            remaps: vec![good, bad],
            remap_objects: vec![(good, object("good")), (bad, object("bad"))],
            outcomes: vec![outcome("good"), outcome("bad")],
            ..Lowered::default()
        };
        let scope = Scope {
            remapping: objects::Remapping::Rules,
            endpoints: vec![HEARD.parse().unwrap()],
            ..Scope::default()
        };
        let key = serde_json::json!({
            "apiVersion": "networking.liqo.io/v1beta1", "kind": "PublicKey",
            "metadata": {"name": "rome", "labels": {"liqo.io/remote-cluster-id": "rome"}},
            "spec": {"publicKey": "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="},
        });
        let key = kube::core::DeserializeGuard(Ok(serde_json::from_value(key).unwrap()));
        let objects = Objects { public_keys: vec![Arc::new(key)], ..Objects::default() };

        let desired = Desired::with_rules(&scope, &objects, &lowered);

        assert_eq!(desired.peers[0].remaps, [good]);
        assert_eq!(desired.outcomes[0].problem, None);
        let problem = desired.outcomes[1].problem.as_ref().unwrap().to_string();
        assert!(problem.contains("the tunnel would run inside itself"), "{problem}");
    }

    #[test]
    fn the_table_has_what_is_not_rejected() {
        let scope = Scope { endpoints: vec![HEARD.parse().unwrap()], ..Scope::default() };

        let desired = Desired::of_requested(
            &scope,
            requested(&[("10.244.0.0/16", "192.0.0.0/16"), ("10.9.0.0/16", "10.71.0.0/16")]),
        );

        let rules: Vec<_> = desired.table.rules(remap::PeerId(0)).collect();
        assert_eq!(desired.peers[0].remaps, rules);
        assert_eq!(desired.peers[0].allowed_ips.len(), 1);
        assert_eq!((rules.len(), desired.rejected.len()), (1, 1));
    }

    /// One peer that was heard at [`HEARD`], with these rules from its prefixes to local ones.
    fn requested(rules: &[(&str, &str)]) -> Requested {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let remaps: Vec<_> = rules
            .iter()
            .map(|(remote, local)| Rule::new(prefix(remote), prefix(local)).unwrap())
            .collect();
        let peer = Peer {
            name: "rome".to_owned(),
            keys: [7; 32],
            endpoints: vec![Endpoint::Learned(HEARD.parse().unwrap())],
            persistent_keepalive: None,
            allowed_ips: remaps.iter().map(Rule::remote).collect::<Arc<[_]>>(),
            remaps,
            origins: Origins::default(),
        };
        let cluster =
            Cluster { masquerade: vec!["10.70.0.0".parse().unwrap()], ..Cluster::default() };

        Requested { peers: vec![peer], cluster, ..Requested::default() }
    }
}
