//! The outside of the tunnel, in network namespaces: which of its addresses a gateway sends from, and
//! what it does when a route leads the tunnel into itself.
//!
//! Needs root and `/dev/net/tun`; what needs more says so.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipnet::IpNet;
use strait_lab::Cluster;
use strait_lab::LabError;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::Underlay;
use strait_lab::netlink::Via;
use strait_lab::topology::{LISTEN_PORT, UNDERLAY_LINK};
use strait_lab::traffic::Ping;

use crate::harness::require::Need::{Root, Tool, Tun};
use crate::harness::require::require;
use crate::harness::tools::{ip, nft};
use crate::harness::world::World;

const TUNNEL_LINK: &str = "strait0";

/// What a gateway may send in [`LOOPED`] while a route leads the tunnel into itself: as much as the tests of
/// the kernel's WireGuard allow.
const LOOPED_BYTES: u64 = 70_000;

const LOOPED: Duration = Duration::from_secs(2);

/// Rome lets nothing in from the address that Milan's route would choose.
#[test]
fn answers_leave_from_the_address_that_was_called() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip"), Tool("nft")]) else {
        return;
    };
    for is_ipv6 in [false, true] {
        let mut called = None;
        let world = World::start_with(&layout(is_ipv6), |clusters| {
            let (milan, rome) = (&clusters.milan, &mut clusters.rome);
            let (chosen, other) = (milan.underlay, neighbour(milan, 101));
            // One that no route chooses: the second of a network, and one that is deprecated.
            let flags = if is_ipv6 { "nodad preferred_lft 0" } else { "scope global" };
            let other_net = with_len(other);
            ip(&milan.gateway, &format!("address add {other_net} dev {UNDERLAY_LINK} {flags}"));
            firewall(&rome.gateway, chosen);
            rome.config.peers[0].endpoint = Some(SocketAddr::new(other, LISTEN_PORT).to_string());
            called = Some((chosen, other));
        });
        let (chosen, other) = called.unwrap();

        world.assert_traffic();

        assert_ne!(chosen, other);
        assert_eq!(source_towards(&world.milan().gateway, world.rome().underlay), chosen);
        world.finish();
    }
}

/// The client's own address goes, and it has another.
#[test]
fn removing_a_source_address_loses_no_packet() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    for is_ipv6 in [false, true] {
        let world = World::start_with(&layout(is_ipv6), |clusters| {
            // Or else the other address goes with the first, and the route with both.
            let settings = [("ipv4/conf/underlay/promote_secondaries", "1")];
            clusters.rome.gateway.set(&settings).unwrap();
            let other = with_len(neighbour(&clusters.rome, 102));
            clusters.rome.gateway.add_address(UNDERLAY_LINK, other).unwrap();
        });
        let (rome, milan) = (world.rome(), world.milan());
        let target = rome.side.sees(&milan.side).next().unwrap();
        let source = source_towards(&rome.gateway, milan.underlay);
        let refused = drops(rome, "write_failed");

        // What is on its way to an address goes with it, so nothing is.
        let ping = Ping { interval: Duration::from_millis(5), ..Ping::new(target, 200) };
        let before = ping.run(&rome.pod).unwrap();
        let gone = with_len(source);
        ip(&rome.gateway, &format!("address del {gone} dev {UNDERLAY_LINK}"));
        let after = ping.run(&rome.pod).unwrap();

        assert_ne!(source_towards(&rome.gateway, milan.underlay), source);
        assert!(before.is_perfect() && after.is_perfect(), "{source}: {before:?}, {after:?}");
        assert_eq!(drops(rome, "write_failed"), refused);
        world.assert_traffic();
        world.finish();
    }
}

/// Everything is allowed to be behind the tunnel, and a route says that so is its other end.
#[test]
fn a_tunnel_routed_into_itself_does_not_loop() {
    let Some(_turn) = require(&[Root, Tun, Tool("ip")]) else {
        return;
    };
    for is_ipv6 in [false, true] {
        let world = World::start_with(&without_remaps(layout(is_ipv6)), |clusters| {
            let everything = if is_ipv6 { "::/0" } else { "0.0.0.0/0" };
            clusters.rome.config.peers[0].allowed_ips.push(everything.parse().unwrap());
        });
        let (rome, milan) = (world.rome(), world.milan());
        let target = rome.side.sees(&milan.side).next().unwrap();
        let endpoint = IpNet::from(milan.underlay);
        let before = sent_bytes(rome);

        rome.gateway.add_route(endpoint, TUNNEL_LINK, Via::Link).unwrap();
        let count = u16::try_from(LOOPED.as_millis() / 50).unwrap();
        let ping = Ping { timeout: Duration::from_millis(50), ..Ping::new(target, count) };
        let small = ping.run(&rome.pod).unwrap();
        let looped = sent_bytes(rome) - before;
        // A datagram with a full packet does not fit into the device whole.
        let large = Ping { payload_bytes: 1380, ..ping }.run(&rome.pod).unwrap();
        let fragmented = sent_bytes(rome) - before - looped;
        ip(&rome.gateway, &format!("route del {endpoint} dev {TUNNEL_LINK}"));

        assert_eq!((small.received, large.received), (0, 0), "the route leads there");
        assert!(looped < LOOPED_BYTES, "{looped} bytes in {LOOPED:?}");
        assert!(fragmented < 2 * u64::from(count) * 1500, "{fragmented} bytes in fragments");
        let dropped = drops(rome, "routing_loop");
        assert!(dropped >= 2 * u64::from(count), "{dropped} drops");
        world.assert_traffic();
        world.finish();
    }
}

fn layout(is_ipv6: bool) -> Layout {
    let underlay = Underlay { is_ipv6, is_routed: false, mtu_bytes: 1500 };

    Layout::equal().with_underlay(underlay)
}

/// Each calls the other's pods as they are called there. A remapped peer is sent nothing else than what its
/// rules cover.
fn without_remaps(layout: Layout) -> Layout {
    let Layout { mut milan, mut rome, .. } = Layout::different();
    for (one, other) in milan.realms.iter_mut().zip(&mut rome.realms) {
        (one.remapped, other.remapped) = (other.pods, one.pods);
    }

    Layout { milan, rome, ..layout }
}

/// Another address in the network of the gateway's own.
fn neighbour(cluster: &Cluster, number: u8) -> IpAddr {
    match cluster.underlay {
        IpAddr::V4(own) => {
            let [a, b, c, _] = own.octets();
            IpAddr::from([a, b, c, number])
        }
        IpAddr::V6(own) => {
            let mut groups = own.segments();
            groups[7] = number.into();
            IpAddr::from(groups)
        }
    }
}

/// As it stands on the link.
fn with_len(address: IpAddr) -> IpNet {
    IpNet::new_assert(address, if address.is_ipv4() { 24 } else { 64 })
}

/// The address that the kernel sends from by default.
fn source_towards(namespace: &Namespace, destination: IpAddr) -> IpAddr {
    namespace
        .run(move || {
            let any = if destination.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).map_err(LabError::io("bind"))?;
            socket.connect((destination, 9)).map_err(LabError::io("connect"))?;

            Ok(socket.local_addr().map_err(LabError::io("look"))?.ip())
        })
        .unwrap()
}

/// Lets no UDP in that comes from `address`.
fn firewall(namespace: &Namespace, address: IpAddr) {
    let family = if address.is_ipv4() { "ip" } else { "ip6" };

    nft(namespace, "add table inet firewall");
    nft(namespace, "add chain inet firewall input { type filter hook input priority 0; }");
    nft(
        namespace,
        &format!("add rule inet firewall input {family} saddr {address} meta l4proto udp drop"),
    );
}

fn sent_bytes(cluster: &Cluster) -> u64 {
    cluster.metrics().unwrap().sum("strait_peer_transmit_bytes_total", &[])
}

fn drops(cluster: &Cluster, reason: &str) -> u64 {
    cluster.metrics().unwrap().sum("strait_drops_total", &[("reason", reason)])
}
