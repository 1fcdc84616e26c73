//! What a session may at the most, what an attacker gets at the most, and what is left of a key.

use x25519_dalek::StaticSecret;

use super::super::handshake::Session;
use super::super::keypair::{HEADER_LEN, Keypair};
use super::super::noise::{LEN, Secret, TAG_LEN, Transcript, public};
use super::super::sessions::Sessions;
use super::super::timers::News;
use super::*;

/// As the whitepaper has it, in section 6.1. The window is RFC 6479's.
const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - 8_192;

const HAS_SENT: News = News { has_sent: true, has_received: false };

#[test]
fn after_so_many_messages_another_session_is_due_and_then_this_one_is_over() {
    let now = start();
    let sessions = Sessions::default().granted(keypair(now));
    let current = || sessions.usable(now);
    let is_due = || sessions.is_succession_due(HAS_SENT, now);

    current().unwrap().reserve(REKEY_AFTER_MESSAGES);
    assert!(!is_due());
    current().unwrap().reserve(1);
    assert!(is_due(), "one more than that");
    assert!(!sessions.is_succession_due(News::default(), now), "nobody sends anything");

    current().unwrap().reserve(REJECT_AFTER_MESSAGES - REKEY_AFTER_MESSAGES - 2);
    current().unwrap().reserve(1);
    assert!(current().is_none(), "there is no counter left to send with");
    assert!(Keypair::allows(REJECT_AFTER_MESSAGES - 1));
    assert!(!Keypair::allows(REJECT_AFTER_MESSAGES));
}

/// No timer has to run for that.
#[test]
fn after_180_seconds_a_session_neither_sends_nor_receives() {
    let mut pair = Pair::established([Native, Native]);
    pair.now += Duration::from_secs(180) - Duration::from_millis(1);
    let [in_time, late] = [1, 2].map(|number| pair.send(0, &packet(number)).remove(0));
    assert_eq!(pair.deliver(0, &in_time).0, [packet(1)]);

    pair.now += Duration::from_millis(1);

    assert_eq!(pair.deliver(0, &late).0, Vec::<Vec<u8>>::new());
    let sent = pair.send(0, &packet(3));
    assert_eq!(Message::classify(&sent[0]), Some(Message::Initiation), "and the packet waits");
}

/// Otherwise two ends that began at once would go on doing so.
#[test]
fn an_initiation_is_repeated_after_five_seconds_and_at_random_up_to_a_third_more() {
    let mut pair = Pair::new([Native, Native], None);
    pair.send(0, &packet(0));
    let (mut last, mut gaps) = (pair.now, Vec::new());
    while gaps.len() < 15 {
        pair.tick(Duration::from_millis(2));
        if !pair.timers(0).is_empty() {
            gaps.push((pair.now - last).as_millis());
            last = pair.now;
        }
    }

    assert!(gaps.iter().all(|gap| (5_000..=5_235).contains(gap)), "{gaps:?}");
    let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
    assert!(most - least > 100, "{gaps:?}");
}

/// Nobody can have us send somebody else more than they send us.
#[test]
fn whatever_is_answered_is_answered_by_less() {
    let pair = Pair::new([Native, Native], None);
    let initiation = pair.restart(0).remove(0);
    let response = pair.deliver(0, &initiation).1.remove(0);
    let mut kinds = [0; 5];

    for port in 1_000..3_000 {
        let source = SocketAddr::from(([198, 51, 100, 1], port));
        let [to_initiation, to_response] = &mut [(), ()].map(|()| TransmitBatch::default());
        let _ = pair.ends[1].identity.identify(&initiation, source.into(), to_initiation);
        let _ =
            pair.ends[0].tunnel.handle_handshake(&response, source.into(), to_response, pair.now);
        for (asked, out) in [(&initiation, to_initiation), (&response, to_response)] {
            let answers = datagrams(out);
            let answered: usize = answers.iter().map(Vec::len).sum();
            assert!(answered < asked.len(), "{answered} of {}", asked.len());
            assert!(answers.len() <= 1, "{} answers to one message", answers.len());
            for answer in answers {
                kinds[usize::from(answer[0])] += 1;
            }
        }
    }

    assert!(response.len() < initiation.len());
    let [_, _, _, cookies, keepalives] = kinds;
    assert!(cookies > 1_000 && keepalives == 1, "{kinds:?}: cookies, and what ends a handshake");
}

/// The library does not wipe keys, so another one takes the place of each.
#[test]
fn nothing_is_left_of_the_keys_of_a_session_that_is_dropped() {
    let now = start();
    let mut used = keypair(now);
    let empty = Keypair::new(&session([0; LEN]), true, Lanes::detect(), now);
    let seal = |keypair: &Keypair| {
        let mut room = [7; HEADER_LEN + 32 + TAG_LEN];
        keypair.seal(3, &mut room);
        room
    };
    let sealed = seal(&used);
    assert_ne!(sealed, seal(&empty));

    used.zeroize();

    assert_eq!(seal(&used), seal(&empty));
    let (content, tag) = sealed[HEADER_LEN..].split_at(32);
    assert!(!used.open(3, &mut content.to_vec(), tag.try_into().unwrap()));
}

/// Whoever else holds it, and for however long.
#[test]
fn a_tunnel_that_is_closed_has_let_go_of_every_key() {
    let now = start();
    let identity = NativeIdentity::new(&PrivateKey::generate(), surroundings(now, 3));
    let peer = PeerKeys {
        public_key: PrivateKey::generate().public_key(),
        preshared_key: Some(PresharedKey::from_bytes(&[9; LEN]).unwrap()),
    };
    let tunnel = identity.tunnel(&peer, Slot::from(1));
    let ours = Arc::downgrade(&identity.shared);

    tunnel.close();
    drop(identity);

    assert!(ours.upgrade().is_none(), "with it are the peer's");
}

#[test]
fn whoever_moves_what_a_tunnel_knows_copies_no_secret() {
    let own = Own::new(StaticSecret::from([5; LEN]));
    let peer = Acquaintance::new(own.public, &[7; LEN], &[8; LEN]);
    let addresses = |own: &Own, peer: &Acquaintance| {
        let [static_static, preshared] = [&peer.static_static, &peer.preshared];
        [own.private.as_bytes().as_ptr(), static_static.as_ptr(), preshared.as_ptr()]
    };
    let before = addresses(&own, &peer);

    let moved = Arc::new((own, peer));

    assert_eq!(addresses(&moved.0, &moved.1), before);
}

/// Whoever sends a point of low order knows what we will have in common with it: zeros.
#[test]
fn an_ephemeral_key_of_low_order_is_refused() {
    let now = start();
    let own = PrivateKey::generate();
    let responder = NativeIdentity::new(&PrivateKey::generate(), surroundings(now, 1));
    let ephemeral = StaticSecret::from([5; LEN]);
    let to = responder.public_key();
    let source = SocketAddr::from(([192, 0, 2, 1], 1));
    let ask = |point, common: &Secret| {
        let mut out = TransmitBatch::default();
        responder.identify(&initiation(&own, to, &point, common), source.into(), &mut out)
    };

    let honest = ask(public(&ephemeral), &shared(&ephemeral, &to).unwrap());
    let clever = ask(PublicKey::from_bytes([0; LEN]), &Secret::default());

    assert_eq!(honest, Ok(Introduction::By(own.public_key())));
    assert_eq!(clever, Err(DropReason::Unauthenticated));
}

/// An initiation from `own` to the owner of `to`, with any point for which there is something in common.
fn initiation(
    own: &PrivateKey,
    to: PublicKey,
    point: &PublicKey,
    common: &Secret,
) -> [u8; INITIATION_LEN] {
    let mut message = [0; INITIATION_LEN];
    message[0] = 1;
    message[8..40].copy_from_slice(point.as_bytes());
    let mut transcript = Transcript::new(to);
    transcript.mix_ephemeral(point);
    let key = transcript.mix_shared(common);
    transcript.seal(&key, own.public_key().as_bytes(), &mut message[40..88]);
    let key = transcript.mix_shared(&shared(&own.to_secret(), &to).unwrap());
    transcript.seal(&key, &[0; 12], &mut message[88..116]);
    MacKeys::new(to).stamp(&mut message, None);

    message
}

/// That of an initiator.
fn keypair(now: Instant) -> Keypair {
    Keypair::new(&session([9; LEN]), true, Lanes::detect(), now)
}

fn session(key: [u8; LEN]) -> Session {
    let key = Secret::new(key);

    Session { local_index: 1, remote_index: 2, sending: key.clone(), receiving: key }
}
