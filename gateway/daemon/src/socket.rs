//! The admin socket: questions from this host, and the answers.
//!
//! One request per connection, one line of JSON each way:
//!
//! ```text
//! {"version":1,"request":{"explain":{…}}}
//! {"version":1,"answer":{"explanation":{…}}}       or "wrong_question" or "refused" and a text
//! ```
//!
//! The control runtime answers. Size, number and time of connections are bounded.

mod listener;
mod serving;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};
use strait_engine::explain::Question;
use strait_host::connections::Activity;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::config::{AdminSocket, Config};
use super::explain::report::Report;
pub(crate) use listener::BindError;
pub use listener::Listener;
use listener::SocketFile;
pub use serving::Serving;

/// Version of the protocol, increased when an older `strait` would misread a newer one.
const VERSION: u32 = 1;

/// Longest request: a question is a few hundred bytes, names of peers are short.
const REQUEST_LIMIT_BYTES: u64 = 4 * 1024;

/// An answer may list every peer.
const ANSWER_LIMIT_BYTES: u64 = 4 * 1024 * 1024;

/// Maximum number of connections: scripts may ask many questions in parallel.
const CONNECTION_LIMIT: usize = 64;

/// Mode of the socket's directory: other users may see that a gateway runs.
const DIRECTORY_MODE: u32 = 0o755;

/// Timeout of one question, on either side.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// A request of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Explain a packet.
    Explain(Question),
}

/// The answer of a gateway.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The explanation.
    Explanation(Box<Report>),
    /// There can be no such packet, or there is no such peer.
    WrongQuestion(String),
    /// It is not a request of this version.
    Refused(String),
}

#[derive(Serialize, Deserialize)]
struct RequestLine {
    version: u32,
    request: Request,
}

#[derive(Serialize, Deserialize)]
struct AnswerLine {
    version: u32,
    answer: Answer,
}

/// The part that all versions of the protocol share.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Errors of the socket and of its clients.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each variant is")]
pub enum SocketError {
    #[error("a gateway answers on {} already: choose another admin_socket", path.display())]
    InUse { path: PathBuf },
    #[error("{} is not a socket: remove it, or choose another admin_socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {}: choose another admin_socket, or \"\" for none", path.display())]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "no gateway answers on {}: start one, name its socket with --socket or --interface, or ask \
         a file with --config",
        path.display()
    )]
    NoGateway {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the gateway on {} answers {text:?}: use the strait of its release", path.display())]
    NoAnswer { path: PathBuf, text: String },
}

/// Opens the socket of `config`. A failure at the default path is only logged.
///
/// # Errors
///
/// [`SocketError`] if the configured path cannot be bound.
pub fn open(config: &Config) -> Result<Option<Listener>, SocketError> {
    let Some(path) = config.admin_socket_path() else {
        return Ok(None);
    };

    allow_default_failure(bind(&path), &config.admin_socket)
}

/// Whether no other process listens on the socket of `config`.
#[must_use]
pub fn is_free(config: &Config) -> bool {
    config.admin_socket_path().is_none_or(|path| listener::check_free(&path).is_ok())
}

fn bind(path: &Path) -> Result<Listener, SocketError> {
    let path = path.to_owned();

    Listener::bind(&path, DIRECTORY_MODE).map_err(|error| match error {
        BindError::InUse => SocketError::InUse { path },
        BindError::NotASocket => SocketError::NotASocket { path },
        BindError::Failed(source) => SocketError::Bind { path, source },
    })
}

fn allow_default_failure(
    bound: Result<Listener, SocketError>,
    wanted: &AdminSocket,
) -> Result<Option<Listener>, SocketError> {
    match (bound, wanted) {
        (Ok(listener), _) => Ok(Some(listener)),
        (Err(error), AdminSocket::Default) => {
            let error = anyhow::Error::from(error);
            warn!("{error:#}; use `strait explain --config`");
            Ok(None)
        }
        (Err(error), AdminSocket::At(_) | AdminSocket::Off) => Err(error),
    }
}

impl Listener {
    /// Serves requests with `answer` on the caller's runtime, until the result is dropped.
    ///
    /// # Errors
    ///
    /// If the socket cannot be registered with the runtime.
    pub fn serve(
        self,
        answer: impl Fn(Request) -> Answer + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        info!(socket = %self.file.path.display(), "the admin socket is served");
        let answer: Arc<Handler> = Arc::new(answer);

        self.accept(CONNECTION_LIMIT, move |stream, activity| {
            let answer = Arc::clone(&answer);
            async move {
                match timeout(CLIENT_TIMEOUT, handle_connection(stream, &activity, &*answer)).await
                {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(%error, "a question was not answered"),
                    Err(_) => debug!("a question was not answered: it took too long"),
                }
            }
        })
    }
}

type Handler = dyn Fn(Request) -> Answer + Send + Sync;

async fn handle_connection(
    stream: tokio::net::UnixStream,
    activity: &Activity,
    answer: &Handler,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = Vec::new();
    BufReader::new(read.take(REQUEST_LIMIT_BYTES)).read_until(b'\n', &mut line).await?;
    activity.note();

    let answer = respond(&line, answer);
    let mut text = serde_json::to_vec(&AnswerLine { version: VERSION, answer })?;
    text.push(b'\n');
    activity.write_all(&mut write, &text).await?;

    write.shutdown().await
}

fn respond(line: &[u8], answer: &Handler) -> Answer {
    if !line.ends_with(b"\n") {
        let limit = REQUEST_LIMIT_BYTES;
        return Answer::Refused(format!("a request is one line of at most {limit} bytes"));
    }
    match serde_json::from_slice(line) {
        Ok(Head { version: VERSION }) => {}
        Ok(Head { version }) => {
            return Answer::Refused(format!("version {version}, but this gateway knows {VERSION}"));
        }
        Err(error) => return Answer::Refused(error.to_string()),
    }

    match serde_json::from_slice(line) {
        Ok(RequestLine { request, .. }) => answer(request),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// Sends a request to the gateway whose socket is at `path`.
///
/// # Errors
///
/// [`SocketError`] without an answer, or with an answer of another version.
pub(crate) fn ask(path: &Path, request: Request) -> Result<Answer, SocketError> {
    let no_gateway = |source| SocketError::NoGateway { path: path.to_owned(), source };
    let line = exchange(path, request).map_err(no_gateway)?;
    let invalid = || {
        let text = String::from_utf8_lossy(&line).trim_end().chars().take(200).collect();
        SocketError::NoAnswer { path: path.to_owned(), text }
    };

    // A gateway of another version refuses in a form that may be its own.
    match serde_json::from_slice(&line) {
        Ok(AnswerLine { version: VERSION, answer: Answer::Refused(text) }) => {
            Err(SocketError::NoAnswer { path: path.to_owned(), text })
        }
        Ok(AnswerLine { version: VERSION, answer }) => Ok(answer),
        Ok(_) | Err(_) => Err(invalid()),
    }
}

fn exchange(path: &Path, request: Request) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    socket.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    socket.connect(&SockAddr::unix(path)?)?;
    let mut stream = UnixStream::from(std::os::fd::OwnedFd::from(socket));

    let mut text = serde_json::to_vec(&RequestLine { version: VERSION, request })?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = Vec::new();
    stream.take(ANSWER_LIMIT_BYTES).read_to_end(&mut line)?;

    Ok(line)
}

#[cfg(test)]
mod tests;
