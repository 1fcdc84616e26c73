//! Parses the answer to a get, of our device or of any other implementation.

use std::num::NonZeroU16;
use std::time::Duration;

use super::report::{DeviceReport, Drops, PeerReport, Report};
use super::value;
use crate::{PresharedKey, PrivateKey, PublicKey};

/// Why an answer cannot be parsed. Never holds a value, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum ReadError {
    /// A line without an equals sign.
    #[error("line {line} has no '='")]
    NotALine { line: usize },
    /// A value that is invalid for its key.
    #[error("line {line}: the value of {key} is invalid")]
    Value { line: usize, key: String },
    /// A key of a peer before the first peer, or a key of the device after it.
    #[error("line {line}: {key} is out of place")]
    Place { line: usize, key: String },
    /// The device refused the request.
    #[error("the device answers with error {errno}")]
    Refused { errno: i64 },
    /// The answer is truncated.
    #[error("the answer has no end")]
    NoEnd,
}

impl Report {
    /// Parses an answer up to its blank line. Unknown keys are ignored.
    ///
    /// # Errors
    ///
    /// [`ReadError`], which names the line.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        let mut report = Self::default();
        let mut errno = None;
        for (line, content) in (1..).zip(text.lines()) {
            if content.is_empty() {
                return match errno {
                    Some(0) => Ok(report),
                    Some(errno) => Err(ReadError::Refused { errno }),
                    None => Err(ReadError::NoEnd),
                };
            }
            let (key, value) = content.split_once('=').ok_or(ReadError::NotALine { line })?;
            let invalid = || ReadError::Value { line, key: key.to_owned() };
            match key {
                "errno" => errno = Some(value.parse().map_err(|_| invalid())?),
                "public_key" => {
                    let bytes = value::key(value).ok_or_else(invalid)?;
                    report.peers.push(PeerReport::new(PublicKey::from_bytes(*bytes)));
                }
                _ => match report.peers.last_mut() {
                    None => report.device.take(key, value).ok_or_else(invalid)?,
                    Some(peer) => peer.take(key, value).ok_or_else(invalid)?,
                },
            }
            if is_out_of_place(key, report.peers.is_empty()) {
                return Err(ReadError::Place { line, key: key.to_owned() });
            }
        }

        Err(ReadError::NoEnd)
    }
}

fn is_out_of_place(key: &str, is_of_device: bool) -> bool {
    let of_device = matches!(key, "private_key" | "listen_port" | "fwmark");
    let of_peer = matches!(
        key,
        "preshared_key"
            | "endpoint"
            | "last_handshake_time_sec"
            | "last_handshake_time_nsec"
            | "tx_bytes"
            | "rx_bytes"
            | "persistent_keepalive_interval"
            | "allowed_ip"
    );

    (of_device && !is_of_device) || (of_peer && is_of_device)
}

impl DeviceReport {
    /// `None` if the value is invalid.
    fn take(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "private_key" => self.private_key = PrivateKey::from_bytes(&*value::key(value)?).ok(),
            "listen_port" => self.listen_port = value::number(value)?,
            "fwmark" => self.fwmark = value::number(value)?,
            "strait_engine" => self.engine = Some(plain(value)?),
            "strait_drops_out" => self.outbound_drops.push(drops(value)?),
            "strait_drops_in" => self.inbound_drops.push(drops(value)?),
            _ => {}
        }

        Some(())
    }
}

impl PeerReport {
    /// `None` if the value is invalid.
    fn take(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "preshared_key" => {
                self.preshared_key = PresharedKey::from_bytes(&*value::key(value)?).ok();
            }
            // Other implementations report zones, and IPv4-mapped IPv6 addresses.
            "endpoint" => self.endpoint = Some(value.parse().ok()?),
            "last_handshake_time_sec" => {
                self.add_to_last_handshake(Duration::from_secs(value::number(value)?))?;
            }
            "last_handshake_time_nsec" => {
                self.add_to_last_handshake(Duration::from_nanos(value::number(value)?))?;
            }
            "tx_bytes" => self.transmit_bytes = value::number(value)?,
            "rx_bytes" => self.receive_bytes = value::number(value)?,
            "persistent_keepalive_interval" => {
                self.persistent_keepalive = NonZeroU16::new(value::number(value)?);
            }
            "allowed_ip" => self.allowed_ips.push(value.parse().ok()?),
            "strait_name" => self.name = Some(plain(value)?),
            "strait_rtt_us" => self.rtt = Some(Duration::from_micros(value::number(value)?)),
            "strait_path_mtu" => self.path_mtu_bytes = Some(value::number(value)?),
            // A version that knows another source may be read.
            "strait_path_mtu_source" => self.path_mtu_source = value.parse().ok(),
            "strait_probe_rtt_us" => {
                self.probe_rtt = Some(Duration::from_micros(value::number(value)?));
            }
            "strait_probe_jitter_us" => {
                self.probe_jitter = Some(Duration::from_micros(value::number(value)?));
            }
            "strait_probe_loss_percent" => {
                self.probe_loss_percent = Some(value::number(value)?);
            }
            "strait_staged_packets" => self.staged_packets = value::number(value)?,
            "strait_unanswered" => self.unanswered = value::number(value)?,
            _ => {}
        }

        Some(())
    }

    /// Seconds and nanoseconds are separate lines; zero is never.
    fn add_to_last_handshake(&mut self, part: Duration) -> Option<()> {
        let sum = self.last_handshake.unwrap_or_default().checked_add(part)?;
        self.last_handshake = Some(sum).filter(|sum| !sum.is_zero());

        Some(())
    }
}

fn drops(value: &str) -> Option<Drops> {
    let (reason, packets) = value.split_once(' ')?;

    Some(Drops { reason: plain(reason)?, packets: value::number(packets)? })
}

/// A text without control characters: it is shown on a terminal.
fn plain(text: &str) -> Option<String> {
    (!text.contains(char::is_control)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::report::Reported;
    use super::*;

    /// The lines of `device/uapi.go` of wireguard-go, in its order, and an unknown one.
    #[test]
    fn the_answer_of_wireguard_go_is_parsed() {
        let (own, peer, none) = ("a1".repeat(32), "b2".repeat(32), "00".repeat(32));
        let text = format!(
            "private_key={own}\nlisten_port=51820\npublic_key={peer}\npreshared_key={none}\n\
             protocol_version=1\nendpoint=192.0.2.3:51820\nlast_handshake_time_sec=0\n\
             last_handshake_time_nsec=0\ntx_bytes=148\nrx_bytes=0\n\
             persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nsome_new_key=7\nerrno=0\n\n"
        );

        let report = Report::parse(&text).unwrap();

        let expected = PeerReport {
            endpoint: Some("192.0.2.3:51820".parse().unwrap()),
            transmit_bytes: 148,
            persistent_keepalive: NonZeroU16::new(25),
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap()],
            ..PeerReport::new(PublicKey::from_bytes([0xb2; 32]))
        };
        assert_eq!(report.peers, [expected]);
        assert_eq!((report.device.listen_port, report.device.engine), (51820, None));
    }

    /// As wireguard-go prints them.
    #[test]
    fn an_unparsable_address_is_kept_as_text() {
        let text = format!(
            "public_key={}\nendpoint=[fe80::1%eth0]:51820\nallowed_ip=::ffff:10.0.0.0/104\n\
             allowed_ip=10.0.0.0/8\nerrno=0\n\n",
            "b2".repeat(32)
        );

        let report = Report::parse(&text).unwrap();

        let [peer] = &report.peers[..] else { panic!("{report:?}") };
        assert_eq!(peer.endpoint, Some(Reported::Text("[fe80::1%eth0]:51820".to_owned())));
        let allowed_ips: Vec<_> = peer.allowed_ips.iter().map(ToString::to_string).collect();
        assert_eq!(allowed_ips, ["::ffff:10.0.0.0/104", "10.0.0.0/8"]);
        assert!(report.to_text().contains("endpoint=[fe80::1%eth0]:51820\n"));
    }

    #[test]
    fn an_error_names_the_line_but_no_value() {
        let place = |line, key: &str| ReadError::Place { line, key: key.to_owned() };
        let value = |line, key: &str| ReadError::Value { line, key: key.to_owned() };
        let peer = format!("public_key={}\n", "b2".repeat(32));

        for (text, error) in [
            ("".to_owned(), ReadError::NoEnd),
            ("listen_port=1\n\n".to_owned(), ReadError::NoEnd),
            ("errno=0\n".to_owned(), ReadError::NoEnd),
            ("errno=-22\n\n".to_owned(), ReadError::Refused { errno: -22 }),
            ("listen_port=1\nx\n\n".to_owned(), ReadError::NotALine { line: 2 }),
            ("private_key=c0ffee\n".to_owned(), value(1, "private_key")),
            ("errno=never\n".to_owned(), value(1, "errno")),
            ("strait_engine=\x1b[2J\n".to_owned(), value(1, "strait_engine")),
            ("rx_bytes=1\n".to_owned(), place(1, "rx_bytes")),
            (format!("{peer}fwmark=1\n"), place(2, "fwmark")),
            (format!("{peer}endpoint=\x1b[2J\n"), value(2, "endpoint")),
            (format!("{peer}allowed_ip=\n"), value(2, "allowed_ip")),
        ] {
            assert_eq!(Report::parse(&text).unwrap_err(), error, "{text:?}");
        }
    }
}
