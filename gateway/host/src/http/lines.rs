//! Streams lines that follow a value: the present one at once, each later one at once, and else the same one again.
//!
//! No line waits for a client that does not read: it gets the present one when it reads again. What is written for it is
//! limited by hyper's buffer and by the [limit of its socket](super::UNSENT_BYTES_MAX).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::{Answer, with_body};

/// Limits the answers that follow a value.
#[derive(Debug)]
pub struct LineStreams(Arc<Semaphore>);

/// Marks an answer that has a limit of its own, and takes no connection from others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Separate;

impl LineStreams {
    /// Answers at the same time: one for each node of a large cluster.
    pub const MAX: usize = 1024;

    /// The time until the same line is repeated.
    pub const REPEAT: Duration = Duration::from_millis(100);

    /// Starts to send each of `values` as a line, until there are no more; `None` if too many answers do so.
    pub fn start<T: Send + Sync + 'static>(
        &self,
        content_type: &'static str,
        values: watch::Receiver<T>,
        to_line: fn(&T) -> Bytes,
    ) -> Option<Answer> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        let next = move |(mut values, is_first, permit): (watch::Receiver<T>, bool, _)| async move {
            if !is_first && matches!(timeout(Self::REPEAT, values.changed()).await, Ok(Err(_))) {
                return None;
            }
            let line = to_line(&values.borrow_and_update());

            Some((Ok(Frame::data(line)), (values, false, permit)))
        };
        let lines = stream::unfold((values, true, permit), next);
        let mut answer = with_body(content_type, StreamBody::new(lines).boxed_unsync());
        answer.extensions_mut().insert(Separate);

        Some(answer)
    }
}

impl Default for LineStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(Self::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn to_line(number: &u32) -> Bytes {
        format!("{number}\n").into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_sent_at_once() {
        let (sender, values) = watch::channel(1);
        let start = Instant::now();
        let mut body = LineStreams::default().start("text/plain", values, to_line).unwrap();
        let mut sent = Vec::new();
        for change in [None, None, Some(2), None, Some(3)] {
            if let Some(number) = change {
                sender.send_replace(number);
            }
            let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
            sent.push((start.elapsed().as_millis() / 100, line));
        }

        let expected = [(0, "1\n"), (1, "1\n"), (1, "2\n"), (2, "2\n"), (2, "3\n")];
        assert_eq!(sent, expected.map(|(time, line)| (time, Bytes::from(line))));
        drop(sender);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn concurrent_streams_are_limited() {
        let streams = LineStreams::default();
        let (_sender, values) = watch::channel(1);
        let start = || streams.start("text/plain", values.clone(), to_line);
        let mut bodies: Vec<_> = (0..LineStreams::MAX).map(|_| start()).collect();
        assert!(bodies.iter().all(Option::is_some));
        assert!(start().is_none());

        bodies.pop();
        assert!(start().is_some());
    }
}
