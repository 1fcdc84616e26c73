//! The masquerade compared with a model, and with concurrent threads.
//!
//! The model is a list of mappings that is scanned. Where the masquerade may
//! choose, a port or which of two equally idle mappings to evict, the model accepts every
//! correct choice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use proptest::prelude::*;
use strait_remap::masquerade::{
    Endpoint, Flow, Limits, Masquerade, Pool, Protocol, Refused, Signal, Tick, Timeouts,
};

const MAX_MAPPINGS: usize = 12;
const MAX_PER_SOURCE: usize = 6;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn masquerade_matches_the_model(
        operations in prop::collection::vec(any_operation(), 1..120),
        seed: u64,
    ) {
        let mut model = Model::new(seed);

        for operation in operations {
            model.apply(operation)?;
            model.compare()?;
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Outbound {
        realm: u32,
        flow: Flow,
        signal: Signal,
        pool: usize,
    },
    /// To the external endpoint of one of the mappings.
    Inbound {
        mapping: usize,
        remote: Endpoint,
        signal: Signal,
    },
    Advance {
        seconds: u64,
    },
}

/// One mapping of the model: the whole remote endpoint, and the state of the connection.
#[derive(Clone, Debug)]
struct Expected {
    realm: u32,
    protocol: Protocol,
    internal: Endpoint,
    external: Endpoint,
    remote: Endpoint,
    is_answered: bool,
    is_shared: bool,
    is_query: bool,
    fin: [bool; 2],
    is_reset: bool,
    seen: u64,
}

struct Model {
    masquerade: Masquerade,
    pools: [Pool; 2],
    mappings: Vec<Expected>,
    /// The external address that a source got with its first mapping.
    paired: HashMap<(u32, IpAddr), IpAddr>,
    now: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let limits = Limits {
            max_mappings: u32::try_from(MAX_MAPPINGS).unwrap(),
            max_per_source: u32::try_from(MAX_PER_SOURCE).unwrap(),
            ..Limits::DEFAULT
        };
        let pool = |hosts: [u8; 2]| hosts.map(|host| IpAddr::from([10, 70, 0, host])).into();

        Self {
            masquerade: Masquerade::new(limits, Timeouts::DEFAULT, seed).unwrap(),
            pools: [pool([1, 2]), pool([2, 3])].map(|hosts: Vec<_>| Pool::new(hosts)),
            mappings: Vec::new(),
            paired: HashMap::new(),
            now: 0,
        }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        match operation {
            Operation::Advance { seconds } => {
                self.now += seconds;
                self.mappings.retain(|mapping| self.now - mapping.seen <= mapping.timeout());
                self.forget_pairs();
                self.masquerade.handle_timeout(Tick::from_secs(self.now));
                Ok(())
            }
            Operation::Inbound { mapping, remote, signal } => {
                if self.mappings.is_empty() {
                    return Ok(());
                }
                let now = self.now;
                let number = mapping % self.mappings.len();
                let mapping = &mut self.mappings[number];
                let flow = Flow {
                    protocol: mapping.protocol,
                    source: remote,
                    destination: mapping.external,
                };
                let tick = Tick::from_secs(now);
                let internal = self.masquerade.inbound(mapping.realm, &flow, signal, tick);
                prop_assert_eq!(internal, Some(mapping.internal));
                mapping.inbound(remote, signal, now);
                Ok(())
            }
            Operation::Outbound { realm, flow, signal, pool } => {
                self.outbound(realm, flow, signal, pool)
            }
        }
    }

    fn outbound(
        &mut self,
        realm: u32,
        flow: Flow,
        signal: Signal,
        pool: usize,
    ) -> Result<(), TestCaseError> {
        let pool = self.pools[pool].clone();
        let (tick, now) = (Tick::from_secs(self.now), self.now);
        let paired = self.masquerade.paired(realm, flow.source.address, &pool).unwrap();
        let result = self.masquerade.outbound(realm, &flow, signal, &pool, tick);

        let known = self.mappings.iter().position(|mapping| {
            (mapping.realm, mapping.protocol, mapping.internal)
                == (realm, flow.protocol, flow.source)
        });
        if let Some(number) = known {
            let mapping = &mut self.mappings[number];
            if pool.contains(mapping.external.address) {
                prop_assert_eq!(result, Ok(mapping.external));
                mapping.outbound(flow.destination, signal, now);
                return Ok(());
            }
            // Replies to it are not translated any more.
            self.mappings.remove(number);
            self.forget_pairs();
        }

        let source = (realm, flow.source.address);
        let of_source = self.mappings.iter().filter(|mapping| mapping.source() == source).count();
        if of_source == MAX_PER_SOURCE {
            prop_assert_eq!(result, Err(Refused::SourceShare));
            return Ok(());
        }
        if self.mappings.len() == MAX_MAPPINGS && !self.evict()? {
            prop_assert_eq!(result, Err(Refused::Full));
            return Ok(());
        }

        let external = result.unwrap();
        self.check_choice(realm, &flow, external, paired, &pool)?;
        self.paired.entry(source).or_insert(paired);
        self.mappings.push(Expected::new(realm, flow, external, now));
        self.forget_pairs();
        Ok(())
    }

    /// Removes the evicted mapping, and checks that it was the right one.
    fn evict(&mut self) -> Result<bool, TestCaseError> {
        let rank = |mapping: &Expected| (!mapping.is_confirmed(), self.now - mapping.seen);
        let most = self
            .mappings
            .iter()
            .map(rank)
            .filter(|(is_unconfirmed, idle)| *is_unconfirmed || *idle >= 30)
            .max();
        let tick = Tick::from_secs(self.now);
        let gone: Vec<_> = (0..self.mappings.len())
            .filter(|number| {
                let Expected { realm, protocol, internal, external, .. } = self.mappings[*number];
                self.masquerade.peek_outbound(realm, protocol, internal, tick) != Some(external)
            })
            .collect();

        prop_assert_eq!(gone.len(), usize::from(most.is_some()));
        let Some(gone) = gone.first() else {
            return Ok(false);
        };
        prop_assert_eq!(Some(rank(&self.mappings[*gone])), most);
        self.mappings.remove(*gone);
        Ok(true)
    }

    fn check_choice(
        &self,
        realm: u32,
        flow: &Flow,
        external: Endpoint,
        paired: IpAddr,
        pool: &Pool,
    ) -> Result<(), TestCaseError> {
        let is_taken = |endpoint: Endpoint| {
            self.mappings.iter().any(|mapping| {
                (mapping.realm, mapping.protocol, mapping.external)
                    == (realm, flow.protocol, endpoint)
            })
        };
        let port = flow.source.port;

        prop_assert!(!is_taken(external), "{external} has an owner");
        prop_assert!(pool.contains(paired));
        prop_assert_eq!(external.address, paired, "so few mappings never use up an address");
        if let Some(remembered) = self.paired.get(&(realm, flow.source.address))
            && pool.contains(*remembered)
        {
            prop_assert_eq!(paired, *remembered);
        }
        if flow.protocol == Protocol::Echo {
            prop_assert!(external.port == port || is_taken(Endpoint::new(paired, port)));
        } else if port == 0 {
            prop_assert!(
                external.port != 0 && external.port < 1024 && external.port.is_multiple_of(2)
            );
        } else {
            prop_assert!(external.port == port || is_taken(Endpoint::new(paired, port)));
            prop_assert_eq!(external.port % 2, port % 2);
            prop_assert_eq!(external.port < 1024, port < 1024);
        }
        Ok(())
    }

    /// Every mapping is found from both sides, and there is no other.
    fn compare(&self) -> Result<(), TestCaseError> {
        let now = Tick::from_secs(self.now);
        for mapping in &self.mappings {
            let Expected { realm, protocol, internal, external, .. } = *mapping;
            let outbound = self.masquerade.peek_outbound(realm, protocol, internal, now);
            let inbound = self.masquerade.peek_inbound(realm, protocol, external, now);
            prop_assert_eq!(outbound, Some(external), "{:?}", mapping);
            prop_assert_eq!(inbound, Some(internal), "{:?}", mapping);

            // It expires exactly after the timeout of the model.
            let last = Tick::from_secs(mapping.seen + mapping.timeout());
            let after = Tick::from_secs(mapping.seen + mapping.timeout() + 1);
            let at = |tick| self.masquerade.peek_inbound(realm, protocol, external, tick);
            prop_assert_eq!(at(last), Some(internal), "{:?}", mapping);
            prop_assert_eq!(at(after), None, "{:?}", mapping);
        }
        prop_assert_eq!(self.masquerade.flows(now).count(), self.mappings.len());
        let live = usize::try_from(self.masquerade.statistics().mappings).unwrap();
        prop_assert_eq!(live, self.mappings.len());
        Ok(())
    }

    fn forget_pairs(&mut self) {
        let mappings = &self.mappings;
        self.paired.retain(|source, _| mappings.iter().any(|mapping| mapping.source() == *source));
    }
}

impl Expected {
    fn new(realm: u32, flow: Flow, external: Endpoint, now: u64) -> Self {
        Self {
            realm,
            protocol: flow.protocol,
            internal: flow.source,
            external,
            remote: flow.destination,
            is_answered: false,
            is_shared: false,
            is_query: flow.protocol == Protocol::Udp && flow.destination.port == 53,
            fin: [false; 2],
            is_reset: false,
            seen: now,
        }
    }

    fn source(&self) -> (u32, IpAddr) {
        (self.realm, self.internal.address)
    }

    fn is_over(&self) -> bool {
        self.fin == [true; 2] || self.is_reset
    }

    fn is_confirmed(&self) -> bool {
        self.is_answered && !self.is_query && (self.is_shared || !self.is_over())
    }

    fn timeout(&self) -> u64 {
        match self.protocol {
            Protocol::Echo => 60,
            Protocol::Tcp if self.is_confirmed() => 7_440,
            Protocol::Tcp => 240,
            Protocol::Udp if self.is_query => 30,
            Protocol::Udp | Protocol::UdpLite | Protocol::Raw(_) => 300,
        }
    }

    fn outbound(&mut self, remote: Endpoint, signal: Signal, now: u64) {
        if self.protocol != Protocol::Tcp {
            self.is_query &= remote.port == 53;
            self.seen = now;
            return;
        }

        match signal {
            Signal::Reset => {
                if self.is_answered && !self.is_shared && self.remote == remote && !self.is_over() {
                    self.is_reset = true;
                    self.seen = now;
                }
            }
            Signal::Data | Signal::Syn | Signal::Fin if self.is_shared => self.seen = now,
            Signal::Data | Signal::Syn | Signal::Fin if self.remote != remote => {
                if self.is_over() {
                    self.begin(remote, now);
                } else {
                    self.is_shared = true;
                    self.seen = now;
                }
            }
            Signal::Syn if self.is_over() => self.begin(remote, now),
            Signal::Data | Signal::Syn | Signal::Fin => self.proceed(0, signal, now),
        }
    }

    fn inbound(&mut self, remote: Endpoint, signal: Signal, now: u64) {
        if self.protocol != Protocol::Tcp {
            if !self.is_query {
                self.is_answered = true;
                self.seen = now;
            }
            return;
        }

        if !self.is_shared && self.remote != remote {
            return;
        }

        match signal {
            Signal::Reset if self.is_shared || self.is_over() => {}
            Signal::Reset => {
                self.is_reset = self.is_answered;
                self.seen = now;
            }
            Signal::Syn if !self.is_shared && self.is_over() => {}
            Signal::Data | Signal::Syn | Signal::Fin => {
                self.is_answered = true;
                if self.is_shared {
                    self.seen = now;
                } else {
                    self.proceed(1, signal, now);
                }
            }
        }
    }

    fn begin(&mut self, remote: Endpoint, now: u64) {
        self.remote = remote;
        self.is_answered = false;
        self.fin = [false; 2];
        self.is_reset = false;
        self.seen = now;
    }

    /// Data or FIN of the connection that is tracked.
    fn proceed(&mut self, side: usize, signal: Signal, now: u64) {
        if self.is_reset {
            self.is_reset = false;
            self.fin = [false; 2];
        } else if self.fin == [true; 2] {
            return;
        } else if signal == Signal::Fin && self.is_answered {
            self.fin[side] = true;
        }
        self.seen = now;
    }
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1u32..3, any_flow(), any_signal(), 0usize..2)
            .prop_map(|(realm, flow, signal, pool)| Operation::Outbound {
                realm, flow, signal, pool,
            }),
        6 => (any::<prop::sample::Index>(), any_remote(), any_signal())
            .prop_map(|(mapping, remote, signal)| Operation::Inbound {
                mapping: mapping.index(MAX_MAPPINGS), remote, signal,
            }),
        2 => prop::sample::select(vec![1u64, 10, 29, 30, 31, 60, 61, 120, 240, 241, 300, 301, 7_440])
            .prop_map(|seconds| Operation::Advance { seconds }),
    ]
}

/// Few distinct values, so that tuples repeat.
fn any_flow() -> impl Strategy<Value = Flow> {
    let protocol = prop::sample::select(vec![
        Protocol::Tcp,
        Protocol::Tcp,
        Protocol::Tcp,
        Protocol::Udp,
        Protocol::Udp,
        Protocol::UdpLite,
        Protocol::Echo,
    ]);
    let port = prop::sample::select(vec![0u16, 123, 40_000, 40_000, 40_001]);

    (protocol, 1u8..5, port, any_remote()).prop_map(|(protocol, node, port, destination)| Flow {
        protocol,
        source: Endpoint::new(IpAddr::from([192, 168, 1, node]), port),
        destination,
    })
}

fn any_remote() -> impl Strategy<Value = Endpoint> {
    (1u8..3, prop::sample::select(vec![53u16, 443]))
        .prop_map(|(host, port)| Endpoint::new(IpAddr::from([10, 244, 0, host]), port))
}

fn any_signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        3 => Just(Signal::Data), 2 => Just(Signal::Syn), 2 => Just(Signal::Fin), 1 => Just(Signal::Reset),
    ]
}

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
