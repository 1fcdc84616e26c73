//! The admin socket: questions of this host, and the answers.
//!
//! One request a connection, one line of JSON each way:
//!
//! ```text
//! {"version":1,"request":{"explain":{…}}}
//! {"version":1,"answer":{"explanation":{…}}}       or "wrong_question" or "refused" and a text
//! ```
//!
//! The control runtime answers. What a client can hold is bounded in size, number and time.

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
use listener::File;
pub use listener::Listener;
pub use serving::Serving;

/// Grows when an older `strait` would misunderstand a newer one.
const VERSION: u32 = 1;

/// A question is a few hundred bytes; names of peers are short.
const REQUEST_LIMIT_BYTES: u64 = 4 * 1024;

/// An answer may list every peer.
const ANSWER_LIMIT_BYTES: u64 = 4 * 1024 * 1024;

/// Scripts may ask many questions at a time.
const CONNECTION_LIMIT: usize = 64;

/// Of the directory of the socket: others may see that a gateway runs.
const DIRECTORY_MODE: u32 = 0o755;

/// For one question and its answer, on either side.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client wants to know.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// What becomes of a packet.
    Explain(Question),
}

/// What a gateway says to it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// What becomes of the packet.
    Explanation(Box<Report>),
    /// There is no such packet, or no such peer.
    WrongQuestion(String),
    /// This is no request of this version.
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

/// What every version of the protocol begins with.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Why there is no socket, or no answer from one.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each variant is")]
pub enum SocketError {
    #[error("a gateway answers on {} already: choose another admin_socket", path.display())]
    InUse { path: PathBuf },
    #[error("{} is there and is no socket: remove it, or choose another admin_socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot answer on {}: choose another admin_socket, or \"\" for none", path.display())]
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

/// Opens the socket that `config` wants. One that nobody asked for is not worth failing over.
///
/// # Errors
///
/// [`SocketError`] if the path that the configuration names cannot be had.
pub fn open(config: &Config) -> Result<Option<Listener>, SocketError> {
    let Some(path) = config.admin_socket_path() else {
        return Ok(None);
    };

    settle(bind(&path), &config.admin_socket)
}

fn bind(path: &Path) -> Result<Listener, SocketError> {
    let path = path.to_owned();

    Listener::bind(&path, DIRECTORY_MODE).map_err(|error| match error {
        BindError::InUse => SocketError::InUse { path },
        BindError::NotASocket => SocketError::NotASocket { path },
        BindError::Failed(source) => SocketError::Bind { path, source },
    })
}

fn settle(
    bound: Result<Listener, SocketError>,
    wanted: &AdminSocket,
) -> Result<Option<Listener>, SocketError> {
    match (bound, wanted) {
        (Ok(listener), _) => Ok(Some(listener)),
        (Err(error), AdminSocket::Default) => {
            let error = anyhow::Error::from(error);
            warn!("{error:#}; `strait explain` has to ask the configuration file");
            Ok(None)
        }
        (Err(error), AdminSocket::At(_) | AdminSocket::Off) => Err(error),
    }
}

impl Listener {
    /// Answers from now on with `answer`, on the runtime of the caller, until the result is dropped.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn serve(
        self,
        answer: impl Fn(Request) -> Answer + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        info!(socket = %self.file.path.display(), "questions are answered");
        let answer: Arc<Answering> = Arc::new(answer);

        self.accept(CONNECTION_LIMIT, move |stream, activity| {
            let answer = Arc::clone(&answer);
            async move {
                match timeout(PATIENCE, converse(stream, &activity, &*answer)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(%error, "a question was not answered"),
                    Err(_) => debug!("a question was not answered: it took too long"),
                }
            }
        })
    }
}

type Answering = dyn Fn(Request) -> Answer + Send + Sync;

async fn converse(
    stream: tokio::net::UnixStream,
    activity: &Activity,
    answer: &Answering,
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

fn respond(line: &[u8], answer: &Answering) -> Answer {
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

/// Asks the gateway whose socket is at `path`.
///
/// # Errors
///
/// [`SocketError`] if nobody answers, or not in this version.
pub(crate) fn ask(path: &Path, request: Request) -> Result<Answer, SocketError> {
    let nobody = |source| SocketError::NoGateway { path: path.to_owned(), source };
    let line = exchange(path, request).map_err(nobody)?;
    let unclear = || {
        let text = String::from_utf8_lossy(&line).trim_end().chars().take(200).collect();
        SocketError::NoAnswer { path: path.to_owned(), text }
    };

    // A gateway of another version says so in a form that may be its own.
    match serde_json::from_slice(&line) {
        Ok(AnswerLine { version: VERSION, answer: Answer::Refused(text) }) => {
            Err(SocketError::NoAnswer { path: path.to_owned(), text })
        }
        Ok(AnswerLine { version: VERSION, answer }) => Ok(answer),
        Ok(_) | Err(_) => Err(unclear()),
    }
}

fn exchange(path: &Path, request: Request) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
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
