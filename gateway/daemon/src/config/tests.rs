mod findings;
mod overlay;

use std::fs;
use std::num::NonZeroU16;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use strait_lab::thread_time;
use strait_wg::PublicKey;

use super::*;
use crate::reload::Reload;
use crate::routes::Routes;

/// RFC 7748 section 6.1, the public keys of Alice and Bob.
const ALICE: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
const BOB: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";

/// Another public key.
const OTHER: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// The private key of Alice.
const OWN: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";

/// The documented example, with paths and keys filled in.
const EXAMPLE: &str = r#"[gateway]
name = "milan"                      # default: host name
interface = "strait0"               # TUN device to create
addresses = ["169.254.18.1/30"]     # on the device
listen_port = 51840
mtu = 1340                          # of the device; default: from the underlay's MTU, less 80
private_key_file = "private.key"    # 32 raw bytes or base64 text; refused if others may read it
metrics_address = "127.0.0.1:9090"  # default off
engine = "boringtun"
routes = true                       # install routes for remapped prefixes to the device (rtnetlink)

[[peer]]
name = "rome"
public_key = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="
preshared_key_file = "preshared.key"
endpoint = "host-or-ip:51840"       # optional: a server learns it
persistent_keepalive = 25           # optional, seconds
allowed_ips = ["10.244.0.0/16"]     # the remote's real prefixes

[[peer.remap]]
remote = "10.244.0.0/16"            # as the remote calls its pods
local = "10.71.0.0/16"              # as this cluster sees them
"#;

/// A `[cluster]` section with every key.
const CLUSTER: &str = r#"
[cluster]
pod_cidrs = ["10.244.0.0/16"]
external_cidrs = ["10.70.0.0/16"]
masquerade = ["10.70.0.1", "10.70.0.4/30"]
max_flows = 4096

[[cluster.host_map]]
internal = "192.0.2.9"
external = "10.70.0.9"
"#;

/// The minimal configuration.
const MINIMAL: &str = "[gateway]\nprivate_key_file = \"private.key\"\n";

#[test]
fn the_documented_example_is_valid() {
    let config = Site::new(EXAMPLE).load().unwrap();

    assert_eq!(config.name, "milan");
    assert_eq!(config.interface, "strait0");
    assert_eq!(config.addresses, ["169.254.18.1/30".parse().unwrap()]);
    assert_eq!((config.listen_port, config.mtu_bytes), (51840, Some(1340)));
    assert_eq!(config.private_key.public_key().to_string(), ALICE);
    assert_eq!(config.metrics_address, Some("127.0.0.1:9090".parse().unwrap()));
    assert!(config.routes);
    let peer = &config.peers[0];
    assert_eq!((peer.name.as_str(), peer.keys.public_key.to_string().as_str()), ("rome", BOB));
    assert!(peer.keys.preshared_key.is_some());
    let name = HostPort { host: "host-or-ip".to_owned(), port: 51840 };
    assert_eq!(peer.endpoints, [Endpoint::Name(name)]);
    assert_eq!(peer.persistent_keepalive, NonZeroU16::new(25));
    assert_eq!(*peer.allowed_ips, ["10.244.0.0/16".parse().unwrap()]);
    assert_eq!(peer.remaps[0].local(), "10.71.0.0/16".parse().unwrap());
}

#[test]
fn everything_optional_has_its_default() {
    let config = Site::new(&peer(MINIMAL, "")).load().unwrap();

    assert_eq!(config.name, host_name());
    assert_eq!(config.interface, "strait0");
    assert_eq!(config.addresses, []);
    assert_eq!((config.listen_port, config.mtu_bytes), (51840, None));
    assert_eq!(config.metrics_address, None);
    assert_eq!(config.admin_socket_path(), Some("/run/strait/strait0.sock".into()));
    assert_eq!(config.engine, Engine::Native);
    assert!(config.routes);
    assert_eq!(config.offload, Offload::default());
    let peer = &config.peers[0];
    assert_eq!(peer.name, "3p7bfXt9");
    assert_eq!((peer.endpoints.as_slice(), peer.persistent_keepalive), (&[][..], None));
}

#[test]
fn the_origin_is_the_file_or_default() {
    let text = format!(
        "{MINIMAL}routes = true\n[gateway.offload]\ntun_uso = true\n{CLUSTER}{}{}",
        peer("", ""),
        EXAMPLE.split_once("\n\n").unwrap().1.replace(BOB, OTHER),
    );
    let site = Site::new(&text);
    let config = site.load().unwrap();
    let file = Origin::File { path: site.file().display().to_string() };

    for present in ["private_key_file", "routes", "tun_uso", "pod_cidrs", "max_flows", "host_map"] {
        assert_eq!(config.origins.of(present), file, "{present}");
    }
    for absent in ["name", "interface", "listen_port", "mtu", "tun_tso", "engine"] {
        assert_eq!(config.origins.of(absent), Origin::Default, "{absent}");
    }
    let [bare, whole] = config.peers.as_slice() else { panic!("two peers") };
    for key in ["name", "preshared_key_file", "endpoint", "persistent_keepalive", "remap"] {
        assert_eq!(bare.origins.of(key), Origin::Default, "{key}");
        assert_eq!(whole.origins.of(key), file, "{key}");
    }
    assert_eq!(bare.origins.of("allowed_ips"), file);
}

#[test]
fn every_offload_can_be_switched_off() {
    let text = format!(
        "{MINIMAL}[gateway.offload]\ntun_tso = false\ntun_uso = false\ntun_udp_tunnel = false\nudp_gso = false\nudp_gro = false\nudp_steering = false\nvector_aead = false\n"
    );

    let config = Site::new(&text).load().unwrap();

    let off = Offload {
        tun_tso: false,
        tun_uso: false,
        tun_udp_tunnel: false,
        udp_gso: false,
        udp_gro: false,
        udp_steering: false,
        vector_aead: false,
    };
    assert_eq!(config.offload, off);
}

/// On arm64 it is off by default.
#[test]
fn vector_aead_can_be_switched_on() {
    let text = format!("{MINIMAL}[gateway.offload]\nvector_aead = true\n");

    assert_eq!(Site::new(&text).load().unwrap().offload, Offload::ON);
}

#[test]
fn the_admin_socket_can_move_or_be_off() {
    for (text, expected) in [("/tmp/s", Some("/tmp/s".into())), ("", None)] {
        let config = Site::new(&format!("{MINIMAL}admin_socket = {text:?}\n")).load().unwrap();

        assert_eq!(config.admin_socket_path(), expected);
    }
}

#[test]
fn a_peer_may_have_several_endpoints() {
    let several = r#"endpoints = ["192.0.2.1:1", "rome.example:2", "[2001:db8::1]:3"]"#;

    let config = Site::new(&peer(MINIMAL, several)).load().unwrap();

    let shown: Vec<_> = config.peers[0].endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["192.0.2.1:1", "rome.example:2", "[2001:db8::1]:3"]);
    let none = Site::new(&peer(MINIMAL, "endpoints = []")).load().unwrap();
    assert_eq!(none.peers[0].endpoints, []);
}

#[test]
fn a_keepalive_of_0_is_off() {
    let config = Site::new(&peer(MINIMAL, "persistent_keepalive = 0")).load().unwrap();

    assert_eq!(config.peers[0].persistent_keepalive, None);
}

#[test]
fn the_cluster_section_is_parsed() {
    let config = Site::new(&format!("{EXAMPLE}{CLUSTER}")).load().unwrap();

    let cluster = &config.cluster;
    let prefixes: Vec<_> = cluster.prefixes.iter().map(ToString::to_string).collect();
    assert_eq!(prefixes, ["10.244.0.0/16", "10.70.0.0/16"]);
    assert_eq!(cluster.masquerade.len(), 5);
    assert_eq!(cluster.masquerade.last(), Some(&"10.70.0.7".parse().unwrap()));
    assert_eq!(cluster.host_maps[0].to_string(), "192.0.2.9 as 10.70.0.9");
    assert_eq!(config.max_flows, 4096);
}

#[test]
fn workers_are_off_unless_the_file_sets_them() {
    let load = |line: &str| Site::new(&format!("{MINIMAL}{line}\n")).load();

    for (line, workers) in [
        ("", Workers::Exactly(0)),
        ("workers = \"auto\"", Workers::Auto),
        ("workers = 0", Workers::Exactly(0)),
        ("workers = 16", Workers::Exactly(16)),
    ] {
        assert_eq!(load(line).unwrap().workers, workers, "{line}");
    }
    for line in ["workers = 17", "workers = -1", "workers = \"two\"", "workers = true"] {
        let finding = load(line).unwrap_err().to_string();
        assert!(finding.contains("neither \"auto\" nor a number from 0 to 16"), "{finding}");
    }
}

#[test]
fn no_secret_is_shown_in_any_form() {
    let config = Site::new(EXAMPLE).load().unwrap();

    let shown = format!("{config} {config:?} {config:#?}");

    assert!(shown.contains(ALICE) && shown.contains(BOB), "{shown}");
    assert!(shown.contains("preshared_key=set"), "{shown}");
    assert!(!shown.contains(OWN), "{shown}");
    assert!(!shown.contains(PRESHARED) && !shown.contains("42, 42"), "{shown}");
}

#[test]
fn the_configuration_is_logged_in_one_line() {
    let config = Site::new(EXAMPLE).load().unwrap();

    assert_eq!(config.to_string().lines().count(), 1);
}

#[test]
fn a_log_line_lists_64_peers() {
    let mut config = Site::new(EXAMPLE).load().unwrap();
    let peer = config.peers[0].clone();
    config.peers = vec![peer; SHOWN_PEERS + 9_000];

    let shown = config.to_string();

    assert!(shown.ends_with(" and 9000 more"), "{shown}");
    assert_eq!(shown.matches("public_key=").count(), 1 + SHOWN_PEERS);
}

/// Parsing, comparing and computing routes.
#[test]
fn loading_scales_linearly_with_peers() {
    let [few, many] = [1_500, 6_000].map(|count| {
        let before = thread_time().unwrap();
        let config = Site::new(&with_peers(count)).load().unwrap();
        let mut other = config.clone();
        other.peers[0].name = "another".to_owned();
        let reload = Reload::between(&config, other);
        let endpoints: Vec<_> = config.endpoint_addresses().collect();
        let routes = Routes::new(&config, &endpoints, &endpoints);

        assert_eq!(reload.peers.changed, ["another"]);
        assert_eq!(routes.wanted.len(), count);
        thread_time().unwrap() - before
    });

    assert!(many < 8 * few, "{few:?}, {many:?}");
}

fn with_peers(count: usize) -> String {
    use std::fmt::Write as _;

    let (gateway, _) = EXAMPLE.split_once("[[peer]]").unwrap();
    let mut text = gateway.to_owned();
    for number in 0..u32::try_from(count).unwrap() {
        let mut key = [0x55; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        let key = PublicKey::from_bytes(key);
        let [_, a, b, c] = number.to_be_bytes();
        let text = &mut text;
        writeln!(text, "[[peer]]\nname = \"peer-{number}\"\npublic_key = \"{key}\"").unwrap();
        writeln!(text, "endpoint = \"198.{a}.{b}.{c}:51840\"").unwrap();
        writeln!(text, "allowed_ips = [\"172.{a}.{b}.{c}/32\"]").unwrap();
    }

    text
}

#[test]
fn line_numbers_start_at_1() {
    assert_eq!(parse::Lines::new("a\nb\n").number(0), 1);
    assert_eq!(parse::Lines::new("a\nb\n").number(2), 2);
    assert_eq!(parse::Lines::new("a\nb\n").number(99), 3);
}

/// 32 times 0x2a.
const PRESHARED: &str = "KioqKioqKioqKioqKioqKioqKioqKioqKioqKioqKio=";

/// A directory with a configuration and key files of every kind.
struct Site(tempfile::TempDir);

impl Site {
    fn new(text: &str) -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        site.write("strait.toml", text.as_bytes(), 0o644);
        site.write("private.key", OWN.as_bytes(), 0o600);
        site.write("preshared.key", PRESHARED.as_bytes(), 0o600);
        site.write("open.key", OWN.as_bytes(), 0o644);
        site.write("empty.key", b"", 0o600);
        site.write("short.key", b"c2VjcmV0", 0o600);
        site.write("zero.key", &[0; 32], 0o600);

        site
    }

    fn write(&self, name: &str, content: &[u8], mode: u32) {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("strait.toml")
    }

    fn load(&self) -> Result<Config, Findings> {
        Config::load(&self.file())
    }
}

/// `text` and a peer with Bob's key and the lines `more`.
fn peer(text: &str, more: &str) -> String {
    format!("{text}\n[[peer]]\npublic_key = \"{BOB}\"\nallowed_ips = [\"10.9.0.0/16\"]\n{more}\n")
}
