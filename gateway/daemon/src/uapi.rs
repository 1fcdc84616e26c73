//! The configuration socket of `wg`.
//!
//! The control runtime answers. Size and number of requests are bounded; silent clients are disconnected.

mod gateway;
mod lines;
pub(crate) mod status;
mod zone;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strait_host::connections::Activity;
use strait_wg::uapi::{Operation, Refusal, Report, RequestParser, Step, ending};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::socket::{BindError, Listener, Serving};
use lines::{Line, Lines};

pub use gateway::serve_gateway;

/// The directory in which `wg` looks for userspace devices.
pub(crate) const DIRECTORY: &str = "/var/run/wireguard";

/// Mode of the directory: users who may not configure devices do not see them.
const DIRECTORY_MODE: u32 = 0o700;

/// Maximum number of connections: scripts may ask many questions in parallel.
const CONNECTION_LIMIT: usize = 64;

/// How long a client may send or read nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The path of the socket of the device `interface`.
pub(crate) fn path(interface: &str) -> PathBuf {
    Path::new(DIRECTORY).join(file_name(interface))
}

/// The file name of the socket of the device `interface`.
pub(crate) fn file_name(interface: &str) -> String {
    format!("{interface}.sock")
}

/// Why the socket of a device cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UapiError {
    #[error("another process answers on {}: choose another name, or end that device", path.display())]
    InUse { path: PathBuf },
    #[error("{} is not a socket: remove it", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {}: run as root, with a writable /var/run", path.display())]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Binds the socket of the device `interface`.
///
/// # Errors
///
/// [`UapiError`], which names the path and the remedy.
pub(crate) fn bind(interface: &str) -> Result<Listener, UapiError> {
    let path = path(interface);

    Listener::bind(&path, DIRECTORY_MODE).map_err(|error| match error {
        BindError::InUse => UapiError::InUse { path },
        BindError::NotASocket => UapiError::NotASocket { path },
        BindError::Failed(source) => UapiError::Bind { path, source },
    })
}

/// Handles an operation: returns a report for a get, nothing for a set.
pub(crate) type Handler = dyn Fn(Operation) -> Result<Option<Report>, Refusal> + Send + Sync;

/// Serves `listener` with `answer` on the caller's runtime, until the result is dropped.
///
/// # Errors
///
/// If the socket cannot be registered with the runtime.
pub(crate) fn serve(listener: Listener, answer: Arc<Handler>) -> io::Result<Serving> {
    listener.accept(CONNECTION_LIMIT, move |stream, activity| {
        let answer = Arc::clone(&answer);
        async move {
            if let Err(error) = handle_connection(stream, &activity, &*answer).await {
                debug!(%error, "a connection for configuration ended early");
            }
        }
    })
}

/// Handles requests one after the other, until the client disconnects.
async fn handle_connection(
    stream: UnixStream,
    activity: &Activity,
    answer: &Handler,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = Lines::new(read);
    let mut parser = RequestParser::default();

    loop {
        let line = timeout(CLIENT_TIMEOUT, lines.next()).await??;
        activity.note();
        let step = match line {
            Line::End => return Ok(()),
            Line::Text(line) => parser.take(&zone::with_index(line)),
            Line::TooLong => Step::Last(RequestParser::too_big()),
        };
        let (result, is_last) = match step {
            Step::More => continue,
            Step::Close => return Ok(()),
            Step::Answer(request) => (request.and_then(answer), false),
            Step::Last(refusal) => (Err(refusal), true),
        };
        timeout(CLIENT_TIMEOUT, respond(&mut write, activity, result)).await??;
        if is_last {
            write.shutdown().await?;
            // Closing with unread data would reset the connection before the client reads the answer.
            return timeout(CLIENT_TIMEOUT, lines.drain()).await?;
        }
    }
}

async fn respond(
    write: &mut (impl AsyncWriteExt + Unpin),
    activity: &Activity,
    result: Result<Option<Report>, Refusal>,
) -> io::Result<()> {
    let end = match result {
        Ok(report) => {
            if let Some(report) = report {
                activity.write_all(write, report.to_text().as_bytes()).await?;
            }
            ending(Ok(()))
        }
        Err(refusal) => {
            warn!(errno = refusal.errno.0, "refused: {refusal}");
            ending(Err(refusal.errno))
        }
    };

    write.write_all(end.as_bytes()).await
}

#[cfg(test)]
mod tests;
