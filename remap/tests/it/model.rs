//! The table compared with a model: a list of rules and a scan.

use std::net::IpAddr;

use proptest::prelude::*;
use strait_remap::{Cluster, Outbound, PeerId, Prefix, Rule, Table};

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn table_lookup_equals_a_scan(
        rules in prop::collection::vec((0u32..4, any_rule()), 0..24),
        own in prop::collection::vec(any_rule(), 0..3),
        addresses in prop::collection::vec(any_address(), 30),
    ) {
        let rules: Vec<_> = rules.into_iter().map(|(peer, rule)| (PeerId(peer), rule)).collect();
        let prefixes: Vec<_> = own.iter().map(Rule::local).collect();
        let cluster = Cluster { prefixes, ..Cluster::default() };

        let (table, conflicts) = Table::build(1, &cluster, rules.iter().copied());

        let kept = keep(&cluster, &rules);
        prop_assert_eq!(kept.len() + conflicts.len(), rules.len());
        for address in addresses {
            prop_assert_eq!(table.outbound(address), scan_outbound(&kept, address));
            for peer in (0..4).map(PeerId) {
                prop_assert_eq!(table.inbound(peer, address), scan_inbound(&kept, peer, address));
            }
        }
    }

    /// An address that is translated outbound and back inbound is unchanged, with any other rules.
    #[test]
    fn round_trip_is_the_identity(
        rules in prop::collection::vec((0u32..4, any_rule()), 1..24),
        address in any_address(),
    ) {
        // Within a peer prefixes may nest; an address that a longer prefix hides is not translated back.
        let rules: Vec<_> = rules
            .into_iter()
            .map(|(peer, rule)| (PeerId(peer), rule))
            .filter(|(_, rule)| rule.remote().len_bits() == 8)
            .collect();
        let (table, _) = Table::build(1, &Cluster::default(), rules);

        if let Some(Outbound { peer, destination }) = table.outbound(address) {
            prop_assert_eq!(table.inbound(peer, destination), Some(address));
        }
    }
}

/// The accepted rules, by the definition of a conflict.
fn keep(cluster: &Cluster, rules: &[(PeerId, Rule)]) -> Vec<(PeerId, Rule)> {
    let mut kept: Vec<(PeerId, Rule)> = Vec::new();

    for (peer, rule) in rules {
        let conflicts = kept.iter().any(|(other, existing)| {
            if peer == other {
                existing.remote() == rule.remote() || existing.local() == rule.local()
            } else {
                existing.local().overlaps(rule.local())
            }
        });
        let is_own = cluster.prefixes.iter().any(|own| own.overlaps(rule.local()));
        if !conflicts && !is_own {
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

/// Prefixes of few lengths and few networks, so that they collide and nest.
fn any_rule() -> impl Strategy<Value = Rule> {
    (prop::sample::select(vec![8u8, 10, 12]), 0u8..8, 0u8..8, any::<[bool; 2]>()).prop_filter_map(
        "identity",
        |(len, remote, local, [is_ipv4, is_neutral])| {
            let prefix = |n: u8| {
                let bits = n << 4;
                let network: IpAddr = if is_ipv4 {
                    IpAddr::V4([bits, 0, 0, 0].into())
                } else {
                    IpAddr::V6((u128::from(bits) << 120).into())
                };
                Prefix::new(network, len).unwrap()
            };
            if is_neutral && !is_ipv4 {
                return Rule::checksum_neutral(prefix(remote), prefix(local)).ok();
            }
            Rule::new(prefix(remote), prefix(local)).ok()
        },
    )
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (any::<u8>(), prop::sample::select(vec![0u8, 1, 0x10, 0x3f, 0xff]), any::<u16>()).prop_map(
            |(a, b, c)| IpAddr::V4((u32::from_be_bytes([a, b, 0, 0]) | u32::from(c)).into())
        ),
        (any::<u8>(), any::<u32>())
            .prop_map(|(a, b)| IpAddr::V6(((u128::from(a) << 120) | u128::from(b)).into())),
    ]
}
