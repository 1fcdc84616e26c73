//! Serves the clients of a socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use strait_host::connections::{Activity, Connections};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::warn;

use super::{Listener, SocketFile};

/// Pause after a failed `accept`: without free file descriptors it fails again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A served socket. Dropping it stops serving and removes the file.
#[derive(Debug)]
pub struct Serving {
    task: AbortHandle,
    file: SocketFile,
}

impl Serving {
    /// Whether the socket file still exists. Removing it ends a device.
    pub(crate) fn exists(&self) -> bool {
        self.file.exists()
    }

    /// Moves the socket to `path` after a rename of the device. Connections stay.
    ///
    /// # Errors
    ///
    /// If there is another file of that name, except a socket without a listener, or the directory is not writable;
    /// then the socket stays where it is.
    pub(crate) fn move_to(&mut self, path: PathBuf) -> io::Result<()> {
        self.file.move_to(path)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // First, so that clients that are disconnected see that the socket is gone.
        self.file.remove();
        self.task.abort();
    }
}

impl Listener {
    /// Runs `handle` for each client on the caller's runtime, until the result is dropped. Above `limit` clients
    /// the one that has been idle for longest is disconnected.
    ///
    /// # Errors
    ///
    /// If the socket cannot be registered with the runtime.
    pub(crate) fn accept<F>(
        self,
        limit: usize,
        handle: impl Fn(UnixStream, Activity) -> F + Send + Sync + 'static,
    ) -> io::Result<Serving>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { listener, file } = self;
        let listener = UnixListener::from_std(listener)?;
        let task = tokio::spawn(accept(listener, limit, handle));

        Ok(Serving { task: task.abort_handle(), file })
    }
}

async fn accept<F>(listener: UnixListener, limit: usize, handle: impl Fn(UnixStream, Activity) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = Connections::new(limit);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => connections.spawn(|activity| handle(stream, activity)).await,
            Err(error) => {
                warn!(%error, "cannot accept a client on a socket");
                sleep(PAUSE).await;
            }
        }
    }
}
