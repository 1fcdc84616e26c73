//! One connection to a gateway: HTTP/1.1, an answer without end, one JSON object in each line.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::select;
use tokio::time::timeout;

use super::SILENCE_MAX;
use crate::plan::GatewayState;

/// The page.
const PAGE: &str = "/forwarding";

/// A pod that does not answer at once is not there.
const CONNECT_MAX: Duration = Duration::from_millis(200);

/// A line of a gateway has some hundred bytes: a state and two prefixes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Why a gateway says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("it cannot be connected to: {0}")]
    Connect(io::Error),
    #[error("it does not accept a connection within {CONNECT_MAX:?}")]
    ConnectTimeout,
    #[error("it has not said anything for {SILENCE_MAX:?}")]
    Silent,
    #[error("its connection has ended")]
    Ended,
    #[error(
        "it answers with status {0} to a request for {PAGE}: its version may have no such page"
    )]
    Status(StatusCode),
    #[error("it says what is no state: {0}")]
    Line(serde_json::Error),
    #[error("its line is longer than {LINE_BYTES_MAX} bytes")]
    LineLength,
}

/// An open connection.
pub(super) struct Connection {
    body: Incoming,
    /// Reads from the socket. It is polled here and not by a task of its own, so that what has arrived is seen before a
    /// timeout, also after this thread was busy for long.
    reader: Pin<Box<Reader>>,
    is_read: bool,
    buffer: Vec<u8>,
}

type Reader = http1::Connection<TokioIo<TcpStream>, Empty<Bytes>>;

impl Connection {
    /// Connects to `address`, and returns the first state as well.
    pub(super) async fn open(address: SocketAddr) -> Result<(Self, GatewayState), Failure> {
        let connected = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
        let stream = connected.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;

        let first = async {
            let mut connection = Self::request(stream, address).await?;
            let state = connection.read().await?;
            Ok((connection, state))
        };
        timeout(SILENCE_MAX, first).await.unwrap_or(Err(Failure::Silent))
    }

    /// The next state, from a gateway that is not silent for too long.
    pub(super) async fn next(&mut self) -> Result<GatewayState, Failure> {
        timeout(SILENCE_MAX, self.read()).await.unwrap_or(Err(Failure::Silent))
    }

    async fn request(stream: TcpStream, address: SocketAddr) -> Result<Self, Failure> {
        let (mut sender, reader) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Ended)?;
        let mut reader: Pin<Box<Reader>> = Box::pin(reader);
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = hyper::Uri::from_static(PAGE);
        let host = address.to_string().try_into();
        request.headers_mut().extend(host.ok().map(|host| (HOST, host)));
        let response = select! {
            biased;
            _ = &mut reader => return Err(Failure::Ended),
            response = sender.send_request(request) => response.map_err(|_| Failure::Ended)?,
        };
        if response.status() != StatusCode::OK {
            return Err(Failure::Status(response.status()));
        }

        let body = response.into_body();
        Ok(Self { body, reader, is_read: false, buffer: Vec::new() })
    }

    async fn read(&mut self) -> Result<GatewayState, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(Failure::Line);
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(Failure::LineLength);
            }
            select! {
                biased;
                _ = &mut self.reader, if !self.is_read => self.is_read = true,
                frame = self.body.frame() => {
                    let frame = frame.and_then(Result::ok).ok_or(Failure::Ended)?;
                    self.buffer.extend(frame.into_data().unwrap_or_default());
                }
            }
        }
    }
}

impl Failure {
    /// Whether the gateway has ended the connection, as it does after a time.
    pub(super) const fn is_end(&self) -> bool {
        matches!(self, Self::Ended)
    }
}
