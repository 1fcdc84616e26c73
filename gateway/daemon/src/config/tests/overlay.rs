//! The section `[overlay]`.

use strait_packet::overlay::Encapsulation;
use strait_packet::overlay::ethernet::Mac;

use super::*;

const OVERLAY: &str = r#"[overlay]
mac = "0e:53:ac:12:03:02"

[[overlay.node]]
address = "172.18.3.1"
pods = ["10.244.1.0/24", "fd00:10:244:1::/64"]

[[overlay.node]]
address = "172.18.3.9"
vni = 84
mac = "02:00:00:00:00:09"
"#;

#[test]
fn the_overlay_has_the_defaults_of_strait_node() {
    let config = Site::new(&with(OVERLAY)).load().unwrap();

    let overlay = config.overlay.unwrap();
    assert_eq!((overlay.encapsulation, overlay.port), (Encapsulation::Vxlan, 8483));
    assert_eq!(overlay.mac, Some(Mac([0x0e, 0x53, 0xac, 0x12, 3, 2])));
    let [first, second] = &overlay.nodes[..] else { panic!("two nodes") };
    assert_eq!((first.vni.to_number(), first.mac, first.pods.len()), (83, None, 2));
    assert_eq!(second.address, IpAddr::from([172, 18, 3, 9]));
    assert_eq!(second.vni.to_number(), 84);
    assert_eq!(second.mac, Some(Mac([2, 0, 0, 0, 0, 9])));
}

#[test]
fn geneve_has_the_port_of_liqo() {
    let config = Site::new(&with("[overlay]\nencapsulation = \"geneve\"\nvni = 0\n")).load();

    let overlay = config.unwrap().overlay.unwrap();
    assert_eq!((overlay.encapsulation, overlay.port), (Encapsulation::Geneve, 6091));
}

#[test]
fn wrong_values_of_an_overlay_are_refused() {
    for (from, to, expected) in [
        ("[overlay]", "[overlay]\nencapsulation = \"gre\"", "encapsulation \"gre\" is not known"),
        ("[overlay]", "[overlay]\nport = 0", "port 0 is out of range"),
        ("[overlay]", "[overlay]\nport = 51840", "port 51840 is listen_port too"),
        ("vni = 84", "vni = 16777216", "vni 16777216 is out of range"),
        ("vni = 84", "vni = -1", "vni -1 is out of range"),
        ("02:00:00:00:00:09", "ff:ff:ff:ff:ff:ff", "not the address of one station"),
        ("02:00:00:00:00:09", "02:00:00:00:09", "not the address of one station"),
        ("02:00:00:00:00:09", "02:00:00:00:00:+9", "not the address of one station"),
        ("172.18.3.9", "172.18.3.1", "address 172.18.3.1 is that of two nodes"),
        ("172.18.3.9", "172.18.3.0/24", "not an address"),
        ("fd00:10:244:1::/64", "10.244.1.0/24", "10.244.1.0/24 is listed twice"),
    ] {
        let error = Site::new(&with(&OVERLAY.replace(from, to))).load().unwrap_err().to_string();

        assert!(error.contains(expected), "{to}: {error}");
    }

    let text = MINIMAL.to_owned() + "addresses = [\"169.254.18.1/30\"]\n";
    let error = Site::new(&peer(&format!("{text}{OVERLAY}"), "")).load().unwrap_err().to_string();
    assert!(error.contains("a gateway with an overlay has none"), "{error}");
}

#[test]
fn only_nodes_of_an_overlay_change_later() {
    let running = Site::new(&with(OVERLAY)).load().unwrap();
    let other_nodes = Site::new(&with(&OVERLAY.replace("10.244.1.0", "10.244.2.0"))).load();
    let other_port = Site::new(&with(&OVERLAY.replace("[overlay]", "[overlay]\nport = 9"))).load();
    let device = Site::new(&peer(MINIMAL, "")).load();

    let reload = Reload::between(&running, other_nodes.unwrap());
    assert!(!reload.is_unchanged() && reload.needs_restart.is_empty());
    assert_ne!(reload.config.overlay.unwrap().nodes, running.overlay.as_ref().unwrap().nodes);

    for wanted in [other_port.unwrap(), device.unwrap()] {
        let reload = Reload::between(&running, wanted);

        assert_eq!(reload.needs_restart.len(), 1);
        assert_eq!(reload.needs_restart[0].key, "overlay");
        assert_eq!(reload.config.overlay.unwrap().port, 8483);
    }
}

fn with(overlay: &str) -> String {
    peer(&format!("{MINIMAL}{overlay}"), "")
}
