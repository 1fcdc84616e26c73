//! Devices as text, like `wg show`.

use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use strait_wg::PrivateKey;
use strait_wg::uapi::{Drops, PeerReport};

use super::ShownDevice;

/// The placeholder for a secret.
const HIDDEN: &str = "(hidden)";

/// Units of time in seconds; a year has no leap day, as in `wg`.
const UNITS: [(u64, &str); 5] =
    [(365 * 86_400, "year"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];

/// One block per device, followed by one per peer.
pub(super) fn of_devices(devices: &[ShownDevice], now: Timestamp) -> String {
    let blocks: Vec<_> = devices.iter().map(|device| of_device(device, now)).collect();

    blocks.join("\n")
}

fn of_device(ShownDevice { interface, report }: &ShownDevice, now: Timestamp) -> String {
    let device = &report.device;
    let mut lines = Lines::headed("interface", interface);
    lines.push("public key", device.private_key.as_ref().map(PrivateKey::public_key));
    lines.push("private key", device.private_key.as_ref().map(|_| HIDDEN));
    lines.push("listening port", (device.listen_port != 0).then_some(device.listen_port));
    lines.push("fwmark", (device.fwmark != 0).then(|| format!("{:#x}", device.fwmark)));
    lines.push("engine", device.engine.as_ref());
    lines.push("drops outbound", drops(&device.outbound_drops));
    lines.push("drops inbound", drops(&device.inbound_drops));

    let mut text = lines.0;
    for peer in &report.peers {
        text.push('\n');
        text.push_str(&of_peer(peer, now));
    }

    text
}

fn of_peer(peer: &PeerReport, now: Timestamp) -> String {
    let allowed_ips: Vec<_> = peer.allowed_ips.iter().map(ToString::to_string).collect();
    let allowed_ips =
        if allowed_ips.is_empty() { "(none)".to_owned() } else { allowed_ips.join(", ") };
    let has_transfer = peer.receive_bytes > 0 || peer.transmit_bytes > 0;
    let transfer =
        || format!("{} received, {} sent", size(peer.receive_bytes), size(peer.transmit_bytes));
    let every = |seconds: u64| format!("every {}", span(seconds));

    let mut lines = Lines::headed("peer", &peer.public_key.to_string());
    lines.push("name", peer.name.as_ref());
    lines.push("preshared key", peer.preshared_key.as_ref().map(|_| HIDDEN));
    lines.push("endpoint", peer.endpoint.as_ref());
    lines.push("allowed ips", Some(allowed_ips));
    lines.push("latest handshake", peer.last_handshake.map(|at| ago(at, now)));
    lines.push("round trip", peer.rtt.map(milliseconds));
    lines.push("transfer", has_transfer.then(transfer));
    let source = peer.path_mtu_source.map(|source| format!(" ({source})")).unwrap_or_default();
    lines.push("path mtu", peer.path_mtu_bytes.map(|bytes| format!("{bytes}{source}")));
    lines.push("probes", probes(peer));
    lines.push(
        "persistent keepalive",
        peer.persistent_keepalive.map(|seconds| every(u64::from(seconds.get()))),
    );
    lines.push("waiting packets", (peer.staged_packets > 0).then_some(peer.staged_packets));
    lines.push("unanswered handshakes", (peer.unanswered > 0).then_some(peer.unanswered));

    lines.0
}

/// What the connection check has measured.
fn probes(peer: &PeerReport) -> Option<String> {
    let rtt = peer.probe_rtt.map(|rtt| format!("round trip {}", milliseconds(rtt)));
    let jitter = peer.probe_jitter.map(|jitter| format!("jitter {}", milliseconds(jitter)));
    let loss = peer.probe_loss_percent.map(|percent| format!("loss {percent} %"));
    let found: Vec<_> = [rtt, jitter, loss].into_iter().flatten().collect();

    (!found.is_empty()).then(|| found.join(", "))
}

/// The lines of a block. Absent values have none.
struct Lines(String);

impl Lines {
    fn headed(what: &str, name: &str) -> Self {
        Self(format!("{what}: {name}\n"))
    }

    fn push(&mut self, what: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(self.0, "  {what}: {value}");
        }
    }
}

fn drops(drops: &[Drops]) -> Option<String> {
    let texts: Vec<_> =
        drops.iter().map(|Drops { reason, packets }| format!("{reason} {packets}")).collect();

    (!texts.is_empty()).then(|| texts.join(", "))
}

fn ago(at: Duration, now: Timestamp) -> String {
    let now = u64::try_from(now.as_second()).unwrap_or(0);

    match now.checked_sub(at.as_secs()) {
        Some(0) => "now".to_owned(),
        Some(seconds) => format!("{} ago", span(seconds)),
        None => "in the future: the clock was set back".to_owned(),
    }
}

fn span(seconds: u64) -> String {
    let mut left = seconds;
    let mut words = Vec::new();
    for (unit, name) in UNITS {
        let count = left / unit;
        left %= unit;
        if count > 0 {
            let plural = if count == 1 { "" } else { "s" };
            words.push(format!("{count} {name}{plural}"));
        }
    }

    words.join(", ")
}

/// Formats bytes in binary units with two decimals.
fn size(bytes: u64) -> String {
    const NAMES: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, name)) = NAMES.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let hundredths = (u128::from(bytes) * 100 + (1 << (shift - 1))) >> shift;

    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}

fn milliseconds(time: Duration) -> String {
    let micros = time.as_micros();

    format!("{}.{:03} ms", micros / 1000, micros % 1000)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use strait_wg::uapi::{DeviceReport, Report};
    use strait_wg::{PathMtuSource, PresharedKey, PublicKey};

    use super::*;

    #[test]
    fn every_field_but_secrets_has_a_line() {
        let private_key = PrivateKey::from_bytes(&[0x77; 32]).unwrap();
        let own = private_key.public_key();
        let secret = private_key.to_base64();
        let peer = PeerReport {
            preshared_key: PresharedKey::from_bytes(&[0x5a; 32]).ok(),
            endpoint: Some("192.0.2.3:51820".parse().unwrap()),
            last_handshake: Some(Duration::from_secs(1_000_000)),
            receive_bytes: 1536,
            transmit_bytes: 3 << 30,
            persistent_keepalive: NonZeroU16::new(25),
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            name: Some("milan".to_owned()),
            rtt: Some(Duration::from_micros(1204)),
            path_mtu_bytes: Some(1420),
            path_mtu_source: Some(PathMtuSource::Probe),
            probe_rtt: Some(Duration::from_micros(950)),
            probe_jitter: Some(Duration::from_micros(17)),
            probe_loss_percent: Some(3),
            staged_packets: 2,
            unanswered: 3,
            ..PeerReport::new(PublicKey::from_bytes([1; 32]))
        };
        let device = DeviceReport {
            private_key: Some(private_key),
            listen_port: 51820,
            fwmark: 0xca6c,
            engine: Some("native".to_owned()),
            outbound_drops: vec![dropped("no_route", 4), dropped("no_endpoint", 1)],
            inbound_drops: Vec::new(),
        };
        let report = Report { device, peers: vec![peer, PeerReport::new(own)] };

        let text =
            of_devices(&[ShownDevice { interface: "wg0".to_owned(), report }], at(1_003_661));

        let expected = format!(
            "interface: wg0\n  public key: {own}\n  private key: (hidden)\n  listening port: 51820\n  \
             fwmark: 0xca6c\n  engine: native\n  drops outbound: no_route 4, no_endpoint 1\n\n\
             peer: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n  name: milan\n  \
             preshared key: (hidden)\n  endpoint: 192.0.2.3:51820\n  allowed ips: 10.0.0.0/8, fd00::/8\n  \
             latest handshake: 1 hour, 1 minute, 1 second ago\n  round trip: 1.204 ms\n  \
             transfer: 1.50 KiB received, 3.00 GiB sent\n  path mtu: 1420 (probe)\n  \
             probes: round trip 0.950 ms, jitter 0.017 ms, loss 3 %\n  persistent keepalive: every 25 seconds\n  waiting packets: 2\n  \
             unanswered handshakes: 3\n\npeer: {own}\n  allowed ips: (none)\n"
        );
        assert_eq!(text, expected);
        assert!(!text.contains(&*secret) && !text.contains("WlpaWlpa"), "{text}");
    }

    #[test]
    fn sizes_are_those_of_wg() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_500_000, "1.43 MiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_handshake_was_now_or_before() {
        let handshake = Duration::new(100, 999_999_999);

        assert_eq!(ago(handshake, at(100)), "now");
        assert_eq!(ago(handshake, at(100 + 2 * 86_400)), "2 days ago");
        assert!(ago(handshake, at(99)).contains("the clock was set back"));
    }

    fn dropped(reason: &str, packets: u64) -> Drops {
        Drops { reason: reason.to_owned(), packets }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }
}
