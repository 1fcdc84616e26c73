//! What the ends of a connection say of their own end.

use super::*;

/// What makes a [`Pair`] whose ends have heard PINGs of each other.
fn acquainted() -> Pair {
    let mut pair = Pair::new();
    pair.connect_server();
    let ping = pair.next_ping(1);
    let pong = pair.answer(&ping);
    assert_eq!(pair.hear(&pong), Reaction::Heard);

    pair
}

impl Pair {
    /// The PINGs of the server that is draining, and when they leave, until it sends another one.
    fn draining_pings(&mut self, time: Duration) -> Vec<(Duration, Vec<u8>)> {
        let start = self.now;
        let mut pings = Vec::new();
        while self.now < start + time {
            if self.now >= self.server.next_timeout() {
                let ping = self.server.draining_ping(self.now, self.wall_clock, || 90);
                pings.extend(ping.map(|ping| (self.now - start, ping)));
            }
            self.pass(MS);
        }

        pings
    }

    fn is_server_draining(&self) -> bool {
        self.client.report().is_draining
    }
}

/// A message without its mark, as one of a former or a later time.
fn unmarked(message: &[u8]) -> Vec<u8> {
    let mut message: Value = serde_json::from_slice(message).unwrap();
    message.as_object_mut().unwrap().remove("draining").expect("it has the mark");

    message.to_string().into_bytes()
}

#[test]
fn draining_is_announced_by_three_pings() {
    let mut pair = acquainted();
    assert!(pair.draining_pings(200 * MS).is_empty());

    pair.server.drain(pair.now);
    let pings = pair.draining_pings(400 * MS);

    let times: Vec<_> = pings.iter().map(|(at, _)| at.as_millis()).collect();
    assert_eq!(times, [0, 50, 100]);
    for (_, ping) in pings {
        let mut other = pair.client.clone();
        assert!(!other.report().is_draining);
        let reaction = other.handle_datagram(address(1), &ping, pair.now);
        assert!(matches!(reaction, Reaction::Answer(_)), "{reaction:?}");
        assert!(other.report().is_draining, "each alone is enough");
    }
}

#[test]
fn any_message_without_mark_ends_draining() {
    let mut pair = acquainted();
    pair.server.drain(pair.now);
    let (_, marked) = pair.draining_pings(MS).remove(0);
    pair.client.handle_datagram(address(1), &marked, pair.now);
    assert!(pair.is_server_draining());

    pair.client.handle_datagram(address(1), &unmarked(&marked), pair.now);
    assert!(!pair.is_server_draining());

    let ping = pair.next_ping(2);
    let pong = pair.answer(&ping);
    pair.hear(&pong);
    assert!(pair.is_server_draining(), "an answer has the mark too");
    let ping = pair.next_ping(3);
    let pong = unmarked(&pair.answer(&ping));
    assert_eq!(pair.hear(&pong), Reaction::Heard);
    assert!(!pair.is_server_draining());
}

#[test]
fn a_mark_needs_our_nonce_and_source() {
    let mut pair = acquainted();
    pair.server.drain(pair.now);
    let (_, marked) = pair.draining_pings(MS).remove(0);
    let guessed = String::from_utf8(marked.clone()).unwrap();
    let guessed =
        guessed.replace("\"draining\":\"0000000000000001\"", "\"draining\":\"0000000000000002\"");

    pair.client.handle_datagram(address(1), guessed.as_bytes(), pair.now);
    pair.client.handle_datagram(address(9), &marked, pair.now);
    assert!(!pair.is_server_draining());

    pair.client.handle_datagram(address(1), &marked, pair.now);
    assert!(pair.is_server_draining());
}

/// It repeats every field that it does not know.
#[test]
fn an_older_release_returns_no_mark() {
    let mut pair = acquainted();
    pair.client.drain(pair.now);
    let ping = pair.next_ping(5);
    let mut pong: Value = serde_json::from_slice(&ping).unwrap();
    assert_eq!(pong["draining"], "0000000000000007", "the nonce of the server");
    pong["msgType"] = json!("PONG");

    assert_eq!(pair.hear(pong.to_string().as_bytes()), Reaction::Heard);
    assert!(!pair.is_server_draining());
}

#[test]
fn a_stock_gateway_gets_no_mark() {
    let mut pair = Pair::new();
    let ping = pair.next_ping(1);
    assert_eq!(pair.hear(&stock_answer(&ping)), Reaction::Heard);
    let question =
        json!({"clusterID": "milan", "msgType": "PING", "timeStamp": "2026-11-21T08:15:30Z"});
    pair.client.drain(pair.now);

    let Reaction::Answer(answer) =
        pair.client.handle_datagram(address(1), question.to_string().as_bytes(), pair.now)
    else {
        panic!("a PING is answered");
    };
    let ping = pair.client.draining_ping(pair.now, pair.wall_clock, || 2);
    let messages = [answer, pair.next_ping(3)].map(|message| {
        let message: Value = serde_json::from_slice(&message).unwrap();
        message.get("draining").cloned()
    });

    assert_eq!((ping, messages), (None, [None, None]));
}

#[test]
fn a_lost_end_no_longer_drains() {
    let mut pair = acquainted();
    pair.server.drain(pair.now);
    let (_, marked) = pair.draining_pings(MS).remove(0);
    pair.client.handle_datagram(address(1), &marked, pair.now);
    assert!(pair.is_server_draining());

    while pair.client.report().state != State::Lost {
        let _ = pair.next_ping(9);
    }

    assert!(!pair.is_server_draining());
}

#[test]
fn two_missed_probes_are_suspicious_until_answered() {
    let mut pair = acquainted();
    let mut suspected = Vec::new();
    for nonce in 2..6 {
        let _ = pair.next_ping(nonce);
        suspected.push(pair.client.report().is_suspected);
    }
    assert_eq!(suspected, [false, false, true, true]);

    let ping = pair.next_ping(6);
    let pong = pair.answer(&ping);
    assert_eq!(pair.hear(&pong), Reaction::Heard);
    assert!(!pair.client.report().is_suspected);
}
