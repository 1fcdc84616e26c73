//! The seeds of the corpora: packets of every kind, built from the fixtures of the packet tests.
//!
//! Fuzzing starts from these files, and tests replay them. Set `WRITE_SEEDS=1` to write them again
//! after a change here.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use remap::checksum::pseudo_header;
use strait_packet::Header;
use strait_packet::fixtures::{Extension, Packet, noise, put, tcp, udp};

use strait_packet::overlay::{Binding, Content, Encapsulation, Ethernet, Mac, Vni, neighbor};
use strait_wg::PathProbe;
use strait_wg::handover::Writer;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const SYN: u8 = 0x02;

/// Hop-by-hop and destination options.
const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;

type Seed = (&'static str, Vec<u8>);

#[test]
fn the_corpora_hold_the_seeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
    let corpora = [
        ("aead", aead_cases()),
        ("parse", packets()),
        ("rewrite", packets()),
        ("segment", frames()),
        ("coalesce", batches()),
        ("handover", handovers()),
        ("message", messages()),
        ("overlay", overlays()),
        ("table", tables()),
        ("translate", translations()),
        ("session", network_steps()),
        ("uapi", uapi_texts()),
    ];

    for (target, seeds) in corpora {
        for (name, bytes) in seeds {
            let file = root.join(target).join(name);
            if std::env::var_os("WRITE_SEEDS").is_some() {
                fs::create_dir_all(root.join(target)).unwrap();
                fs::write(&file, &bytes).unwrap();
            }
            assert_eq!(fs::read(&file).unwrap_or_default(), bytes, "{}", file.display());
        }
    }
}

/// Messages to seal: too few for vector lanes and enough, with lengths around multiples of a block.
fn aead_cases() -> Vec<Seed> {
    let case = |flip: [u8; 3], lens: &[u16], material: &[u8]| {
        let count = u8::try_from(lens.len()).unwrap();
        let mut bytes = [&noise(32, count.into())[..], &flip, &[count - 1]].concat();
        for (number, len) in (0_u64..).zip(lens) {
            bytes.extend([0; 4]);
            bytes.extend(number.to_le_bytes());
            bytes.extend(len.to_le_bytes());
        }
        bytes.extend(material);
        bytes
    };
    let around_blocks = [0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128];
    let text = noise(200, 1);

    vec![
        ("one", case([0, 0, 0], &[100], &text)),
        ("too-few-for-lanes", case([3, 9, 0], &[100; 7], &text)),
        ("eight", case([7, 255, 0], &[100; 8], &text)),
        ("nine", case([8, 0, 3], &[100; 9], &text)),
        ("around-blocks", case([2, 77, 0], &around_blocks, &text)),
        ("carries", case([15, 1, 1], &around_blocks, &[0xff])),
        ("zeros", case([5, 2, 0], &[64; 16], &[])),
        ("empty", case([1, 127, 0], &[0; 16], &[])),
        ("full-packets", case([9, 0, 45], &[1440; 16], &text)),
        ("last-is-shorter", case([11, 90, 0], &[[1360; 11].as_slice(), &[52]].concat(), &text)),
    ]
}

/// Requests of clients, and answers of devices.
fn uapi_texts() -> Vec<Seed> {
    let keys = ["a5", "b2", "77"].map(|byte| byte.repeat(32));
    let [own, peer, secret] = &keys;
    let device = format!("private_key={own}\nlisten_port=51820\nfwmark=51820\n");
    let change = format!(
        "public_key={peer}\nupdate_only=true\npreshared_key={secret}\nendpoint=192.0.2.3:51820\n\
         persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.1.2.3/8\n\
         allowed_ip=-fd00::/8\nprotocol_version=1\n"
    );
    let report = format!(
        "{device}strait_engine=native\nstrait_drops_in=replayed 7\npublic_key={peer}\n\
         preshared_key={secret}\nprotocol_version=1\nendpoint=[2001:db8::3]:51820\n\
         last_handshake_time_sec=1795251261\nlast_handshake_time_nsec=9\ntx_bytes=148\nrx_bytes=92\n\
         persistent_keepalive_interval=25\nallowed_ip=::/0\nstrait_name=milan\nstrait_rtt_us=1204\n\
         strait_path_mtu=1420\nstrait_staged_packets=2\nstrait_unanswered=1\nerrno=0\n\n"
    );
    let takeover = format!("public_key={secret}\nallowed_ip=10.0.0.0/8\n");

    let seeds = [
        ("get", "get=1\n\n".to_owned()),
        ("set", format!("set=1\n{device}replace_peers=true\n{change}\nget=1\n\n")),
        (
            "two-sets",
            format!("set=1\n{change}{takeover}\nset=1\npublic_key={peer}\nremove=true\n\n"),
        ),
        ("own-key", format!("set=1\n{device}public_key={own}\n\n")),
        ("wrong-line", format!("set=1\n{device}wrong\n{change}\nset=1\nfwmark=0\n\n")),
        ("report", report),
        ("refusal", "errno=-22\n\n".to_owned()),
    ];

    seeds.into_iter().map(|(name, text)| (name, text.into_bytes())).collect()
}

/// The states of tunnels and of an engine.
fn handovers() -> Vec<Seed> {
    let base = Instant::now();
    let written = |write: &dyn Fn(&mut Writer)| {
        let mut out = Writer::new(base);
        write(&mut out);
        out.finish().to_vec()
    };
    let none = |out: &mut Writer, count: usize| (0..count).for_each(|_| out.flag(false));
    let session = |out: &mut Writer| {
        out.flag(true);
        [7, 8].iter().for_each(|index| out.u32(*index));
        [1, 2].iter().for_each(|seconds| out.duration(Duration::from_secs(*seconds)));
        out.flag(true);
        out.put(&noise(64, 3));
        [1000, 900].iter().for_each(|counter| out.u64(*counter));
        out.list(0..129_u32, |out, block| out.u64(u64::from(block * block)));
    };
    let rest = |out: &mut Writer| {
        out.list([&[1, 2, 3][..]].into_iter(), |out, packet| {
            out.u8(2);
            out.bytes(packet);
        });
        none(out, 5);
        (0..9).for_each(|micros| out.u64(micros));
        none(out, 2);
        out.u32(0);
        none(out, 1);
        out.duration(Duration::from_secs(1_700_000_000));
    };
    let tunnel = |out: &mut Writer, has_session: bool| {
        out.u8(5);
        none(out, 2);
        if has_session {
            session(out)
        } else {
            none(out, 1)
        }
        none(out, 1);
        rest(out);
    };
    let counts = |out: &mut Writer| {
        (0..7).for_each(|count| out.u64(count));
        out.u32(1);
        out.bytes(b"no_route");
        out.u64(3);
    };
    let engine = |out: &mut Writer| {
        out.u32(2);
        out.u32(1);
        out.put(&noise(32, 4));
        out.u32(1);
        out.flag(true);
        out.path(SocketAddr::from(([192, 0, 2, 1], 51840)).into());
        none(out, 1);
        (0..5).for_each(|count| out.u64(count));
        out.u32(1);
        out.put(&noise(32, 5));
        out.u32(0);
        tunnel(out, true);
        counts(out);
        counts(out);
        out.u32(0);
    };

    vec![
        ("tunnel", written(&|out| tunnel(out, false))),
        ("tunnel-with-session", written(&|out| tunnel(out, true))),
        ("engine", written(&engine)),
    ]
}

/// Network events, each a step of two bytes.
fn network_steps() -> Vec<Seed> {
    const SEND: [[u8; 2]; 2] = [[0, 0], [1, 0]];
    const DELIVER: [u8; 2] = [2, 0];
    const REPEAT: [u8; 2] = [3, 0];
    const LOSE: [u8; 2] = [4, 0];
    const CHANGE: [u8; 2] = [5, 9];
    const RESTART: [[u8; 2]; 2] = [[7, 0], [7, 1]];
    let seconds = |seconds: u8| [6, seconds * 10];
    let begin = [SEND[0], DELIVER, DELIVER, DELIVER];
    let rekey = [[seconds(25); 5].as_slice(), &[SEND[0], DELIVER, DELIVER, DELIVER]].concat();
    let steps: [(_, Vec<[u8; 2]>); 7] = [
        ("one-packet", begin.to_vec()),
        ("both-begin", vec![SEND[0], SEND[1], DELIVER, DELIVER, DELIVER, DELIVER, DELIVER]),
        ("repeated", [begin.as_slice(), &[SEND[0], REPEAT, REPEAT, DELIVER]].concat()),
        ("lost-response", vec![SEND[0], DELIVER, LOSE, seconds(6), DELIVER, DELIVER, DELIVER]),
        ("changed", vec![SEND[0], CHANGE, DELIVER, CHANGE, DELIVER, CHANGE, DELIVER]),
        ("rekeyed", [begin.as_slice(), &rekey].concat()),
        ("restarted", [begin.as_slice(), &RESTART, &[DELIVER; 4], &SEND].concat()),
    ];

    steps.into_iter().map(|(name, steps)| (name, steps.concat())).collect()
}

/// Each packet in both directions, with every pair of addresses in turn.
fn translations() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (number, (name, packet)) in (0_u8..).zip(packets()) {
        let Ok(len) = u8::try_from(packet.len()) else { continue };
        let (ours, theirs) = (number % 8, number / 8 % 8);
        let out = [&[0, theirs << 4 | ours, len], &packet[..]].concat();
        let back = [&[1, (theirs ^ 1) << 4 | ours, len], &packet[..]].concat();
        seeds.push((name, [out, back].concat()));
    }

    seeds
}

fn packets() -> Vec<Seed> {
    let error = [&[3, 1, 0, 0, 0, 0, 0, 0], &v4(6, stream(0, ACK, 100)).build()[..28]].concat();
    let whole = v6(17, udp([40_000, 53], b"query")).build();
    let errors_v6 = [&[2, 0, 0, 0, 0, 0, 5, 20], &whole[..]].concat();
    let quoted_error = v4(1, error.clone()).build();
    let nested = [&[11, 0, 0, 0, 0, 0, 0, 0], &quoted_error[..]].concat();
    let routing = Extension::Routing { segments_left: 1, last: [7_u16; 8].into() };
    let options = |kind| Extension::Options { kind, units: 0, seed: 1 };

    vec![
        ("ipv4-tcp", v4(6, stream(0, ACK, 9)).build()),
        ("ipv4-tcp-syn", v4(6, tcp([1, 2], 0, SYN, &[2, 4, 5, 0xb4], b"")).build()),
        ("ipv4-udp", v4(17, udp([40_000, 53], b"query")).build()),
        ("ipv4-udp-without-checksum", {
            Packet { without_checksum: true, ..v4(17, udp([1, 2], b"x")) }.build()
        }),
        ("ipv4-udp-lite", v4(136, udp([1, 2], b"x")).build()),
        ("ipv4-options", Packet { options: vec![1; 8], ..v4(6, stream(0, ACK, 9)) }.build()),
        ("ipv4-first-fragment", {
            Packet { fragment: 0x2000, ..v4(17, udp([1, 2], &[7; 8])) }.build()
        }),
        ("ipv4-later-fragment", Packet { fragment: 2, ..v4(17, vec![7; 16]) }.build()),
        ("ipv4-echo", v4(1, vec![8, 0, 0, 0, 1, 2, 3, 4, 5]).build()),
        ("ipv4-error-cut-short", v4(1, error).build()),
        ("ipv4-error-about-an-error", v4(1, nested).build()),
        ("ipv4-authentication-header", v4(51, noise(24, 1)).build()),
        ("ipv4-sctp", v4(132, noise(20, 1)).build()),
        ("ipv6-tcp", v6(6, stream(0, ACK, 9)).build()),
        ("ipv6-udp", whole),
        ("ipv6-echo", v6(58, vec![128, 0, 0, 0, 1, 2, 3, 4, 5]).build()),
        ("ipv6-packet-too-big", v6(58, errors_v6).build()),
        ("ipv6-extension-headers", {
            let extensions = vec![options(HOP_BY_HOP), routing, options(DESTINATION)];
            Packet { extensions, ..v6(6, stream(0, ACK, 9)) }.build()
        }),
        ("ipv6-atomic-fragment", fragment_v6(0).build()),
        ("ipv6-first-fragment", fragment_v6(1).build()),
        ("ipv6-later-fragment", fragment_v6(8).build()),
    ]
}

fn frames() -> Vec<Seed> {
    // Flags, kind, header length, segment length, start and offset of the checksum.
    let virtio = |flags: u8, kind: u8, size: u16, start: u16, offset: u16| {
        let mut header = vec![flags, kind];
        for field in [0, size, start, offset] {
            header.extend(u16::to_le_bytes(field));
        }
        header.extend([0; 14]);
        header
    };
    // With the offsets of the outer UDP header and of the inner IP header.
    let overlay = |mut header: Vec<u8>, transport: u8, inner: u8| {
        header.splice(20.., [transport, 0, inner, 0]);
        header
    };
    let vxlan = |inner: Packet| udp([50_000, 4789], &[&noise(22, 1), &inner.build()[..]].concat());
    let with = |virtio: Vec<u8>, packet: Packet| [virtio, packet.build()].concat();

    vec![
        ("plain", with(virtio(0, 0, 0, 0, 0), v4(6, stream(0, ACK, 9)))),
        ("partial-checksum", with(virtio(1, 0, 0, 20, 16), v4(6, stream(0, ACK, 9)))),
        ("tcp-ipv4", with(virtio(1, 1, 40, 20, 16), v4(6, stream(0, ACK | PSH, 100)))),
        ("tcp-ipv6", with(virtio(1, 4, 40, 40, 16), v6(6, stream(0, ACK | PSH, 100)))),
        ("udp-ipv4", with(virtio(1, 5, 30, 20, 6), v4(17, udp([1, 2], &[7; 100])))),
        ("udp-ipv6", with(virtio(1, 5, 30, 40, 6), v6(17, udp([1, 2], &[7; 100])))),
        ("routed", {
            let extensions = vec![Extension::Routing { segments_left: 1, last: [7_u16; 8].into() }];
            let packet = Packet { extensions, ..v6(6, stream(0, ACK, 60)) };
            with(virtio(1, 4, 40, 64, 16), packet)
        }),
        ("vxlan-ipv4", {
            let packet = v4(17, vxlan(v6(6, stream(0, ACK | PSH, 100))));
            with(overlay(virtio(1 | 8, 4 | 0x20, 40, 90, 16), 20, 50), packet)
        }),
        ("vxlan-ipv6-without-checksum", {
            let inner = v4(17, udp([1, 2], &[7; 100]));
            let packet = Packet { without_checksum: true, ..v6(17, vxlan(inner)) };
            with(overlay(virtio(1, 5 | 0x40, 40, 90, 6), 40, 70), packet)
        }),
    ]
}

fn batches() -> Vec<Seed> {
    let batch = |choice: u8, packets: &[Packet]| {
        let mut bytes = vec![choice];
        for packet in packets {
            let packet = packet.build();
            bytes.push(u8::try_from(packet.len()).unwrap());
            bytes.extend(packet);
        }
        bytes
    };
    let datagram = |id| Packet { identification: id, ..v4(17, udp([1, 2], &[7; 40])) };
    let segment = |number: u32, flags, len| v6(6, stream(number, flags, len));
    let stream = [segment(0, ACK, 50), segment(50, ACK, 50), segment(100, ACK | PSH, 20)];
    let mixed = [segment(0, ACK, 50), datagram(1), segment(50, ACK, 50), datagram(2)];
    let gap = [segment(0, ACK, 50), segment(100, ACK, 50), segment(50, ACK, 50)];

    vec![
        ("tcp-stream", batch(7, &stream)),
        ("tcp-stream-with-a-gap", batch(7, &gap)),
        ("udp-train", batch(7, &[datagram(1), datagram(2), datagram(3)])),
        ("without-checksum", {
            let datagram = |id| Packet { without_checksum: true, ..datagram(id) };
            batch(3, &[datagram(1), datagram(2), datagram(3)])
        }),
        ("two-flows", batch(7, &mixed)),
        ("fragment-between", batch(7, &[datagram(1), fragment_v6(8), datagram(2)])),
        ("as-they-are", batch(3, &stream)),
        ("nothing-to-merge", batch(4, &stream)),
    ]
}

fn messages() -> Vec<Seed> {
    let message = |kind: u8, len: usize| [vec![kind, 0, 0, 0], noise(len - 4, 1)].concat();

    vec![
        ("initiation", message(1, 148)),
        ("response", message(2, 92)),
        ("cookie-reply", message(3, 64)),
        ("keepalive", message(4, 32)),
        ("data", message(4, 80)),
        ("probe", PathProbe::Probe(100).content()),
        ("answer", PathProbe::Answer(1420).content()),
    ]
}

/// Datagrams of nodes, after the encapsulation and the limits: of a packet, of the segment size, of a datagram.
fn overlays() -> Vec<Seed> {
    let station = |number| Mac([2, 0, 0, 0, 0, number]);
    let vni = Vni::new(83).unwrap();
    let datagram = |is_geneve: bool, limits: [u16; 3], frame: &[u8]| {
        let encapsulation = if is_geneve { Encapsulation::Geneve } else { Encapsulation::Vxlan };
        let mut bytes = vec![u8::from(is_geneve)];
        bytes.extend(limits.into_iter().flat_map(u16::to_be_bytes));
        bytes.extend(encapsulation.header(vni));
        bytes.extend(frame);
        bytes
    };
    let frame = |content, packet: &[u8]| {
        let ethernet = Ethernet { destination: station(1), source: station(2), content };
        [&ethernet.to_bytes()[..], packet].concat()
    };
    // The sum of the pseudo-header in place of the checksum.
    let incomplete = |packet: Packet, at: usize| {
        let mut bytes = packet.build();
        let header = Header::parse(&bytes).unwrap();
        let (source, destination) = (header.source(), header.destination());
        let len = u32::try_from(packet.transport.len()).unwrap();
        let sum = pseudo_header(source, destination, packet.protocol, len);
        put(&mut bytes, header.transport_offset() + at, sum);
        bytes
    };
    let question = |own: IpAddr, target: IpAddr| {
        let mut buffer = [0; neighbor::MAX_FRAME_LEN];
        let own = Binding { address: own, mac: station(2) };
        neighbor::ask(own, target, &mut buffer).unwrap().to_vec()
    };
    let datagrams = || udp([40_000, 443], &[7; 100]);

    vec![
        ("vxlan-packet", {
            datagram(false, [1400, 0, 0], &frame(Content::Ipv4, &v4(6, stream(0, ACK, 9)).build()))
        }),
        ("geneve-packet", {
            datagram(true, [1400, 0, 0], &frame(Content::Ipv6, &v6(6, stream(0, ACK, 9)).build()))
        }),
        ("geneve-options", {
            let mut bytes = datagram(true, [1400, 0, 0], &[1, 2, 3, 1, 0, 0, 0, 0]);
            bytes[7] = 2;
            bytes.extend(frame(Content::Ipv4, &v4(17, datagrams()).build()));
            bytes
        }),
        ("incomplete-checksum", {
            let packet = incomplete(v4(17, datagrams()), 6);
            datagram(false, [1400, 0, 0], &frame(Content::Ipv4, &packet))
        }),
        ("tcp-frame", {
            let packet = incomplete(v4(6, stream(0, ACK | PSH, 200)), 16);
            datagram(false, [100, 0, 0], &frame(Content::Ipv4, &packet))
        }),
        ("tcp-frame-ipv6-with-segment-size", {
            let packet = incomplete(v6(6, stream(0, ACK | PSH, 200)), 16);
            datagram(true, [1400, 50, 0], &frame(Content::Ipv6, &packet))
        }),
        ("udp-frame", {
            let packet = incomplete(v4(17, datagrams()), 6);
            datagram(false, [1400, 0, 30], &frame(Content::Ipv4, &packet))
        }),
        ("arp-request", {
            datagram(false, [1400, 0, 0], &question([10, 9, 0, 1].into(), [10, 9, 0, 2].into()))
        }),
        ("neighbor-solicitation", {
            let (own, target) = ([0xfd09, 0, 0, 0, 0, 0, 0, 1], [0xfd09, 0, 0, 0, 0, 0, 0, 2_u16]);
            datagram(true, [1400, 0, 0], &question(own.into(), target.into()))
        }),
        ("nested", {
            let inner =
                datagram(false, [0; 3], &frame(Content::Ipv4, &v4(6, stream(0, ACK, 9)).build()));
            let packet = v4(17, udp([50_000, 4789], &inner[7..])).build();
            datagram(false, [1400, 0, 0], &frame(Content::Ipv4, &packet))
        }),
    ]
}

fn tables() -> Vec<Seed> {
    let v4 = |peer: u8, len: u8, remote: [u8; 4], local: [u8; 4]| {
        [&[peer << 1, len][..], &remote, &local].concat()
    };
    let v6 = |peer: u8, len: u8, remote: u128, local: u128| {
        [&[peer << 1 | 1, len][..], &remote.to_be_bytes(), &local.to_be_bytes()].concat()
    };
    let pods = [10, 244, 0, 0];
    let (here, there) = (0xfd00_0010_0071_u128 << 80, 0xfd00_0010_0244_u128 << 80);

    vec![
        ("two-peers", [v4(0, 16, pods, [10, 71, 0, 0]), v4(1, 16, pods, [10, 72, 0, 0])].concat()),
        ("both-versions", { [v4(0, 16, pods, [10, 71, 0, 0]), v6(0, 56, there, here)].concat() }),
        ("host-map", {
            let outer = v4(0, 16, [10, 70, 0, 0], [10, 68, 0, 0]);
            [outer, v4(0, 32, [192, 0, 2, 9], [10, 68, 0, 3])].concat()
        }),
        ("swap", {
            [v4(0, 16, [10, 1, 0, 0], [10, 2, 0, 0]), v4(0, 16, [10, 2, 0, 0], [10, 1, 0, 0])]
                .concat()
        }),
        ("conflicts", {
            let inside = v4(1, 24, [10, 9, 4, 0], [10, 71, 4, 0]);
            let twice = v4(0, 16, pods, [10, 73, 0, 0]);
            [v4(0, 16, pods, [10, 71, 0, 0]), inside, twice].concat()
        }),
        ("everything", v4(3, 0, [0; 4], [0; 4])),
        ("ipv6-hosts", v6(2, 128, u128::MAX, 1)),
    ]
}

fn v4(protocol: u8, transport: Vec<u8>) -> Packet {
    Packet::new([10, 244, 1, 5].into(), [10, 71, 2, 7].into(), protocol, transport)
}

fn v6(protocol: u8, transport: Vec<u8>) -> Packet {
    let source = [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0x105_u16];
    let destination = [0xfd00, 0x10, 0x71, 0, 0, 0, 0, 0x207_u16];

    Packet::new(source.into(), destination.into(), protocol, transport)
}

fn fragment_v6(field: u16) -> Packet {
    let extensions = vec![Extension::Fragment { field }];

    Packet { extensions, ..v6(17, udp([1, 2], &[7; 8])) }
}

/// `len` bytes of a stream, from byte `sequence`.
fn stream(sequence: u32, flags: u8, len: usize) -> Vec<u8> {
    tcp([40_000, 80], sequence, flags, &[], &noise(len, sequence.into()))
}
