mod draining;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const INTERVAL: Duration = Duration::from_secs(2);
const MS: Duration = Duration::from_millis(1);

/// Both ends, and a virtual clock.
struct Pair {
    now: Instant,
    wall_clock: Timestamp,
    client: ConnCheck,
    server: ConnCheck,
}

fn address(end: u8) -> IpAddr {
    IpAddr::from([169, 254, 18, end])
}

fn settings(cluster_id: &str, peer: u8) -> Settings {
    let cluster_id = cluster_id.to_owned();

    Settings {
        cluster_id,
        peer: address(peer),
        port: PORT,
        interval: INTERVAL,
        loss_threshold: 5,
        mtu: 1340,
    }
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();

        Self {
            now,
            wall_clock: "2026-11-21T08:15:30.120000001Z".parse().unwrap(),
            client: ConnCheck::new(settings("milan", 1), now),
            server: ConnCheck::new(settings("rome", 2), now),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.wall_clock += time;
    }

    /// Advances until the client's next PING is due.
    fn next_ping(&mut self, nonce: u64) -> Vec<u8> {
        loop {
            let wait = self.client.next_timeout().saturating_duration_since(self.now);
            self.pass(wait.max(MS));
            if let Some(ping) = self.client.handle_timeout(self.now, self.wall_clock, nonce) {
                return ping;
            }
        }
    }

    /// The server's answer to a datagram of the client.
    fn answer(&mut self, ping: &[u8]) -> Vec<u8> {
        match self.server.handle_datagram(address(2), ping, self.now) {
            Reaction::Answer(pong) => pong,
            other @ (Reaction::Heard | Reaction::Ignored(_)) => panic!("{other:?}"),
        }
    }

    /// The client answers the server's first PING.
    fn connect_server(&mut self) {
        let ping = self.server.handle_timeout(self.now, self.wall_clock, 7).unwrap();
        let Reaction::Answer(pong) = self.client.handle_datagram(address(1), &ping, self.now)
        else {
            panic!("a PING is answered");
        };
        assert_eq!(self.server.handle_datagram(address(2), &pong, self.now), Reaction::Heard);
    }

    fn hear(&mut self, pong: &[u8]) -> Reaction {
        self.client.handle_datagram(address(1), pong, self.now)
    }
}

/// The answer of a stock gateway to a PING: the fields it knows, of the bytes that it reads.
fn stock_answer(ping: &[u8]) -> Vec<u8> {
    let read = ping.len().min(MESSAGE_BYTES_MAX);
    let ping: Value = serde_json::from_slice(&ping[..read]).unwrap();

    json!({"clusterID": ping["clusterID"], "msgType": "PONG", "timeStamp": ping["timeStamp"]})
        .to_string()
        .into_bytes()
}

#[test]
fn a_nodes_ping_is_answered_without_a_check() {
    let ping = json!({"clusterID": "milan-n1", "msgType": "PING", "timeStamp": "2026-08-24T10:00:00.5+02:00"});
    let mut pong = ping.clone();
    pong["msgType"] = json!("PONG");

    let answer = answer(ping.to_string().as_bytes()).unwrap();

    assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), pong);
    assert_eq!(super::answer(&answer), None);
    assert_eq!(super::answer(b"PING"), None);
}

#[test]
fn a_ping_has_a_stock_gateways_fields() {
    let mut pair = Pair::new();

    let ping: Value = serde_json::from_slice(&pair.next_ping(0x1f)).unwrap();

    assert_eq!(pair.client.report().state, State::Connecting);
    assert_eq!(
        ping,
        json!({
            "clusterID": "milan",
            "msgType": "PING",
            "timeStamp": "2026-11-21T08:15:30.121000001Z",
            "nonce": "000000000000001f",
        })
    );
}

#[test]
fn an_answer_repeats_the_question_exactly() {
    let mut pair = Pair::new();
    let question = r#"{"clusterID":"milan","msgType":"PING","timeStamp":"2026-11-21T09:15:30.1+01:00","more":[1]}"#;

    let answer: Value = serde_json::from_slice(&pair.answer(question.as_bytes())).unwrap();

    let expected = json!({
        "clusterID": "milan", "msgType": "PONG", "timeStamp": "2026-11-21T09:15:30.1+01:00",
        "more": [1],
    });
    assert_eq!(answer, expected);
}

#[test]
fn answers_connect_and_silence_loses() {
    let mut pair = Pair::new();

    for nonce in 0..3 {
        let ping = pair.next_ping(nonce);
        let pong = stock_answer(&ping);
        pair.pass(7 * MS);
        assert_eq!(pair.hear(&pong), Reaction::Heard);
    }
    let report = pair.client.report();
    assert_eq!((report.state, report.latency), (State::Connected, Some(7 * MS)));

    let silent_since = pair.now;
    while pair.client.report().state == State::Connected {
        let _ = pair.next_ping(9);
    }
    let silence = pair.now - silent_since;
    assert!((10 * INTERVAL / 2..=6 * INTERVAL).contains(&silence), "{silence:?}");
    assert_eq!(pair.client.report().latency, None);

    let ping = pair.next_ping(10);
    assert_eq!(pair.hear(&stock_answer(&ping)), Reaction::Heard);
    assert_eq!(pair.client.report().state, State::Connected);
}

#[test]
fn without_answers_it_is_lost_at_the_threshold() {
    let mut pair = Pair::new();
    let start = pair.now;

    while pair.client.report().state == State::Connecting {
        pair.pass(MS);
        let _ = pair.client.handle_timeout(pair.now, pair.wall_clock, 0);
    }

    assert_eq!(pair.now - start, 5 * INTERVAL + MS);
    assert_eq!(pair.client.report().state, State::Lost);
}

#[test]
fn our_gateways_must_keep_repeating_nonces() {
    let mut pair = Pair::new();
    let ping = pair.next_ping(1);
    let pong = pair.answer(&ping);
    assert_eq!(pair.hear(&pong), Reaction::Heard);

    let ping = pair.next_ping(2);
    let wrong = String::from_utf8(pair.answer(&ping)).unwrap();
    let wrong = wrong.replace("0000000000000002", "0000000000000003");

    assert_eq!(pair.hear(wrong.as_bytes()), Reaction::Ignored(Ignored::WrongNonce));
    assert_eq!(pair.hear(&stock_answer(&ping)), Reaction::Ignored(Ignored::WrongNonce));
    let right = pair.answer(&ping);
    assert_eq!(pair.hear(&right), Reaction::Heard);
}

#[test]
fn unexpected_pongs_are_ignored() {
    let mut pair = Pair::new();
    let ping = pair.next_ping(1);
    let pong = stock_answer(&ping);
    let before = pair.client.report();
    let other_source = address(9);
    let ignored = |why| Reaction::Ignored(why);
    let other_cluster = String::from_utf8(pong.clone()).unwrap().replace("milan", "oslo");
    let other_time = String::from_utf8(pong.clone()).unwrap().replace("2026", "2027");

    let foreign = pair.client.handle_datagram(other_source, &pong, pair.now);
    assert_eq!(foreign, ignored(Ignored::ForeignSource));
    assert_eq!(pair.hear(other_cluster.as_bytes()), ignored(Ignored::OtherCluster));
    assert_eq!(pair.hear(other_time.as_bytes()), ignored(Ignored::Unexpected));
    assert_eq!(pair.hear(b"{}"), ignored(Ignored::Malformed));
    assert_eq!(pair.hear(&[b' '; MESSAGE_BYTES_MAX + 1]), ignored(Ignored::Malformed));
    assert_eq!(pair.client.report(), before);

    assert_eq!(pair.hear(&pong), Reaction::Heard);
    assert_eq!(pair.hear(&pong), ignored(Ignored::Unexpected));
}

#[test]
fn an_overtaken_answer_changes_neither_loss_nor_latency() {
    let mut pair = Pair::new();
    let first = pair.next_ping(1);
    let second = pair.next_ping(2);
    pair.pass(3 * MS);

    assert_eq!(pair.hear(&stock_answer(&second)), Reaction::Heard);
    assert_eq!(pair.hear(&stock_answer(&first)), Reaction::Heard);
    let _ = pair.next_ping(3);

    let report = pair.client.report();
    assert_eq!((report.latency, report.loss), (Some(3 * MS), 0.0));
}

#[test]
fn loss_and_jitter_follow_the_last_probes() {
    let mut pair = Pair::new();

    for nonce in 0..200 {
        let ping = pair.next_ping(nonce);
        pair.pass(if nonce % 2 == 0 { 4 * MS } else { 8 * MS });
        if nonce % 4 != 3 {
            let pong = pair.answer(&ping);
            assert_eq!(pair.hear(&pong), Reaction::Heard);
        }
    }
    let _ = pair.next_ping(200);

    let report = pair.client.report();
    assert!((report.loss - 0.25).abs() < 0.04, "{report:?}");
    // Of three answers in a row two differ by 4 ms from the one before.
    assert!((2 * MS..3 * MS).contains(&report.jitter), "{report:?}");
}

#[test]
fn after_a_sleep_one_ping_is_sent() {
    let mut pair = Pair::new();

    pair.pass(100 * INTERVAL);

    assert!(pair.client.handle_timeout(pair.now, pair.wall_clock, 0).is_some());
    assert!(pair.client.handle_timeout(pair.now, pair.wall_clock, 0).is_none());
}

proptest! {
    #[test]
    fn garbage_never_panics_and_never_connects(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut in 0_usize..120,
        flipped in 0_usize..120,
    ) {
        let mut pair = Pair::new();
        let mut ping = pair.next_ping(7);
        let _ = pair.hear(&bytes);
        ping.truncate(cut.max(1));
        let place = flipped % ping.len();
        ping[place] ^= 1;
        let _ = pair.hear(&ping);

        prop_assert_eq!(pair.client.report().state, State::Connecting);
    }

    /// On any network loss is a share, and only probes that were sent are answered.
    #[test]
    fn loss_is_a_share_on_any_network(
        fates in proptest::collection::vec((any::<bool>(), 0_u32..5_000, any::<bool>()), 1..150),
    ) {
        let mut pair = Pair::new();
        let mut late = Vec::new();
        for (nonce, (arrives, delay_ms, is_late)) in (0_u64..).zip(fates) {
            let ping = pair.next_ping(nonce);
            let pong = pair.answer(&ping);
            pair.pass(delay_ms * MS);
            match (arrives, is_late) {
                (false, _) => {}
                (true, true) => late.push(pong),
                (true, false) => {
                    prop_assert_eq!(pair.hear(&pong), Reaction::Heard);
                    for pong in late.drain(..) {
                        let reaction = pair.hear(&pong);
                        prop_assert!(matches!(reaction, Reaction::Heard | Reaction::Ignored(Ignored::Unexpected)));
                    }
                }
            }
            let report = pair.client.report();
            prop_assert!((0.0..=1.0).contains(&report.loss));
            prop_assert_eq!(report.latency.is_some(), report.state == State::Connected);
        }
    }
}

impl Pair {
    /// Lets `time` pass. The path loses datagrams of more than `passes` bytes, with their headers. Returns the longest that
    /// the client sent.
    fn run(
        &mut self,
        time: Duration,
        passes: usize,
        mut answer: impl FnMut(&mut Self, &[u8]) -> Vec<u8>,
    ) -> usize {
        let end = self.now + time;
        let (mut number, mut longest) = (0, 0);
        while self.now < end {
            let wait = self.client.next_timeout().saturating_duration_since(self.now);
            self.pass(wait.max(MS));
            let ping = self.client.handle_timeout(self.now, self.wall_clock, number);
            let nonce = || {
                number += 1;
                number
            };
            let sized = self.client.sized_pings(self.now, self.wall_clock, nonce);
            number += 1;
            self.pass(10 * MS);
            for ping in ping.into_iter().chain(sized) {
                longest = longest.max(ping.len() + 28);
                if ping.len() + 28 <= passes {
                    let pong = answer(self, &ping);
                    self.hear(&pong);
                }
            }
        }

        longest
    }
}

#[test]
fn a_path_mtu_is_reported_with_either_gateway() {
    let ours: fn(&mut Pair, &[u8]) -> Vec<u8> = Pair::answer;
    for (answer, is_strait) in [(ours, true), (|_, ping| stock_answer(ping), false)] {
        let mut pair = Pair::new();
        for (passes, path_mtu) in [(9000, 1340), (1300, 1296), (700, 688), (9000, 1340)] {
            pair.run(Duration::from_secs(10), passes, answer);

            let report = pair.client.report();
            assert_eq!((report.path_mtu, report.is_strait), (Some(path_mtu), is_strait));
        }

        pair.run(Duration::from_secs(30), 0, answer);
        assert_eq!(pair.client.report().path_mtu, None);
    }
}

#[test]
fn unanswered_padding_tells_nothing_of_the_path() {
    let mut pair = Pair::new();

    let longest = pair.run(Duration::from_secs(30), 500, |_, ping| stock_answer(ping));

    let report = pair.client.report();
    assert_eq!((report.state, report.path_mtu, longest), (State::Connected, None, 1340));
}

#[test]
fn a_sized_answer_counts_for_its_ping_only() {
    let mut pair = Pair::new();
    let ping = pair.next_ping(1);
    assert_eq!(pair.hear(&stock_answer(&ping)), Reaction::Heard);
    let sized = pair.client.sized_pings(pair.now, pair.wall_clock, || 2);
    let [small, large] = &sized[..] else { panic!("{sized:?}") };

    assert_eq!(pair.hear(&stock_answer(small)), Reaction::Heard);
    assert_eq!(pair.client.report().path_mtu, None);
    let again = pair.hear(&stock_answer(small));
    assert_eq!(again, Reaction::Ignored(Ignored::Unexpected));
    assert_eq!(pair.hear(&stock_answer(large)), Reaction::Heard);
    assert_eq!(pair.client.report().path_mtu, Some(1340));
}

#[test]
fn reported_damage_makes_gso_harmful() {
    let mut pair = Pair::new();
    pair.connect_server();
    let mut harm = Vec::new();

    for (nonce, damaged) in (0..).zip([5, 5, 50, 55, 500]) {
        pair.server.handle_traffic(damage(damaged), pair.now);
        let ping = pair.next_ping(nonce);
        let pong = pair.answer(&ping);
        assert_eq!(pair.hear(&pong), Reaction::Heard);
        harm.push(pair.client.report().is_gso_harmful);
    }

    // The last report has damage of single datagrams.
    assert_eq!(harm, [false, false, true, true, false]);
}

#[test]
fn only_our_gateways_get_reports_of_damage() {
    let mut pair = Pair::new();
    pair.connect_server();
    pair.server.handle_traffic(damage(2), pair.now);
    pair.server.handle_traffic(damage(9), pair.now);
    let stock =
        json!({"clusterID": "milan", "msgType": "PING", "timeStamp": "2026-11-21T08:15:30Z"});

    let answers = [pair.next_ping(1), stock.to_string().into_bytes()]
        .map(|ping| serde_json::from_slice::<Value>(&pair.answer(&ping)).unwrap());

    assert_eq!(answers.map(|answer| answer["damaged"].as_u64()), [Some(7), None]);
}

/// So many datagrams of the other end arrived damaged.
fn damage(damaged_datagrams: u64) -> Traffic {
    Traffic { damaged_datagrams, ..Traffic::default() }
}

#[test]
fn an_answer_has_no_padding() {
    let mut pair = Pair::new();
    let ping = Message::ping("milan", "now", 7, None).to_padded_bytes(9000);

    assert_eq!(ping.len(), 9000);
    assert!(pair.answer(&ping).len() < 200);
}
