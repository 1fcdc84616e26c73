//! A message: one JSON object in one datagram.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::MESSAGE_BYTES_MAX;

/// Question or answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Kind {
    Ping,
    Pong,
}

/// What gateways say to each other. An answer repeats the question, all of it but the kind.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Message {
    /// The one who is asked, as the one who asks calls it.
    #[serde(rename = "clusterID")]
    pub(super) cluster_id: String,
    #[serde(rename = "msgType")]
    pub(super) kind: Kind,
    /// When it was asked, RFC 3339 with up to nine digits; never read, as a peer may write it in its
    /// own way.
    #[serde(rename = "timeStamp")]
    pub(super) time_stamp: String,
    /// Of ours; stock gateways lose it on the way.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex")]
    pub(super) nonce: Option<u64>,
    /// What newer releases may add.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Message {
    pub(super) fn ping(cluster_id: &str, time_stamp: &str, nonce: u64) -> Self {
        Self {
            cluster_id: cluster_id.to_owned(),
            kind: Kind::Ping,
            time_stamp: time_stamp.to_owned(),
            nonce: Some(nonce),
            rest: Map::new(),
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return None;
        }

        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn into_pong(self) -> Self {
        Self { kind: Kind::Pong, ..self }
    }

    /// What cannot be written is an empty datagram; no message is known to be one.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// 64 bits as sixteen digits: numbers of JSON have 53.
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
