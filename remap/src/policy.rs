//! What packets must meet to be forwarded, besides having a peer: a [`Ruleset`], with the nodes that its devices are.
//!
//! The caller passes each packet twice: [`Policy::forward`] before its addresses are translated, with those that it will
//! have, and [`Passing::leave`] after that.
//!
//! # Deviation
//!
//! The input device of a packet from a node is that of the node behind its source, which is where the packet comes from
//! unless the source is forged.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::Prefix;
use crate::lpm::Lpm;
use crate::ruleset::{Clamp, Device, Hook, NodeId, Packet, Ruleset, Verdict};

/// A ruleset, and where packets come from and go to.
pub struct Policy {
    ruleset: Ruleset,
    nodes: BTreeMap<Prefix, NodeId>,
    by_address: Lpm<NodeId>,
    shared: BTreeMap<IpAddr, IpAddr>,
    clamp: Clamp,
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a node into the tunnel.
    Outbound,
    /// From the tunnel to a node.
    Inbound,
}

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of its fields")]
pub struct Addresses {
    pub source: IpAddr,
    pub destination: IpAddr,
}

/// A packet that has passed [`Policy::forward`].
#[derive(Debug)]
pub struct Passing<'a> {
    policy: &'a Policy,
    packet: Packet,
}

impl Policy {
    /// Combines `ruleset` with the nodes that lead to addresses, with the address that stands for each source that shares
    /// one, and with limits for the MSS of all connections that are opened from nodes.
    #[must_use]
    pub fn new(
        ruleset: Ruleset,
        nodes: BTreeMap<Prefix, NodeId>,
        shared: BTreeMap<IpAddr, IpAddr>,
        clamp: Clamp,
    ) -> Self {
        // No prefix repeats in a map.
        let by_address = Lpm::new(nodes.clone()).unwrap_or_default();

        Self { ruleset, nodes, by_address, shared, clamp }
    }

    /// Passes a packet through the hooks before it leaves. It has the addresses `before`, and will be translated to the
    /// destination `destination`. `ports` are the first two 16-bit words of its transport header.
    ///
    /// # Errors
    ///
    /// The verdict, if the packet is not accepted.
    #[inline]
    pub fn forward(
        &self,
        way: Way,
        before: Addresses,
        destination: IpAddr,
        protocol: u8,
        ports: Option<[u16; 2]>,
    ) -> Result<Passing<'_>, Verdict> {
        let node = |address: IpAddr| {
            Device::Node(self.by_address.lookup(address).unwrap_or(NodeId::UNKNOWN))
        };
        let (input, output, clamp) = match way {
            Way::Outbound => (node(before.source), Device::Tunnel, self.clamp),
            Way::Inbound => (Device::Tunnel, node(destination), Clamp::default()),
        };
        let mut packet = Packet {
            source: self.shown(before.source),
            destination: before.destination,
            protocol,
            ports,
            input,
            output: None,
            output_address: None,
            mark: 0,
            flow: None,
            is_untracked: false,
            shares_source: false,
            clamp,
        };
        let destination = self.shown(destination);
        let translated = (destination != before.destination).then_some(destination);

        accepted(self.ruleset.pass(Hook::Prerouting, &mut packet, translated))?;
        packet.output = Some(output);
        accepted(self.ruleset.pass(Hook::Forward, &mut packet, None))?;

        Ok(Passing { policy: self, packet })
    }

    /// The address that rules know an address by.
    #[inline]
    fn shown(&self, address: IpAddr) -> IpAddr {
        self.shared.get(&address).copied().unwrap_or(address)
    }
}

impl Passing<'_> {
    /// Passes the packet through the last hook: its source is `source` now. Returns the limits for its MSS.
    ///
    /// # Errors
    ///
    /// The verdict, if the packet is not accepted.
    #[inline]
    pub fn leave(mut self, source: IpAddr) -> Result<Clamp, Verdict> {
        let source = self.policy.shown(source);
        let translated = (source != self.packet.source).then_some(source);
        accepted(self.policy.ruleset.pass(Hook::Postrouting, &mut self.packet, translated))?;

        Ok(self.packet.clamp)
    }
}

#[inline]
const fn accepted(verdict: Verdict) -> Result<(), Verdict> {
    match verdict {
        Verdict::Accept => Ok(()),
        Verdict::Drop | Verdict::Reject => Err(verdict),
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let Self { ruleset, nodes, by_address: _, shared, clamp } = self;

        (ruleset, nodes, shared, clamp)
            == (&other.ruleset, &other.nodes, &other.shared, &other.clamp)
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("ruleset", &self.ruleset).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::{Action, Chain, Condition, Devices, Property, Rule, Rules, Versions};

    #[test]
    fn rules_see_both_devices_and_addresses() {
        let policy = policy(
            Hook::Forward,
            vec![input(Devices::new(true, [])), Property::Destination(addresses("10.244.1.0/24"))],
        );

        // Only after the translation.
        assert_eq!(verdict(&policy, Way::Inbound, "10.70.0.9", "10.244.1.5"), Verdict::Drop);
        assert_eq!(verdict(&policy, Way::Inbound, "10.70.0.9", "10.244.2.5"), Verdict::Accept);
        assert_eq!(verdict(&policy, Way::Outbound, "10.70.0.9", "10.244.1.5"), Verdict::Accept);
    }

    #[test]
    fn the_node_follows_from_the_address() {
        let node = |id: u32| vec![Property::OutputDevice(Devices::new(false, [NodeId(id)]))];
        let [first, second] = [1, 2].map(|id| policy(Hook::Forward, node(id)));

        assert_eq!(verdict(&first, Way::Inbound, "10.244.1.5", "10.244.1.5"), Verdict::Drop);
        assert_eq!(verdict(&second, Way::Inbound, "10.244.1.5", "10.244.1.5"), Verdict::Accept);
    }

    #[test]
    fn an_unknown_node_is_one_of_all() {
        let all =
            policy(Hook::Forward, vec![input(Devices::new(false, [NodeId(1)]).with_any_node())]);
        let some = policy(Hook::Forward, vec![input(Devices::new(false, [NodeId(1)]))]);

        let of =
            |policy| verdict_of(policy, Way::Outbound, "203.0.113.9", "10.71.0.1", "10.244.0.1");
        assert_eq!(of(&all), Verdict::Drop);
        assert_eq!(of(&some), Verdict::Accept);
    }

    #[test]
    fn shared_sources_show_the_shared_address() {
        let policy = policy(Hook::Prerouting, vec![Property::Source(addresses("10.70.0.0/32"))]);

        let of = |source| verdict_of(&policy, Way::Outbound, source, "10.71.0.1", "10.244.0.1");
        assert_eq!(of("10.80.0.1"), Verdict::Drop);
        assert_eq!(of("10.244.1.5"), Verdict::Accept);
    }

    #[test]
    fn the_last_hook_sees_the_translated_source() {
        let policy = policy(Hook::Postrouting, vec![Property::Source(addresses("10.71.0.0/16"))]);
        let before = Addresses { source: ip("10.244.3.3"), destination: ip("10.244.1.5") };
        let pass = |source: &str| {
            let passing =
                policy.forward(Way::Inbound, before, before.destination, 6, None).unwrap();
            passing.leave(ip(source))
        };

        assert_eq!(pass("10.71.3.3"), Err(Verdict::Drop));
        assert_eq!(pass("10.72.3.3"), Ok(Clamp::default()));
    }

    fn verdict(policy: &Policy, way: Way, destination: &str, translated: &str) -> Verdict {
        verdict_of(policy, way, "10.244.1.9", destination, translated)
    }

    fn verdict_of(
        policy: &Policy,
        way: Way,
        source: &str,
        destination: &str,
        translated: &str,
    ) -> Verdict {
        let before = Addresses { source: ip(source), destination: ip(destination) };

        policy.forward(way, before, ip(translated), 6, None).err().unwrap_or(Verdict::Accept)
    }

    /// Drops what meets all of `properties`. Node 1 leads to 10.244.1.0/24, and shares 10.70.0.0.
    fn policy(hook: Hook, properties: Vec<Property>) -> Policy {
        let conditions = properties
            .into_iter()
            .map(|property| Condition { is_negated: false, property })
            .collect();
        let rules = Rules::Filter(vec![Rule { conditions, action: Action::Drop }]);
        let priority = if hook == Hook::Postrouting { 300 } else { 0 };
        let chain = Chain::new(hook, priority, Versions::Ipv4, true, rules).unwrap();
        let nodes = BTreeMap::from([("10.244.1.0/24".parse().unwrap(), NodeId(1))]);
        let shared = BTreeMap::from([(ip("10.80.0.1"), ip("10.70.0.0"))]);

        Policy::new(Ruleset::new([chain]), nodes, shared, Clamp::default())
    }

    fn input(devices: Devices) -> Property {
        Property::InputDevice(devices)
    }

    fn addresses(text: &str) -> crate::ruleset::Addresses {
        crate::ruleset::Addresses::Prefix(text.parse().unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
