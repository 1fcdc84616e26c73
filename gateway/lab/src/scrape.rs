//! The metrics of a gateway: a small HTTP client and a parser of OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::LabError;

/// A gateway on the same machine answers within this time, or is stuck.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a GET request for `path` from the namespace of the calling thread. Returns the status and the body.
///
/// # Errors
///
/// [`LabError::Io`] if no process listens, [`LabError::Protocol`] if the answer is not HTTP.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
    request("GET", address, path)
}

/// Sends a PUT request for `path` without a body, likewise.
///
/// # Errors
///
/// As [`get`].
pub fn put(address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
    request("PUT", address, path)
}

fn request(method: &str, address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
    let mut answer = String::new();
    TcpStream::connect_timeout(&address, TIMEOUT)
        .and_then(|mut stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        })
        .map_err(LabError::io(format!("{method} http://{address}{path}")))?;

    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());

    status
        .map(|status| (status, body.to_owned()))
        .ok_or_else(|| LabError::Protocol(format!("{address} does not speak HTTP: {head:?}")))
}

/// The samples of one scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: String,
}

/// The direction of packets through a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Cluster to tunnel.
    Outbound,
    /// Tunnel to cluster.
    Inbound,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Outbound, Self::Inbound];

    /// The value of the `direction` label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
        }
    }
}

impl Metrics {
    /// Parses OpenMetrics text. Ignores lines that are no samples.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { samples: text.lines().filter_map(Sample::parse).collect() }
    }

    /// The sum of all integer samples with this name and at least these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.matching(name, labels).filter_map(|sample| sample.value.parse::<u64>().ok()).sum()
    }

    /// Whether there is any sample with this name and at least these labels.
    #[must_use]
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// The value, as text, of the first sample with this name and at least these labels.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<&str> {
        self.matching(name, labels).next().map(|sample| sample.value.as_str())
    }

    /// The packet counts of one direction.
    #[must_use]
    pub fn account(&self, direction: Direction) -> Account {
        let labels = [("direction", direction.label())];
        let drops = self
            .matching("strait_drops_total", &labels)
            .filter_map(|sample| {
                let reason = sample.labels.get("reason")?.clone();
                Some((reason, sample.value.parse().ok()?))
            })
            .filter(|(_, packets)| *packets > 0)
            .collect();

        Account {
            received: self.sum("strait_packets_received_total", &labels),
            forwarded: self.sum("strait_packets_forwarded_total", &labels),
            protocol_messages: self.sum("strait_protocol_messages_total", &labels),
            drops,
            staged: match direction {
                Direction::Outbound => self.sum("strait_staged_packets", &[]),
                Direction::Inbound => 0,
            },
        }
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|found| found == value)
            };
            sample.name == name && labels.iter().all(has)
        })
    }
}

impl Sample {
    /// `name{label="value",...} value [timestamp]`
    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let name_end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at_checked(name_end)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => parse_labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let value = rest.split_ascii_whitespace().next()?.to_owned();

        Some(Self { name: name.to_owned(), labels, value })
    }
}

/// The labels up to the closing brace, and what follows it.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, character) => value.push(character),
            }
        };
        labels.insert(key.to_owned(), value);
        rest = after.get(end + 1..)?;
    }
}

/// The packet counts of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Account {
    /// Packets received.
    pub received: u64,
    /// Packets forwarded.
    pub forwarded: u64,
    /// WireGuard messages without a packet.
    pub protocol_messages: u64,
    /// Packets dropped, by reason. Reasons with 0 packets are left out.
    pub drops: BTreeMap<String, u64>,
    /// Packets that wait for a handshake.
    pub staged: u64,
}

impl Account {
    /// The number of packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Whether the packets received are those forwarded, dropped and staged, and the protocol messages.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.received == self.forwarded + self.protocol_messages + self.dropped() + self.staged
    }
}

/// The equation of [`Account::is_balanced`].
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, forwarded, protocol_messages, drops, staged } = self;
        let sign = if self.is_balanced() { '=' } else { '\u{2260}' };
        write!(f, "{received} in {sign} {forwarded} out + {protocol_messages} protocol")?;
        write!(f, " + {} dropped", self.dropped())?;
        if *staged > 0 {
            write!(f, " + {staged} staged")?;
        }
        for (index, (reason, packets)) in drops.iter().enumerate() {
            let separator = if index == 0 { " (" } else { ", " };
            write!(f, "{separator}{reason} {packets}")?;
        }

        f.write_str(if drops.is_empty() { "" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE strait_packets_received counter
strait_packets_received_total{direction="outbound"} 12
strait_packets_received_total{direction="inbound"} 7
strait_packets_forwarded_total{direction="outbound"} 9
strait_drops_total{direction="outbound",reason="no_route"} 2
strait_drops_total{direction="outbound",reason="malformed"} 0
strait_staged_packets 1
odd{peer="a\"b\\,}"} 3 1700000000.5
# EOF
"#;

    #[test]
    fn is_balanced_detects_missing_packets() {
        let metrics = Metrics::parse(TEXT);

        let outbound = metrics.account(Direction::Outbound);

        assert!(outbound.is_balanced());
        assert_eq!(outbound.drops, BTreeMap::from([("no_route".to_owned(), 2)]));
        assert!(!metrics.account(Direction::Inbound).is_balanced());
    }

    #[test]
    fn labels_may_contain_delimiters() {
        let metrics = Metrics::parse(TEXT);

        assert_eq!(metrics.sum("odd", &[("peer", r#"a"b\,}"#)]), 3);
    }

    #[test]
    fn a_sum_includes_all_matching_samples() {
        let metrics = Metrics::parse(TEXT);

        assert_eq!(metrics.sum("strait_packets_received_total", &[]), 19);
        assert!(!metrics.has("strait_packets_received_total", &[("direction", "sideways")]));
    }
}
