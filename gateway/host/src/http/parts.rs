//! Streams a page to its client while another thread writes it.
//!
//! A scrape of a gateway with 65,536 peers has 150 MB and takes more than a second: it is never in memory as a whole,
//! and probes are answered meanwhile.

use std::fmt;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::{Semaphore, mpsc};

use super::Body;

/// Size of a part, in bytes.
const PART_BYTES: usize = 64 << 10;

/// Parts that may wait for the client. Most scrapes fit, so their thread does not wait.
const PARTS: usize = 2;

/// Limits the threads that write pages.
pub struct PageWriters(Arc<Semaphore>);

/// Collects what is written to a page and sends it in parts.
pub struct PageWriter {
    text: String,
    ready: mpsc::Sender<Bytes>,
}

impl PageWriters {
    /// Pages that may be written at the same time: more than there are scrapers, and few enough to bound memory and
    /// processor time.
    pub const MAX: usize = 4;

    /// Starts to stream the page that `write` produces; `None` if too many are being written.
    pub fn start(
        &self,
        write: impl FnOnce(&mut PageWriter) -> fmt::Result + Send + 'static,
    ) -> Option<Body> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        let (ready, mut parts) = mpsc::channel(PARTS);
        tokio::task::spawn_blocking(move || {
            let mut parts = PageWriter { text: String::new(), ready };
            // Fails if the client has disconnected, which needs no report.
            let _ = write(&mut parts).and_then(|()| parts.flush());
            drop(permit);
        });
        let parts = stream::poll_fn(move |context| parts.poll_recv(context));

        Some(StreamBody::new(parts.map(|part| Ok(Frame::data(part)))).boxed_unsync())
    }
}

impl Default for PageWriters {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(Self::MAX)))
    }
}

impl PageWriter {
    fn flush(&mut self) -> fmt::Result {
        self.ready.blocking_send(mem::take(&mut self.text).into()).map_err(|_| fmt::Error)
    }
}

impl fmt::Write for PageWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.push_str(text);

        if self.text.len() < PART_BYTES { Ok(()) } else { self.flush() }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_client_gets_the_whole_page() {
        let line = "one of many lines\n";
        let body = PageWriters::default()
            .start(move |parts| (0..20_000).try_for_each(|_| parts.write_str(line)));

        let page = body.unwrap().collect().await.unwrap().to_bytes();

        assert_eq!(page, line.repeat(20_000));
    }

    #[tokio::test]
    async fn concurrent_pages_are_limited() {
        let writers = PageWriters::default();
        let endless = |parts: &mut PageWriter| loop {
            parts.write_str("and so on\n")?;
        };
        let mut unread: Vec<_> = (0..PageWriters::MAX).map(|_| writers.start(endless)).collect();
        assert!(unread.iter().all(Option::is_some));
        assert!(writers.start(endless).is_none());

        unread.pop();

        // Its thread notices that the client has gone.
        let mut next = None;
        while next.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            next = writers.start(|_| Ok(()));
        }
    }
}
