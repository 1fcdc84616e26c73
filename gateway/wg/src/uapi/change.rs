//! What a set wants, line by line.

use std::net::SocketAddr;

use remap::Prefix;

use super::value;
use super::{Errno, Refusal};
use crate::PresharedKey;
use crate::PrivateKey;
use crate::PublicKey;
use crate::redact::without_keys;

/// The most of a wrong value that an error repeats, in characters.
const SHOWN: usize = 64;

/// So many characters in a row that could stand in a key, of any notation, and a value is not repeated: a
/// secret may have come to the wrong place. What is worth repeating, an address or a number, is shorter.
const SECRET_LEN: usize = 16;

/// How the keys begin of what we answer beyond the protocol.
const OURS: &str = "strait_";

/// The longest key of the protocol has 29.
const MAX_KEY_LEN: usize = 32;

/// Everything that one set wants, in its order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Another key of our own; none is a device without one.
    pub private_key: Option<Option<PrivateKey>>,
    /// Another UDP port; 0 is any.
    pub listen_port: Option<u16>,
    /// Another mark on what is sent; 0 is none.
    pub fwmark: Option<u32>,
    /// All peers that are not named are to go.
    pub replaces_peers: bool,
    /// One peer after the other. A peer may come up again.
    pub peers: Vec<PeerChange>,
}

/// What a set wants of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Who it is.
    pub public_key: PublicKey,
    /// Only if it is there.
    pub is_update_only: bool,
    /// It is to go, whatever else is said of it.
    pub is_removed: bool,
    /// Another preshared key; none is a peer without one.
    pub preshared_key: Option<Option<PresharedKey>>,
    /// Where it is from now on.
    pub endpoint: Option<SocketAddr>,
    /// Seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// It loses the allowed IPs that it has.
    pub replaces_allowed_ips: bool,
    /// One after the other.
    pub allowed_ips: Vec<AllowedIp>,
}

/// One allowed IP of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedIp {
    /// The peer has it from now on, and nobody else.
    Add(Prefix),
    /// The peer has it no more.
    Remove(Prefix),
}

impl Changes {
    /// Takes one more line of a set, without its end.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with `EPROTO` if it is no line of the protocol, `EINVAL` if key or value are none.
    pub fn take(&mut self, line: &str) -> Result<(), Refusal> {
        let Some((key, value)) = line.split_once('=') else {
            // Never repeated: it may be the text of a key.
            let text = "a line without '=': write KEY=VALUE";
            return Err(Refusal::new(Errno::PROTOCOL, text));
        };
        if key == "public_key" {
            self.peers.push(PeerChange::new(public_key(value)?));
            return Ok(());
        }

        match self.peers.last_mut() {
            None => self.take_of_device(key, value),
            Some(peer) => peer.take(key, value),
        }
    }

    fn take_of_device(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        match key {
            "private_key" => {
                let bytes = value::key(value).ok_or_else(|| not_a_key(key))?;
                self.private_key = Some(PrivateKey::from_bytes(&bytes).ok());
            }
            "listen_port" => self.listen_port = Some(number(key, value, u16::MAX)?),
            "fwmark" => self.fwmark = Some(number(key, value, u32::MAX)?),
            "replace_peers" => {
                truth(key, value)?;
                self.replaces_peers = true;
            }
            _ if key.starts_with(OURS) => {}
            _ => return Err(unknown("a device", key)),
        }

        Ok(())
    }
}

impl PeerChange {
    /// Nothing but that the peer is to be there.
    #[must_use]
    pub const fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            is_update_only: false,
            is_removed: false,
            preshared_key: None,
            endpoint: None,
            persistent_keepalive: None,
            replaces_allowed_ips: false,
            allowed_ips: Vec::new(),
        }
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        match key {
            "preshared_key" => {
                let bytes = value::key(value).ok_or_else(|| not_a_key(key))?;
                self.preshared_key = Some(PresharedKey::from_bytes(&bytes).ok());
            }
            "endpoint" => {
                let endpoint = value::endpoint(value);
                let remedy = "an IP address and a port, in brackets if IPv6, with an interface that is there if it \
                     has a zone";
                self.endpoint = Some(endpoint.ok_or_else(|| invalid(key, value, remedy))?);
            }
            "persistent_keepalive_interval" => {
                self.persistent_keepalive = Some(number(key, value, u16::MAX)?);
            }
            "allowed_ip" => self.allowed_ips.push(allowed_ip(key, value)?),
            "replace_allowed_ips" => {
                truth(key, value)?;
                self.replaces_allowed_ips = true;
                self.allowed_ips.clear();
            }
            "update_only" => {
                truth(key, value)?;
                self.is_update_only = true;
            }
            "remove" => {
                truth(key, value)?;
                self.is_removed = true;
            }
            "protocol_version" => {
                if value != "1" {
                    return Err(invalid(key, value, "1, the only version there is"));
                }
            }
            // What was learned cannot be set, but a get has answered it.
            "last_handshake_time_sec" | "last_handshake_time_nsec" | "tx_bytes" | "rx_bytes" => {
                number(key, value, u64::MAX)?;
            }
            _ if key.starts_with(OURS) => {}
            _ => return Err(unknown("a peer", key)),
        }

        Ok(())
    }
}

/// Zeros are a key as any other, as for the kernel: of a peer that there can be no session with.
fn public_key(value: &str) -> Result<PublicKey, Refusal> {
    value::key(value)
        .map(|bytes| PublicKey::from_bytes(*bytes))
        .ok_or_else(|| invalid("public_key", value, "64 hexadecimal digits"))
}

fn allowed_ip(key: &str, value: &str) -> Result<AllowedIp, Refusal> {
    let (make, text): (fn(Prefix) -> AllowedIp, _) = match value.strip_prefix('-') {
        Some(rest) => (AllowedIp::Remove, rest),
        None => (AllowedIp::Add, value),
    };
    let remedy = "a prefix such as 10.244.0.0/16 or fd00::/8, with '-' in front to remove it";

    value::prefix(text).map(make).ok_or_else(|| invalid(key, value, remedy))
}

fn number<T: std::str::FromStr + std::fmt::Display>(
    key: &str,
    value: &str,
    max: T,
) -> Result<T, Refusal> {
    value::number(value)
        .ok_or_else(|| invalid(key, value, &format!("a decimal number from 0 to {max}")))
}

/// A key that can only be switched on.
fn truth(key: &str, value: &str) -> Result<(), Refusal> {
    if value == "true" {
        return Ok(());
    }

    Err(invalid(key, value, "true, or leave it out"))
}

fn invalid(key: &str, value: &str, remedy: &str) -> Refusal {
    let value = match shown(value) {
        Some(value) => format!("{value:?}"),
        None => "(hidden)".to_owned(),
    };

    Refusal::new(Errno::INVALID, format!("{key} {value} is wrong: use {remedy}"))
}

/// For secrets, which no error repeats.
fn not_a_key(key: &str) -> Refusal {
    Refusal::new(Errno::INVALID, format!("{key} is no key: use 64 hexadecimal digits"))
}

/// A bare key in base64 has its own equals sign, at its end: what stands before need not be a name.
fn unknown(of: &str, key: &str) -> Refusal {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let text = if (1..=MAX_KEY_LEN).contains(&key.len()) && key.bytes().all(is_name) {
        format!("{key} is no key of {of}")
    } else {
        format!("a line with something before '=' that is no key of {of}")
    };

    Refusal::new(Errno::INVALID, text)
}

/// The beginning of a value, if nothing in there looks like a key.
fn shown(value: &str) -> Option<String> {
    // As a whole: what is written in groups is longer than what is shown.
    if without_keys(value) != value {
        return None;
    }
    let value: String = value.chars().take(SHOWN).collect();
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || "+/-_=".contains(c);
    let mut words = value.split(|c| !is_of_key(c));

    words.all(|word| word.len() < SECRET_LEN).then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4";
    const ZERO: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    #[test]
    fn every_key_of_a_device_is_taken() {
        let changes = take(&[
            &format!("private_key={KEY}"),
            "listen_port=51820",
            "fwmark=4294967295",
            "replace_peers=true",
        ])
        .unwrap();

        let key = changes.private_key.flatten().unwrap();
        assert_eq!(key.to_bytes()[..2], [0xa5, 0x46]);
        assert_eq!((changes.listen_port, changes.fwmark), (Some(51820), Some(u32::MAX)));
        assert!(changes.replaces_peers && changes.peers.is_empty());
    }

    #[test]
    fn every_key_of_a_peer_is_taken() {
        let changes = take(&[
            &format!("public_key={KEY}"),
            "update_only=true",
            &format!("preshared_key={KEY}"),
            "endpoint=[2001:db8::3]:51820",
            "persistent_keepalive_interval=25",
            "allowed_ip=192.0.2.0/24",
            "replace_allowed_ips=true",
            "allowed_ip=10.1.2.3/8",
            "allowed_ip=-fd00::/8",
            "protocol_version=1",
            &format!("public_key={}", KEY.replace('a', "b")),
            "remove=true",
        ])
        .unwrap();

        let [first, second] = &changes.peers[..] else { panic!("{changes:?}") };
        assert!(first.is_update_only && !first.is_removed && first.replaces_allowed_ips);
        assert!(first.preshared_key.as_ref().is_some_and(Option::is_some));
        assert_eq!(first.endpoint, Some("[2001:db8::3]:51820".parse().unwrap()));
        assert_eq!(first.persistent_keepalive, Some(25));
        let expected =
            [AllowedIp::Add(prefix("10.0.0.0/8")), AllowedIp::Remove(prefix("fd00::/8"))];
        assert_eq!(first.allowed_ips, expected, "what stands before the replacement is replaced");
        assert!(second.is_removed);
    }

    #[test]
    fn a_secret_of_zeros_is_none() {
        let changes = take(&[
            &format!("private_key={ZERO}"),
            &format!("public_key={KEY}"),
            &format!("preshared_key={ZERO}"),
        ])
        .unwrap();

        assert!(changes.private_key.is_some_and(|key| key.is_none()));
        assert_eq!(changes.peers[0].preshared_key, Some(None));
    }

    /// The kernel's own tests set it and expect to find it.
    #[test]
    fn a_public_key_of_zeros_is_a_peer() {
        let changes = take(&[&format!("public_key={ZERO}"), "allowed_ip=10.0.0.0/8"]).unwrap();

        let [peer] = &changes.peers[..] else { panic!("{changes:?}") };
        assert_eq!(peer.public_key, PublicKey::from_bytes([0; 32]));
    }

    /// The numbers are those of wireguard-go.
    #[test]
    fn what_is_wrong_is_refused_with_its_number() {
        let of_device = [
            ("listen_port", Errno::PROTOCOL),
            ("", Errno::PROTOCOL),
            ("listen_port=", Errno::INVALID),
            ("listen_port=65536", Errno::INVALID),
            ("listen_port=+1", Errno::INVALID),
            ("fwmark=0x10", Errno::INVALID),
            ("fwmark=4294967296", Errno::INVALID),
            ("replace_peers=false", Errno::INVALID),
            ("private_key=00", Errno::INVALID),
            ("allowed_ip=10.0.0.0/8", Errno::INVALID),
            ("Listen_port=1", Errno::INVALID),
            ("public_key=", Errno::INVALID),
            (&format!("public_key={}", &ZERO[1..]), Errno::INVALID),
        ];
        let of_peer = [
            ("listen_port=1", Errno::INVALID),
            ("replace_peers=true", Errno::INVALID),
            ("update_only=1", Errno::INVALID),
            ("remove=false", Errno::INVALID),
            ("preshared_key=", Errno::INVALID),
            ("endpoint=192.0.2.1", Errno::INVALID),
            ("endpoint=milan.example:51820", Errno::INVALID),
            ("persistent_keepalive_interval=off", Errno::INVALID),
            ("persistent_keepalive_interval=65536", Errno::INVALID),
            ("replace_allowed_ips=yes", Errno::INVALID),
            ("allowed_ip=10.0.0.1", Errno::INVALID),
            ("allowed_ip=--10.0.0.0/8", Errno::INVALID),
            ("protocol_version=2", Errno::INVALID),
            ("rx_bytes=many", Errno::INVALID),
            ("rtt_us=1", Errno::INVALID),
        ];

        for (line, errno) in of_device {
            assert_eq!(take(&[line]).unwrap_err().errno, errno, "{line:?}");
        }
        for (line, errno) in of_peer {
            let error = take(&[&format!("public_key={KEY}"), line]).unwrap_err();
            assert_eq!(error.errno, errno, "{line:?}");
        }
    }

    #[test]
    fn an_error_names_the_value_unless_it_is_a_secret() {
        let error = |line: &str| take(&[line]).unwrap_err().to_string();
        let peer = format!("public_key={KEY}");
        let endpoint = take(&[&peer, "endpoint=[fe80::1%eth0]:51820"]).unwrap_err().to_string();
        let long = take(&[&peer, &format!("endpoint={}", "x.".repeat(9000))]).unwrap_err();

        let port = error("listen_port=70000");
        assert_eq!(port, "listen_port \"70000\" is wrong: use a decimal number from 0 to 65535");
        assert!(endpoint.starts_with("endpoint \"[fe80::1%eth0]:51820\" is wrong"), "{endpoint}");
        assert_eq!(error("mtu=1420"), "mtu is no key of a device");
        assert_eq!(error("private_key=c0ffee"), "private_key is no key: use 64 hexadecimal digits");
        assert!(long.to_string().len() < 200, "{long}");
        for separator in [":", " ", ", "] {
            let bytes = KEY.as_bytes().chunks(2).map(|byte| str::from_utf8(byte).unwrap());
            let written = bytes.collect::<Vec<_>>().join(separator);
            let hidden = "fwmark (hidden) is wrong: use a decimal number from 0 to 4294967295";
            assert_eq!(error(&format!("fwmark={written}")), hidden);
        }
        // `wg genkey` without a key in front, in both notations.
        assert_eq!(error(KEY), "a line without '=': write KEY=VALUE");
        let base64 = PrivateKey::from_bytes(&value::key(KEY).unwrap()).unwrap().to_base64();
        assert_eq!(error(&base64), "a line with something before '=' that is no key of a device");
    }

    proptest! {
        /// Whatever line a secret stands in, and wherever in the line.
        #[test]
        fn no_refusal_repeats_a_piece_of_a_secret(
            secret in any::<[u8; 32]>(),
            key in prop::sample::select(&KEYS[..]),
            (before, after) in ("[ -~]{0,8}", "[ -~]{0,8}"),
        ) {
            prop_assume!(secret != [0; 32]);
            let secret = PrivateKey::from_bytes(&secret).unwrap();
            let base64 = secret.to_base64();
            let hex: String = secret.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let peer = format!("public_key={KEY}");

            for secret in [&**base64, base64.trim_end_matches('='), &hex, &hex[1..], &hex.to_uppercase()]
            {
                let text = format!("{before}{secret}{after}");
                for line in [
                    text.clone(),
                    format!("{key}{text}"),
                    format!("{key}={text}"),
                    format!("{text}={key}"),
                    format!("{key} = {text}"),
                ] {
                    for lines in [&[&*line][..], &[&peer, &line]] {
                        let refused = take(lines).err().map(|refusal| refusal.to_string());
                        let refused = refused.unwrap_or_default();
                        let mut pieces = secret.as_bytes().windows(16);
                        prop_assert!(
                            !pieces.any(|piece| refused.contains(str::from_utf8(piece).unwrap())),
                            "{line:?} is answered with {refused:?}"
                        );
                    }
                }
            }
        }
    }

    /// All that there are, and some that are none.
    const KEYS: [&str; 17] = [
        "private_key",
        "listen_port",
        "fwmark",
        "replace_peers",
        "public_key",
        "preshared_key",
        "endpoint",
        "persistent_keepalive_interval",
        "allowed_ip",
        "replace_allowed_ips",
        "update_only",
        "remove",
        "protocol_version",
        "get",
        "PrivateKey",
        "private key",
        "",
    ];

    fn take(lines: &[&str]) -> Result<Changes, Refusal> {
        let mut changes = Changes::default();
        lines.iter().try_for_each(|line| changes.take(line))?;

        Ok(changes)
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }
}
