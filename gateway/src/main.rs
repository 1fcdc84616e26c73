//! `strait`: the composition root. Arguments become a configuration, a configuration a gateway.

mod daemon;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use strait_gateway::io::Gateway;
use tracing::info;

use daemon::admin::{Admin, Readiness};
use daemon::args::{self, Args, Command, GatewayArgs, UsageError};
use daemon::config::Config;
use daemon::netlink::Netlink;
use daemon::service::{Service, Signals};
use daemon::socket::Listener;
use daemon::{check, demo, explain, key, logging, mtu, output, socket};

fn main() -> ExitCode {
    let result = match args::parse(std::env::args_os()) {
        Ok(args) => dispatch(args),
        Err(UsageError::Answer(text)) => {
            output::print(&text).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        Err(wrong) => Err(wrong.into()),
    };

    result.unwrap_or_else(|error| output::failure(&error))
}

/// One arm a subcommand.
fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Gateway(gateway) => {
            logging::start(&args.log);
            run(gateway)
        }
        Command::Check(check) => check::run(&check),
        Command::Explain(explain) => explain::run(&explain),
        Command::Demo(args) => demo::run(args),
        Command::Key(key) => key::run(key),
    }
}

/// `strait gateway`, from the file to the last packet.
fn run(args: GatewayArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    let admin = config.metrics_address.map(Admin::bind).transpose()?;
    let socket = socket::open(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;

    runtime.block_on(serve(args, config, admin, socket))?;

    Ok(ExitCode::SUCCESS)
}

async fn serve(
    args: GatewayArgs,
    config: Config,
    admin: Option<Admin>,
    socket: Option<Listener>,
) -> anyhow::Result<()> {
    let signals = Signals::listen().context("cannot listen for signals")?;
    let netlink = Netlink::connect().context("cannot open a netlink socket")?;
    let underlay = netlink.underlay(config.endpoint_addresses().next()).await;
    let mtu = mtu::of_device(&config, underlay);
    info!(version = env!("CARGO_PKG_VERSION"), %config, "starting");
    info!(mtu = mtu.bytes, reason = %mtu.reason, "MTU of the device");

    let gateway = Gateway::start(&config.settings(mtu.bytes), &config.private_key)?;
    let readiness = Readiness::default();
    if let Some(admin) = admin {
        let monitor = gateway.monitor();
        let source = Arc::new(move || monitor.status());
        admin.serve(source, readiness.clone()).context("cannot serve metrics")?;
    }
    let monitor = gateway.monitor();
    let _serving = socket
        .map(|socket| socket.serve(move |request| explain::answer(&monitor, request)))
        .transpose()
        .context("cannot serve the admin socket")?;

    Service::new(args.config, config, mtu.bytes, gateway, netlink, readiness)
        .await?
        .run(signals)
        .await
}
