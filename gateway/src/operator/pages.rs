//! The HTTP pages of the operator.

use std::net::IpAddr;

use hyper::{Method, StatusCode, Uri};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use strait_host::http::{Answer, OPENMETRICS, Site, of_type, text};
use strait_operator::ReconcileCounts;
use tokio::sync::watch;

/// Whether this replica is the leader; `None` until the API server has answered.
pub(super) type Leadership = Option<bool>;

/// All pages and their sources.
pub(super) struct Pages {
    is_leader: watch::Receiver<Leadership>,
    registry: Registry,
}

impl Pages {
    pub(super) fn new(is_leader: watch::Receiver<Leadership>, tally: ReconcileCounts) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape { is_leader: is_leader.clone(), tally }));

        Self { is_leader, registry }
    }

    fn metrics(&self) -> Answer {
        let mut body = String::new();
        match encode(&mut body, &self.registry) {
            Ok(()) => of_type(OPENMETRICS, body),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write metrics\n"),
        }
    }

    fn readiness(&self) -> Answer {
        match *self.is_leader.borrow() {
            Some(true) => text(StatusCode::OK, "ready: this replica is active\n"),
            Some(false) => text(StatusCode::OK, "ready: another replica is active\n"),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "the API server has not answered yet\n"),
        }
    }
}

impl Site for Pages {
    fn answer(&self, method: &Method, uri: &Uri, _: IpAddr) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET, HEAD\n");
        }
        match uri.path() {
            "/metrics" => self.metrics(),
            // The admin thread answers, and if the control thread ends, the process ends.
            "/healthz" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.readiness(),
            _ => text(StatusCode::NOT_FOUND, "no such page: /metrics, /healthz, /readyz\n"),
        }
    }
}

#[derive(Debug)]
struct Scrape {
    is_leader: watch::Receiver<Leadership>,
    tally: ReconcileCounts,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let leads = i64::from(*self.is_leader.borrow() == Some(true));
        ConstGauge::new(leads).encode(encoder.encode_descriptor(
            "strait_operator_is_leader",
            "Whether this replica is the active one",
            None,
            MetricType::Gauge,
        )?)?;

        let mut rounds = encoder.encode_descriptor(
            "strait_operator_reconciles",
            "Reconciliations of objects, by kind and result",
            None,
            MetricType::Counter,
        )?;
        for (kind, [well, failed]) in self.tally.rounds() {
            for (result, count) in [("success", well), ("error", failed)] {
                let labels = [("kind", kind.as_str()), ("result", result)];
                ConstCounter::new(count).encode(rounds.encode_family(&labels)?)?;
            }
        }

        Ok(())
    }
}
