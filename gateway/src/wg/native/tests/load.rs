//! How often a peer is answered, and what somebody is told who asks too often.

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
fn a_peer_is_answered_fifty_times_a_second_at_the_most() {
    let mut pair = Pair::new([Native, Native], None);
    let mut answers = 0;
    for _ in 0..200 {
        pair.tick(Duration::from_millis(5));
        answers += pair.deliver(0, &pair.restart(0)[0]).1.len();
    }

    assert!((45..=51).contains(&answers), "{answers}");
}

#[test]
fn under_load_whoever_is_new_is_answered_after_a_while_and_then_with_a_cookie() {
    for engines in [[Native, Native], [Boringtun, Native]] {
        let mut pair = Pair::new(engines, None);
        let mut flood = pair.send(0, &packet(0)).remove(0);
        let macs = MacKeys::new(pair.ends[1].identity.public_key());
        // Whoever floods has no right second MAC, and is at many ports.
        let mut replies = 0;
        for port in 1_000..2_000_u16 {
            flood[50..52].copy_from_slice(&port.to_be_bytes());
            macs.stamp(&mut flood, None);
            let source = SocketAddr::from(([198, 51, 100, 1], port));
            let mut out = TransmitBatch::default();
            let _ = pair.ends[1].identity.identify(&flood, source.into(), &mut out);
            for reply in datagrams(&out) {
                assert!(reply.len() < flood.len());
                replies += 1;
            }
        }
        assert!(replies > 500, "{replies}");

        pair.tick(Duration::from_millis(100));
        assert_eq!(pair.deliver(0, &pair.restart(0)[0]).1.len(), 0, "{engines:?}");
        pair.tick(Duration::from_millis(550));
        let (held, turned_away) = pair.release(1);
        assert_eq!(turned_away, 1, "of the flood, which insists");
        let mut kinds = vec![Message::classify(&held[0])];
        pair.deliver(1, &held[0]);
        for _ in 0..2 {
            pair.tick(Duration::from_millis(30));
            let (_, answers) = pair.deliver(0, &pair.restart(0)[0]);
            pair.deliver(1, &answers[0]);
            kinds.push(Message::classify(&answers[0]));
        }
        let [
            Some(Message::Response { .. }),
            Some(Message::CookieReply { .. }),
            Some(Message::Response { .. }),
        ] = kinds[..]
        else {
            panic!("{engines:?}: new, asked for a cookie, and with it: {kinds:?}");
        };
    }
}

#[test]
fn a_cookie_is_of_use_to_nobody_else() {
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
