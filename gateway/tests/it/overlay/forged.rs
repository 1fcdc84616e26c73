//! Datagrams that no known node may send, and a flood of them.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use strait_lab::traffic::Ping;
use strait_lab::{Direction, LabError, Layout, now};
use strait_packet::overlay::ethernet::{Content, Ethernet, Mac};
use strait_packet::overlay::{Encapsulation, Vni};

use super::NEEDS;
use super::world::{Fabric, OverlayWorld, PORT, VNI};
use crate::harness::require::require;
use crate::harness::tools::ip;

const COUNT: u64 = 100;

/// A second address of the node, which the gateway does not know.
const STRANGER: [u8; 4] = [172, 16, 3, 9];

const FLOOD: Duration = Duration::from_secs(2);

#[test]
fn forged_datagrams_are_counted_by_reason() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal().without_ipv6(), Fabric::SameHost);
    ip(&world.node().namespace, "address add 172.16.3.9/24 dev fabric");
    let own = world.node().address;
    let good = datagram(VNI, Mac([2, 0, 0, 0, 0, 1]));
    let cases = [
        (STRANGER.into(), good.clone(), "overlay_source"),
        (own, datagram(VNI + 1, Mac([2, 0, 0, 0, 0, 1])), "overlay_vni"),
        (own, good[..7].to_vec(), "overlay_header"),
        (own, [&[0][..], &good[1..]].concat(), "overlay_header"),
        (own, good[..8 + 13].to_vec(), "overlay_frame"),
        (own, datagram(VNI, Mac::BROADCAST), "overlay_frame"),
        (own, good[..8 + 14 + 19].to_vec(), "malformed"),
        (own, good, "no_route"),
    ];

    for (source, datagram, reason) in cases {
        let before = world.drops(world.rome(), Direction::Outbound, reason);
        send(&world, source, vec![datagram; usize::try_from(COUNT).unwrap()]);

        let after = world.drops(world.rome(), Direction::Outbound, reason);
        assert_eq!(after - before, COUNT, "{reason}");
    }
    world.assert_traffic();
    world.finish();
}

#[test]
fn random_datagrams_of_a_node_stop_nothing() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal(), Fabric::SameHost);
    let good = datagram(VNI, Mac([2, 0, 0, 0, 0, 1]));
    let random = (0..2_000_u64).map(|seed| {
        let bytes = noise(seed);
        // Half of them get past the header and into the packet.
        let known = if seed % 2 == 0 { 0 } else { 22 + usize::from(seed % 3 == 0) };
        [&good[..known], &bytes].concat()
    });

    send(&world, world.node().address, random.collect());

    world.assert_traffic();
    world.finish();
}

#[test]
fn pods_talk_during_a_flood_from_a_stranger() {
    let Some(_turn) = require(&NEEDS) else { return };
    let world = OverlayWorld::start(&Layout::equal().without_ipv6(), Fabric::Routed);
    ip(&world.node().namespace, "address add 172.16.3.9/24 dev fabric");
    let target = world.rome().side.sees(&world.milan().side).next().unwrap();
    let gateway = (world.node().gateway, PORT);
    let flood = world.node().namespace.spawn(move || {
        let socket = UdpSocket::bind((IpAddr::from(STRANGER), 0)).unwrap();
        let datagram = datagram(VNI, Mac([2, 0, 0, 0, 0, 1]));
        let until = now() + FLOOD;
        let mut sent = 0_u64;
        while now() < until {
            sent += u64::from(socket.send_to(&datagram, gateway).is_ok());
        }
        sent
    });

    let ping = Ping { interval: Duration::from_millis(50), ..Ping::new(target, 40) };
    let ping = ping.run(&world.rome().pod).unwrap();
    let sent = flood.unwrap().join().unwrap();

    let dropped = world.drops(world.rome(), Direction::Outbound, "overlay_source");
    assert!(dropped > 0 && dropped <= sent, "{dropped} of {sent}");
    // The kernel shares one receive buffer between a flow and those with the same hash.
    assert!(ping.received >= 20, "{ping:?}");
    world.assert_traffic();
    world.finish();
}

/// Sends `datagrams` from an address of Rome's node, slowly enough for any receive buffer.
fn send(world: &OverlayWorld, source: IpAddr, datagrams: Vec<Vec<u8>>) {
    let gateway = (world.node().gateway, PORT);
    let job = move || {
        let socket = UdpSocket::bind((source, 0)).map_err(LabError::io("bind"))?;
        for (number, datagram) in datagrams.iter().enumerate() {
            socket.send_to(datagram, gateway).map_err(LabError::io("send"))?;
            if number % 16 == 15 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    };

    world.node().namespace.run(job).unwrap();
}

/// Up to 1,400 bytes.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state.to_be_bytes()[0]
    });

    bytes.take(1 + usize::try_from(seed % 1_400).unwrap()).collect()
}

/// A packet of a pod, to an address that no peer has, as its node sends it.
fn datagram(vni: u32, destination: Mac) -> Vec<u8> {
    // UDP from 10.244.1.5 to 10.99.1.1, without checksum.
    let mut packet = [0; 52];
    packet[..20].copy_from_slice(&[
        0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 244, 1, 5, 10, 99, 1, 1,
    ]);
    packet[20..28].copy_from_slice(&[0x9c, 0x40, 0, 80, 0, 32, 0, 0]);
    let ethernet =
        Ethernet { destination, source: Mac([2, 0, 0, 0, 0, 2]), content: Content::Ipv4 };

    [&Encapsulation::Vxlan.prefix(Vni::new(vni).unwrap(), &ethernet)[..], &packet].concat()
}
