//! Chains, and the combinations of hook, priority and action that nftables refuses.

use super::{Action, Clamp, Devices, Hook, Packet, Rule, Translation, Verdict};

/// Flows are tracked from this priority of prerouting on (`NF_IP_PRI_CONNTRACK` of Linux).
const TRACKING: i32 = -200;
/// Destinations are translated at this priority of prerouting, with any priority of the chain (`NF_IP_PRI_NAT_DST`).
const TRANSLATE_DESTINATION: i32 = -100;
/// Sources are translated at this priority of postrouting, with any priority of the chain (`NF_IP_PRI_NAT_SRC`).
const TRANSLATE_SOURCE: i32 = 100;

/// A chain that nftables accepts: it is only made by [`Chain::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    hook: Hook,
    priority: i32,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Filter(FilterChain),
    Translating(TranslatingChain),
}

/// The rules of a chain, in their order, all of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules<D = Devices> {
    /// The chain filters: every packet passes it.
    Filter(Vec<Rule<Action, D>>),
    /// The chain translates: the first packet of each flow passes it.
    Translate(Vec<Rule<Translation, D>>),
}

/// The IP versions of the packets that pass a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the versions of IP")]
pub enum Versions {
    Ipv4,
    Ipv6,
    Both,
}

/// Why there can be no such chain. Rules are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum ChainError {
    /// Addresses are translated before routing and before a packet leaves.
    #[error("a chain of natRules has to be at hook prerouting or postrouting")]
    TranslatesForward,
    /// Flows are not known yet.
    #[error(
        "a chain of natRules at priority {priority} is before flows are tracked: write one above {TRACKING}"
    )]
    TranslatesEarly { priority: i32 },
    /// The output device is selected by the destination, so that cannot change later.
    #[error("rule {rule} translates destinations: its chain has to be at hook prerouting")]
    DestinationAfterRouting { rule: usize },
    /// The source is translated last.
    #[error("rule {rule} translates sources: its chain has to be at hook postrouting")]
    SourceBeforeRouting { rule: usize },
    /// At this hook the kernel sends no ICMP error.
    #[error("rule {rule} rejects: its chain has to be at hook prerouting or forward")]
    RejectsLate { rule: usize },
    /// The route has an MTU only once it is known.
    #[error(
        "rule {rule} clamps to the MTU of the route: its chain has to be at hook forward or postrouting"
    )]
    ClampsBeforeRouting { rule: usize },
    /// Flows are not known yet, so that the rule would never have an effect.
    #[error(
        "rule {rule} uses the mark of a connection at priority {priority}, before flows are tracked: write one above {TRACKING}"
    )]
    MarksEarly { rule: usize, priority: i32 },
    /// Flows are known already, so that the rule would never have an effect.
    #[error(
        "rule {rule} exempts packets from connection tracking: its chain has to be at hook prerouting, at a priority below {TRACKING}"
    )]
    UntracksLate { rule: usize },
}

/// A chain that filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilterChain {
    versions: Versions,
    is_accepting: bool,
    rules: Box<[Rule<Action>]>,
}

/// A chain that translates the first packet of each flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TranslatingChain {
    versions: Versions,
    is_accepting: bool,
    rules: Box<[Rule<Translation>]>,
}

impl Chain {
    /// A chain whose policy is to accept, if `is_accepting`, or to drop what no rule decides on.
    ///
    /// # Errors
    ///
    /// [`ChainError`] for what nftables refuses, and for rules that it accepts but that never have an effect.
    pub fn new(
        hook: Hook,
        priority: i32,
        versions: Versions,
        is_accepting: bool,
        rules: Rules,
    ) -> Result<Self, ChainError> {
        let kind = match rules {
            Rules::Filter(rules) => {
                for (place, rule) in rules.iter().enumerate() {
                    check_action(hook, priority, place, rule.action)?;
                }
                Kind::Filter(FilterChain { versions, is_accepting, rules: rules.into() })
            }
            Rules::Translate(_) if hook == Hook::Forward => {
                return Err(ChainError::TranslatesForward);
            }
            Rules::Translate(_) if priority <= TRACKING => {
                return Err(ChainError::TranslatesEarly { priority });
            }
            Rules::Translate(rules) => {
                for (place, rule) in rules.iter().enumerate() {
                    check_translation(hook, place, rule.action)?;
                }
                Kind::Translating(TranslatingChain { versions, is_accepting, rules: rules.into() })
            }
        };

        Ok(Self { hook, priority, kind })
    }

    pub(super) const fn hook(&self) -> Hook {
        self.hook
    }

    pub(super) const fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether packets pass the chain after the table has translated them.
    pub(super) const fn is_after_table(&self) -> bool {
        match (self.hook, &self.kind) {
            (Hook::Prerouting, Kind::Filter(_)) => self.priority >= TRANSLATE_DESTINATION,
            (Hook::Prerouting, Kind::Translating(_)) => self.priority > TRANSLATE_DESTINATION,
            (Hook::Forward, _) => false,
            (Hook::Postrouting, Kind::Filter(_)) => self.priority >= TRANSLATE_SOURCE,
            (Hook::Postrouting, Kind::Translating(_)) => self.priority > TRANSLATE_SOURCE,
        }
    }

    pub(super) fn into_kind(self) -> Kind {
        self.kind
    }
}

fn check_action(hook: Hook, priority: i32, rule: usize, action: Action) -> Result<(), ChainError> {
    let is_before_tracking = hook == Hook::Prerouting && priority <= TRACKING;
    match action {
        Action::Reject if hook == Hook::Postrouting => Err(ChainError::RejectsLate { rule }),
        Action::ClampMss(None) if hook == Hook::Prerouting => {
            Err(ChainError::ClampsBeforeRouting { rule })
        }
        Action::MarkFlow(_) | Action::RestoreMark if is_before_tracking => {
            Err(ChainError::MarksEarly { rule, priority })
        }
        Action::Untrack if !is_before_tracking || priority == TRACKING => {
            Err(ChainError::UntracksLate { rule })
        }
        Action::Accept
        | Action::Drop
        | Action::Reject
        | Action::ClampMss(_)
        | Action::MarkFlow(_)
        | Action::RestoreMark
        | Action::Untrack => Ok(()),
    }
}

const fn check_translation(
    hook: Hook,
    rule: usize,
    translation: Translation,
) -> Result<(), ChainError> {
    match (hook, translation) {
        (Hook::Prerouting, Translation::Source(_) | Translation::Masquerade) => {
            Err(ChainError::SourceBeforeRouting { rule })
        }
        (Hook::Postrouting, Translation::Destination(_)) => {
            Err(ChainError::DestinationAfterRouting { rule })
        }
        (Hook::Prerouting | Hook::Forward | Hook::Postrouting, _) => Ok(()),
    }
}

impl Versions {
    #[inline]
    const fn include(self, packet: &Packet) -> bool {
        match self {
            Self::Ipv4 => packet.source.is_ipv4(),
            Self::Ipv6 => packet.source.is_ipv6(),
            Self::Both => true,
        }
    }
}

const fn policy(is_accepting: bool) -> Verdict {
    if is_accepting { Verdict::Accept } else { Verdict::Drop }
}

impl FilterChain {
    #[inline]
    pub(super) fn filter(&self, packet: &mut Packet) -> Verdict {
        if !self.versions.include(packet) {
            return Verdict::Accept;
        }
        for rule in &self.rules {
            if !rule.matches(packet) {
                continue;
            }
            match rule.action {
                Action::Accept => return Verdict::Accept,
                Action::Drop => return Verdict::Drop,
                Action::Reject => return Verdict::Reject,
                Action::ClampMss(to) => packet.clamp = packet.clamp.and(Clamp::of_rule(to)),
                Action::MarkFlow(mark) => {
                    if let Some(flow) = &mut packet.flow {
                        flow.mark = mark;
                    }
                }
                Action::RestoreMark => {
                    if let Some(flow) = packet.flow {
                        packet.mark = flow.mark;
                    }
                }
                Action::Untrack => {
                    packet.is_untracked = true;
                    packet.flow = None;
                }
            }
        }

        policy(self.is_accepting)
    }

    pub(super) fn uses_flows(&self) -> bool {
        let uses = |action| matches!(action, Action::MarkFlow(_) | Action::RestoreMark);

        self.rules.iter().any(|rule| uses(rule.action))
    }
}

impl TranslatingChain {
    /// The verdict, if it ends the translation: `None` if the packet passes on to the next chain.
    #[inline]
    pub(super) fn translate(&self, packet: &mut Packet) -> Option<Verdict> {
        if !self.versions.include(packet) {
            return None;
        }
        for rule in self.rules.iter().filter(|rule| rule.matches(packet)) {
            match rule.action {
                Translation::Source(to) => {
                    if let Some(source) = to.with_host_bits_of(packet.source) {
                        packet.source = source;
                        packet.shares_source = to.is_host();
                        return Some(Verdict::Accept);
                    }
                }
                Translation::Destination(to) => {
                    if let Some(destination) = to.with_host_bits_of(packet.destination) {
                        packet.destination = destination;
                        return Some(Verdict::Accept);
                    }
                }
                Translation::Masquerade => {
                    let Some(address) = packet.output_address else {
                        return Some(Verdict::Drop);
                    };
                    packet.source = address;
                    packet.shares_source = true;
                    return Some(Verdict::Accept);
                }
            }
        }

        (!self.is_accepting).then_some(Verdict::Drop)
    }
}
