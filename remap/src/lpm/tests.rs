use super::*;

#[test]
fn the_longest_prefix_wins() {
    let map = map(&["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "fd00::/8"]);

    let found = |address: &str| map.get(address.parse().unwrap()).map(String::as_str);
    assert_eq!(found("10.1.2.3"), Some("10.1.2.3/32"));
    assert_eq!(found("10.1.2.4"), Some("10.1.0.0/16"));
    assert_eq!(found("10.2.0.0"), Some("10.0.0.0/8"));
    assert_eq!(found("255.255.255.255"), Some("0.0.0.0/0"));
    assert_eq!(found("fdff::1"), Some("fd00::/8"));
    assert_eq!(found("fe00::"), None);
}

#[test]
fn duplicate_prefix_is_named() {
    let prefix: Prefix = "10.0.0.0/8".parse().unwrap();

    let error = Lpm::new([(prefix, 1), (prefix, 2)]).unwrap_err();

    assert_eq!(error.to_string(), "10.0.0.0/8 is listed twice");
}

#[test]
fn an_empty_map_finds_nothing() {
    assert_eq!(Lpm::<u8>::default().lookup("0.0.0.0".parse().unwrap()), None);
}

#[test]
fn map_of_one_prefix_stays_small() {
    let v4 = map(&["10.244.0.0/16"]);
    let v6 = map(&["fd00:10:244::/56"]);

    assert_eq!((v4.index_bytes(), v6.index_bytes()), (64, 128));
}

#[test]
fn adjacent_host_maps_need_no_block() {
    let hosts = (0..=u16::MAX).map(|n| (host(n), n));

    let map = Lpm::new(hosts).unwrap();

    assert_eq!(map.lookup([169, 254, 3, 7].into()), Some(0x0307));
    assert!(map.index_bytes() < 9 * map.len(), "{} bytes", map.index_bytes());
}

fn host(n: u16) -> Prefix {
    let [high, low] = n.to_be_bytes();

    Prefix::new([169, 254, high, low].into(), 32).unwrap()
}

fn map(prefixes: &[&str]) -> Lpm<String> {
    Lpm::new(prefixes.iter().map(|text| (text.parse().unwrap(), (*text).to_owned()))).unwrap()
}
