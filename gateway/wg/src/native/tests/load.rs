//! How often a peer is answered, and cookies.

use super::*;

#[test]
fn an_initiation_is_answered_once() {
    let mut pair = Pair::new([Native, Native], None);
    let initiation = pair.send(0, &packet(0)).remove(0);
    assert_eq!(pair.deliver(0, &initiation).1.len(), 1);

    pair.tick(Duration::from_secs(1));
    assert_eq!(pair.deliver(0, &initiation).1.len(), 0);
}

#[test]
fn a_peer_is_answered_fifty_times_a_second() {
    let mut pair = Pair::new([Native, Native], None);
    let mut answers = 0;
    for _ in 0..200 {
        pair.tick(Duration::from_millis(5));
        answers += pair.deliver(0, &pair.restart(0)[0]).1.len();
    }

    assert!((45..=51).contains(&answers), "{answers}");
}

/// With its second initiation, which it sends after five seconds, although all messages of the flood have its
/// address.
#[test]
fn under_load_a_peer_connects_within_six_seconds() {
    for engines in [[Native, Native], [Boringtun, Native]] {
        let mut pair = Pair::new(engines, None);
        let mut flood = pair.send(0, &packet(0)).remove(0);
        let macs = MacKeys::new(pair.ends[1].identity.public_key());
        let ip = pair.ends[0].address.ip();
        let mut send_flood = |pair: &Pair| {
            for port in 1_000..4_000_u16 {
                flood[50..52].copy_from_slice(&port.to_be_bytes());
                macs.stamp(&mut flood, None);
                let source = SocketAddr::from((ip, port));
                let mut out = TransmitBatch::default();
                let _ = pair.ends[1].identity.identify(&flood, source.into(), &mut out);
                assert!(datagrams(&out).iter().all(|reply| reply.len() < flood.len()));
            }
        };

        let mut kinds = Vec::new();
        for tick in 0..=52 {
            pair.tick(Duration::from_millis(100));
            send_flood(&pair);
            if tick == 1 || tick == 52 {
                let (_, answers) = pair.deliver(0, &pair.restart(0)[0]);
                pair.deliver(1, &answers[0]);
                kinds.push(Message::classify(&answers[0]));
            }
        }

        let [Some(Message::CookieReply { .. }), Some(Message::Response { .. })] = kinds[..] else {
            panic!("{engines:?}: {kinds:?}");
        };
    }
}

/// The peer uses it five seconds after it was sent.
#[test]
fn a_cookie_outlives_its_secret() {
    let pair = Pair::new([Native, Native], None);
    let mut mint = CookieMint::new();
    let own = MacKeys::new(pair.ends[1].identity.public_key());
    let source = pair.ends[0].address;
    let mut message = pair.send(0, &packet(0)).remove(0);
    let second = Duration::from_secs(1);
    let refresh = |mint: &mut CookieMint, seconds| {
        mint.refresh(pair.now + second * seconds, |bytes| {
            bytes.fill(u8::try_from(seconds).unwrap())
        });
    };

    refresh(&mut mint, 1);
    refresh(&mut mint, 120);
    let reply = mint.reply(&own, &message, source, &[5; COOKIE_NONCE_LEN]).unwrap();
    let mac = message[116..132].try_into().unwrap();
    own.stamp(&mut message, Some(&own.open_cookie(&reply, &mac).unwrap()));
    for (seconds, is_valid) in [(121, true), (126, true), (132, false)] {
        refresh(&mut mint, seconds);
        assert_eq!(mint.check(&message, source), is_valid, "{seconds}");
    }
}

#[test]
fn a_cookie_is_bound_to_address_and_port() {
    let pair = Pair::new([Native, Native], None);
    let mut mint = CookieMint::new();
    mint.refresh(pair.now, |bytes| bytes.fill(3));
    let mut message = pair.send(0, &packet(0)).remove(0);
    let own = MacKeys::new(pair.ends[1].identity.public_key());
    let source = pair.ends[0].address;
    let reply = mint.reply(&own, &message, source, &[5; COOKIE_NONCE_LEN]).unwrap();
    let mac = message[116..132].try_into().unwrap();
    let cookie = own.open_cookie(&reply, &mac).unwrap();
    own.stamp(&mut message, Some(&cookie));

    assert!(mint.check(&message, source));
    assert!(!mint.check(&message, SocketAddr::new(source.ip(), 9)), "another port");
    assert!(!mint.check(&message, SocketAddr::from(([192, 0, 2, 9], source.port()))));
    assert!(own.open_cookie(&reply, &[0; 16]).is_err(), "for another message");
}
