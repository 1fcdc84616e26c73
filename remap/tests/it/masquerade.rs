//! The masquerade compared with a model.
//!
//! The model is a list of mappings that is scanned. Where the masquerade may
//! choose, a port or which of two equally idle mappings to evict, the model accepts every
//! correct choice.

mod threads;

use std::collections::HashMap;
use std::net::IpAddr;

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
