//! A message: one JSON object in one datagram.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::MESSAGE_BYTES_MAX;

/// The two kinds of messages.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Kind {
    Ping,
    Pong,
}

/// A message between gateways. An answer repeats the question except for the kind, and reports damage to one of ours.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Message {
    /// The id of the cluster that is asked, as in the cluster that asks.
    #[serde(rename = "clusterID")]
    pub(super) cluster_id: String,
    #[serde(rename = "msgType")]
    pub(super) kind: Kind,
    /// When the question was sent, RFC 3339 with up to nine digits; never read, as a peer may format it differently.
    #[serde(rename = "timeStamp")]
    pub(super) time_stamp: String,
    /// Ours alone; stock gateways do not repeat it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub(super) nonce: Option<u64>,
    /// Of an answer to one of ours: the datagrams of the gateway that asks which arrived damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) damaged: Option<u64>,
    /// The mark of a sender that is draining: a nonce of a PING that it got from the other end.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub(super) draining: Option<u64>,
    /// Fields that newer releases may add.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Message {
    /// With the mark `draining`, if the sender is.
    pub(super) fn ping(
        cluster_id: &str,
        time_stamp: &str,
        nonce: u64,
        draining: Option<u64>,
    ) -> Self {
        Self {
            cluster_id: cluster_id.to_owned(),
            kind: Kind::Ping,
            time_stamp: time_stamp.to_owned(),
            nonce: Some(nonce),
            damaged: None,
            draining,
            rest: Map::new(),
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // Spaces are the padding of our PINGs.
        let bytes = bytes.trim_ascii_end();
        if bytes.len() > MESSAGE_BYTES_MAX {
            return None;
        }

        serde_json::from_slice(bytes).ok()
    }

    /// With the mark of a sender that is draining, if it `is_draining`.
    pub(super) fn into_pong(self, damaged: u64, is_draining: bool) -> Self {
        let damaged = self.nonce.map(|_| damaged);
        let draining = self.nonce.filter(|_| is_draining);

        Self { kind: Kind::Pong, damaged, draining, ..self }
    }

    /// A message that cannot be serialized gives an empty datagram; none is known.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Padded to `len` bytes, if it is shorter.
    pub(super) fn to_padded_bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = self.to_bytes();
        bytes.resize(len.max(bytes.len()), b' ');

        bytes
    }
}

/// 64 bits as sixteen hexadecimal digits: numbers of JSON have 53 bits.
mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        nonce: &Option<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match nonce {
            Some(nonce) => serializer.collect_str(&format_args!("{nonce:016x}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;

        text.map(|text| u64::from_str_radix(&text, 16)).transpose().map_err(D::Error::custom)
    }
}
