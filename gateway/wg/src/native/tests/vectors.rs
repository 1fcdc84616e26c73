//! The handshake and the session keys against a published test vector of Noise.
//!
//! Source: the vector `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` of cacophony (vectors/cacophony.txt, in the
//! public domain), which The Noise Protocol Framework's list of vectors names. In WireGuard the
//! second message has no payload, and the prologue is fixed; the vector has other values there.

use super::super::handshake::Session;
use super::super::keypair::{HEADER_LEN, Keypair};
use super::super::noise::{Secret, TAG_LEN, Transcript, public, shared};
use super::hex::{array, bytes};
use super::{Lanes, start};
use crate::PublicKey;
use x25519_dalek::StaticSecret;

const PROLOGUE: &str = "4a6f686e2047616c74";
const PRESHARED: &str = "54686973206973206d7920417573747269616e20706572737065637469766521";

const INITIATOR: &str = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
const INITIATOR_EPHEMERAL: &str =
    "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";

const RESPONDER: &str = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
const RESPONDER_EPHEMERAL: &str =
    "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";

/// Payload and message: of the initiator and the responder alternately.
const MESSAGES: [(&str, &str); 6] = [
    (
        "4c756477696720766f6e204d69736573",
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
         001e21de9f98ddd8e2ad57527207feb56253c9c94a9e496782ecfcb2a75fbcaf1b52948cc48daefe660c62119ab50009\
         80c84831215f2441eba616548e832985464cf17e51ee93109008399a21f7e13f",
    ),
    (
        "4d757272617920526f746862617264",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843\
         cb765f2caef0751b8f007572dab0322217755c0632f365717edbf34d33e87a",
    ),
    ("462e20412e20486179656b", "8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7"),
    ("4361726c204d656e676572", "07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef"),
    (
        "4a65616e2d426170746973746520536179",
        "6ab1467c0448cc78394494abaaf23afce0e234315d6e2624dcbfa8a21c1c4d073d",
    ),
    (
        "457567656e2042f6686d20766f6e2042617765726b",
        "dfc346c0d2296ae6cf1acf6f12b8456a1dba228cf8d8b774aacf1c47fc53aa80ebc7a4c292",
    ),
];

#[test]
fn both_ends_reproduce_the_noise_vector() {
    let keys = [INITIATOR, INITIATOR_EPHEMERAL, RESPONDER, RESPONDER_EPHEMERAL];
    let [initiator, ours, responder, theirs] = keys.map(|key| StaticSecret::from(array(key)));
    let preshared = array(PRESHARED);
    let prologue = bytes(PROLOGUE);
    let [(first_payload, first), (second_payload, second), transport @ ..] =
        MESSAGES.map(|(payload, sent)| (bytes(payload), bytes(sent)));

    // The initiator writes: e, es, s, ss.
    let mut writer = Transcript::with_prologue(&prologue, public(&responder));
    let mut message = public(&ours).as_bytes().to_vec();
    writer.mix_ephemeral(&public(&ours));
    let key = writer.mix_shared(&shared(&ours, &public(&responder)).unwrap());
    seal(&mut writer, &key, public(&initiator).as_bytes(), &mut message);
    let key = writer.mix_shared(&shared(&initiator, &public(&responder)).unwrap());
    seal(&mut writer, &key, &first_payload, &mut message);
    assert_eq!(message, first);

    // The responder reads it.
    let mut reader = Transcript::with_prologue(&prologue, public(&responder));
    let ephemeral = PublicKey::from_bytes(first[..32].try_into().unwrap());
    reader.mix_ephemeral(&ephemeral);
    let key = reader.mix_shared(&shared(&responder, &ephemeral).unwrap());
    let peer = PublicKey::from_bytes(reader.open(&key, &first[32..80]).unwrap());
    let key = reader.mix_shared(&shared(&responder, &peer).unwrap());
    let payload: [u8; 16] = reader.open(&key, &first[80..]).unwrap();
    assert_eq!((peer, payload.to_vec()), (public(&initiator), first_payload));

    // The responder writes: e, ee, se, psk.
    let mut message = public(&theirs).as_bytes().to_vec();
    reader.mix_ephemeral(&public(&theirs));
    reader.mix_shared(&shared(&theirs, &ephemeral).unwrap());
    reader.mix_shared(&shared(&theirs, &peer).unwrap());
    let key = reader.mix_preshared(&preshared);
    seal(&mut reader, &key, &second_payload, &mut message);
    assert_eq!(message, second);

    // The initiator reads it.
    let ephemeral = PublicKey::from_bytes(second[..32].try_into().unwrap());
    writer.mix_ephemeral(&ephemeral);
    writer.mix_shared(&shared(&ours, &ephemeral).unwrap());
    writer.mix_shared(&shared(&initiator, &ephemeral).unwrap());
    let key = writer.mix_preshared(&preshared);
    let payload: [u8; 15] = writer.open(&key, &second[32..]).unwrap();
    assert_eq!(payload.to_vec(), second_payload);

    // Both ends have the same keys, and send alternately.
    let [sending, receiving] = writer.split();
    let [from_initiator, from_responder] = reader.split();
    assert_eq!((&sending, &receiving), (&from_initiator, &from_responder));
    let initiator = keypair(&sending, &receiving);
    let responder = keypair(&receiving, &sending);
    for (number, (payload, sent)) in transport.iter().enumerate() {
        let (from, to) =
            if number % 2 == 0 { (&initiator, &responder) } else { (&responder, &initiator) };
        let counter = from.reserve(1);
        let mut room = vec![0; HEADER_LEN + payload.len() + TAG_LEN];
        room[HEADER_LEN..][..payload.len()].copy_from_slice(payload);
        from.seal(counter, &mut room);
        assert_eq!(room[HEADER_LEN..], *sent, "message {number} of the session");

        let (content, tag) = room[HEADER_LEN..].split_last_chunk_mut().unwrap();
        assert!(to.open(counter, content, *tag));
        assert_eq!(content, payload);
    }
}

fn seal(transcript: &mut Transcript, key: &Secret, payload: &[u8], message: &mut Vec<u8>) {
    let start = message.len();
    message.resize(start + payload.len() + TAG_LEN, 0);
    transcript.seal(key, payload, &mut message[start..]);
}

fn keypair(sending: &Secret, receiving: &Secret) -> Keypair {
    let session = Session {
        local_index: 1,
        remote_index: 2,
        sending: sending.clone(),
        receiving: receiving.clone(),
    };

    Keypair::new(&session, true, Lanes::detect(), start())
}
