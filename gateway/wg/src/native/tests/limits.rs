//! Limits of a session, of what an attacker can obtain, and of the life of keys.

use x25519_dalek::StaticSecret;

use super::super::handshake::Session;
use super::super::keypair::Keypair;
use super::super::noise::{LEN, Secret, Transcript, public};
use super::super::sessions::Sessions;
use super::super::timers::Activity;
use super::*;

/// Whitepaper, section 6.1, with the replay window of RFC 6479.
const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - 8_192;

const HAS_SENT: Activity = Activity { has_sent: true, has_received: false };

#[test]
fn message_limits_trigger_rekey_and_reject() {
    let now = start();
    let sessions = Sessions::default().with_current(keypair(now));
    let current = || sessions.usable(now);
    let is_due = || sessions.is_rekey_due(HAS_SENT, now);

    current().unwrap().reserve(REKEY_AFTER_MESSAGES);
    assert!(!is_due());
    current().unwrap().reserve(1);
    assert!(is_due(), "one more than REKEY_AFTER_MESSAGES");
    assert!(!sessions.is_rekey_due(Activity::default(), now), "nothing is sent");

    current().unwrap().reserve(REJECT_AFTER_MESSAGES - REKEY_AFTER_MESSAGES - 2);
    current().unwrap().reserve(1);
    assert!(current().is_none(), "no counter is left");
    assert!(Keypair::allows(REJECT_AFTER_MESSAGES - 1));
    assert!(!Keypair::allows(REJECT_AFTER_MESSAGES));
}

/// Also without a timeout.
#[test]
fn a_session_is_rejected_after_180_seconds() {
    let mut pair = Pair::established([Native, Native]);
    pair.now += Duration::from_secs(180) - Duration::from_millis(1);
    let [in_time, late] = [1, 2].map(|number| pair.send(0, &packet(number)).remove(0));
    assert_eq!(pair.deliver(0, &in_time).0, [packet(1)]);

    pair.now += Duration::from_millis(1);

    assert_eq!(pair.deliver(0, &late).0, Vec::<Vec<u8>>::new());
    let sent = pair.send(0, &packet(3));
    assert_eq!(Message::classify(&sent[0]), Some(Message::Initiation), "the packet is staged");
}

/// Otherwise two ends that initiate together would do so again and again.
#[test]
fn repeated_initiations_have_a_jitter() {
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

/// No amplification: an attacker with a forged source cannot make us send more than it sends.
#[test]
fn answers_are_shorter_than_their_messages() {
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
    assert!(
        cookies > 1_000 && keepalives == 1,
        "{kinds:?}: cookies, and one keepalive to confirm the session"
    );
}

/// Also while other references to it exist.
#[test]
fn a_closed_tunnel_holds_no_key() {
    let now = start();
    let identity = NativeIdentity::new(&PrivateKey::generate(), environment(now, 3));
    let peer = PeerKeys {
        public_key: PrivateKey::generate().public_key(),
        preshared_key: Some(PresharedKey::from_bytes(&[9; LEN]).unwrap()),
    };
    let tunnel = identity.tunnel(&peer, IndexSlot::from(1));
    let ours = Arc::downgrade(&identity.shared);

    tunnel.close();
    drop(identity);

    assert!(ours.upgrade().is_none(), "the state holds the keys of the peer too");
}

#[test]
fn moving_static_keys_copies_no_secret() {
    let own = StaticKeypair::new(StaticSecret::from([5; LEN]));
    let peer = PeerStatics::new(own.public, &[7; LEN], &[8; LEN]);
    let addresses = |own: &StaticKeypair, peer: &PeerStatics| {
        let [static_static, preshared] = [&peer.static_static, &peer.preshared];
        [own.private.as_bytes().as_ptr(), static_static.as_ptr(), preshared.as_ptr()]
    };
    let before = addresses(&own, &peer);

    let moved = Arc::new((own, peer));

    assert_eq!(addresses(&moved.0, &moved.1), before);
}

/// The shared secret with a point of low order is known to its sender: zeros.
#[test]
fn an_ephemeral_key_of_low_order_is_refused() {
    let now = start();
    let own = PrivateKey::generate();
    let responder = NativeIdentity::new(&PrivateKey::generate(), environment(now, 1));
    let ephemeral = StaticSecret::from([5; LEN]);
    let to = responder.public_key();
    let source = SocketAddr::from(([192, 0, 2, 1], 1));
    let ask = |point, common: &Secret| {
        let mut out = TransmitBatch::default();
        responder.identify(&initiation(&own, to, &point, common), source.into(), &mut out)
    };

    let valid = ask(public(&ephemeral), &shared(&ephemeral, &to).unwrap());
    let low_order = ask(PublicKey::from_bytes([0; LEN]), &Secret::default());

    assert_eq!(valid, Ok(Identification::Peer(own.public_key())));
    assert_eq!(low_order, Err(DropReason::Unauthenticated));
}

/// An initiation from `own` to the owner of `to`, with this ephemeral point and shared secret.
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

/// Of an initiator.
fn keypair(now: Instant) -> Keypair {
    Keypair::new(&session([9; LEN]), true, Lanes::detect(), now)
}

fn session(key: [u8; LEN]) -> Session {
    let key = Secret::new(key);

    Session { local_index: 1, remote_index: 2, sending: key.clone(), receiving: key }
}
