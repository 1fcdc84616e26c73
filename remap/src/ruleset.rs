//! Chains of packet rules at the hooks that a forwarded packet passes, as nftables runs them.
//!
//! The caller passes each packet through [`Hook::Prerouting`], selects the output device by the
//! destination that the packet has then, and passes it through [`Hook::Forward`] and
//! [`Hook::Postrouting`]. A packet that a hook does not accept goes no further.
//!
//! # Invariants
//!
//! - Evaluation reads the packet and the rules only: no state, no allocation. What has to outlive the packet
//!   is in [`Flow`], which the caller keeps.
//! - Only the first packet of a flow passes the chains that translate addresses. The caller
//!   keeps the translation of the flow and applies it to the packets that follow, in both directions.
//! - The translation by a [`Table`](crate::Table) is one of them, at the priority of those that nftables calls
//!   `dstnat` and `srcnat`: of all translations of one side, the first that covers a packet applies.
//!
//! # Not here
//!
//! Flows and their ports, ICMP errors for rejected packets, where rules come from.
//!
//! # Sources
//!
//! nft(8), section CHAINS for the order of priorities, section VERDICT STATEMENT, and the sources of Linux
//! 6.18 for what a rule does with a property that a packet does not have.

mod chain;
mod device;
mod rule;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub use chain::{Chain, ChainError, Rules, Versions};
pub use device::{Device, Devices, NodeId};
pub use rule::{Action, Addresses, Condition, Property, Rule, Translation};

use chain::{FilterChain, TranslatingChain};

/// A hook on the way of a forwarded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Before the output device is selected.
    Prerouting,
    /// After the output device is selected.
    Forward,
    /// Before the packet leaves.
    Postrouting,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
    /// It is dropped, and its source gets an ICMP error: ICMP type 3 (destination unreachable) with code 0 (net
    /// unreachable, RFC 792), ICMPv6 type 1 with code 0 (no route to destination, RFC 4443 section 3.1).
    Reject,
}

/// What rules read of a packet, and what they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The number of the upper-layer protocol.
    pub protocol: u8,
    /// The first two 16-bit words of the transport header of any protocol: the ports of TCP and
    /// UDP. `None` for a packet without them, such as a fragment other than the first.
    pub ports: Option<[u16; 2]>,
    /// Where it came in.
    pub input: Device,
    /// Where it leaves; `None` before that is selected.
    pub output: Option<Device>,
    /// The address of this gateway on the output device, which masqueraded packets get.
    pub output_address: Option<IpAddr>,
    /// The mark, which selects routes.
    pub mark: u32,
    /// The flow, if one is tracked.
    pub flow: Option<Flow>,
    /// Whether a rule exempted it from the tracking of flows: no address is translated.
    pub is_untracked: bool,
    /// Whether the source was replaced by an address that other sources share, so that the caller
    /// has to choose a free port.
    pub shares_source: bool,
    /// The limits for the maximum segment size of a SYN.
    pub clamp: Clamp,
}

/// The part of a flow that rules read and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether this is its first packet.
    pub is_new: bool,
    /// The mark of both directions.
    pub mark: u32,
}

/// Limits for the maximum segment size of a SYN (RFC 9293 section 3.7.1). The lowest one applies; none raises it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clamp {
    /// Whether the MTU of the route is one.
    pub to_route: bool,
    /// In bytes.
    pub to: Option<u16>,
}

impl Clamp {
    /// The limit of one rule: this many bytes, or `None` for the MTU of the route.
    #[must_use]
    pub const fn of_rule(to: Option<u16>) -> Self {
        Self { to_route: to.is_none(), to }
    }

    /// The limits of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            to_route: self.to_route || other.to_route,
            to: self.to.into_iter().chain(other.to).min(),
        }
    }
}

/// All chains, in the order in which packets pass them. The default has none and accepts every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    prerouting: Stage,
    forward: Stage,
    postrouting: Stage,
}

/// The chains of one hook. Chains that filter come before those that translate if their priority is lower.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stage {
    filter_before: Vec<FilterChain>,
    translate_before_table: Vec<TranslatingChain>,
    translate_after_table: Vec<TranslatingChain>,
    filter_after: Vec<FilterChain>,
}

impl Ruleset {
    /// Orders `chains` by hook and priority. Of several with equal priority the last one comes first, as
    /// the kernel has it for the chain that was added last; one that filters comes after the translation.
    #[must_use]
    pub fn new(chains: impl IntoIterator<Item = Chain>) -> Self {
        let mut chains: Vec<Chain> = chains.into_iter().collect();
        chains.reverse();
        chains.sort_by_key(Chain::priority);

        let mut ruleset = Self::default();
        for chain in chains {
            let stage = match chain.hook() {
                Hook::Prerouting => &mut ruleset.prerouting,
                Hook::Forward => &mut ruleset.forward,
                Hook::Postrouting => &mut ruleset.postrouting,
            };
            stage.push(chain);
        }

        ruleset
    }

    /// Whether there is no chain, so that no packet needs to be passed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        [&self.prerouting, &self.forward, &self.postrouting].into_iter().all(Stage::is_empty)
    }

    /// Whether a rule translates addresses or uses the mark of a flow, so that flows have to be tracked.
    #[must_use]
    pub fn uses_flows(&self) -> bool {
        [&self.prerouting, &self.forward, &self.postrouting].into_iter().any(Stage::uses_flows)
    }

    /// Passes `packet` through the chains of `hook`.
    ///
    /// `translated` is the address that the table has for the destination (prerouting) or the source
    /// (postrouting) of the packet, or that the translation of its flow has; `None` if neither covers it.
    #[inline]
    pub fn pass(&self, hook: Hook, packet: &mut Packet, translated: Option<IpAddr>) -> Verdict {
        let stage = match hook {
            Hook::Prerouting => &self.prerouting,
            Hook::Forward => &self.forward,
            Hook::Postrouting => &self.postrouting,
        };

        for chain in &stage.filter_before {
            match chain.filter(packet) {
                Verdict::Accept => {}
                verdict @ (Verdict::Drop | Verdict::Reject) => return verdict,
            }
        }
        if !packet.is_untracked
            && let verdict @ (Verdict::Drop | Verdict::Reject) =
                stage.translate(hook, packet, translated)
        {
            return verdict;
        }
        for chain in &stage.filter_after {
            match chain.filter(packet) {
                Verdict::Accept => {}
                verdict @ (Verdict::Drop | Verdict::Reject) => return verdict,
            }
        }

        Verdict::Accept
    }
}

impl Stage {
    fn push(&mut self, chain: Chain) {
        let is_after = chain.is_after_table();
        match chain.into_kind() {
            chain::Kind::Filter(chain) if is_after => self.filter_after.push(chain),
            chain::Kind::Filter(chain) => self.filter_before.push(chain),
            chain::Kind::Translating(chain) if is_after => self.translate_after_table.push(chain),
            chain::Kind::Translating(chain) => self.translate_before_table.push(chain),
        }
    }

    fn is_empty(&self) -> bool {
        self.filter_before.is_empty() && self.filter_after.is_empty() && !self.translates()
    }

    fn translates(&self) -> bool {
        !(self.translate_before_table.is_empty() && self.translate_after_table.is_empty())
    }

    fn uses_flows(&self) -> bool {
        let filters = self.filter_before.iter().chain(&self.filter_after);

        self.translates() || filters.into_iter().any(FilterChain::uses_flows)
    }

    #[inline]
    fn translate(&self, hook: Hook, packet: &mut Packet, translated: Option<IpAddr>) -> Verdict {
        let is_new = packet.flow.is_some_and(|flow| flow.is_new);

        if is_new {
            for chain in &self.translate_before_table {
                if let Some(verdict) = chain.translate(packet) {
                    return verdict;
                }
            }
        }
        match (hook, translated) {
            (Hook::Prerouting, Some(destination)) => packet.destination = destination,
            (Hook::Postrouting, Some(source)) => packet.source = source,
            (Hook::Forward, _) | (_, None) => {
                let chains = self.translate_after_table.iter().filter(|_| is_new);
                for chain in chains {
                    if let Some(verdict) = chain.translate(packet) {
                        return verdict;
                    }
                }
            }
        }

        Verdict::Accept
    }
}
