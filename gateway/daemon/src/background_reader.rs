//! Reads a file on a separate thread, so that a path that blocks (a FIFO, or a server that does not answer) does not
//! block the control loop.

use std::future::pending;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Timeout of a read: longer than reading and checking the file of a gateway with thousands of peers takes.
pub(crate) const READ_MAX: Duration = Duration::from_secs(30);

/// Runs at most one read at a time.
#[derive(Debug)]
pub(crate) struct BackgroundReader<T> {
    limit: Duration,
    under_way: Option<UnderWay<T>>,
    /// The thread of the last read, if it timed out. It may be blocked forever.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct UnderWay<T> {
    result: oneshot::Receiver<T>,
    deadline: Instant,
    is_asked_again: bool,
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome<T> {
    /// The result, and whether another read was requested meanwhile.
    Done(T, ReadAgain),
    /// The read took too long. Its result is discarded.
    TimedOut,
    /// The thread ended without a result.
    Panicked,
}

/// Whether a read was requested while another one was in progress, which may have read an older file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAgain {
    Yes,
    No,
}

impl<T: Send + 'static> BackgroundReader<T> {
    /// Creates a reader whose reads time out after `limit`.
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, under_way: None, thread: None }
    }

    /// Starts a read, or remembers the request if one is in progress.
    ///
    /// # Errors
    ///
    /// If no thread can be started, or the previous one is still blocked after its timeout.
    pub(crate) fn start(&mut self, read: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
        if let Some(under_way) = &mut self.under_way {
            under_way.is_asked_again = true;
            return Ok(());
        }
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the last read has not ended yet"));
        }
        let (sender, result) = oneshot::channel();
        // The thread does not keep the process alive.
        let thread = Builder::new().name("read".to_owned()).spawn(move || {
            let _ = sender.send(read());
        })?;
        self.thread = Some(thread);
        let deadline = Instant::now() + self.limit;
        self.under_way = Some(UnderWay { result, deadline, is_asked_again: false });

        Ok(())
    }

    /// Waits for the result or the timeout. Cancel safe.
    pub(crate) async fn next(&mut self) -> ReadOutcome<T> {
        let Some(UnderWay { result, deadline, .. }) = &mut self.under_way else {
            return pending().await;
        };
        let result = timeout_at(*deadline, result).await;
        if result.is_ok() {
            // The thread may still run for a moment, which blocks nothing.
            self.thread = None;
        }
        let is_asked_again = self.under_way.take().is_some_and(|read| read.is_asked_again);

        match result {
            Ok(Ok(value)) => ReadOutcome::Done(
                value,
                if is_asked_again { ReadAgain::Yes } else { ReadAgain::No },
            ),
            Ok(Err(_)) => ReadOutcome::Panicked,
            Err(_) => ReadOutcome::TimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_blocked_read_times_out() {
        let mut reader = BackgroundReader::new(Duration::from_millis(20));
        let (unblock, blocked) = mpsc::channel::<()>();
        reader.start(move || blocked.recv().is_ok()).unwrap();

        assert_eq!(reader.next().await, ReadOutcome::TimedOut);
        let error = reader.start(|| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        drop(unblock);
        while reader.start(|| true).is_err() {
            std::thread::yield_now();
        }
    }

    /// The thread ends some time after it has sent its result.
    #[tokio::test]
    async fn a_read_can_follow_at_once() {
        let mut reader = BackgroundReader::new(READ_MAX);
        for number in 0..2_000 {
            reader.start(move || number).unwrap();
            assert_eq!(reader.next().await, ReadOutcome::Done(number, ReadAgain::No));
        }
    }

    #[tokio::test]
    async fn a_panicking_read_is_reported() {
        let mut reader = BackgroundReader::<()>::new(READ_MAX);
        reader.start(|| panic!("expected")).unwrap();

        assert_eq!(reader.next().await, ReadOutcome::Panicked);
    }

    #[tokio::test]
    async fn a_second_request_is_reported() {
        let mut reader = BackgroundReader::new(READ_MAX);
        for _ in 0..2 {
            reader.start(|| 7).unwrap();
        }

        assert_eq!(reader.next().await, ReadOutcome::Done(7, ReadAgain::Yes));
        reader.start(|| 8).unwrap();
        assert_eq!(reader.next().await, ReadOutcome::Done(8, ReadAgain::No));
    }
}
