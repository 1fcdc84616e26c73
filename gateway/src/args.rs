//! The command line and its environment variables, before they are interpreted.

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
use strait_daemon::flag_values::FlagValues;
use strait_daemon::show::ShowArgs;
use strait_host::logging::LogArgs;
use strait_host::usage::UsageError;
#[cfg(feature = "demo")]
use strait_lab::demo::DemoArgs;
use strait_node::NodeArgs;
use strait_peering::cli::{TypedCheck, TypedCommand};

use super::operator::OperatorArgs;

pub(crate) use help::command;

/// A userspace WireGuard gateway that joins Kubernetes clusters, also when their pod CIDRs overlap.
///
/// Exit status: 0 success, 64 wrong usage or configuration (nothing was changed), 1 any other error.
#[derive(Debug, Parser)]
// As with `kubectl` and Liqo the last of repeated flags counts: further flags in values of the chart replace those of
// the templates.
#[command(name = "strait", version, propagate_version = true, args_override_self = true)]
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
    /// Configured by a file, or in a pod by objects of the API server. In a pod, unknown flags are ignored with a
    /// warning, because releases of Liqo differ in their flags.
    ///
    /// SIGHUP reloads the file and applies the changes; sessions and learned endpoints survive. SIGTERM and SIGINT
    /// send the packets in progress and exit with status 0. SIGUSR2 replaces the process by the program that its file
    /// holds by now, without losing a packet.
    ///
    /// The admin port (metrics_address) serves /metrics, /healthz, /readyz, /config and /log.
    /// `PUT /log?level=FILTER` changes the log filter until the process ends; it is accepted only from a loopback
    /// address, because the port may be open to scrapers.
    Gateway(Box<GatewayArgs>),
    /// Create a WireGuard device for `wg` and `wg-quick`, like `wireguard-go NAME`
    ///
    /// The device has no address, is down, and is configured over /var/run/wireguard/NAME.sock. Without --foreground
    /// the command returns once the device exists. The device then runs in the background until SIGTERM or SIGINT, or
    /// until the device or its socket is removed.
    ///
    /// A link to this program named `strait-device` does the same, for wg-quick:
    /// WG_QUICK_USERSPACE_IMPLEMENTATION=strait-device. LOG_LEVEL (verbose, error or silent) works as with
    /// wireguard-go unless --log-level or RUST_LOG is set; without any of them the background process logs nothing.
    Device(DeviceArgs),
    /// Show the WireGuard devices of this host and their peers
    ///
    /// Like `wg show`, for gateways, for `strait device` and for any other userspace WireGuard; for ours also the
    /// round trip, the path MTU, and the drops by reason. Secrets are not shown.
    ///
    /// Exit status: 0 success, 69 the device does not answer, or one of several gives an invalid answer; the others
    /// are still shown.
    Show(ShowArgs),
    /// Check a cluster or a configuration file, and print a remedy for each problem
    ///
    /// Checks the API, the operator, prefixes, gateways, keys, connections and access rights of a cluster; with
    /// --remote-kubeconfig or --remote-context, of both clusters and whether they match. With --config, checks that
    /// file and shows what a gateway would do with it. Nothing is changed.
    ///
    /// Exit status: 0 no errors (warnings are possible), 1 errors were found or the API server cannot be reached, 64
    /// wrong usage or a wrong file.
    Check(Box<TypedCheck>),
    /// Create gateways from GatewayServer and GatewayClient objects
    ///
    /// For clusters without Liqo, whose controllers do the same. Runs in a pod, or with KUBECONFIG. Of several
    /// replicas the holder of the Lease `strait-operator` is active. SIGTERM and SIGINT end it with exit status 0;
    /// the created objects stay.
    Operator(OperatorArgs),
    /// Route packets of this node to the gateways
    ///
    /// For clusters without Liqo, on every node, in its network namespace. Runs in a pod, or with KUBECONFIG. Keeps
    /// routes for the prefixes of remote clusters in its own routing table and follows gateways that move. SIGTERM
    /// and SIGINT end it with exit status 0 and keep the routes; `--clean-up` removes them.
    Node(NodeArgs),
    /// Explain how a gateway handles a packet, and why
    ///
    /// Asks the gateway on this host, or reads a configuration file, and changes nothing: no packet is sent and no
    /// flow is created. Outbound (the default), SRC and DST are addresses as this cluster sees them. Inbound, they
    /// are addresses as on the wire between gateways: the remote's real address, and ours as the remote sees it.
    ///
    /// Exit status: 0 the packet would be forwarded, 1 it would not, 64 wrong question or configuration, 69 no
    /// gateway answers.
    Explain(ExplainArgs),
    /// Connect two clusters with the same pod CIDR on this machine, as a demonstration
    #[cfg(feature = "demo")]
    ///
    /// Creates pods, gateways and the network between them in network namespaces, sends ping, TCP and UDP in both
    /// directions, and cleans up. Needs root, or unprivileged user namespaces. Exit status 0 only if everything
    /// arrived.
    Demo(DemoArgs),
    /// Generate and convert keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the custom resource definitions of the API
    ///
    /// YAML for `kubectl apply --server-side -f -`, sorted by name. They are Liqo's definitions; a cluster with Liqo
    /// has them.
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
    /// Unknown flags, which are ignored.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
    /// The values of all flags and where they come from.
    #[arg(skip)]
    pub(crate) flag_values: FlagValues,
}

impl GatewayArgs {
    /// Whether this gateway is configured by an API server.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.config.is_none() && (self.cluster.kube || in_pod())
    }
}

/// Flags of `strait check` that work together with `--config`.
const ALLOWED_WITH_CHECKED_FILE: [&str; 5] =
    ["config", "json", "log_format", "log_level", "output"];

/// `strait key`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Generate a private key and print it as base64
    Generate {
        /// Write the key to a new file that only its owner may read, and print the public key instead. An existing
        /// file is never overwritten
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
    /// Write each definition to a file in this folder instead; existing files of these names are replaced
    #[arg(long, env = "STRAIT_CRDS_OUTPUT", value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,
}

/// Parses the command line, which starts with the name of the program.
///
/// # Errors
///
/// [`UsageError`], also for `--help` and `--version`, which end the program as well.
pub(crate) fn parse<I, T>(words: I) -> Result<Args, UsageError>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let mut words = normalized(words);
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

/// The command that shows the help for `words`, such as `strait network connect --help`.
pub(crate) fn help_for<I, T>(words: I) -> String
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    format!("{} --help", order::path(&command(), &normalized(words)))
}

/// The command line with the subcommands first, and with the one that the program's name or a pod implies.
fn normalized<I, T>(words: I) -> Vec<OsString>
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

/// Whether the program was started under the name that means `strait device`.
fn is_called_device(words: &[OsString]) -> bool {
    let program = words.first().and_then(|word| Path::new(word).file_name());

    program == Some(OsStr::new(device::PROGRAM))
}

/// Whether `words` have no subcommand, as in Liqo's templates, whose images have one command.
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
    let flag_values = FlagValues::new(command, matches);
    if let Some(statement) = conflict(&args.command, &flag_values) {
        return Err(command.clone().error(ErrorKind::ArgumentConflict, statement));
    }
    if let Command::Gateway(gateway) = &mut args.command {
        gateway.flag_values = flag_values;
    }

    Ok(args)
}

/// The innermost subcommand on the command line.
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

/// The error for a flag that has no effect with, or without, another one.
fn conflict(command: &Command, flag_values: &FlagValues) -> Option<String> {
    let typed = |is_wrong: fn(&str) -> bool| {
        let flag = flag_values.typed().find(|(name, _)| is_wrong(name));
        flag.map(|(_, flag)| flag)
    };
    if let Command::Gateway(gateway) = command {
        gateway.config.as_ref()?;
        let other = flag_values.conflict_with_file()?;
        return Some(format!("{other} cannot be used with --config: set it in the file"));
    }
    if let Command::Check(check) = command
        && check.config().is_some()
    {
        let other = typed(|name| !ALLOWED_WITH_CHECKED_FILE.contains(&name))?;
        return Some(format!("{other} cannot be used with --config: only the file is checked"));
    }
    if let Command::Check(check) = command
        && !check.names_remote()
    {
        let other = typed(|name| name.starts_with("remote_"))?;
        return Some(format!(
            "{other} needs a remote cluster: name it with --remote-kubeconfig or --remote-context"
        ));
    }
    if let Command::User(command) = command
        && command.is_about_the_installation()
    {
        let other = typed(|name| name == "namespace")?;
        return Some(format!(
            "{other} cannot be used here: the Network is in the namespace of the installation, --liqo-namespace"
        ));
    }

    None
}

/// Whether `words` start a gateway that is configured by an API server.
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

/// The unknown flag, if that is the error.
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

/// The message of a clap error in one line, without the usage, which `--help` shows.
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
mod tests;
