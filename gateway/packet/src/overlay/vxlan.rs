//! The VXLAN header (RFC 7348 section 5).
//!
//! ```text
//!   [ flags ][ reserved: 3 ][ identifier: 3 ][ reserved: 1 ]
//! ```

use super::{HEADER_LEN, Vni};

/// The flag I: the identifier is valid.
const VALID_IDENTIFIER: u8 = 0x08;

/// The identifier, and the offset of the frame. Reserved fields are ignored on receipt.
#[inline]
pub(super) fn parse(datagram: &[u8]) -> Option<(Vni, usize)> {
    let &[flags, _, _, _, high, middle, low, _] = datagram.first_chunk::<HEADER_LEN>()?;

    (flags & VALID_IDENTIFIER != 0).then_some((Vni::from_bytes([high, middle, low]), HEADER_LEN))
}

pub(super) const fn header(vni: Vni) -> [u8; HEADER_LEN] {
    let [high, middle, low] = vni.to_bytes();

    [VALID_IDENTIFIER, 0, 0, 0, high, middle, low, 0]
}
