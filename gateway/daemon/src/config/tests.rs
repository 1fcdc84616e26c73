use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use strait_lab::thread_time;

use super::*;
use crate::reload::Reload;
use crate::routes::Routes;

/// RFC 7748 section 6.1, the public keys of Alice and Bob.
const ALICE: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
const BOB: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";

/// Of nobody.
const OTHER: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// The private key of Alice.
const OWN: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";

/// What the documentation shows, with the paths and the keys filled in.
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

/// What is ours, with everything that can be said of it.
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

/// The least that is a configuration.
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
    assert_eq!((peer.name.as_str(), peer.public_key.to_string().as_str()), ("rome", BOB));
    assert!(peer.preshared_key.is_some());
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
        "{MINIMAL}[gateway.offload]\ntun_tso = false\ntun_uso = false\nudp_gso = false\nudp_gro = false\nudp_steering = false\nvector_aead = false\n"
    );

    let config = Site::new(&text).load().unwrap();

    let off = Offload {
        tun_tso: false,
        tun_uso: false,
        udp_gso: false,
        udp_gro: false,
        udp_steering: false,
        vector_aead: false,
    };
    assert_eq!(config.offload, off);
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

/// One more than a peer may have.
const NINE: &str = r#"endpoints = ["a:1", "a:2", "a:3", "a:4", "a:5", "a:6", "a:7", "a:8", "a:9"]"#;

/// A change to the example, the line it is found in, the value and the remedy it must name.
type Case = (&'static str, &'static str, usize, &'static str, &'static str);

#[test]
fn each_finding_names_line_value_and_remedy() {
    let cases: &[Case] = &[
        // The file itself.
        ("listen_port = 51840", "listen_prt = 51840", 5, "`listen_prt`", "expected one of"),
        ("endpoint =", "endpont =", 16, "`endpont`", "expected one of"),
        ("local =", "lokal =", 22, "`lokal`", "expected one of `remote`, `local`"),
        ("routes = true", "routes = \"yes\"", 10, "\"yes\"", "expected a boolean"),
        ("mtu = 1340", "mtu = = 1340", 6, "", "expected"),
        ("name = \"milan\"", "name = \"milan", 2, "", "expected"),
        // The gateway.
        ("name = \"milan\"", "name = \"mi lan\"", 2, "\"mi lan\"", "without white space"),
        ("\"strait0\"", "\"straits-of-gibraltar\"", 3, "\"straits-of-gibraltar\"", "1 to 15 bytes"),
        ("\"strait0\"", "\"st/0\"", 3, "\"st/0\"", "without '/'"),
        ("\"strait0\"", "\"st 0\"", 3, "\"st 0\"", "white space"),
        ("\"strait0\"", "\"\"", 3, "\"\"", "1 to 15 bytes"),
        ("\"strait0\"", "\"strait%d\"", 3, "\"strait%d\"", "'%'"),
        ("\"169.254.18.1/30\"", "\"169.254.18.1\"", 4, "\"169.254.18.1\"", "address/length"),
        ("\"169.254.18.1/30\"", "\"169.254.18.1/33\"", 4, "/33", "address/length"),
        ("\"169.254.18.1/30\"", "\"0.0.0.0/0\"", 4, "0.0.0.0/0", "the address of one host"),
        ("\"169.254.18.1/30\"", "\"127.0.0.9/32\"", 4, "127.0.0.9/32", "the address of one host"),
        (
            "\"169.254.18.1/30\"",
            "\"169.254.18.1/30\", \"169.254.18.1/30\"",
            4,
            "169.254.18.1/30",
            "remove one",
        ),
        ("= 51840\n", "= 70000\n", 5, "listen_port 70000", "0 to 65535"),
        ("= 51840\n", "= -1\n", 5, "listen_port -1", "0 lets the kernel choose"),
        ("mtu = 1340", "mtu = 575", 6, "mtu 575", "576 to 65535 bytes"),
        ("mtu = 1340", "mtu = 65536", 6, "mtu 65536", "576 to 65535 bytes"),
        ("\"127.0.0.1:9090\"", "\"9090\"", 8, "\"9090\"", "address:port"),
        ("engine =", "admin_socket = \"run/s\"\nengine =", 9, "\"run/s\"", "an absolute one"),
        ("engine =", "admin_socket = \"/run/\"\nengine =", 9, "\"/run/\"", "\"\" for none"),
        ("\"boringtun\"", "\"warp\"", 9, "\"warp\"", "\"boringtun\""),
        ("\"private.key\"", "\"lost.key\"", 7, "lost.key: No such file", "strait key generate"),
        ("\"private.key\"", "\"open.key\"", 7, "open.key has mode 0644", "chmod 600"),
        ("\"private.key\"", "\"empty.key\"", 7, "empty.key is empty", "strait key generate"),
        ("\"private.key\"", "\"short.key\"", 7, "6 bytes, expected 32", "strait key generate"),
        ("\"private.key\"", "\"zero.key\"", 7, "all 32 bytes are zero", "strait key generate"),
        // The peer.
        ("\"preshared.key\"", "\"open.key\"", 15, "preshared_key_file", "chmod 600"),
        (BOB, "c2VjcmV0", 14, "\"c2VjcmV0\" has 8 characters", "44 that `strait key public`"),
        (BOB, "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK0!=", 14, "(hidden)", "strait key public"),
        (BOB, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", 14, "zero", "strait key public"),
        (BOB, "0123456789abcdef0123456789abcdef", 14, "has 32 characters", "strait key public"),
        (BOB, ALICE, 14, "\"rome\" has our own public key", "strait key public"),
        ("host-or-ip:51840", "rome", 16, "\"rome\" has no port", "host:port"),
        ("host-or-ip:51840", "rome:0", 16, "\"rome:0\"", "1 to 65535"),
        ("host-or-ip:51840", "2001:db8::1:51840", 16, "\"2001:db8::1:51840\"", "[address]:port"),
        ("host-or-ip:51840", "0.0.0.0:51840", 16, "\"0.0.0.0:51840\"", "can be reached"),
        ("host-or-ip:51840", "[::]:51840", 16, "\"[::]:51840\"", "can be reached"),
        ("host-or-ip:51840", "224.0.0.1:51840", 16, "multicast", "one host"),
        ("host-or-ip:51840", "255.255.255.255:9", 16, "broadcast", "one host"),
        ("host-or-ip:51840", "ro me:51840", 16, "\"ro me:51840\"", "IP address or a DNS name"),
        ("\"host-or-ip:51840\"", "\"a:1\"\nendpoints = [\"a:1\"]", 17, "", "under endpoints"),
        ("endpoint = \"host-or-ip:51840\"", NINE, 16, "9 addresses", "use the best 8"),
        (
            "endpoint = \"host-or-ip:51840\"",
            "endpoints = [\"a:1\",\n\"0.0.0.0:1\"]",
            17,
            "\"0.0.0.0:1\"",
            "can be reached",
        ),
        ("keepalive = 25", "keepalive = 65536", 17, "persistent_keepalive 65536", "0 to 65535"),
        ("[\"10.244.0.0/16\"]", "[]", 14, "\"rome\" has no allowed_ips", "list the prefixes"),
        (
            "[\"10.244.0.0/16\"]",
            "[\"10.244/16\"]",
            18,
            "\"10.244/16\"",
            "write it like 10.244.0.0/16",
        ),
        (
            "[\"10.244.0.0/16\"]",
            "[\"127.0.0.0/16\"]",
            18,
            "127.0.0.0/16 lies in 127.0.0.0/8",
            "RFC 6890",
        ),
        (
            "local = \"10.71.0.0/16\"",
            "local = \"224.1.0.0/16\"",
            22,
            "local: 224.1.0.0/16 lies in 224.0.0.0/4",
            "RFC 6890",
        ),
        (
            "remote = \"10.244.0.0/16\"",
            "remote = \"pods\"",
            21,
            "remote: \"pods\"",
            "write it like 10.244.0.0/16",
        ),
        (
            "local = \"10.71.0.0/16\"",
            "local = \"pods\"",
            22,
            "local: \"pods\"",
            "write it like 10.244.0.0/16",
        ),
    ];

    for &(from, to, line, value, remedy) in cases {
        let text = EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, EXAMPLE, "{from:?} is not in the example");
        let site = Site::new(&text);

        let findings: Vec<String> = site.load().unwrap_err().lines().collect();

        let [finding] = findings.as_slice() else {
            panic!("not one finding for {to:?}: {findings:#?}");
        };
        let place = format!("{}:{line}: ", site.file().display());
        assert!(finding.starts_with(&place), "not in line {line}: {finding}");
        assert!(finding.contains(value), "no value {value:?}: {finding}");
        assert!(finding.contains(remedy), "no remedy {remedy:?}: {finding}");
        assert!(!finding.contains('\n'), "more than one line: {finding}");
    }
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
fn bad_cluster_values_are_named_with_remedy() {
    let cases = [
        ("[\"10.70.0.0/16\"]", "[\"10.70.0.1/16\"]", "host bits set"),
        ("\"10.70.0.1\",", "\"10.70.0.0/16\",", "more than 256 addresses"),
        ("\"10.70.0.1\",", "\"10.244.0.1\",", "take it from external_cidrs"),
        ("[\"10.244.0.0/16\"]\nex", "[]\nex", "masquerade needs pod_cidrs"),
        ("\"192.0.2.9\"", "\"192.0.2.0/24\"", "write one host"),
        ("\"192.0.2.9\"", "\"127.0.0.1\"", "lies in 127.0.0.0/8"),
        ("\"10.70.0.1\",", "\"0.0.0.1\",", "lies in 0.0.0.0/8"),
        ("\"192.0.2.9\"", "\"fd00::9\"", "not of the same IP version"),
        ("\"10.70.0.9\"", "\"10.70.0.1\"", "choose another external address"),
        ("max_flows = 4096", "max_flows = 7", "use 1024 to 4194304"),
    ];

    for (from, to, remedy) in cases {
        let text = CLUSTER.replacen(from, to, 1);
        assert_ne!(text, CLUSTER, "{from:?} is not in the example");

        let findings = Site::new(&format!("{EXAMPLE}{text}")).load().unwrap_err().to_string();

        assert!(findings.contains(remedy), "no remedy {remedy:?}: {findings}");
        assert!(!findings.contains('\n'), "more than one finding: {findings}");
    }
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
fn a_missing_key_is_named() {
    let text = Site::new("[gateway]\nname = \"milan\"\n").load().unwrap_err().to_string();

    assert!(text.contains("missing key `private_key_file`"), "{text}");
}

#[test]
fn a_missing_file_is_named() {
    let text = Config::load(Path::new("/nonexistent/strait.toml")).unwrap_err().to_string();

    assert!(text.starts_with("/nonexistent/strait.toml: cannot read"), "{text}");
    assert!(text.contains("--config"), "{text}");
}

#[test]
fn a_file_without_end_is_refused() {
    let text = Config::load(Path::new("/dev/zero")).unwrap_err().to_string();

    assert!(text.contains("it has more than 64 MiB"), "{text}");
}

#[test]
fn ipv6_needs_an_mtu_of_1280() {
    let small = EXAMPLE.replace("1340", "1200");
    let ipv6 = small.replace("169.254.18.1/30", "fd00::1/64");

    let findings = Site::new(&ipv6).load().unwrap_err().to_string();

    assert!(Site::new(&small).load().is_ok());
    assert!(findings.contains(":6: mtu 1200 is below 1280"), "{findings}");
    assert!(findings.contains("use 1280 or more, or remove IPv6 prefix fd00::"), "{findings}");
}

#[test]
fn peers_have_distinct_keys_and_names() {
    let text = peer(EXAMPLE, "name = \"rome\"");

    let findings = Site::new(&text).load().unwrap_err().to_string();

    assert!(
        findings.contains(r#":24: peer name "rome" is taken by the peer in line 12"#),
        "{findings}"
    );
    assert!(findings.contains(r#"peers "rome" and "rome" have the same public_key"#), "{findings}");
}

#[test]
fn rejections_of_the_plan_are_findings() {
    let text = format!(
        "{EXAMPLE}\n[[peer.remap]]\nremote = \"10.245.0.0/16\"\nlocal = \"10.72.0.0/16\"\n"
    );

    let findings = Site::new(&text).load().unwrap_err().to_string();

    assert!(findings.contains("remote 10.245.0.0/16 is in no allowed_ips"), "{findings}");
}

#[test]
fn all_findings_are_reported_in_file_order() {
    let text = EXAMPLE
        .replace("\"strait0\"", "\"a b\"")
        .replace("mtu = 1340", "mtu = 1")
        .replace(BOB, "x")
        .replace("host-or-ip:51840", "host");
    let site = Site::new(&text);

    let findings: Vec<String> = site.load().unwrap_err().lines().collect();

    let prefix = format!("{}:", site.file().display());
    let lines: Vec<&str> = findings
        .iter()
        .map(|finding| finding.strip_prefix(&prefix).unwrap().split(':').next().unwrap())
        .collect();
    assert_eq!(lines, ["3", "6", "14", "16"]);
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

/// Whatever stands where something else belongs, and however it is written.
#[test]
fn findings_hide_possible_keys() {
    let bytes: Vec<_> = (0..32).map(|byte| format!("{:02x}", 200 - 3 * byte)).collect();
    let base64 = PrivateKey::generate().to_base64();
    let keys = [bytes.concat(), bytes.join(":"), bytes.join(" "), base64.to_string()];
    for key in keys {
        for value in [
            "milan",
            "strait0",
            "169.254.18.1/30",
            "private.key",
            "preshared.key",
            "127.0.0.1:9090",
            "boringtun",
            BOB,
            "host-or-ip:51840",
            "10.244.0.0/16",
            "10.71.0.0/16",
        ] {
            let text = EXAMPLE.replacen(&format!("\"{value}\""), &format!("\"{key}\""), 1);
            assert_ne!(text, EXAMPLE, "{value}");
            let Err(findings) = Site::new(&text).load() else { continue };

            let told = findings.to_string();
            let told = told.rsplit_once("toml:").unwrap().1;
            assert!(!told.contains(&key[..20]), "{value}: {told}");
        }
    }
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

/// Reading it, comparing it with another one, and finding its routes.
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
