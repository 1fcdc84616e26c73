//! A successor goes on with the mappings and pins of its predecessor.

use super::*;

/// A successor with the same seed, and everything that `before` has at this time.
fn successor(before: &Gateway, seed: u64, now: u64) -> Gateway {
    let after = Gateway::with(Limits::DEFAULT, seed);
    for record in before.masquerade.export(Tick::from_secs(now)) {
        let copy = FlowRecord::from_bytes(*record.as_bytes());
        assert!(after.masquerade.import(&copy, Tick::from_secs(now)));
        assert!(!after.masquerade.import(&copy, Tick::from_secs(now)), "it is there already");
    }

    after
}

#[test]
fn a_successor_keeps_ports_and_states() {
    let before = Gateway::with(Limits::DEFAULT, 5);
    let flows: Vec<_> = (0..200)
        .map(|number| tcp(&format!("192.168.1.{}", number % 20), 40_000 + number, REMOTE, 443))
        .collect();
    let externals: Vec<_> = flows.iter().map(|flow| before.established(*flow)).collect();
    before.send(flows[7], Signal::Fin, 1);

    let after = successor(&before, 5, 2);

    let sorted = |gateway: &Gateway| {
        let mut flows: Vec<_> = gateway
            .masquerade
            .flows(Tick::from_secs(2))
            .map(|flow| (flow.internal, flow.external, flow.state.label(), flow.idle_seconds))
            .collect();
        flows.sort_unstable();
        flows
    };
    assert_eq!(sorted(&after), sorted(&before));
    // The remote endpoint is known, ports that are taken are not given again, and the counts of sources are right.
    for (flow, external) in flows.iter().zip(&externals) {
        assert_eq!(after.back(*flow, *external, Signal::Data, 3), Some(flow.source));
        assert_eq!(after.send(*flow, Signal::Data, 3), *external);
    }
    let newcomer = after.send(tcp("192.168.1.77", 40_000, REMOTE, 443), Signal::Syn, 3);
    assert!(!externals.contains(&newcomer));
    after.masquerade.purge_realm(REALM);
    let statistics = after.masquerade.statistics();
    assert_eq!((statistics.mappings, statistics.created, statistics.forgotten), (0, 201, 201));
}

#[test]
fn a_successor_keeps_pins() {
    let before = Gateway::with(Limits::DEFAULT, 5);
    let request = tcp(REMOTE, 50_000, NODE, 22);
    let reply = tcp(NODE, 22, REMOTE, 50_000);
    let external = ip("10.70.0.9");
    let now = Tick::from_secs(1);
    before.masquerade.pin(REALM, &request, external, Signal::Syn, now).unwrap();

    let after = successor(&before, 5, 1);

    assert_eq!(after.masquerade.pinned(REALM, &reply, Signal::Data, now), Some(external));
    after.masquerade.purge_realm(REALM);
    assert_eq!(after.masquerade.statistics().pins, 0);
}

proptest! {
    /// Bytes that are not those of a flow change nothing that a sweep does not end.
    #[test]
    fn arbitrary_records_are_refused_or_expire(bytes: [u8; FlowRecord::LEN]) {
        let gateway = Gateway::new();

        gateway.masquerade.import(&FlowRecord::from_bytes(bytes), Tick::default());

        for _ in 0..2 {
            gateway.masquerade.handle_timeout(Tick::MAX);
        }
        let statistics = gateway.masquerade.statistics();
        prop_assert!(statistics.mappings + statistics.pins <= 1);
    }
}
