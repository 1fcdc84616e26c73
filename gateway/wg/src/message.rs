//! The four message types, distinguished by type field and length.
//!
//! Source: WireGuard whitepaper, section 5.4 "Messages". All integers are little-endian.

/// Bytes that transport data adds to a packet: header of 16, authentication tag of 16.
pub const DATA_OVERHEAD_BYTES: usize = 32;

/// The most that it adds: with the padding to a multiple of 16.
pub const MAX_DATAGRAM_OVERHEAD_BYTES: usize = DATA_OVERHEAD_BYTES + 15;

/// Length of the longest handshake message, the initiation.
pub const MAX_HANDSHAKE_BYTES: usize = 148;

/// The bytes of a handshake initiation.
pub type Initiation = [u8; MAX_HANDSHAKE_BYTES];

/// Length of a handshake response.
pub const RESPONSE_BYTES: usize = 92;

/// Length of a cookie reply.
pub const COOKIE_REPLY_BYTES: usize = 64;

/// The message type of a datagram. Nothing of it is authenticated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Begins a handshake. The identity of its sender is encrypted.
    Initiation,
    /// Answers an initiation of ours that carried this sender index.
    Response {
        /// The index we chose.
        receiver_index: u32,
    },
    /// Answers a handshake message of ours under load.
    CookieReply {
        /// The index we chose.
        receiver_index: u32,
    },
    /// Carries a packet, or nothing (a keepalive).
    Data {
        /// The index we chose in the handshake.
        receiver_index: u32,
    },
}

impl Message {
    /// The type of `datagram`; `None` if its type field or length fits no message.
    #[must_use]
    #[inline]
    pub fn classify(datagram: &[u8]) -> Option<Self> {
        let (message_type, rest) = datagram.split_first_chunk::<4>()?;
        let first_index = u32::from_le_bytes(*rest.first_chunk::<4>()?);

        match (u32::from_le_bytes(*message_type), datagram.len()) {
            (4, DATA_OVERHEAD_BYTES..) => Some(Self::Data { receiver_index: first_index }),
            (1, MAX_HANDSHAKE_BYTES) => Some(Self::Initiation),
            (2, RESPONSE_BYTES) => {
                let receiver_index = u32::from_le_bytes(*rest.get(4..)?.first_chunk::<4>()?);
                Some(Self::Response { receiver_index })
            }
            (3, COOKIE_REPLY_BYTES) => Some(Self::CookieReply { receiver_index: first_index }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_type_needs_its_length() {
        let index = 0x0403_0201;

        assert_eq!(Message::classify(&message(1, 148)), Some(Message::Initiation));
        assert_eq!(
            Message::classify(&message(2, 92)),
            Some(Message::Response { receiver_index: 0x0807_0605 })
        );
        assert_eq!(
            Message::classify(&message(3, 64)),
            Some(Message::CookieReply { receiver_index: index })
        );
        assert_eq!(
            Message::classify(&message(4, 32)),
            Some(Message::Data { receiver_index: index })
        );
        for (kind, len) in [(1, 147), (1, 149), (2, 91), (3, 65), (4, 31), (5, 148), (0, 148)] {
            assert_eq!(Message::classify(&message(kind, len)), None);
        }
    }

    #[test]
    fn reserved_bytes_must_be_zero() {
        let mut datagram = message(4, 64);
        datagram[2] = 1;

        assert_eq!(Message::classify(&datagram), None);
    }

    proptest! {
        #[test]
        fn no_datagram_causes_a_panic(
            datagram in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Message::classify(&datagram);
        }
    }

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = [kind, 0, 0, 0].into_iter().chain(1..).take(len).collect();
        bytes.resize(len, 0);

        bytes
    }
}
