//! What was typed: the command line and its environment variables, not yet what they mean.

mod help;
mod order;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches, Parser, Subcommand, ValueEnum as _};
use clap_complete::Shell;
use strait_daemon::cluster::flags::{self, ClusterFlags};
use strait_daemon::device::{self, DeviceArgs};
use strait_daemon::explain::ExplainArgs;
use strait_daemon::given::Given;
use strait_daemon::show::ShowArgs;
use strait_host::logging::LogArgs;
use strait_host::usage::UsageError;
use strait_lab::demo::DemoArgs;
use strait_node::NodeArgs;
use strait_peering::cli::{TypedCheck, TypedCommand};

use super::operator::OperatorArgs;

pub(crate) use help::command;

/// A userspace WireGuard gateway that joins Kubernetes clusters, also when their pod CIDRs overlap.
///
/// Exit status: 0 done, 64 wrong usage or configuration (nothing was touched), 1 anything else.
#[derive(Debug, Parser)]
#[command(name = "strait", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One variant a subcommand, each with the arguments its module understands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a gateway
    ///
    /// From a configuration file, or in a pod from the objects of the API server; there, flags that
    /// are not known are ignored with a warning, as releases of Liqo differ in theirs.
    ///
    /// SIGHUP reads the file again and applies what changed: sessions and learned endpoints
    /// survive. SIGTERM and SIGINT send what is under way and exit with status 0.
    ///
    /// The admin port (metrics_address) serves /metrics, /healthz, /readyz, /config and /log.
    /// `PUT /log?level=FILTER` changes what is logged until the process ends; only from a loopback
    /// address, as others may be let in to scrape.
    Gateway(Box<GatewayArgs>),
    /// Make a WireGuard device for `wg` and `wg-quick`, as `wireguard-go NAME` does
    ///
    /// It has no address, is not up, and waits for configuration on /var/run/wireguard/NAME.sock. Without
    /// --foreground the command ends when the device is there, which goes on in the background until
    /// SIGTERM or SIGINT comes, or until the device or its socket is removed.
    ///
    /// A link to this program called `strait-device` means the same, for wg-quick:
    /// WG_QUICK_USERSPACE_IMPLEMENTATION=strait-device. LOG_LEVEL (verbose, error or silent) counts as for
    /// wireguard-go unless --log-level or RUST_LOG is given; without all of them nothing is logged in the
    /// background.
    Device(DeviceArgs),
    /// Show the WireGuard devices of this host and their peers
    ///
    /// As `wg show` does, of gateways, of `strait device` and of any other WireGuard in user space; of
    /// ours also the round trip, the path MTU, and what was dropped why. Secrets are not shown.
    ///
    /// Exit status: 0 done, 69 no such device answers, or one does not answer as it should. Of several the
    /// others are shown all the same.
    Show(ShowArgs),
    /// Find what is wrong in a cluster or in a configuration file, with a remedy each
    ///
    /// Of a cluster: the API, the operator, prefixes, gateways, keys, connections and rights; with
    /// --remote-kubeconfig or --remote-context of both, and whether they fit together. With --config: of
    /// that file, and what a gateway would do with it. Nothing is changed.
    ///
    /// Exit status: 0 nothing is wrong but for warnings, 1 something is, or the cluster cannot be asked,
    /// 64 wrong usage, or a wrong file.
    Check(Box<TypedCheck>),
    /// Make gateways of the objects that ask for them
    ///
    /// For clusters without Liqo, whose controllers do the same. In a pod, or where KUBECONFIG says. Of
    /// several replicas one works, the one that holds the Lease `strait-operator`. SIGTERM and SIGINT end
    /// it with exit status 0; what was made stays.
    Operator(OperatorArgs),
    /// Lead packets of this node to the gateways
    ///
    /// For clusters without Liqo, on every node, in its network. In a pod, or where KUBECONFIG says.
    /// Keeps routes for the prefixes of remote clusters in a table of its own; a gateway that moves is
    /// followed. SIGTERM and SIGINT end it with exit status 0 and leave the routes; `--clean-up` removes
    /// them.
    Node(NodeArgs),
    /// Say what becomes of a packet, and why
    ///
    /// Asks the gateway that runs on this host, or a configuration file, and changes nothing: no
    /// packet is sent and no flow is remembered. Outbound (the default), SRC and DST are addresses
    /// as this cluster knows them. Inbound, they are addresses as they stand on the wire between
    /// gateways: the real one of the remote, and ours as the remote knows it.
    ///
    /// Exit status: 0 the packet would go, 1 it would not, 64 wrong question or configuration, 69 no
    /// gateway answers.
    Explain(ExplainArgs),
    /// Join two clusters with the same pod CIDR, on this machine, and show it
    ///
    /// Makes pods, gateways and the network between them in network namespaces, moves ping, TCP and
    /// UDP both ways, and cleans up. Needs root, or unprivileged user namespaces. Exit status 0 only
    /// if everything arrived.
    Demo(DemoArgs),
    /// Make and convert keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the custom resource definitions of the API
    ///
    /// YAML for `kubectl apply --server-side -f -`, sorted by name. They are those of Liqo; a
    /// cluster that runs Liqo has them.
    Crds(CrdsArgs),
    #[command(flatten)]
    User(TypedCommand),
    /// Print what completes commands in a shell
    ///
    /// As in `source <(strait completion bash)`.
    Completion(CompletionArgs),
}

/// `strait gateway`
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayArgs {
    /// Configuration file (TOML)
    #[arg(long, env = "STRAIT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
    /// What was typed and is not known.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
    /// What was typed, with where.
    #[arg(skip)]
    pub(crate) given: Given,
}

impl GatewayArgs {
    /// Whether an API server feeds this gateway.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.config.is_none() && (self.cluster.kube || in_pod())
    }
}

/// Flags of `strait check` that mean something beside a file.
const BESIDE_A_CHECKED_FILE: [&str; 5] = ["config", "json", "log_format", "log_level", "output"];

/// `strait key`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a private key and print it as base64
    Generate {
        /// Write the key to a new file that only its owner may read, and print the public key
        /// instead. An existing file is never overwritten
        #[arg(long, env = "STRAIT_KEY_OUTPUT", value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print the public key of a private key
    Public {
        /// File with the private key: 32 raw bytes or base64 text [default: standard input]
        #[arg(env = "STRAIT_KEY_FILE", value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// `strait completion`
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// Of which shell
    #[arg(env = "STRAIT_SHELL", value_name = "SHELL", value_parser = shell())]
    pub(crate) shell: Shell,
}

/// `strait crds`
#[derive(Debug, clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write a file for each definition into this folder instead; files of these names are replaced
    #[arg(long, env = "STRAIT_CRDS_OUTPUT", value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,
}

/// Parses the command line, the name of the program first.
///
/// # Errors
///
/// [`UsageError`], also for `--help` and `--version`, which end the program as well.
pub(crate) fn parse<I, T>(words: I) -> Result<Args, UsageError>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut words = arranged(words);
    let is_for_a_cluster = is_for_a_cluster(&words);
    let mut ignored = Vec::new();
    loop {
        let error = match parse_known(&words) {
            Ok(mut args) => {
                if let Command::Gateway(gateway) = &mut args.command {
                    gateway.ignored = ignored;
                }
                return Ok(args);
            }
            Err(error) => error,
        };
        match unknown(&error) {
            Some(flag) if is_for_a_cluster && flags::remove(&mut words, &flag) => {
                ignored.push(flag);
            }
            _ => return Err(usage_error(&error)),
        }
    }
}

/// The command whose help shows what can be typed in the place of `words`, as `strait network connect`.
pub(crate) fn help_for<I, T>(words: I) -> String
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    format!("{} --help", order::path(&command(), &arranged(words)))
}

/// What was typed, with the verbs first; with the one that the name of the program or a pod implies.
fn arranged<I, T>(words: I) -> Vec<OsString>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    if is_called_device(&words) {
        words.insert(1, "device".into());
        return words;
    }
    words = order::verbs_first(&command(), words);
    if in_pod() && is_without_subcommand(&words) {
        words.insert(1, "gateway".into());
    }

    words
}

/// Whether this program was started by the name under which it is a device.
fn is_called_device(words: &[OsString]) -> bool {
    let program = words.first().and_then(|word| Path::new(word).file_name());

    program == Some(OsStr::new(device::PROGRAM))
}

/// Whether `words` are what Liqo's templates give to an image that has one command.
fn is_without_subcommand(words: &[OsString]) -> bool {
    let first = words.get(1).map(|word| word.to_string_lossy());

    first.is_some_and(|word| {
        let is_of_all = ["--help", "--version", "--log-"].iter().any(|flag| word.starts_with(flag));
        word.starts_with("--") && !is_of_all
    })
}

fn parse_known(words: &[OsString]) -> Result<Args, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    let mut args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    args.log.is_level_given = matches.value_source("log_level") != Some(ValueSource::DefaultValue);
    let (command, matches) = innermost(&command, &matches);
    let given = Given::new(command, matches);
    if let Some(statement) = at_odds(&args.command, &given) {
        return Err(command.clone().error(ErrorKind::ArgumentConflict, statement));
    }
    if let Command::Gateway(gateway) = &mut args.command {
        gateway.given = given;
    }

    Ok(args)
}

/// The subcommand that was typed, of the subcommand that was typed, and so on.
fn innermost<'a>(
    command: &'a clap::Command,
    matches: &'a ArgMatches,
) -> (&'a clap::Command, &'a ArgMatches) {
    let inner = matches.subcommand().and_then(|(name, matches)| {
        let command = command.find_subcommand(name)?;
        Some(innermost(command, matches))
    });

    inner.unwrap_or((command, matches))
}

/// What to say of a flag that means nothing beside the others, or without them.
fn at_odds(command: &Command, given: &Given) -> Option<String> {
    let typed = |is_wrong: fn(&str) -> bool| {
        let flag = given.typed().find(|(name, _)| is_wrong(name));
        flag.map(|(_, flag)| flag)
    };
    if let Command::Gateway(gateway) = command {
        gateway.config.as_ref()?;
        let other = given.at_odds_with_a_file()?;
        return Some(format!("{other} cannot be used with --config: the file says all that"));
    }
    if let Command::Check(check) = command
        && check.config().is_some()
    {
        let other = typed(|name| !BESIDE_A_CHECKED_FILE.contains(&name))?;
        return Some(format!("{other} cannot be used with --config: no cluster is asked then"));
    }
    if let Command::Check(check) = command
        && !check.names_remote()
    {
        let other = typed(|name| name.starts_with("remote_"))?;
        return Some(format!(
            "{other} is about another cluster: name it with --remote-kubeconfig or --remote-context"
        ));
    }
    if let Command::User(command) = command
        && command.is_about_the_installation()
    {
        let other = typed(|name| name == "namespace")?;
        return Some(format!(
            "{other} cannot be used here: the Network is one of the installation, in --liqo-namespace"
        ));
    }

    None
}

/// Whether `words` start a gateway that an API server feeds.
fn is_for_a_cluster(words: &[OsString]) -> bool {
    let has = |flag: &str| {
        words.iter().any(|word| {
            let word = word.to_string_lossy();
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };

    let has_file = has("--config") || std::env::var_os("STRAIT_CONFIG").is_some();

    has("gateway") && (has("--kube") || (in_pod() && !has_file))
}

/// The shells that the manual speaks of.
fn shell() -> impl clap::builder::TypedValueParser<Value = Shell> {
    use clap::builder::TypedValueParser as _;

    clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"])
        .try_map(|name| Shell::from_str(&name, false))
}

/// Whether this process was started in a pod.
pub(crate) fn in_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// The word that is not known, if that is what is wrong.
fn unknown(error: &clap::Error) -> Option<String> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => Some(word.clone()),
        _ => None,
    }
}

fn usage_error(error: &clap::Error) -> UsageError {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        UsageError::Answer(error.render().to_string())
    } else if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        UsageError::Wrong("a subcommand is missing".to_owned())
    } else {
        UsageError::Wrong(in_one_line(&error.render().to_string()))
    }
}

/// The statement of a clap error without the usage that follows it, which `--help` shows better.
fn in_one_line(rendered: &str) -> String {
    let statement: Vec<&str> = rendered
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();

    statement.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use strait_daemon::config::Origin;
    use strait_daemon::given::Setting;
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
            // Those of former releases are for command lines that were written down then.
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
    fn beside_a_file_there_is_still_how_often_to_look_names_up() {
        let words = ["strait", "gateway", "--config", "f", "--dns-check-interval", "1m"];
        let Command::Gateway(gateway) = parse(words).unwrap().command else {
            panic!("another command")
        };

        assert_eq!(gateway.cluster.dns_check_interval.as_secs(), 60);
    }

    #[test]
    fn wrong_usage_is_one_line_that_names_the_offending_word() {
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
            (vec!["strait", "check", "--remote-namespace=a"], "--remote-namespace is about"),
            (vec!["strait", "check", "--remote-cluster-id=a"], "--remote-cluster-id is about"),
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
    fn flags_that_belong_together_are_taken() {
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
    fn a_gateway_in_a_cluster_takes_the_flags_of_every_release() {
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
    fn a_subcommand_is_missing_only_before_flags_of_a_gateway() {
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
    fn a_link_with_another_name_is_a_device() {
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
    fn a_flag_has_its_value_and_whose_word_it_is() {
        let given = given(&[
            "--kube",
            "--log-level=warn",
            "--name=7",
            "--mtu=1400",
            "--endpoint-port=1,2",
            "--ping-enabled=false",
            "--ping-interval=500ms",
        ]);
        let setting = |name| given.settings().find(|(other, _)| *other == name).unwrap().1.clone();
        let flag = |flag: &str| Origin::Flag { flag: flag.to_owned() };

        for (name, value, origin) in [
            ("kube", json!(true), flag("--kube")),
            ("log_level", json!("warn"), flag("--log-level")),
            ("name", json!("7"), flag("--name")),
            ("mtu", json!(1400), flag("--mtu")),
            // The name of the flag now, whatever alias was typed.
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
        let given = given(&["--config", "f"]);
        let names: Vec<_> = given.settings().map(|(name, _)| name).collect();

        for flag in ["config", "health_probe_bind_address", "keys_dir", "log_format", "log_level"] {
            assert!(names.contains(&flag), "{names:?}");
        }
        assert!(!names.contains(&"help") && !names.contains(&"version"), "{names:?}");
    }

    fn given(words: &[&str]) -> Given {
        let words = ["strait", "gateway"].iter().chain(words);
        let Command::Gateway(gateway) = parse(words).unwrap().command else {
            panic!("another command")
        };

        gateway.given
    }

    fn visit(command: &clap::Command, look: &mut impl FnMut(&clap::Arg)) {
        command.get_arguments().for_each(&mut *look);
        command.get_subcommands().for_each(|inner| visit(inner, look));
    }
}
