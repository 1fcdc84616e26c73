//! `strait`: turns arguments into a configuration and starts the subcommand.

mod args;
mod capability;
mod check;
mod completion;
mod crds;
mod key;
mod operator;
mod output;
mod show;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use strait_daemon::admin::{Pages, Sources, StatusBoard};
use strait_daemon::cluster::{self, ClusterSource};
use strait_daemon::config::Config;
use strait_daemon::flag_values::FlagValues;
use strait_daemon::lock_file::LockFile;
use strait_daemon::service::{CHECK, Replacement, Service, Sockets, Source, successor_answer};
use strait_daemon::socket::{self, Listener};
use strait_daemon::{device, explain, mtu, uapi};
use strait_host::http::Admin;
use strait_host::logging::{self, Log};
use strait_host::netlink::Netlink;
use strait_host::signals::{Signals, end_on_signal};
use strait_host::usage::UsageError;
use strait_host::{limits, stdout};
use strait_io::Gateway;
use strait_io::handover::Handover;
use strait_kube::client::{self, Part};
#[cfg(feature = "demo")]
use strait_lab::demo;
use strait_node as node;
use strait_peering::cli;
use tracing::{debug, error, info, warn};

use crate::args::{Args, Command, GatewayArgs};

/// Attempts after the end of another process, of which the kernel closes sockets and device in any order.
const ATTEMPTS: u32 = 200;

/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    strait_io::set_mmap_threshold();
    let mut words: Vec<_> = std::env::args_os().collect();
    // Not a subcommand: only a running gateway calls it.
    let is_check = words.get(1).is_some_and(|word| word == CHECK);
    if is_check {
        words.remove(1);
    }
    let result = match args::parse(&words) {
        Ok(args) if is_check => check_successor(args),
        Ok(args) => dispatch(args),
        Err(UsageError::Answer(text)) => {
            stdout::print(&text).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Err(wrong) => Err(wrong.into()),
    };

    result.unwrap_or_else(|error| output::failure(&error, &args::help_for(&words)))
}

/// One arm a subcommand.
fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Gateway(gateway) => {
            capability::gain_net_admin();
            let log = logging::start(&args.log, gateway.is_in_cluster());
            limits::forbid_core_dumps();
            limits::check_descriptors()?;
            run(*gateway, log)
        }
        Command::Operator(operator) => {
            logging::start(&args.log, args::in_pod());
            limits::forbid_core_dumps();
            limits::check_descriptors()?;
            operator::run(&operator)
        }
        Command::Node(node) => {
            logging::start(&args.log, args::in_pod());
            limits::check_descriptors()?;
            node::run(&node)
        }
        Command::Device(device) => {
            limits::forbid_core_dumps();
            limits::check_descriptors()?;
            device::run(&device, &args.log)
        }
        Command::Show(show) => show::run(&show),
        Command::Check(check) => check::run(&check),
        Command::Explain(explain) => explain::run(&explain),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
        Command::Key(key) => {
            limits::forbid_core_dumps();
            key::run(key)
        }
        Command::Crds(args) => crds::run(&args),
        Command::User(command) => cli::run(&command, operator::public_of),
        Command::Completion(args) => completion::run(&args),
    }
}

/// Whether a gateway could go on with this program and these arguments. Nothing is changed.
fn check_successor(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Gateway(gateway) = args.command else {
        return Err(UsageError::Wrong("only a gateway has a successor".to_owned()).into());
    };
    configure(&gateway)?;
    stdout::print(&successor_answer())?;

    Ok(ExitCode::SUCCESS)
}

/// Runs `strait gateway` until a signal ends it.
fn run(args: GatewayArgs, log: Log) -> anyhow::Result<ExitCode> {
    end_on_signal().context("cannot listen for signals")?;
    for flag in &args.ignored {
        if cluster::flags::is_unused_liqo_flag(flag) {
            debug!("{flag} has no effect on this gateway");
        } else {
            warn!("{flag} is unknown and ignored");
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    let mut handover = Handover::receive().unwrap_or_else(|error| {
        error!(%error, "nothing was taken over from the previous program: starting afresh");
        None
    });
    let mut inherited = handover.as_mut().map(|handover| std::mem::take(&mut handover.descriptors));
    let lock_file = if args.is_in_cluster() { args.cluster.lock_file() } else { None };
    let lock = match lock_file {
        None => None,
        Some(path) => {
            // Refuses wrong flags before the wait. The key is read again after it, as the Secret may have changed.
            configure(&args)?;
            Some(lock(path, inherited.as_mut())?)
        }
    };
    let health = args.cluster.health_probe_bind_address.0;
    let Configured { start, config } = configure(&args)?;
    let start = match start {
        Configuration::File(file) => Start::File(file),
        Configuration::Cluster(settings) => {
            let client =
                runtime.block_on(client::infer(Part::Gateway)).map_err(UsageError::wrong)?;
            Start::Cluster(settings, client)
        }
    };
    let mut addresses = vec![config.metrics_address, health];
    addresses.dedup();
    let mut inherited = inherited.unwrap_or_default();
    let mut listen = || {
        let addresses = addresses.iter().copied().flatten();
        addresses
            .map(|address| Admin::inherit_or_bind(address, &mut inherited))
            .collect::<Result<Vec<_>, _>>()
    };
    let attempts = attempts(lock.as_ref());
    let admins = runtime.block_on(repeated(attempts, &mut listen))?;
    // If it is not free by then, it is not bound.
    let is_free = || socket::is_free(&config).then_some(()).ok_or(());
    let _ = runtime.block_on(repeated(attempts, is_free));
    // Those of other addresses are closed before anything else may bind them.
    drop(inherited);
    let socket = socket::open(&config)?;

    let flag_values = args.flag_values;
    let parts = Parts { admins, socket, log, flag_values, handover, lock };
    runtime.block_on(serve(start, config, parts))?;

    Ok(ExitCode::SUCCESS)
}

/// Waits for the lock, or goes on with that of the predecessor, which is among what was `inherited`.
fn lock(path: &Path, inherited: Option<&mut Vec<OwnedFd>>) -> Result<LockFile, UsageError> {
    let locked = match inherited {
        None => LockFile::lock(path),
        Some(inherited) => LockFile::inherit(path, inherited),
    };

    locked.map_err(|error| UsageError::Wrong(format!("--lock-file {}: {error}", path.display())))
}

/// How many times to try what fails while another process has something open: once, unless that process has just ended.
const fn attempts(lock: Option<&LockFile>) -> u32 {
    match lock {
        Some(lock) if lock.has_waited() => ATTEMPTS,
        Some(_) | None => 1,
    }
}

/// Tries this many times.
async fn repeated<T, E>(attempts: u32, mut action: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..attempts {
        if let Ok(done) = action() {
            return Ok(done);
        }
        tokio::time::sleep(PAUSE).await;
    }

    action()
}

/// What the arguments of a gateway mean.
struct Configured {
    start: Configuration,
    config: Config,
}

/// Where the configuration comes from.
enum Configuration {
    File(PathBuf),
    Cluster(Box<cluster::Settings>),
}

fn configure(args: &GatewayArgs) -> anyhow::Result<Configured> {
    match &args.config {
        Some(file) => {
            let mut config = Config::load(file)?;
            config.dns_check_interval = args.cluster.dns_check_interval;
            Ok(Configured { start: Configuration::File(file.clone()), config })
        }
        None if args.is_in_cluster() => {
            let (settings, config) = cluster::Settings::read(&args.cluster, &args.flag_values)?;
            Ok(Configured { start: Configuration::Cluster(Box::new(settings)), config })
        }
        None => Err(UsageError::Wrong("--config <FILE> is missing".to_owned()).into()),
    }
}

/// What a gateway is started with beside its configuration.
struct Parts {
    admins: Vec<Admin>,
    socket: Option<Listener>,
    log: Log,
    flag_values: FlagValues,
    handover: Option<Handover>,
    /// Held as long as the gateway runs.
    lock: Option<LockFile>,
}

/// The source of a gateway's configuration.
enum Start {
    File(PathBuf),
    Cluster(Box<cluster::Settings>, Client),
}

async fn serve(start: Start, mut config: Config, parts: Parts) -> anyhow::Result<()> {
    let Parts { admins, socket, log, flag_values, handover, lock } = parts;
    let signals = Signals::listen().context("cannot listen for signals")?;
    let netlink = Netlink::connect().context("cannot open a netlink socket")?;
    let underlay = netlink.underlay(config.endpoint_addresses().next()).await;
    let towards_nodes = netlink.underlay(config.first_node()).await;
    let mtu = mtu::of_edge(&config, underlay, towards_nodes);
    info!(version = env!("CARGO_PKG_VERSION"), %config, "starting");
    info!(mtu = mtu.bytes, reason = %mtu.reason, "MTU of the cluster side");

    let settings = config.settings(mtu.bytes);
    let source_state =
        handover.as_ref().map(|handover| handover.source_state.clone()).unwrap_or_default();
    let (gateway, taken_over) = match handover {
        None => {
            let start = || Gateway::start(&settings, &config.private_key);
            (repeated(attempts(lock.as_ref()), start).await?, None)
        }
        Some(handover) => {
            let (gateway, taken_over) =
                Gateway::take_over(handover, &settings, &config.private_key)?;
            let taken_over = taken_over.inspect_err(|error| {
                error!(%error, "no session was taken over from the previous program");
            });
            (gateway, taken_over.ok())
        }
    };
    if let Some(device) = taken_over.as_ref().and_then(|taken_over| taken_over.device.as_ref()) {
        config.interface.clone_from(&device.interface);
    }
    let source = match start {
        Start::File(file) => Source::File(file),
        Start::Cluster(settings, client) => {
            Source::Cluster(Box::new(ClusterSource::start(&settings, client, &source_state)))
        }
    };
    let cluster = source.observed();
    let board = StatusBoard::default();
    let monitor = gateway.monitor();
    let status = Arc::new(move || monitor.status());
    let sources = Sources {
        status,
        cluster: cluster.clone(),
        status_board: board.clone(),
        log,
        flag_values: Arc::new(flag_values),
    };
    let pages = Arc::new(Pages::new(sources));
    let listeners = admins.iter().map(Admin::socket);
    let duplicate = lock.iter().map(LockFile::duplicate);
    let descriptors = listeners.chain(duplicate).collect::<Result<_, _>>();
    let replacement =
        Replacement::new(descriptors.context("cannot duplicate what a successor gets")?);
    for admin in admins {
        admin.serve(Arc::clone(&pages)).context("cannot serve the admin port")?;
    }
    let monitor = gateway.monitor();
    let explained = board.clone();
    let admin = socket
        .map(|socket| socket.serve(move |request| explain::answer(&monitor, &explained, request)))
        .transpose()
        .context("cannot serve the admin socket")?;

    let authority = match &source {
        Source::File(_) => "the configuration file",
        Source::Cluster(_) => "the API server",
    };
    let (monitor, answered) = (gateway.monitor(), board.clone());
    let uapi = uapi::serve_gateway(&config.interface, authority, monitor, answered, cluster);
    let sockets = Sockets { admin, uapi };

    Service::new(source, config, mtu.bytes, gateway, netlink, board, sockets)
        .await?
        .replaced_with(replacement)
        .taking_over(taken_over)
        .run(signals)
        .await
}
