//! Signals: SIGTERM and SIGINT end the process, SIGHUP has it read its configuration again, and SIGUSR2 has it replaced by
//! the program that its file holds by now.
//!
//! Before [`Signals::listen`] a signal ends the process at once. After it the process shuts down in order, and a
//! separate thread bounds the time for that, so that a blocked loop cannot keep the process alive.

use std::io;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

/// Time limit of an orderly shutdown. Less than the grace period of Kubernetes.
const END_MAX: Duration = Duration::from_secs(25);

/// Whether a [`Signals`] handles the signals.
static IS_LISTENING: AtomicBool = AtomicBool::new(false);

/// Makes SIGTERM and SIGINT end the process, also as the first process of a container, for which the kernel has no
/// default action: at once, or in order after [`Signals::listen`].
///
/// # Errors
///
/// If a handler cannot be installed or the thread cannot be started.
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
            info!("a signal ended the process before it had started");
            return exit(0);
        }
        thread::sleep(limit);
        error!(?limit, "the orderly shutdown took too long: exiting now");
        exit(1);
    })?;

    Ok(())
}

/// Receives SIGHUP, SIGUSR2, SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    reload: Signal,
    replace: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// The action that a signal requests.
pub enum SignalAction {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR2: hand over to the program in the file of this one.
    Replace,
    /// SIGTERM or SIGINT: shut down in order.
    End,
}

impl Signals {
    /// Takes over the signals: from now on the caller shuts the process down, and SIGHUP and SIGUSR2 no longer end it.
    ///
    /// # Errors
    ///
    /// If a handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let signals = Self {
            reload: signal(SignalKind::hangup())?,
            replace: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        IS_LISTENING.store(true, Ordering::Relaxed);

        Ok(signals)
    }

    /// Waits for SIGTERM or SIGINT and ignores the others. Cancel safe.
    pub async fn end(&mut self) {
        while !matches!(self.next().await, SignalAction::End) {}
    }

    /// Cancel safe.
    pub async fn next(&mut self) -> SignalAction {
        select! {
            _ = self.reload.recv() => SignalAction::Reload,
            _ = self.replace.recv() => SignalAction::Replace,
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
    const WAIT_MAX: Duration = Duration::from_secs(30);

    #[test]
    fn a_process_that_hangs_ends_after_the_limit() {
        static EARLY: AtomicBool = AtomicBool::new(false);
        static LATE: AtomicBool = AtomicBool::new(true);
        let (early, ended_early) = channel();
        let (late, ended_late) = channel();
        watch(&EARLY, Duration::MAX, move |status| early.send(status).unwrap()).unwrap();
        watch(&LATE, Duration::from_millis(20), move |status| late.send(status).unwrap()).unwrap();

        raise(Signal::SIGTERM).unwrap();

        assert_eq!(ended_early.recv_timeout(WAIT_MAX), Ok(0));
        assert_eq!(ended_late.recv_timeout(WAIT_MAX), Ok(1));
    }
}
