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

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use strait_daemon::admin::{Pages, Sources, StatusBoard};
use strait_daemon::cluster::{self, ClusterSource};
use strait_daemon::config::Config;
use strait_daemon::flag_values::FlagValues;
use strait_daemon::service::{Service, Sockets, Source};
use strait_daemon::socket::{self, Listener};
use strait_daemon::{device, explain, mtu, uapi};
use strait_host::http::Admin;
use strait_host::logging::{self, Log};
use strait_host::netlink::Netlink;
use strait_host::signals::{Signals, end_on_signal};
use strait_host::usage::UsageError;
use strait_host::{limits, stdout};
use strait_io::Gateway;
use strait_kube::client::{self, Part};
#[cfg(feature = "demo")]
use strait_lab::demo;
use strait_node as node;
use strait_peering::cli;
use tracing::{debug, info, warn};

use crate::args::{Args, Command, GatewayArgs};

fn main() -> ExitCode {
    strait_io::set_mmap_threshold();
    let words: Vec<_> = std::env::args_os().collect();
    let result = match args::parse(&words) {
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
    let is_in_cluster = args.is_in_cluster();
    let (start, config) = match args.config {
        Some(file) => {
            let mut config = Config::load(&file)?;
            config.dns_check_interval = args.cluster.dns_check_interval;
            (Start::File(file), config)
        }
        None if is_in_cluster => {
            let (settings, config) = cluster::Settings::read(&args.cluster, &args.flag_values)?;
            let client =
                runtime.block_on(client::infer(Part::Gateway)).map_err(UsageError::wrong)?;
            (Start::Cluster(Box::new(settings), client), config)
        }
        None => return Err(UsageError::Wrong("--config <FILE> is missing".to_owned()).into()),
    };
    let mut addresses = vec![config.metrics_address, args.cluster.health_probe_bind_address.0];
    addresses.dedup();
    let admins: Vec<_> =
        addresses.into_iter().flatten().map(Admin::bind).collect::<Result<_, _>>()?;
    let socket = socket::open(&config)?;

    runtime.block_on(serve(start, config, admins, socket, log, args.flag_values))?;

    Ok(ExitCode::SUCCESS)
}

/// The source of a gateway's configuration.
enum Start {
    File(PathBuf),
    Cluster(Box<cluster::Settings>, Client),
}

async fn serve(
    start: Start,
    config: Config,
    admins: Vec<Admin>,
    socket: Option<Listener>,
    log: Log,
    flag_values: FlagValues,
) -> anyhow::Result<()> {
    let signals = Signals::listen().context("cannot listen for signals")?;
    let netlink = Netlink::connect().context("cannot open a netlink socket")?;
    let underlay = netlink.underlay(config.endpoint_addresses().next()).await;
    let towards_nodes = netlink.underlay(config.first_node()).await;
    let mtu = mtu::of_edge(&config, underlay, towards_nodes);
    info!(version = env!("CARGO_PKG_VERSION"), %config, "starting");
    info!(mtu = mtu.bytes, reason = %mtu.reason, "MTU of the cluster side");

    let gateway = Gateway::start(&config.settings(mtu.bytes), &config.private_key)?;
    let source = match start {
        Start::File(file) => Source::File(file),
        Start::Cluster(settings, client) => {
            Source::Cluster(Box::new(ClusterSource::start(&settings, client)))
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
        .run(signals)
        .await
}
