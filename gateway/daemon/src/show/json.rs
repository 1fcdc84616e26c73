//! Devices as JSON. The form is public interface.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use strait_wg::uapi::{Drops, PeerReport};
use strait_wg::{PathMtuSource, PrivateKey};

use super::ShownDevice;

/// One device. Absent values are `null`.
#[derive(Debug, Serialize)]
struct Device<'a> {
    interface: &'a str,
    public_key: Option<String>,
    listen_port: Option<u16>,
    fwmark: u32,
    engine: Option<&'a str>,
    drops: BothWays<'a>,
    peers: Vec<Peer<'a>>,
}

/// Packets by drop reason.
#[derive(Debug, Serialize)]
struct BothWays<'a> {
    outbound: BTreeMap<&'a str, u64>,
    inbound: BTreeMap<&'a str, u64>,
}

/// One peer. Only the presence of the preshared key is shown.
#[derive(Debug, Serialize)]
struct Peer<'a> {
    public_key: String,
    name: Option<&'a str>,
    has_preshared_key: bool,
    endpoint: Option<String>,
    allowed_ips: Vec<String>,
    last_handshake: Option<String>,
    rtt_us: Option<u64>,
    receive_bytes: u64,
    transmit_bytes: u64,
    path_mtu: Option<u16>,
    path_mtu_source: Option<&'static str>,
    probe_rtt_us: Option<u64>,
    probe_jitter_us: Option<u64>,
    probe_loss_percent: Option<u8>,
    persistent_keepalive: Option<NonZeroU16>,
    staged_packets: u64,
    unanswered_handshakes: u32,
}

/// The devices as a JSON list.
///
/// # Errors
///
/// If it cannot be serialized.
pub(super) fn of_devices(devices: &[ShownDevice]) -> serde_json::Result<String> {
    let devices: Vec<_> = devices.iter().map(of_device).collect();
    let mut text = serde_json::to_string_pretty(&devices)?;
    text.push('\n');

    Ok(text)
}

fn of_device(ShownDevice { interface, report }: &ShownDevice) -> Device<'_> {
    let device = &report.device;
    let public_key = device.private_key.as_ref().map(PrivateKey::public_key);

    Device {
        interface,
        public_key: public_key.map(|key| key.to_string()),
        listen_port: (device.listen_port != 0).then_some(device.listen_port),
        fwmark: device.fwmark,
        engine: device.engine.as_deref(),
        drops: BothWays {
            outbound: by_reason(&device.outbound_drops),
            inbound: by_reason(&device.inbound_drops),
        },
        peers: report.peers.iter().map(of_peer).collect(),
    }
}

fn of_peer(peer: &PeerReport) -> Peer<'_> {
    Peer {
        public_key: peer.public_key.to_string(),
        name: peer.name.as_deref(),
        has_preshared_key: peer.preshared_key.is_some(),
        endpoint: peer.endpoint.as_ref().map(ToString::to_string),
        allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
        last_handshake: peer.last_handshake.and_then(date),
        rtt_us: peer.rtt.and_then(micros),
        receive_bytes: peer.receive_bytes,
        transmit_bytes: peer.transmit_bytes,
        path_mtu: peer.path_mtu_bytes,
        path_mtu_source: peer.path_mtu_source.map(PathMtuSource::name),
        probe_rtt_us: peer.probe_rtt.and_then(micros),
        probe_jitter_us: peer.probe_jitter.and_then(micros),
        probe_loss_percent: peer.probe_loss_percent,
        persistent_keepalive: peer.persistent_keepalive,
        staged_packets: peer.staged_packets,
        unanswered_handshakes: peer.unanswered,
    }
}

fn micros(time: Duration) -> Option<u64> {
    u64::try_from(time.as_micros()).ok()
}

/// RFC 3339, in UTC.
fn date(since_1970: Duration) -> Option<String> {
    let second = i64::try_from(since_1970.as_secs()).ok()?;

    Timestamp::from_second(second).ok().map(|at| at.to_string())
}

fn by_reason(drops: &[Drops]) -> BTreeMap<&str, u64> {
    drops.iter().map(|Drops { reason, packets }| (reason.as_str(), *packets)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use strait_wg::uapi::{DeviceReport, Report};
    use strait_wg::{PresharedKey, PublicKey};

    use super::*;

    #[test]
    fn no_secret_is_in_it() {
        let private_key = PrivateKey::from_bytes(&[0x77; 32]).unwrap();
        let public_key = private_key.public_key().to_string();
        let peer = PeerReport {
            preshared_key: PresharedKey::from_bytes(&[0x5a; 32]).ok(),
            last_handshake: Some(Duration::from_secs(1_795_251_261)),
            rtt: Some(Duration::from_micros(1204)),
            probe_jitter: Some(Duration::from_micros(17)),
            probe_loss_percent: Some(3),
            ..PeerReport::new(PublicKey::from_bytes([1; 32]))
        };
        let device = DeviceReport {
            private_key: Some(private_key),
            outbound_drops: vec![Drops { reason: "no_route".to_owned(), packets: 4 }],
            ..DeviceReport::default()
        };
        let shown = ShownDevice {
            interface: "wg0".to_owned(),
            report: Report { device, peers: vec![peer] },
        };

        let text = of_devices(&[shown]).unwrap();

        let expected = json!([{
            "interface": "wg0",
            "public_key": public_key,
            "listen_port": null,
            "fwmark": 0,
            "engine": null,
            "drops": { "outbound": { "no_route": 4 }, "inbound": {} },
            "peers": [{
                "public_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
                "name": null,
                "has_preshared_key": true,
                "endpoint": null,
                "allowed_ips": [],
                "last_handshake": "2026-11-21T08:54:21Z",
                "rtt_us": 1204,
                "receive_bytes": 0,
                "transmit_bytes": 0,
                "path_mtu": null,
                "path_mtu_source": null,
                "probe_rtt_us": null,
                "probe_jitter_us": 17,
                "probe_loss_percent": 3,
                "persistent_keepalive": null,
                "staged_packets": 0,
                "unanswered_handshakes": 0,
            }],
        }]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}
