//! The addresses of fragments: later ones have no ports.

use super::*;

#[test]
fn later_fragments_follow_the_first() {
    let gateway = Gateway::new();
    let datagram = Datagram {
        realm: REALM,
        source: ip(REMOTE),
        destination: ip("10.70.0.1"),
        identification: 77,
        protocol: 17,
    };
    let later = |datagram: &Datagram, secs| {
        let now = Tick::from_secs(secs);
        gateway.masquerade.later_fragment(Direction::Inbound, datagram, now)
    };
    assert_eq!(later(&datagram, 0), Err(Refused::Fragment), "the first was not seen");

    let now = Tick::default();
    gateway.masquerade.remember_fragment(Direction::Inbound, &datagram, ip(NODE), now);

    assert_eq!(later(&datagram, 30), Ok(ip(NODE)));
    assert_eq!(later(&datagram, 31), Err(Refused::Fragment));
    for other in [
        Datagram { realm: 2, ..datagram },
        Datagram { identification: 78, ..datagram },
        Datagram { protocol: 6, ..datagram },
        Datagram { source: ip("10.244.9.9"), ..datagram },
    ] {
        assert_eq!(later(&other, 0), Err(Refused::Fragment));
    }
    let outbound = gateway.masquerade.later_fragment(Direction::Outbound, &datagram, now);
    assert_eq!(outbound, Err(Refused::Fragment), "directions are separate");
}

#[test]
fn fragment_flood_evicts_the_oldest() {
    let limits = Limits { max_fragments: 8, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    let datagram = |identification| Datagram {
        realm: REALM,
        source: ip(REMOTE),
        destination: ip("10.70.0.1"),
        identification,
        protocol: 17,
    };
    let remember = |n: u32| {
        let now = Tick::from_secs(n.into());
        gateway.masquerade.remember_fragment(Direction::Inbound, &datagram(n), ip(NODE), now);
    };
    remember(0);
    let memory = gateway.masquerade.memory_bytes();

    (1..12).for_each(remember);

    let known: Vec<_> = (0..12)
        .filter(|n| {
            let now = Tick::from_secs(12);
            gateway.masquerade.later_fragment(Direction::Inbound, &datagram(*n), now).is_ok()
        })
        .collect();
    assert_eq!(known, (4..12).collect::<Vec<_>>());
    assert_eq!(gateway.masquerade.memory_bytes(), memory);
}
