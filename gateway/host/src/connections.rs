//! Limits the number of connections to a socket, so that no client keeps others out.
//!
//! A new connection is accepted at once. Above the limit the connection that has been idle for longest is closed:
//! silent clients and clients that do not read give way to active ones. A connection whose answer has a limit of its own
//! does not count, and gives way to none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::task::{AbortHandle, yield_now};

/// The connections to one socket. Dropping this closes none of them.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    events: Arc<AtomicU64>,
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    task: AbortHandle,
    activity: Activity,
}

/// Records the activity of one connection.
#[derive(Clone, Debug)]
pub struct Activity {
    /// The event counter of all connections.
    events: Arc<AtomicU64>,
    /// The last event of this connection.
    last: Arc<AtomicU64>,
    /// The answers on this connection with a limit of their own.
    exemptions: Arc<AtomicUsize>,
}

/// While this exists, its connection does not count for the limit.
#[derive(Debug)]
pub struct Exemption(Arc<AtomicUsize>);

impl Drop for Exemption {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    /// Exempts the connection from the limit.
    #[must_use]
    pub fn exempt(&self) -> Exemption {
        self.exemptions.fetch_add(1, Ordering::Relaxed);

        Exemption(Arc::clone(&self.exemptions))
    }

    fn is_exempt(&self) -> bool {
        self.exemptions.load(Ordering::Relaxed) > 0
    }

    /// Records that a request, or a part of one, was received.
    pub fn note(&self) {
        self.last.store(self.events.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Writes all of `bytes`, and records activity with each part that the client reads.
    ///
    /// # Errors
    ///
    /// The stream's error.
    pub async fn write_all(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        mut bytes: &[u8],
    ) -> io::Result<()> {
        while stream.write_buf(&mut bytes).await? > 0 {
            self.note();
        }
        if bytes.is_empty() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

impl Connections {
    /// Allows up to `limit` connections, at least one.
    pub fn new(limit: usize) -> Self {
        Self { limit, events: Arc::default(), open: Vec::new() }
    }

    /// Runs `handle` for a new connection on the caller's runtime.
    pub async fn spawn<F>(&mut self, handle: impl FnOnce(Activity) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|open| !open.task.is_finished());
        let last = |open: &Open| open.activity.last.load(Ordering::Relaxed);
        let counted = self.open.iter().enumerate().filter(|(_, open)| !open.activity.is_exempt());
        let count = counted.clone().count();
        let idle = counted.min_by_key(|(_, open)| last(open));
        if let Some((idle, _)) = idle.filter(|_| count >= self.limit) {
            self.open.swap_remove(idle).task.abort();
        }

        let activity = Activity {
            events: Arc::clone(&self.events),
            last: Arc::default(),
            exemptions: Arc::default(),
        };
        activity.note();
        let task = tokio::spawn(handle(activity.clone())).abort_handle();
        self.open.push(Open { task, activity });
        // Lets the closed connection release its descriptor, and the new one read what has arrived.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed() {
        let mut connections = Connections::new(3);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut activities = Vec::new();
        for number in 0..6 {
            if number == 3 {
                let first: &Activity = &activities[0];
                first.note();
            }
            let end = End(number, Arc::clone(&ended));
            connections
                .spawn(|activity| {
                    activities.push(activity);
                    async move {
                        let _end = end;
                        pending::<()>().await;
                    }
                })
                .await;
        }
        yield_now().await;

        assert_eq!(*ended.lock().unwrap(), [1, 2, 0]);
    }

    #[tokio::test]
    async fn an_exempt_connection_takes_no_slot() {
        let mut connections = Connections::new(2);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut exemption = None;
        for number in 0..5 {
            if number == 4 {
                exemption = None;
            }
            let end = End(number, Arc::clone(&ended));
            connections
                .spawn(|activity| {
                    if number == 0 {
                        exemption = Some(activity.exempt());
                    }
                    async move {
                        let _end = end;
                        pending::<()>().await;
                    }
                })
                .await;
        }
        yield_now().await;

        // The third one displaced the first, which was not exempt; the last one that which was, until then.
        assert_eq!(*ended.lock().unwrap(), [1, 0]);
        assert!(exemption.is_none());
    }

    #[tokio::test]
    async fn ended_connections_free_their_slot() {
        let mut connections = Connections::new(2);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let end = End(0, Arc::clone(&ended));
        connections
            .spawn(|_| async move {
                let _end = end;
                pending::<()>().await;
            })
            .await;
        for _ in 0..10 {
            connections.spawn(|_| async {}).await;
        }

        assert!(ended.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_reading_client_is_not_idle() {
        let mut connections = Connections::new(2);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let (mut client, mut stream) = duplex(1);
        for number in 0..3 {
            let end = End(number, Arc::clone(&ended));
            let answer = (number == 0).then(|| std::mem::replace(&mut stream, duplex(1).0));
            if number == 2 {
                client.read_exact(&mut [0; 4]).await.unwrap();
            }
            connections
                .spawn(|activity| async move {
                    let _end = end;
                    if let Some(mut stream) = answer {
                        activity.write_all(&mut stream, b"a long answer").await.unwrap();
                    }
                    pending::<()>().await;
                })
                .await;
        }
        yield_now().await;

        assert_eq!(*ended.lock().unwrap(), [1]);
    }

    /// Records that its connection has ended.
    struct End(u32, Arc<Mutex<Vec<u32>>>);

    impl Drop for End {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }
}
