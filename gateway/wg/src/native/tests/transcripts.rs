//! Recorded handshakes of other implementations, reproduced byte by byte.
//!
//! Recorded with fixed static keys: from boringtun 0.7.1 with fixed ephemeral keys, and from wireguard-go at f333402,
//! whose ephemeral keys were read from the process. With all private keys both sides can be reproduced: the
//! initiation and the first data as the initiator, the response as the responder. Timestamps and indices are those of
//! the recording.

use x25519_dalek::StaticSecret;

use super::super::handshake::{IdentifiedInitiation, PeerStatics, Pending, StaticKeypair};
use super::super::keypair::{HEADER_LEN, Keypair};
use super::super::mac::MacKeys;
use super::super::noise::{TAG_LEN, public, shared};
use super::hex::{array, bytes};
use super::{Lanes, sized_packet, start};

const INITIATOR: [u8; 32] = [0x11; 32];
const RESPONDER: [u8; 32] = [0x22; 32];
const PRESHARED: [u8; 32] = [0x33; 32];

/// The recorded messages, and the private keys.
struct Transcript {
    source: &'static str,
    preshared: [u8; 32],
    ephemerals: [&'static str; 2],
    initiation: &'static str,
    response: &'static str,
    /// Carries [`sized_packet`] number 1 of 48 bytes.
    data: &'static str,
}

const TRANSCRIPTS: [Transcript; 4] = [
    Transcript {
        source: "boringtun, without a preshared key",
        preshared: [0; 32],
        ephemerals: [
            "4444444444444444444444444444444444444444444444444444444444444444",
            "5555555555555555555555555555555555555555555555555555555555555555",
        ],
        initiation: "01000000010c0b0aff2ee45601ec1b67310c7790404585ae697331eee1c1f8cf2419731c1fff3e6b3b6f1324\
             884f7dfcb616f1440bce015ad114bc97a5052c5972a42150ca66244ee95bf0cd2c60d3d9addef329768c8c11\
             0ed41251da87f8f937d763ea131a15c55ed15f9e62267eda40228ee5b28e04fb867c87f93d4ccb47ece94072\
             00000000000000000000000000000000",
        response: "0200000001030201010c0b0a38ab664bd86f77d7e66bdd9ae0792913a94fd8b33a1260027e4b46c1f4884c67\
             e975e6babd170ed05c1e363bb2125b0606a4c477d580cf19eb15bd0b9a4d4dfa000000000000000000000000\
             00000000",
        data: "04000000010302010100000000000000ac950a6dd66aacd1138211e67476bacc2e828ec71d1ec060d52caac1\
             44ac0750958418a2308a2a47e1f667358f756c48fc8b002441e9f5cb8ef774bfd6899498",
    },
    Transcript {
        source: "boringtun, with a preshared key",
        preshared: PRESHARED,
        ephemerals: [
            "4444444444444444444444444444444444444444444444444444444444444444",
            "5555555555555555555555555555555555555555555555555555555555555555",
        ],
        initiation: "01000000010c0b0aff2ee45601ec1b67310c7790404585ae697331eee1c1f8cf2419731c1fff3e6b3b6f1324\
             884f7dfcb616f1440bce015ad114bc97a5052c5972a42150ca66244ee95bf0cd2c60d3d9addef329768c8c11\
             0ed41251da87f8f937e47c481c30933ec5b9de63ff1108dda98348a6628c173787e1009991e9f72c068eee9f\
             00000000000000000000000000000000",
        response: "0200000001030201010c0b0a38ab664bd86f77d7e66bdd9ae0792913a94fd8b33a1260027e4b46c1f4884c67\
             4c0f46c7a7e389d97b9177cba44016752680de84b696bf2f80fce5421c8e7bc7000000000000000000000000\
             00000000",
        data: "04000000010302010100000000000000afd036ddcdb8de5e531f1caf13bcd547d71d8d1504a20ee7a9f62bc9\
             b5ecad674afd2f6d0d8c80725a3467d45ffa3a5980c6ebac6bd030b68f2227d6b42ae188",
    },
    Transcript {
        source: "wireguard-go, without a preshared key",
        preshared: [0; 32],
        ephemerals: [
            "386b69fea61bba5a846bb2ab5cc57597adafb450f2e4b9184ac0251d874ffe76",
            "888aad9a29157aa875715597b0d7a79f04c2463bd498c4baef5c12468f16a25b",
        ],
        initiation: "01000000d1ff40be27d9ba30de022d3b615b2a966fbae5ee6019e66a6bc4ab950dfd8f552a5f4d0ec8913dce\
             372848210020bb744b9c29c3450b3cf97a696ccc4c2e45d0720547fee5c76e27267156fefd577b54dfc18185\
             3703ad6b32acbd8f882ca57a3f7173fe16ca04d58a188890c5921d35b1b676befee027c03cd3a915169ff692\
             00000000000000000000000000000000",
        response: "02000000227d970dd1ff40bedd3eff873944dea14658bdf0c49941600834aee4b70bad6f4565486f6ccfdd55\
             380b990cffc744be48cbf72209ab17f49b1dffab58a069dd3bacc7b0441e0094000000000000000000000000\
             00000000",
        data: "04000000227d970d0000000000000000a12a4b25cc6c484b65472fe4dd9871c70795fcbea330551c394ed9c5\
             0141f6cd92724e3672f722d48964542c57935a3bd14c0435ce87e5f5928634f6a249c799",
    },
    Transcript {
        source: "wireguard-go, with a preshared key",
        preshared: PRESHARED,
        ephemerals: [
            "d8cf39cc2f186c9759b995de72cc9053731bff5c45c9f2ec65ac3fcb87dd295a",
            "489dc03d6ba978b9d5838ccac842cc144c998f01ed582462f80aea169bd1f064",
        ],
        initiation: "01000000a141bf56b02d9cb77cc57d300ea7fef95b5caa315cafc9d9ed1daa8552cc8b4aeb9bdf6d3da57518\
             91036e7712e7bf4fc913ad5a33db89a83a883808051ae7ef7ac152cb80b1143a8562bc0a13825d768654ed81\
             8ab2a13e24073734f2e03a591c23ebfacc738ec15e84afef03d00ad0402f5c8aa70626481327bbb3fc8520c8\
             00000000000000000000000000000000",
        response: "0200000038782783a141bf56df04358fa9e6b50173a2df839e4e2adf11cfe650c0fa90d3f31980213b044d1d\
             de0cef7c25045da4009d37b09e932621e4c3cfa0cf8bafb4141ac97bdd172dd2000000000000000000000000\
             00000000",
        data: "04000000387827830000000000000000a1113ff196897e7b53db84b1b00f10aee7740679a715deef7afb296d\
             dbe6fa0a5183d4e24d416a5860e1025599013cfbb97f53aa7e13fed19632bfa85e16d081",
    },
];

#[test]
fn the_initiator_reproduces_the_recording() {
    for transcript in &TRANSCRIPTS {
        let source = transcript.source;
        let Recorded { initiation, response, data } = transcript.recorded();
        let (own, peer) = transcript.end(INITIATOR, RESPONDER);
        let (responder, initiator) = transcript.end(RESPONDER, INITIATOR);
        let index = u32::from_le_bytes(initiation[4..8].try_into().unwrap());
        let identified = IdentifiedInitiation::read(&responder, &initiation).unwrap();
        let timestamp = identified.authenticate(&initiator).unwrap().timestamp;

        let ephemeral = transcript.ephemeral(0);
        let (pending, mut message) =
            Pending::initiate(&own, &peer, index, ephemeral, timestamp).unwrap();
        MacKeys::new(peer.peer).stamp(&mut message, None);
        assert_eq!(message[..], initiation, "{source}");

        MacKeys::new(own.public).check(&response).unwrap();
        let session = pending.complete(&own, &peer, &response).unwrap();
        let keypair = Keypair::new(&session, true, Lanes::detect(), start());
        let packet = sized_packet(1, 48);
        let mut datagram = vec![0; HEADER_LEN + packet.len() + TAG_LEN];
        datagram[HEADER_LEN..][..packet.len()].copy_from_slice(&packet);
        keypair.seal(counter(&data), &mut datagram);
        assert_eq!(datagram, data, "{source}");
    }
}

#[test]
fn the_responder_reproduces_the_recording() {
    for transcript in &TRANSCRIPTS {
        let source = transcript.source;
        let Recorded { initiation, response, data } = transcript.recorded();
        let (own, peer) = transcript.end(RESPONDER, INITIATOR);
        let index = u32::from_le_bytes(response[4..8].try_into().unwrap());

        MacKeys::new(own.public).check(&initiation).unwrap();
        let identified = IdentifiedInitiation::read(&own, &initiation).unwrap();
        let authentic = identified.authenticate(&peer).unwrap();
        let (session, mut message) =
            authentic.respond(&peer, index, &transcript.ephemeral(1)).unwrap();
        MacKeys::new(peer.peer).stamp(&mut message, None);
        assert_eq!(message[..], response, "{source}");

        let keypair = Keypair::new(&session, false, Lanes::detect(), start());
        assert_eq!(data[..8], [&[4, 0, 0, 0], &response[4..8]].concat(), "{source}");
        let (content, tag) = data[HEADER_LEN..].split_last_chunk().unwrap();
        let mut content = content.to_vec();
        assert!(keypair.open(counter(&data), &mut content, *tag), "{source}");
        assert_eq!(content, sized_packet(1, 48), "{source}");
    }
}

struct Recorded {
    initiation: Vec<u8>,
    response: Vec<u8>,
    data: Vec<u8>,
}

impl Transcript {
    fn recorded(&self) -> Recorded {
        let [initiation, response, data] = [self.initiation, self.response, self.data].map(bytes);

        Recorded { initiation, response, data }
    }

    /// The static keys at the owner of `own`, whose peer is the owner of `other`.
    fn end(&self, own: [u8; 32], other: [u8; 32]) -> (StaticKeypair, PeerStatics) {
        let [private, other] = [own, other].map(StaticSecret::from);
        let peer = public(&other);
        let static_static = shared(&private, &peer).unwrap();

        (StaticKeypair::new(private), PeerStatics::new(peer, &static_static, &self.preshared))
    }

    fn ephemeral(&self, end: usize) -> StaticSecret {
        StaticSecret::from(array(self.ephemerals[end]))
    }
}

fn counter(data: &[u8]) -> u64 {
    u64::from_le_bytes(data[8..16].try_into().unwrap())
}
