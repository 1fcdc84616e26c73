//! Allocates: from the journal and all resources to the next journal and what may be written to each resource. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use remap::{Prefix, PrefixError};

use super::journal::{Allocation, BYTES_MAX, Entry, Journal};
use super::resources::{NoNetwork, ParsedIp, ParsedNetwork, Resources};
use super::{
    Allocated, AllocationError, Outcome, Pools, PrefixRequest, Request, assign, next_address,
};

/// The result for a journal and the resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// To be written before any status.
    pub(super) journal: Journal,
    /// By the UID of the resource. A resource that waits for another has none.
    pub(super) outcomes: BTreeMap<String, Result<StatusAllocation, Problem>>,
    /// Resources in the journal that were not seen. Those that are deleted are to be passed in `gone` next time.
    pub(super) unseen: Vec<String>,
}

/// The allocation that may be written into the status of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusAllocation {
    /// For a `Network`.
    Prefix(Prefix),
    /// For an `IP`, from `network`. Without `network` its status is complete already.
    Address { address: IpAddr, network: Option<Prefix> },
}

/// Why a resource gets no allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Denied(#[from] AllocationError),
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
            Self::Denied(AllocationError::Taken { .. }) => "CIDRTaken",
            Self::Denied(AllocationError::NoPool { .. }) => "CIDROutsidePools",
            Self::Denied(AllocationError::Exhausted { .. }) => "PoolsExhausted",
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
pub(super) enum Permission {
    /// New ones too.
    New,
    /// Only those that a status shows: others may be writing one.
    KnownOnly,
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
    permission: Permission,
) -> Decision {
    let mut journal = known.clone();
    let going = resources.networks.iter().filter(|facts| facts.is_deleted).map(|facts| facts.uid);
    let going = going.chain(resources.ips.iter().filter(|ip| ip.is_deleted).map(|ip| ip.uid));
    for uid in going.chain(gone.iter().map(String::as_str)) {
        journal.remove(uid);
    }
    let is_unseen = |uid: &&String| !resources.uids.contains(uid.as_str());
    let unseen = journal.iter().map(|(uid, _)| uid).filter(is_unseen).cloned().collect();

    let mut decision = Decision { journal, outcomes: BTreeMap::new(), unseen };
    decision.give_prefixes(pools, resources, permission);
    decision.give_addresses(resources, permission);

    decision
}

impl Decision {
    fn give_prefixes(&mut self, pools: &Pools, resources: &Resources<'_>, permission: Permission) {
        let mut unallocated = Vec::new();
        for facts in resources.networks.iter().filter(|facts| !facts.is_deleted) {
            if let Some(prefix) = self.prefix(facts.uid) {
                self.outcomes.insert(facts.uid.to_owned(), Ok(StatusAllocation::Prefix(prefix)));
                continue;
            }
            match prefix_request(facts) {
                Ok(prefix_request)
                    if prefix_request.chosen.is_some() || permission == Permission::New =>
                {
                    unallocated.push((facts, prefix_request));
                }
                Ok(_) => {}
                Err(error) => self.deny(facts.uid, error),
            }
        }
        if unallocated.is_empty() {
            return;
        }

        let prefix_request: Vec<_> =
            unallocated.iter().map(|(_, prefix_request)| prefix_request.clone()).collect();
        let outcomes = assign(pools, &self.taken(&prefix_request), &prefix_request);
        for ((facts, prefix_request), outcome) in unallocated.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Gets(_) if permission == Permission::KnownOnly => {}
                Outcome::Keeps(prefix) | Outcome::Gets(prefix) => {
                    let is_shared = prefix_request.request.is_shared;
                    let allocation = Allocation::Prefix { prefix, is_shared, last: None };
                    self.enter(
                        facts.uid,
                        facts.namespace,
                        facts.name,
                        allocation,
                        StatusAllocation::Prefix(prefix),
                    );
                }
                Outcome::Denied(denied) => self.deny(facts.uid, denied),
            }
        }
    }

    /// The prefixes that no new request may have.
    fn taken(&self, prefix_request: &[PrefixRequest]) -> Vec<Allocated> {
        let mut addresses = Vec::new();
        let mut taken: Vec<_> = Vec::with_capacity(self.journal.len());
        for (_, entry) in self.journal.iter() {
            match entry.allocation {
                Allocation::Prefix { prefix, is_shared, .. } => {
                    taken.push(Allocated { prefix, is_shared })
                }
                Allocation::Address(address) => addresses.push(address),
            }
        }
        // Addresses outlive the Network that they are from.
        let known = taken.iter().map(|taken| taken.prefix);
        let known: Vec<_> = known
            .chain(prefix_request.iter().filter_map(|prefix_request| prefix_request.chosen))
            .collect();
        addresses.retain(|address| !known.iter().any(|prefix| prefix.contains(*address)));
        let alone = addresses.into_iter().map(Prefix::of_host);
        taken.extend(alone.map(|prefix| Allocated { prefix, is_shared: false }));

        taken
    }

    fn give_addresses(&mut self, resources: &Resources<'_>, permission: Permission) {
        let staying = || resources.ips.iter().filter(|ip| !ip.is_deleted);
        let has_all = staying().all(|ip| {
            let allocation = self.address(ip.uid);
            allocation.is_some() && (ip.chosen.is_none() || ip.chosen == allocation)
        });
        // The addresses of others are needed only if there is something to allocate.
        let mut used = if has_all { BTreeSet::new() } else { self.addresses() };

        for ip in staying() {
            if let Some(address) = ip.chosen {
                self.take_over(ip, address, &mut used);
            }
        }
        for ip in staying().filter(|ip| ip.chosen.is_none()) {
            match self.give_address(resources, ip, permission, &mut used) {
                Ok(None) => {}
                Ok(Some(Chosen { address, network, source })) => {
                    let status = StatusAllocation::Address { address, network: Some(network) };
                    self.enter(ip.uid, ip.namespace, ip.name, Allocation::Address(address), status);
                    if self.address(ip.uid).is_some() {
                        source.into_iter().for_each(|(uid, entry)| self.journal.put(uid, entry));
                    }
                }
                Err(problem) => self.deny(ip.uid, problem),
            }
        }
    }

    /// An address in a status is entered as it is: a status cannot be changed.
    fn take_over(&mut self, ip: &ParsedIp<'_>, address: IpAddr, used: &mut BTreeSet<IpAddr>) {
        let status = StatusAllocation::Address { address, network: None };
        let allocation = self.address(ip.uid);
        if allocation == Some(address) {
            self.outcomes.insert(ip.uid.to_owned(), Ok(status));
        } else if used.insert(address) {
            if let Some(former) = allocation {
                used.remove(&former);
            }
            self.enter(ip.uid, ip.namespace, ip.name, Allocation::Address(address), status);
        } else {
            self.deny(ip.uid, Problem::AddressTaken { address });
        }
    }

    /// The address of an `IP` without status; `None` if its prefix is not allocated yet.
    fn give_address(
        &self,
        resources: &Resources<'_>,
        ip: &ParsedIp<'_>,
        permission: Permission,
        used: &mut BTreeSet<IpAddr>,
    ) -> Result<Option<Chosen>, Problem> {
        let network = resources.network_of(ip)?;
        let Some(entry) = self.journal.entry(network.uid).cloned() else { return Ok(None) };
        let Allocation::Prefix { prefix, is_shared, last } = entry.allocation else {
            return Ok(None);
        };
        if let Some(address) = self.address(ip.uid) {
            let is_stray = !prefix.contains(address);
            let stray = || Problem::Stray { address, network: prefix };
            let known = Chosen { address, network: prefix, source: None };
            return if is_stray { Err(stray()) } else { Ok(Some(known)) };
        }
        if permission == Permission::KnownOnly {
            return Ok(None);
        }

        let next = next_address(prefix, network.reserved, last, used);
        let address = next.ok_or(Problem::NoAddress { network: prefix })?;
        used.insert(address);
        let allocation = Allocation::Prefix { prefix, is_shared, last: Some(address) };
        let source = Some((network.uid.to_owned(), Entry { allocation, ..entry }));

        Ok(Some(Chosen { address, network: prefix, source }))
    }

    /// Enters an allocation of a resource, and permits writing it to the resource.
    fn enter(
        &mut self,
        uid: &str,
        namespace: &str,
        name: &str,
        allocation: Allocation,
        status: StatusAllocation,
    ) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let is_known = self.journal.entry(uid).is_some_and(|entry| entry.allocation == allocation);
        let entry = Entry { namespace, name, allocation };
        if is_known || self.journal.put_if_it_fits(uid.to_owned(), entry) {
            self.outcomes.insert(uid.to_owned(), Ok(status));
        } else {
            self.deny(uid, Problem::JournalFull { entries: self.journal.len() });
        }
    }

    fn deny(&mut self, uid: &str, problem: impl Into<Problem>) {
        self.outcomes.insert(uid.to_owned(), Err(problem.into()));
    }

    /// The prefix of a resource in the journal.
    pub(super) fn prefix(&self, uid: &str) -> Option<Prefix> {
        match self.journal.entry(uid)?.allocation {
            Allocation::Prefix { prefix, .. } => Some(prefix),
            Allocation::Address(_) => None,
        }
    }

    fn address(&self, uid: &str) -> Option<IpAddr> {
        match self.journal.entry(uid)?.allocation {
            Allocation::Address(address) => Some(address),
            Allocation::Prefix { .. } => None,
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        let allocation = self.journal.iter().map(|(_, entry)| entry.allocation);

        allocation
            .filter_map(|allocation| match allocation {
                Allocation::Address(address) => Some(address),
                Allocation::Prefix { .. } => None,
            })
            .collect()
    }
}

fn prefix_request(facts: &ParsedNetwork<'_>) -> Result<PrefixRequest, PrefixError> {
    let ParsedNetwork { place, chosen, .. } = facts;
    let request = match (&facts.request, chosen) {
        (Ok(request), _) => *request,
        // A status with a prefix proves that the allocator which wrote it could read the spec.
        (Err(_), Some(prefix)) => {
            Request { prefix: *prefix, is_immutable: false, is_shared: false }
        }
        (Err(error), None) => return Err(error.clone()),
    };

    Ok(PrefixRequest { place: place.clone(), request, chosen: *chosen })
}
