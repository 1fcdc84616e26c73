//! The pages of a gateway.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use strait_host::http::{
    Answer, LineStreams, OPENMETRICS, PageWriters, Site, of_type, text, with_body,
};
use tracing::info;

use super::Sources;
use super::config::ConfigPage;
use crate::forwarding::Forwarding;
use crate::metrics::Metrics;

/// The content type of lines of JSON.
const NDJSON: &str = "application/x-ndjson";

/// All pages and their sources.
pub struct Pages {
    metrics: Arc<Metrics>,
    scrapes: PageWriters,
    followers: LineStreams,
    sources: Sources,
}

impl Site for Pages {
    fn answer(&self, method: &Method, uri: &Uri, client: IpAddr) -> Answer {
        self.page(method, uri, client)
    }
}

impl Pages {
    /// Creates the pages from `sources`.
    pub fn new(sources: Sources) -> Self {
        let metrics = Metrics::new(sources.status.clone(), sources.cluster.clone());

        Self {
            metrics: Arc::new(metrics),
            scrapes: PageWriters::default(),
            followers: LineStreams::default(),
            sources,
        }
    }

    fn page(&self, method: &Method, uri: &Uri, client: IpAddr) -> Answer {
        let read: fn(&Self) -> Answer = match uri.path() {
            "/metrics" => Self::metrics,
            "/healthz" => Self::health,
            "/readyz" => Self::readiness,
            "/forwarding" => Self::forwarding,
            "/config" => Self::config,
            "/log" => Self::log,
            _ => {
                return text(
                    StatusCode::NOT_FOUND,
                    "no such page: /metrics, /healthz, /readyz, /forwarding, /config, /log\n",
                );
            }
        };
        let is_log = uri.path() == "/log";

        match *method {
            Method::GET | Method::HEAD => read(self),
            Method::PUT if is_log => self.set_log(uri, client),
            _ => {
                let allowed = if is_log { "GET, HEAD, PUT" } else { "GET, HEAD" };
                let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {allowed}\n"));
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                answer
            }
        }
    }

    fn metrics(&self) -> Answer {
        let metrics = Arc::clone(&self.metrics);
        match self.scrapes.start(move |parts| metrics.write(parts)) {
            Some(body) => with_body(OPENMETRICS, body),
            None => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{} scrapes are in progress: try again later\n", PageWriters::MAX),
            ),
        }
    }

    fn health(&self) -> Answer {
        if self.is_alive() {
            text(StatusCode::OK, "alive\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "a packet thread ended\n")
        }
    }

    fn readiness(&self) -> Answer {
        let missing = self.sources.status_board.not_ready_reasons();
        if !missing.is_empty() {
            return text(StatusCode::SERVICE_UNAVAILABLE, missing);
        }

        if self.is_alive() {
            text(StatusCode::OK, format!("ready\n{}", self.sources.status_board.degraded_reasons()))
        } else {
            self.health()
        }
    }

    fn forwarding(&self) -> Answer {
        let values = self.sources.status_board.forwarding().follow();
        let answer = self.followers.start(NDJSON, values, Forwarding::to_line);

        answer.unwrap_or_else(|| {
            text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{} clients follow this page: close some of them\n", LineStreams::MAX),
            )
        })
    }

    fn is_alive(&self) -> bool {
        (self.sources.status)().is_alive
    }

    fn config(&self) -> Answer {
        let Some(in_force) = self.sources.status_board.applied() else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "starting: no configuration has been applied yet\n",
            );
        };
        let page = ConfigPage::new(&in_force, &self.sources.flag_values, &self.sources.log);
        match serde_json::to_string_pretty(&page) {
            Ok(body) => of_type("application/json", format!("{body}\n")),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the configuration\n"),
        }
    }

    fn log(&self) -> Answer {
        text(StatusCode::OK, format!("{}\n", self.sources.log.filter()))
    }

    /// Allowed only from this host, because the port may be open to scrapers.
    fn set_log(&self, uri: &Uri, client: IpAddr) -> Answer {
        if !client.to_canonical().is_loopback() {
            return text(
                StatusCode::FORBIDDEN,
                "only from a loopback address, as 127.0.0.1 on the host or in the pod\n",
            );
        }
        let query = uri.query().unwrap_or_default().as_bytes();
        let level = form_urlencoded::parse(query).find(|(key, _)| key == "level");
        let Some((_, level)) = level.filter(|(_, level)| !level.trim().is_empty()) else {
            let usage = "no level: PUT /log?level=FILTER, with off, error, warn, info, debug or trace, or directives\n";
            return text(StatusCode::BAD_REQUEST, usage);
        };

        match self.sources.log.set_filter(&level) {
            Ok(()) => {
                info!(filter = %level, "log filter changed");
                self.log()
            }
            Err(wrong) => text(StatusCode::BAD_REQUEST, format!("level {level:?}: {wrong}\n")),
        }
    }
}
