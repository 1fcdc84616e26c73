use serde_json::json;
use strait_daemon::config::Origin;
use strait_daemon::flag_values::Setting;
use strait_host::logging::LogFormat;
use strait_wg::Engine;

use super::*;

#[test]
fn the_definition_of_the_command_line_is_consistent() {
    command().debug_assert();
}

#[test]
fn every_flag_has_an_environment_variable() {
    let mut without = Vec::new();

    visit(&command(), &mut |argument| {
        // Hidden flags exist only for old command lines.
        if argument.get_env().is_none() && !argument.is_hide_set() {
            without.push(argument.get_id().to_string());
        }
    });

    assert_eq!(without, Vec::<String>::new());
}

#[test]
fn log_options_may_stand_after_the_subcommand() {
    let args = parse(["strait", "gateway", "--config", "f", "--log-format", "json"]).unwrap();

    assert_eq!(args.log.log_format, Some(LogFormat::Json));
}

#[test]
fn the_dns_interval_works_with_a_file() {
    let words = ["strait", "gateway", "--config", "f", "--dns-check-interval", "1m"];
    let Command::Gateway(gateway) = parse(words).unwrap().command else {
        panic!("another command")
    };

    assert_eq!(gateway.cluster.dns_check_interval.as_secs(), 60);
}

#[test]
fn the_last_of_repeated_flags_counts() {
    let words = ["strait", "gateway", "--config=f", "--dns-check-interval=1m"];
    let words = words.into_iter().chain(["--dns-check-interval=2m"]);
    let Command::Gateway(gateway) = parse(words).unwrap().command else {
        panic!("another command")
    };

    assert_eq!(gateway.cluster.dns_check_interval.as_secs(), 120);
}

#[test]
fn wrong_usage_names_the_word_in_one_line() {
    for (words, offending) in [
        (vec!["strait"], "subcommand"),
        (vec!["strait", "ferry"], "ferry"),
        (vec!["strait", "gateway", "--kube", "--mode", "both"], "both"),
        (vec!["strait", "gateway", "--kube", "both"], "both"),
        (vec!["strait", "gateway", "--kube", "--mtu=500"], "500"),
        (vec!["strait", "gateway", "--config", "f", "--name=milan"], "--name cannot"),
        (vec!["strait", "gateway", "--config", "f", "--kube"], "--kube cannot"),
        (vec!["strait", "gateway", "--config", "f", "--speed"], "--speed"),
        (vec!["strait", "check", "--config", "f", "--context=rome"], "--context cannot"),
        (vec!["strait", "check", "--config", "f", "--remote-context=a"], "--remote-context c"),
        (vec!["strait", "check", "--remote-namespace=a"], "--remote-namespace needs"),
        (vec!["strait", "check", "--remote-cluster-id=a"], "--remote-cluster-id needs"),
        (vec!["strait", "check", "--remote-liqo-namespace", "liqo"], "--remote-liqo-namespace"),
        (vec!["strait", "plan", "network", "a", "--cidr=10.0.0.0/8", "-n=b"], "--namespace c"),
        (vec!["strait", "--log-level", "a=b=c", "gateway", "--config", "f"], "a=b=c"),
    ] {
        let error = parse(words.clone()).unwrap_err();

        let text = error.to_string();
        assert!(matches!(error, UsageError::Wrong(_)), "{words:?}");
        assert!(text.contains(offending), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn flags_that_fit_together_are_accepted() {
    for words in [
        "strait check --config f -o yaml --log-level debug",
        "strait check --config f --json",
        "strait check --remote-context a --remote-namespace b --remote-cluster-id c",
        "strait check -n a --context b",
        "strait plan network a --cidr 10.0.0.0/8 --liqo-namespace b",
        "strait plan apply -f - -n b",
    ] {
        assert!(parse(words.split(' ')).is_ok(), "{words}");
    }
}

#[test]
fn flags_of_every_liqo_release_are_accepted() {
    let words = [
        "strait",
        "gateway",
        "--kube",
        "--name",
        "4",
        "--listen-port=51840",
        "--container-name=wireguard",
        "--enable-nft-monitor=true",
        "--v",
        "4",
        "--leader-election",
        "--endpoint-port=1,2",
        "--ping-enabled=false",
        "--metrics-address=:8082",
    ];

    let args = parse(words).unwrap();

    let Command::Gateway(gateway) = args.command else { panic!("another command") };
    assert_eq!(gateway.ignored, ["--enable-nft-monitor", "--v"]);
    assert_eq!(gateway.cluster.election.leader_election, Some(true));
    assert_eq!(gateway.cluster.name.as_deref(), Some("4"));
    assert_eq!(gateway.cluster.endpoint_ports, [1, 2]);
    assert!(!gateway.cluster.ping_enabled);
    assert_eq!(gateway.cluster.metrics_address.0, Some("0.0.0.0:8082".parse().unwrap()));
}

#[test]
fn gateway_flags_imply_the_subcommand() {
    for (words, is_missing) in [
        (&["strait", "--name=milan", "--mode=server"][..], true),
        (&["strait", "gateway", "--name=milan"], false),
        (&["strait", "--log-level", "debug", "gateway"], false),
        (&["strait", "--version"], false),
        (&["strait", "-h"], false),
        (&["strait"], false),
    ] {
        let words: Vec<_> = words.iter().map(OsString::from).collect();

        assert_eq!(is_without_subcommand(&words), is_missing, "{words:?}");
    }
}

#[test]
fn help_and_version_are_answers() {
    for words in [vec!["strait", "--help"], vec!["strait", "gateway", "--version"]] {
        assert!(matches!(parse(words), Err(UsageError::Answer(_))));
    }
}

#[test]
fn the_name_strait_device_means_device() {
    for words in [
        &["strait", "device", "-f", "wg0"][..],
        &["strait-device", "-f", "wg0"],
        &["/usr/local/bin/strait-device", "--foreground", "wg0"],
    ] {
        let Command::Device(device) = parse(words).unwrap().command else {
            panic!("another command")
        };

        assert_eq!((device.interface.as_str(), device.foreground), ("wg0", true));
        assert_eq!(device.engine, Engine::Native);
    }
}

#[test]
fn each_flag_has_value_and_origin() {
    let flag_values = flag_values(&[
        "--kube",
        "--log-level=warn",
        "--name=7",
        "--mtu=1400",
        "--endpoint-port=1,2",
        "--ping-enabled=false",
        "--ping-interval=500ms",
    ]);
    let setting =
        |name| flag_values.settings().find(|(other, _)| *other == name).unwrap().1.clone();
    let flag = |flag: &str| Origin::Flag { flag: flag.to_owned() };

    for (name, value, origin) in [
        ("kube", json!(true), flag("--kube")),
        ("log_level", json!("warn"), flag("--log-level")),
        ("name", json!("7"), flag("--name")),
        ("mtu", json!(1400), flag("--mtu")),
        // The current name of the flag, also if an alias was typed.
        ("endpoint_ports", json!([1, 2]), flag("--endpoint-ports")),
        ("ping_enabled", json!(false), flag("--ping-enabled")),
        ("ping_interval", json!("500ms"), flag("--ping-interval")),
        ("listen_ports", json!([51840]), Origin::Default),
        ("ping_loss_threshold", json!(5), Origin::Default),
        ("mode", json!(null), Origin::Default),
        ("endpoint_address", json!([]), Origin::Default),
    ] {
        assert_eq!(setting(name), Setting { value, origin }, "{name}");
    }
}

#[test]
fn every_flag_of_a_gateway_is_there() {
    let flag_values = flag_values(&["--config", "f"]);
    let names: Vec<_> = flag_values.settings().map(|(name, _)| name).collect();

    for flag in ["config", "health_probe_bind_address", "keys_dir", "log_format", "log_level"] {
        assert!(names.contains(&flag), "{names:?}");
    }
    assert!(!names.contains(&"help") && !names.contains(&"version"), "{names:?}");
}

fn flag_values(words: &[&str]) -> FlagValues {
    let words = ["strait", "gateway"].iter().chain(words);
    let Command::Gateway(gateway) = parse(words).unwrap().command else {
        panic!("another command")
    };

    gateway.flag_values
}

fn visit(command: &clap::Command, look: &mut impl FnMut(&clap::Arg)) {
    command.get_arguments().for_each(&mut *look);
    command.get_subcommands().for_each(|inner| visit(inner, look));
}
