//! Compares the remap table with a scan over a list of rules.

use std::net::IpAddr;

use remap::{Cluster, Outbound, PeerId, Prefix, Rule, Table};

const IS_IPV6: u8 = 1;
const PEERS: u32 = 4;

/// A table of any rules rejects exactly those that contradict an earlier rule, its lookups agree with a
/// scan of the others, and each rule in force is reversible.
///
/// A rule is one byte for version and peer, one for the length, and the two addresses.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn table(bytes: &[u8]) {
    let rules = rules(bytes);
    let (table, conflicts) = Table::build(1, &Cluster::default(), rules.iter().copied());
    let kept = keep(&rules);
    assert_eq!(kept.len() + conflicts.len(), rules.len());

    for (peer, rule) in &kept {
        assert!(table.has_rules(*peer));
        for (local, remote) in edges(rule.local()).zip(edges(rule.remote())) {
            let (Some(local), Some(remote)) = (local.inside, remote.inside) else { continue };
            assert_eq!((rule.to_remote(local), rule.to_local(remote)), (Some(remote), Some(local)));
        }
    }
    for address in rules.iter().flat_map(|(_, rule)| probes(rule)) {
        assert_eq!(table.outbound(address), scan_outbound(&kept, address));
        for peer in (0..PEERS).map(PeerId) {
            assert_eq!(table.inbound(peer, address), scan_inbound(&kept, peer, address));
        }
    }
}

fn rules(mut bytes: &[u8]) -> Vec<(PeerId, Rule)> {
    let mut rules = Vec::new();
    while let Some((&[kind, len], rest)) = bytes.split_first_chunk::<2>() {
        let width = if kind & IS_IPV6 != 0 { 16 } else { 4 };
        let (Some(remote), Some(local)) = (rest.get(..width), rest.get(width..2 * width)) else {
            break;
        };
        let prefix = |octets: &[u8]| prefix(octets, len);
        if let (Some(remote), Some(local)) = (prefix(remote), prefix(local))
            && let Ok(rule) = Rule::new(remote, local)
        {
            rules.push((PeerId(u32::from(kind >> 1) % PEERS), rule));
        }
        bytes = rest.get(2 * width..).unwrap_or_default();
    }

    rules
}

/// The prefix of `len` bits, limited to the length of the address, around an address.
fn prefix(octets: &[u8], len: u8) -> Option<Prefix> {
    let width = u8::try_from(octets.len() * 8).ok()?;
    let len = len % (width + 1);
    let bits = octets.iter().fold(0_u128, |bits, octet| bits << 8 | u128::from(*octet));
    let host = u128::MAX.checked_shr(u32::from(128 - width + len)).unwrap_or(0);

    Prefix::new(address(width, bits & !host)?, len).ok()
}

fn address(width: u8, bits: u128) -> Option<IpAddr> {
    match width {
        32 => Some(IpAddr::V4(u32::try_from(bits).ok()?.into())),
        _ => Some(IpAddr::V6(bits.into())),
    }
}

/// The accepted rules, by the definition of a conflict.
fn keep(rules: &[(PeerId, Rule)]) -> Vec<(PeerId, Rule)> {
    let mut kept: Vec<(PeerId, Rule)> = Vec::new();
    for (peer, rule) in rules {
        let contradicts = |(other, existing): &(PeerId, Rule)| {
            if peer == other {
                existing.remote() == rule.remote() || existing.local() == rule.local()
            } else {
                existing.local().overlaps(rule.local())
            }
        };
        if !kept.iter().any(contradicts) {
            kept.push((*peer, *rule));
        }
    }

    kept
}

fn scan_outbound(rules: &[(PeerId, Rule)], address: IpAddr) -> Option<Outbound> {
    let (peer, rule) = rules
        .iter()
        .filter(|(_, rule)| rule.local().contains(address))
        .max_by_key(|(_, rule)| rule.local().len_bits())?;

    Some(Outbound { peer: *peer, destination: rule.to_remote(address)? })
}

fn scan_inbound(rules: &[(PeerId, Rule)], peer: PeerId, address: IpAddr) -> Option<IpAddr> {
    rules
        .iter()
        .filter(|(owner, rule)| *owner == peer && rule.remote().contains(address))
        .max_by_key(|(_, rule)| rule.remote().len_bits())?
        .1
        .to_local(address)
}

/// Addresses at both ends of both prefixes of a rule, and just outside.
fn probes(rule: &Rule) -> impl Iterator<Item = IpAddr> {
    [rule.local(), rule.remote()]
        .into_iter()
        .flat_map(edges)
        .flat_map(|edge| [edge.inside, edge.outside].into_iter().flatten())
}

/// One end of a prefix.
struct Edge {
    inside: Option<IpAddr>,
    outside: Option<IpAddr>,
}

fn edges(prefix: Prefix) -> impl Iterator<Item = Edge> {
    let net = prefix.to_net();
    let (width, first, last) = match (net.network(), net.broadcast()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            (32, u128::from(first.to_bits()), u128::from(last.to_bits()))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => (128, first.to_bits(), last.to_bits()),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => (128, 0, 0),
    };
    let edge = move |inside: u128, outside: Option<u128>| Edge {
        inside: address(width, inside),
        outside: outside.and_then(|bits| address(width, bits)),
    };

    [edge(first, first.checked_sub(1)), edge(last, last.checked_add(1))].into_iter()
}
