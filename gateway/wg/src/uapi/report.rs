//! The answer to a get: the configuration, learned values, and values of ours.
//!
//! Our own keys begin with `strait_`. `wg` and `wgctrl` ignore unknown keys.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use remap::Prefix;
use zeroize::Zeroizing;

use super::value::{push_key, push_line};
use crate::key::KEY_LEN;
use crate::{PathMtuSource, PresharedKey, PrivateKey, PublicKey};
use strait_packet::DropReason;

/// The longest text of a device without its peers and drops, in bytes.
const DEVICE_BYTES: usize = 512;

/// The longest text of a peer without its name and allowed IPs, in bytes.
const PEER_BYTES: usize = 896;

/// The longest line of one prefix or one drop reason, in bytes.
const ITEM_BYTES: usize = 96;

/// The state of a device.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The device itself.
    pub device: DeviceReport,
    /// In the order of the configuration.
    pub peers: Vec<PeerReport>,
}

/// A device without its peers.
#[derive(Clone, Debug, Default)]
pub struct DeviceReport {
    /// Our identity.
    pub private_key: Option<PrivateKey>,
    /// UDP port in use; 0 is none.
    pub listen_port: u16,
    /// Firewall mark of sent datagrams; 0 is none.
    pub fwmark: u32,
    /// The name of the engine, if the device is ours.
    pub engine: Option<String>,
    /// Dropped outbound packets, by reason. Reasons without packets are left out.
    pub outbound_drops: Vec<Drops>,
    /// Dropped inbound packets, by reason.
    pub inbound_drops: Vec<Drops>,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops {
    /// The label: [`DropReason::label`].
    pub reason: String,
    /// How many.
    pub packets: u64,
}

/// An address in an answer. Other implementations may write it in a form that we cannot parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported<T> {
    /// Parsed.
    Known(T),
    /// Unparsed, such as `[fe80::1%eth0]:51820`. One line at most, without control characters.
    Text(String),
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Mixed into the handshake if present.
    pub preshared_key: Option<PresharedKey>,
    /// Where datagrams to it go.
    pub endpoint: Option<Reported<SocketAddr>>,
    /// When the last handshake completed, since 1970.
    pub last_handshake: Option<Duration>,
    /// UDP payload bytes from it.
    pub receive_bytes: u64,
    /// UDP payload bytes to it.
    pub transmit_bytes: u64,
    /// In seconds; `None` is off.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// Cryptokey routing.
    pub allowed_ips: Vec<Reported<Prefix>>,
    /// As configured, if it has a name of its own. Never with control characters.
    pub name: Option<String>,
    /// Round trip of the last handshake, in whole microseconds.
    pub rtt: Option<Duration>,
    /// Path MTU: the largest inner packet, in bytes.
    pub path_mtu_bytes: Option<u16>,
    /// What limits the path MTU.
    pub path_mtu_source: Option<PathMtuSource>,
    /// Round trip of the last probe of the connection check, in whole microseconds.
    pub probe_rtt: Option<Duration>,
    /// Jitter of these round trips (RFC 3550 section 6.4.1), in whole microseconds.
    pub probe_jitter: Option<Duration>,
    /// The share of the last probes that were not answered, 0 to 100.
    pub probe_loss_percent: Option<u8>,
    /// Staged packets.
    pub staged_packets: u64,
    /// Handshake initiations since the last one that was answered.
    pub unanswered: u32,
}

impl<T> Reported<T> {
    /// How many bytes it may need beyond [`ITEM_BYTES`].
    fn excess_bytes(&self) -> usize {
        match self {
            Self::Known(_) => 0,
            Self::Text(text) => text.len(),
        }
    }
}

impl<T> From<T> for Reported<T> {
    fn from(known: T) -> Self {
        Self::Known(known)
    }
}

/// Any text that is not empty and has no control characters: it is shown on a terminal.
impl<T: FromStr> FromStr for Reported<T> {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.parse() {
            Ok(known) => Ok(Self::Known(known)),
            Err(_) if text.is_empty() || text.contains(char::is_control) => Err(()),
            Err(_) => Ok(Self::Text(text.to_owned())),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Reported<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(known) => known.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Drops {
    /// All reasons with a `count` above zero.
    pub fn all(count: impl Fn(DropReason) -> u64) -> Vec<Self> {
        let counts = DropReason::ALL.into_iter().map(|reason| (reason, count(reason)));
        let counts = counts.filter(|(_, packets)| *packets > 0);

        counts
            .map(|(reason, packets)| Self { reason: reason.label().to_owned(), packets })
            .collect()
    }
}

impl PeerReport {
    /// A peer with everything else unset.
    #[must_use]
    pub const fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            last_handshake: None,
            receive_bytes: 0,
            transmit_bytes: 0,
            persistent_keepalive: None,
            allowed_ips: Vec::new(),
            name: None,
            rtt: None,
            path_mtu_bytes: None,
            path_mtu_source: None,
            probe_rtt: None,
            probe_jitter: None,
            probe_loss_percent: None,
            staged_packets: 0,
            unanswered: 0,
        }
    }
}

impl Report {
    /// The lines of the answer, without its [ending](super::ending). Wiped when dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // Growing the text would leave copies of the keys.
        let mut text = Zeroizing::new(String::with_capacity(self.bytes()));
        self.device.push(&mut text);
        for peer in &self.peers {
            peer.push(&mut text);
        }

        text
    }

    /// An upper bound for the length of the text, in bytes.
    fn bytes(&self) -> usize {
        let DeviceReport { outbound_drops, inbound_drops, .. } = &self.device;
        let drops = (outbound_drops.len() + inbound_drops.len()) * ITEM_BYTES;
        let peers = self.peers.iter().map(|peer| {
            let name = peer.name.as_ref().map_or(0, String::len);
            let endpoint = peer.endpoint.as_ref().map_or(0, Reported::excess_bytes);
            let allowed_ips =
                peer.allowed_ips.iter().map(|prefix| ITEM_BYTES + prefix.excess_bytes());
            PEER_BYTES + name + endpoint + allowed_ips.sum::<usize>()
        });

        DEVICE_BYTES + drops + peers.sum::<usize>()
    }
}

impl DeviceReport {
    fn push(&self, text: &mut String) {
        if let Some(key) = &self.private_key {
            // As in the kernel, also if it was set without clamping.
            push_secret(text, "private_key", &key.to_clamped_bytes());
        }
        if self.listen_port != 0 {
            push_line(text, "listen_port", self.listen_port);
        }
        if self.fwmark != 0 {
            push_line(text, "fwmark", self.fwmark);
        }
        if let Some(engine) = &self.engine {
            push_line(text, "strait_engine", engine);
        }
        let both =
            [("strait_drops_out", &self.outbound_drops), ("strait_drops_in", &self.inbound_drops)];
        for (key, drops) in both {
            for Drops { reason, packets } in drops {
                push_line(text, key, format_args!("{reason} {packets}"));
            }
        }
    }
}

impl PeerReport {
    fn push(&self, text: &mut String) {
        push_secret(text, "public_key", self.public_key.as_bytes());
        let none = [0; KEY_LEN];
        let preshared_key = self.preshared_key.as_ref().map_or(&none, PresharedKey::as_bytes);
        push_secret(text, "preshared_key", preshared_key);
        push_line(text, "protocol_version", 1);
        if let Some(endpoint) = &self.endpoint {
            push_line(text, "endpoint", endpoint);
        }
        let last = self.last_handshake.unwrap_or_default();
        push_line(text, "last_handshake_time_sec", last.as_secs());
        push_line(text, "last_handshake_time_nsec", last.subsec_nanos());
        push_line(text, "tx_bytes", self.transmit_bytes);
        push_line(text, "rx_bytes", self.receive_bytes);
        let keepalive = self.persistent_keepalive.map_or(0, NonZeroU16::get);
        push_line(text, "persistent_keepalive_interval", keepalive);
        for prefix in &self.allowed_ips {
            push_line(text, "allowed_ip", prefix);
        }

        let is_plain = |name: &&String| !name.is_empty() && !name.contains(char::is_control);
        if let Some(name) = self.name.as_ref().filter(is_plain) {
            push_line(text, "strait_name", name);
        }
        if let Some(rtt) = self.rtt {
            push_line(text, "strait_rtt_us", rtt.as_micros());
        }
        if let Some(bytes) = self.path_mtu_bytes {
            push_line(text, "strait_path_mtu", bytes);
        }
        if let Some(source) = self.path_mtu_source {
            push_line(text, "strait_path_mtu_source", source);
        }
        if let Some(rtt) = self.probe_rtt {
            push_line(text, "strait_probe_rtt_us", rtt.as_micros());
        }
        if let Some(jitter) = self.probe_jitter {
            push_line(text, "strait_probe_jitter_us", jitter.as_micros());
        }
        if let Some(percent) = self.probe_loss_percent {
            push_line(text, "strait_probe_loss_percent", percent);
        }
        push_line(text, "strait_staged_packets", self.staged_packets);
        push_line(text, "strait_unanswered", self.unanswered);
    }
}

fn push_secret(text: &mut String, name: &str, key: &[u8; KEY_LEN]) {
    text.push_str(name);
    text.push('=');
    push_key(text, key);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_default_device_has_an_empty_report() {
        assert_eq!(*Report::default().to_text(), "");
    }

    #[test]
    fn our_own_keys_follow_those_of_the_protocol() {
        let mut peer = PeerReport::new(PublicKey::from_bytes([0xab; 32]));
        peer.endpoint = Some("[2001:db8::3]:51820".parse().unwrap());
        peer.last_handshake = Some(Duration::new(1_795_251_261, 9));
        peer.allowed_ips = vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()];
        peer.rtt = Some(Duration::from_micros(1500));
        let device = DeviceReport {
            listen_port: 51820,
            fwmark: 51820,
            engine: Some("native".to_owned()),
            outbound_drops: vec![Drops { reason: "no_route".to_owned(), packets: 4 }],
            ..DeviceReport::default()
        };

        let text = Report { device, peers: vec![peer] }.to_text();

        let expected = format!(
            "listen_port=51820\nfwmark=51820\nstrait_engine=native\nstrait_drops_out=no_route 4\n\
             public_key={}\npreshared_key={}\nprotocol_version=1\nendpoint=[2001:db8::3]:51820\n\
             last_handshake_time_sec=1795251261\nlast_handshake_time_nsec=9\ntx_bytes=0\nrx_bytes=0\n\
             persistent_keepalive_interval=0\nallowed_ip=10.0.0.0/8\nallowed_ip=::/0\n\
             strait_rtt_us=1500\nstrait_staged_packets=0\nstrait_unanswered=0\n",
            "ab".repeat(32),
            "00".repeat(32),
        );
        assert_eq!(*text, expected);
    }

    #[test]
    fn an_invalid_name_is_left_out() {
        for (name, is_shown) in [("milan", true), ("a=b", true), ("", false), ("a\nerrno=0", false)]
        {
            let mut peer = PeerReport::new(PublicKey::from_bytes([1; 32]));
            peer.name = Some(name.to_owned());

            let text = Report { peers: vec![peer], ..Report::default() }.to_text();

            assert_eq!(text.contains("strait_name="), is_shown, "{text:?}");
        }
    }

    #[test]
    fn a_private_key_is_reported_clamped() {
        let device = DeviceReport {
            private_key: Some(PrivateKey::from_bytes(&[0xff; 32]).unwrap()),
            ..DeviceReport::default()
        };

        let text = Report { device, ..Report::default() }.to_text();

        assert_eq!(*text, format!("private_key=f8{}7f\n", "ff".repeat(30)));
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let device = DeviceReport {
            private_key: Some(PrivateKey::from_bytes(&[0x5a; 32]).unwrap()),
            ..DeviceReport::default()
        };

        let text = format!("{:?}", Report { device, ..Report::default() });

        assert!(text.contains("PrivateKey(..)") && !text.contains("90, 90"), "{text}");
    }

    proptest! {
        #[test]
        fn a_report_is_parsed_back_within_its_bound(report in any_report()) {
            let text = report.to_text();

            let read = Report::parse(&format!("{}{}", *text, super::super::ending(Ok(())))).unwrap();

            prop_assert!(text.len() <= report.bytes(), "{} > {}", text.len(), report.bytes());
            prop_assert_eq!(&*read.to_text(), &*text);
            prop_assert_eq!(&read.peers, &report.peers);
        }
    }

    /// Includes the longest values.
    fn any_report() -> impl Strategy<Value = Report> {
        let peer = (
            (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<Option<(u128, u16)>>()),
            (any::<Option<(u64, u64)>>(), any::<[u64; 3]>(), any::<u16>(), any::<Option<u16>>()),
            prop::collection::vec((any::<u128>(), 0u8..=128), 0..4),
            (prop::option::of("[a-z=/ ]{1,80}"), any::<Option<u64>>(), any::<u32>()),
        );
        let device = (any::<[u8; 32]>(), any::<u16>(), any::<u32>(), any::<[u64; 2]>());

        (device, prop::collection::vec(peer, 0..4)).prop_map(|(device, peers)| {
            let drops = |packets| Drops::all(|_| packets);
            let (private_key, listen_port, fwmark, [outbound, inbound]) = device;
            let device = DeviceReport {
                private_key: PrivateKey::from_bytes(&private_key).ok(),
                listen_port,
                fwmark,
                engine: Some("boringtun".to_owned()),
                outbound_drops: drops(outbound),
                inbound_drops: drops(inbound),
            };
            let peers = peers.into_iter().map(|(identity, state, allowed_ips, ours)| {
                let (public_key, preshared_key, endpoint) = identity;
                let (last, [receive, transmit, staged], keepalive, mtu) = state;
                let (name, rtt, unanswered) = ours;
                PeerReport {
                    preshared_key: PresharedKey::from_bytes(&preshared_key).ok(),
                    endpoint: endpoint.map(|(address, port)| {
                        SocketAddr::from((address.to_be_bytes(), port)).into()
                    }),
                    last_handshake: last.map(|(seconds, nanos)| {
                        Duration::new(seconds, u32::try_from(1 + nanos % 999_999_999).unwrap())
                    }),
                    receive_bytes: receive,
                    transmit_bytes: transmit,
                    persistent_keepalive: NonZeroU16::new(keepalive),
                    allowed_ips: allowed_ips.into_iter().filter_map(prefix).collect(),
                    name: name.filter(|name| name.trim() == name),
                    rtt: rtt.map(Duration::from_micros),
                    path_mtu_bytes: mtu,
                    path_mtu_source: mtu.map(|_| PathMtuSource::Probe),
                    probe_rtt: rtt.map(Duration::from_micros),
                    probe_jitter: rtt.map(|us| Duration::from_micros(us / 2)),
                    probe_loss_percent: rtt.and_then(|us| u8::try_from(us % 101).ok()),
                    staged_packets: staged,
                    unanswered,
                    ..PeerReport::new(PublicKey::from_bytes(public_key))
                }
            });

            Report { device, peers: peers.collect() }
        })
    }

    fn prefix((bits, len): (u128, u8)) -> Option<Reported<Prefix>> {
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);

        Prefix::new(std::net::Ipv6Addr::from(bits & mask).into(), len).ok().map(Reported::Known)
    }
}
