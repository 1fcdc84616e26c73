//! The Geneve header (RFC 8926 sections 3.4 and 3.5).
//!
//! ```text
//!   [ version: 2 bits, length of options: 6 bits ][ O, C, reserved ][ protocol: 2 ][ identifier: 3 ][ reserved: 1 ][ options ]
//! ```

use super::{HEADER_LEN, Vni};

/// "Transparent Ethernet bridging": an Ethernet frame follows.
const ETHERNET: u16 = 0x6558;

/// The flag O: the payload is a control message, and must not be forwarded.
const CONTROL: u8 = 0x80;

/// The flag C: there is a critical option. A receiver that supports no option must drop the packet.
const CRITICAL: u8 = 0x40;

/// In the type of an option: a receiver that does not know it must drop the packet.
const CRITICAL_OPTION: u8 = 0x80;

/// The length of the header of an option, and the unit of lengths, in bytes.
const OPTION_HEADER_LEN: usize = 4;
const UNIT: usize = 4;

/// The identifier, and the offset of the frame. Reserved fields are ignored on receipt, and options that are not critical
/// are skipped.
#[inline]
pub(super) fn parse(datagram: &[u8]) -> Option<(Vni, usize)> {
    let &[start, flags, p0, p1, high, middle, low, _] = datagram.first_chunk::<HEADER_LEN>()?;
    let version = start >> 6;
    let offset = HEADER_LEN + usize::from(start & 0x3f) * UNIT;
    let options = datagram.get(HEADER_LEN..offset)?;
    let is_forwarded = version == 0
        && flags & (CONTROL | CRITICAL) == 0
        && u16::from_be_bytes([p0, p1]) == ETHERNET
        && may_be_skipped(options);

    is_forwarded.then_some((Vni::from_bytes([high, middle, low]), offset))
}

/// Whether no option is critical, and all of them end where the header says. The flag C already excludes critical options;
/// a sender may have forgotten it.
fn may_be_skipped(mut options: &[u8]) -> bool {
    while let Some((&[_, _, kind, units], rest)) = options.split_first_chunk::<OPTION_HEADER_LEN>()
    {
        let len = usize::from(units & 0x1f) * UNIT;
        let Some(next) = rest.get(len..) else {
            return false;
        };
        if kind & CRITICAL_OPTION != 0 {
            return false;
        }
        options = next;
    }

    true
}

pub(super) const fn header(vni: Vni) -> [u8; HEADER_LEN] {
    let [high, middle, low] = vni.to_bytes();
    let [p0, p1] = ETHERNET.to_be_bytes();

    [0, 0, p0, p1, high, middle, low, 0]
}
