//! Counters and predictions, for any sequence of operations.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Each created flow is live, or ended for exactly one counted reason.
    #[test]
    fn ended_flows_are_counted_once(
        operations in prop::collection::vec(any_operation(), 1..150),
        seed: u64,
    ) {
        let limits = Limits {
            max_mappings: 6,
            max_per_source: 4,
            max_pins: 6,
            max_pins_per_source: 4,
            ..Limits::DEFAULT
        };
        let gateway = Gateway::with(limits, seed);
        let mut secs = 0;

        for operation in operations {
            operation.apply(&gateway.masquerade, &mut secs);

            let statistics = gateway.masquerade.statistics();
            let Statistics { expired, evicted, replaced, forgotten, .. } = statistics;
            let ended = expired + evicted + replaced + forgotten;
            prop_assert_eq!(
                statistics.created,
                statistics.mappings + statistics.pins + ended,
                "{:?}",
                statistics
            );
        }
    }

    /// A probe returns the result of the next packet and changes nothing.
    #[test]
    fn probe_predicts_the_outcome(
        operations in prop::collection::vec(any_operation(), 0..40),
        flow in any_flow(),
        seed: u64,
    ) {
        let limits = Limits {
            max_mappings: 6,
            max_per_source: 3,
            max_pins: 4,
            max_pins_per_source: 3,
            ..Limits::DEFAULT
        };
        let gateway = Gateway::with(limits, seed);
        let mut secs = 0;
        for operation in operations {
            operation.apply(&gateway.masquerade, &mut secs);
        }
        let Gateway { masquerade, pool } = &gateway;
        let now = Tick::from_secs(secs);
        let pin = inverse(flow);
        let seen = || (masquerade.statistics(), masquerade.flows(now).collect::<Vec<_>>());
        let before = seen();

        let predicted = masquerade.probe(REALM, &flow, pool, now);
        let predicted_pin = masquerade.probe_pin(REALM, &pin, now);

        prop_assert_eq!(&seen(), &before);
        let got = masquerade.outbound(REALM, &flow, Signal::Data, pool, now);
        if masquerade.statistics().evicted == before.0.evicted {
            prop_assert_eq!(got, predicted);
        } else {
            // The eviction may have freed the wanted port.
            let address = |external: Result<Endpoint, _>| external.map(|external| external.address);
            prop_assert_eq!(address(got), address(predicted));
        }
        let pinned = masquerade.pin(REALM, &pin, ip("10.70.0.9"), Signal::Data, now);
        prop_assert_eq!(pinned, predicted_pin);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Outbound { realm: u32, flow: Flow, host: u8 },
    Answer { flow: Flow, host: u8 },
    Pin { realm: u32, flow: Flow, host: u8 },
    Unpin { realm: u32, flow: Flow },
    Advance { seconds: u64 },
    Purge { realm: u32 },
}

impl Operation {
    fn apply(self, masquerade: &Masquerade, secs: &mut u64) {
        let now = Tick::from_secs(*secs);
        match self {
            Self::Outbound { realm, flow, host } => {
                let _ = masquerade.outbound(realm, &flow, Signal::Syn, &pool(host..=host), now);
            }
            Self::Answer { flow, host } => {
                let external = Endpoint { port: flow.source.port, ..endpoint("10.70.0.1", 0) };
                let external = Endpoint { address: IpAddr::from([10, 70, 0, host]), ..external };
                let answer = Flow { source: flow.destination, destination: external, ..flow };
                let _ = masquerade.inbound(REALM, &answer, Signal::Data, now);
            }
            Self::Pin { realm, flow, host } => {
                let external = IpAddr::from([10, 70, 1, host]);
                let _ = masquerade.pin(realm, &inverse(flow), external, Signal::Syn, now);
            }
            Self::Unpin { realm, flow } => {
                masquerade.unpin(realm, &inverse(flow), Signal::Syn, now);
            }
            Self::Advance { seconds } => {
                *secs += seconds;
                // Not always, so that packets find expired flows.
                if seconds % 2 == 0 {
                    masquerade.handle_timeout(Tick::from_secs(*secs));
                }
            }
            Self::Purge { realm } => masquerade.purge_realm(realm),
        }
    }
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1u32..3, any_flow(), 1u8..3)
            .prop_map(|(realm, flow, host)| Operation::Outbound { realm, flow, host }),
        3 => (any_flow(), 1u8..3).prop_map(|(flow, host)| Operation::Answer { flow, host }),
        6 => (1u32..3, any_flow(), 1u8..3)
            .prop_map(|(realm, flow, host)| Operation::Pin { realm, flow, host }),
        3 => (1u32..3, any_flow()).prop_map(|(realm, flow)| Operation::Unpin { realm, flow }),
        2 => prop::sample::select(vec![1u64, 30, 31, 240, 241, 301, 7_441])
            .prop_map(|seconds| Operation::Advance { seconds }),
        1 => (1u32..3).prop_map(|realm| Operation::Purge { realm }),
    ]
}

/// Few distinct values, so that tuples repeat.
fn any_flow() -> impl Strategy<Value = Flow> {
    let protocol =
        prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Udp, Protocol::Echo]);
    let port = prop::sample::select(vec![0u16, 123, 40_000, 40_000, 40_001]);

    (protocol, 1u8..4, port, 1u8..4).prop_map(|(protocol, node, port, remote)| Flow {
        protocol,
        source: Endpoint::new(IpAddr::from([192, 168, 1, node]), port),
        destination: Endpoint::new(IpAddr::from([10, 244, 0, remote]), 443),
    })
}
