//! Allocates: from the journal and all resources to the next journal and what may be written to each resource. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use remap::{Prefix, PrefixError};

use super::journal::{BYTES_MAX, Entry, Held, Journal};
use super::resources::{IpFacts, NetworkFacts, NoNetwork, Resources};
use super::{Asked, Denied, Outcome, Pools, Request, Taken, assign, next_address};

/// The result for a journal and the resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// To be written before any status.
    pub(super) journal: Journal,
    /// By the UID of the resource. A resource that waits for another has none.
    pub(super) outcomes: BTreeMap<String, Result<Given, Problem>>,
    /// Resources in the journal that were not seen. Those that are deleted are to be passed in `gone` next time.
    pub(super) suspects: Vec<String>,
}

/// The allocation that may be written into the status of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// For a `Network`.
    Prefix(Prefix),
    /// For an `IP`, from `network`. Without `network` its status is complete already.
    Address { address: IpAddr, network: Option<Prefix> },
}

/// Why a resource gets no allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("spec.cidr: {0}")]
    Cidr(#[from] PrefixError),
    #[error(transparent)]
    NoNetwork(#[from] NoNetwork),
    #[error(
        "{network} has no address left: delete IPs of it, or name another Network in spec.networkRef"
    )]
    NoAddress { network: Prefix },
    #[error("status.ip {address} is that of another IP too: delete this one and make it again")]
    AddressTaken { address: IpAddr },
    #[error("its address {address} is none of its Network {network}: delete it and make it again")]
    Stray { address: IpAddr, network: Prefix },
    #[error(
        "the journal of allocations is full ({entries} entries, at most {BYTES_MAX} bytes): delete Networks or IPs that are not needed"
    )]
    JournalFull { entries: usize },
}

impl Problem {
    /// The reason in conditions and Events, the same in every release.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Denied(Denied::Taken { .. }) => "CIDRTaken",
            Self::Denied(Denied::NoPool { .. }) => "CIDROutsidePools",
            Self::Denied(Denied::Exhausted { .. }) => "PoolsExhausted",
            Self::Cidr(_) => "CIDRInvalid",
            Self::NoNetwork(_) => "NetworkMissing",
            Self::NoAddress { .. } => "NetworkExhausted",
            Self::AddressTaken { .. } => "IPTaken",
            Self::Stray { .. } => "IPOutsideNetwork",
            Self::JournalFull { .. } => "JournalFull",
        }
    }
}

/// An address for an `IP`.
struct Chosen {
    address: IpAddr,
    network: Prefix,
    /// The journal entry of the `Network` from now on.
    source: Option<(String, Entry)>,
}

/// Which allocations are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    /// New ones too.
    New,
    /// Only those that a status shows: others may be writing one.
    Nothing,
}

/// The result for the journal `known` and the resources; those with a UID in `gone` are deleted.
///
/// An entry of the journal stands. A prefix in a status without an entry was chosen before there was a journal: it is
/// entered, if it is free.
pub(super) fn decide(
    pools: &Pools,
    known: &Journal,
    resources: &Resources<'_>,
    gone: &BTreeSet<String>,
    giving: Giving,
) -> Decision {
    let mut journal = known.clone();
    let going = resources.networks.iter().filter(|facts| facts.is_going).map(|facts| facts.uid);
    let going = going.chain(resources.ips.iter().filter(|ip| ip.is_going).map(|ip| ip.uid));
    for uid in going.chain(gone.iter().map(String::as_str)) {
        journal.remove(uid);
    }
    let is_unseen = |uid: &&String| !resources.uids.contains(uid.as_str());
    let suspects = journal.iter().map(|(uid, _)| uid).filter(is_unseen).cloned().collect();

    let mut decision = Decision { journal, outcomes: BTreeMap::new(), suspects };
    decision.give_prefixes(pools, resources, giving);
    decision.give_addresses(resources, giving);

    decision
}

impl Decision {
    fn give_prefixes(&mut self, pools: &Pools, resources: &Resources<'_>, giving: Giving) {
        let mut unallocated = Vec::new();
        for facts in resources.networks.iter().filter(|facts| !facts.is_going) {
            if let Some(prefix) = self.prefix(facts.uid) {
                self.outcomes.insert(facts.uid.to_owned(), Ok(Given::Prefix(prefix)));
                continue;
            }
            match asked(facts) {
                Ok(asked) if asked.chosen.is_some() || giving == Giving::New => {
                    unallocated.push((facts, asked));
                }
                Ok(_) => {}
                Err(error) => self.deny(facts.uid, error),
            }
        }
        if unallocated.is_empty() {
            return;
        }

        let asked: Vec<_> = unallocated.iter().map(|(_, asked)| asked.clone()).collect();
        let outcomes = assign(pools, &self.taken(&asked), &asked);
        for ((facts, asked), outcome) in unallocated.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Gets(_) if giving == Giving::Nothing => {}
                Outcome::Keeps(prefix) | Outcome::Gets(prefix) => {
                    let is_shared = asked.request.is_shared;
                    let held = Held::Prefix { prefix, is_shared, last: None };
                    self.enter(facts.uid, facts.namespace, facts.name, held, Given::Prefix(prefix));
                }
                Outcome::Denied(denied) => self.deny(facts.uid, denied),
            }
        }
    }

    /// The prefixes that no new request may have.
    fn taken(&self, asked: &[Asked]) -> Vec<Taken> {
        let mut addresses = Vec::new();
        let mut taken: Vec<_> = Vec::with_capacity(self.journal.len());
        for (_, entry) in self.journal.iter() {
            match entry.held {
                Held::Prefix { prefix, is_shared, .. } => taken.push(Taken { prefix, is_shared }),
                Held::Address(address) => addresses.push(address),
            }
        }
        // Addresses outlive the Network that they are from.
        let known = taken.iter().map(|taken| taken.prefix);
        let known: Vec<_> = known.chain(asked.iter().filter_map(|asked| asked.chosen)).collect();
        addresses.retain(|address| !known.iter().any(|prefix| prefix.contains(*address)));
        let alone = addresses.into_iter().map(Prefix::of_host);
        taken.extend(alone.map(|prefix| Taken { prefix, is_shared: false }));

        taken
    }

    fn give_addresses(&mut self, resources: &Resources<'_>, giving: Giving) {
        let staying = || resources.ips.iter().filter(|ip| !ip.is_going);
        let has_all = staying().all(|ip| {
            let held = self.address(ip.uid);
            held.is_some() && (ip.chosen.is_none() || ip.chosen == held)
        });
        // The addresses of others are needed only if there is something to allocate.
        let mut used = if has_all { BTreeSet::new() } else { self.addresses() };

        for ip in staying() {
            if let Some(address) = ip.chosen {
                self.take_over(ip, address, &mut used);
            }
        }
        for ip in staying().filter(|ip| ip.chosen.is_none()) {
            match self.give_address(resources, ip, giving, &mut used) {
                Ok(None) => {}
                Ok(Some(Chosen { address, network, source })) => {
                    let given = Given::Address { address, network: Some(network) };
                    self.enter(ip.uid, ip.namespace, ip.name, Held::Address(address), given);
                    if self.address(ip.uid).is_some() {
                        source.into_iter().for_each(|(uid, entry)| self.journal.put(uid, entry));
                    }
                }
                Err(problem) => self.deny(ip.uid, problem),
            }
        }
    }

    /// An address in a status is entered as it is: a status cannot be changed.
    fn take_over(&mut self, ip: &IpFacts<'_>, address: IpAddr, used: &mut BTreeSet<IpAddr>) {
        let given = Given::Address { address, network: None };
        let held = self.address(ip.uid);
        if held == Some(address) {
            self.outcomes.insert(ip.uid.to_owned(), Ok(given));
        } else if used.insert(address) {
            if let Some(former) = held {
                used.remove(&former);
            }
            self.enter(ip.uid, ip.namespace, ip.name, Held::Address(address), given);
        } else {
            self.deny(ip.uid, Problem::AddressTaken { address });
        }
    }

    /// The address of an `IP` without status; `None` if its prefix is not allocated yet.
    fn give_address(
        &self,
        resources: &Resources<'_>,
        ip: &IpFacts<'_>,
        giving: Giving,
        used: &mut BTreeSet<IpAddr>,
    ) -> Result<Option<Chosen>, Problem> {
        let network = resources.network_of(ip)?;
        let Some(entry) = self.journal.entry(network.uid).cloned() else { return Ok(None) };
        let Held::Prefix { prefix, is_shared, last } = entry.held else { return Ok(None) };
        if let Some(address) = self.address(ip.uid) {
            let is_stray = !prefix.contains(address);
            let stray = || Problem::Stray { address, network: prefix };
            let known = Chosen { address, network: prefix, source: None };
            return if is_stray { Err(stray()) } else { Ok(Some(known)) };
        }
        if giving == Giving::Nothing {
            return Ok(None);
        }

        let next = next_address(prefix, network.reserved, last, used);
        let address = next.ok_or(Problem::NoAddress { network: prefix })?;
        used.insert(address);
        let held = Held::Prefix { prefix, is_shared, last: Some(address) };
        let source = Some((network.uid.to_owned(), Entry { held, ..entry }));

        Ok(Some(Chosen { address, network: prefix, source }))
    }

    /// Enters an allocation of a resource, and permits writing it to the resource.
    fn enter(&mut self, uid: &str, namespace: &str, name: &str, held: Held, given: Given) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let is_known = self.journal.entry(uid).is_some_and(|entry| entry.held == held);
        let entry = Entry { namespace, name, held };
        if is_known || self.journal.put_if_it_fits(uid.to_owned(), entry) {
            self.outcomes.insert(uid.to_owned(), Ok(given));
        } else {
            self.deny(uid, Problem::JournalFull { entries: self.journal.len() });
        }
    }

    fn deny(&mut self, uid: &str, problem: impl Into<Problem>) {
        self.outcomes.insert(uid.to_owned(), Err(problem.into()));
    }

    /// The prefix of a resource in the journal.
    pub(super) fn prefix(&self, uid: &str) -> Option<Prefix> {
        match self.journal.entry(uid)?.held {
            Held::Prefix { prefix, .. } => Some(prefix),
            Held::Address(_) => None,
        }
    }

    fn address(&self, uid: &str) -> Option<IpAddr> {
        match self.journal.entry(uid)?.held {
            Held::Address(address) => Some(address),
            Held::Prefix { .. } => None,
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        let held = self.journal.iter().map(|(_, entry)| entry.held);

        held.filter_map(|held| match held {
            Held::Address(address) => Some(address),
            Held::Prefix { .. } => None,
        })
        .collect()
    }
}

fn asked(facts: &NetworkFacts<'_>) -> Result<Asked, PrefixError> {
    let NetworkFacts { place, chosen, .. } = facts;
    let request = match (&facts.request, chosen) {
        (Ok(request), _) => *request,
        // A status with a prefix proves that the allocator which wrote it could read the spec.
        (Err(_), Some(prefix)) => {
            Request { prefix: *prefix, is_immutable: false, is_shared: false }
        }
        (Err(error), None) => return Err(error.clone()),
    };

    Ok(Asked { place: place.clone(), request, chosen: *chosen })
}
