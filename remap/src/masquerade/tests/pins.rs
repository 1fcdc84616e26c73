//! The source of replies from a host with two addresses.

use super::*;

#[test]
fn only_replies_to_pinned_flows_are_mapped() {
    let gateway = Gateway::new();
    let request = inverse(udp(NODE, 8_080, REMOTE, 5_000));
    let external = ip("10.70.0.9");
    let now = Tick::default();

    gateway.masquerade.pin(REALM, &request, external, Signal::Data, now).unwrap();

    let pinned = |flow| gateway.masquerade.pinned(REALM, &flow, Signal::Data, now);
    assert_eq!(pinned(udp(NODE, 8_080, REMOTE, 5_000)), Some(external));
    assert_eq!(pinned(udp(NODE, 8_080, REMOTE, 5_001)), None);
    assert_eq!(pinned(udp(NODE, 8_081, REMOTE, 5_000)), None);
    assert_eq!(pinned(tcp(NODE, 8_080, REMOTE, 5_000)), None);
    assert_eq!(gateway.masquerade.peek_pinned(2, &inverse(request), now), None);
}

#[test]
fn last_pin_of_a_pair_wins() {
    let gateway = Gateway::new();
    let request = inverse(udp(NODE, 8_080, REMOTE, 5_000));
    let now = Tick::default();

    for external in ["10.70.0.9", "10.70.0.10"] {
        gateway.masquerade.pin(REALM, &request, ip(external), Signal::Data, now).unwrap();
    }

    let external = gateway.masquerade.peek_pinned(REALM, &inverse(request), now);
    assert_eq!(external, Some(ip("10.70.0.10")));
    assert_eq!(gateway.masquerade.statistics().pins, 1);
}

#[test]
fn unpin_ends_the_pin() {
    let gateway = Gateway::new();
    let request = inverse(udp(NODE, 8_080, REMOTE, 5_000));
    let external = ip("10.70.0.9");
    let now = Tick::default();
    let pinned = || gateway.masquerade.peek_pinned(REALM, &inverse(request), now);
    gateway.masquerade.pin(REALM, &request, external, Signal::Data, now).unwrap();

    gateway.masquerade.unpin(2, &request, Signal::Data, now);
    let other = inverse(udp(NODE, 8_080, REMOTE, 5_001));
    gateway.masquerade.unpin(REALM, &other, Signal::Data, now);
    assert_eq!(pinned(), Some(external), "other realm, other pair");
    gateway.masquerade.unpin(REALM, &request, Signal::Data, now);
    assert_eq!(pinned(), None);

    gateway.masquerade.unpin(REALM, &request, Signal::Data, now);
    let statistics = gateway.masquerade.statistics();
    assert_eq!((statistics.pins, statistics.replaced), (0, 1));
}

#[test]
fn only_syn_unpins_a_connection() {
    let gateway = Gateway::new();
    let request = inverse(tcp(NODE, 8_080, REMOTE, 5_000));
    let external = ip("10.70.0.9");
    let now = Tick::default();
    let pinned = || gateway.masquerade.peek_pinned(REALM, &inverse(request), now);
    gateway.masquerade.pin(REALM, &request, external, Signal::Syn, now).unwrap();

    for signal in [Signal::Data, Signal::Fin, Signal::Reset] {
        gateway.masquerade.unpin(REALM, &request, signal, now);
        assert_eq!(pinned(), Some(external), "{signal:?}");
    }
    gateway.masquerade.unpin(REALM, &request, Signal::Syn, now);

    assert_eq!(pinned(), None);
}

#[test]
fn pin_timeout_follows_the_connection() {
    let gateway = Gateway::new();
    let reply = tcp(NODE, 8_080, REMOTE, 5_000);
    let external = ip("10.70.0.9");
    let pin = |signal, secs| {
        gateway
            .masquerade
            .pin(REALM, &inverse(reply), external, signal, Tick::from_secs(secs))
            .unwrap();
    };
    let pinned =
        |signal, secs| gateway.masquerade.pinned(REALM, &reply, signal, Tick::from_secs(secs));
    let peek = |secs| gateway.masquerade.peek_pinned(REALM, &reply, Tick::from_secs(secs));

    pin(Signal::Syn, 0);
    assert_eq!((peek(240), peek(241)), (Some(external), None), "opening");
    pinned(Signal::Syn, 1);
    assert_eq!((peek(7_441), peek(7_442)), (Some(external), None), "established");
    pin(Signal::Fin, 2);
    pinned(Signal::Fin, 2);
    assert_eq!((peek(242), peek(243)), (Some(external), None), "closing");
}

#[test]
fn pins_per_remote_address_are_bounded() {
    let limits = Limits { max_pins: 16, max_pins_per_source: 4, ..Limits::DEFAULT };
    let gateway = Gateway::with(limits, 1);
    let pin = |remote: &str, port| {
        let request = inverse(udp(NODE, 8_080, remote, port));
        gateway.masquerade.pin(REALM, &request, ip("10.70.0.9"), Signal::Data, Tick::default())
    };

    let refused = (0..100).filter(|port| pin(REMOTE, *port).is_err()).count();

    assert_eq!(refused, 96);
    assert_eq!(pin("10.244.9.9", 1), Ok(()));
}
