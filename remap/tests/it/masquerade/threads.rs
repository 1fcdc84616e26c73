//! The masquerade under concurrent threads.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use strait_remap::masquerade::{
    Endpoint, Flow, Limits, Masquerade, Pool, Protocol, Signal, Tick, Timeouts,
};

/// Two threads create mappings in a table that is far too small, two look them up from outside, one
/// removes expired ones and purges realms. Every translation that a lookup returned was created, and in the
/// end no external endpoint has two owners and no record has leaked.
#[test]
fn threads_see_only_translations_that_existed() {
    const ROUNDS: u32 = 150_000;
    let limits = Limits { max_mappings: 600, max_per_source: 64, ..Limits::DEFAULT };
    let masquerade = Masquerade::new(limits, Timeouts::DEFAULT, 7).unwrap();
    let pool: Pool = (1..=2).map(|host| IpAddr::from([10, 70, 0, host])).collect();
    let (seconds, is_done) = (AtomicU32::new(0), AtomicBool::new(false));
    let now = || Tick::from_secs(seconds.load(Ordering::Relaxed).into());

    let creator = |number: u32| {
        let mut made = HashSet::new();
        for round in 0..ROUNDS {
            // Both creators draw from the same tuples, so they race for them.
            let (realm, flow) = any_stress_flow(scramble(round * 2 + number % 2) % 20_000);
            // Time advances with the work, so active flows expire independently of scheduling.
            if round.is_multiple_of(16) {
                seconds.fetch_add(1, Ordering::Relaxed);
            }
            if let Ok(external) = masquerade.outbound(realm, &flow, Signal::Data, &pool, now()) {
                made.insert((realm, flow.protocol, flow.source, external));
            }
        }
        made
    };
    let looker = |number: u32| {
        let mut seen = HashSet::new();
        let mut round = number;
        while !is_done.load(Ordering::Relaxed) {
            round += 1;
            let (realm, flow) = any_stress_flow(scramble(round) % 20_000);
            let protocol = flow.protocol;
            if let Some(external) = masquerade.peek_outbound(realm, protocol, flow.source, now()) {
                seen.insert((realm, protocol, flow.source, external));
                let answer = Flow { protocol, source: flow.destination, destination: external };
                if let Some(internal) = masquerade.inbound(realm, &answer, Signal::Data, now()) {
                    seen.insert((realm, protocol, internal, external));
                }
            }
        }
        seen
    };
    let (made, seen) = std::thread::scope(|scope| {
        let creators = [0, 1].map(|number| scope.spawn(move || creator(number)));
        let lookers = [1, 500_000].map(|number| scope.spawn(move || looker(number)));
        scope.spawn(|| {
            let mut realms = (0..3).cycle();
            while !is_done.load(Ordering::Relaxed) {
                masquerade.handle_timeout(now());
                // Seldom, so that lookups find mappings.
                if seconds.load(Ordering::Relaxed).is_multiple_of(64) {
                    realms.next().into_iter().for_each(|realm| masquerade.purge_realm(realm));
                }
                std::thread::yield_now();
            }
        });
        let made: HashSet<_> =
            creators.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        is_done.store(true, Ordering::Relaxed);
        let seen: HashSet<_> =
            lookers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (made, seen)
    });

    assert!(!seen.is_empty() && made.len() > 50_000, "{} seen, {} made", seen.len(), made.len());
    assert_eq!(seen.difference(&made).next(), None, "a translation that was never created");
    let mut owners = BTreeMap::new();
    for mapping in masquerade.flows(now()) {
        let tuple = (mapping.realm, mapping.protocol, mapping.external);
        assert_eq!(owners.insert(tuple, mapping.internal), None, "two owners of {tuple:?}");
        let internal =
            masquerade.peek_inbound(mapping.realm, mapping.protocol, mapping.external, now());
        assert_eq!(internal, Some(mapping.internal));
    }
    for realm in 0..3 {
        masquerade.purge_realm(realm);
    }
    let statistics = masquerade.statistics();
    assert_eq!(statistics.mappings, 0, "nothing has leaked");
    let ended =
        statistics.expired + statistics.evicted + statistics.replaced + statistics.forgotten;
    assert_eq!(statistics.created, ended, "every end was counted");
    // A count that went wrong would show as a share that is too small or too large.
    for (realm, node) in (0..3).flat_map(|realm| (0..40).map(move |node| (realm, node))) {
        let source = |port| Endpoint::new(Ipv4Addr::from_bits(0xc0a8_0000 + node).into(), port);
        let admitted = (2_000..2_100)
            .filter(|port| {
                let flow = to_remote(source(*port));
                masquerade.outbound(realm, &flow, Signal::Data, &pool, now()).is_ok()
            })
            .count();
        assert_eq!(admitted, 64, "the share of node {node} toward realm {realm}");
        masquerade.purge_realm(realm);
    }
}

/// Both threads start each round at the same moment, with two sources that want the same port.
#[test]
fn racing_sources_get_different_ports() {
    let (masquerade, pool) = racing();

    let pairs = race(40_000, |thread, round| {
        let source = Endpoint::new(IpAddr::from([192, 168, 1, thread]), 40_000);
        masquerade.outbound(round, &to_remote(source), Signal::Data, &pool, Tick::default())
    });

    for [one, other] in pairs {
        assert_ne!(one.unwrap(), other.unwrap());
    }
}

/// The same, with one source.
#[test]
fn racing_packets_share_one_mapping() {
    let (masquerade, pool) = racing();

    let pairs = race(40_000, |_, round| {
        let source = Endpoint::new(IpAddr::from([192, 168, 1, 1]), 40_000);
        masquerade.outbound(round, &to_remote(source), Signal::Data, &pool, Tick::default())
    });

    for [one, other] in pairs {
        assert_eq!(one.unwrap(), other.unwrap());
    }
    assert_eq!(masquerade.statistics().mappings, 40_000, "one for each round");
}

/// Both find an expired mapping of a third source and try to take its port.
#[test]
fn racing_for_an_expired_port_yields_two() {
    let (masquerade, pool) = racing();
    let source = |host| Endpoint::new(IpAddr::from([192, 168, 1, host]), 40_000);
    for realm in 0..40_000 {
        let flow = to_remote(source(9));
        masquerade.outbound(realm, &flow, Signal::Data, &pool, Tick::default()).unwrap();
    }

    let pairs = race(40_000, |thread, round| {
        let flow = to_remote(source(thread));
        masquerade.outbound(round, &flow, Signal::Data, &pool, Tick::from_secs(301))
    });

    for [one, other] in pairs {
        assert_ne!(one.unwrap(), other.unwrap());
    }
    let live = masquerade.flows(Tick::from_secs(301)).count();
    assert_eq!(live, 80_000);
}

/// One entry is reused by one mapping after the other, while another thread reads it. A
/// reader that mixed two of them would return a source that never had the port.
#[test]
fn reused_entries_are_read_consistently() {
    let limits = Limits { max_mappings: 1, ..Limits::DEFAULT };
    let masquerade = Masquerade::new(limits, Timeouts::DEFAULT, 7).unwrap();
    let pool = Pool::new([IpAddr::from([10, 70, 0, 1])]);
    let is_done = AtomicBool::new(false);
    // Each source has its own port, so any mixture is detected.
    let source = |n: u8| Endpoint::new(IpAddr::from([192, 168, 1, n]), 40_000 + u16::from(n));

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                for n in 0..4 {
                    let external = Endpoint::new(IpAddr::from([10, 70, 0, 1]), source(n).port);
                    let now = Tick::default();
                    if let Some(internal) = masquerade.peek_inbound(1, Protocol::Udp, external, now)
                    {
                        assert_eq!(internal, source(n));
                    }
                }
            }
        });
        for round in 0..400_000u32 {
            let n = u8::try_from(round % 4).unwrap();
            let now = Tick::default();
            // The only mapping is unanswered, so it is evicted.
            let flow = to_remote(source(n));
            let external = masquerade.outbound(1, &flow, Signal::Data, &pool, now).unwrap();
            assert_eq!(external.port, source(n).port);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Two threads run each round at the same time; returns the pairs of results.
fn race<T: Send>(rounds: u32, turn: impl Fn(u8, u32) -> T + Sync) -> Vec<[T; 2]> {
    let arrived = AtomicU32::new(0);
    let (arrived, turn) = (&arrived, &turn);
    let run = |thread: u8| {
        move || {
            (0..rounds)
                .map(|round| {
                    arrived.fetch_add(1, Ordering::AcqRel);
                    let mut waited = 0u32;
                    while arrived.load(Ordering::Acquire) < 2 * (round + 1) {
                        waited += 1;
                        // On one core the other thread must run to end the wait.
                        if waited.is_multiple_of(1_000) {
                            std::thread::yield_now();
                        }
                        std::hint::spin_loop();
                    }
                    turn(thread, round)
                })
                .collect::<Vec<_>>()
        }
    };

    std::thread::scope(|scope| {
        let [one, other] = [1, 2].map(|thread| scope.spawn(run(thread)));
        let (one, other) = (one.join().unwrap(), other.join().unwrap());
        one.into_iter().zip(other).map(|(one, other)| [one, other]).collect()
    })
}

/// Room for every round, so that only the race decides.
fn racing() -> (Masquerade, Pool) {
    let limits = Limits { max_mappings: 200_000, max_sources: 400_000, ..Limits::DEFAULT };
    let masquerade = Masquerade::new(limits, Timeouts::DEFAULT, 7).unwrap();

    (masquerade, Pool::new([IpAddr::from([10, 70, 0, 1])]))
}

fn to_remote(source: Endpoint) -> Flow {
    let destination = Endpoint::new(IpAddr::from([10, 244, 0, 1]), 443);

    Flow { protocol: Protocol::Udp, source, destination }
}

fn any_stress_flow(n: u32) -> (u32, Flow) {
    let source = Ipv4Addr::from_bits(0xc0a8_0000 + n % 40);
    let protocol = if n.is_multiple_of(2) { Protocol::Udp } else { Protocol::Tcp };
    let port = u16::try_from(2_000 + n / 40 % 40).unwrap();
    let flow = Flow {
        protocol,
        source: Endpoint::new(source.into(), port),
        destination: Endpoint::new(IpAddr::from([10, 244, 0, 1]), 443),
    };

    (n % 3, flow)
}

fn scramble(n: u32) -> u32 {
    let n = (n ^ (n >> 16)).wrapping_mul(0x7feb_352d);

    (n ^ (n >> 15)).wrapping_mul(0x846c_a68b) >> 3
}
