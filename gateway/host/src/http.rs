//! The HTTP server of the admin port, on a thread of its own.
//!
//! A scrape costs only this thread. Size, number and time of connections are bounded, because clients other than the
//! scraper may reach the port.

mod lines;
mod parts;

use std::convert::Infallible;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::connections::{Activity, Connections, Exemption};

use lines::Separate;

pub use lines::LineStreams;
pub use parts::{PageWriter, PageWriters};

/// The content type of OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const PLAIN: &str = "text/plain; charset=utf-8";

/// A scraper and two probes need three. The rest absorbs idle clients: that many must connect between a probe's
/// connection and its request to displace the probe.
const CONNECTION_LIMIT: usize = 256;

/// Connections that the kernel queues until they are accepted. None waits there for long.
const BACKLOG: i32 = 4096;

/// Bytes that wait in the kernel for a client that does not read.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// A request is one line and a few headers. hyper accepts no smaller buffer than 8 KiB.
const REQUEST_LIMIT_BYTES: usize = 8 * 1024;

/// More than any working client needs.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum lifetime of a connection, so that a client that never reads its answer does not hold its slot forever.
/// Scrapers reconnect.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// Pause after a failed `accept`: without free file descriptors it fails again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A set of pages that is served on a port.
pub trait Site: Send + Sync + 'static {
    /// Returns the answer to a request from the address `client`.
    fn answer(&self, method: &Method, uri: &Uri, client: IpAddr) -> Answer;
}

/// A bound port that is not served yet.
#[derive(Debug)]
pub struct Admin {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Binds `address`; with port 0 the kernel chooses the port.
    ///
    /// # Errors
    ///
    /// The cause, with the address and the remedy.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let listen = || {
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            let listener = std::net::TcpListener::from(socket);
            let address = listener.local_addr()?;
            io::Result::Ok(Self { listener, address })
        };

        listen().with_context(|| {
            format!(
                "cannot listen on {address}: choose another metrics_address, or --metrics-address and --health-probe-bind-address"
            )
        })
    }

    /// Goes on with the listening socket of the predecessor of this process that is bound to `address`, and leaves the
    /// others in `inherited`, open. Binds the address if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Self::bind`].
    pub fn inherit_or_bind(
        address: SocketAddr,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let mut found = None;
        for listener in mem::take(inherited) {
            match found {
                None => match Self::inherit(address, listener) {
                    Ok(admin) => found = Some(admin),
                    Err(other) => inherited.push(other),
                },
                Some(_) => inherited.push(listener),
            }
        }

        found.map_or_else(|| Self::bind(address), Ok)
    }

    /// Goes on with a listening socket, if it is bound to `address`; otherwise returns it.
    fn inherit(address: SocketAddr, listener: OwnedFd) -> Result<Self, OwnedFd> {
        let listener = std::net::TcpListener::from(listener);
        match listener.local_addr() {
            Ok(bound) if bound == address => Ok(Self { listener, address }),
            _ => Err(listener.into()),
        }
    }

    /// The listening socket, for a successor of this process.
    ///
    /// # Errors
    ///
    /// That of the system.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.listener.try_clone().map(OwnedFd::from)
    }

    /// The address that is bound.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to answer with the pages of `site`. The thread ends with the process.
    ///
    /// # Errors
    ///
    /// If the thread or its runtime cannot be created.
    pub fn serve(self, site: Arc<impl Site>) -> io::Result<SocketAddr> {
        let Self { listener, address } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        drop(guard);

        thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(accept(listener, site)))?;
        info!(%address, "metrics are served");

        Ok(address)
    }
}

async fn accept(listener: TcpListener, site: Arc<impl Site>) {
    let mut connections = Connections::new(CONNECTION_LIMIT);
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                if let Err(error) = prepare(&stream) {
                    debug!(%client, %error, "cannot set the options of a metrics connection");
                }
                let site = Arc::clone(&site);
                connections
                    .spawn(|activity| async move {
                        let served = serve(stream, client.ip(), site, activity);
                        if timeout(CONNECTION_LIFETIME, served).await.is_err() {
                            debug!(%client, "metrics connection ended: it was open for too long");
                        }
                    })
                    .await;
            }
            Err(error) => {
                warn!(%error, "cannot accept a metrics connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A line leaves at once, and little waits for a client that does not read.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;

    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)
}

async fn serve(stream: TcpStream, client: IpAddr, site: Arc<impl Site>, activity: Activity) {
    let service = service_fn(move |request: Request<Incoming>| {
        activity.note();
        let mut answer = site.answer(request.method(), request.uri(), client);
        if answer.extensions_mut().remove::<Separate>().is_some() {
            answer = exempted(answer, activity.exempt());
        }
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(REQUEST_LIMIT_BYTES)
        .serve_connection(TokioIo::new(stream), service);

    if let Err(error) = connection.await {
        debug!(%error, "metrics connection ended");
    }
}

/// Keeps `exemption` for as long as the body of `answer` exists.
fn exempted(answer: Answer, exemption: Exemption) -> Answer {
    answer.map(|body| {
        let of_connection = move |frame| {
            let _: &Exemption = &exemption;
            frame
        };
        body.map_frame(of_connection).boxed_unsync()
    })
}

/// The answer of a page.
pub type Answer = Response<Body>;

/// The body of a page, complete or streamed.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A page of plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = of_type(PLAIN, body);
    *answer.status_mut() = status;

    answer
}

/// A successful page with this content type.
pub fn of_type(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_body(content_type, Full::new(body.into()).boxed_unsync())
}

/// A successful page with this content type and a body that may be streamed.
pub fn with_body(content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));

    answer
}
