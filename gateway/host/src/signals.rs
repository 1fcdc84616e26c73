//! Signals: SIGTERM and SIGINT end the process, SIGHUP has it read its configuration again.
//!
//! A process that has nothing to put in order yet ends at once. Later its loop ends it in order; a thread of its own
//! bounds the time for that, so that nothing which blocks the loop keeps the process alive.

use std::io;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// The process ends so long after it was asked to, whatever it waits for. Less than Kubernetes gives it.
const END_MAX: Duration = Duration::from_secs(25);

/// Whether a [`Signals`] hears that the process is to end.
static IS_LISTENING: AtomicBool = AtomicBool::new(false);

/// From here on SIGTERM and SIGINT end the process, whatever it waits for and also if it is the first one of a
/// container, for which the kernel has no default action: at once, or in order after [`Signals::listen`].
///
/// # Errors
///
/// If there can be no handler, or no thread.
pub fn end_on_signal() -> io::Result<()> {
    watch(&IS_LISTENING, END_MAX, |status| exit(status))
}

fn watch(
    is_listening: &'static AtomicBool,
    limit: Duration,
    exit: impl FnOnce(i32) + Send + 'static,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    thread::Builder::new().name("end".to_owned()).spawn(move || {
        runtime.block_on(async {
            select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        if !is_listening.load(Ordering::Relaxed) {
            info!("the process ends before it has begun: a signal says so");
            return exit(0);
        }
        thread::sleep(limit);
        error!(?limit, "the process did not end in order: it ends now");
        exit(1);
    })?;

    Ok(())
}

/// SIGHUP, SIGTERM and SIGINT as they come.
#[derive(Debug)]
pub struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// What a signal asks for.
pub enum SignalAction {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM or SIGINT: end in order.
    End,
}

impl Signals {
    /// From here on the process is to end in order, and SIGHUP no longer ends it.
    ///
    /// # Errors
    ///
    /// If a handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let signals = Self {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        IS_LISTENING.store(true, Ordering::Relaxed);

        Ok(signals)
    }

    /// Waits for SIGTERM or SIGINT; SIGHUP has no effect meanwhile. Cancel safe.
    pub async fn end(&mut self) {
        while let SignalAction::Reload = self.next().await {}
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> SignalAction {
        select! {
            _ = self.reload.recv() => SignalAction::Reload,
            _ = self.terminate.recv() => SignalAction::End,
            _ = self.interrupt.recv() => SignalAction::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use nix::sys::signal::{Signal, raise};

    use super::*;

    /// Longer than a busy machine delays a thread.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_process_that_hangs_ends_after_the_limit() {
        static EARLY: AtomicBool = AtomicBool::new(false);
        static LATE: AtomicBool = AtomicBool::new(true);
        let (early, ended_early) = channel();
        let (late, ended_late) = channel();
        watch(&EARLY, Duration::MAX, move |status| early.send(status).unwrap()).unwrap();
        watch(&LATE, Duration::from_millis(20), move |status| late.send(status).unwrap()).unwrap();

        raise(Signal::SIGTERM).unwrap();

        assert_eq!(ended_early.recv_timeout(PATIENCE), Ok(0));
        assert_eq!(ended_late.recv_timeout(PATIENCE), Ok(1));
    }
}
