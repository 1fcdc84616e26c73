//! Against a tree that is split and merged as Liqo's is, and known choices of Liqo.

mod allocations;
mod simulation;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use remap::Prefix;

use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn exclusive(text: &str) -> Request {
    Request { prefix: prefix(text), is_immutable: false, is_shared: false }
}

fn immutable(text: &str) -> Request {
    Request { is_immutable: true, ..exclusive(text) }
}

fn shared(text: &str) -> Request {
    Request { is_shared: true, ..immutable(text) }
}

/// The outcome of each request, one after the other.
fn in_turn(requests: &[Request]) -> Vec<String> {
    let mut taken = Vec::new();
    let mut chosen = Vec::new();
    for request in requests {
        let prefix = choose(&Pools::default(), &taken, *request).unwrap();
        taken.push(Allocated { prefix, is_shared: request.is_shared });
        chosen.push(prefix.to_string());
    }

    chosen
}

/// The requests of an installation: pods, services, external and internal prefix.
fn installed(pods: &str, services: &str) -> Vec<Request> {
    vec![shared(pods), shared(services), exclusive("10.70.0.0/16"), exclusive("10.80.0.0/16")]
}

#[test]
fn choices_are_those_of_liqo() {
    let peer = |pods: &str| [exclusive(pods), exclusive("10.70.0.0/16")];
    let chosen = |pods: &str, services: &str, peers: usize| {
        let peers = std::iter::repeat_n(peer(pods), peers).flatten();
        let requests: Vec<_> = installed(pods, services).into_iter().chain(peers).collect();
        in_turn(&requests).split_off(3)
    };

    // kubeadm and kind, and a hub with three leaves like itself.
    assert_eq!(
        chosen("10.244.0.0/16", "10.96.0.0/12", 3),
        [
            "10.80.0.0/16",
            "10.71.0.0/16",
            "10.68.0.0/16",
            "10.69.0.0/16",
            "10.64.0.0/16",
            "10.65.0.0/16",
            "10.66.0.0/16",
        ]
    );
    // k3s.
    let k3s = [shared("10.42.0.0/16"), shared("10.43.0.0/16"), exclusive("10.70.0.0/16")];
    let requests = [&k3s[..], &peer("10.42.0.0/16")].concat();
    assert_eq!(in_turn(&requests)[3..], ["10.40.0.0/16", "10.41.0.0/16"]);
    // Services take precedence over the internal prefix.
    assert_eq!(
        chosen("10.200.0.0/16", "10.80.0.0/12", 1),
        ["10.71.0.0/16", "10.68.0.0/16", "10.69.0.0/16"]
    );
}

#[test]
fn prefixes_outside_the_pools_follow_their_flags() {
    let pools = Pools::default();
    let ask = |request| choose(&pools, &[], request);
    let outside = "100.64.0.0/16";

    assert_eq!(ask(shared(outside)), Ok(prefix(outside)));
    assert_eq!(ask(exclusive(outside)), Ok(prefix("10.0.0.0/16")));
    assert_eq!(ask(immutable(outside)), Err(AllocationError::NoPool { prefix: prefix(outside) }));
    assert_eq!(ask(exclusive("0.0.0.0/1")), Err(AllocationError::Exhausted { len: 1 }));
    assert_eq!(ask(exclusive("2001:db8::/64")), Ok(prefix("fd00::/64")));
    assert_eq!(ask(exclusive("8000::/1")), Err(AllocationError::Exhausted { len: 1 }));
}

#[test]
fn an_immutable_request_names_its_conflict() {
    let taken = [Allocated { prefix: prefix("10.9.0.0/24"), is_shared: true }];

    let denied = choose(&Pools::default(), &taken, immutable("10.9.0.0/16")).unwrap_err();
    assert_eq!(
        denied.to_string(),
        "10.9.0.0/16 overlaps 10.9.0.0/24, which is taken: release that, or allow another prefix"
    );
    assert_eq!(choose(&Pools::default(), &taken, shared("10.9.0.0/16")), Ok(prefix("10.9.0.0/16")));
}

#[test]
fn overlapping_pools_are_refused() {
    let pools = |texts: &[&str]| Pools::new(texts.iter().map(|text| prefix(text)).collect());

    assert_eq!(Pools::default().iter().count(), 4);
    assert!(pools(&["10.0.0.0/8", "172.16.0.0/12"]).is_ok());
    let error = pools(&["10.0.0.0/8", "10.1.0.0/16"]).unwrap_err().to_string();
    assert_eq!(error, "pool 10.1.0.0/16 overlaps pool 10.0.0.0/8: leave one of them out");
    assert_eq!(pools(&[]), Err(PoolsError::None));
}

#[test]
fn of_two_equal_prefixes_the_older_stays() {
    let place = |second: i64, name: &str| Place {
        created: jiff::Timestamp::from_second(second).ok(),
        name: name.to_owned(),
        ..Place::default()
    };
    let prefix_request = |second, name, chosen: Option<&str>| PrefixRequest {
        place: place(second, name),
        request: exclusive("10.244.0.0/16"),
        chosen: chosen.map(prefix),
    };

    let outcomes = assign(
        &Pools::default(),
        &[],
        &[
            prefix_request(3, "new", None),
            prefix_request(2, "younger", Some("10.71.0.0/16")),
            prefix_request(1, "older", Some("10.71.0.0/16")),
        ],
    );
    assert_eq!(
        outcomes,
        [
            Outcome::Gets(prefix("10.70.0.0/16")),
            Outcome::Gets(prefix("10.244.0.0/16")),
            Outcome::Keeps(prefix("10.71.0.0/16")),
        ]
    );
}

/// A tree as Liqo keeps one, in the plainest form: the nodes that were split, and how each allocation was made.
#[derive(Default)]
struct Tree {
    is_split: BTreeSet<(u32, u8)>,
    acquired: BTreeMap<(u32, u8), usize>,
}

impl Tree {
    const ROOT: (u32, u8) = (0x0a00_0000, 8);

    fn halves((network, len): (u32, u8)) -> [(u32, u8); 2] {
        [(network, len + 1), (network | 1 << (31 - len), len + 1)]
    }

    /// Splits the nodes around `wanted`, and marks it.
    fn acquire(&mut self, wanted: (u32, u8)) {
        let mut node = Self::ROOT;
        while node.1 < wanted.1 {
            self.is_split.insert(node);
            let [left, right] = Self::halves(node);
            node = if wanted.0 & right.0 == right.0 { right } else { left };
        }
        *self.acquired.entry(wanted).or_default() += 1;
    }

    fn release(&mut self, wanted: (u32, u8)) {
        let count = self.acquired.get_mut(&wanted).unwrap();
        *count -= 1;
        if *count == 0 {
            self.acquired.remove(&wanted);
        }
        self.merge(Self::ROOT);
    }

    /// Whether `node` and all below it are free.
    fn merge(&mut self, node: (u32, u8)) -> bool {
        if self.is_split.contains(&node) {
            let [left, right] = Self::halves(node);
            let (left, right) = (self.merge(left), self.merge(right));
            if left && right {
                self.is_split.remove(&node);
            }
        }

        !self.is_split.contains(&node) && !self.acquired.contains_key(&node)
    }

    fn find(&self, node: (u32, u8), len: u8) -> Option<(u32, u8)> {
        if node.1 > len || self.acquired.contains_key(&node) {
            return None;
        }
        let is_split = |node| self.is_split.contains(&node);
        if node.1 == len {
            return (!is_split(node)).then_some(node);
        }
        let [left, right] = Self::halves(node);
        let order = if !is_split(left) && is_split(right) { [right, left] } else { [left, right] };

        order.into_iter().find_map(|half| self.find(half, len))
    }
}

fn of_tree((network, len): (u32, u8)) -> Prefix {
    Prefix::new(IpAddr::from(Ipv4Addr::from_bits(network)), len).unwrap()
}

/// One operation on a tree.
#[derive(Clone, Debug)]
enum Step {
    /// A shared prefix, wherever it is free for that.
    Share(u32, u8),
    /// The next free one.
    Choose(u8),
    /// Releases one.
    Release(Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..1_u32 << 8, 10..=18_u8).prop_map(|(host, len)| {
            let network = Tree::ROOT.0 | host << 16;
            Step::Share(network & !(u32::MAX >> len), len)
        }),
        (9..=16_u8).prop_map(Step::Choose),
        any::<Index>().prop_map(Step::Release),
    ]
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    (any::<u8>(), any::<u8>(), 5..=24_u8).prop_map(|(second, third, len)| {
        let network = u32::from_be_bytes([10, second & 0x1f, third, 0]);
        of_tree((network & !(u32::MAX >> len), len))
    })
}

fn any_request() -> impl Strategy<Value = PrefixRequest> {
    let chosen = proptest::option::of(any_prefix());
    (0..4_i64, "[a-d]", any_prefix(), any::<bool>(), any::<bool>(), chosen).prop_map(
        |(second, name, prefix, is_immutable, is_shared, chosen)| PrefixRequest {
            place: Place {
                created: jiff::Timestamp::from_second(second).ok(),
                name,
                ..Place::default()
            },
            request: Request { prefix, is_immutable, is_shared },
            chosen,
        },
    )
}

proptest! {
    /// Without a tree, every choice is that of a tree that was split and merged.
    #[test]
    fn a_choice_equals_that_of_a_tree(steps in vec(step(), 0..60)) {
        let pools = Pools::new(vec![of_tree(Tree::ROOT)]).unwrap();
        let mut tree = Tree::default();
        let mut held: Vec<((u32, u8), bool)> = Vec::new();

        for step in steps {
            let taken: Vec<_> = held
                .iter()
                .map(|(node, is_shared)| Allocated { prefix: of_tree(*node), is_shared: *is_shared })
                .collect();
            match step {
                Step::Share(network, len) => {
                    let prefix = of_tree((network, len));
                    let request = Request { prefix, is_immutable: true, is_shared: true };
                    if choose(&pools, &taken, request).is_ok() {
                        tree.acquire((network, len));
                        held.push(((network, len), true));
                    }
                }
                Step::Choose(len) => {
                    // The pool itself is never free, so every request is for another prefix of its length.
                    let other = Prefix::new(IpAddr::from([203, 0, 0, 0]), len.max(8)).unwrap();
                    let request = Request { prefix: other, is_immutable: false, is_shared: false };
                    let expected = tree.find(Tree::ROOT, len);
                    let chosen = choose(&pools, &taken, request).ok();
                    prop_assert_eq!(chosen, expected.map(of_tree));
                    if let Some(node) = expected {
                        tree.acquire(node);
                        held.push((node, false));
                    }
                }
                Step::Release(index) if !held.is_empty() => {
                    let (node, _) = held.remove(index.index(held.len()));
                    tree.release(node);
                }
                Step::Release(_) => {}
            }
        }
    }

    /// For any resources in any order.
    #[test]
    fn no_two_have_the_same_allocation(
        held in vec((any_prefix(), any::<bool>()), 0..6),
        prefix_request in vec(any_request(), 0..24),
        turn in any::<Index>(),
    ) {
        let pools = Pools::default();
        let held: Vec<_> =
            held.into_iter().map(|(prefix, is_shared)| Allocated { prefix, is_shared }).collect();
        let mut prefix_request: Vec<_> = prefix_request;
        // In an API server names are unique.
        let mut names = BTreeSet::new();
        prefix_request.retain(|prefix_request| names.insert(prefix_request.place.clone()));

        let outcomes = assign(&pools, &held, &prefix_request);
        prop_assert_eq!(outcomes.len(), prefix_request.len());
        let given: Vec<_> = prefix_request
            .iter()
            .zip(&outcomes)
            .filter_map(|(prefix_request, outcome)| {
                Some(Allocated { prefix: outcome.prefix()?, is_shared: prefix_request.request.is_shared })
            })
            .collect();
        for (place, one) in given.iter().enumerate() {
            for other in held.iter().chain(&given[place + 1..]) {
                let is_shared = one.is_shared && other.is_shared;
                prop_assert!(is_shared || !one.prefix.overlaps(other.prefix));
            }
        }
        for (prefix_request, outcome) in prefix_request.iter().zip(&outcomes) {
            if let (Outcome::Gets(prefix), true) = (outcome, prefix_request.request.is_immutable) {
                prop_assert_eq!(*prefix, prefix_request.request.prefix);
            }
        }

        let mut turned = prefix_request.clone();
        let by = if turned.is_empty() { 0 } else { turn.index(turned.len()) };
        turned.rotate_left(by);
        let mut expected = outcomes.clone();
        expected.rotate_left(by);
        prop_assert_eq!(assign(&pools, &held, &turned), expected);

        // Once written, all allocations stand.
        for (prefix_request, outcome) in prefix_request.iter_mut().zip(&outcomes) {
            prefix_request.chosen = outcome.prefix();
        }
        for (before, after) in outcomes.iter().zip(assign(&pools, &held, &prefix_request)) {
            match before.prefix() {
                Some(prefix) => prop_assert_eq!(after, Outcome::Keeps(prefix)),
                None => prop_assert_eq!(after.prefix(), None),
            }
        }
    }

    /// Addresses are allocated in order from any start, until there is none.
    #[test]
    fn addresses_are_allocated_in_order(
        len in 26..=32_u8,
        reserved in 0..70_u32,
        last in proptest::option::of(any::<u8>()),
        used in vec(any::<u8>(), 0..40),
    ) {
        let network = of_tree((0x0a46_0000, len));
        let size = 1_u32 << (32 - len);
        let nth = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a46_0000 + number % size));
        let mut used: BTreeSet<_> = used.into_iter().map(|number| nth(number.into())).collect();
        let mut last = last.map(|number| nth(number.into()));
        let start = last.map_or(0, |last| match last {
            IpAddr::V4(last) => last.to_bits() - 0x0a46_0000 + 1,
            IpAddr::V6(_) => unreachable!(),
        });

        let expected =
            (start..start + size).map(nth).filter(|address| !used.contains(address));
        let expected: Vec<_> =
            expected.filter(|address| !(0..reserved.min(size)).any(|n| nth(n) == *address)).collect();
        for expected in expected {
            let address = next_address(network, reserved, last, &used);
            prop_assert_eq!(address, Some(expected));
            used.insert(expected);
            last = Some(expected);
        }
        prop_assert_eq!(next_address(network, reserved, last, &used), None);
    }
}
