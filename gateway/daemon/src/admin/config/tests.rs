use strait_host::logging::LogFormat;
use strait_wg::PresharedKey;

use super::*;
use crate::config::example;

fn page(config: Config) -> Value {
    let in_force = AppliedConfig { config: config.into(), mtu_bytes: 1340, generation: 3 };
    let (_layer, log) = Log::new("warn", LogFormat::Json);
    log.set_filter("debug").unwrap();

    serde_json::to_value(ConfigPage::new(&in_force, &FlagValues::default(), &log)).unwrap()
}

#[test]
fn every_setting_has_value_and_origin() {
    let mut config = example::config();
    let object = Origin::Object {
        kind: "Configuration".to_owned(),
        namespace: "tenant".to_owned(),
        name: "rome".to_owned(),
    };
    let file = Origin::File { path: "/etc/strait.toml".to_owned() };
    config.origins = Origins::default().with("private_key_file", file);
    config.peers[0].origins = Origins::default().with("remap", object);

    let page = page(config);

    assert_eq!(page["generation"], 3);
    let settings = &page["settings"];
    assert_eq!(settings["mtu"], json!({"value": 1340, "origin": {"from": "default"}}));
    assert_eq!(
        settings["public_key"]["origin"],
        json!({"from": "file", "path": "/etc/strait.toml"})
    );
    assert_eq!(settings["metrics_address"]["value"], "127.0.0.1:9090");
    assert_eq!(settings["addresses"]["value"], json!(["169.254.18.1/30"]));
    assert_eq!(settings["log_format"]["value"], "json");
    assert_eq!(settings["log_level"]["origin"], json!({"from": "request"}));
    let peer = &page["peers"][0];
    assert_eq!(peer["endpoints"]["value"], json!(["192.0.2.1:51840"]));
    assert_eq!(peer["persistent_keepalive"]["value"], 25);
    assert_eq!(peer["allowed_ips"]["value"], json!(["10.244.0.0/16"]));
    assert_eq!(
        peer["remap"],
        json!({
            "value": [
                {"remote": "10.244.0.0/16", "local": "10.71.0.0/16", "checksum_neutral": false},
            ],
            "origin": {
                "from": "object", "kind": "Configuration", "namespace": "tenant", "name": "rome",
            },
        })
    );
}

#[test]
fn the_page_has_exactly_these_keys() {
    let page = page(example::config());
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();

    assert_eq!(keys(&page), ["generation", "peers", "settings"]);
    let settings = [
        "addresses",
        "admin_socket",
        "engine",
        "host_map",
        "interface",
        "listen_port",
        "log_format",
        "log_level",
        "masquerade",
        "max_flows",
        "metrics_address",
        "mss_clamp",
        "mtu",
        "name",
        "own_prefixes",
        "public_key",
        "routes",
        "tun_tso",
        "tun_udp_tunnel",
        "tun_uso",
        "udp_gro",
        "udp_gso",
        "udp_steering",
        "vector_aead",
        "workers",
    ];
    assert_eq!(keys(&page["settings"]), settings);
    let peer = [
        "allowed_ips",
        "endpoints",
        "has_preshared_key",
        "name",
        "persistent_keepalive",
        "public_key",
        "remap",
    ];
    assert_eq!(keys(&page["peers"][0]), peer);
}

#[test]
fn no_secret_is_shown() {
    let config = example::config();
    let private_key = config.private_key.to_base64();
    let preshared_key = PresharedKey::from_file_content(&[6; 32]).unwrap();
    assert_eq!(config.peers[0].keys.preshared_key, Some(preshared_key));

    let page = page(config);

    let text = page.to_string();
    assert!(!text.contains(private_key.as_str()), "{text}");
    // 32 bytes of 6 as base64, and as numbers.
    assert!(!text.contains("BgYGBgYG") && !text.contains("6,6,6"), "{text}");
    assert!(!text.contains("7,7,7"), "{text}");
    assert_eq!(page["peers"][0]["has_preshared_key"]["value"], true);
}
