//! The prefixes of this cluster in a `Configuration`: those that the remote knows, and the address that masquerades all
//! other sources.
//!
//! Gateway number *i* of several to one remote cluster masquerades with address number *i* of the external prefix: it alone
//! has the flow, so packets to that address must come back through it. Both sides number the gateways alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use remap::{Cluster, Prefix};

use super::configuration::{LISTS, Name, ParsedConfiguration};
use super::refusal::Problem;

/// Adds the prefixes of a `Configuration` to `cluster`, for gateway number `index`. Returns what is refused.
///
/// An address of the external prefix masquerades sources that the remote does not know. For gateway 0 it is the first one,
/// as in Liqo, whose allocator reserves it; ours reserves those of all gateways. Without the pod prefixes, or if one cannot
/// be read, known sources cannot be told from others: then no source is masqueraded.
pub(super) fn add(parsed: &ParsedConfiguration, index: u8, cluster: &mut Cluster) -> Vec<Problem> {
    let [pods, external] = &parsed.own;
    let mut problems = Vec::new();
    let is_refused = |problem: &Problem| matches!(problem, Problem::Own { .. });
    if pods.is_empty() || parsed.problems.iter().any(is_refused) {
        return problems;
    }

    for prefix in firsts(external) {
        let is_ipv4 = prefix.is_ipv4();
        // Without pod prefixes of that version its pods would be masqueraded.
        let has_pods = pods.iter().any(|pods| pods.is_ipv4() == is_ipv4);
        if !has_pods || cluster.masquerade.iter().any(|given| given.is_ipv4() == is_ipv4) {
            continue;
        }
        match masquerade_address(prefix, index) {
            Some(address) => cluster.masquerade.push(address),
            None => problems.push(Problem::ExternalTooSmall { prefix, index }),
        }
    }
    for prefix in pods.iter().chain(external) {
        if !cluster.prefixes.contains(prefix) {
            cluster.prefixes.push(*prefix);
        }
    }

    problems
}

/// The prefixes in the addresses of this cluster that only gateway number `index` may carry packets to: the addresses with
/// which the other end masquerades its sources, under their local names. None where there is no external prefix or no local
/// prefix yet.
#[must_use]
pub fn own_destinations(parsed: &ParsedConfiguration, index: u8) -> Vec<Prefix> {
    let [_, field] = LISTS;
    let [_, external] = &parsed.remote;
    let local_name = |first: Prefix| {
        // That of a prefix which is refused or has no local prefix yet is not known.
        let pair = parsed.pairs.iter().find(|pair| pair.field == field && pair.remote == first)?;
        let address = masquerade_address(first, index)?;
        match pair.name {
            Name::None => None,
            Name::Same => Some(address),
            Name::Remapped(rule) => rule.to_local(address),
        }
    };

    firsts(external.iter().flatten()).filter_map(local_name).map(Prefix::of_host).collect()
}

/// The addresses of this cluster with which gateway number `index` masquerades, as far as there are such.
pub fn masquerade_addresses(
    parsed: &ParsedConfiguration,
    index: u8,
) -> impl Iterator<Item = IpAddr> {
    let [_, external] = &parsed.own;

    firsts(external).filter_map(move |first| masquerade_address(first, index))
}

/// The first prefix of each IP version.
fn firsts<'a>(
    prefixes: impl IntoIterator<Item = &'a Prefix, IntoIter: Clone>,
) -> impl Iterator<Item = Prefix> {
    let prefixes = prefixes.into_iter().copied();

    [true, false]
        .into_iter()
        .filter_map(move |is_ipv4| prefixes.clone().find(|prefix| prefix.is_ipv4() == is_ipv4))
}

/// Address number `index` of `external`, if it has so many.
fn masquerade_address(external: Prefix, index: u8) -> Option<IpAddr> {
    let address = match external.network() {
        IpAddr::V4(first) => {
            let bits = first.to_bits().checked_add(index.into())?;
            IpAddr::from(Ipv4Addr::from_bits(bits))
        }
        IpAddr::V6(first) => {
            let bits = first.to_bits().checked_add(index.into())?;
            IpAddr::from(Ipv6Addr::from_bits(bits))
        }
    };

    external.contains(address).then_some(address)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use strait_api::labels::GATEWAYS_MAX;

    use super::super::configuration::parse;
    use super::*;

    fn cluster_of(pod: &[&str], external: &[&str]) -> (Cluster, Vec<String>) {
        cluster_of_gateway(0, pod, external)
    }

    /// The prefixes that gateway number `index` reads, and its refusals.
    fn cluster_of_gateway(index: u8, pod: &[&str], external: &[&str]) -> (Cluster, Vec<String>) {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "rome", "namespace": "tenant"},
            "spec": {
                "local": {"cidr": {"pod": pod, "external": external}},
                "remote": {"cidr": {"pod": "10.9.0.0/16"}},
            },
        }));
        let parsed = parse(&object.unwrap());
        let mut cluster = Cluster::default();
        let of_own = add(&parsed, index, &mut cluster);
        let problems = parsed.problems.iter().chain(&of_own);

        (cluster, problems.map(ToString::to_string).collect())
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_external_address_is_for_masquerade() {
        let pods = ["10.244.0.0/16", "fd00:244::/56"];
        let (cluster, refused) =
            cluster_of(&pods, &["10.70.0.0/16", "10.69.0.0/16", "fd00:70::/112"]);

        let shared: [IpAddr; 2] = ["10.70.0.0".parse().unwrap(), "fd00:70::".parse().unwrap()];
        assert_eq!(cluster.masquerade, shared);
        let all = [pods[0], pods[1], "10.70.0.0/16", "10.69.0.0/16", "fd00:70::/112"];
        assert_eq!(cluster.prefixes, prefixes(&all));
        assert_eq!(refused, <[String; 0]>::default());
    }

    #[test]
    fn each_gateway_masquerades_with_its_own_address() {
        let cluster = |index, external| cluster_of_gateway(index, &["10.244.0.0/16"], &[external]);
        let addresses = |index, external| cluster(index, external).0.masquerade;
        let address = |text: &str| vec![text.parse::<IpAddr>().unwrap()];

        assert_eq!(addresses(3, "10.70.0.0/16"), address("10.70.0.3"));
        assert_eq!(addresses(3, "10.70.0.8/30"), address("10.70.0.11"));
        let (small, refused) = cluster(4, "10.70.0.8/30");
        assert_eq!(small.masquerade, <[IpAddr; 0]>::default());
        assert_eq!(small.prefixes, prefixes(&["10.244.0.0/16", "10.70.0.8/30"]));
        assert_eq!(
            refused,
            [
                "spec.local.cidr.external: 10.70.0.8/30 has no address number 4, with which gateway 4 masquerades nodes: give this cluster a larger external CIDR, or the peering fewer gateways"
            ]
        );
        let highest = cluster_of_gateway(
            7,
            &["fd00:244::/56"],
            &["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125"],
        );
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse::<IpAddr>().unwrap();
        assert_eq!(highest.0.masquerade, [last]);
    }

    /// The table of a `Configuration` with these external prefixes of the remote, and `own_destinations`.
    fn remote_external(remote: &[&str], local: &[&str]) -> ParsedConfiguration {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "rome", "namespace": "tenant"},
            "spec": {"remote": {"cidr": {"pod": ["10.9.0.0/16"], "external": remote}}},
            "status": {"remote": {"cidr": {"pod": ["10.9.0.0/16"], "external": local}}},
        }));

        parse(&object.unwrap())
    }

    #[test]
    fn own_destinations_have_local_names() {
        let destinations =
            |remote: &[&str], local: &[&str]| own_destinations(&remote_external(remote, local), 2);

        let dual = ["10.70.0.0/16", "10.60.0.0/16", "fd00:70::/112"];
        assert_eq!(
            destinations(&dual, &["10.81.0.0/16", "10.61.0.0/16", "fd00:81::/112"]),
            prefixes(&["10.81.0.2/32", "fd00:81::2/128"])
        );
        assert_eq!(destinations(&dual[..1], &dual[..1]), prefixes(&["10.70.0.2/32"]));
        assert_eq!(destinations(&dual, &["", "10.61.0.0/16"]), []);
        assert_eq!(destinations(&[], &[]), []);
        assert_eq!(destinations(&["10.70.0.0/31"], &["10.81.0.0/31"]), []);
    }

    #[test]
    fn without_pod_prefixes_nothing_is_masqueraded() {
        for (pods, external) in [
            (&[][..], &["10.70.0.0/16"][..]),
            (&["fd00:244::/56"], &["10.70.0.0/16"]),
            (&["10.244.0.0/16", "10.245.0.1/16"], &["10.70.0.0/16"]),
            (&["10.244.0.0/16"], &[]),
            (&[""], &["10.70.0.0/16"]),
        ] {
            let (cluster, _) = cluster_of(pods, external);

            assert_eq!(cluster.masquerade, <[IpAddr; 0]>::default(), "{pods:?} {external:?}");
        }
    }

    #[test]
    fn invalid_prefixes_are_reported() {
        let (cluster, refused) = cluster_of(&["10.244.0.0/16"], &["10.70.0.1/16"]);

        assert_eq!(cluster, Cluster::default());
        assert!(refused[0].contains("spec.local.cidr.external[0]: "), "{refused:?}");
        assert!(refused[0].contains("10.70.0.0/16"), "{refused:?}");
    }

    /// Prefixes of one version and length: the external prefix of a cluster, and its local prefix in another.
    fn external_pair() -> impl Strategy<Value = (Prefix, Prefix)> {
        let ipv4 = (any::<[u8; 2]>(), 20_u8..=29).prop_map(|(seeds, len)| {
            seeds.map(|seed| {
                let bits = u32::from_be_bytes([10, seed, seed, seed]) & (u32::MAX << (32 - len));
                Prefix::new(Ipv4Addr::from_bits(bits).into(), len).unwrap()
            })
        });
        let ipv6 = (any::<[u8; 2]>(), 96_u8..=125).prop_map(|(seeds, len)| {
            seeds.map(|seed| {
                let bits =
                    (0xfd00_u128 << 112 | u128::from(seed) << 32) & (u128::MAX << (128 - len));
                Prefix::new(Ipv6Addr::from_bits(bits).into(), len).unwrap()
            })
        });

        prop_oneof![ipv4, ipv6].prop_map(|[external, local]| (external, local))
    }

    proptest! {
        /// What comes from the other end under its masquerade address is answered through the same gateway.
        #[test]
        fn own_destinations_are_what_the_other_masquerades(
            (external, local) in external_pair(),
            index in 0..GATEWAYS_MAX,
        ) {
            let [pod, external_text] = match external.is_ipv4() {
                true => ["172.16.0.0/16".to_owned(), external.to_string()],
                false => ["fd01::/64".to_owned(), external.to_string()],
            };
            let configuration = |spec: Value, status: Value| {
                let object = json!({"metadata": {"name": "rome"}, "spec": spec, "status": status});
                parse(&serde_json::from_value(object).unwrap())
            };
            let cidr = json!({"cidr": {"pod": [pod], "external": [external_text]}});
            let theirs = configuration(json!({"local": cidr}), json!({}));
            let names = json!({"cidr": {"pod": [pod], "external": [local.to_string()]}});
            let ours = configuration(json!({"remote": cidr}), json!({"remote": names}));
            let mut cluster = Cluster::default();

            prop_assert!(add(&theirs, index, &mut cluster).is_empty());
            let [masquerade] = cluster.masquerade[..] else { panic!("{cluster:?}") };
            let remapped = match external == local {
                true => masquerade,
                false => remap::Rule::new(external, local).unwrap().to_local(masquerade).unwrap(),
            };

            prop_assert_eq!(own_destinations(&ours, index), [Prefix::of_host(remapped)]);
            let others = (0..GATEWAYS_MAX).filter(|other| *other != index);
            for other in others.flat_map(|other| own_destinations(&ours, other)) {
                prop_assert!(!other.contains(remapped));
            }
        }
    }
}
