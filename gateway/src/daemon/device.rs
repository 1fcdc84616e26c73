//! `strait device`: a WireGuard interface like that of `wireguard-go NAME`, for `wg` and `wg-quick`.
//!
//! The device comes up with nothing but a name and waits for configuration over its socket. Addresses,
//! routes and the MTU are for whoever made it: `wg-quick`, or `ip`.

mod background;
mod state;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::builder::FalseyValueParser;
use strait_gateway::io::Monitor;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use super::args::LogArgs;
use super::config::{Engine, interface_flag};
use super::logging;
use super::netlink::Netlink;
use super::service::Signals;
use super::socket::Serving;
use super::uapi;
use super::ways::Ways;
use state::Device;

/// The name under which a link to this program means `strait device`.
pub(crate) const PROGRAM: &str = "strait-device";

/// The variable that says how much wireguard-go logs.
const LOG_LEVEL: &str = "LOG_LEVEL";

/// How often the socket is looked for, and the ways to the peers.
const TICK: Duration = Duration::from_secs(1);

/// `strait device`
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Stay in the foreground. WG_PROCESS_FOREGROUND=1 does the same
    #[arg(
        short,
        long,
        env = "WG_PROCESS_FOREGROUND",
        value_parser = FalseyValueParser::new(),
        hide_env = true
    )]
    pub(crate) foreground: bool,
    /// What encrypts: native, which is Strait's own, or boringtun
    #[arg(long, env = "STRAIT_ENGINE", value_name = "NAME", default_value_t)]
    pub(crate) engine: Engine,
    /// Device to make
    #[arg(env = "STRAIT_INTERFACE", value_name = "NAME", value_parser = interface_flag)]
    pub(crate) interface: String,
}

/// Runs `strait device`, here or in a process of its own.
///
/// # Errors
///
/// If there can be no such device or no socket for it, or if it ends in another way than by a wish.
pub(crate) fn run(args: &DeviceArgs, log: &LogArgs) -> anyhow::Result<ExitCode> {
    if !args.foreground {
        return background::start();
    }
    let level = std::env::var(LOG_LEVEL).ok();
    let is_heard = log.is_level_given || level.is_some() || !background::is_waited_for();
    logging::start(&with_level(log, level, is_heard), false);
    background::leave_terminal()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    runtime.block_on(serve(args, is_heard))?;

    Ok(ExitCode::SUCCESS)
}

/// How to log: what was asked for by a flag or RUST_LOG, or else as LOG_LEVEL says. What nobody will hear
/// for long is left out from the start.
fn with_level(log: &LogArgs, level: Option<String>, is_heard: bool) -> LogArgs {
    let mut log = log.clone();
    if !is_heard {
        "warn".clone_into(&mut log.log_level);
    }
    if !log.is_level_given
        && let Some(level) = level
    {
        match level.as_str() {
            "verbose" | "debug" => "debug".clone_into(&mut log.log_level),
            "error" => "error".clone_into(&mut log.log_level),
            "silent" => "off".clone_into(&mut log.log_level),
            _ => {}
        }
    }

    log
}

async fn serve(args: &DeviceArgs, is_heard: bool) -> anyhow::Result<()> {
    let signals = Signals::listen().context("cannot listen for signals")?;
    // Whoever sees the socket may count on the device.
    let device = Device::start(&args.interface, args.engine)?;
    let listener = uapi::bind(&args.interface)?;
    let monitor = device.monitor();
    let device = Arc::new(Mutex::new(device));
    let answering = Arc::clone(&device);
    let serving = uapi::serve(
        listener,
        Arc::new(move |operation| {
            answering.lock().unwrap_or_else(PoisonError::into_inner).answer(operation)
        }),
    )
    .context("cannot serve the socket")?;
    info!(interface = args.interface, engine = %args.engine, "the device waits for configuration");
    background::report_ready(is_heard)?;

    follow(signals, &serving, &monitor, &device).await
}

/// Until somebody wants it to end: by a signal, or by removing the socket or the device.
async fn follow(
    mut signals: Signals,
    serving: &Serving,
    monitor: &Monitor,
    device: &Mutex<Device>,
) -> anyhow::Result<()> {
    let netlink = Netlink::connect().context("cannot open a netlink socket")?;
    let mut ways = Ways::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            () = signals.end() => {
                info!("the device ends: a signal says so");
                return Ok(());
            }
            () = monitor.ended() => {
                info!("the device ends: somebody removed it");
                return Ok(());
            }
            _ = ticks.tick() => {
                if !serving.is_there() {
                    info!("the device ends: somebody removed its socket");
                    return Ok(());
                }
                let changed = ways.learn(&netlink, &monitor.status().peers).await;
                let device = device.lock().unwrap_or_else(PoisonError::into_inner);
                for change in changed {
                    device.handle_way(change);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::{Command, parse};
    use super::*;

    #[test]
    fn the_level_of_wireguard_go_counts_unless_another_is_given() {
        for (level, expected) in [
            (Some("verbose"), "debug"),
            (Some("error"), "error"),
            (Some("silent"), "off"),
            (Some("loud"), "info"),
            (None, "info"),
        ] {
            let log =
                with_level(&log(&["strait", "device", "wg0"]), level.map(str::to_owned), true);

            assert_eq!(log.log_level, expected, "{level:?}");
        }
        let given = log(&["strait", "--log-level", "trace", "device", "wg0"]);
        let behind = log(&["strait", "device", "wg0", "--log-level", "trace"]);

        for log in [given, behind] {
            assert_eq!(with_level(&log, Some("error".to_owned()), true).log_level, "trace");
        }
        assert_eq!(with_level(&log(&["strait", "device", "wg0"]), None, false).log_level, "warn");
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

    fn log(words: &[&str]) -> LogArgs {
        parse(words).unwrap().log
    }
}
