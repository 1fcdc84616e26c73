//! Messages that were changed in transit: all of them are dropped, and the original is accepted afterwards.
//!
//! An attacker who knows our public key can compute mac1. So each change is tried twice: with the original mac1, and
//! with a valid one.

use super::*;

/// What a forger does about mac1.
#[derive(Clone, Copy, Debug)]
enum Forger {
    KeepsMac1,
    FixesMac1,
}

const FORGERS: [Forger; 2] = [Forger::KeepsMac1, Forger::FixesMac1];

/// The sender index. It is in clear and not authenticated (whitepaper, section 5.4.2): after a change of it and of
/// mac1 the answer is for a session that does not exist.
const SENDER: std::ops::Range<usize> = 4..8;

#[test]
fn a_changed_initiation_is_dropped() {
    for forger in FORGERS {
        let mut pair = Pair::new([Native, Native], None);
        let initiation = pair.send(0, &packet(0)).remove(0);
        for changed in changes(&initiation, forger, &pair.ends[1].identity.public_key()) {
            pair.tick(Duration::from_millis(5));
            assert_eq!(pair.deliver(0, &changed), (vec![], vec![]), "{forger:?}: {changed:?}");
        }

        assert_eq!(pair.exchange(0, vec![initiation]), [packet(0)], "{forger:?}");
    }
}

#[test]
fn a_changed_response_is_dropped() {
    for forger in FORGERS {
        let mut pair = Pair::new([Native, Native], None);
        let initiation = pair.send(0, &packet(0)).remove(0);
        let response = pair.deliver(0, &initiation).1.remove(0);
        for changed in changes(&response, forger, &pair.ends[0].identity.public_key()) {
            pair.tick(Duration::from_millis(5));
            assert_eq!(pair.deliver(1, &changed), (vec![], vec![]), "{forger:?}: {changed:?}");
            assert!(!pair.ends[0].tunnel.session().is_established, "{forger:?}: {changed:?}");
        }

        assert_eq!(pair.exchange(1, vec![response]), [packet(0)], "{forger:?}");
    }
}

#[test]
fn changed_data_is_dropped() {
    let pair = Pair::established([Native, Native]);
    let data = pair.send(0, &packet(1)).remove(0);

    for changed in flipped(&data).chain(resized(&data)) {
        assert_eq!(pair.deliver(0, &changed), (vec![], vec![]), "{changed:?}");
    }

    assert_eq!(pair.exchange(0, vec![data]), [packet(1)]);
}

#[test]
fn a_changed_cookie_reply_is_dropped() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    let reply = cookie_reply(&pair, &initiation);

    // Not the index, which is in clear: it selects the tunnel, and the tunnel does not check it.
    for changed in flipped(&reply).filter(|changed| changed[SENDER] == reply[SENDER]) {
        assert_eq!(pair.deliver(1, &changed), (vec![], vec![]), "{changed:?}");
    }
    for changed in resized(&reply) {
        assert_eq!(pair.deliver(1, &changed), (vec![], vec![]), "{changed:?}");
    }

    // A tunnel accepts one reply for each message, so it accepted none of those.
    pair.deliver(1, &reply);
    let initiation = again(&mut pair);
    let (_, answers) = pair.deliver(0, &initiation);
    assert!(matches!(Message::classify(&answers[0]), Some(Message::Response { .. })));
}

#[test]
fn under_load_a_changed_mac2_gets_no_response() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    let reply = cookie_reply(&pair, &initiation);
    pair.deliver(1, &reply);
    let initiation = again(&mut pair);
    let mac = initiation.len() - 16..initiation.len();

    for changed in
        flipped(&initiation).filter(|changed| changed[mac.clone()] != initiation[mac.clone()])
    {
        let (_, answers) = pair.deliver(0, &changed);
        let is_answered = answers.iter().any(|answer| answer.len() != 64);
        assert!(!is_answered, "{changed:?}");
    }

    let (_, answers) = pair.deliver(0, &initiation);
    assert!(matches!(Message::classify(&answers[0]), Some(Message::Response { .. })));
}

#[test]
fn eight_thousand_packets_arrive_once_in_any_order() {
    let pair = Pair::established([Native, Native]);
    let sent: Vec<_> = (0..8_000).flat_map(|number| pair.send(0, &packet(number))).collect();
    // A prime stride: far jumps in both directions.
    let order = |stride: usize| (0..sent.len()).map(move |place| place * stride % 8_000);

    let mut arrived = Vec::new();
    for place in order(4_799) {
        arrived.extend(pair.exchange(0, vec![sent[place].clone()]));
    }
    for place in order(1) {
        assert_eq!(pair.deliver(0, &sent[place]).0, Vec::<Vec<u8>>::new(), "replay of {place}");
    }

    arrived.sort_unstable();
    let expected: Vec<_> = (0..8_000).map(packet).collect();
    assert_eq!(arrived, expected);
}

/// All changes of a handshake message to the owner of `receiver` that must be noticed.
fn changes(message: &[u8], forger: Forger, receiver: &PublicKey) -> Vec<Vec<u8>> {
    let macs = MacKeys::new(*receiver);
    let all = flipped(message).chain(resized(message));

    match forger {
        // mac2 is checked under load only.
        Forger::KeepsMac1 => {
            let is_noticed =
                |changed: &Vec<u8>| !changed.starts_with(&message[..message.len() - 16]);
            all.filter(|changed| is_noticed(changed) || changed.len() != message.len()).collect()
        }
        Forger::FixesMac1 => {
            let body = message.len() - 32;
            let is_body = |changed: &Vec<u8>| {
                changed.len() == message.len() && changed[..body] != message[..body]
            };
            all.filter(|changed| is_body(changed) && changed[SENDER] == message[SENDER])
                .map(|mut changed| {
                    macs.stamp(&mut changed, None);
                    changed
                })
                .collect()
        }
    }
}

/// `message` with each of its bits flipped, one at a time.
fn flipped(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..8 * message.len()).map(|bit| {
        let mut changed = message.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    })
}

/// `message` truncated to each length, and with up to 64 more bytes.
fn resized(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let longer = (1..=64).map(move |more| [message, &vec![0; more]].concat());

    (0..message.len()).map(move |len| message[..len].to_vec()).chain(longer)
}

/// The cookie reply to `initiation` of end 0, after enough repetitions to put end 1 under load.
fn cookie_reply(pair: &Pair, initiation: &[u8]) -> Vec<u8> {
    loop {
        let mut out = TransmitBatch::default();
        let _ = pair.ends[1].identity.identify(initiation, pair.ends[0].address.into(), &mut out);
        if let Some(reply) = datagrams(&out).pop() {
            return reply;
        }
    }
}

/// Another initiation of end 0.
fn again(pair: &mut Pair) -> Vec<u8> {
    pair.tick(Duration::from_millis(30));
    let mut out = TransmitBatch::default();
    pair.ends[0].tunnel.restart(pair.ends[1].address.into(), &mut out, pair.now);

    datagrams(&out).remove(0)
}
