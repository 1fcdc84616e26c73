//! Adapts the help: each subcommand lists only the flags that it uses.

use clap::{Command, CommandFactory as _};

use super::Args;

/// Subcommands that write a log.
const LOGGING: [&str; 4] = ["gateway", "operator", "node", "device"];

/// Flags that a subcommand accepts like the others of its kind, but does not use.
const UNUSED: [(&str, &[&str]); 16] = [
    ("network init", &["wait"]),
    ("create configuration", &["liqo_namespace", "cluster_id"]),
    ("create gatewayserver", &["cluster_id"]),
    ("create gatewayclient", &["cluster_id"]),
    ("create publickey", &["liqo_namespace", "cluster_id"]),
    ("delete configuration", &["liqo_namespace", "cluster_id"]),
    ("delete gatewayserver", &["liqo_namespace", "cluster_id"]),
    ("delete gatewayclient", &["liqo_namespace", "cluster_id"]),
    ("delete publickey", &["liqo_namespace", "cluster_id"]),
    ("generate configuration", &["namespace"]),
    ("plan connect", &["wait", "yes", "global_labels", "global_annotations"]),
    ("plan disconnect", &["wait", "yes"]),
    ("plan reset", &["wait", "yes"]),
    ("plan network", &["namespace"]),
    ("info", &["namespace"]),
    ("info peer", &["liqo_namespace", "cluster_id"]),
];

/// Subcommands that use all namespaces unless one is named.
const ALL_NAMESPACES: [&str; 3] = ["info peer", "status", "check"];

/// Subcommands for one object, or for the objects of a file.
const ONE_NAMESPACE: [&str; 10] = [
    "create configuration",
    "create gatewayserver",
    "create gatewayclient",
    "create publickey",
    "delete configuration",
    "delete gatewayserver",
    "delete gatewayclient",
    "delete publickey",
    "generate publickey",
    "plan apply",
];

/// The whole command line.
pub(crate) fn command() -> Command {
    let mut command = Args::command();
    let log_flags: Vec<_> = command
        .get_arguments()
        .filter(|flag| flag.is_global_set())
        .map(|flag| flag.clone().hide(true))
        .collect();
    let quiet: Vec<_> = command
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .filter(|name| !LOGGING.contains(&name.as_str()))
        .collect();
    for name in quiet {
        let flags = log_flags.clone();
        command = command.mut_subcommand(name, |verb| verb.args(flags));
    }
    for (path, flags) in UNUSED {
        for flag in flags {
            command = within(command, path, |verb| verb.mut_arg(flag, |flag| flag.hide(true)));
        }
    }
    for path in ALL_NAMESPACES {
        command = with_namespace(command, path, "all");
    }
    for path in ONE_NAMESPACE {
        command = with_namespace(command, path, "that of the context");
    }

    command
}

/// Sets the default namespace in the help of the subcommand at `path`.
fn with_namespace(command: Command, path: &str, default: &str) -> Command {
    let help = format!("Namespace of the objects [default: {default}]");

    within(command, path, |verb| verb.mut_arg("namespace", |flag| flag.help(help)))
}

/// Changes the subcommand at `path`, whose words are separated by spaces.
fn within(command: Command, path: &str, change: impl FnOnce(Command) -> Command) -> Command {
    match path.split_once(' ') {
        None => command.mut_subcommand(path, change),
        Some((first, rest)) => command.mut_subcommand(first, |verb| within(verb, rest, change)),
    }
}

#[cfg(test)]
mod tests {
    use strait_host::usage::UsageError;

    use super::super::parse;

    fn help(path: &str) -> String {
        let words = ["strait"].into_iter().chain(path.split(' ')).chain(["--help"]);
        let Err(UsageError::Answer(text)) = parse(words) else { panic!("no help of {path}") };

        text
    }

    #[test]
    fn help_lists_the_flags_that_are_used() {
        for (path, used, unused) in [
            ("network init", "--remote-context", "--gw-"),
            ("network init", "--timeout", "--wait"),
            ("network connect", "--gw-server-service-port", "--server-port"),
            ("network connect", "--yes", "--log-level"),
            ("network disconnect", "--wait", "--mtu"),
            ("plan connect", "--gw-client-port", "--wait"),
            ("info", "--liqo-namespace", "--namespace"),
            ("delete publickey", "--yes", "--cluster-id"),
            ("gateway", "--log-level", "--timeout"),
        ] {
            let text = help(path);
            let lists = |flag: &str| {
                text.lines().any(|line| {
                    let line = line.trim_start();
                    line.starts_with(flag) || line.contains(&format!(", {flag}"))
                })
            };

            assert!(lists(used), "{path} lacks {used}:\n{text}");
            assert!(!lists(unused), "{path} lists {unused}:\n{text}");
        }
    }

    #[test]
    fn each_subcommand_shows_its_default_namespace() {
        for (path, default) in [
            ("status", "[default: all]"),
            ("delete publickey", "[default: that of the context]"),
            ("network connect", "[default: liqo-tenant-REMOTE_ID, created if missing]"),
        ] {
            assert!(help(path).replace("\n          ", " ").contains(default), "{path}");
        }
    }

    #[test]
    fn unused_flags_are_accepted() {
        for words in [
            "strait network init --remote-context a --wait",
            "strait delete publickey a --cluster-id b --log-level debug",
            "strait plan reset --remote-context a --yes",
        ] {
            assert!(parse(words.split(' ')).is_ok(), "{words}");
        }
    }
}
