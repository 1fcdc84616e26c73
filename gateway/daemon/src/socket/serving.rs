//! Callers on a socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use strait_host::connections::{Activity, Connections};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::warn;

use super::{Listener, SocketFile};

/// Pause after a failed `accept`: out of file descriptors it fails at once, again and again.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that answers. Dropping it ends that and removes the socket.
#[derive(Debug)]
pub struct Serving {
    task: AbortHandle,
    file: SocketFile,
}

impl Serving {
    /// Whether the socket is still in the file system. Removing it is a way to end a device.
    pub(crate) fn is_there(&self) -> bool {
        self.file.is_there()
    }

    /// Moves the socket to `path`, as its device has another name. Callers that are connected stay so.
    ///
    /// # Errors
    ///
    /// If there is a file of that name, other than a socket that nothing listens on, or the directory cannot be written; then the socket stays where it is.
    pub(crate) fn move_to(&mut self, path: PathBuf) -> io::Result<()> {
        self.file.move_to(path)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // First, so that whoever is sent away can see why.
        self.file.remove();
        self.task.abort();
    }
}

impl Listener {
    /// Runs `converse` for each caller, on the runtime of the caller, until the result is dropped. One more
    /// than `limit` of them ends the one that is idle longest.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub(crate) fn accept<F>(
        self,
        limit: usize,
        converse: impl Fn(UnixStream, Activity) -> F + Send + Sync + 'static,
    ) -> io::Result<Serving>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { listener, file } = self;
        let listener = UnixListener::from_std(listener)?;
        let task = tokio::spawn(accept(listener, limit, converse));

        Ok(Serving { task: task.abort_handle(), file })
    }
}

async fn accept<F>(
    listener: UnixListener,
    limit: usize,
    converse: impl Fn(UnixStream, Activity) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = Connections::new(limit);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => connections.spawn(|activity| converse(stream, activity)).await,
            Err(error) => {
                warn!(%error, "cannot accept a caller on a socket");
                sleep(PAUSE).await;
            }
        }
    }
}
