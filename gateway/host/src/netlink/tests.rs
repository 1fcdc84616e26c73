//! Against the kernel, each test in a network namespace of its own on a thread of its own.

use std::collections::BTreeSet;
use std::future::pending;

use rtnetlink::packet_route::route::RouteMetric;

use super::fixtures::{in_namespace, set_link};
use super::routes::{Change, RouteTarget, route_changes};
use super::*;

#[test]
fn routes_are_added_and_removed_by_difference() {
    in_namespace(|netlink, lo| async move {
        let routes = DeviceRoutes::new(netlink.clone(), lo);

        assert_none(&routes.sync(&set(&["10.71.0.0/16", "fd00:71::/64"])).await);
        assert_none(&routes.sync(&set(&["10.72.0.0/16", "fd00:71::/64"])).await);

        assert!(netlink.route_to(net("10.71.0.0/16")).await.is_none());
        for prefix in ["10.72.0.0/16", "fd00:71::/64"] {
            let route = netlink.route_to(net(prefix)).await.unwrap();
            assert_eq!(u8::from(route.header.protocol), ROUTE_PROTOCOL);
            assert_eq!(output_interface(&route), Some(lo));
        }
    });
}

#[tokio::test]
async fn a_lost_answer_times_out() {
    let limit = Duration::from_millis(20);
    let lost = pending::<Result<(), rtnetlink::Error>>();
    let error = answer_within(limit, lost).await.unwrap_err();

    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn clear_keeps_foreign_routes() {
    in_namespace(|netlink, lo| async move {
        add_foreign(&netlink, "10.5.0.0/16", lo).await;
        let routes = DeviceRoutes::new(netlink.clone(), lo);
        assert_none(&routes.sync(&set(&["10.71.0.0/16", "10.5.0.0/16"])).await);

        routes.clear().await;

        assert!(netlink.route_to(net("10.71.0.0/16")).await.is_none());
        assert!(netlink.route_to(net("10.5.0.0/16")).await.is_some());
    });
}

/// The kernel keeps IPv4 addresses and removes those of IPv6.
#[test]
fn addresses_lost_with_the_device_are_restored() {
    in_namespace(|netlink, lo| async move {
        let wanted = ["169.254.18.1/30", "fd00:71::1/64"].map(net);
        let present = || async {
            let own = netlink.addresses(None).await.unwrap();
            wanted.map(|wanted| own.contains(&wanted.addr()))
        };
        netlink.sync_addresses(lo, &wanted).await.unwrap();
        assert_eq!(present().await, [true, true]);
        set_link(&netlink, lo, LinkFlags::empty()).await;
        assert_eq!(present().await, [true, false]);

        set_link(&netlink, lo, LinkFlags::Up).await;
        netlink.sync_addresses(lo, &wanted).await.unwrap();
        let errors = netlink.sync_addresses(lo, &wanted).await.unwrap();

        assert_eq!(present().await, [true, true]);
        assert!(errors.is_empty(), "{errors:?}");
    });
}

#[test]
fn without_ipv6_the_device_has_its_ipv4_parts() {
    in_namespace(|netlink, lo| async move {
        std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        let addresses = ["169.254.18.1/30", "fd00:71::1/64"].map(net);
        let prefixes = set(&["10.71.0.0/16", "fd00:72::/64"]);
        let routes = DeviceRoutes::new(netlink.clone(), lo);

        let refused_addresses = netlink.sync_addresses(lo, &addresses).await.unwrap();
        let refused_routes = routes.sync(&prefixes).await;

        let [address] = &refused_addresses[..] else { panic!("{refused_addresses:?}") };
        let [route] = &refused_routes[..] else { panic!("{refused_routes:?}") };
        let own = netlink.addresses(None).await.unwrap();
        assert!(own.contains(&addresses[0].addr()));
        assert_eq!(own_routes(&netlink, lo).await.unwrap(), set(&["10.71.0.0/16"]));
        assert_eq!(address.address, addresses[1]);
        assert_eq!(route.missing(), Some(net("fd00:72::/64")));
        for text in [address.to_string(), route.to_string()] {
            assert!(text.contains("net.ipv6.conf.lo.disable_ipv6=0"), "{text}");
        }
    });
}

#[test]
fn a_foreign_route_is_an_error() {
    in_namespace(|netlink, lo| async move {
        add_foreign(&netlink, "10.71.0.0/16", lo).await;
        let another_device = lo + 1000;
        let routes = DeviceRoutes::new(netlink.clone(), another_device);

        let error = routes.adopt(net("10.71.0.0/16"), exists()).await.unwrap_err().to_string();

        assert!(error.contains("route 10.71.0.0/16 already leads to lo (protocol 4)"), "{error}");
        assert!(error.contains("routes = false"), "{error}");
    });
}

#[test]
fn removing_a_missing_route_succeeds() {
    in_namespace(|netlink, lo| async move {
        let routes = DeviceRoutes::new(netlink.clone(), lo);
        assert_none(&routes.sync(&set(&["10.71.0.0/16"])).await);
        let by_hand = route_message(net("10.71.0.0/16"), Some(lo));
        netlink.handle.route().del(by_hand).execute().await.unwrap();

        assert_none(&routes.sync(&set(&[])).await);
    });
}

#[test]
fn removed_routes_are_restored() {
    in_namespace(|netlink, lo| async move {
        let routes = DeviceRoutes::new(netlink.clone(), lo);
        let wanted = set(&["10.71.0.0/16", "10.72.0.0/16", "fd00:71::/64"]);
        assert_none(&routes.sync(&wanted).await);
        let by_hand = route_message(net("10.71.0.0/16"), Some(lo));
        netlink.handle.route().del(by_hand).execute().await.unwrap();

        assert_none(&routes.sync(&wanted).await);
        assert_eq!(own_routes(&netlink, lo).await.unwrap(), wanted);

        set_link(&netlink, lo, LinkFlags::empty()).await;
        assert_none(&routes.sync(&wanted).await);
        assert_eq!(own_routes(&netlink, lo).await.unwrap(), set(&[]), "the device is down");
        set_link(&netlink, lo, LinkFlags::Up).await;
        assert_none(&routes.sync(&wanted).await);
        assert_eq!(own_routes(&netlink, lo).await.unwrap(), wanted);
    });
}

#[test]
fn removed_routes_and_addresses_are_reported() {
    in_namespace(|netlink, lo| async move {
        let routes = DeviceRoutes::new(netlink.clone(), lo);
        let prefixes = set(&["10.71.0.0/16"]);
        assert_none(&routes.sync(&prefixes).await);
        netlink.sync_addresses(lo, &[net("169.254.18.1/30")]).await.unwrap();
        let none = |_: &IpNet| false;
        let another = lo + 1000;
        let mut changes = Changes::listen().unwrap();

        let by_hand = route_message(net("10.71.0.0/16"), Some(lo));
        netlink.handle.route().del(by_hand).execute().await.unwrap();
        let route = changes.next().await;
        remove_addresses(&netlink, lo).await;
        let address = changes.next().await;

        assert!(route.is_about(lo, |prefix| prefixes.contains(prefix)) && route.is_about_ours());
        assert!(!route.is_about(lo, |prefix| *prefix == net("10.72.0.0/16")));
        assert!(address.is_about(lo, none) && !address.is_about(another, none));
        assert!(!changes.is_closed());
    });
}

/// The kernel reports only the new route.
#[test]
fn replacing_a_route_of_ours_is_reported() {
    in_namespace(|netlink, lo| async move {
        let routes = DeviceRoutes::new(netlink.clone(), lo);
        for (prefix, another) in
            [("10.71.0.0/16", "10.98.0.0/16"), ("fd00:71::/64", "10.99.0.0/16")]
        {
            assert_none(&routes.sync(&set(&[prefix])).await);
            let mut changes = Changes::listen().unwrap();

            add_foreign(&netlink, another, lo).await;
            let added = changes.next().await;
            let mut foreign = route_message(net(prefix), Some(lo));
            foreign.header.protocol = RouteProtocol::Static;
            netlink.handle.route().add(foreign).replace().execute().await.unwrap();
            let replaced = changes.next().await;

            assert!(!added.is_about_ours() && replaced.is_about_ours(), "{prefix}");
        }
    });
}

#[test]
fn only_affected_paths_may_reroute() {
    in_namespace(|netlink, lo| async move {
        let [near, far] = ["198.51.100.7", "203.0.113.7"].map(|a| a.parse().unwrap());
        let another = lo + 1000;
        let mut changes = Changes::listen().unwrap();

        add_foreign(&netlink, "198.51.100.0/24", lo).await;
        let route = changes.next().await;
        set_link(&netlink, lo, LinkFlags::empty()).await;
        let link = changes.next().await;

        assert!(route.may_reroute(near, another) && !route.may_reroute(far, another));
        assert!(link.may_reroute(far, lo) && !link.may_reroute(far, another));
    });
}

#[test]
fn tunnel_devices_have_no_link_local_address() {
    in_namespace(|netlink, _| async move {
        let pair = rtnetlink::LinkVeth::new("plain", "tunnel").build();
        netlink.handle.link().add(pair).execute().await.unwrap();
        let plain = netlink.interface_index("plain").await.unwrap();
        let tunnel = netlink.interface_index("tunnel").await.unwrap();

        netlink.prepare_tunnel(tunnel).await;
        netlink.set_up(plain).await.unwrap();
        netlink.set_up(tunnel).await.unwrap();

        let of = |index| {
            let own = netlink.handle.address().get().set_link_index_filter(index).execute();
            own.try_collect::<Vec<_>>()
        };
        // The kernel generates one once the link has a carrier, within about a second.
        let has_link_local = async {
            while of(plain).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(5), has_link_local).await.unwrap();
        assert_eq!(of(tunnel).await.unwrap().len(), 0);
        for setting in ["send_redirects", "accept_redirects"] {
            let path = format!("/proc/sys/net/ipv4/conf/tunnel/{setting}");
            assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "0", "{setting}");
        }
        let all = std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/send_redirects").unwrap();
        assert_eq!(all.trim(), "0", "a device sends redirects if all devices do");
    });
}

#[test]
fn the_underlay_is_the_interface_towards_the_peer() {
    in_namespace(|netlink, lo| async move {
        assert_eq!(netlink.underlay(None).await, None);
        add_foreign(&netlink, "198.51.100.0/24", lo).await;

        let underlay = netlink.underlay(Some("198.51.100.7".parse().unwrap())).await;

        let loopback = Underlay { interface: "lo".to_owned(), mtu_bytes: 65_536 };
        assert_eq!(underlay, Some(loopback));
    });
}

/// As with wg-quick: marked datagrams use another table.
#[test]
fn the_underlay_depends_on_the_mark() {
    in_namespace(|netlink, lo| async move {
        let peer = "198.51.100.7".parse().unwrap();
        add_foreign(&netlink, "198.51.100.0/24", lo).await;
        let mut marked = route_message(net("198.51.100.0/24"), Some(lo));
        marked.header.table = 100;
        marked.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]));
        netlink.handle.route().add(marked).execute().await.unwrap();
        let to_table = rtnetlink::packet_route::rule::RuleAction::ToTable;
        let rule = netlink.handle.rule().add().v4().fw_mark(7).table_id(100).action(to_table);
        rule.execute().await.unwrap();

        let mut mtus = Vec::new();
        for mark in [0, 7] {
            let found = netlink.with_mark(mark).interface_towards(peer).await;
            mtus.push(found.map(|(_, underlay)| underlay.mtu_bytes));
        }

        assert_eq!(mtus, [Some(65_536), Some(1400)]);
    });
}

#[test]
fn own_addresses_exclude_the_device() {
    in_namespace(|netlink, lo| async move {
        let localhost: IpAddr = "127.0.0.1".parse().unwrap();

        assert!(netlink.addresses(None).await.unwrap().contains(&localhost));
        assert!(!netlink.addresses(Some(lo)).await.unwrap().contains(&localhost));
    });
}

#[test]
fn a_missing_interface_is_not_found() {
    in_namespace(|netlink, _| async move {
        assert!(netlink.interface_index("strait-none").await.is_err());
    });
}

#[test]
fn link_state_follows_the_interface() {
    in_namespace(|netlink, lo| async move {
        let is_up = |link: Option<Link>| link.map(|link| link.is_up);
        assert_eq!(is_up(netlink.link(lo).await.unwrap()), Some(true));

        set_link(&netlink, lo, LinkFlags::empty()).await;

        let link = netlink.link(lo).await.unwrap();
        assert_eq!(link.as_ref().map(|link| &*link.name), Some("lo"));
        assert_eq!(is_up(link), Some(false));
        assert_eq!(netlink.link(lo + 1000).await.unwrap(), None);
    });
}

/// After a crash, as after an end, packets must not take the default route.
#[test]
fn last_resort_routes_outlive_the_device() {
    in_namespace(|netlink, _| async move {
        let unreachable = || async { netlink.own_routes(RouteTarget::Unreachable).await.unwrap() };
        let wanted = set(&["10.71.0.0/16", "fd00:71::/64"]);
        let device = tunnel(&netlink).await;
        let routes = DeviceRoutes::new(netlink.clone(), device).with_last_resort();
        assert_none(&routes.sync(&wanted).await);
        assert_eq!(own_routes(&netlink, device).await.unwrap(), wanted);
        assert_eq!(unreachable().await, wanted);

        routes.clear().await;
        assert_eq!(own_routes(&netlink, device).await.unwrap(), set(&[]));
        assert_eq!(unreachable().await, wanted);
        netlink.handle.link().del(device).execute().await.unwrap();
        assert_eq!(unreachable().await, wanted);

        // Those of a former process are known again.
        let device = tunnel(&netlink).await;
        let routes = DeviceRoutes::new(netlink.clone(), device).with_last_resort();
        assert_none(&routes.sync(&set(&[])).await);
        assert_eq!(unreachable().await, wanted, "the prefixes are not known yet");
        assert_none(&routes.sync(&set(&["10.72.0.0/16"])).await);
        assert_eq!(unreachable().await, set(&["10.72.0.0/16"]));
    });
}

/// A device that is up.
async fn tunnel(netlink: &Netlink) -> u32 {
    let pair = rtnetlink::LinkVeth::new("other", "tunnel").build();
    netlink.handle.link().add(pair).execute().await.unwrap();
    let device = netlink.interface_index("tunnel").await.unwrap();
    netlink.set_up(device).await.unwrap();

    device
}

async fn own_routes(netlink: &Netlink, index: u32) -> io::Result<BTreeSet<IpNet>> {
    netlink.own_routes(RouteTarget::Interface(index)).await
}

async fn remove_addresses(netlink: &Netlink, index: u32) {
    let on_it = netlink.handle.address().get().set_link_index_filter(index).execute();
    let on_it: Vec<_> = on_it.try_collect().await.unwrap();
    let added = |address: &IpAddr| !address.is_loopback();
    for message in on_it {
        if address_of(&message.attributes).as_ref().is_some_and(added) {
            netlink.handle.address().del(message).execute().await.unwrap();
        }
    }
}

async fn add_foreign(netlink: &Netlink, prefix: &str, index: u32) {
    let mut route = route_message(net(prefix), Some(index));
    route.header.protocol = RouteProtocol::Static;
    netlink.handle.route().add(route).execute().await.unwrap();
}

fn exists() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

#[test]
fn routes_are_added_before_others_are_removed() {
    let installed = set(&["10.0.0.0/15", "10.2.0.0/16"]);
    let wanted = set(&["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"]);

    let changes = route_changes(&installed, &wanted);

    assert_eq!(
        changes,
        [
            Change::Add(net("10.0.0.0/16")),
            Change::Add(net("10.1.0.0/16")),
            Change::Remove(net("10.0.0.0/15")),
        ]
    );
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn set(prefixes: &[&str]) -> BTreeSet<IpNet> {
    prefixes.iter().map(|text| net(text)).collect()
}

#[track_caller]
fn assert_none(errors: &[RouteError]) {
    assert!(errors.is_empty(), "{errors:?}");
}
