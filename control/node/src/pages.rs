//! What a node agent tells whoever asks over HTTP.

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
use super::forwarding::Way;

/// What there is to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Whether all objects were seen.
    pub(super) is_listed: bool,
    /// Of each prefix.
    pub(super) ways: Vec<Way>,
    /// What is wrong with objects or with the network, a line each.
    pub(super) problems: Vec<String>,
    /// What the kernel refused the last time, a line each.
    pub(super) refused: Vec<String>,
    /// Requests to the kernel that went well, since the start.
    pub(super) changed: u64,
    /// Requests to the kernel that it refused, since the start.
    pub(super) failed: u64,
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

    /// What is wrong with objects is for those to mend who wrote them: another pod would not help.
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
            // Its thread answers, and the other one ends the process if it ends.
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
            "Prefixes of remote clusters, by the way that packets for them go",
            None,
            MetricType::Gauge,
        )?;
        for way in Way::ALL {
            let number = report.ways.iter().filter(|other| **other == way).count();
            let gauge = ConstGauge::new(count(number));
            gauge.encode(prefixes.encode_family(&[("way", way.label())])?)?;
        }
        ConstGauge::new(count(report.problems.len())).encode(encoder.encode_descriptor(
            "strait_node_problems",
            "Wrong things in objects or in the network around, which the log names",
            None,
            MetricType::Gauge,
        )?)?;
        if let Some(findings) = self.findings.borrow().as_ref() {
            let flows = findings.values().map(|finding| finding.flows).sum();
            ConstGauge::new(count(flows)).encode(encoder.encode_descriptor(
                "strait_node_masqueraded_flows",
                "Flows of pods to remote clusters that leave this node with another source; absent if that cannot be seen",
                None,
                MetricType::Gauge,
            )?)?;
        }
        let mut changes = encoder.encode_descriptor(
            "strait_node_changes",
            "Requests to the kernel for routes, rules and neighbours, by how they ended",
            None,
            MetricType::Counter,
        )?;
        for (result, number) in [("success", report.changed), ("error", report.failed)] {
            ConstCounter::new(number).encode(changes.encode_family(&[("result", result)])?)?;
        }

        Ok(())
    }
}
