//! `strait device`: a WireGuard interface like that of `wireguard-go NAME`, for `wg` and `wg-quick`.
//!
//! The device starts without configuration and is configured over its socket. Addresses, routes and the MTU are set
//! by its user: `wg-quick`, or `ip`.

mod background;
mod learned_peers;
mod state;

use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::FalseyValueParser;
use parking_lot::Mutex;
use strait_host::interface::interface_flag;
use strait_host::logging::{self, LogArgs};
use strait_host::netlink::{Changes, Link, Netlink};
use strait_host::signals::{Signals, end_on_signal};
use strait_host::vmclock::VmClock;
use strait_io::Monitor;
use tokio::select;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::config::Engine;
use super::peer_paths::PeerPaths;
use super::socket::Serving;
use super::uapi;
use state::Device;

/// The name of a link to this program that means `strait device`.
pub const PROGRAM: &str = "strait-device";

/// The variable with the log level of wireguard-go.
const LOG_LEVEL: &str = "LOG_LEVEL";

/// The value that disables logging.
const SILENT: &str = "silent";

/// The same as a value of `--log-level` and RUST_LOG.
const OFF: &str = "off";

/// Interval at which the socket and the paths to the peers are checked.
const TICK: Duration = Duration::from_secs(1);

/// `strait device`
#[derive(Clone, Debug, clap::Args)]
pub struct DeviceArgs {
    /// Stay in the foreground. WG_PROCESS_FOREGROUND=1 does the same
    #[arg(
        short,
        long,
        env = "WG_PROCESS_FOREGROUND",
        value_parser = FalseyValueParser::new(),
        hide_env = true
    )]
    pub foreground: bool,
    /// Implementation of the WireGuard protocol: native (Strait's own) or boringtun
    #[arg(long, env = "STRAIT_ENGINE", value_name = "NAME", default_value_t)]
    pub engine: Engine,
    /// Name of the device to create
    #[arg(env = "STRAIT_INTERFACE", value_name = "NAME", value_parser = interface_flag)]
    pub interface: String,
}

/// Runs `strait device` in this process, or in a background process.
///
/// # Errors
///
/// If the device or its socket cannot be created, or if the device fails.
pub fn run(args: &DeviceArgs, log: &LogArgs) -> anyhow::Result<ExitCode> {
    if !args.foreground {
        return background::start();
    }
    let level = std::env::var(LOG_LEVEL).ok();
    let is_log_visible = is_log_visible(log, level.as_deref(), background::has_waiting_parent());
    logging::start(&with_level(log, level, is_log_visible), false);
    background::leave_terminal()?;
    end_on_signal().context("cannot listen for signals")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    runtime.block_on(serve(args, is_log_visible))?;

    Ok(ExitCode::SUCCESS)
}

/// Whether log lines are visible: requested, or in the foreground. As with wireguard-go, a silent background process
/// does not keep stderr open.
fn is_log_visible(log: &LogArgs, level: Option<&str>, is_in_background: bool) -> bool {
    let asks = |level| level != SILENT;
    let is_wanted = if log.is_level_given { log.log_level != OFF } else { level.is_some_and(asks) };

    is_wanted || !is_in_background
}

/// The log settings: a flag or RUST_LOG, or else LOG_LEVEL. In the background without either, only warnings are
/// logged until the device is ready.
fn with_level(log: &LogArgs, level: Option<String>, is_log_visible: bool) -> LogArgs {
    let mut log = log.clone();
    if !is_log_visible {
        "warn".clone_into(&mut log.log_level);
    }
    if !log.is_level_given
        && let Some(level) = level
    {
        match level.as_str() {
            "verbose" | "debug" => "debug".clone_into(&mut log.log_level),
            "error" => "error".clone_into(&mut log.log_level),
            SILENT => OFF.clone_into(&mut log.log_level),
            _ => {}
        }
    }

    log
}

async fn serve(args: &DeviceArgs, is_log_visible: bool) -> anyhow::Result<()> {
    let signals = Signals::listen().context("cannot listen for signals")?;
    let netlink = Netlink::connect().context("cannot open a netlink socket")?;
    // The device exists before its socket.
    let device = Device::start(&args.interface, args.engine)?;
    let index = netlink.interface_index(&args.interface).await.context("cannot find the device")?;
    netlink.prepare_tunnel(index).await;
    let listener = uapi::bind(&args.interface)?;
    let monitor = device.monitor();
    let device = Arc::new(Mutex::new(device));
    let answering = Arc::clone(&device);
    let serving =
        uapi::serve(listener, Arc::new(move |operation| answering.lock().answer(operation)))
            .context("cannot serve the socket")?;
    info!(interface = args.interface, engine = %args.engine, "the device waits for configuration");
    background::report_ready(is_log_visible)?;

    follow(signals, serving, &monitor, &device, (netlink, index)).await
}

/// Runs until a signal, or until the socket or the device is removed. `netlink` and `index` identify the device.
///
/// # Errors
///
/// If a packet thread ends while the device exists.
async fn follow(
    mut signals: Signals,
    mut serving: Serving,
    monitor: &Monitor,
    device: &Mutex<Device>,
    (netlink, index): (Netlink, u32),
) -> anyhow::Result<()> {
    let mut changes = Changes::listen().context("cannot listen for changes of the network")?;
    let mut paths = PeerPaths::default();
    let mut link = None;
    follow_link(&netlink, index, &mut link, device, &mut serving).await;
    let mut vmclock = VmClock::open();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            () = signals.end() => {
                info!("the device ends: a signal was received");
                return Ok(());
            }
            () = monitor.ended() => {
                check_removed(&netlink, index).await?;
                info!("the device ends: it was removed");
                return Ok(());
            }
            changed = changes.next() => {
                paths.handle_change(&changed);
                if changed.is_about(index, |_| false) {
                    follow_link(&netlink, index, &mut link, device, &mut serving).await;
                }
            }
            () = ready(()), if paths.is_due() => {
                let mark = device.lock().mark();
                let netlink = netlink.with_mark(mark);
                let changed = paths.learn_due(&netlink, monitor).await;
                let device = device.lock();
                for change in changed {
                    device.handle_path_change(change);
                }
            }
            _ = ticks.tick() => {
                if !serving.exists() {
                    info!("the device ends: its socket was removed");
                    return Ok(());
                }
                if changes.is_closed() {
                    follow_link(&netlink, index, &mut link, device, &mut serving).await;
                }
                let mark = device.lock().mark();
                let netlink = netlink.with_mark(mark);
                let (peers, mtu) = (monitor.peers_with_endpoint(), monitor.device_mtu());
                let changed = paths.learn(&netlink, &peers, mtu).await;
                let mut device = device.lock();
                vmclock.check(|| device.renew_sessions());
                device.handle_timeout();
                for change in changed {
                    device.handle_path_change(change);
                }
            }
        }
    }
}

/// Applies changes of the link since `known`: up or down, MTU, and the name, which is also the name of the socket.
async fn follow_link(
    netlink: &Netlink,
    index: u32,
    known: &mut Option<Link>,
    device: &Mutex<Device>,
    serving: &mut Serving,
) {
    let Ok(Some(link)) = netlink.link(index).await else { return };
    if known.as_ref() == Some(&link) {
        return;
    }

    let mtu_bytes = u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX);
    device.lock().handle_link(link.is_up, mtu_bytes);
    if let Err(error) = serving.move_to(uapi::path(&link.name)) {
        warn!(%error, name = link.name, "the socket keeps its name");
    }
    *known = Some(link);
}

/// Packet threads end with the device. If the device still exists, they failed, and the process must exit with an
/// error.
async fn check_removed(netlink: &Netlink, index: u32) -> anyhow::Result<()> {
    let exists = netlink.has_link(index).await.context("cannot query the device")?;
    if exists {
        bail!(
            "a packet thread ended although the device exists: the log has the reason; start it again"
        );
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use strait_host::netlink::fixtures::in_namespace;

    use super::*;

    #[test]
    fn log_level_overrides_the_level_of_wireguard_go() {
        for (level, expected) in [
            (Some("verbose"), "debug"),
            (Some("error"), "error"),
            (Some("silent"), "off"),
            (Some("loud"), "info"),
            (None, "info"),
        ] {
            let log = with_level(&log(None), level.map(str::to_owned), true);

            assert_eq!(log.log_level, expected, "{level:?}");
        }
        let given = log(Some("trace"));
        assert_eq!(with_level(&given, Some("error".to_owned()), true).log_level, "trace");
        assert_eq!(with_level(&log(None), None, false).log_level, "warn");
    }

    #[test]
    fn a_silent_background_device_logs_nothing() {
        let plain = log(None);
        let given = log(Some("warn"));
        let off = log(Some("off"));

        for (log, level, is_in_background, expected) in [
            (&plain, None, true, false),
            (&plain, Some("silent"), true, false),
            (&plain, Some("error"), true, true),
            (&plain, Some("silent"), false, true),
            (&given, Some("silent"), true, true),
            (&off, Some("error"), true, false),
            (&off, None, false, true),
        ] {
            assert_eq!(is_log_visible(log, level, is_in_background), expected, "{level:?}");
        }
    }

    #[test]
    fn threads_may_end_with_their_device() {
        in_namespace(|netlink, lo| async move {
            let there = check_removed(&netlink, lo).await.unwrap_err().to_string();
            let gone = check_removed(&netlink, lo + 1000).await;

            assert!(there.contains("a packet thread ended"), "{there}");
            assert!(gone.is_ok(), "{gone:?}");
        });
    }

    /// Log settings as set by `--log-level`.
    fn log(level: Option<&str>) -> LogArgs {
        LogArgs {
            log_format: None,
            log_level: level.unwrap_or("info").to_owned(),
            is_level_given: level.is_some(),
        }
    }
}
