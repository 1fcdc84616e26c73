//! The content of a set, parsed line by line.

use std::net::SocketAddr;

use remap::Prefix;

use super::value;
use super::{Errno, Refusal};
use crate::redact::without_keys;
use crate::{PresharedKey, PrivateKey, PublicKey};

/// The most characters of an invalid value that an error repeats.
const SHOWN: usize = 64;

/// A value with this many characters of a key in a row, in any notation, is not repeated: it may be a secret in the
/// wrong place. Values worth repeating, addresses and numbers, are shorter.
const SECRET_LEN: usize = 16;

/// The prefix of the keys that we add to the protocol.
const OURS: &str = "strait_";

/// The longest key of the protocol has 29.
const MAX_KEY_LEN: usize = 32;

/// The content of one set, in its order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The new private key; `Some(None)` removes it.
    pub private_key: Option<Option<PrivateKey>>,
    /// The new UDP port; 0 is any.
    pub listen_port: Option<u16>,
    /// The new firewall mark of sent datagrams; 0 is none.
    pub fwmark: Option<u32>,
    /// Remove all peers that are not named.
    pub replaces_peers: bool,
    /// Changes of peers, in order. A peer may occur more than once.
    pub peers: Vec<PeerChange>,
}

/// The changes of one peer in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChange {
    /// Identity of the peer.
    pub public_key: PublicKey,
    /// Apply the change only if the peer exists.
    pub is_update_only: bool,
    /// Remove the peer; everything else is ignored.
    pub is_removed: bool,
    /// The new preshared key; `Some(None)` removes it.
    pub preshared_key: Option<Option<PresharedKey>>,
    /// The new endpoint.
    pub endpoint: Option<SocketAddr>,
    /// The new interval in seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// Remove its allowed IPs first.
    pub replaces_allowed_ips: bool,
    /// Changes of allowed IPs, in order.
    pub allowed_ips: Vec<AllowedIp>,
}

/// A change of one allowed IP of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedIp {
    /// Give it to the peer, and take it from any other.
    Add(Prefix),
    /// Remove it from the peer.
    Remove(Prefix),
}

impl Changes {
    /// Takes one more line of a set, without its end.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with `EPROTO` if it is not a line of the protocol, `EINVAL` if its key is unknown or its value
    /// invalid.
    pub fn take(&mut self, line: &str) -> Result<(), Refusal> {
        let Some((key, value)) = line.split_once('=') else {
            // Not repeated: it may be a key.
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
    /// Adds the peer, without other changes.
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
                let remedy = "an IP address and a port, in brackets if IPv6, with an existing interface if it has a \
                     zone";
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
                    return Err(invalid(key, value, "1, the only version"));
                }
            }
            // Learned values cannot be set, but they are in the answer to a get.
            "last_handshake_time_sec" | "last_handshake_time_nsec" | "tx_bytes" | "rx_bytes" => {
                number(key, value, u64::MAX)?;
            }
            _ if key.starts_with(OURS) => {}
            _ => return Err(unknown("a peer", key)),
        }

        Ok(())
    }
}

/// A key of zeros is accepted, as by the kernel: no session with such a peer is possible.
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

/// A flag that can only be switched on.
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

    Refusal::new(Errno::INVALID, format!("{key} {value} is invalid: use {remedy}"))
}

/// For secrets: the value is not repeated.
fn not_a_key(key: &str) -> Refusal {
    Refusal::new(Errno::INVALID, format!("{key} is not a key: use 64 hexadecimal digits"))
}

/// The text before '=' is repeated only if it looks like a name: a line may be a key in base64, which ends with '='.
fn unknown(of: &str, key: &str) -> Refusal {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let text = if (1..=MAX_KEY_LEN).contains(&key.len()) && key.bytes().all(is_name) {
        format!("{key} is not a key of {of}")
    } else {
        format!("a line with text before '=' that is not a key of {of}")
    };

    Refusal::new(Errno::INVALID, text)
}

/// The beginning of a value, if no part of it looks like a key.
fn shown(value: &str) -> Option<String> {
    // The whole value: a key written in groups may be longer than the part that is shown.
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
    fn all_keys_of_a_device_are_accepted() {
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
    fn all_keys_of_a_peer_are_accepted() {
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
        assert_eq!(first.allowed_ips, expected, "earlier allowed IPs are replaced as well");
        assert!(second.is_removed);
    }

    #[test]
    fn a_zero_secret_removes_the_key() {
        let changes = take(&[
            &format!("private_key={ZERO}"),
            &format!("public_key={KEY}"),
            &format!("preshared_key={ZERO}"),
        ])
        .unwrap();

        assert!(changes.private_key.is_some_and(|key| key.is_none()));
        assert_eq!(changes.peers[0].preshared_key, Some(None));
    }

    /// The kernel's own tests set it and expect it in the answer.
    #[test]
    fn a_zero_public_key_is_a_peer() {
        let changes = take(&[&format!("public_key={ZERO}"), "allowed_ip=10.0.0.0/8"]).unwrap();

        let [peer] = &changes.peers[..] else { panic!("{changes:?}") };
        assert_eq!(peer.public_key, PublicKey::from_bytes([0; 32]));
    }

    #[test]
    fn invalid_lines_get_wireguard_go_error_numbers() {
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
    fn an_error_shows_the_value_unless_secret() {
        let error = |line: &str| take(&[line]).unwrap_err().to_string();
        let peer = format!("public_key={KEY}");
        let endpoint = take(&[&peer, "endpoint=[fe80::1%eth0]:51820"]).unwrap_err().to_string();
        let long = take(&[&peer, &format!("endpoint={}", "x.".repeat(9000))]).unwrap_err();

        let port = error("listen_port=70000");
        assert_eq!(port, "listen_port \"70000\" is invalid: use a decimal number from 0 to 65535");
        assert!(endpoint.starts_with("endpoint \"[fe80::1%eth0]:51820\" is invalid"), "{endpoint}");
        assert_eq!(error("mtu=1420"), "mtu is not a key of a device");
        assert_eq!(
            error("private_key=c0ffee"),
            "private_key is not a key: use 64 hexadecimal digits"
        );
        assert!(long.to_string().len() < 200, "{long}");
        for separator in [":", " ", ", "] {
            let bytes = KEY.as_bytes().chunks(2).map(|byte| str::from_utf8(byte).unwrap());
            let written = bytes.collect::<Vec<_>>().join(separator);
            let hidden = "fwmark (hidden) is invalid: use a decimal number from 0 to 4294967295";
            assert_eq!(error(&format!("fwmark={written}")), hidden);
        }
        // A private key alone, in both notations.
        assert_eq!(error(KEY), "a line without '=': write KEY=VALUE");
        let base64 = PrivateKey::from_bytes(&value::key(KEY).unwrap()).unwrap().to_base64();
        assert_eq!(error(&base64), "a line with text before '=' that is not a key of a device");
    }

    proptest! {
        /// In any line, at any place.
        #[test]
        fn no_refusal_shows_part_of_a_secret(
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

    /// All keys of the protocol, and some unknown ones.
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
