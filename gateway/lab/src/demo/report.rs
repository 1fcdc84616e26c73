//! The results of the demo: as lines for users, as JSON for scripts, and whether all checks passed.

use std::fmt::Display;
use std::net::IpAddr;

use crate::Account;
use crate::traffic::{PingReport, TcpReport, UdpReport};
use serde::Serialize;

/// All results, in order of time.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    failures: Vec<String>,
    pings: Vec<PingLine>,
    tcp: Vec<TcpLine>,
    udp: Vec<UdpLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    iperf3: Vec<IperfLine>,
    gateways: Vec<GatewayLine>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    ok: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// The path from the pod of one cluster to the pod of the other.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PodPath {
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// The address of the receiver for the sender.
    pub(super) target: IpAddr,
    /// The address of the sender that the receiver must see.
    pub(super) seen_as: IpAddr,
}

#[derive(Debug, Serialize)]
struct PingLine {
    #[serde(flatten)]
    path: PodPath,
    sent: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    median_round_trip_us: u64,
}

#[derive(Debug, Serialize)]
struct TcpLine {
    #[serde(flatten)]
    path: PodPath,
    bytes: u64,
    intact: bool,
    client_seen_as: IpAddr,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct UdpLine {
    #[serde(flatten)]
    path: PodPath,
    sent: u64,
    lost: u64,
    reordered: u64,
    duplicated: u64,
    corrupted: u64,
    client_seen_as: Option<IpAddr>,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct IperfLine {
    #[serde(flatten)]
    path: PodPath,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct GatewayLine {
    name: &'static str,
    outbound: Account,
    inbound: Account,
}

/// Numbers of packets of one kind from one pod to the other, at four places.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketCounts {
    /// By the sender.
    pub(super) sent: u64,
    /// By the near gateway, into the tunnel.
    pub(super) near: u64,
    /// By the far gateway, out of the tunnel.
    pub(super) far: u64,
    /// By the receiver.
    pub(super) received: u64,
}

impl PacketCounts {
    /// Packets may be lost on the path, but never multiply. Without loss all four numbers are equal.
    fn is_plausible(self) -> bool {
        self.sent >= self.near && self.near >= self.far && self.far >= self.received
    }
}

impl Report {
    /// Whether nothing failed.
    pub(super) const fn is_ok(&self) -> bool {
        self.failures.is_empty()
    }

    /// The failures.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// All results as one JSON object.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&JsonReport { ok: self.is_ok(), report: self })
    }

    /// Adds an error to the failures.
    pub(super) fn record_failure<E: Display>(&mut self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.failures.push(format!("{what}: {error}"));
        }
    }

    /// Adds the result of a ping; returns its line.
    pub(super) fn add_ping(&mut self, path: PodPath, report: &PingReport) -> String {
        let median = report.median_round_trip().unwrap_or_default();
        self.expect(report.is_perfect(), || format!("pings {}", path.text()));
        self.pings.push(PingLine {
            path,
            sent: report.sent,
            lost: report.lost(),
            duplicated: report.duplicated,
            corrupted: report.corrupted,
            median_round_trip_us: u64::try_from(median.as_micros()).unwrap_or(u64::MAX),
        });

        format!("{}  {} sent, {} lost, {median:.1?}", path.text(), report.sent, report.lost())
    }

    /// Adds the result of a TCP transfer; returns its line.
    pub(super) fn add_tcp(&mut self, path: PodPath, report: &TcpReport) -> String {
        let client = report.client_seen_as.ip();
        self.expect(report.is_intact, || format!("TCP data {}", path.text()));
        self.expect(client == path.seen_as, || format!("{client} as TCP source {}", path.text()));
        let bits_per_second = report.bits_per_second();
        self.tcp.push(TcpLine {
            path,
            bytes: report.received_bytes,
            intact: report.is_intact,
            client_seen_as: client,
            bits_per_second,
        });

        let state = if report.is_intact { "intact" } else { "DAMAGED" };
        let (size, rate) = (report.received_bytes / 1_000_000, rate(bits_per_second));
        format!("{}  {size} MB {state}, {rate}; seen as {client}", path.text())
    }

    /// Adds the result of a series of datagrams; returns its line.
    pub(super) fn add_udp(&mut self, path: PodPath, report: &UdpReport) -> String {
        let client = report.client_seen_as.map(|client| client.ip());
        let is_intact = report.corrupted == 0 && report.duplicated == 0 && report.received > 0;
        self.expect(is_intact, || format!("UDP data {}", path.text()));
        self.expect(client == Some(path.seen_as), || format!("UDP source {}", path.text()));
        let bits_per_second = report.bits_per_second();
        self.udp.push(UdpLine {
            path,
            sent: report.sent,
            lost: report.lost(),
            reordered: report.reordered,
            duplicated: report.duplicated,
            corrupted: report.corrupted,
            client_seen_as: client,
            bits_per_second,
        });

        let (sent, lost, rate) = (report.sent, report.lost(), rate(bits_per_second));
        let client = client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
        format!("{}  {sent} datagrams, {lost} lost, {rate}; seen as {client}", path.text())
    }

    /// Adds the result of iperf3; returns its line.
    pub(super) fn add_iperf3(&mut self, path: PodPath, bits_per_second: f64) -> String {
        self.expect(bits_per_second > 0.0, || format!("iperf3 {}", path.text()));
        self.iperf3.push(IperfLine { path, bits_per_second });

        format!("{}  {}", path.text(), rate(bits_per_second))
    }

    /// Adds the packet counts of a gateway; returns their lines.
    pub(super) fn add_account(
        &mut self,
        name: &'static str,
        outbound: Account,
        inbound: Account,
    ) -> [String; 2] {
        let lines = [("outbound", &outbound), ("inbound", &inbound)].map(|(direction, account)| {
            self.expect(account.is_balanced(), || format!("the {direction} account of {name}"));
            format!("  {name:<5} {direction:<8} {account}")
        });
        self.gateways.push(GatewayLine { name, outbound, inbound });

        lines
    }

    /// Checks the packet counts along a path; returns the line for them.
    pub(super) fn add_counts(&mut self, what: &str, path: PodPath, counts: PacketCounts) -> String {
        let PacketCounts { sent, near, far, received } = counts;
        let is_plausible = counts.is_plausible();
        self.expect(is_plausible, || format!("counting {what} {}", path.text()));
        let verdict = if is_plausible { "agree" } else { "DISAGREE" };

        format!(
            "{}  {what}: pod {sent}, gateway {near}, gateway {far}, pod {received}: {verdict}",
            path.text()
        )
    }

    /// Adds `what` to the failures unless it is correct.
    pub(super) fn expect(&mut self, is_correct: bool, what: impl FnOnce() -> String) {
        if !is_correct {
            self.failures.push(format!("wrong: {}", what()));
        }
    }
}

impl PodPath {
    fn text(&self) -> String {
        let Self { from, to, target, .. } = self;

        format!("  {from:<5} → {to:<5} {target:<18}")
    }
}

fn rate(bits_per_second: f64) -> String {
    if bits_per_second >= 1e9 {
        format!("{:.2} Gb/s", bits_per_second / 1e9)
    } else {
        format!("{:.1} Mb/s", bits_per_second / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lost_ping_is_a_failure() {
        let mut report = Report::default();
        let lossy = PingReport { sent: 20, received: 19, ..PingReport::default() };

        report.add_ping(path(), &lossy);

        assert!(!report.is_ok());
        assert!(report.to_json().unwrap().contains("\"lost\": 1"));
    }

    #[test]
    fn a_real_source_address_is_a_failure() {
        let mut report = Report::default();
        let unmapped = TcpReport {
            sent_bytes: 1,
            received_bytes: 1,
            is_intact: true,
            elapsed: Duration::from_secs(1),
            client_seen_as: "10.244.1.5:40000".parse().unwrap(),
        };

        report.add_tcp(path(), &unmapped);

        assert!(!report.is_ok());
    }

    #[test]
    fn packet_counts_never_grow_along_the_path() {
        let counts = PacketCounts { sent: 10, near: 10, far: 9, received: 9 };

        assert!(counts.is_plausible());
        assert!(!PacketCounts { near: 11, ..counts }.is_plausible());
        assert!(!PacketCounts { received: 10, ..counts }.is_plausible());
    }

    #[test]
    fn json_reports_success() {
        let json: serde_json::Value =
            serde_json::from_str(&Report::default().to_json().unwrap()).unwrap();

        assert_eq!(json["ok"], true);
    }

    fn path() -> PodPath {
        PodPath {
            from: "rome",
            to: "milan",
            target: [10, 71, 2, 7].into(),
            seen_as: [10, 71, 1, 5].into(),
        }
    }
}
