//! Classification of WireGuard messages.

use strait_wg::PathProbe;
use strait_wg::message::Message;

/// Only type and length decide, and indices are where the whitepaper specifies them (section 5.4). A probe of the path is
/// read as it is written, and is as long as it says.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn message(datagram: &[u8]) {
    let index = |at: usize| {
        let bytes = datagram.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |index| u32::from_le_bytes(*index))
    };
    let expected = match (datagram.get(..4), datagram.len()) {
        (Some([1, 0, 0, 0]), 148) => Some(Message::Initiation),
        (Some([2, 0, 0, 0]), 92) => Some(Message::Response { receiver_index: index(8) }),
        (Some([3, 0, 0, 0]), 64) => Some(Message::CookieReply { receiver_index: index(4) }),
        (Some([4, 0, 0, 0]), 32..) => Some(Message::Data { receiver_index: index(4) }),
        _ => None,
    };

    assert_eq!(Message::classify(datagram), expected);

    // The same bytes as the content of transport data.
    if let Some(probe) = PathProbe::read(datagram) {
        assert_eq!(PathProbe::read(&probe.content()), Some(probe));
        assert!(matches!(probe, PathProbe::Answer(_)) || probe.content().len() <= datagram.len());
    }
}
