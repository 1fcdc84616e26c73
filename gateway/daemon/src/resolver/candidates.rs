//! Selects the candidate addresses of a peer, if there are too many.

use std::net::SocketAddr;

use strait_wg::endpoints::MAX_CANDIDATES;

/// Chooses from `sources`, one per configured endpoint, each in order of preference.
///
/// Sources take turns, and within a source both address families, so that a name with many addresses, or an
/// unreachable family, does not displace others. Addresses in `before` come first, so that a changing order of
/// answers changes nothing.
pub(super) fn choose(before: &[SocketAddr], sources: &[Vec<SocketAddr>]) -> Vec<SocketAddr> {
    let mut queues: Vec<Vec<SocketAddr>> = Vec::new();
    for source in sources {
        let is_like_first = |address: &SocketAddr| {
            source.first().is_some_and(|first| first.is_ipv4() == address.is_ipv4())
        };
        let (mut first, mut other): (Vec<_>, Vec<_>) =
            source.iter().partition(|a| is_like_first(a));
        for queue in [&mut first, &mut other] {
            queue.sort_by_key(|address| !before.contains(address));
        }
        queues.extend([first, other]);
    }

    let longest = queues.iter().map(Vec::len).max().unwrap_or(0);
    let mut chosen = Vec::with_capacity(MAX_CANDIDATES);
    for address in (0..longest).flat_map(|round| queues.iter().filter_map(move |q| q.get(round))) {
        if chosen.len() < MAX_CANDIDATES && !chosen.contains(address) {
            chosen.push(*address);
        }
    }

    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_of_the_configuration_counts() {
        let chosen = choose(&[], &[vec![v4(3)], vec![v4(1)], vec![v4(2)]]);

        assert_eq!(chosen, [v4(3), v4(1), v4(2)]);
    }

    #[test]
    fn names_and_families_share_the_candidates() {
        let many: Vec<_> = (0..20).map(v6).chain([v4(1)]).collect();

        let chosen = choose(&[], &[many, vec![v4(2)]]);

        assert_eq!(chosen[..3], [v6(0), v4(1), v4(2)]);
        assert_eq!(chosen.len(), MAX_CANDIDATES);
    }

    #[test]
    fn a_round_robin_of_many_addresses_changes_nothing() {
        let mut answer: Vec<_> = (0..20).map(v4).collect();
        let first = choose(&[], &[answer.clone()]);

        for _ in 0..20 {
            answer.rotate_left(1);
            let next = choose(&first, &[answer.clone()]);

            assert_eq!(next.iter().collect::<BTreeSet<_>>(), first.iter().collect());
        }
    }

    proptest! {
        #[test]
        fn candidates_are_distinct_and_bounded(
            before in prop::collection::vec(0u8..20, 0..8),
            sources in prop::collection::vec(prop::collection::vec(0u8..20, 0..12), 0..5),
        ) {
            let before: Vec<_> = before.into_iter().map(v4).collect();
            let sources: Vec<Vec<_>> =
                sources.into_iter().map(|source| source.into_iter().map(v4).collect()).collect();
            let known: BTreeSet<_> = sources.iter().flatten().collect();

            let chosen = choose(&before, &sources);

            prop_assert!(chosen.iter().all(|address| known.contains(address)));
            let distinct: BTreeSet<_> = chosen.iter().collect();
            prop_assert_eq!(distinct.len(), chosen.len());
            prop_assert_eq!(chosen.len(), known.len().min(MAX_CANDIDATES));
        }
    }

    fn v4(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 51840))
    }

    fn v6(last: u8) -> SocketAddr {
        let ip = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]);

        SocketAddr::new(ip, 51840)
    }
}
