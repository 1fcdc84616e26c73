//! Errors of configurations: each is found, with its line, value and remedy.

use super::*;

/// One more than a peer may have.
const NINE: &str = r#"endpoints = ["a:1", "a:2", "a:3", "a:4", "a:5", "a:6", "a:7", "a:8", "a:9"]"#;

/// A replacement in the example (from, to), the line of the error, and the value and remedy that it must name.
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

/// With any value replaced by a key in any form.
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

            let text = findings.to_string();
            let text = text.rsplit_once("toml:").unwrap().1;
            assert!(!text.contains(&key[..20]), "{value}: {text}");
        }
    }
}
