//! The HTTP side door: `/metrics`, `/healthz` and `/readyz`, on a thread of its own.
//!
//! A scrape costs this thread and nobody else. What a client can hold is bounded in size, number and
//! time, because the port may be open to more than the scraper.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::metrics::{Metrics, StatusSource};

/// A scraper and two probes need three; the rest is slack for retries.
const CONNECTION_LIMIT: usize = 32;

/// A request is one line and a few headers. hyper accepts no smaller buffer than 8 KiB.
const REQUEST_LIMIT_BYTES: usize = 8 * 1024;

/// More than any client needs that is not stuck.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// After this a connection ends whatever it does, so that a client that never reads its answer does
/// not hold its place forever. Scrapers connect again.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

/// Pause after a failed `accept`: out of file descriptors it fails at once, again and again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether the gateway runs with its first configuration applied and is not draining.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Changes what `/readyz` answers.
    pub(crate) fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Release);
    }

    fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A bound port that does not answer yet.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Binds `address`; port 0 lets the kernel choose.
    ///
    /// # Errors
    ///
    /// The cause, with the address and the remedy.
    pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        });

        bound.with_context(|| {
            format!("cannot serve metrics on {address}: choose another metrics_address")
        })
    }

    /// Starts to answer. The thread ends with the process.
    ///
    /// # Errors
    ///
    /// If the thread or its runtime cannot be had.
    pub(crate) fn serve(
        self,
        source: StatusSource,
        readiness: Readiness,
    ) -> io::Result<SocketAddr> {
        let Self { listener, address } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        drop(guard);
        let metrics = Metrics::new(Arc::clone(&source));
        let pages = Arc::new(Pages { metrics, source, readiness });

        thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || runtime.block_on(accept(listener, pages)))?;
        info!(%address, "metrics are served");

        Ok(address)
    }
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let places = Arc::new(Semaphore::new(CONNECTION_LIMIT));
    loop {
        // The place is taken before the connection: those beyond the limit wait in the backlog of
        // the kernel and cost no file descriptor.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, client)) => {
                let pages = Arc::clone(&pages);
                tokio::spawn(async move {
                    if timeout(CONNECTION_LIFETIME, serve(stream, pages)).await.is_err() {
                        debug!(%client, "metrics connection ended: it was open for too long");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a metrics connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = pages.answer(request.method(), request.uri().path());
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

struct Pages {
    metrics: Metrics,
    source: StatusSource,
    readiness: Readiness,
}

impl Pages {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
            return text(StatusCode::NOT_FOUND, "no such page: /metrics, /healthz, /readyz\n");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }

        match path {
            "/metrics" => self.metrics(),
            "/healthz" => probe((self.source)().is_alive, "alive\n", "a packet thread ended\n"),
            _ => probe(
                self.readiness.is_ready() && (self.source)().is_alive,
                "ready\n",
                "starting or draining\n",
            ),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let Ok(body) = self.metrics.text() else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write metrics\n");
        };
        let mut answer = Response::new(Full::new(Bytes::from(body)));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(Metrics::CONTENT_TYPE));

        answer
    }
}

fn probe(is_good: bool, good: &'static str, bad: &'static str) -> Response<Full<Bytes>> {
    if is_good { text(StatusCode::OK, good) } else { text(StatusCode::SERVICE_UNAVAILABLE, bad) }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));

    answer
}

#[cfg(test)]
mod tests;
