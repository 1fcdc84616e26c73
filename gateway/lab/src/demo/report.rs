//! What the demo found out: for people as lines, for scripts as JSON, and whether all is well.

use std::fmt::Display;
use std::net::IpAddr;

use crate::Account;
use crate::traffic::{PingReport, TcpReport, UdpReport};
use serde::Serialize;

/// Everything, in the order in which it happened.
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
struct Verdict<'a> {
    ok: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// From the pod of one cluster to that of the other.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Way {
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// As the sender knows the receiver.
    pub(super) target: IpAddr,
    /// As the receiver must know the sender.
    pub(super) seen_as: IpAddr,
}

#[derive(Debug, Serialize)]
struct PingLine {
    #[serde(flatten)]
    way: Way,
    sent: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    median_round_trip_us: u64,
}

#[derive(Debug, Serialize)]
struct TcpLine {
    #[serde(flatten)]
    way: Way,
    bytes: u64,
    intact: bool,
    client_seen_as: IpAddr,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct UdpLine {
    #[serde(flatten)]
    way: Way,
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
    way: Way,
    bits_per_second: f64,
}

#[derive(Debug, Serialize)]
struct GatewayLine {
    name: &'static str,
    outbound: Account,
    inbound: Account,
}

/// Packets of one kind on their way from one pod to the other, counted at four places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// By the sender.
    pub(super) sent: u64,
    /// By the near gateway, into the tunnel.
    pub(super) near: u64,
    /// By the far gateway, out of the tunnel.
    pub(super) far: u64,
    /// By the receiver.
    pub(super) received: u64,
}

impl Passage {
    /// Packets get lost on the way and never become more. Where none is lost, all four are equal.
    fn is_plausible(self) -> bool {
        self.sent >= self.near && self.near >= self.far && self.far >= self.received
    }
}

impl Report {
    /// Whether nothing failed.
    pub(super) const fn is_ok(&self) -> bool {
        self.failures.is_empty()
    }

    /// What failed.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// The whole as one JSON object.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&Verdict { ok: self.is_ok(), report: self })
    }

    /// Notes an error as a failure.
    pub(super) fn note_failure<E: Display>(&mut self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.failures.push(format!("{what}: {error}"));
        }
    }

    /// Takes the result of a ping; the line for it.
    pub(super) fn add_ping(&mut self, way: Way, report: &PingReport) -> String {
        let median = report.median_round_trip().unwrap_or_default();
        self.expect(report.is_perfect(), || format!("pings {}", way.text()));
        self.pings.push(PingLine {
            way,
            sent: report.sent,
            lost: report.lost(),
            duplicated: report.duplicated,
            corrupted: report.corrupted,
            median_round_trip_us: u64::try_from(median.as_micros()).unwrap_or(u64::MAX),
        });

        format!("{}  {} sent, {} lost, {median:.1?}", way.text(), report.sent, report.lost())
    }

    /// Takes the result of a TCP transfer; the line for it.
    pub(super) fn add_tcp(&mut self, way: Way, report: &TcpReport) -> String {
        let client = report.client_seen_as.ip();
        self.expect(report.is_intact, || format!("TCP data {}", way.text()));
        self.expect(client == way.seen_as, || format!("{client} as TCP source {}", way.text()));
        let bits_per_second = report.bits_per_second();
        self.tcp.push(TcpLine {
            way,
            bytes: report.received_bytes,
            intact: report.is_intact,
            client_seen_as: client,
            bits_per_second,
        });

        let state = if report.is_intact { "intact" } else { "DAMAGED" };
        let (size, rate) = (report.received_bytes / 1_000_000, rate(bits_per_second));
        format!("{}  {size} MB {state}, {rate}; seen as {client}", way.text())
    }

    /// Takes the result of a train of datagrams; the line for it.
    pub(super) fn add_udp(&mut self, way: Way, report: &UdpReport) -> String {
        let client = report.client_seen_as.map(|client| client.ip());
        let is_intact = report.corrupted == 0 && report.duplicated == 0 && report.received > 0;
        self.expect(is_intact, || format!("UDP data {}", way.text()));
        self.expect(client == Some(way.seen_as), || format!("UDP source {}", way.text()));
        let bits_per_second = report.bits_per_second();
        self.udp.push(UdpLine {
            way,
            sent: report.sent,
            lost: report.lost(),
            reordered: report.reordered,
            duplicated: report.duplicated,
            corrupted: report.corrupted,
            client_seen_as: client,
            bits_per_second,
        });

        let (sent, lost, rate) = (report.sent, report.lost(), rate(bits_per_second));
        let client = client.map_or_else(|| "nobody".to_owned(), |client| client.to_string());
        format!("{}  {sent} datagrams, {lost} lost, {rate}; seen as {client}", way.text())
    }

    /// Takes what iperf3 measured; the line for it.
    pub(super) fn add_iperf3(&mut self, way: Way, bits_per_second: f64) -> String {
        self.expect(bits_per_second > 0.0, || format!("iperf3 {}", way.text()));
        self.iperf3.push(IperfLine { way, bits_per_second });

        format!("{}  {}", way.text(), rate(bits_per_second))
    }

    /// Takes the account of a gateway; the lines for it.
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

    /// Compares what was sent with what the gateways counted; the line for it.
    pub(super) fn add_passage(&mut self, what: &str, way: Way, passage: Passage) -> String {
        let Passage { sent, near, far, received } = passage;
        let is_plausible = passage.is_plausible();
        self.expect(is_plausible, || format!("counting {what} {}", way.text()));
        let verdict = if is_plausible { "agree" } else { "DISAGREE" };

        format!(
            "{}  {what}: pod {sent}, gateway {near}, gateway {far}, pod {received}: {verdict}",
            way.text()
        )
    }

    /// Notes that `what` is not as it must be.
    pub(super) fn expect(&mut self, is_well: bool, what: impl FnOnce() -> String) {
        if !is_well {
            self.failures.push(format!("wrong: {}", what()));
        }
    }
}

impl Way {
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

        report.add_ping(way(), &lossy);

        assert!(!report.is_ok());
        assert!(report.to_json().unwrap().contains("\"lost\": 1"));
    }

    #[test]
    fn a_server_that_sees_the_real_address_is_a_failure() {
        let mut report = Report::default();
        let unmapped = TcpReport {
            sent_bytes: 1,
            received_bytes: 1,
            is_intact: true,
            elapsed: Duration::from_secs(1),
            client_seen_as: "10.244.1.5:40000".parse().unwrap(),
        };

        report.add_tcp(way(), &unmapped);

        assert!(!report.is_ok());
    }

    #[test]
    fn packets_may_get_lost_but_never_become_more() {
        let passage = Passage { sent: 10, near: 10, far: 9, received: 9 };

        assert!(passage.is_plausible());
        assert!(!Passage { near: 11, ..passage }.is_plausible());
        assert!(!Passage { received: 10, ..passage }.is_plausible());
    }

    #[test]
    fn json_says_whether_all_is_well() {
        let json: serde_json::Value =
            serde_json::from_str(&Report::default().to_json().unwrap()).unwrap();

        assert_eq!(json["ok"], true);
    }

    fn way() -> Way {
        Way {
            from: "rome",
            to: "milan",
            target: [10, 71, 2, 7].into(),
            seen_as: [10, 71, 1, 5].into(),
        }
    }
}
