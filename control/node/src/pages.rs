//! The HTTP pages of a node agent.

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
use tokio::sync::watch;

use super::finding::Findings;
use super::forwarding::Path;

/// The state to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Whether all objects were seen.
    pub(super) is_listed: bool,
    /// The paths of each prefix.
    pub(super) paths: Vec<Path>,
    /// The gateways that share a remote cluster.
    pub(super) gateways: Gateways,
    /// Problems of objects or of the network, one per line.
    pub(super) problems: Vec<String>,
    /// The refusals of the kernel in the last round, one per line.
    pub(super) refused: Vec<String>,
    /// Successful requests to the kernel, since the start.
    pub(super) changed: u64,
    /// Requests that the kernel refused, since the start.
    pub(super) failed: u64,
}

/// The number of gateway pods by what they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gateways {
    pub(super) forwarding: usize,
    /// Those that say that they do not, and those that do not answer.
    pub(super) not_forwarding: usize,
}

/// All pages.
pub(super) struct Pages {
    report: watch::Receiver<Report>,
    registry: Registry,
}

impl Pages {
    pub(super) fn new(
        report: watch::Receiver<Report>,
        findings: watch::Receiver<Option<Findings>>,
    ) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape { report: report.clone(), findings }));

        Self { report, registry }
    }

    fn metrics(&self) -> Answer {
        let mut body = String::new();
        match encode(&mut body, &self.registry) {
            Ok(()) => of_type(OPENMETRICS, body),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot write metrics\n"),
        }
    }

    /// Problems of objects do not make it unready: another pod would have them too.
    fn readiness(&self) -> Answer {
        let report = self.report.borrow();
        if !report.is_listed {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the first list of objects was not seen\n",
            );
        }
        if report.refused.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let lines: String = report.refused.iter().map(|line| format!("{line}\n")).collect();

        text(StatusCode::SERVICE_UNAVAILABLE, lines)
    }
}

impl Site for Pages {
    fn answer(&self, method: &Method, uri: &Uri, _: IpAddr) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET, HEAD\n");
        }
        match uri.path() {
            "/metrics" => self.metrics(),
            // An answer proves that its thread runs; the end of the other one ends the process.
            "/healthz" => text(StatusCode::OK, "alive\n"),
            "/readyz" => self.readiness(),
            _ => text(StatusCode::NOT_FOUND, "no such page: /metrics, /healthz, /readyz\n"),
        }
    }
}

#[derive(Debug)]
struct Scrape {
    report: watch::Receiver<Report>,
    findings: watch::Receiver<Option<Findings>>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let report = self.report.borrow().clone();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);

        let mut prefixes = encoder.encode_descriptor(
            "strait_node_prefixes",
            "Prefixes of remote clusters, by each way that packets for them go",
            None,
            MetricType::Gauge,
        )?;
        for way in Path::ALL {
            let number = report.paths.iter().filter(|other| **other == way).count();
            let gauge = ConstGauge::new(count(number));
            gauge.encode(prefixes.encode_family(&[("way", way.label())])?)?;
        }
        let mut gateways = encoder.encode_descriptor(
            "strait_node_gateways",
            "Gateway pods of remote clusters with several gateways, by whether they forward",
            None,
            MetricType::Gauge,
        )?;
        let Gateways { forwarding, not_forwarding } = report.gateways;
        for (forwards, number) in [("true", forwarding), ("false", not_forwarding)] {
            let gauge = ConstGauge::new(count(number));
            gauge.encode(gateways.encode_family(&[("forwards", forwards)])?)?;
        }
        ConstGauge::new(count(report.problems.len())).encode(encoder.encode_descriptor(
            "strait_node_problems",
            "Problems in objects or in the network, which the log lists",
            None,
            MetricType::Gauge,
        )?)?;
        if let Some(findings) = self.findings.borrow().as_ref() {
            let flows = findings.values().map(|finding| finding.flows).sum();
            ConstGauge::new(count(flows)).encode(encoder.encode_descriptor(
                "strait_node_masqueraded_flows",
                "Flows of pods to remote clusters that leave this node with another source; absent if connections cannot be read",
                None,
                MetricType::Gauge,
            )?)?;
        }
        let mut changes = encoder.encode_descriptor(
            "strait_node_changes",
            "Requests to the kernel for routes, rules and neighbours, by outcome",
            None,
            MetricType::Counter,
        )?;
        for (result, number) in [("success", report.changed), ("error", report.failed)] {
            ConstCounter::new(number).encode(changes.encode_family(&[("result", result)])?)?;
        }

        Ok(())
    }
}
