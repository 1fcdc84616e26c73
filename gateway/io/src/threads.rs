//! The packet threads of a gateway: started together, and stopped together without dropping a packet.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use mio::Waker;

use super::edge::Edge as _;
use super::handshakes::{self, Queue};
use super::worker::{Shared, Wait};
use super::{StartError, inbound, outbound};
use strait_engine::{Handshakes, Inbound, Outbound};

/// The parts of an engine that threads own.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) outbound: Outbound,
    pub(super) inbound: Inbound,
    pub(super) handshakes: Handshakes,
}

/// The threads that run.
#[derive(Debug, Default)]
pub(super) struct Threads {
    outbound: Option<Thread<Outbound>>,
    inbound: Option<Thread<Inbound>>,
    handshakes: Option<Thread<(Handshakes, Queue)>>,
}

/// A thread and what wakes it.
#[derive(Debug)]
struct Thread<T> {
    handle: JoinHandle<T>,
    waker: Arc<Waker>,
}

impl Threads {
    /// Starts all of them, with up to `workers` more for each direction under backlog.
    ///
    /// # Errors
    ///
    /// [`StartError::System`]; then none is running.
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        parts: Parts,
        workers: usize,
    ) -> Result<(), StartError> {
        let started = self.try_start(shared, parts, workers);
        if started.is_err() {
            let _ = self.stop(shared);
        }

        started
    }

    fn try_start(
        &mut self,
        shared: &Arc<Shared>,
        parts: Parts,
        workers: usize,
    ) -> Result<(), StartError> {
        let Parts { outbound, inbound, handshakes } = parts;
        shared.is_stopping.store(false, Ordering::Relaxed);
        let udp = shared.udp.load_full();
        let (wait, waker) = wait_for(udp.handshakes())?;
        let (relay, queue) = handshakes::relay(&waker);
        self.handshakes = Some(spawn(shared, "handshakes", waker, {
            let udp = Arc::clone(&udp);
            move |shared| handshakes::run(&shared, handshakes, udp, wait, queue)
        })?);
        let (wait, waker) = wait_for(udp.sockets())?;
        self.inbound = Some(spawn(shared, "inbound", waker, {
            move |shared| inbound::run(&shared, inbound, udp, wait, relay, workers)
        })?);
        let (wait, waker) = wait_for(shared.edge.inputs())?;
        self.outbound = Some(spawn(shared, "outbound", waker, move |shared| {
            outbound::run(&shared, outbound, shared.edge.reader(), wait, workers)
        })?);

        Ok(())
    }

    /// Stops all of them after their current batch. What they have taken from the kernel is sent or written.
    ///
    /// # Errors
    ///
    /// [`StartError::System`] if one has failed, or does not run.
    pub(super) fn stop(&mut self, shared: &Shared) -> Result<Parts, StartError> {
        shared.is_stopping.store(true, Ordering::Relaxed);
        let outbound = self.outbound.take().map(Thread::stop);
        let inbound = self.inbound.take().map(Thread::stop);
        let handshakes = self.handshakes.take().map(Thread::stop);
        let failed = |source| StartError::System { operation: "stop a packet thread", source };
        let missing = || failed(io::ErrorKind::NotFound.into());
        let outbound = outbound.ok_or_else(missing)?.map_err(failed)?;
        let inbound = inbound.ok_or_else(missing)?.map_err(failed)?;
        let (mut handshakes, queue) = handshakes.ok_or_else(missing)?.map_err(failed)?;
        // The inbound thread may have passed on more.
        queue.finish(shared, &mut handshakes);

        Ok(Parts { outbound, inbound, handshakes })
    }

    /// Wakes the thread for handshakes and timers, if it runs.
    pub(super) fn wake_handshakes(&self) -> io::Result<()> {
        self.handshakes.as_ref().map_or(Ok(()), |thread| thread.waker.wake())
    }

    /// Wakes the threads that receive datagrams, if they run.
    pub(super) fn wake_receivers(&self) -> io::Result<()> {
        self.inbound.as_ref().map_or(Ok(()), |thread| thread.waker.wake())?;

        self.wake_handshakes()
    }
}

impl<T> Thread<T> {
    /// Waits for the end of the thread, which was told to stop. One that cannot be woken is not waited for.
    fn stop(self) -> io::Result<T> {
        self.waker.wake()?;

        self.handle.join().map_err(|_| io::Error::other("it has panicked"))
    }
}

fn spawn<T: Send + 'static>(
    shared: &Arc<Shared>,
    name: &'static str,
    waker: Arc<Waker>,
    run: impl FnOnce(Arc<Shared>) -> T + Send + 'static,
) -> Result<Thread<T>, StartError> {
    let shared = Arc::clone(shared);
    let handle = Builder::new()
        .name(name.into())
        .spawn(move || run(shared))
        .map_err(|source| StartError::System { operation: "start a thread", source })?;

    Ok(Thread { handle, waker })
}

fn wait_for<'a>(
    inputs: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> Result<(Wait, Arc<Waker>), StartError> {
    let (wait, waker) = Wait::new(inputs)
        .map_err(|source| StartError::System { operation: "wait for packets", source })?;

    Ok((wait, Arc::new(waker)))
}
