use proptest::prelude::*;

use super::super::config::example;
use super::*;

const NAME: &str = "rome.example:51840";

#[test]
fn an_answer_becomes_the_endpoints_of_its_peer() {
    let (mut resolver, key) = resolver_for(&[NAME]);

    let changed = resolver.handle_answer(answer(&["192.0.2.7", "2001:db8::7"]), now());

    assert_eq!(changed, [key]);
    assert_eq!(shown(&resolver, &key), ["192.0.2.7:51840", "[2001:db8::7]:51840"]);
}

#[test]
fn names_and_addresses_keep_their_order() {
    let (mut resolver, key) = resolver_for(&["198.51.100.1:9", NAME, "198.51.100.2:9"]);
    assert_eq!(shown(&resolver, &key), ["198.51.100.1:9", "198.51.100.2:9"]);

    resolver.handle_answer(answer(&["192.0.2.7"]), now());

    assert_eq!(shown(&resolver, &key), ["198.51.100.1:9", "192.0.2.7:51840", "198.51.100.2:9"]);
}

#[test]
fn unusable_addresses_are_no_answer() {
    let (mut resolver, key) = resolver_for(&[NAME]);

    let changed = resolver.handle_answer(answer(&["0.0.0.0", "224.0.0.1"]), now());

    assert_eq!(changed, []);
    assert_eq!(resolver.addresses(&key), []);
}

#[test]
fn a_failed_lookup_keeps_the_addresses() {
    let (mut resolver, key) = resolver_for(&[NAME]);
    resolver.handle_answer(answer(&["192.0.2.7"]), now());

    for result in [Err(io::ErrorKind::NotFound.into()), Ok(Resolved::default())] {
        let changed = resolver.handle_answer(Answer { name: name(NAME), result }, now());

        assert_eq!(changed, []);
        assert_eq!(shown(&resolver, &key), ["192.0.2.7:51840"]);
    }
}

#[test]
fn an_answer_in_another_order_changes_nothing() {
    let (mut resolver, _) = resolver_for(&[NAME]);
    resolver.handle_answer(answer(&["192.0.2.7", "192.0.2.8"]), now());

    assert_eq!(resolver.handle_answer(answer(&["192.0.2.8", "192.0.2.7"]), now()), []);
}

#[test]
fn answers_for_removed_names_are_ignored() {
    let (mut resolver, key) = resolver_for(&[NAME]);
    resolver.configure(&[peer(&["roma.example:51840"])], now());

    assert_eq!(resolver.handle_answer(answer(&["192.0.2.7"]), now()), []);
    assert_eq!(resolver.addresses(&key), []);
}

#[test]
fn a_reload_keeps_resolved_addresses() {
    let (mut resolver, key) = resolver_for(&[NAME]);
    resolver.handle_answer(answer(&["192.0.2.7"]), now());

    resolver.configure(&[peer(&["198.51.100.1:9", NAME])], now());

    assert_eq!(shown(&resolver, &key), ["198.51.100.1:9", "192.0.2.7:51840"]);
}

#[test]
fn a_literal_address_needs_no_lookup() {
    let (resolver, key) = resolver_for(&["192.0.2.1:51840"]);

    assert!(resolver.names.is_empty());
    assert_eq!(shown(&resolver, &key), ["192.0.2.1:51840"]);
}

#[test]
fn missed_probes_and_handshakes_cause_lookups() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let (mut resolver, key) = resolver_for(&[NAME]);
    let start = now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let status = |unanswered| [PeerStatus { unanswered, ..status(key) }];
    resolver.handle_status(&status(0), start);
    resolver.handle_answer(answer(&["192.0.2.7"]), start);
    let asked = |resolver: &Resolver| resolver.lookups.len();
    assert_eq!(asked(&resolver), 1);

    resolver.handle_status(&status(1), after(2));
    assert_eq!(asked(&resolver), 1, "it may yet be answered");
    resolver.handle_status(&status(2), after(3));
    assert_eq!(asked(&resolver), 2);
    resolver.handle_answer(answer(&["192.0.2.7"]), after(3));
    resolver.look_up_now(after(5));
    assert_eq!(asked(&resolver), 3);
}

#[test]
fn the_system_resolver_is_asked() {
    let (mut resolver, key) = resolver_for(&["localhost:51840"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    let answer = runtime.block_on(async {
        resolver.handle_status(&[status(key)], now());
        resolver.next_answer().await
    });

    let addresses = answer.result.unwrap().addresses;
    assert!(!addresses.is_empty());
    assert!(addresses.iter().all(|address| address.ip().is_loopback()), "{addresses:?}");
}

proptest! {
    /// For any sequence of answers, the addresses are those of the last valid one.
    #[test]
    fn the_last_valid_answer_is_used(
        answers in prop::collection::vec(
            prop::option::of(prop::collection::vec(1u8..9, 0..6)), 1..20,
        ),
    ) {
        let (mut resolver, key) = resolver_for(&[NAME]);
        let mut expected = BTreeSet::new();

        for ips in answers {
            let result = match &ips {
                None => Err(io::ErrorKind::TimedOut.into()),
                Some(ips) => Ok(Resolved {
                    addresses: ips.iter().map(|ip| ([192, 0, 2, *ip], 51840).into()).collect(),
                    ttl: None,
                }),
            };
            if let Some(ips) = ips.filter(|ips| !ips.is_empty()) {
                expected = ips.iter().map(|ip| ([192, 0, 2, *ip], 51840).into()).collect();
            }
            let before: BTreeSet<SocketAddr> = resolver.addresses(&key).iter().copied().collect();
            let changed = resolver.handle_answer(Answer { name: name(NAME), result }, now());

            let known: BTreeSet<SocketAddr> = resolver.addresses(&key).iter().copied().collect();
            prop_assert_eq!(&known, &expected);
            prop_assert_eq!(changed.is_empty(), before == known);
        }
    }
}

fn resolver_for(endpoints: &[&str]) -> (Resolver, PublicKey) {
    let peer = peer(endpoints);
    let mut resolver = Resolver::new(CHECK_INTERVAL);
    resolver.configure(std::slice::from_ref(&peer), now());

    (resolver, peer.keys.public_key)
}

fn peer(endpoints: &[&str]) -> Peer {
    let endpoints = endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect();

    Peer { endpoints, ..example::config().peers[0].clone() }
}

fn name(text: &str) -> HostPort {
    text.parse::<Endpoint>().unwrap().name().unwrap().clone()
}

fn answer(ips: &[&str]) -> Answer {
    let addresses = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 51840)).collect();

    Answer { name: name(NAME), result: Ok(Resolved { addresses, ttl: None }) }
}

fn shown(resolver: &Resolver, key: &PublicKey) -> Vec<String> {
    resolver.addresses(key).iter().map(ToString::to_string).collect()
}

fn status(public_key: PublicKey) -> PeerStatus {
    PeerStatus::new("rome", public_key)
}

fn now() -> Instant {
    Instant::now()
}
