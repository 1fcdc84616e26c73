//! `strait demo`: two clusters with the same pod CIDR talk through two gateways, on this machine.
//!
//! ```text
//!   main thread                         scenario thread
//!     becomes root of a user namespace
//!     listens for signals
//!     starts ────────────────────────▶  creates the clusters, starts the gateways
//!            ◀── handle for clean-up ──
//!            ◀── report ───────────────  sends traffic, reads the metrics
//!     on a signal: cleans up, ends
//! ```
//!
//! Nothing outside the namespaces created here is changed, and they end with this process.

mod picture;
mod report;
mod scenario;
mod screen;

use std::fs::File;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use crate::CleanUp;
use crate::Cluster;
use crate::TwoClusters;
use crate::privilege;
use anyhow::Context;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use report::Report;
use screen::Screen;

/// The device node from which the gateways create their devices.
const TUN: &str = "/dev/net/tun";

/// Signals that end the demo, also with `--keep`.
const SIGNALS: [(SignalKind, Signal); 3] = [
    (SignalKind::interrupt(), Signal::SIGINT),
    (SignalKind::terminate(), Signal::SIGTERM),
    (SignalKind::hangup(), Signal::SIGHUP),
];

/// A shell reports a program that a signal ended as this plus the number of the signal.
const SIGNAL_STATUS: u8 = 128;

/// `strait demo`
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Seconds that each transfer takes
    #[arg(
        long,
        env = "STRAIT_DEMO_DURATION",
        value_name = "SECONDS",
        default_value = "6",
        value_parser = parse_seconds
    )]
    pub(crate) duration: Duration,
    /// Leave the clusters running until Ctrl-C, and print how to enter their namespaces
    #[arg(long, env = "STRAIT_DEMO_KEEP")]
    pub(crate) keep: bool,
    /// Print one JSON object at the end, and nothing else
    #[arg(long, env = "STRAIT_JSON")]
    pub(crate) json: bool,
}

/// Events for the main thread.
enum Event {
    Started(CleanUp),
    Finished(anyhow::Result<Box<(TwoClusters, Report)>>),
    Signal(Signal),
}

/// Runs the demo. Call it while the process has one thread: without root it needs a user namespace.
///
/// # Errors
///
/// If something cannot be set up. Traffic that does not arrive is not an error, but exit status 1.
pub fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    privilege::acquire()?;
    File::options().read(true).write(true).open(TUN).with_context(|| {
        format!("cannot open {TUN}: load the module tun, or run as a user who may open it")
    })?;
    let (events, inbox) = mpsc::channel();
    listen_for_signals(events.clone()).context("cannot listen for signals")?;

    let screen = Screen::new(args.json);
    start_scenario(args.duration, screen, events)?;

    wait(&args, screen, &inbox)
}

fn start_scenario(duration: Duration, screen: Screen, events: Sender<Event>) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let scenario = move || {
        let on_start = |clean_up| {
            // The receiver lives as long as the process.
            let _ = events.send(Event::Started(clean_up));
        };
        let result = scenario::run(&binary, duration, screen, on_start);
        let _ = events.send(Event::Finished(result.map(Box::new)));
    };
    thread::Builder::new()
        .name("scenario".to_owned())
        .spawn(scenario)
        .context("cannot start a thread")?;

    Ok(())
}

fn wait(args: &DemoArgs, screen: Screen, inbox: &Receiver<Event>) -> anyhow::Result<ExitCode> {
    let mut clean_up = None;
    let (mut clusters, mut report) = loop {
        match inbox.recv().context("the demo ended without a result")? {
            Event::Started(how) => clean_up = Some(how),
            Event::Finished(result) => break *result?,
            Event::Signal(signal) => {
                screen.line(&format!("\n{signal}: cleaning up"))?;
                if let Some(clean_up) = clean_up {
                    clean_up.run();
                }
                return Ok(exit_status_of(signal));
            }
        }
    };

    if args.keep {
        screen.lines(&inspection_hints(&clusters))?;
        while !matches!(inbox.recv()?, Event::Signal(_)) {}
    }
    report.record_failure("ending the gateways", clusters.stop());
    drop(clusters);
    screen.result(&report)?;

    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn exit_status_of(signal: Signal) -> ExitCode {
    #[expect(
        clippy::as_conversions,
        reason = "the value of the variant is the number of the signal"
    )]
    let number = signal as i32;

    ExitCode::from(u8::try_from(number).map_or(u8::MAX, |number| SIGNAL_STATUS + number))
}

/// Starts a thread that sends each signal of [`SIGNALS`] as an event.
fn listen_for_signals(events: Sender<Event>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut streams = {
        let _guard = runtime.enter();
        let listen = |(kind, name)| Ok((signal(kind)?, name));
        SIGNALS.map(listen).into_iter().collect::<std::io::Result<Vec<_>>>()?
    };

    let forward = move || {
        runtime.block_on(async {
            loop {
                let next = streams.iter_mut().map(|(stream, name)| {
                    Box::pin(async move { stream.recv().await.map(|()| *name) })
                });
                let (received, ..) = futures_util::future::select_all(next).await;
                let Some(name) = received else { return };
                if events.send(Event::Signal(name)).is_err() {
                    return;
                }
            }
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(forward)?;

    Ok(())
}

fn inspection_hints(clusters: &TwoClusters) -> Vec<String> {
    let mut lines =
        vec!["The clusters run until Ctrl-C. To enter them, as the same user:".to_owned()];
    for Cluster { name, pod, gateway, .. } in [&clusters.rome, &clusters.milan] {
        lines.push(format!("  pod of {name}:     nsenter --net={} bash", pod.path().display()));
        lines.push(format!("  gateway of {name}: nsenter --net={} bash", gateway.path().display()));
    }
    lines.push(format!("  configurations and logs: {}", clusters.scratch.path().display()));

    lines
}

/// `6` or `6s`.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: u32 = text
        .strip_suffix('s')
        .unwrap_or(text)
        .parse()
        .map_err(|_| "expected whole seconds, as in 6".to_owned())?;

    match seconds {
        1..=3600 => Ok(Duration::from_secs(seconds.into())),
        _ => Err("expected 1 to 3600 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_with_optional_unit() {
        assert_eq!(parse_seconds("6"), Ok(Duration::from_secs(6)));
        assert_eq!(parse_seconds("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "0", "-1", "1m", "3601", "six"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_signal_ends_with_shell_exit_status() {
        assert_eq!(exit_status_of(Signal::SIGINT), ExitCode::from(130));
        assert_eq!(exit_status_of(Signal::SIGTERM), ExitCode::from(143));
    }
}
