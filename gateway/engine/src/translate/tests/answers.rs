//! The source of answers from a host with two addresses.

use super::*;

#[test]
fn answer_has_the_address_of_the_question() {
    let world = World::sharing();
    let question =
        |name, port| Packet::new(remote(false, 7), ip(name), UDP, udp([port, 53], b"who?"));
    let answer = |port| Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, port], b"me"));
    let translated =
        |name, port| Packet::new(ip(name), remote(false, 7), UDP, udp([53, port], b"me")).build();

    assert!(world.inbound(&question("10.70.0.7", 1)).is_ok());
    assert!(world.inbound(&question("10.244.1.9", 2)).is_ok());

    assert_eq!(world.outbound(&answer(1)), Ok(translated("10.70.0.7", 1)));
    assert_eq!(world.outbound(&answer(2)), Ok(translated("10.244.1.9", 2)));
    assert_eq!(world.outbound(&answer(3)), Ok(translated("10.244.1.9", 3)), "no question");
}

#[test]
fn latest_destination_address_is_the_answer_source() {
    let world = World::sharing();
    let question = |name| Packet::new(remote(false, 7), ip(name), UDP, udp([1, 53], b"who?"));
    let answer = Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, 1], b"me"));
    let translated = |name| Packet::new(ip(name), remote(false, 7), UDP, udp([53, 1], b"me"));

    for name in ["10.70.0.7", "10.244.1.9", "10.70.0.7"] {
        assert!(world.inbound(&question(name)).is_ok());

        for _ in 0..2 {
            assert_eq!(world.outbound(&answer), Ok(translated(name).build()));
        }
    }
}

/// The first connection has ended and not yet expired.
#[test]
fn connection_keeps_its_address_until_a_new_syn() {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let world = World::sharing();
    let there = |name, flags| {
        Packet::new(remote(false, 7), ip(name), TCP, tcp([5_000, 443], 1, flags, &[], b""))
    };
    let back = |flags| {
        Packet::new(ip("10.244.1.9"), local(false, 7), TCP, tcp([443, 5_000], 1, flags, &[], b""))
    };
    let source = |flags| Header::parse(&world.outbound(&back(flags)).unwrap()).unwrap().source();
    for flags in [SYN, ACK, FIN | ACK] {
        world.inbound(&there("10.70.0.7", flags)).unwrap();
        assert_eq!(source(flags | ACK), ip("10.70.0.7"));
    }

    world.inbound(&there("10.244.1.9", ACK)).unwrap();
    assert_eq!(source(ACK), ip("10.70.0.7"), "a stray segment opens no connection");
    world.inbound(&there("10.244.1.9", SYN)).unwrap();

    assert_eq!(source(SYN | ACK), ip("10.244.1.9"));
}

/// Later fragments have no ports.
#[test]
fn fragments_of_an_answer_share_its_address() {
    const MORE: u16 = 0x2000;
    let world = World::sharing();
    let question = Packet::new(remote(false, 7), ip("10.70.0.7"), UDP, udp([9, 53], b"who?"));
    let mut first = Packet::new(ip("10.244.1.9"), local(false, 7), UDP, udp([53, 9], &[0; 64]));
    (first.fragment, first.identification, first.without_checksum) = (MORE, 77, true);
    let mut later = Packet { transport: vec![7; 16], fragment: 9, ..first.clone() };
    later.without_checksum = false;
    let stray = Packet { identification: 78, ..later.clone() };

    world.inbound(&question).unwrap();
    let sources = [&first, &later]
        .map(|fragment| Header::parse(&world.outbound(fragment).unwrap()).unwrap().source());

    assert_eq!(sources, [ip("10.70.0.7"); 2]);
    assert_eq!(world.outbound(&stray), Err(DropReason::FragmentUnknown));
}
