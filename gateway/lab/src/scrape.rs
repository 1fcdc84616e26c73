//! What a gateway says of itself: a small HTTP client and a reader of OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::LabError;

/// A gateway on the same machine that takes longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Fetches `path` in the namespace of the calling thread: the status and the body.
///
/// # Errors
///
/// [`LabError::Io`] if nobody listens, [`LabError::Protocol`] if the answer is no HTTP.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
    ask("GET", address, path)
}

/// Puts nothing but `path`, likewise.
///
/// # Errors
///
/// As [`get`].
pub fn put(address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
    ask("PUT", address, path)
}

fn ask(method: &str, address: SocketAddr, path: &str) -> Result<(u16, String), LabError> {
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

/// One scrape.
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

/// The two ways through a gateway.
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
    /// Reads OpenMetrics text. Lines that are no samples are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self { samples: text.lines().filter_map(Sample::parse).collect() }
    }

    /// The sum of all whole-number samples with this name and at least these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.matching(name, labels).filter_map(|sample| sample.value.parse::<u64>().ok()).sum()
    }

    /// Whether there is any sample with this name and at least these labels.
    #[must_use]
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// The value, as it is written, of the first sample with this name and at least these labels.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<&str> {
        self.matching(name, labels).next().map(|sample| sample.value.as_str())
    }

    /// The account of one direction.
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

/// Where the packets of one direction went.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Account {
    /// Packets that came in.
    pub received: u64,
    /// Packets that went on.
    pub forwarded: u64,
    /// Messages of the protocol, which carry no packet.
    pub protocol_messages: u64,
    /// Packets dropped, by reason; only reasons that occurred.
    pub drops: BTreeMap<String, u64>,
    /// Packets that wait for a handshake.
    pub staged: u64,
}

impl Account {
    /// How many packets were dropped in all.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Whether everything that came in is accounted for.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.received == self.forwarded + self.protocol_messages + self.dropped() + self.staged
    }
}

/// As an equation: what came in, and where it went.
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
    fn an_account_is_balanced_when_every_packet_went_somewhere() {
        let metrics = Metrics::parse(TEXT);

        let outbound = metrics.account(Direction::Outbound);

        assert!(outbound.is_balanced());
        assert_eq!(outbound.drops, BTreeMap::from([("no_route".to_owned(), 2)]));
        assert!(!metrics.account(Direction::Inbound).is_balanced());
    }

    #[test]
    fn labels_may_hold_what_delimits_them() {
        let metrics = Metrics::parse(TEXT);

        assert_eq!(metrics.sum("odd", &[("peer", r#"a"b\,}"#)]), 3);
    }

    #[test]
    fn a_sum_takes_every_sample_with_the_labels_asked_for() {
        let metrics = Metrics::parse(TEXT);

        assert_eq!(metrics.sum("strait_packets_received_total", &[]), 19);
        assert!(!metrics.has("strait_packets_received_total", &[("direction", "sideways")]));
    }
}
