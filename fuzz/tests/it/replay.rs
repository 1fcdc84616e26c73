//! Replays the corpora, every former crash, and mutations of a few real packets in every test run.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use strait_fuzz::{TARGETS, Target, aead, overlay, session};

#[test]
fn no_old_crash_returns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));

    for folder in ["corpora", "regressions"] {
        for (name, target) in TARGETS {
            let Ok(entries) = fs::read_dir(root.join(folder).join(name)) else {
                continue;
            };
            for entry in entries {
                target(&fs::read(entry.unwrap().path()).unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_violate_no_property(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (_, target) in quick() {
            target(&bytes);
        }
    }

    /// Bytes that resemble packets reach more code than noise.
    #[test]
    fn mutated_packets_violate_no_property(
        packet in packet_like(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        virtio in prop::array::uniform10(0u8..8),
    ) {
        let mut packet = packet;
        for (index, value) in flips {
            let at = index.index(packet.len());
            packet[at] = value;
        }
        packet.truncate(cut.index(packet.len()) + 1);

        // As a packet, as a frame, and as a batch of the same packet twice.
        let frame = [&virtio[..], &packet].concat();
        let len = [u8::try_from(packet.len()).unwrap_or(u8::MAX)];
        let batch = [&virtio[..1], &len, &packet, &len, &packet].concat();
        for (_, target) in quick() {
            target(&packet);
            target(&frame);
            target(&batch);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// Few random bytes are datagrams of an overlay, and fewer have an incomplete checksum.
    #[test]
    fn mutated_datagrams_of_overlays_violate_no_property(
        seed in prop::sample::select(corpus("overlay")),
        limits in prop::array::uniform6(prop_oneof![Just(0), any::<u8>()]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = seed;
        bytes[1..7].copy_from_slice(&limits);
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }

        overlay(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Most steps are network events; few let minutes pass.
    #[test]
    fn sessions_survive_any_network(
        steps in prop::collection::vec((prop::sample::select(b"\0\x01\x02\x02\x02\x02\x03\x04\x05\x06\x07".to_vec()), any::<u8>()), 0..100),
    ) {
        let steps: Vec<u8> = steps.into_iter().flat_map(|(kind, argument)| [kind, argument]).collect();
        session(&steps);
    }

    /// Short texts of all lengths, and bytes of 0xff, which make carries more likely.
    #[test]
    fn lanes_seal_and_open_as_ring(
        key in any::<[u8; 32]>(),
        flip in any::<[u8; 3]>(),
        messages in prop::collection::vec((any::<[u8; 12]>(), 0_u16..400), 1..=16),
        material in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff)], 0..500),
    ) {
        let count = u8::try_from(messages.len() - 1).unwrap();
        let mut input = [&key[..], &flip, &[count]].concat();
        for (nonce, len) in messages {
            input.extend(nonce);
            input.extend(len.to_le_bytes());
        }
        input.extend(material);
        aead(&input);
    }
}

/// The inputs in the corpus of `target`.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(target);

    fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

/// All targets except slow ones with their own tests: handshakes, and encryption of up to 32 KiB.
fn quick() -> impl Iterator<Item = Target> {
    TARGETS.into_iter().filter(|(name, _)| !matches!(*name, "aead" | "session"))
}

/// An IPv4 or IPv6 header with the correct length, a likely protocol, and random bytes behind it.
fn packet_like() -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop::sample::select(vec![0u8, 1, 6, 17, 43, 44, 50, 51, 58, 60, 132, 136]);

    (any::<bool>(), protocol, prop::collection::vec(any::<u8>(), 8..200), 0u8..16).prop_map(
        |(is_ipv4, protocol, payload, kind)| {
            let len = u16::try_from(payload.len()).unwrap();
            let mut packet = if is_ipv4 {
                let mut header = vec![0x45, 0];
                header.extend((20 + len).to_be_bytes());
                header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
                header
            } else {
                let mut header = vec![0x60, 0, 0, 0];
                header.extend(len.to_be_bytes());
                header.extend([protocol, 64]);
                header.extend([0xfd; 32]);
                header
            };
            packet.extend(payload);
            // A likely ICMP type, so that some packets are errors.
            let transport = if is_ipv4 { 20 } else { 40 };
            packet[transport] = kind;

            packet
        },
    )
}
