//! Messages that were changed on their way: none of them counts, and the true one still does afterwards.
//!
//! Whoever knows our public key can make the first MAC, so that everything behind it is tried twice: with
//! the MAC that was sent, and with one that fits what was changed.

use super::*;

/// What a forger does about the first MAC.
#[derive(Clone, Copy, Debug)]
enum Forger {
    LeavesIt,
    MakesIt,
}

const FORGERS: [Forger; 2] = [Forger::LeavesIt, Forger::MakesIt];

/// Type, reserved bytes and sender index. The index is in clear and no key covers it (whitepaper, section
/// 5.4.2): who changes it as well as the MAC has the answer sent to a session that there is not.
const SENDER: std::ops::Range<usize> = 4..8;

#[test]
fn no_bit_of_an_initiation_may_be_another_one() {
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
fn no_bit_of_a_response_may_be_another_one() {
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
fn no_bit_of_data_may_be_another_one() {
    let pair = Pair::established([Native, Native]);
    let data = pair.send(0, &packet(1)).remove(0);

    for changed in flipped(&data).chain(resized(&data)) {
        assert_eq!(pair.deliver(0, &changed), (vec![], vec![]), "{changed:?}");
    }

    assert_eq!(pair.exchange(0, vec![data]), [packet(1)]);
}

#[test]
fn no_bit_of_a_cookie_reply_may_be_another_one() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    let reply = cookie_reply(&pair, &initiation);

    // Whose handshake it is for says the index, which is in clear: the gateway looks for it, and the tunnel
    // that it finds has only the cookie to go by.
    for changed in flipped(&reply).filter(|changed| changed[SENDER] == reply[SENDER]) {
        assert_eq!(pair.deliver(1, &changed), (vec![], vec![]), "{changed:?}");
    }
    for changed in resized(&reply) {
        assert_eq!(pair.deliver(1, &changed), (vec![], vec![]), "{changed:?}");
    }

    // One reply is believed, so none of those was.
    pair.deliver(1, &reply);
    let initiation = again(&mut pair);
    let (_, answers) = pair.deliver(0, &initiation);
    assert!(matches!(Message::classify(&answers[0]), Some(Message::Response { .. })));
}

#[test]
fn under_load_no_bit_of_the_second_mac_may_be_another_one() {
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
fn eight_thousand_packets_may_arrive_in_any_order_and_none_twice() {
    let pair = Pair::established([Native, Native]);
    let sent: Vec<_> = (0..8_000).flat_map(|number| pair.send(0, &packet(number))).collect();
    // Every order that a prime stride makes: far jumps both ways.
    let order = |stride: usize| (0..sent.len()).map(move |place| place * stride % 8_000);

    let mut arrived = Vec::new();
    for place in order(4_799) {
        arrived.extend(pair.exchange(0, vec![sent[place].clone()]));
    }
    for place in order(1) {
        assert_eq!(pair.deliver(0, &sent[place]).0, Vec::<Vec<u8>>::new(), "number {place} again");
    }

    arrived.sort_unstable();
    let expected: Vec<_> = (0..8_000).map(packet).collect();
    assert_eq!(arrived, expected);
}

/// Every way to change a message of a handshake to the owner of `receiver`.
fn changes(message: &[u8], forger: Forger, receiver: &PublicKey) -> Vec<Vec<u8>> {
    let macs = MacKeys::new(*receiver);
    let all = flipped(message).chain(resized(message));

    match forger {
        // What the second MAC is matters under load only.
        Forger::LeavesIt => {
            let is_noticed =
                |changed: &Vec<u8>| !changed.starts_with(&message[..message.len() - 16]);
            all.filter(|changed| is_noticed(changed) || changed.len() != message.len()).collect()
        }
        Forger::MakesIt => {
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

/// `message` with each of its bits the other way, one at a time.
fn flipped(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..8 * message.len()).map(|bit| {
        let mut changed = message.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    })
}

/// `message` cut off at each length, and with up to 64 bytes behind it.
fn resized(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let longer = (1..=64).map(move |more| [message, &vec![0; more]].concat());

    (0..message.len()).map(move |len| message[..len].to_vec()).chain(longer)
}

/// A cookie in answer to `initiation` of end 0, which end 1 would not send without a flood.
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
